//! What the kit itself says to a broker: as little as shows that it is there, in its plain protocol and over HTTP.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde::Deserialize;
use serde_json::Value;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// How long one answer may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// More than any line or answer that is asked for here.
const MOST_BYTES: usize = 1024 * 1024;

/// What a broker says of itself to whoever connects.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Info {
    pub(super) server_name: String,
    pub(super) version: String,
    #[serde(default)]
    pub(super) auth_required: bool,
    #[serde(default)]
    pub(super) tls_required: bool,
}

pub(super) async fn info(addr: SocketAddr) -> anyhow::Result<Info> {
    within(async {
        let stream = TcpStream::connect(addr).await.context("connect")?;
        read_info(&mut BufReader::new(stream.take(MOST_BYTES as u64))).await
    })
    .await
}

/// The body of what is at a path of the monitoring port, if the broker says that all is well.
pub(super) async fn monitored(addr: SocketAddr, path: &str) -> anyhow::Result<String> {
    within(async {
        let mut stream = TcpStream::connect(addr).await.context("connect")?;
        stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).await?;
        let mut text = String::new();
        stream.take(MOST_BYTES as u64).read_to_string(&mut text).await?;
        let (head, body) = text.split_once("\r\n\r\n").context("the answer has no end of its head")?;
        let status = head.split_whitespace().nth(1);
        ensure!(status == Some("200"), "the broker says of itself: {body}");
        Ok(body.to_owned())
    })
    .await
}

/// Asks on a subject, as a client without a name or a password, and takes the first answer.
pub(super) async fn ask(addr: SocketAddr, subject: &str, body: &[u8]) -> anyhow::Result<Value> {
    const INBOX: &str = "_INBOX.seqline-testkit";
    within(async {
        let (read, mut write) = TcpStream::connect(addr).await.context("connect")?.into_split();
        let mut read = BufReader::new(read.take(MOST_BYTES as u64));
        let info = read_info(&mut read).await?;
        ensure!(!info.auth_required && !info.tls_required, "the broker wants a login, or TLS");
        let inbox = format!("{INBOX}.{:016x}", fastrand::u64(..));
        let mut said = format!(
            "CONNECT {{\"verbose\":false,\"pedantic\":false,\"headers\":true,\"no_responders\":true}}\r\n\
             SUB {inbox} 1\r\nPUB {subject} {inbox} {}\r\n",
            body.len()
        )
        .into_bytes();
        said.extend_from_slice(body);
        said.extend_from_slice(b"\r\n");
        write.write_all(&said).await?;
        loop {
            let line = read_line(&mut read).await?;
            match line.split(' ').next() {
                Some("MSG") => {
                    let length = line.rsplit(' ').next().and_then(|length| length.parse::<usize>().ok());
                    let length = length.filter(|length| *length <= MOST_BYTES);
                    let mut answer = vec![0; length.context("the answer has no length, or is too long")?];
                    read.read_exact(&mut answer).await?;
                    return serde_json::from_slice(&answer).context("the answer is not JSON");
                }
                Some("PING") => write.write_all(b"PONG\r\n").await?,
                // Nobody listens on the subject: an answer of a header alone.
                Some("HMSG") => bail!("nobody answers on {subject}"),
                Some("-ERR") => bail!("the broker refuses: {line}"),
                _ => {}
            }
        }
    })
    .await
}

async fn read_info(read: &mut (impl AsyncBufRead + Unpin)) -> anyhow::Result<Info> {
    let line = read_line(read).await?;
    let info = line.strip_prefix("INFO ").context("the broker does not begin with INFO")?;
    serde_json::from_str(info).context("INFO is not JSON")
}

async fn read_line(read: &mut (impl AsyncBufRead + Unpin)) -> anyhow::Result<String> {
    let mut line = String::new();
    ensure!(read.read_line(&mut line).await? > 0, "the broker hung up");
    Ok(line.trim_end().to_owned())
}

async fn within<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::time::timeout(PATIENCE, work).await.context("the broker does not answer")?
}
