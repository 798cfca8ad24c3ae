//! An agent that gets its events over the gateway.

use std::time::Duration;

use anyhow::Context;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::{Message, Utf8Bytes};
use tokio_util::task::AbortOnDropHandle;

use super::{Agent, CONSUMER, Event, PAUSE, seq_of};
use crate::journal::{How, What};

/// It acknowledges when so many are done, or so long after it has acknowledged before.
const ACK_EVENTS: usize = 50;
const ACK_AFTER: Duration = Duration::from_millis(100);
/// A server that says nothing for longer while a connection begins is gone.
const BEGIN: Duration = Duration::from_secs(10);

/// One frame.
#[derive(Deserialize)]
struct Frame<'a> {
    op: &'a str,
    #[serde(borrow)]
    d: &'a RawValue,
}

/// What the reason of a close says about coming again.
#[derive(Default, Deserialize)]
struct Hint {
    reconnect: bool,
    resume: bool,
}

/// How a connection ended.
enum End {
    /// Without a word.
    Broken,
    Closed(u16, Hint),
}

/// Comes again and again, until it is told not to.
pub(super) async fn run(mut agent: Agent) -> anyhow::Result<()> {
    let mut session = None;
    loop {
        match connection(&mut agent, &mut session).await? {
            End::Broken => {}
            End::Closed(code, Hint { reconnect: false, .. }) => {
                return agent.journal.write(What::Ends { code });
            }
            End::Closed(_, hint) => session = session.filter(|_| hint.resume),
        }
        agent.clock.sleep(PAUSE).await;
    }
}

/// One connection. Only what an agent itself does wrong, or cannot write, is an error.
async fn connection(agent: &mut Agent, session: &mut Option<String>) -> anyhow::Result<End> {
    let begun = agent.clock.timeout(BEGIN, open(&agent.address)).await;
    let Some(Ok(stream)) = begun else { return Ok(End::Broken) };
    let (mut sink, stream) = stream.split();
    let (op, d) = match &*session {
        Some(session) => ("resume", json!({"token": agent.token, "session_id": session})),
        None => ("identify", json!({"token": agent.token, "consumer": CONSUMER})),
    };
    send(&mut sink, op, &d).await;
    // The end is heard of at once, however much there is to do. The window of the server bounds what waits.
    let (frames, mut received) = mpsc::unbounded_channel();
    let mut reading = AbortOnDropHandle::new(tokio::spawn(read(stream, frames)));
    let mut work = Work::default();
    loop {
        let text = tokio::select! {
            biased;
            end = &mut reading => return end.context("the reader of frames ended"),
            text = agent.clock.timeout(ACK_AFTER, received.recv()) => text.flatten(),
        };
        if let Some(text) = text {
            work.hear(agent, session, &text).await?;
        }
        if let Some(seq) = work.due(agent.clock.elapsed()) {
            agent.journal.write(What::Acknowledges { seq })?;
            send(&mut sink, "ack", &json!({"seq": seq})).await;
            if !work.asks {
                (work.asks, work.asked) = (true, Some(seq));
                send(&mut sink, "heartbeat", &json!({})).await;
            }
        }
    }
}

/// What is done over one connection.
#[derive(Default)]
struct Work {
    window: usize,
    /// Up to here.
    done: i64,
    unacknowledged: usize,
    acknowledged_at: Duration,
    /// There is a heartbeat that has no answer yet, and what was acknowledged before it.
    asks: bool,
    asked: Option<i64>,
}

impl Work {
    async fn hear(
        &mut self,
        agent: &mut Agent,
        session: &mut Option<String>,
        text: &str,
    ) -> anyhow::Result<()> {
        let frame: Frame<'_> = serde_json::from_str(text).context("a frame")?;
        match frame.op {
            "hello" => {
                let hello: Value = serde_json::from_str(frame.d.get())?;
                let events = hello["inflight_events_max"].as_u64().context("hello names the window")?;
                self.window = usize::try_from(events)?;
            }
            "ready" | "resumed" => {
                let ready: Value = serde_json::from_str(frame.d.get())?;
                let how = if frame.op == "ready" { How::Identified } else { How::Resumed };
                *session = ready["session_id"].as_str().map(str::to_owned);
                self.done = seq_of(&ready["acked"])?;
                agent.journal.write(What::Begins { how, acked: self.done, window: self.window })?;
            }
            "event" => {
                let event: Event = serde_json::from_str(frame.d.get()).context("an event")?;
                agent.handle(&event).await?;
                // What comes again is behind what was done already.
                self.done = event.seq.max(self.done);
                self.unacknowledged += 1;
            }
            // An acknowledgement was not taken: it is said again.
            "error" => {
                self.unacknowledged += 1;
                self.asked = None;
            }
            // Frames are read in their order, so what was acknowledged before it is read.
            "heartbeat.ack" => {
                self.asks = false;
                if let Some(seq) = self.asked.take() {
                    agent.journal.write(What::Taken { seq })?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// What is to be acknowledged now.
    fn due(&mut self, now: Duration) -> Option<i64> {
        let is_due =
            self.unacknowledged >= ACK_EVENTS || now.saturating_sub(self.acknowledged_at) >= ACK_AFTER;
        (self.unacknowledged > 0 && is_due).then(|| {
            (self.unacknowledged, self.acknowledged_at) = (0, now);
            self.done
        })
    }
}

async fn open(address: &str) -> anyhow::Result<WebSocketStream<TcpStream>> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let (stream, _) = tokio_tungstenite::client_async(format!("ws://{address}/v1/gateway"), stream).await?;
    Ok(stream)
}

/// If the connection is closed already, whoever reads finds out.
async fn send(sink: &mut SplitSink<WebSocketStream<TcpStream>, Message>, op: &str, d: &Value) {
    let _ = sink.send(Message::text(json!({"op": op, "d": d}).to_string())).await;
}

/// Reads frames up to the end, and returns that.
async fn read(
    mut stream: SplitStream<WebSocketStream<TcpStream>>,
    frames: mpsc::UnboundedSender<Utf8Bytes>,
) -> End {
    loop {
        match stream.next().await {
            Some(Ok(Message::Text(text))) => {
                // Nobody is there any more to hear of the end either.
                let _ = frames.send(text);
            }
            Some(Ok(Message::Close(Some(CloseFrame { code, reason })))) => {
                let hint = serde_json::from_str(&reason);
                return hint.map_or(End::Broken, |hint| End::Closed(code.into(), hint));
            }
            Some(Ok(Message::Close(None)) | Err(_)) | None => return End::Broken,
            Some(Ok(_)) => {}
        }
    }
}
