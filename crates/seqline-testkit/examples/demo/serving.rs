//! Processes of the command that is shipped: the server of the agents, with the role `api`, and the relay.

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
    /// Starts a server for agents on this database.
    pub(crate) async fn start(db: &TestDb) -> anyhow::Result<Self> {
        let milliseconds = |duration: Duration| format!("{}ms", duration.as_millis());
        let settings = [
            ("SEQLINE_API__LISTEN", "127.0.0.1:0".to_owned()),
            ("SEQLINE_AGENT__ACK_TIMEOUT", milliseconds(ACK_TIMEOUT)),
            ("SEQLINE_AGENT__ACK_PERSIST_INTERVAL", milliseconds(ACK_PERSIST_INTERVAL)),
        ];
        let (child, address) = launch(db, "api", &settings).await?;
        Ok(Self { child, address: address.context("the server does not say where it answers")? })
    }

    /// Kills it with SIGKILL, and waits until it is gone.
    pub(crate) async fn kill(&mut self) -> anyhow::Result<()> {
        Ok(self.child.kill().await?)
    }
}

/// A running relay. Dropped, it is killed.
pub(crate) struct Relaying(Child);

impl Relaying {
    /// Starts a relay from this database to this broker, and nothing else.
    pub(crate) async fn start(db: &TestDb, broker: &str) -> anyhow::Result<Self> {
        let settings = [
            ("SEQLINE_NATS_URL", broker.to_owned()),
            ("SEQLINE_STREAM_CONSUMER__RECORDER", "off".to_owned()),
            ("SEQLINE_RELAY__LEASE", "2s".to_owned()),
        ];
        Ok(Self(launch(db, "relay", &settings).await?.0))
    }

    /// Kills it with SIGKILL, and waits until it is gone.
    pub(crate) async fn kill(&mut self) -> anyhow::Result<()> {
        Ok(self.0.kill().await?)
    }
}

/// Starts the command, and waits until it says that it has started. It may have to wait for the database, which is killed now and then.
async fn launch(
    db: &TestDb,
    role: &str,
    settings: &[(&str, String)],
) -> anyhow::Result<(Child, Option<SocketAddr>)> {
    // This program is in the folder `examples` beside it.
    let own = std::env::current_exe().context("find this program")?;
    let program = own.ancestors().nth(2).context("find the command")?.join("seqline");
    let mut child = Command::new(&program)
        .args(["serve", "--role", role])
        .env("SEQLINE_DATABASE_URL", db.url(Role::App))
        .env("SEQLINE_OPS__LISTEN", "127.0.0.1:0")
        .envs(settings.iter().map(|(name, value)| (name, value)))
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
    Ok((child, address))
}
