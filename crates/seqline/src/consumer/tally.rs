//! How many rounds a consumer of this process has run, for whoever shows it.

use std::sync::atomic::{AtomicU64, Ordering};

use super::error::RoundError;
use super::round::{Outcome, RoundResult};

/// Counts of a consumer's rounds since the process began. They only rise.
///
/// ```
/// use seqline::consumer::RoundTally;
///
/// let tally = RoundTally::default();
/// assert_eq!((tally.progressed(), tally.events()), (0, 0));
/// ```
#[derive(Debug, Default)]
pub struct RoundTally {
    progressed: AtomicU64,
    idle: AtomicU64,
    locked: AtomicU64,
    failed: AtomicU64,
    events: AtomicU64,
}

impl RoundTally {
    /// Rounds that moved the cursor, or handled a parked event.
    #[must_use]
    pub fn progressed(&self) -> u64 {
        self.progressed.load(Ordering::Relaxed)
    }

    /// Rounds that found nothing to do: nothing new, nothing due, a consumer that is paused or retired.
    #[must_use]
    pub fn idle(&self) -> u64 {
        self.idle.load(Ordering::Relaxed)
    }

    /// Rounds that found another transaction at the consumer.
    #[must_use]
    pub fn locked(&self) -> u64 {
        self.locked.load(Ordering::Relaxed)
    }

    /// Rounds that ended with an error.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// Events that were handled in rounds that committed.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.events.load(Ordering::Relaxed)
    }

    pub(super) fn count(&self, round: &Result<RoundResult, RoundError>) {
        let kind = match round {
            Err(_) => &self.failed,
            Ok(result) => match result.outcome {
                Outcome::Processed => &self.progressed,
                Outcome::Locked => &self.locked,
                Outcome::Idle | Outcome::Waiting | Outcome::Paused | Outcome::Retired => &self.idle,
            },
        };
        kind.fetch_add(1, Ordering::Relaxed);
        let events = round.as_ref().map_or(0, |result| result.processed);
        self.events.fetch_add(events.try_into().unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_round_counts_once_by_how_it_ended() {
        let tally = RoundTally::default();
        for (outcome, processed) in [
            (Outcome::Processed, 3),
            (Outcome::Locked, 0),
            (Outcome::Idle, 0),
            (Outcome::Waiting, 0),
            (Outcome::Paused, 0),
            (Outcome::Retired, 0),
        ] {
            tally.count(&Ok(RoundResult { processed, ..RoundResult::nothing(outcome) }));
        }
        tally.count(&Err(RoundError::MissingCursor));
        let counts = (tally.progressed(), tally.locked(), tally.idle(), tally.failed(), tally.events());
        assert_eq!(counts, (1, 1, 4, 1, 3));
    }
}
