//! Did a consumer keep its promises? Compares what became of events with what was asked for.
//!
//! Checked are: every event that matches is handled exactly once, or given up by somebody who said so; those of a key in the order of
//! the log, with those that are parked holding up the later ones; nothing that was not asked for; and no cursor above the head, or
//! above an event that nothing has become of. A rewind begins a new generation of the events from there on: each comes once more.
//!
//! What happened is a list of [`Step`]s in an order that the database has given: numbers of a sequence that were drawn while the cursor
//! was held are in that order, also between transactions.
//!
//! ```
//! use seqline_testkit::consumption::{Fault, Logged, Step, check};
//!
//! let log = [1, 2].map(|seq| Logged { seq, key: Some("order/7".to_owned()), matches: true });
//! let handled = |seq| Step::Handled { seq };
//! let tally = check(&log, &[handled(1), handled(2), Step::Rewound { to: 2 }, handled(2)]).unwrap();
//! assert_eq!((tally.handled, tally.rewinds), (3, 1));
//!
//! let misstep = check(&log, &[handled(2), handled(1)]).unwrap_err();
//! assert_eq!((misstep.step, misstep.fault), (0, Fault::OutOfOrder { seq: 2, before: 1 }));
//! ```

use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Display, Formatter};

#[cfg(test)]
mod tests;

/// An event of the log that the consumer has to come to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Logged {
    /// Its number.
    pub seq: i64,
    /// What it has in common with those that it has to stay in order with. Without one it stands alone.
    pub key: Option<String>,
    /// Whether the consumer asked for it.
    pub matches: bool,
}

/// Something that was committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The event had its effects.
    Handled {
        /// The event.
        seq: i64,
    },
    /// The event was put aside.
    Parked {
        /// The event.
        seq: i64,
    },
    /// A parked event was given up.
    Discarded {
        /// The event.
        seq: i64,
    },
    /// Somebody said that the event is to be left out. That is too late for one that was handled or parked already.
    Skipped {
        /// The event.
        seq: i64,
    },
    /// The consumer was taken back: this event, and all after it, are to come again.
    Rewound {
        /// The event.
        to: i64,
    },
    /// The cursor of a lane was put here.
    Stands {
        /// The lane.
        lane: i32,
        /// The last event that it has passed.
        at: i64,
        /// The highest number in the log then.
        head: i64,
    },
    /// There is no such lane any more.
    Gone {
        /// The lane.
        lane: i32,
    },
}

/// A broken promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are numbers of events and lanes, and the variants say of which")]
pub enum Fault {
    /// There is no such event.
    Unknown { seq: i64 },
    /// Nobody asked for it.
    Unasked { seq: i64 },
    /// It was handled before, and nobody took the consumer back.
    Doubled { seq: i64 },
    /// It was handled while an earlier one of its key was not done.
    OutOfOrder { seq: i64, before: i64 },
    /// It was handled although it was discarded, or skipped in time.
    GivenUp { seq: i64 },
    /// It was parked although it was done, or parked already.
    ParkedAgain { seq: i64 },
    /// It was discarded and is not parked.
    NotParked { seq: i64 },
    /// A cursor is above the head.
    AboveHead { lane: i32, at: i64, head: i64 },
    /// All lanes have passed it, and nothing has become of it.
    Passed { seq: i64, at: i64 },
    /// In the end it was neither handled nor given up.
    Left { seq: i64 },
}

/// The first fault, and the step with which it shows; that is the number of steps if it shows in the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Misstep {
    pub step: usize,
    pub fault: Fault,
}

impl Display for Misstep {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "step {}: {}", self.step, self.fault)
    }
}

impl Display for Fault {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Unknown { seq } => write!(f, "event {seq} is not in the log"),
            Fault::Unasked { seq } => write!(f, "event {seq} does not match and was not left alone"),
            Fault::Doubled { seq } => write!(f, "event {seq} was handled twice"),
            Fault::OutOfOrder { seq, before } => {
                write!(f, "event {seq} was handled before {before} of the same key")
            }
            Fault::GivenUp { seq } => write!(f, "event {seq} was handled although it was given up"),
            Fault::ParkedAgain { seq } => write!(f, "event {seq} was parked and had been settled before"),
            Fault::NotParked { seq } => write!(f, "event {seq} was discarded and is not parked"),
            Fault::AboveHead { lane, at, head } => {
                write!(f, "lane {lane} is at {at}, above the head {head} of the log")
            }
            Fault::Passed { seq, at } => {
                write!(f, "event {seq} is neither handled nor put aside, and all lanes have come to {at}")
            }
            Fault::Left { seq } => write!(f, "event {seq} was never handled"),
        }
    }
}

/// What happened in a history without fault, so that a test can tell whether it was about anything.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Events with effects, in all generations.
    pub handled: usize,
    /// Events that were put aside.
    pub parked: usize,
    /// Parked events that were given up.
    pub discarded: usize,
    /// Events that were left out.
    pub skipped: usize,
    /// How often the consumer was taken back.
    pub rewinds: usize,
    /// The most lanes that there were.
    pub lanes: usize,
}

/// What has become of an event in its generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    Parked,
    Handled,
    GivenUp,
}

struct Checker<'a> {
    events: BTreeMap<i64, (&'a Logged, State)>,
    /// The matching events of each key, in order.
    keys: HashMap<&'a str, Vec<i64>>,
    lanes: BTreeMap<i32, i64>,
    /// Up to here something has become of every event.
    settled: i64,
    tally: Tally,
}

/// Checks what was done against the log, which is given in order from the first event that the consumer was to get. Everything has to
/// be done in the end.
///
/// # Errors
///
/// The first fault.
pub fn check(log: &[Logged], steps: &[Step]) -> Result<Tally, Misstep> {
    let mut keys: HashMap<&str, Vec<i64>> = HashMap::new();
    for event in log.iter().filter(|event| event.matches) {
        if let Some(key) = &event.key {
            keys.entry(key).or_default().push(event.seq);
        }
    }
    let events = log.iter().map(|event| (event.seq, (event, State::Open))).collect();
    let mut checker =
        Checker { events, keys, lanes: BTreeMap::new(), settled: i64::MIN, tally: Tally::default() };
    for (number, step) in steps.iter().enumerate() {
        checker.take(*step).map_err(|fault| Misstep { step: number, fault })?;
    }
    match checker.first_that(.., |state| matches!(state, State::Open | State::Parked)) {
        Some(seq) => Err(Misstep { step: steps.len(), fault: Fault::Left { seq } }),
        None => Ok(checker.tally),
    }
}

impl Checker<'_> {
    fn take(&mut self, step: Step) -> Result<(), Fault> {
        match step {
            Step::Handled { seq } => self.handle(seq),
            Step::Parked { seq } => match self.state_of(seq)? {
                State::Open => {
                    self.tally.parked += 1;
                    self.set(seq, State::Parked);
                    Ok(())
                }
                _ => Err(Fault::ParkedAgain { seq }),
            },
            Step::Discarded { seq } => match self.state_of(seq)? {
                State::Parked => {
                    self.tally.discarded += 1;
                    self.set(seq, State::GivenUp);
                    Ok(())
                }
                _ => Err(Fault::NotParked { seq }),
            },
            Step::Skipped { seq } => {
                if let Some((_, state @ State::Open)) = self.events.get_mut(&seq) {
                    *state = State::GivenUp;
                    self.tally.skipped += 1;
                }
                Ok(())
            }
            Step::Rewound { to } => {
                self.events.range_mut(to..).for_each(|(_, (_, state))| *state = State::Open);
                self.settled = self.settled.min(to - 1);
                self.tally.rewinds += 1;
                Ok(())
            }
            Step::Stands { lane, at, head } if at > head => Err(Fault::AboveHead { lane, at, head }),
            Step::Stands { lane, at, .. } => {
                self.lanes.insert(lane, at);
                self.tally.lanes = self.tally.lanes.max(self.lanes.len());
                self.check_passed()
            }
            Step::Gone { lane } => {
                self.lanes.remove(&lane);
                self.check_passed()
            }
        }
    }

    fn handle(&mut self, seq: i64) -> Result<(), Fault> {
        match self.state_of(seq)? {
            State::Handled => return Err(Fault::Doubled { seq }),
            State::GivenUp => return Err(Fault::GivenUp { seq }),
            State::Open | State::Parked => {}
        }
        let key = self.events[&seq].0.key.as_deref();
        let mut earlier = key.into_iter().flat_map(|key| &self.keys[key]).take_while(|other| **other < seq);
        if let Some(&before) =
            earlier.find(|other| matches!(self.events[other].1, State::Open | State::Parked))
        {
            return Err(Fault::OutOfOrder { seq, before });
        }
        self.set(seq, State::Handled);
        self.tally.handled += 1;
        Ok(())
    }

    /// Nothing is passed that nothing has become of.
    fn check_passed(&mut self) -> Result<(), Fault> {
        let Some(&at) = self.lanes.values().min() else { return Ok(()) };
        if at <= self.settled {
            return Ok(());
        }
        if let Some(seq) = self.first_that(self.settled.saturating_add(1)..=at, |state| state == State::Open)
        {
            return Err(Fault::Passed { seq, at });
        }
        self.settled = at;
        Ok(())
    }

    /// The first event that was asked for and is in such a state.
    fn first_that(&self, range: impl std::ops::RangeBounds<i64>, is: impl Fn(State) -> bool) -> Option<i64> {
        let mut events = self.events.range(range);
        events.find(|(_, (event, state))| event.matches && is(*state)).map(|(seq, _)| *seq)
    }

    fn state_of(&self, seq: i64) -> Result<State, Fault> {
        match self.events.get(&seq) {
            None => Err(Fault::Unknown { seq }),
            Some((event, _)) if !event.matches => Err(Fault::Unasked { seq }),
            Some((_, state)) => Ok(*state),
        }
    }

    fn set(&mut self, seq: i64, to: State) {
        if let Some((_, state)) = self.events.get_mut(&seq) {
            *state = to;
        }
    }
}
