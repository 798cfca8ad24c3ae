//! The server that is measured: one process with the role `api`.

use std::net::SocketAddr;
use std::process::Stdio;

use anyhow::{Context, ensure};
use seqline::access::{self, NewPrincipal, PrincipalKind, Rights};
use seqline_testkit::{Role, TestDb};
use sqlx::PgConnection;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

/// A running process. Dropped, it is killed.
pub(crate) struct Serving {
    child: Child,
    pub(crate) address: SocketAddr,
    pub(crate) token: String,
}

impl Serving {
    /// Starts one on this database, with a principal that may append. Limits that protect a server from its clients are out of the way, those
    /// of the settings too.
    pub(crate) async fn start(db: &TestDb, settings: &[(&str, &str)]) -> anyhow::Result<Self> {
        let mut connection = db.connect(Role::App).await;
        let rights = Rights { append: true, operate: false };
        let token = principal(&mut connection, "bench", PrincipalKind::App, rights).await?;
        // This program is in the folder `examples` beside it.
        let own = std::env::current_exe().context("find this program")?;
        let program = own.ancestors().nth(2).context("find the command")?.join("seqline");
        let mut command = Command::new(&program);
        command
            .args(["serve", "--role", "api"])
            .env("SEQLINE_DATABASE_URL", db.url(Role::App))
            .env("SEQLINE_API__LISTEN", "127.0.0.1:0")
            .env("SEQLINE_OPS__LISTEN", "127.0.0.1:0")
            .env("SEQLINE_API__REQUESTS_PER_SECOND", "1000000")
            .env("SEQLINE_API__REQUESTS_BURST", "1000000")
            .envs(settings.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let mut child =
            command.spawn().with_context(|| format!("start {}: use cargo xtask bench", program.display()))?;
        let stderr = child.stderr.take().context("the server has no log")?;
        let mut lines = BufReader::new(stderr).lines();
        let mut address = None;
        while let Some(line) = lines.next_line().await? {
            let line: serde_json::Value =
                serde_json::from_str(&line).with_context(|| format!("the server says: {line}"))?;
            match line["message"].as_str() {
                Some("api listening") => address = line["address"].as_str().map(str::parse).transpose()?,
                Some("server started") => break,
                _ => {}
            }
        }
        // It goes on writing, and nobody may make it wait.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        let address = address.context("the server does not say where it answers")?;
        Ok(Self { child, address, token })
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Ends it.
    pub(crate) async fn stop(mut self) -> anyhow::Result<()> {
        self.child.kill().await?;
        let status = self.child.wait().await?;
        ensure!(!status.success(), "the server had ended on its own");
        Ok(())
    }
}

/// A token of a new principal.
pub(crate) async fn principal(
    connection: &mut PgConnection,
    id: &str,
    kind: PrincipalKind,
    rights: Rights,
) -> anyhow::Result<String> {
    let principal = NewPrincipal { id: id.to_owned(), kind, name: None, rights };
    access::create_principal(connection, &principal, None).await?;
    let created = access::create_token(connection, id, None, None, None).await?;
    Ok(created.token.reveal().to_owned())
}
