//! How many requests of one principal may wait at once.
//!
//! Whoever waits costs no thread and no connection to the database, but memory and a connection of its own. A place is given back
//! when it is dropped, so however a request ends.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// What waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// A request, for its answer.
    Request,
    /// A stream, for as long as it runs.
    Stream,
    /// A connection to the gateway.
    Connection,
}

/// The places of all principals. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct WaitingRoom {
    places: usize,
    taken: Arc<Mutex<Taken>>,
}

#[derive(Debug, Default)]
struct Taken {
    by_principal: HashMap<String, usize>,
    by_kind: HashMap<Kind, usize>,
}

/// One place, for as long as it is held.
#[derive(Debug)]
pub(crate) struct WaitingPlace {
    room: WaitingRoom,
    principal: String,
    kind: Kind,
}

impl WaitingRoom {
    /// With so many places for each principal.
    pub(crate) fn new(places: usize) -> Self {
        Self { places, taken: Arc::default() }
    }

    /// A place, if this principal has one left.
    pub(crate) fn enter(&self, principal: &str, kind: Kind) -> Option<WaitingPlace> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let count = taken.by_principal.get(principal).copied().unwrap_or_default();
        if count >= self.places {
            return None;
        }
        taken.by_principal.insert(principal.to_owned(), count + 1);
        *taken.by_kind.entry(kind).or_default() += 1;
        Some(WaitingPlace { room: self.clone(), principal: principal.to_owned(), kind })
    }

    /// How many places are taken for this, by all.
    pub(crate) fn taken(&self, kind: Kind) -> usize {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.by_kind.get(&kind).copied().unwrap_or_default()
    }
}

impl Drop for WaitingPlace {
    fn drop(&mut self) {
        let mut taken = self.room.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = taken.by_kind.get_mut(&self.kind) {
            *count -= 1;
        }
        match taken.by_principal.get_mut(&self.principal) {
            Some(count) if *count > 1 => *count -= 1,
            _ => {
                taken.by_principal.remove(&self.principal);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_principal_has_its_own_places_and_gets_them_back() {
        let room = WaitingRoom::new(2);
        let first = room.enter("alex", Kind::Request).expect("a place");
        let _second = room.enter("alex", Kind::Stream).expect("a place");
        assert!(room.enter("alex", Kind::Request).is_none());
        let other = room.enter("sam", Kind::Stream).expect("a place of its own");
        assert_eq!((room.taken(Kind::Request), room.taken(Kind::Stream)), (1, 2));
        drop(first);
        let _third = room.enter("alex", Kind::Stream).expect("the place is free again");
        drop(other);
        assert_eq!((room.taken(Kind::Request), room.taken(Kind::Stream)), (0, 2));
        assert!(!room.taken.lock().unwrap().by_principal.contains_key("sam"), "those who left are forgotten");
    }
}
