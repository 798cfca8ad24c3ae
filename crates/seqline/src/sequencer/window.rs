//! What a sequencer knows of the commit order: how far it has looked, and which numbers below that it has not seen.
//!
//! Numbers are drawn inside COMMIT and become visible a moment later, or never. Looking at everything from the beginning each time would cost
//! more and more while a snapshot keeps dead rows, and stopping at the first number that is missing would let one slow COMMIT hold
//! up all others. So it looks at what is above, and for those that are missing by their number.

use std::collections::BTreeMap;

use crate::store::sequencer::Batch;

/// Pure: told of each batch, asked for the next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Window {
    high: i64,
    /// Numbers up to `high` that were not seen, each with the transaction id that was drawn after that was noticed.
    missing: BTreeMap<i64, Option<i64>>,
}

impl Window {
    /// All up to `high` are done with, except those that are missing.
    pub(crate) fn new(high: i64, missing: Vec<i64>) -> Self {
        Self { high, missing: missing.into_iter().map(|number| (number, None)).collect() }
    }

    /// Everything above is still to be looked at.
    pub(crate) fn high(&self) -> i64 {
        self.high
    }

    /// What is to be looked for below.
    pub(crate) fn missing(&self) -> Vec<i64> {
        self.missing.keys().copied().collect()
    }

    /// Whether the next batch has to draw a transaction id.
    pub(crate) fn needs_mark(&self) -> bool {
        self.missing.values().any(Option::is_none)
    }

    /// What a batch for this window took and saw.
    pub(crate) fn after(&mut self, batch: &Batch) {
        for number in &batch.taken {
            self.missing.remove(number);
        }
        // A batch that left some has not said of any number that it is not there.
        if !batch.more {
            // Whoever drew a missing number had its transaction id before the mark was drawn, so with all of those finished it will
            // never come. `xmin` was read before the batch looked, so one that came after all would have been taken.
            self.missing.retain(|_, mark| mark.is_none_or(|mark| mark >= batch.xmin));
        }
        if let Some(xid) = batch.xid {
            self.missing.values_mut().for_each(|mark| *mark = mark.or(Some(xid)));
        }
        let last = batch.taken.last().copied().unwrap_or(self.high);
        let high = self.high.max(if batch.more { last } else { last.max(batch.drawn) });
        let mut taken = batch.taken.iter().copied().filter(|number| *number > self.high).peekable();
        for number in self.high + 1..=high {
            if taken.next_if_eq(&number).is_none() {
                self.missing.insert(number, None);
            }
        }
        self.high = high;
    }
}

#[cfg(test)]
mod tests;
