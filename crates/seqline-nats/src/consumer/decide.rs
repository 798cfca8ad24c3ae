//! What a message is, what becomes of it, and when a failed event is tried again. Decided without a broker, a database or a clock.

use std::time::Duration;

use seqline::envelope::Envelope;
use uuid::Uuid;

use crate::limits::BUSY_DELAY;
use crate::message::{ENVELOPE_VERSION, Identity};

/// What a message holds.
#[derive(Debug)]
pub(super) enum Content {
    /// An event.
    Event(Identity, Box<Envelope>),
    /// Something that no relay wrote, or that was damaged. The same bytes fail in the same way each time.
    Unreadable,
    /// An event in a form that a later version made.
    FutureVersion,
}

impl Content {
    pub(super) fn read(identity: Option<Identity>, version: Option<u32>, payload: &[u8]) -> Self {
        let Some(identity) = identity else { return Self::Unreadable };
        if version.is_some_and(|version| version > ENVELOPE_VERSION) {
            return Self::FutureVersion;
        }
        match serde_json::from_slice::<Envelope>(payload) {
            Ok(envelope) if envelope.id == identity.event_id && envelope.seq == Some(identity.position) => {
                Self::Event(identity, Box::new(envelope))
            }
            _ => Self::Unreadable,
        }
    }
}

/// What the log says about itself.
#[derive(Debug, Clone, Copy)]
pub(super) struct LogFacts {
    pub(super) epoch: Uuid,
    pub(super) head: i64,
}

/// Whether a message is of the log's history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum History {
    /// It is, or it was written before histories parted, as far as the log can say.
    Ours,
    /// It says so, and the log has not come so far: the database is behind, as one is that was restored and not finalized.
    Ahead,
    /// It says so, and the log has another event at its position: the log lost its end and went on, or no relay wrote the message.
    Differs,
    /// It was written in another epoch, and the log does not have it.
    Elsewhere,
}

/// Tells a message's history by the event that the log has at its position. An event that retention took, which is below `min_retained`, is of the
/// log's history as far as anybody knows. The log numbers without gaps: what is missing above that was taken out of it by hand.
pub(super) fn history(
    identity: &Identity,
    log: &LogFacts,
    at_position: Option<Uuid>,
    min_retained: i64,
) -> History {
    let is_there = at_position.map(|id| id == identity.event_id);
    match (identity.epoch == log.epoch, is_there) {
        (true, _) if identity.position > log.head => History::Ahead,
        (true, Some(false)) => History::Differs,
        (_, Some(true)) | (true, None) => History::Ours,
        (false, None) if identity.position < min_retained => History::Ours,
        (false, _) => History::Elsewhere,
    }
}

/// Why something was given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reason {
    AttemptsExhausted,
    Unreadable,
    FutureVersion,
    OtherHistory,
    Gone,
}

impl Reason {
    /// As it is stored.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::AttemptsExhausted => "attempts_exhausted",
            Self::Unreadable => "unreadable",
            Self::FutureVersion => "future_version",
            Self::OtherHistory => "other_history",
            Self::Gone => "gone",
        }
    }
}

/// What came of an event, or of a message that holds none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Came {
    /// Its effect is committed.
    Handled,
    /// Its effect was committed before.
    Duplicate,
    /// It failed before, and is tried again from the log, or it was given up. That is committed.
    Settled,
    /// The handler failed for the `attempts`-th time. That is committed, and at the last attempt the dead letter.
    Failed { attempts: u32 },
    /// It is none that is asked for.
    NotAskedFor,
    /// It cannot be read. The dead letter is committed.
    Unreadable,
    /// As [`Unreadable`](Self::Unreadable), because a later version wrote it.
    FutureVersion,
    /// The log has no such event. The dead letter is committed.
    OtherHistory,
    /// Another process has it in hand.
    Busy,
    /// The process ends before its turn came.
    Stopped,
    /// The database cannot be asked, or is behind the message. Nothing is committed.
    Undecided,
    /// The log has another event at its position. Nothing is committed.
    HistoriesDiffer,
}

/// What the broker is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The message is done with.
    Acknowledge,
    /// It shall come again after a while.
    Retry { delay: Duration },
    /// It shall never come again, although nothing was done.
    Terminate { reason: Reason },
    /// Nothing but that it is still in hand.
    Keep,
}

/// Decides what the broker is told of a message. With `attempts_max` failures an event is given up.
pub(super) fn decide_outcome(came: Came, attempts_max: u32) -> Outcome {
    match came {
        Came::Handled | Came::Duplicate | Came::Settled | Came::NotAskedFor | Came::OtherHistory => {
            Outcome::Acknowledge
        }
        // What fails waits in the database, where it holds up nobody: too many delayed messages would stop the consumer.
        Came::Failed { attempts } if attempts < attempts_max => Outcome::Acknowledge,
        Came::Failed { .. } => Outcome::Terminate { reason: Reason::AttemptsExhausted },
        Came::Unreadable => Outcome::Terminate { reason: Reason::Unreadable },
        Came::FutureVersion => Outcome::Terminate { reason: Reason::FutureVersion },
        Came::Busy => Outcome::Retry { delay: BUSY_DELAY },
        Came::Stopped => Outcome::Retry { delay: Duration::ZERO },
        Came::Undecided | Came::HistoriesDiffer => Outcome::Keep,
    }
}

/// How long an event waits after so many failures, at least 1: doubling from `start` up to `cap`, of which `random` in `0.0..1.0` leaves
/// between half and all, so that what failed together is not tried together.
pub(super) fn retry_delay(failures: u32, start: Duration, cap: Duration, random: f64) -> Duration {
    let doubled = 2_u32.checked_pow(failures.saturating_sub(1)).and_then(|times| start.checked_mul(times));
    doubled.map_or(cap, |delay| delay.min(cap)).mul_f64(0.5 + random / 2.0)
}

#[cfg(test)]
mod tests;
