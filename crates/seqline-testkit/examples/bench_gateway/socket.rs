//! The least of a client of the gateway.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Message, Utf8Bytes};

/// Ten thousand clients are in one process.
const BUFFER_BYTES: usize = 4 * 1024;

pub(crate) struct Socket {
    stream: WebSocketStream<TcpStream>,
    pub(crate) heartbeat_interval: Duration,
}

impl Socket {
    /// Connects and identifies. The second is what `ready` says.
    pub(crate) async fn ready(address: SocketAddr, identify: &Value) -> anyhow::Result<(Self, Value)> {
        let stream = TcpStream::connect(address).await.context("connect to the server")?;
        stream.set_nodelay(true)?;
        let config =
            WebSocketConfig::default().read_buffer_size(BUFFER_BYTES).write_buffer_size(BUFFER_BYTES);
        let url = format!("ws://{address}/v1/gateway");
        let (stream, _) = tokio_tungstenite::client_async_with_config(url, stream, Some(config)).await?;
        let mut socket = Self { stream, heartbeat_interval: Duration::ZERO };
        let hello = socket.expect("hello").await?;
        let interval = hello["heartbeat_interval_ms"].as_u64().context("an interval of another form")?;
        socket.heartbeat_interval = Duration::from_millis(interval);
        socket.send("identify", identify).await?;
        let ready = socket.expect("ready").await?;
        Ok((socket, ready))
    }

    pub(crate) async fn send(&mut self, op: &str, d: &Value) -> anyhow::Result<()> {
        let frame = Message::text(json!({ "op": op, "d": d }).to_string());
        Ok(self.stream.send(frame).await?)
    }

    /// The next frame. Cancel safe.
    pub(crate) async fn next(&mut self) -> anyhow::Result<Utf8Bytes> {
        match self.stream.next().await {
            Some(Ok(Message::Text(text))) => Ok(text),
            Some(Ok(other)) => bail!("the server sends {other}"),
            Some(Err(error)) => Err(error.into()),
            None => bail!("the server closed the connection"),
        }
    }

    /// The number of the next event; news about the connection aside.
    pub(crate) async fn event(&mut self) -> anyhow::Result<i64> {
        loop {
            let frame = self.next().await?;
            if is(&frame, "catchup.complete") || is(&frame, "heartbeat.ack") {
                continue;
            }
            ensure!(is(&frame, "event"), "the server sends {frame}");
            // A client that is in no hurry would parse it whole.
            let (_, rest) = frame.split_once(r#""seq":"#).context("an event without a number")?;
            let digits = rest.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
            return Ok(digits.parse()?);
        }
    }

    /// Reads up to a frame of this kind.
    pub(crate) async fn expect(&mut self, op: &str) -> anyhow::Result<Value> {
        loop {
            let frame = self.next().await?;
            if is(&frame, op) {
                let mut frame: Value = serde_json::from_str(&frame)?;
                return Ok(frame["d"].take());
            }
            ensure!(is(&frame, "catchup.complete"), "the server sends {frame} and no {op}");
        }
    }

    /// Gives up what it has.
    pub(crate) async fn leave(mut self) -> anyhow::Result<()> {
        let normal = CloseFrame { code: 1000.into(), reason: Utf8Bytes::default() };
        self.stream.close(Some(normal)).await?;
        while let Some(Ok(_)) = self.stream.next().await {}
        Ok(())
    }
}

/// Whether a frame is of this kind.
pub(crate) fn is(frame: &str, op: &str) -> bool {
    let rest = frame.strip_prefix(r#"{"op":""#).and_then(|rest| rest.strip_prefix(op));
    rest.is_some_and(|rest| rest.starts_with('"'))
}
