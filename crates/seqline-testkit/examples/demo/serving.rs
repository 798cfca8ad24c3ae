//! The server of the agents: processes of the command that is shipped, with the role `api`.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use anyhow::Context;
use seqline_testkit::{Role, TestDb};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

/// What agents have not acknowledged for so long is given again. Short, so that it happens while somebody watches.
pub(crate) const ACK_TIMEOUT: Duration = Duration::from_secs(2);
/// Long enough that a takeover comes between two saves, and shorter than the other.
const ACK_PERSIST_INTERVAL: Duration = Duration::from_millis(1500);

/// A running process. Dropped, it is killed.
pub(crate) struct Serving {
    child: Child,
    pub(crate) address: SocketAddr,
}

impl Serving {
    /// Starts one on this database.
    pub(crate) async fn start(db: &TestDb) -> anyhow::Result<Self> {
        // This program is in the folder `examples` beside it.
        let own = std::env::current_exe().context("find this program")?;
        let program = own.ancestors().nth(2).context("find the command")?.join("seqline");
        let mut child = Command::new(&program)
            .args(["serve", "--role", "api"])
            .env("SEQLINE_DATABASE_URL", db.url(Role::App))
            .env("SEQLINE_API__LISTEN", "127.0.0.1:0")
            .env("SEQLINE_OPS__LISTEN", "127.0.0.1:0")
            .env("SEQLINE_AGENT__ACK_TIMEOUT", format!("{}ms", ACK_TIMEOUT.as_millis()))
            .env("SEQLINE_AGENT__ACK_PERSIST_INTERVAL", format!("{}ms", ACK_PERSIST_INTERVAL.as_millis()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("start {}: use cargo xtask demo", program.display()))?;
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
        Ok(Self { child, address: address.context("the server does not say where it answers")? })
    }

    /// Kills it with SIGKILL, and waits until it is gone.
    pub(crate) async fn kill(&mut self) -> anyhow::Result<()> {
        Ok(self.child.kill().await?)
    }
}
