//! The least of an HTTP client that does not slow down what is measured.

use std::net::SocketAddr;

use anyhow::{Context, ensure};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// Largest answer: a page is smaller.
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;

/// One connection that is kept open.
pub(crate) struct Client {
    pub(crate) stream: BufReader<TcpStream>,
    /// What is behind the path in every request.
    pub(crate) head: String,
    body: Vec<u8>,
}

impl Client {
    pub(crate) async fn connect(address: SocketAddr, token: &str) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address).await.context("connect to the server")?;
        stream.set_nodelay(true)?;
        let head = format!("HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}\r\n");
        Ok(Self { stream: BufReader::with_capacity(256 * 1024, stream), head, body: Vec::new() })
    }

    pub(crate) async fn get(&mut self, path: &str) -> anyhow::Result<(u16, &[u8])> {
        let request = format!("GET {path} {}\r\n", self.head);
        self.stream.write_all(request.as_bytes()).await?;
        self.answer().await
    }

    pub(crate) async fn answer(&mut self) -> anyhow::Result<(u16, &[u8])> {
        let (status, length) = self.answer_head().await?;
        let length = length.context("the answer has no length")?;
        ensure!(length <= ANSWER_BYTES_MAX, "the answer is too large");
        self.body.resize(length, 0);
        self.stream.read_exact(&mut self.body).await?;
        Ok((status, &self.body))
    }

    pub(crate) async fn answer_head(&mut self) -> anyhow::Result<(u16, Option<usize>)> {
        let mut line = String::new();
        self.stream.read_line(&mut line).await?;
        let status = line.split(' ').nth(1).context("the server closed the connection")?.parse()?;
        let mut length = None;
        loop {
            line.clear();
            ensure!(self.stream.read_line(&mut line).await? > 0, "the answer ends in its head");
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            if name.eq_ignore_ascii_case("content-length") {
                length = Some(value.trim().parse()?);
            }
        }
        Ok((status, length))
    }
}
