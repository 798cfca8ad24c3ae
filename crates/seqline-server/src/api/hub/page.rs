//! What one reader gets at once: bounded in events and bytes, and with the position up to which everything was looked at.

use std::sync::Arc;

use super::rendered::Rendered;

/// How much a page may hold. One event always fits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PageLimits {
    pub(crate) events: usize,
    pub(crate) bytes: usize,
}

/// The next events of a reader that it may see and has asked for.
#[derive(Debug)]
pub(crate) struct Page {
    limits: PageLimits,
    pub(crate) events: Vec<Arc<Rendered>>,
    bytes: usize,
    /// An event did not fit: the next page begins with it.
    closed: bool,
    /// Everything up to here was looked at.
    pub(crate) position: i64,
}

/// An event did not fit any more.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Full;

impl Page {
    /// Empty, at the position of the reader.
    pub(crate) fn new(position: i64, limits: PageLimits) -> Self {
        Self { limits, events: Vec::new(), bytes: 0, closed: false, position }
    }

    pub(crate) fn push(&mut self, event: Arc<Rendered>) -> Result<(), Full> {
        let bytes = self.bytes + event.envelope().len();
        if self.is_full() || bytes > self.limits.bytes && !self.events.is_empty() {
            // Not even a smaller one may go before it.
            self.closed = true;
            return Err(Full);
        }
        self.bytes = bytes;
        self.events.push(event);
        Ok(())
    }

    /// Whether it takes no further event, whatever its size.
    pub(crate) fn is_full(&self) -> bool {
        self.closed || self.events.len() >= self.limits.events || self.bytes >= self.limits.bytes
    }

    /// How many further events may fit, by the size of those that are there.
    pub(crate) fn room(&self, first_guess: usize) -> usize {
        let events = self.limits.events.saturating_sub(self.events.len());
        let usual = self.bytes.checked_div(self.events.len()).unwrap_or_default();
        let by_bytes = self.limits.bytes.saturating_sub(self.bytes).checked_div(usual);
        events.min(by_bytes.map_or(first_guess, |by_bytes| by_bytes + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::super::rendered::tests::{EPOCH, stored};
    use super::*;

    fn event(seq: i64, payload_bytes: usize) -> Arc<Rendered> {
        let payload = format!("{{\"text\": \"{}\"}}", "x".repeat(payload_bytes));
        Rendered::new(EPOCH, stored(seq, "order.created", &payload))
    }

    #[test]
    fn a_page_takes_events_up_to_their_number() {
        let mut page = Page::new(0, PageLimits { events: 2, bytes: 1_000_000 });
        page.push(event(1, 1)).unwrap();
        assert!(!page.is_full());
        page.push(event(2, 1)).unwrap();
        assert!(page.is_full());
        assert_eq!(page.push(event(3, 1)), Err(Full));
        assert_eq!(page.events.len(), 2);
    }

    #[test]
    fn a_page_takes_events_up_to_their_bytes_but_one_in_any_case() {
        let size = event(1, 1_000).envelope().len();
        let mut page = Page::new(0, PageLimits { events: 10, bytes: size + size / 2 });
        page.push(event(1, 5_000)).unwrap();
        assert_eq!(page.push(event(2, 1)), Err(Full));
        let mut page = Page::new(0, PageLimits { events: 10, bytes: size + size / 2 });
        page.push(event(1, 1_000)).unwrap();
        assert!(!page.is_full());
        assert_eq!(page.push(event(2, 1_000)), Err(Full));
        assert_eq!(page.events.len(), 1);
    }

    #[test]
    fn a_page_that_an_event_did_not_fit_into_is_full_also_for_a_smaller_one() {
        let size = event(1, 1_000).envelope().len();
        let mut page = Page::new(0, PageLimits { events: 10, bytes: size + size / 2 });
        page.push(event(1, 1_000)).unwrap();
        assert_eq!(page.push(event(2, 1_000)), Err(Full));
        assert!(page.is_full());
        assert_eq!(page.push(event(3, 1)), Err(Full));
    }

    #[test]
    fn how_many_more_may_fit_follows_the_size_of_those_before() {
        let size = event(1, 1_000).envelope().len();
        let mut page = Page::new(0, PageLimits { events: 50, bytes: 10 * size });
        assert_eq!(page.room(7), 7);
        page.push(event(1, 1_000)).unwrap();
        assert_eq!(page.room(7), 10);
        let mut page = Page::new(0, PageLimits { events: 50, bytes: 1_000 * size });
        assert_eq!(page.room(70), 50);
        page.push(event(1, 1_000)).unwrap();
        assert_eq!(page.room(7), 49);
    }
}
