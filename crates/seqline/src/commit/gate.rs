//! The way into COMMIT: a few at a time, and whoever came last first.
//!
//! Under load all writers wait here. The one that came last is served by a database process that was at work a moment ago; one that
//! has waited behind all others finds nothing of what it needs in the processor's caches any more, and takes much longer. So a few writers go
//! on, and each of the others waits for no longer than a limit.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

/// Lets so many be inside at once. Clones are the same gate.
#[derive(Debug, Clone)]
pub(super) struct Gate(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    free: usize,
    /// By the order in which they came.
    waiting: BTreeMap<u64, oneshot::Sender<Place>>,
    came: u64,
}

/// Being inside, until it is dropped.
#[derive(Debug)]
pub(super) struct Place(Gate);

impl Gate {
    pub(super) fn new(places: usize) -> Self {
        Self(Arc::new(Mutex::new(State { free: places, waiting: BTreeMap::new(), came: 0 })))
    }

    /// Waits for a place, but not for longer than `patience`: then `None`. Cancel safe.
    pub(super) async fn enter(&self, patience: Duration) -> Option<Place> {
        let (_waiting, turn) = {
            let mut state = self.state();
            if state.free > 0 {
                state.free -= 1;
                return Some(Place(self.clone()));
            }
            let (sender, turn) = oneshot::channel();
            state.came += 1;
            let number = state.came;
            state.waiting.insert(number, sender);
            (Waiting { gate: self, number }, turn)
        };
        tokio::time::timeout(patience, turn).await.ok()?.ok()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.0.state();
        if let Some((_, newest)) = state.waiting.pop_last() {
            drop(state);
            // One that has just given up does not receive it: then it is dropped here and goes to the next.
            drop(newest.send(Place(self.0.clone())));
        } else {
            state.free += 1;
        }
    }
}

/// Nobody waits any more when this is dropped.
struct Waiting<'a> {
    gate: &'a Gate,
    number: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.gate.state().waiting.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    #[tokio::test]
    async fn as_many_as_there_are_places_go_in() {
        let gate = Gate::new(2);
        let first = gate.enter(LONG).await.unwrap();
        let _second = gate.enter(LONG).await.unwrap();
        assert!(gate.enter(LONG).now_or_never().is_none());
        drop(first);
        assert!(gate.enter(LONG).now_or_never().flatten().is_some());
    }

    #[tokio::test]
    async fn whoever_came_last_goes_first() {
        let gate = Gate::new(1);
        let inside = gate.enter(LONG).await.unwrap();
        let (mut older, mut newer) = (Box::pin(gate.enter(LONG)), Box::pin(gate.enter(LONG)));
        assert!((&mut older).now_or_never().is_none() && (&mut newer).now_or_never().is_none());
        drop(inside);
        assert!((&mut older).now_or_never().is_none(), "the older one went first");
        let inside = newer.await.unwrap();
        drop(inside);
        assert!(older.await.is_some());
    }

    #[tokio::test]
    async fn whoever_has_waited_long_enough_goes_on_without_a_place() {
        let gate = Gate::new(1);
        let _inside = gate.enter(LONG).await.unwrap();
        assert!(gate.enter(Duration::from_millis(1)).await.is_none());
        assert!(gate.state().waiting.is_empty(), "it is still waited for");
    }

    #[tokio::test]
    async fn a_place_of_whoever_went_away_goes_to_the_next() {
        let gate = Gate::new(1);
        let inside = gate.enter(LONG).await.unwrap();
        let (mut older, mut newer) = (Box::pin(gate.enter(LONG)), Box::pin(gate.enter(LONG)));
        assert!((&mut older).now_or_never().is_none() && (&mut newer).now_or_never().is_none());
        drop(inside);
        // It has been given the place and never looks.
        drop(newer);
        assert!(older.await.is_some());
        assert_eq!(gate.state().free, 1, "a place was lost");
    }
}
