//! What is under way to the broker and not yet acknowledged: a bounded window over which the cursor moves.
//!
//! Acknowledgements overtake each other. The cursor moves only over the prefix of which every message was acknowledged, so that what it covers
//! has no hole.

use std::collections::VecDeque;

use super::walk::Settled;

/// The window. Places are counted from the first message that was put in, and never used again.
#[derive(Debug, Default)]
pub(super) struct Window {
    entries: VecDeque<Entry>,
    /// The place of the first entry.
    first: u64,
    bytes: usize,
}

#[derive(Debug)]
struct Entry {
    position: i64,
    bytes: usize,
    acknowledged: Option<Stored>,
}

/// What an acknowledgement says of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stored {
    /// It was stored there, by this publishing.
    At(u64),
    /// It was there already.
    Before,
}

impl Window {
    /// Whether a message of so many bytes may be sent now. One is always allowed, or a large one would never go.
    pub(super) fn has_room(&self, bytes: usize, limit: u32, bytes_limit: usize) -> bool {
        self.entries.is_empty()
            || self.entries.len() < limit as usize && self.bytes.saturating_add(bytes) <= bytes_limit
    }

    /// Takes a message that is about to be sent, and gives its place.
    pub(super) fn push(&mut self, position: i64, bytes: usize) -> u64 {
        let place = self.next_place();
        self.entries.push_back(Entry { position, bytes, acknowledged: None });
        self.bytes += bytes;
        place
    }

    /// Takes an acknowledgement, and says of which position. One for a place that is not under way is none of ours.
    pub(super) fn acknowledge(&mut self, place: u64, stored: Stored) -> Option<i64> {
        let index = usize::try_from(place.checked_sub(self.first)?).ok()?;
        let entry = self.entries.get_mut(index)?;
        entry.acknowledged.get_or_insert(stored);
        Some(entry.position)
    }

    /// Removes what was acknowledged without a message before it that was not. How many, and how far that leads from `settled` on.
    pub(super) fn advance(&mut self, settled: &mut Settled) -> u32 {
        let mut count = 0;
        while let Some(&Entry { position, bytes, acknowledged: Some(stored) }) = self.entries.front() {
            self.entries.pop_front();
            self.first += 1;
            self.bytes -= bytes;
            count += 1;
            settled.position = position;
            // What was there already is at some other place, and the end of the known stream where it was.
            if let Stored::At(stream_seq) = stored {
                settled.stream_seq = stream_seq;
                settled.position_at_seq = Some(position);
            }
        }
        count
    }

    /// The place that the next message gets.
    pub(super) fn next_place(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const START: Settled = Settled { position: 10, stream_seq: 100, position_at_seq: Some(10) };

    #[test]
    fn it_is_full_by_number_and_by_bytes_and_always_takes_one() {
        let mut window = Window::default();
        assert!(window.has_room(1000, 2, 10));
        window.push(1, 6);
        assert!(window.has_room(4, 2, 10));
        assert!(!window.has_room(5, 2, 10), "bytes");
        window.push(2, 1);
        assert!(!window.has_room(1, 2, 10), "number");
    }

    #[test]
    fn the_cursor_does_not_move_over_a_message_without_an_acknowledgement() {
        let (mut window, mut settled) = (Window::default(), START);
        let places: Vec<u64> = (11..=13).map(|position| window.push(position, 1)).collect();
        window.acknowledge(places[1], Stored::At(102));
        window.acknowledge(places[2], Stored::At(103));
        assert_eq!((window.advance(&mut settled), settled), (0, START));
        window.acknowledge(places[0], Stored::At(101));
        assert_eq!(window.advance(&mut settled), 3);
        assert_eq!(settled, Settled { position: 13, stream_seq: 103, position_at_seq: Some(13) });
        assert!(window.len() == 0 && window.has_room(99, 1, 1));
    }

    #[test]
    fn what_was_there_already_moves_the_position_and_not_the_end_of_the_known_stream() {
        let (mut window, mut settled) = (Window::default(), START);
        let place = window.push(11, 1);
        window.acknowledge(place, Stored::Before);
        window.acknowledge(place + 7, Stored::At(1));
        assert_eq!(window.advance(&mut settled), 1);
        assert_eq!(settled, Settled { position: 11, ..START });
    }

    proptest! {
        /// In whatever order acknowledgements come, twice or not at all: the cursor is always just before the first one that is missing.
        #[test]
        fn the_cursor_is_before_the_first_that_is_missing(order in proptest::collection::vec(0_u64..40, 0..80)) {
            let (mut window, mut settled) = (Window::default(), START);
            for place in 0..40 {
                assert_eq!(window.push(11 + i64::try_from(place).unwrap(), 1), place);
            }
            let mut seen = std::collections::BTreeSet::new();
            for place in order {
                window.acknowledge(place, Stored::At(101 + place));
                seen.insert(place);
                window.advance(&mut settled);
                let first_missing = (0..).find(|place| !seen.contains(place)).unwrap();
                prop_assert_eq!(settled.position, 10 + i64::try_from(first_missing).unwrap());
                prop_assert_eq!(settled.stream_seq, 100 + first_missing);
                prop_assert_eq!(window.len() as u64, 40 - first_missing);
            }
        }
    }
}
