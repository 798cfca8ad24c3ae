//! The way out of a connection: frames in order, and how much of them waits for the client.
//!
//! Whoever has something to send looks first whether there is [room](Outgoing::room), so what waits is bounded however slow the client is;
//! one that takes nothing at all for `api.write_timeout` is given up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use axum::extract::ws::{Message, WebSocket};
use futures_util::SinkExt;
use futures_util::stream::SplitSink;
use seqline::Clock;
use tokio::sync::{Notify, mpsc};
use tokio_util::task::AbortOnDropHandle;

use super::close::Close;
use super::frame::ServerFrame;
use crate::limits::GATEWAY_PAGE_BYTES;

/// See the [module](self).
pub(super) struct Outgoing {
    frames: mpsc::UnboundedSender<Message>,
    shared: Arc<Shared>,
    writer: AbortOnDropHandle<()>,
    bytes_max: usize,
    clock: Clock,
}

#[derive(Default)]
struct Shared {
    /// Bytes that wait.
    waiting: AtomicUsize,
    /// There is room again.
    drained: Notify,
    /// The client took nothing for too long.
    too_slow: AtomicBool,
}

impl Outgoing {
    pub(super) fn start(
        sink: SplitSink<WebSocket, Message>,
        bytes_max: usize,
        timeout: Duration,
        clock: Clock,
    ) -> Self {
        // Bounded by the bytes that wait.
        let (frames, received) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared::default());
        let writer = tokio::spawn(write(sink, received, shared.clone(), timeout, clock.clone()));
        Self { frames, shared, writer: AbortOnDropHandle::new(writer), bytes_max, clock }
    }

    /// How many bytes may be sent now.
    pub(super) fn room(&self) -> usize {
        self.bytes_max.saturating_sub(self.shared.waiting.load(Ordering::Acquire))
    }

    /// Returns when something was taken. Cancel safe.
    pub(super) async fn drained(&self) {
        self.shared.drained.notified().await;
    }

    /// Returns when nothing can be sent any more, with what the client is told if that is its fault.
    pub(super) async fn ended(&self) -> Option<Close> {
        self.frames.closed().await;
        self.shared.too_slow.load(Ordering::Acquire).then_some(Close::TooSlow)
    }

    pub(super) fn frame(&self, frame: &ServerFrame<'_>) {
        self.text(frame.to_text());
    }

    /// A frame that is a text already.
    pub(super) fn text(&self, text: String) {
        self.message(Message::Text(text.into()));
    }

    fn message(&self, message: Message) {
        self.shared.waiting.fetch_add(size(&message), Ordering::AcqRel);
        // Whoever waits for the end of this finds out.
        let _ = self.frames.send(message);
    }

    /// Sends the last message, behind what waits, and returns when it is on its way or that time is over.
    pub(super) async fn close(self, message: Option<Message>, within: Duration) {
        if let Some(message) = message {
            self.message(message);
        }
        drop(self.frames);
        self.clock.timeout(within, self.writer).await;
    }
}

fn size(message: &Message) -> usize {
    match message {
        Message::Text(text) => text.len(),
        Message::Binary(bytes) | Message::Ping(bytes) | Message::Pong(bytes) => bytes.len(),
        Message::Close(_) => 0,
    }
}

async fn write(
    mut sink: SplitSink<WebSocket, Message>,
    mut frames: mpsc::UnboundedReceiver<Message>,
    shared: Arc<Shared>,
    timeout: Duration,
    clock: Clock,
) {
    while let Some(first) = frames.recv().await {
        let mut bytes = 0;
        // Few writes for many small frames. Each has its own time: only a client that takes nothing is too slow.
        let mut next = Some(first);
        let sent = loop {
            let step = match next.take() {
                Some(frame) => {
                    bytes += size(&frame);
                    clock.timeout(timeout, sink.feed(frame)).await
                }
                None => break clock.timeout(timeout, sink.flush()).await,
            };
            match step {
                // What was taken makes room now and then, also while more comes.
                Some(Ok(())) => next = (bytes < GATEWAY_PAGE_BYTES).then(|| frames.try_recv().ok()).flatten(),
                _ => break step,
            }
        };
        match sent {
            Some(Ok(())) => {
                shared.waiting.fetch_sub(bytes, Ordering::AcqRel);
                shared.drained.notify_one();
            }
            Some(Err(_)) => return,
            None => {
                shared.too_slow.store(true, Ordering::Release);
                return;
            }
        }
    }
}
