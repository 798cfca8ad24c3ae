//! The transaction in which events are handled.
//!
//! Events are taken in hand without waiting, claimed in one statement, and handled one after the other, each between two savepoints. What fails
//! loses its effect and its claim, and is to be tried again or is given up; that is in the same transaction. So whatever the broker is told
//! afterwards is committed before.
//!
//! What spoils a transaction - a handler that hangs, that panics or that ends it - is a failure of that event alone: the connection is closed, the
//! failure is recorded in a transaction of its own, and the others are handled again without it.

mod calling;
mod holding;
mod writing;

use async_nats::Subject;
use seqline::CommitError;
use seqline::envelope::Envelope;
use seqline::pool::Lease;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::decide::Came;
use super::error::PassError;
use super::handler::Context;
use super::shared::Shared;
use crate::limits::FAILED_LOCK_WAIT;
use crate::message::Identity;

use calling::ENDED;
pub(super) use calling::discard;
pub(super) use writing::{Unrecorded, letter};

/// An event that is to be handled.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) event: Box<Envelope>,
    /// What the message says of itself; none for an event that was read from the log.
    pub(super) identity: Option<Identity>,
    pub(super) event_id: Uuid,
    pub(super) position: i64,
    /// How often it has failed.
    pub(super) failures: u32,
    /// What a dead letter would say of its message.
    pub(super) whence: Whence,
    /// Where the broker is told what came of it; none for an event that it has forgotten.
    pub(super) reply: Option<Subject>,
}

/// Which message it was.
#[derive(Debug, Clone, Default)]
pub(super) struct Whence {
    pub(super) stream_created: Option<i64>,
    pub(super) stream_seq: Option<i64>,
    pub(super) subject: Option<String>,
    pub(super) size: Option<i64>,
}

/// Where events come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// The stream, as messages.
    Stream,
    /// Those that wait for their next attempt.
    Retries,
}

/// What came of events.
#[derive(Debug, Default)]
pub(super) struct Settled {
    pub(super) done: Vec<(Work, Came)>,
    /// Those of which nothing is known.
    pub(super) left: Vec<Work>,
    /// Why.
    pub(super) error: Option<PassError>,
}

/// A transaction that a handler has ended, and the events whose claims were in it without their effects.
#[derive(Debug)]
pub(super) struct Ended {
    transaction: String,
    event_ids: Vec<Uuid>,
}

/// Where an event is on its way through a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Held {
    /// It is in hand, and its effect is to come.
    Yes,
    /// It is done with.
    Not(Came),
}

impl Held {
    fn came(self) -> Came {
        match self {
            Self::Yes => Came::Undecided,
            Self::Not(came) => came,
        }
    }
}

impl Ended {
    pub(super) fn parts(&self) -> (String, Vec<Uuid>) {
        (self.transaction.clone(), self.event_ids.clone())
    }
}

/// Why a transaction came to nothing.
enum Trouble {
    Away(PassError),
    /// The handler of this event spoiled it.
    Spoiled {
        index: usize,
        error_type: &'static str,
    },
    /// What was written is refused at the end.
    CommitRefused,
}

impl<E: Into<PassError>> From<E> for Trouble {
    fn from(error: E) -> Self {
        Self::Away(error.into())
    }
}

/// What handles events.
pub(super) struct Effects<'a> {
    pub(super) shared: &'a Shared,
    pub(super) stop: &'a CancellationToken,
}

impl Effects<'_> {
    /// Handles events. Those of which something can be said are done when it returns, whatever became of the others.
    pub(super) async fn settle(&self, source: Source, works: Vec<Work>) -> Settled {
        let mut settled = Settled::default();
        let mut groups = in_batches(works, self.shared.batch() as usize);
        while let Some(mut group) = groups.pop() {
            if group.is_empty() {
                continue;
            }
            let failed = match Box::pin(self.handle_all(source, &group)).await {
                Ok(came) => {
                    group.iter().for_each(|work| self.shared.forget_bad_luck(work.event_id));
                    settled.done.extend(group.into_iter().zip(came));
                    continue;
                }
                Err(Trouble::Away(error)) => {
                    settled.error = Some(error);
                    None
                }
                Err(Trouble::CommitRefused) if group.len() > 1 => {
                    // Which one it was shows when each is alone.
                    groups.extend(group.into_iter().rev().map(|work| vec![work]));
                    continue;
                }
                Err(Trouble::CommitRefused) => Some((0, "commit_refused")),
                Err(Trouble::Spoiled { index, error_type }) => Some((index, error_type)),
            };
            if let Some((index, error_type)) = failed {
                let unrecorded = Unrecorded::of(&group[index], error_type);
                let recorded = match Box::pin(self.record_failure(&unrecorded, FAILED_LOCK_WAIT)).await {
                    // Somebody else has it, and may have it for long: it is theirs now, and this failure comes on top.
                    Err(error) if error.is_lock_timeout() && self.shared.owe(unrecorded) => Ok(Came::Busy),
                    recorded => recorded,
                };
                match recorded {
                    Ok(came) => {
                        self.shared.forget_bad_luck(group[index].event_id);
                        settled.done.push((group.remove(index), came));
                        groups.push(group);
                        continue;
                    }
                    Err(error) => settled.error = Some(error),
                }
            }
            settled.left.extend(group);
            settled.left.extend(groups.drain(..).rev().flatten());
        }
        settled
    }

    async fn handle_all(&self, source: Source, works: &[Work]) -> Result<Vec<Came>, Trouble> {
        let mut lease = self.shared.lease().await?;
        let came = self.on(&mut lease, source, works).await?;
        // Closed otherwise: where it stands is not known.
        lease.done();
        Ok(came)
    }

    async fn on(&self, lease: &mut Lease, source: Source, works: &[Work]) -> Result<Vec<Came>, Trouble> {
        let shared = self.shared;
        let histories = self.histories(lease, works).await?;
        let tx = shared.ask(lease.begin()).await?;
        let mut context = Context { tx, consumer: shared.name(), attempt: 1, position: 0 };
        let mut came = self.hold(&mut context.tx, source, works, &histories).await?;
        let forgotten = self.take_back_ended(&mut context.tx).await?;
        let transaction = self.claim(&mut context.tx, source, works, &mut came).await?;
        let effects = Box::pin(self.run_handlers(&mut context, works, &mut came)).await;
        let error_types = match effects {
            Ok(error_types) => error_types,
            Err(trouble) => {
                if let Trouble::Spoiled { index, error_type: ENDED } = trouble {
                    // It may be committed, with the claims of events that were not handled yet.
                    let unhandled = works[index..].iter().map(|work| work.event_id).collect();
                    shared.note_ended(Ended { transaction, event_ids: unhandled });
                }
                return Err(trouble);
            }
        };
        self.write_down(&mut context.tx, source, works, &mut came, &error_types).await?;
        match shared.commit(context.tx).await {
            Ok(()) => {
                shared.forget_ended(forgotten);
                Ok(came.into_iter().map(Held::came).collect())
            }
            Err(PassError::Commit(error)) if is_of_what_was_written(&error) => Err(Trouble::CommitRefused),
            Err(error) => Err(Trouble::Away(error)),
        }
    }
}

/// The same in groups of at most so many, the last one first. As a rule it is one; what came late can be more.
fn in_batches(mut works: Vec<Work>, batch: usize) -> Vec<Vec<Work>> {
    let mut groups = Vec::new();
    while works.len() > batch {
        let whole = (works.len() - 1) / batch * batch;
        groups.push(works.split_off(whole));
    }
    groups.push(works);
    groups
}

/// Whether a commit was refused for what is in the transaction, and not because the database was away or busy.
fn is_of_what_was_written(error: &CommitError) -> bool {
    error.had_no_effect() && !error.is_retryable()
}
