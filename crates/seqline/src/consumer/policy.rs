//! What becomes of an event that cannot be handled: a pure decision.
//!
//! A consumer that parks leaves a mark before its handler runs. A mark that the cursor has not left behind says that a round began there
//! and came to nothing, whatever became of its process. From then on rounds take one event each, until the cursor is where that round
//! would have come to; only these attempts count. So one that was killed while it handled many has counted for none of them.

use std::time::Duration;

/// What a consumer does when an event cannot be handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum FailurePolicy {
    /// It tries again until it can, and later events wait: nothing is ever left out.
    #[default]
    Stall,
    /// It tries that event alone so often, then puts it aside in `seqline.parked_events` and goes on. Later events of the same
    /// [key](super::LaneKey) wait behind it. It comes again when somebody asks for it: `seqline parked retry`.
    ///
    /// What is not the event's fault is not counted, as far as that can still be written down: a database that is away, a full disk, a
    /// conflict with another transaction. A process that ends in the middle of an attempt is. Rounds write a mark on a connection of
    /// their own, one for each process, with the options of the pool.
    Park {
        /// After how many attempts, at least 1.
        after_attempts: u32,
        /// How long to wait after the first; each further wait is twice as long, at most
        /// [`failure_backoff_cap`](super::ConsumerConfig::failure_backoff_cap).
        backoff: Duration,
    },
}

impl FailurePolicy {
    /// How often an event is tried that is parked. One that stalls has none to begin with: those that it finds are tried when somebody
    /// asks.
    pub(super) fn attempts(self) -> u32 {
        match self {
            Self::Stall => 1,
            Self::Park { after_attempts, .. } => after_attempts.max(1),
        }
    }

    /// How long to wait after an attempt that has failed; `None` after the last.
    pub(super) fn pause_after(self, attempt: u32, cap: Duration) -> Option<Duration> {
        let backoff = match self {
            Self::Stall => return None,
            Self::Park { backoff, .. } => backoff,
        };
        let factor = 1_u32.checked_shl(attempt.saturating_sub(1)).unwrap_or(u32::MAX);
        (attempt < self.attempts()).then(|| backoff.saturating_mul(factor).min(cap))
    }
}

/// What the rounds of a lane have tried last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mark {
    /// Where the cursor was.
    pub(crate) last_seq: i64,
    /// Where the round would have come to that took many.
    pub(crate) until: i64,
    /// The event that was tried alone; `None` for a round of many.
    pub(crate) tried: Option<i64>,
    /// How often it was.
    pub(crate) attempts: u32,
    /// In which time it may be tried again.
    pub(crate) due_in: Duration,
    /// How the last attempt ended.
    pub(crate) error_type: String,
}

impl Mark {
    /// The mark, if rounds after `last_seq` are to take one event each because of it.
    pub(super) fn in_force(self, last_seq: i64) -> Option<Self> {
        (self.until > last_seq).then_some(self)
    }
}

/// What is to become of one event that a round has taken alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fate {
    /// It is tried, for this time.
    Try(u32),
    /// It is not to be tried yet.
    Wait(Duration),
    /// It was tried as often as it may be.
    Park { attempts: u32, error_type: String },
}

/// Decides about the event with this number. Only attempts of that event count: after the same cursor there can be another one by now,
/// when the consumer asks for something else, or retention has taken what was there.
pub(super) fn fate(seq: i64, mark: &Mark, attempts_max: u32) -> Fate {
    let attempts = if mark.tried == Some(seq) { mark.attempts } else { 0 };
    if attempts >= attempts_max {
        Fate::Park { attempts, error_type: mark.error_type.clone() }
    } else if attempts > 0 && !mark.due_in.is_zero() {
        Fate::Wait(mark.due_in)
    } else {
        Fate::Try(attempts + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKOFF: Duration = Duration::from_secs(2);
    const PARK: FailurePolicy = FailurePolicy::Park { after_attempts: 3, backoff: BACKOFF };

    fn mark(tried: Option<i64>, attempts: u32, due_in: Duration) -> Mark {
        Mark { last_seq: 5, until: 9, tried, attempts, due_in, error_type: "handler".to_owned() }
    }

    #[test]
    fn a_mark_is_in_force_until_the_cursor_has_left_it_behind() {
        for (last_seq, in_force) in [(0, true), (5, true), (8, true), (9, false), (10, false)] {
            assert_eq!(mark(None, 0, BACKOFF).in_force(last_seq).is_some(), in_force, "{last_seq}");
        }
    }

    #[test]
    fn only_attempts_of_the_same_event_count() {
        let at_once = Duration::ZERO;
        let parked = Fate::Park { attempts: 3, error_type: "handler".to_owned() };
        let cases = [
            ("a round of many came to nothing", mark(None, 0, at_once), Fate::Try(1)),
            ("another event was tried", mark(Some(5), 3, BACKOFF), Fate::Try(1)),
            ("an attempt came to nothing", mark(Some(6), 1, at_once), Fate::Try(2)),
            ("and the next is not due", mark(Some(6), 1, BACKOFF), Fate::Wait(BACKOFF)),
            ("it was the last", mark(Some(6), 3, BACKOFF), parked),
        ];
        for (what, mark, expected) in cases {
            assert_eq!(fate(6, &mark, PARK.attempts()), expected, "{what}");
        }
    }

    #[test]
    fn each_pause_is_twice_as_long_up_to_the_cap_and_there_is_none_after_the_last_attempt() {
        let policy = FailurePolicy::Park { after_attempts: 100, backoff: BACKOFF };
        let cap = 5 * BACKOFF;
        let pauses: Vec<_> = [1, 2, 3, 4, 40, 99].map(|attempt| policy.pause_after(attempt, cap)).into();
        assert_eq!(pauses, [BACKOFF, 2 * BACKOFF, 4 * BACKOFF, cap, cap, cap].map(Some));
        assert_eq!(policy.pause_after(100, cap), None);
        assert_eq!(PARK.pause_after(3, cap), None);
        assert_eq!(FailurePolicy::Stall.pause_after(1, cap), None);
    }

    #[test]
    fn no_attempts_at_all_is_one() {
        assert_eq!(FailurePolicy::Park { after_attempts: 0, backoff: BACKOFF }.attempts(), 1);
    }
}
