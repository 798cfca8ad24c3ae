//! Does the log keep its promises? Compares what writers did with what a reader saw.
//!
//! Checked are: numbers without holes or repeats; every committed event exactly once; nothing that was rolled
//! back and nothing that nobody appended; the events of a transaction together and in append order; a
//! transaction of unknown outcome whole or not at all; and order: if B began after the commit of A was
//! acknowledged, every event of A stands before every event of B.
//!
//! A checker that finds nothing proves nothing unless it is known to find faults: the tests break valid
//! histories in every way that has a variant here.

use std::collections::HashMap;
use std::fmt::{self, Display, Formatter};

use uuid::Uuid;

use crate::history::{Outcome, Record};

#[cfg(test)]
mod tests;

/// A broken promise. Attempts are named by their place in the history.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Violation {
    /// Numbers are missing.
    Hole {
        /// The first missing number.
        from: i64,
        /// The last missing number.
        to: i64,
    },
    /// A number came again, or a smaller one after a larger.
    NotAscending {
        /// The number.
        seq: i64,
        /// What should have come at the earliest.
        expected: i64,
    },
    /// An event is in the log twice.
    Doubled {
        /// The event.
        id: Uuid,
        /// Its first number.
        first: i64,
        /// A later one.
        again: i64,
    },
    /// A committed event is not in the log.
    Lost {
        /// The event.
        id: Uuid,
        /// Whose it is.
        attempt: usize,
    },
    /// An event of a rolled back transaction is in the log.
    Ghost {
        /// The event.
        id: Uuid,
        /// Its number.
        seq: i64,
        /// Whose it is.
        attempt: usize,
    },
    /// Nobody appended this event.
    Stranger {
        /// The event.
        id: Uuid,
        /// Its number.
        seq: i64,
    },
    /// Only some events of a transaction of unknown outcome are there.
    Torn {
        /// Whose they are.
        attempt: usize,
        /// How many are there.
        seen: usize,
        /// How many it appended.
        appended: usize,
    },
    /// The events of a transaction are apart, or not in append order.
    Scattered {
        /// Whose they are.
        attempt: usize,
        /// Their numbers, in append order.
        seqs: Vec<i64>,
    },
    /// A transaction that began later has the smaller numbers.
    Reversed {
        /// Was acknowledged before the other began.
        earlier: usize,
        /// Its last number.
        earlier_seq: i64,
        /// Began later.
        later: usize,
        /// Its first number.
        later_seq: i64,
    },
    /// Two attempts claim the same event, so the history cannot be judged.
    ClaimedTwice {
        /// The event.
        id: Uuid,
        /// The first that claims it.
        first: usize,
        /// Another one.
        again: usize,
    },
    /// A writer did not report how its transaction ended, so the history cannot be judged.
    Unfinished {
        /// The transaction.
        attempt: usize,
    },
}

impl Display for Violation {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Violation::Hole { from, to } if from == to => write!(f, "number {from} is missing"),
            Violation::Hole { from, to } => write!(f, "numbers {from} to {to} are missing"),
            Violation::NotAscending { seq, expected } => {
                write!(f, "number {seq} came where {expected} or more was due")
            }
            Violation::Doubled { id, first, again } => {
                write!(f, "event {id} is in the log twice, as {first} and as {again}")
            }
            Violation::Lost { id, attempt } => {
                write!(f, "event {id} of attempt {attempt} was committed and is not in the log")
            }
            Violation::Ghost { id, seq, attempt } => {
                write!(f, "event {id} of attempt {attempt} was rolled back and is in the log as {seq}")
            }
            Violation::Stranger { id, seq } => {
                write!(f, "event {id} is in the log as {seq}, and nobody appended it")
            }
            Violation::Torn { attempt, seen, appended } => {
                write!(f, "only {seen} of the {appended} events of attempt {attempt} are in the log")
            }
            Violation::Scattered { attempt, seqs } => {
                write!(f, "the events of attempt {attempt} are apart or out of order: {seqs:?}")
            }
            Violation::Reversed { earlier, earlier_seq, later, later_seq } => write!(
                f,
                "attempt {later} began after attempt {earlier} was acknowledged, but has number {later_seq} \
                 before its {earlier_seq}"
            ),
            Violation::ClaimedTwice { id, first, again } => {
                write!(f, "attempts {first} and {again} both claim event {id}")
            }
            Violation::Unfinished { attempt } => {
                write!(f, "attempt {attempt} has no outcome; report one, if need be `unknown`")
            }
        }
    }
}

/// What a history that passed consists of.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary {
    /// Transactions whose commit was acknowledged.
    pub committed: usize,
    /// Transactions that were rolled back.
    pub rolled_back: usize,
    /// Transactions of unknown outcome.
    pub unknown: usize,
    /// Those of them whose events are in the log.
    pub unknown_present: usize,
    /// Events in the log.
    pub events: usize,
}

/// Checks what was observed, in the order of observation, against the history of all writers. The first number
/// that was due is `first_expected`.
///
/// # Errors
///
/// Everything that is wrong, not only the first fault.
pub fn check(
    history: &[Record],
    observed: &[(i64, Uuid)],
    first_expected: i64,
) -> Result<Summary, Vec<Violation>> {
    let mut violations = Vec::new();
    check_numbers(observed, first_expected, &mut violations);
    let places = place_events(observed, &mut violations);
    check_owners(history, observed, &mut violations);
    let spans: Vec<Span> = history
        .iter()
        .enumerate()
        .filter_map(|(attempt, record)| check_attempt(attempt, record, &places, &mut violations))
        .collect();
    check_order(&spans, &mut violations);
    if violations.is_empty() { Ok(summarize(history, &spans, observed.len())) } else { Err(violations) }
}

/// An attempt that is in the log: when it ran and between which numbers it stands.
struct Span {
    attempt: usize,
    began: u64,
    /// Only for a commit that was acknowledged.
    acknowledged: Option<u64>,
    first: i64,
    last: i64,
}

fn check_numbers(observed: &[(i64, Uuid)], first_expected: i64, violations: &mut Vec<Violation>) {
    let mut expected = first_expected;
    for &(seq, _) in observed {
        if seq < expected {
            violations.push(Violation::NotAscending { seq, expected });
            continue;
        }
        if seq > expected {
            violations.push(Violation::Hole { from: expected, to: seq - 1 });
        }
        expected = seq + 1;
    }
}

/// Where each event stands, the first time.
fn place_events(observed: &[(i64, Uuid)], violations: &mut Vec<Violation>) -> HashMap<Uuid, i64> {
    let mut places = HashMap::with_capacity(observed.len());
    for &(seq, id) in observed {
        let first = *places.entry(id).or_insert(seq);
        if first != seq {
            violations.push(Violation::Doubled { id, first, again: seq });
        }
    }
    places
}

fn check_owners(history: &[Record], observed: &[(i64, Uuid)], violations: &mut Vec<Violation>) {
    let mut owners = HashMap::new();
    for (attempt, record) in history.iter().enumerate() {
        for &id in &record.ids {
            if let Some(first) = owners.insert(id, attempt) {
                violations.push(Violation::ClaimedTwice { id, first, again: attempt });
            }
        }
    }
    let strangers = observed.iter().filter(|(_, id)| !owners.contains_key(id));
    violations.extend(strangers.map(|&(seq, id)| Violation::Stranger { id, seq }));
}

/// Checks one attempt by itself; gives its span if it is in the log.
fn check_attempt(
    attempt: usize,
    record: &Record,
    places: &HashMap<Uuid, i64>,
    violations: &mut Vec<Violation>,
) -> Option<Span> {
    let seqs: Vec<i64> = record.ids.iter().filter_map(|id| places.get(id).copied()).collect();
    match record.outcome {
        Outcome::Unfinished => violations.push(Violation::Unfinished { attempt }),
        Outcome::Committed => {
            let lost = record.ids.iter().filter(|id| !places.contains_key(id));
            violations.extend(lost.map(|&id| Violation::Lost { id, attempt }));
        }
        Outcome::RolledBack => {
            let ghosts = record.ids.iter().filter_map(|id| Some((*id, *places.get(id)?)));
            violations.extend(ghosts.map(|(id, seq)| Violation::Ghost { id, seq, attempt }));
            return None;
        }
        Outcome::Unknown => {
            if !seqs.is_empty() && seqs.len() < record.ids.len() {
                let (seen, appended) = (seqs.len(), record.ids.len());
                violations.push(Violation::Torn { attempt, seen, appended });
            }
        }
    }
    let (first, last) = (*seqs.iter().min()?, *seqs.iter().max()?);
    if seqs.len() == record.ids.len() && seqs.windows(2).any(|pair| pair[1] != pair[0] + 1) {
        violations.push(Violation::Scattered { attempt, seqs });
    }
    let acknowledged = (record.outcome == Outcome::Committed).then_some(record.ended);
    Some(Span { attempt, began: record.began, acknowledged, first, last })
}

/// One sweep over time: whatever begins must stand behind the highest number acknowledged until then.
fn check_order(spans: &[Span], violations: &mut Vec<Violation>) {
    let mut by_beginning: Vec<&Span> = spans.iter().collect();
    by_beginning.sort_by_key(|span| span.began);
    let mut by_end: Vec<(u64, &Span)> =
        spans.iter().filter_map(|span| Some((span.acknowledged?, span))).collect();
    by_end.sort_by_key(|(ended, _)| *ended);

    let mut acknowledged = by_end.into_iter().peekable();
    let mut highest: Option<&Span> = None;
    for later in by_beginning {
        while let Some((_, span)) = acknowledged.next_if(|(ended, _)| *ended < later.began) {
            if highest.is_none_or(|known| known.last < span.last) {
                highest = Some(span);
            }
        }
        if let Some(earlier) = highest.filter(|earlier| earlier.last > later.first) {
            violations.push(Violation::Reversed {
                earlier: earlier.attempt,
                earlier_seq: earlier.last,
                later: later.attempt,
                later_seq: later.first,
            });
        }
    }
}

fn summarize(history: &[Record], spans: &[Span], events: usize) -> Summary {
    let count = |outcome| history.iter().filter(|record| record.outcome == outcome).count();
    Summary {
        committed: count(Outcome::Committed),
        rolled_back: count(Outcome::RolledBack),
        unknown: count(Outcome::Unknown),
        unknown_present: spans.iter().filter(|span| span.acknowledged.is_none()).count(),
        events,
    }
}
