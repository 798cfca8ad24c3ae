//! What lies in the stream, compared with the log.
//!
//! The relay believes neither its own row nor the broker's memory of ids: after whatever went wrong it reads what is behind its cursor and
//! compares each message with the log. A message counts when the log has its event, by id, at its position; of which epoch it says that
//! it is does not matter. Everything here is decided over what was read already.

use std::collections::BTreeSet;

use uuid::Uuid;

use super::cursor::Cursor;
use crate::limits::RELAY_WINDOW_MAX;
use crate::message::Identity;

/// The log, as it was when messages were compared with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Standing {
    /// The present history.
    pub(super) epoch: Uuid,
    /// The highest position.
    pub(super) head: i64,
    /// The lowest one that is still there.
    pub(super) min_retained: i64,
}

/// What a place in the stream holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Met {
    /// The event that the log has at this position, or had until retention dropped it.
    Ours(i64),
    /// An event of an older history that the log has no more.
    Orphan,
    /// A message that no relay wrote.
    Foreign,
    /// Nothing any more: it was deleted.
    Deleted,
    /// An event of the present history that the log does not have there. Two histories go by one name.
    Differs(i64),
}

/// The log and the stream say different things of the same history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Differ {
    pub(super) position: i64,
    pub(super) stream_seq: u64,
}

/// Judges a message by what it says of itself and by the id that the log has at that position.
pub(super) fn judge(identity: Option<Identity>, log: &Standing, id_there: Option<Uuid>) -> Met {
    let Some(Identity { epoch, position, event_id }) = identity else { return Met::Foreign };
    match id_there {
        Some(id) if id == event_id => Met::Ours(position),
        // It cannot be compared any more, and nothing could be published in its place.
        None if position < log.min_retained => Met::Ours(position),
        _ if epoch == log.epoch => Met::Differs(position),
        _ => Met::Orphan,
    }
}

/// How many of a kind were met, and where the last of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) count: i64,
    pub(super) stream_seq: u64,
}

impl Count {
    fn add(&mut self, stream_seq: u64) {
        self.count += 1;
        self.stream_seq = stream_seq;
    }
}

/// A walk from a cursor to the end of the stream.
#[derive(Debug)]
pub(super) struct Walk {
    /// Every event up to here was met.
    position: i64,
    /// What was met beyond it: behind a hole.
    beyond: BTreeSet<i64>,
    /// The last place up to which nothing was missing, and what holds there.
    settled: Settled,
    /// Places behind the last message of ours that hold nothing any more because the stream dropped its oldest messages.
    evicted: u64,
    /// Places behind the last message of ours from which a message was deleted.
    deleted_at_end: i64,
    deleted: i64,
    /// Up to here others were told of already.
    noted_to: u64,
    pub(super) foreign: Count,
    pub(super) orphans: Count,
}

/// How far the stream is known without a hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Settled {
    pub(super) position: i64,
    pub(super) stream_seq: u64,
    pub(super) position_at_seq: Option<i64>,
}

impl Walk {
    /// Begins behind a cursor. `first` is the first place that the stream still holds. What lies up to `noted_to` is not counted again.
    pub(super) fn from(cursor: &Cursor, first: u64, noted_to: u64) -> Self {
        let Cursor { position, stream_seq, position_at_seq, .. } = *cursor;
        Self {
            position,
            beyond: BTreeSet::new(),
            settled: Settled { position, stream_seq, position_at_seq },
            evicted: first.saturating_sub(stream_seq.saturating_add(1)),
            deleted_at_end: 0,
            deleted: 0,
            noted_to,
            foreign: Count::default(),
            orphans: Count::default(),
        }
    }

    /// Takes the next place, in order.
    pub(super) fn meet(&mut self, stream_seq: u64, met: Met) -> Result<(), Differ> {
        let mut position_at_seq = None;
        match met {
            Met::Ours(position) => {
                // What the stream dropped before this one was of ours, as far as there was room for it.
                let gap = position - self.position - 1;
                if gap > 0
                    && self.beyond.is_empty()
                    && u64::try_from(gap).is_ok_and(|gap| gap <= self.evicted)
                {
                    self.position = position - 1;
                }
                self.evicted = 0;
                self.deleted_at_end = 0;
                position_at_seq = Some(position);
                self.take(position);
            }
            Met::Deleted => {
                self.deleted_at_end += 1;
                self.deleted += 1;
            }
            Met::Foreign if stream_seq > self.noted_to => self.foreign.add(stream_seq),
            Met::Orphan if stream_seq > self.noted_to => self.orphans.add(stream_seq),
            Met::Foreign | Met::Orphan => {}
            Met::Differs(position) => return Err(Differ { position, stream_seq }),
        }
        if self.beyond.is_empty() {
            self.settled = Settled { position: self.position, stream_seq, position_at_seq };
        }
        Ok(())
    }

    /// Takes an event for there that is not seen: the broker says that it has it, so its message was deleted.
    pub(super) fn assume(&mut self, position: i64) {
        self.take(position);
    }

    fn take(&mut self, position: i64) {
        if position > self.position {
            self.beyond.insert(position);
        }
        while self.beyond.remove(&(self.position + 1)) {
            self.position += 1;
        }
    }

    /// Gives up what the log does not have any more: everything below `min_retained`.
    pub(super) fn skip_to_retained(&mut self, min_retained: i64) {
        if self.position < min_retained - 1 {
            self.position = min_retained - 1;
            self.beyond.retain(|position| *position >= min_retained);
            self.take(self.position);
            self.settled.position = self.settled.position.max(min_retained - 1);
            if self.beyond.is_empty() {
                self.settled.position = self.position;
            }
        }
    }

    /// Every event up to here is in the stream.
    pub(super) fn position(&self) -> i64 {
        self.position
    }

    /// How far nothing was missing.
    pub(super) fn settled(&self) -> Settled {
        self.settled
    }

    /// The positions that are missing although later ones are there, in order. No more than a window can have left out: should there be more,
    /// the next walk finds them.
    pub(super) fn missing(&self) -> Vec<i64> {
        let Some(last) = self.beyond.last() else { return Vec::new() };
        let missing = (self.position + 1..*last).filter(|position| !self.beyond.contains(position));
        missing.take(RELAY_WINDOW_MAX as usize).collect()
    }

    /// How many places behind the last message of ours hold nothing any more, because somebody deleted or purged their messages: as many events
    /// at most are published again.
    pub(super) fn gone_at_end(&self) -> i64 {
        self.deleted_at_end.saturating_add(i64::try_from(self.evicted).unwrap_or(i64::MAX))
    }

    /// How many places hold nothing because somebody deleted their messages.
    pub(super) fn deleted(&self) -> i64 {
        self.deleted
    }
}

/// A walk from the end of the stream backward, for a place from which a [`Walk`] can begin although no cursor holds any more.
///
/// The last message of ours is not such a place: when a hole was filled late, earlier ones are behind it, and when the end of the stream was
/// lost, it may never have been filled. But what is missing was in flight together with what is there. So positions that are a whole
/// window below the highest one are there for certain, and everything above them lies behind a message that is two windows below it.
#[derive(Debug, Default)]
pub(super) struct LookBack {
    highest: Option<i64>,
    lowest: Option<i64>,
    found: Option<u64>,
}

/// Where a walk can begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Anchor {
    pub(super) stream_seq: u64,
    pub(super) position: i64,
}

impl LookBack {
    const REACH: i64 = RELAY_WINDOW_MAX as i64;

    /// Takes the place before the last one that it was given. Whether that was enough.
    pub(super) fn meet(&mut self, stream_seq: u64, met: Met) -> Result<bool, Differ> {
        match met {
            Met::Ours(position) => {
                let highest = self.highest.map_or(position, |highest| highest.max(position));
                self.highest = Some(highest);
                self.lowest = Some(self.lowest.map_or(position, |lowest| lowest.min(position)));
                if position <= highest - 2 * Self::REACH {
                    self.found = Some(stream_seq);
                    return Ok(true);
                }
            }
            Met::Differs(position) => return Err(Differ { position, stream_seq }),
            Met::Orphan | Met::Foreign | Met::Deleted => {}
        }
        Ok(false)
    }

    /// Where a walk can begin. `base` is where the relay began in this stream, if it did and everything behind it was looked at; `first` is
    /// the first place of the stream that was. `None` when nothing of ours was met.
    pub(super) fn anchor(&self, base: Option<Anchor>, first: u64) -> Option<Anchor> {
        let (highest, lowest) = self.highest.zip(self.lowest)?;
        if let Some(stream_seq) = self.found {
            return Some(Anchor { stream_seq, position: highest - Self::REACH });
        }
        if let Some(base) = base {
            return Some(base);
        }
        // What came before the lowest one was dropped by the stream, or was none of this relay's business.
        let position = (lowest - 1).max(highest - Self::REACH).max(0);
        Some(Anchor { stream_seq: first.saturating_sub(1), position })
    }
}

#[cfg(test)]
mod tests;
