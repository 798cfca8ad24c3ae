//! What a consumer of this process has done, for whoever shows it.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a pass did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Pass {
    /// Events whose effect was committed.
    pub handled: u64,
    /// Events that were handled before, or fail and are tried again elsewhere.
    pub duplicates: u64,
    /// Failures after which an event is tried again.
    pub retried: u64,
    /// Messages that shall never come again although nothing was done: unreadable ones, and those of events that were given up.
    pub terminated: u64,
    /// Messages that were not asked for.
    pub skipped: u64,
    /// Dead letters that were written.
    pub dead: u64,
}

impl Pass {
    /// Whether it did anything, so that there may be more.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        *self == Self::default()
    }
}

/// Counts of a consumer since the process began. They only rise.
#[derive(Debug, Default)]
pub struct ConsumerTally {
    handled: AtomicU64,
    duplicates: AtomicU64,
    retried: AtomicU64,
    terminated: AtomicU64,
    skipped: AtomicU64,
    dead: AtomicU64,
    dropped: AtomicU64,
    lost: AtomicU64,
    redelivered: AtomicU64,
    failures: AtomicU64,
    waiting: Mutex<Option<Waiting>>,
}

#[derive(Debug, Clone, Copy)]
struct Waiting {
    pending: u64,
    ack_pending: u64,
}

impl ConsumerTally {
    /// Events whose effect was committed.
    #[must_use]
    pub fn handled(&self) -> u64 {
        self.handled.load(Ordering::Relaxed)
    }

    /// Events that came again after they were handled.
    #[must_use]
    pub fn duplicates(&self) -> u64 {
        self.duplicates.load(Ordering::Relaxed)
    }

    /// Failures after which an event was to be tried again.
    #[must_use]
    pub fn retried(&self) -> u64 {
        self.retried.load(Ordering::Relaxed)
    }

    /// Messages that shall never come again although nothing was done.
    #[must_use]
    pub fn terminated(&self) -> u64 {
        self.terminated.load(Ordering::Relaxed)
    }

    /// Messages that were not asked for.
    #[must_use]
    pub fn skipped(&self) -> u64 {
        self.skipped.load(Ordering::Relaxed)
    }

    /// Dead letters that were written.
    #[must_use]
    pub fn dead(&self) -> u64 {
        self.dead.load(Ordering::Relaxed)
    }

    /// Events that the broker never delivered, found in the log.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Events that retention took out of the log before it was compared there. Those of them that were delivered are handled; whether all were nobody
    /// can say. Also those count that it does not ask for.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Messages that the broker had delivered before.
    #[must_use]
    pub fn redelivered(&self) -> u64 {
        self.redelivered.load(Ordering::Relaxed)
    }

    /// Passes that could not be made, or not to their end.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Messages that wait for this consumer at the broker, as it said at most 10 seconds ago; none before it was asked.
    #[must_use]
    pub fn pending(&self) -> Option<u64> {
        self.waiting().map(|waiting| waiting.pending)
    }

    /// Messages that are in hand, over all processes, as the broker said at most 10 seconds ago; none before it was asked.
    #[must_use]
    pub fn ack_pending(&self) -> Option<u64> {
        self.waiting().map(|waiting| waiting.ack_pending)
    }

    fn waiting(&self) -> Option<Waiting> {
        *self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn note_waiting(&self, pending: u64, ack_pending: u64) {
        *self.waiting.lock().unwrap_or_else(PoisonError::into_inner) = Some(Waiting { pending, ack_pending });
    }

    pub(super) fn count_dropped(&self, dropped: u64) {
        self.dropped.fetch_add(dropped, Ordering::Relaxed);
    }

    pub(super) fn count_lost(&self, lost: u64) {
        self.lost.fetch_add(lost, Ordering::Relaxed);
    }

    pub(super) fn count_redelivered(&self, redelivered: u64) {
        self.redelivered.fetch_add(redelivered, Ordering::Relaxed);
    }

    pub(super) fn count_failure(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count(&self, pass: &Pass) {
        for (counter, count) in [
            (&self.handled, pass.handled),
            (&self.duplicates, pass.duplicates),
            (&self.retried, pass.retried),
            (&self.terminated, pass.terminated),
            (&self.skipped, pass.skipped),
            (&self.dead, pass.dead),
        ] {
            counter.fetch_add(count, Ordering::Relaxed);
        }
    }
}
