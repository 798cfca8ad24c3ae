//! The last events of the log in memory: without a hole, in two bounds, and honest about what it no longer has.
//!
//! A ring knows its position, the highest number that it was given, and holds the events right below it. Whoever asks for what comes
//! after a number gets all of it from there on, or is told that the ring does not go back that far; then the database has it. What is
//! too old or too much falls out, the oldest first; an event that is larger than the whole ring falls out at once.
//!
//! When an event says that others were redacted, the ring forgets all that it holds: what it was given before may show what was
//! taken back. Whether it tells the truth does not matter: what is forgotten is in the database.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;

use seqline::redact::NOTICE_TYPE;

use super::rendered::Rendered;

/// How much a ring holds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) events: usize,
    pub(crate) bytes: usize,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Ring {
    bounds: Bounds,
    position: i64,
    held: VecDeque<Arc<Rendered>>,
    bytes: usize,
}

/// An event was given that is not the next one.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the hub was given event {given} after {position}")]
pub(crate) struct OutOfOrder {
    pub(crate) position: i64,
    pub(crate) given: i64,
}

/// What a look into the ring found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Looked {
    /// Everything up to this number was looked at.
    UpTo(i64),
    /// The event after the number is not held.
    NotHeld,
}

impl Ring {
    /// Empty, at this position.
    pub(crate) fn new(position: i64, bounds: Bounds) -> Self {
        Self { bounds, position, held: VecDeque::new(), bytes: 0 }
    }

    /// The highest number that was given.
    pub(crate) fn position(&self) -> i64 {
        self.position
    }

    /// The lowest number after which everything is held.
    pub(crate) fn begins_after(&self) -> i64 {
        self.position - i64::try_from(self.held.len()).unwrap_or(i64::MAX)
    }

    pub(crate) fn events(&self) -> usize {
        self.held.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes the next event.
    pub(crate) fn push(&mut self, event: Arc<Rendered>) -> Result<(), OutOfOrder> {
        if event.seq() != self.position + 1 {
            return Err(OutOfOrder { position: self.position, given: event.seq() });
        }
        if event.event().event_type == NOTICE_TYPE {
            self.held.clear();
            self.bytes = 0;
        }
        self.position = event.seq();
        self.bytes += event.weight();
        self.held.push_back(event);
        while self.held.len() > self.bounds.events || self.bytes > self.bounds.bytes {
            let fallen = self.held.pop_front();
            self.bytes -= fallen.map_or(self.bytes, |fallen| fallen.weight());
        }
        Ok(())
    }

    /// Shows the events with numbers above `after`, in order, no further than `up_to` and at most `most` of them, until `see` breaks.
    /// The event at which it breaks counts as not looked at.
    pub(crate) fn look(
        &self,
        after: i64,
        up_to: i64,
        most: usize,
        mut see: impl FnMut(&Arc<Rendered>) -> ControlFlow<()>,
    ) -> Looked {
        let Ok(skipped) = usize::try_from(after - self.begins_after()) else { return Looked::NotHeld };
        let mut position = after;
        for event in self.held.iter().skip(skipped).take(most).take_while(|event| event.seq() <= up_to) {
            if see(event).is_break() {
                break;
            }
            position = event.seq();
        }
        Looked::UpTo(position)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::rendered::tests::{EPOCH, stored};
    use super::*;

    const ROOMY: Bounds = Bounds { events: 1000, bytes: usize::MAX };

    fn event(seq: i64, payload_bytes: usize) -> Arc<Rendered> {
        let payload = format!("{{\"text\": \"{}\"}}", "x".repeat(payload_bytes));
        Rendered::new(EPOCH, stored(seq, "order.created", &payload))
    }

    fn redaction(seq: i64) -> Arc<Rendered> {
        Rendered::new(EPOCH, stored(seq, NOTICE_TYPE, "{}"))
    }

    /// What a look shows, with no bounds of its own.
    fn seen(ring: &Ring, after: i64) -> Option<Vec<i64>> {
        let mut seqs = Vec::new();
        let looked = ring.look(after, i64::MAX, usize::MAX, |event| {
            seqs.push(event.seq());
            ControlFlow::Continue(())
        });
        match looked {
            Looked::UpTo(position) => {
                assert_eq!(position, ring.position().max(after));
                Some(seqs)
            }
            Looked::NotHeld => {
                assert_eq!(seqs, [0_i64; 0]);
                None
            }
        }
    }

    #[test]
    fn an_empty_ring_has_what_comes_after_its_position_and_nothing_before() {
        let ring = Ring::new(41, ROOMY);
        assert_eq!(seen(&ring, 40), None);
        assert_eq!(seen(&ring, 41), Some(Vec::new()));
        assert_eq!(seen(&ring, 45), Some(Vec::new()));
    }

    #[test]
    fn only_the_next_event_is_taken() {
        let mut ring = Ring::new(41, ROOMY);
        ring.push(event(42, 1)).unwrap();
        for given in [42, 44, 1] {
            assert_eq!(ring.push(event(given, 1)), Err(OutOfOrder { position: 42, given }));
        }
        assert_eq!(seen(&ring, 41), Some(vec![42]));
    }

    #[test]
    fn a_redaction_makes_it_forget_what_came_before_and_not_what_comes_after() {
        let mut ring = Ring::new(0, ROOMY);
        for seq in 1..=3 {
            ring.push(event(seq, 1)).unwrap();
        }
        ring.push(redaction(4)).unwrap();
        ring.push(event(5, 1)).unwrap();
        assert_eq!(seen(&ring, 2), None);
        assert_eq!(seen(&ring, 3), Some(vec![4, 5]));
        assert_eq!(ring.bytes(), redaction(4).weight() + event(5, 1).weight());
    }

    #[test]
    fn an_event_larger_than_the_ring_empties_it_and_it_goes_on() {
        let mut ring = Ring::new(0, Bounds { events: 10, bytes: 5_000 });
        ring.push(event(1, 1)).unwrap();
        ring.push(event(2, 10_000)).unwrap();
        assert_eq!((ring.events(), ring.bytes(), ring.position()), (0, 0, 2));
        ring.push(event(3, 1)).unwrap();
        assert_eq!((seen(&ring, 1), seen(&ring, 2)), (None, Some(vec![3])));
    }

    #[test]
    fn a_look_ends_where_it_is_told_to() {
        let mut ring = Ring::new(0, ROOMY);
        for seq in 1..=9 {
            ring.push(event(seq, 1)).unwrap();
        }
        let go_on = |_: &Arc<Rendered>| ControlFlow::Continue(());
        assert_eq!(ring.look(2, 5, 100, go_on), Looked::UpTo(5));
        assert_eq!(ring.look(2, 100, 4, go_on), Looked::UpTo(6));
        // What did not fit any more comes again.
        let until_seven = |event: &Arc<Rendered>| match event.seq() {
            7.. => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        };
        assert_eq!(ring.look(2, 100, 100, until_seven), Looked::UpTo(6));
    }

    proptest! {
        #[test]
        fn it_is_dense_in_its_bounds_and_says_what_it_no_longer_has(
            start in 0_i64..1000,
            events in 1_usize..20,
            bytes in 1_000_usize..30_000,
            given in proptest::collection::vec((0_usize..3_000, 0_u8..20), 0..60),
        ) {
            let mut ring = Ring::new(start, Bounds { events, bytes });
            let mut model: Vec<(i64, usize)> = Vec::new();
            for (seq, (size, kind)) in (start + 1..).zip(given) {
                let event = if kind == 0 { redaction(seq) } else { event(seq, size) };
                if kind == 0 {
                    model.clear();
                }
                model.push((seq, event.weight()));
                ring.push(event).unwrap();
                while model.len() > events || model.iter().map(|(_, weight)| weight).sum::<usize>() > bytes {
                    model.remove(0);
                }
                prop_assert_eq!(ring.position(), seq);
                prop_assert!(ring.events() <= events && ring.bytes() <= bytes);
                prop_assert_eq!(ring.bytes(), model.iter().map(|(_, weight)| weight).sum::<usize>());
                let first = model.first().map_or(seq + 1, |(first, _)| *first);
                prop_assert_eq!(ring.begins_after(), first - 1);
                for after in start..=seq {
                    let expected = (after + 1 >= first).then(|| (after + 1..=seq).collect::<Vec<_>>());
                    prop_assert_eq!(seen(&ring, after), expected);
                }
            }
        }
    }
}
