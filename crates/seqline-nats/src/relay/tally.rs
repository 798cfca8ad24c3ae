//! What a relay has done, for metrics.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use time::OffsetDateTime;

/// Counts since the relay was made, and how it stands now.
#[derive(Debug, Default)]
pub struct RelayTally {
    published: AtomicU64,
    republished: AtomicU64,
    active: AtomicBool,
    standing_by: AtomicBool,
    behind: AtomicU64,
    failures: Mutex<BTreeMap<&'static str, u64>>,
    stalled_by: Mutex<Option<&'static str>>,
    stream: Mutex<Option<StreamFacts>>,
}

/// What the broker says of the stream. At most a few seconds old while the relay runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamFacts {
    /// Messages that it holds.
    pub messages: u64,
    /// Bytes that it holds.
    pub bytes: u64,
    /// Bytes that it may hold; `None` where that is not limited.
    pub max_bytes: Option<u64>,
    /// When its oldest message was stored; `None` when it holds none.
    pub first_at: Option<OffsetDateTime>,
    /// The place of its last message.
    pub last_seq: u64,
}

impl RelayTally {
    /// Events that the broker acknowledged. An event that is published again counts again.
    #[must_use]
    pub fn published(&self) -> u64 {
        self.published.load(Ordering::Relaxed)
    }

    /// Those of them that had been in the stream before: after a loss there, or a rewind.
    #[must_use]
    pub fn republished(&self) -> u64 {
        self.republished.load(Ordering::Relaxed)
    }

    /// How often a pass ended with an error, by the [name](crate::relay::RelayError::kind) of the error.
    #[must_use]
    pub fn failures(&self) -> Vec<(&'static str, u64)> {
        lock(&self.failures).iter().map(|(kind, count)| (*kind, *count)).collect()
    }

    /// Whether this process runs the relay now, and does not only stand by.
    #[must_use]
    pub fn active(&self) -> bool {
        self.active.load(Ordering::Relaxed)
    }

    /// Whether another process had the relay when this one looked last.
    #[must_use]
    pub fn stands_by(&self) -> bool {
        self.standing_by.load(Ordering::Relaxed)
    }

    /// Events of the log that were not in the stream when this was last looked at. Only who runs the relay knows.
    #[must_use]
    pub fn behind(&self) -> u64 {
        self.behind.load(Ordering::Relaxed)
    }

    /// What keeps it from going on, by name, also before it has ever reached its broker. While this process [stands by](Self::stands_by), what
    /// kept it when it last had the relay.
    #[must_use]
    pub fn stalled_by(&self) -> Option<&'static str> {
        *lock(&self.stalled_by)
    }

    /// What the broker last said of the stream, if it has been asked.
    #[must_use]
    pub fn stream(&self) -> Option<StreamFacts> {
        *lock(&self.stream)
    }

    pub(super) fn add_published(&self, count: u64) {
        self.published.fetch_add(count, Ordering::Relaxed);
    }

    pub(super) fn add_republished(&self, count: u64) {
        self.republished.fetch_add(count, Ordering::Relaxed);
    }

    pub(super) fn add_failure(&self, kind: &'static str) {
        *lock(&self.failures).entry(kind).or_default() += 1;
    }

    pub(super) fn set_active(&self, active: bool) {
        self.active.store(active, Ordering::Relaxed);
    }

    pub(super) fn set_standing_by(&self, standing_by: bool) {
        self.standing_by.store(standing_by, Ordering::Relaxed);
    }

    pub(super) fn set_behind(&self, behind: i64) {
        self.behind.store(u64::try_from(behind).unwrap_or(0), Ordering::Relaxed);
    }

    /// What it was before.
    pub(super) fn set_stalled(&self, by: Option<&'static str>) -> Option<&'static str> {
        std::mem::replace(&mut *lock(&self.stalled_by), by)
    }

    pub(super) fn set_stream(&self, facts: StreamFacts) {
        *lock(&self.stream) = Some(facts);
    }
}

/// Nothing that is done under these locks can fail half-way.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
