//! What connections and agents do at this process, for its metrics.
//!
//! Whoever does something counts it here with an atomic operation or two, and a scrape reads a few numbers: it takes no lock, and looks at no
//! connection. What is there at the moment is counted by something that goes with it, whatever the reason.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use seqline::access::PrincipalKind;
use seqline::agent::HolderKind;

/// See the [module](self). Clones count together.
#[derive(Clone)]
pub(crate) struct Tally(Arc<Counted>);

struct Counted {
    connections: Vec<(&'static str, AtomicU64)>,
    in_flight: AtomicU64,
    closes: Vec<(&'static str, AtomicU64)>,
    takeovers: Vec<(&'static str, AtomicU64)>,
    redelivered: Vec<(&'static str, AtomicU64)>,
}

/// A count of each name.
pub(crate) type Counts = Vec<(&'static str, u64)>;

/// Whose connections are counted that have not said whose they are.
const NOBODY: &str = "none";

impl Tally {
    /// With nothing counted. Connections can end for these reasons.
    pub(super) fn new(reasons: impl IntoIterator<Item = &'static str>) -> Self {
        let kinds = PrincipalKind::ALL.map(PrincipalKind::as_str).into_iter().chain([NOBODY]);
        let transports = || [HolderKind::Gateway, HolderKind::Rest].map(HolderKind::as_str);
        Self(Arc::new(Counted {
            connections: zero(kinds),
            in_flight: AtomicU64::new(0),
            closes: zero(reasons),
            takeovers: zero(transports()),
            redelivered: zero(transports()),
        }))
    }

    /// A connection that has begun, until what is returned goes.
    pub(super) fn connection(&self) -> CountedConnection {
        add(&self.0.connections, NOBODY, 1);
        CountedConnection { tally: self.clone(), kind: NOBODY }
    }

    /// What one holder has in flight, until what is returned goes.
    pub(super) fn in_flight(&self) -> CountedInFlight {
        CountedInFlight { tally: self.clone(), events: 0 }
    }

    /// A connection has ended.
    pub(super) fn closed(&self, reason: &'static str) {
        add(&self.0.closes, reason, 1);
    }

    /// A consumer was taken from somebody, over this.
    pub(super) fn taken_over(&self, over: HolderKind) {
        add(&self.0.takeovers, over.as_str(), 1);
    }

    /// So many events were not acknowledged in time by a holder over this.
    pub(super) fn went_back(&self, over: HolderKind, events: usize) {
        add(&self.0.redelivered, over.as_str(), events as u64);
    }

    /// How many connections there are, by whose they are.
    pub(crate) fn connections(&self) -> Counts {
        counts(&self.0.connections)
    }

    /// How many events all of them have in flight.
    pub(crate) fn events_in_flight(&self) -> u64 {
        self.0.in_flight.load(Ordering::Relaxed)
    }

    /// How many connections have ended, by why.
    pub(crate) fn closes(&self) -> Counts {
        counts(&self.0.closes)
    }

    /// How many takeovers there were, by how the new holder came.
    pub(crate) fn takeovers(&self) -> Counts {
        counts(&self.0.takeovers)
    }

    /// How many events were not acknowledged in time, by how the holder had got them.
    pub(crate) fn redelivered(&self) -> Counts {
        counts(&self.0.redelivered)
    }
}

/// A connection that counts.
pub(super) struct CountedConnection {
    tally: Tally,
    kind: &'static str,
}

impl CountedConnection {
    /// It is known whose it is.
    pub(super) fn is_of(&mut self, kind: PrincipalKind) {
        let before = std::mem::replace(&mut self.kind, kind.as_str());
        // Never one too few in all.
        add(&self.tally.0.connections, self.kind, 1);
        subtract(&self.tally.0.connections, before);
    }
}

impl Drop for CountedConnection {
    fn drop(&mut self) {
        subtract(&self.tally.0.connections, self.kind);
    }
}

/// Events in flight that count.
pub(super) struct CountedInFlight {
    tally: Tally,
    events: u64,
}

impl CountedInFlight {
    /// There are so many now.
    pub(super) fn set(&mut self, events: usize) {
        let events = events as u64;
        let before = std::mem::replace(&mut self.events, events);
        let all = &self.tally.0.in_flight;
        if events > before {
            all.fetch_add(events - before, Ordering::Relaxed);
        } else if events < before {
            all.fetch_sub(before - events, Ordering::Relaxed);
        }
    }
}

impl Drop for CountedInFlight {
    fn drop(&mut self) {
        self.set(0);
    }
}

fn zero(names: impl IntoIterator<Item = &'static str>) -> Vec<(&'static str, AtomicU64)> {
    names.into_iter().map(|name| (name, AtomicU64::new(0))).collect()
}

/// A few names, so that looking for one is nothing.
fn of<'a>(counted: &'a [(&'static str, AtomicU64)], name: &str) -> Option<&'a AtomicU64> {
    let found = counted.iter().find(|(known, _)| *known == name);
    debug_assert!(found.is_some(), "{name} is none of what is counted");
    found.map(|(_, count)| count)
}

fn add(counted: &[(&'static str, AtomicU64)], name: &str, more: u64) {
    if let Some(count) = of(counted, name) {
        count.fetch_add(more, Ordering::Relaxed);
    }
}

fn subtract(counted: &[(&'static str, AtomicU64)], name: &str) {
    if let Some(count) = of(counted, name) {
        count.fetch_sub(1, Ordering::Relaxed);
    }
}

fn counts(counted: &[(&'static str, AtomicU64)]) -> Counts {
    counted.iter().map(|(name, count)| (*name, count.load(Ordering::Relaxed))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally() -> Tally {
        Tally::new(["gone", "left"])
    }

    #[test]
    fn everything_that_can_be_counted_is_there_from_the_beginning() {
        let tally = tally();
        assert_eq!(tally.connections(), [("user", 0), ("agent", 0), ("app", 0), ("none", 0)]);
        assert_eq!(tally.closes(), [("gone", 0), ("left", 0)]);
        assert_eq!(tally.takeovers(), [("gateway", 0), ("rest", 0)]);
        assert_eq!(tally.redelivered(), [("gateway", 0), ("rest", 0)]);
        assert_eq!(tally.events_in_flight(), 0);
    }

    #[test]
    fn a_connection_is_nobodys_then_somebodys_and_then_gone() {
        let tally = tally();
        let (mut one, other) = (tally.connection(), tally.connection());
        one.is_of(PrincipalKind::Agent);
        assert_eq!(tally.connections(), [("user", 0), ("agent", 1), ("app", 0), ("none", 1)]);
        drop((one, other));
        assert_eq!(tally.connections(), [("user", 0), ("agent", 0), ("app", 0), ("none", 0)]);
    }

    #[test]
    fn what_is_in_flight_is_the_sum_of_all_who_have_some() {
        let tally = tally();
        let (mut one, mut other) = (tally.in_flight(), tally.in_flight());
        one.set(3);
        other.set(4);
        one.set(1);
        assert_eq!(tally.events_in_flight(), 5);
        drop(other);
        assert_eq!(tally.events_in_flight(), 1);
        one.set(1);
        drop(one);
        assert_eq!(tally.events_in_flight(), 0);
    }

    #[test]
    fn what_happened_counts_where_it_did() {
        let tally = tally();
        tally.closed("left");
        tally.taken_over(HolderKind::Rest);
        tally.went_back(HolderKind::Gateway, 3);
        tally.went_back(HolderKind::Gateway, 2);
        assert_eq!(tally.closes(), [("gone", 0), ("left", 1)]);
        assert_eq!(tally.takeovers(), [("gateway", 0), ("rest", 1)]);
        assert_eq!(tally.redelivered(), [("gateway", 5), ("rest", 0)]);
    }
}
