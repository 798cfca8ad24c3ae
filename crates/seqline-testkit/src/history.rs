//! Recording what writers did, in a form that the checker understands.
//!
//! What matters besides the ids is which transaction was over before another began. The clock of the machine is
//! too coarse for that, so every beginning and every end takes the next number of one counter.
//!
//! ```
//! use seqline_testkit::{History, check};
//! use uuid::Uuid;
//!
//! let history = History::new();
//! let attempt = history.begin(); // before BEGIN is sent
//! let id = Uuid::now_v7(); // append ..
//! attempt.committed([id]); // after COMMIT was acknowledged
//!
//! let summary = check(&history.snapshot(), &[(1, id)], 1).unwrap();
//! assert_eq!(summary.events, 1);
//! ```

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use uuid::Uuid;

/// How a transaction ended, as far as its writer knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The database acknowledged the commit.
    Committed,
    /// The database rolled it back, or said that the commit failed.
    RolledBack,
    /// The connection broke during COMMIT, say: it may or may not have happened.
    Unknown,
    /// The writer never reported an end. The checker complains about it.
    Unfinished,
}

/// One transaction that a writer tried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// When it began, as a number of the common counter.
    pub began: u64,
    /// When its writer knew how it ended.
    pub ended: u64,
    /// How it ended.
    pub outcome: Outcome,
    /// The ids of its events, in append order.
    pub ids: Vec<Uuid>,
}

/// What all writers of a test did. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct History {
    log: Arc<Mutex<Log>>,
}

#[derive(Debug, Default)]
struct Log {
    counter: u64,
    records: Vec<Record>,
}

/// A transaction in progress. Report how it ended.
#[derive(Debug)]
#[must_use = "an attempt without an outcome fails the check"]
pub struct Attempt {
    history: History,
    index: usize,
}

impl History {
    /// A history without attempts.
    pub fn new() -> History {
        History::default()
    }

    /// Records that a transaction begins. Call it before anything of the transaction is sent.
    pub fn begin(&self) -> Attempt {
        let mut log = self.lock();
        let began = log.tick();
        let index = log.records.len();
        log.records.push(Record { began, ended: u64::MAX, outcome: Outcome::Unfinished, ids: Vec::new() });
        Attempt { history: self.clone(), index }
    }

    /// What was recorded until now.
    pub fn snapshot(&self) -> Vec<Record> {
        self.lock().records.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Log> {
        // A writer that panicked while it held the lock left whole records.
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Attempt {
    /// The commit was acknowledged. `ids` are in append order, here and below.
    pub fn committed(self, ids: impl IntoIterator<Item = Uuid>) {
        self.end(Outcome::Committed, ids);
    }

    /// It was rolled back for certain.
    pub fn rolled_back(self, ids: impl IntoIterator<Item = Uuid>) {
        self.end(Outcome::RolledBack, ids);
    }

    /// Nobody knows whether it was committed.
    pub fn unknown(self, ids: impl IntoIterator<Item = Uuid>) {
        self.end(Outcome::Unknown, ids);
    }

    fn end(self, outcome: Outcome, ids: impl IntoIterator<Item = Uuid>) {
        // Collected first: the iterator is the caller's and may take its time.
        let ids = ids.into_iter().collect();
        let mut log = self.history.lock();
        let ended = log.tick();
        let record = &mut log.records[self.index];
        *record = Record { began: record.began, ended, outcome, ids };
    }
}

impl Log {
    fn tick(&mut self) -> u64 {
        self.counter += 1;
        self.counter
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beginnings_and_ends_are_numbered_in_the_order_they_happen() {
        let history = History::new();
        let first = history.begin();
        let second = history.begin();
        second.rolled_back([]);
        first.committed([Uuid::nil()]);
        let _never_ended = history.begin();
        let times: Vec<_> =
            history.snapshot().iter().map(|record| (record.began, record.ended, record.outcome)).collect();
        assert_eq!(
            times,
            [(1, 4, Outcome::Committed), (2, 3, Outcome::RolledBack), (5, u64::MAX, Outcome::Unfinished)]
        );
    }
}
