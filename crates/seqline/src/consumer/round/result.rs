//! What a round did.

use std::time::Duration;

use crate::consumer::plan::LostRange;

/// How a round ended that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// Another transaction has the consumer in hand.
    Locked,
    /// Somebody has paused the consumer. Nothing was written.
    Paused,
    /// Somebody has taken the consumer out of use. Nothing was written.
    Retired,
    /// There was nothing new. Nothing was written.
    Idle,
    /// An event that failed is not to be tried again yet. Nothing was written.
    Waiting,
    /// Events were handled, or put aside, and the cursor was moved; or a parked event was handled.
    Processed,
}

/// What a round did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RoundResult {
    /// How it ended.
    pub outcome: Outcome,
    /// How many events were handled.
    pub processed: usize,
    /// How many events were looked at. Without a filter and lanes these are those that were handled.
    pub scanned: i64,
    /// How many jobs of [`Round::jobs`](crate::consumer::Round::jobs) were inserted.
    pub jobs: usize,
    /// How many events were parked because they had failed: one at most.
    pub parked: usize,
    /// How many events were parked because one of their key is.
    pub behind: usize,
    /// Whether there may be more at once: that were as many as fit into a round, say.
    pub full: bool,
    /// What retention took before the consumer had come to it.
    pub lost: Option<LostRange>,
    /// Where the cursor of the lane is, if the round has moved it.
    pub last_seq: Option<i64>,
    /// How long it is until the event that failed is tried again, if there is one to wait for.
    pub wait: Option<Duration>,
}

impl RoundResult {
    pub(super) const LOCKED: Self = Self::nothing(Outcome::Locked);
    pub(super) const PAUSED: Self = Self::nothing(Outcome::Paused);
    pub(super) const RETIRED: Self = Self::nothing(Outcome::Retired);
    pub(super) const IDLE: Self = Self::nothing(Outcome::Idle);

    pub(super) const fn waiting(pause: Duration) -> Self {
        Self { wait: Some(pause), ..Self::nothing(Outcome::Waiting) }
    }

    /// A parked event was handled, or found gone.
    pub(super) const fn of_parked(processed: usize, jobs: usize, lost: Option<LostRange>) -> Self {
        Self { processed, jobs, full: true, lost, ..Self::nothing(Outcome::Processed) }
    }

    pub(in crate::consumer) const fn nothing(outcome: Outcome) -> Self {
        Self {
            outcome,
            processed: 0,
            scanned: 0,
            jobs: 0,
            parked: 0,
            behind: 0,
            full: false,
            lost: None,
            last_seq: None,
            wait: None,
        }
    }
}
