//! What a process remembers of the log, to see that it went back.

use uuid::Uuid;

/// Epochs that are remembered: a new one comes with a restore.
const EPOCHS_MAX: usize = 16;

/// Remembers the epoch and the highest number that was durable in it.
///
/// A backup that is restored in place changes neither the server's identity nor anything in the database that could be compared: it is the
/// state of a while ago. Only somebody who was there and remembers can tell, as long as the log has not grown past what they saw. So a process looks after each new
/// connection, before it hands anything out.
///
/// Nothing that a crash may take back counts: pass what is durable.
///
/// ```
/// use seqline::identity::{HistoryWatch, Verdict};
/// use uuid::Uuid;
///
/// let (epoch, mut watch) = (Uuid::from_u128(1), HistoryWatch::default());
/// assert_eq!(watch.observe(epoch, 10), Verdict::NewEpoch { from: None });
/// assert_eq!(watch.observe(epoch, 12), Verdict::GoesOn);
/// assert_eq!(watch.observe(epoch, 11), Verdict::WentBack { seen: 12, head: 11 });
/// assert_eq!(watch.observe(Uuid::from_u128(2), 11), Verdict::NewEpoch { from: Some(epoch) });
/// assert_eq!(watch.observe(Uuid::from_u128(2), 12), Verdict::GoesOn);
/// ```
#[derive(Debug, Clone, Default)]
pub struct HistoryWatch {
    /// The present one last.
    epochs: Vec<(Uuid, i64)>,
}

/// What an observation says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The same history, as far as can be told.
    GoesOn,
    /// Another epoch than before, or the first: positions of the one before mean nothing here.
    NewEpoch {
        /// The one before.
        from: Option<Uuid>,
    },
    /// The log ends before what was seen of it in this epoch. It stays so, whatever is appended, until there is a new epoch.
    WentBack {
        /// The highest durable number that was seen.
        seen: i64,
        /// The head now.
        head: i64,
    },
}

impl HistoryWatch {
    /// Compares with what is remembered, and remembers. A log that went back is remembered as it was.
    pub fn observe(&mut self, epoch: Uuid, durable_head: i64) -> Verdict {
        let verdict = self.compare(epoch, durable_head);
        if !matches!(verdict, Verdict::WentBack { .. }) {
            self.remember(epoch, durable_head);
        }
        verdict
    }

    /// Compares with what is remembered. A head that is only visible will do, for it is never below the durable one.
    #[must_use]
    pub fn compare(&self, epoch: Uuid, head: i64) -> Verdict {
        let known = self.epochs.iter().find(|(known, _)| *known == epoch);
        match (known, self.epochs.last()) {
            (Some(&(_, seen)), _) if seen > head => Verdict::WentBack { seen, head },
            (Some(_), Some(&(last, _))) if last == epoch => Verdict::GoesOn,
            (_, last) => Verdict::NewEpoch { from: last.map(|(epoch, _)| *epoch) },
        }
    }

    /// Remembers that this number was durable in this epoch, which is the present one from now on.
    pub fn remember(&mut self, epoch: Uuid, durable_head: i64) {
        let known = self.epochs.iter().position(|(known, _)| *known == epoch);
        let seen = known.map_or(durable_head, |at| self.epochs.remove(at).1.max(durable_head));
        self.epochs.push((epoch, seen));
        if self.epochs.len() > EPOCHS_MAX {
            self.epochs.remove(0);
        }
    }

    /// The present epoch.
    #[must_use]
    pub fn epoch(&self) -> Option<Uuid> {
        self.epochs.last().map(|(epoch, _)| *epoch)
    }

    /// The highest durable number that was seen in an epoch, if it was seen.
    #[must_use]
    pub fn seen(&self, epoch: Uuid) -> Option<i64> {
        self.epochs.iter().find(|(known, _)| *known == epoch).map(|(_, seen)| *seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn epoch(n: u128) -> Uuid {
        Uuid::from_u128(n)
    }

    #[test]
    fn a_log_that_went_back_stays_so_until_it_has_grown_past_what_was_seen_or_has_a_new_epoch() {
        let mut watch = HistoryWatch::default();
        watch.observe(epoch(1), 10);
        for head in [9, 7, 9] {
            assert_eq!(watch.observe(epoch(1), head), Verdict::WentBack { seen: 10, head });
        }
        assert_eq!(watch.seen(epoch(1)), Some(10));
        assert_eq!(watch.observe(epoch(2), 7), Verdict::NewEpoch { from: Some(epoch(1)) });
        assert_eq!((watch.epoch(), watch.seen(epoch(2))), (Some(epoch(2)), Some(7)));
        assert_eq!(watch.observe(epoch(2), 7), Verdict::GoesOn);
    }

    #[test]
    fn an_epoch_that_comes_again_is_compared_with_what_was_seen_of_it() {
        let mut watch = HistoryWatch::default();
        watch.observe(epoch(1), 10);
        watch.observe(epoch(2), 5);
        assert_eq!(watch.observe(epoch(1), 8), Verdict::WentBack { seen: 10, head: 8 });
        assert_eq!(watch.epoch(), Some(epoch(2)));
        assert_eq!(watch.observe(epoch(1), 10), Verdict::NewEpoch { from: Some(epoch(2)) });
    }

    #[test]
    fn a_comparison_remembers_nothing() {
        let mut watch = HistoryWatch::default();
        assert_eq!(watch.compare(epoch(1), 10), Verdict::NewEpoch { from: None });
        assert_eq!(watch.epoch(), None);
        watch.remember(epoch(1), 5);
        assert_eq!(watch.compare(epoch(1), 10), Verdict::GoesOn);
        assert_eq!(watch.compare(epoch(1), 5), Verdict::GoesOn);
        assert_eq!(watch.seen(epoch(1)), Some(5));
    }

    #[test]
    fn not_all_epochs_are_remembered_for_ever() {
        let mut watch = HistoryWatch::default();
        for n in 0..=EPOCHS_MAX as u128 {
            watch.observe(epoch(n), 10);
        }
        assert_eq!((watch.seen(epoch(0)), watch.seen(epoch(1))), (None, Some(10)));
    }
}
