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
    /// What is not the event's fault is not counted: a database that is away, a conflict with another transaction. A process that ends
    /// in the middle of an attempt is. Rounds write a mark on a connection of their own, one for each process, with the options of
    /// the pool.
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
    /// How often the one event after the cursor was tried alone.
    pub(crate) attempts: u32,
    /// In which time it may be tried again.
    pub(crate) due_in: Duration,
    /// How the last attempt ended.
    pub(crate) error_type: String,
}

/// What a round of a consumer that parks is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Next {
    /// Take as many events as fit.
    Many,
    /// Try one event alone.
    One { attempt: u32, until: i64 },
    /// Nothing yet.
    Wait(Duration),
    /// Put one event aside.
    Park { attempts: u32, error_type: String },
}

/// Decides about the events after `last_seq`.
pub(super) fn next(last_seq: i64, mark: Option<Mark>, attempts_max: u32) -> Next {
    let Some(mark) = mark.filter(|mark| mark.until > last_seq) else { return Next::Many };
    // One that was left further back says that there is something wrong here, and not yet with what.
    let attempts = if mark.last_seq == last_seq { mark.attempts } else { 0 };
    if attempts >= attempts_max {
        Next::Park { attempts, error_type: mark.error_type }
    } else if attempts > 0 && !mark.due_in.is_zero() {
        Next::Wait(mark.due_in)
    } else {
        Next::One { attempt: attempts + 1, until: mark.until }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKOFF: Duration = Duration::from_secs(2);
    const PARK: FailurePolicy = FailurePolicy::Park { after_attempts: 3, backoff: BACKOFF };

    fn mark(last_seq: i64, until: i64, attempts: u32, due_in: Duration) -> Option<Mark> {
        Some(Mark { last_seq, until, attempts, due_in, error_type: "handler".to_owned() })
    }

    #[test]
    fn a_mark_counts_until_the_cursor_has_left_it_behind() {
        let at_once = Duration::ZERO;
        let cases = [
            ("nothing was tried", 5, None, Next::Many),
            ("what was tried is done", 5, mark(0, 5, 0, at_once), Next::Many),
            ("a mark of before a rewind", 5, mark(3, 4, 2, at_once), Next::Many),
            (
                "a round of many came to nothing",
                5,
                mark(5, 9, 0, at_once),
                Next::One { attempt: 1, until: 9 },
            ),
            (
                "the event before it was handled alone",
                6,
                mark(5, 9, 2, BACKOFF),
                Next::One { attempt: 1, until: 9 },
            ),
            ("an attempt came to nothing", 5, mark(5, 9, 1, at_once), Next::One { attempt: 2, until: 9 }),
            ("and the next is not due", 5, mark(5, 9, 1, BACKOFF), Next::Wait(BACKOFF)),
            (
                "it was the last",
                5,
                mark(5, 9, 3, BACKOFF),
                Next::Park { attempts: 3, error_type: "handler".to_owned() },
            ),
        ];
        for (what, last_seq, mark, expected) in cases {
            assert_eq!(next(last_seq, mark, PARK.attempts()), expected, "{what}");
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
