//! A client of the gateway.

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

use crate::support::DEADLINE;

pub(crate) struct Socket {
    pub(crate) stream: WebSocketStream<TcpStream>,
    pub(crate) hello: Value,
}

/// How a connection was closed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Closed {
    pub(crate) code: u16,
    pub(crate) reason: Value,
}

/// What comes next.
#[derive(Debug)]
pub(crate) enum Next {
    Frame(Value),
    Closed(Closed),
    /// The connection is gone without a word.
    Broken,
}

impl Socket {
    /// Connects, and has heard nothing yet.
    pub(crate) async fn open(address: &str) -> Self {
        let stream = TcpStream::connect(address).await.expect("it takes connections");
        Self::over(stream, address).await
    }

    pub(crate) async fn over(stream: TcpStream, address: &str) -> Self {
        let url = format!("ws://{address}/v1/gateway");
        let (stream, _) = tokio_tungstenite::client_async(url, stream).await.expect("it speaks WebSocket");
        Self { stream, hello: Value::Null }
    }

    /// Connects, and is told what to keep to.
    pub(crate) async fn connect(address: &str) -> Self {
        let mut socket = Self::open(address).await;
        socket.hello = socket.expect("hello").await;
        socket
    }

    /// The same, and identifies with a token.
    pub(crate) async fn ready(address: &str, token: &str) -> (Self, Value) {
        Self::identified(address, &json!({ "token": token })).await
    }

    pub(crate) async fn identified(address: &str, identify: &Value) -> (Self, Value) {
        let mut socket = Self::connect(address).await;
        socket.send("identify", identify).await;
        let ready = socket.expect("ready").await;
        (socket, ready)
    }

    /// How it is closed when it begins like this.
    pub(crate) async fn refused(address: &str, op: &str, d: &Value) -> (Vec<Value>, Closed) {
        let mut socket = Self::connect(address).await;
        socket.send(op, d).await;
        socket.closed().await
    }

    pub(crate) async fn send(&mut self, op: &str, d: &Value) {
        self.send_text(&json!({ "op": op, "d": d }).to_string()).await;
    }

    pub(crate) async fn send_text(&mut self, text: &str) {
        self.send_message(Message::text(text)).await;
    }

    /// It may be closed already.
    pub(crate) async fn send_message(&mut self, message: Message) {
        let _ = self.stream.send(message).await;
    }

    pub(crate) async fn ack(&mut self, seq: i64) {
        self.send("ack", &json!({ "seq": seq })).await;
    }

    /// The next text or end, as it came.
    pub(crate) async fn message(&mut self) -> Option<Message> {
        loop {
            let message = tokio::time::timeout(DEADLINE + Duration::from_secs(30), self.stream.next()).await;
            match message.expect("something comes in time") {
                Some(Ok(message @ (Message::Text(_) | Message::Close(Some(_))))) => return Some(message),
                Some(Ok(Message::Close(None)) | Err(_)) | None => return None,
                Some(Ok(_)) => {}
            }
        }
    }

    pub(crate) async fn next(&mut self) -> Next {
        match self.message().await {
            Some(Message::Close(Some(frame))) => {
                let reason = serde_json::from_str(&frame.reason).unwrap_or(Value::Null);
                Next::Closed(Closed { code: frame.code.into(), reason })
            }
            Some(message) => {
                let text = message.into_text().expect("it is a text");
                let frame: Value = serde_json::from_str(&text).expect("a frame is JSON");
                assert_eq!(frame.as_object().map(serde_json::Map::len), Some(2), "{frame}");
                Next::Frame(frame)
            }
            None => Next::Broken,
        }
    }

    /// The next frame, which has to be of this kind.
    pub(crate) async fn expect(&mut self, op: &str) -> Value {
        match self.next().await {
            Next::Frame(mut frame) if frame["op"] == op => frame["d"].take(),
            other => panic!("no {op}: {other:?}"),
        }
    }

    /// The next so many events: their numbers, and whether each was given before.
    pub(crate) async fn events(&mut self, count: usize) -> Vec<(i64, bool)> {
        let mut events = Vec::new();
        while events.len() < count {
            match self.next().await {
                Next::Frame(frame) if frame["op"] == "event" => {
                    events.push((frame["d"]["seq"].as_i64().unwrap(), frame["d"]["redelivered"] == true));
                }
                Next::Frame(frame) if frame["op"] == "catchup.complete" => {}
                other => panic!("after {events:?}: {other:?}"),
            }
        }
        events
    }

    pub(crate) async fn seqs(&mut self, count: usize) -> Vec<i64> {
        self.events(count).await.into_iter().map(|(seq, _)| seq).collect()
    }

    /// Nothing comes before the answer to a heartbeat.
    pub(crate) async fn is_quiet(&mut self) {
        self.send("heartbeat", &json!({})).await;
        self.expect("heartbeat.ack").await;
    }

    /// Reads to its end, which has to be a close code: the frames before it, and how it was closed.
    pub(crate) async fn closed(&mut self) -> (Vec<Value>, Closed) {
        let mut frames = Vec::new();
        loop {
            match self.next().await {
                Next::Frame(frame) => frames.push(frame),
                Next::Closed(closed) => return (frames, closed),
                Next::Broken => panic!("it ends without a word after {frames:?}"),
            }
        }
    }

    pub(crate) async fn code(&mut self) -> u16 {
        self.closed().await.1.code
    }

    /// Leaves with this code.
    pub(crate) async fn leave(mut self, code: u16) {
        let frame =
            tokio_tungstenite::tungstenite::protocol::CloseFrame { code: code.into(), reason: "".into() };
        self.stream.close(Some(frame)).await.expect("it is there");
        loop {
            let message = tokio::time::timeout(DEADLINE, self.stream.next()).await;
            match message.expect("the server answers in time") {
                // A close that was answered, and not just a connection that is gone.
                None | Some(Err(tokio_tungstenite::tungstenite::Error::ConnectionClosed)) => return,
                Some(Ok(_)) => {}
                Some(Err(error)) => panic!("the close is not answered: {error}"),
            }
        }
    }
}
