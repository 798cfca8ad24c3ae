//! Messages in hand, and the word that keeps them there.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::connection::State;
use async_nats::jetstream::AckKind;
use async_nats::{Client, Message, Subject};
use bytes::Bytes;
use seqline::Clock;
use tokio::task::JoinHandle;

use super::decide::{Content, Outcome};
use super::effects::Whence;
use crate::message::{Identity, envelope_version};

/// A message in hand.
#[derive(Debug)]
pub(super) struct InHand {
    /// Where the broker is told what came of it.
    pub(super) reply: Subject,
    /// Whether it was delivered before.
    pub(super) redelivered: bool,
    pub(super) whence: Whence,
    pub(super) content: Content,
    /// What it says of itself, also when the rest cannot be read.
    pub(super) identity: Option<Identity>,
}

impl InHand {
    /// A message as it came; none for one that no consumer of a stream sends.
    pub(super) fn new(message: Message, stream_created: i64, client: &Client) -> Option<Self> {
        let reply = message.reply.clone()?;
        let context = async_nats::jetstream::new(client.clone());
        let message = async_nats::jetstream::Message { message, context };
        let (stream_seq, delivered) = {
            let info = message.info().ok()?;
            (i64::try_from(info.stream_sequence).ok()?, info.delivered)
        };
        let message = message.message;
        let headers = message.headers.as_ref();
        let identity = Identity::of(headers);
        let content = Content::read(identity, envelope_version(headers), &message.payload);
        let whence = Whence {
            stream_created: Some(stream_created),
            stream_seq: Some(stream_seq),
            // A broker takes more than a text of PostgreSQL holds.
            subject: Some(message.subject.replace('\0', "\u{fffd}")),
            size: i64::try_from(message.length).ok(),
        };
        Some(Self { reply, redelivered: delivered > 1, whence, content, identity })
    }
}

/// Sends word of every message in hand, for as long as it is there and however long that takes: without it the broker would give the message
/// to somebody else. It is a task of its own, because what is done with a message may be anything.
#[derive(Debug)]
pub(super) struct Keeper {
    client: Client,
    held: Arc<Mutex<BTreeMap<String, Subject>>>,
    task: JoinHandle<()>,
}

impl Keeper {
    /// Begins with a word of what is in hand already: when the next one is due, this one may have been replaced.
    pub(super) fn start<'a>(
        client: Client,
        clock: Clock,
        interval: Duration,
        replies: impl Iterator<Item = &'a Subject>,
    ) -> Self {
        let held: BTreeMap<String, Subject> =
            replies.map(|reply| (reply.to_string(), reply.clone())).collect();
        let held = Arc::new(Mutex::new(held));
        let (of_task, to) = (held.clone(), client.clone());
        let task = tokio::spawn(async move {
            loop {
                let subjects: Vec<Subject> =
                    of_task.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
                for subject in subjects {
                    // Words that cannot be sent now are of no use later.
                    if to.connection_state() == State::Connected {
                        let _ = to.publish(subject, Bytes::from(AckKind::Progress)).await;
                    }
                }
                clock.sleep(interval).await;
            }
        });
        Self { client, held, task }
    }

    pub(super) fn hold(&self, reply: &Subject) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.insert(reply.to_string(), reply.clone());
    }

    /// What is held besides these.
    pub(super) fn held_besides<'a>(&self, replies: impl Iterator<Item = &'a Subject>) -> Vec<Subject> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for reply in replies {
            held.remove(reply.as_str());
        }
        held.into_values().collect()
    }

    /// Tells the broker what came of a message. Its answer is not waited for: a word that is lost means that the message comes again.
    pub(super) async fn tell(&self, reply: &Subject, outcome: Outcome) {
        let kind = match outcome {
            Outcome::Keep => return,
            Outcome::Acknowledge => AckKind::Ack,
            Outcome::Retry { delay } => AckKind::Nak((!delay.is_zero()).then_some(delay)),
            Outcome::Terminate { .. } => AckKind::Term,
        };
        self.held.lock().unwrap_or_else(PoisonError::into_inner).remove(reply.as_str());
        let _ = self.client.publish(reply.clone(), Bytes::from(kind)).await;
    }

    pub(super) async fn flush(&self) {
        let _ = self.client.flush().await;
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.task.abort();
    }
}
