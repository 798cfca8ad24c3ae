//! What was promised, held against what is there.

use std::collections::{HashMap, HashSet};

use uuid::Uuid;

use super::Fault;
use crate::check::{self, Summary, Violation};
use crate::consumption::{self, Logged, Step};
use crate::history::{Outcome, Record};

/// What an observer was given, in order.
pub(super) struct Given {
    pub(super) observer: &'static str,
    pub(super) events: Vec<(i64, Uuid)>,
}

/// What a consumer has done: its effects in their order, and where its cursor is.
pub(super) struct Handled {
    pub(super) effects: Vec<(i64, Uuid)>,
    pub(super) cursor: i64,
}

/// After a recovery, while everybody goes on: `records` and `given` are older than `log`. `staged` are those that have no number yet.
pub(super) fn after_recovery(
    records: &[Record],
    given: &[Given],
    log: &[(i64, Uuid)],
    staged: &HashSet<Uuid>,
) -> Vec<Fault> {
    let ids: HashSet<Uuid> = log.iter().map(|(_, id)| *id).collect();
    let acknowledged = records.iter().filter(|record| record.outcome == Outcome::Committed);
    let mut faults: Vec<Fault> = acknowledged
        .flat_map(|record| &record.ids)
        .filter(|id| !ids.contains(id) && !staged.contains(id))
        .map(|id| Fault::Lost { id: *id })
        .collect();
    faults.extend(given.iter().flat_map(|given| vanished(given, log)));
    for ((seq, _), due) in log.iter().zip(1..) {
        if *seq != due {
            faults.push(Fault::Log(Violation::Hole { from: due, to: seq - 1 }));
            break;
        }
    }
    faults
}

/// In the end, when everybody has come to the head and stopped.
pub(super) fn in_the_end(
    records: &[Record],
    given: &[Given],
    handled: Option<&Handled>,
    log: &[(i64, Uuid)],
) -> Result<Summary, Vec<Fault>> {
    let mut faults = Vec::new();
    let summary = check::check(records, log, 1).unwrap_or_else(|violations| {
        faults.extend(violations.into_iter().map(Fault::Log));
        Summary::default()
    });
    for given in given {
        faults.extend(vanished(given, log));
        faults.extend(not_given(given, log));
    }
    if let Some(handled) = handled {
        faults.extend(of_consumer(handled, log));
    }
    if faults.is_empty() { Ok(summary) } else { Err(faults) }
}

fn vanished(given: &Given, log: &[(i64, Uuid)]) -> Vec<Fault> {
    let places: HashMap<i64, Uuid> = log.iter().copied().collect();
    let gone = given.events.iter().filter(|(seq, id)| places.get(seq) != Some(id));
    gone.map(|(seq, id)| Fault::Vanished {
        observer: given.observer,
        seq: *seq,
        id: *id,
        now: places.get(seq).copied(),
    })
    .collect()
}

/// Each number once, from 1 to the head.
fn not_given(given: &Given, log: &[(i64, Uuid)]) -> Option<Fault> {
    let due = 1..=log.last().map_or(0, |(seq, _)| *seq);
    let mut seqs = given.events.iter().map(|(seq, _)| *seq);
    let missing = due.clone().find(|due| seqs.next() != Some(*due));
    let missing = missing.or_else(|| seqs.next());
    missing.map(|seq| Fault::NotGiven { observer: given.observer, seq })
}

fn of_consumer(handled: &Handled, log: &[(i64, Uuid)]) -> Option<Fault> {
    let places: HashMap<i64, Uuid> = log.iter().copied().collect();
    if let Some((seq, _)) = handled.effects.iter().find(|(seq, id)| places.get(seq) != Some(id)) {
        return Some(Fault::HandledOther { seq: *seq });
    }
    let head = log.last().map_or(0, |(seq, _)| *seq);
    // All of one key: in the order of the log.
    let key = Some("all".to_owned());
    let logged: Vec<Logged> =
        log.iter().map(|(seq, _)| Logged { seq: *seq, key: key.clone(), matches: true }).collect();
    let mut steps: Vec<Step> = handled.effects.iter().map(|(seq, _)| Step::Handled { seq: *seq }).collect();
    steps.push(Step::Stands { lane: 0, at: handled.cursor, head });
    consumption::check(&logged, &steps).err().map(Fault::Handled)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::History;

    /// Three events, all acknowledged, in the log, and given to an observer and a consumer.
    struct Case {
        records: Vec<Record>,
        given: Vec<Given>,
        handled: Handled,
        log: Vec<(i64, Uuid)>,
    }

    fn case() -> Case {
        let history = History::new();
        let log: Vec<(i64, Uuid)> = (1..=3).map(|seq| (seq, Uuid::now_v7())).collect();
        for (_, id) in &log {
            history.begin().committed([*id]);
        }
        Case {
            records: history.snapshot(),
            given: vec![Given { observer: "reader", events: log.clone() }],
            handled: Handled { effects: log.clone(), cursor: 3 },
            log,
        }
    }

    impl Case {
        fn recovered(&self) -> Vec<Fault> {
            after_recovery(&self.records, &self.given, &self.log, &HashSet::new())
        }

        fn ended(&self) -> Vec<Fault> {
            in_the_end(&self.records, &self.given, Some(&self.handled), &self.log).err().unwrap_or_default()
        }
    }

    #[test]
    fn what_is_as_promised_is_no_fault() {
        let case = case();
        assert_eq!((case.recovered(), case.ended()), (vec![], vec![]));
    }

    #[test]
    fn an_acknowledged_event_that_is_gone_is_found() {
        let mut case = case();
        let (_, id) = case.log.pop().unwrap();
        case.given.clear();
        assert_eq!(case.recovered(), [Fault::Lost { id }]);
        let staged = HashSet::from([id]);
        assert_eq!(after_recovery(&case.records, &case.given, &case.log, &staged), []);
        assert!(matches!(case.ended()[..], [Fault::Log(Violation::Lost { .. }), ..]));
    }

    #[test]
    fn a_number_that_was_given_and_has_changed_is_found() {
        let mut case = case();
        case.records.pop();
        let (seq, id) = case.log.pop().unwrap();
        let fault = |now| Fault::Vanished { observer: "reader", seq, id, now };
        assert_eq!(case.recovered(), [fault(None)]);
        let other = Uuid::now_v7();
        case.log.push((seq, other));
        assert_eq!(case.recovered(), [fault(Some(other))]);
        assert!(case.ended().contains(&fault(Some(other))));
    }

    #[test]
    fn a_hole_is_found() {
        let mut case = case();
        case.records.remove(1);
        case.given.clear();
        case.log.remove(1);
        assert_eq!(case.recovered(), [Fault::Log(Violation::Hole { from: 2, to: 2 })]);
    }

    #[test]
    fn what_an_observer_missed_or_got_twice_is_found() {
        let mut missed = case();
        missed.given[0].events.remove(1);
        assert_eq!(missed.ended(), [Fault::NotGiven { observer: "reader", seq: 2 }]);
        let mut twice = case();
        let last = twice.log[2];
        twice.given[0].events.push(last);
        assert_eq!(twice.ended(), [Fault::NotGiven { observer: "reader", seq: 3 }]);
    }

    #[test]
    fn what_a_consumer_missed_doubled_or_confused_is_found() {
        let mut missed = case();
        missed.handled.effects.pop();
        assert!(matches!(missed.ended()[..], [Fault::Handled(_)]));
        let mut twice = case();
        let last = twice.log[2];
        twice.handled.effects.push(last);
        assert!(matches!(twice.ended()[..], [Fault::Handled(_)]));
        let mut other = case();
        other.handled.effects[2].1 = Uuid::now_v7();
        assert_eq!(other.ended(), [Fault::HandledOther { seq: 3 }]);
    }
}
