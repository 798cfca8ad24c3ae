//! What only a client of the API does: it appends, and follows a stream.

use anyhow::{Context, bail, ensure};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use crate::client::Client;

impl Client {
    /// Sends JSON and waits for the answer.
    pub(crate) async fn post(&mut self, path: &str, json: &str) -> anyhow::Result<(u16, &[u8])> {
        let head = &self.head;
        let request = format!(
            "POST {path} {head}content-type: application/json\r\ncontent-length: {}\r\n\r\n{json}",
            json.len()
        );
        self.stream.write_all(request.as_bytes()).await?;
        self.answer().await
    }

    /// Opens a stream of events.
    pub(crate) async fn follow(mut self, path: &str) -> anyhow::Result<Events> {
        let request = format!("GET {path} {}accept: text/event-stream\r\n\r\n", self.head);
        self.stream.write_all(request.as_bytes()).await?;
        match self.answer_head().await? {
            (200, None) => Ok(Events { stream: self.stream, line: Vec::new() }),
            (status, _) => bail!("the server answers {status} instead of a stream"),
        }
    }
}

/// A stream of events.
pub(crate) struct Events {
    stream: BufReader<TcpStream>,
    line: Vec<u8>,
}

impl Events {
    /// The number of the next event. Heartbeats have a position and no data; the chunks of the transfer are lines that are neither.
    pub(crate) async fn next(&mut self) -> anyhow::Result<i64> {
        let mut seq = None;
        loop {
            self.line.clear();
            ensure!(self.stream.read_until(b'\n', &mut self.line).await? > 0, "the stream has ended");
            if self.line.starts_with(b"data:") {
                return seq.context("an event without a position");
            }
            let Some(position) = self.line.strip_prefix(b"id:") else { continue };
            let (_, number) = std::str::from_utf8(position)?
                .trim()
                .rsplit_once(':')
                .context("a position without a number")?;
            seq = Some(number.parse()?);
        }
    }
}
