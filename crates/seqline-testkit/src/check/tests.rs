//! The checker passes what is right and finds what is wrong.

use proptest::prelude::*;
use proptest::sample::Index;

use super::*;
use Outcome::{Committed, RolledBack, Unfinished, Unknown};

fn id(n: u128) -> Uuid {
    Uuid::from_u128(n)
}

fn record(began: u64, ended: u64, outcome: Outcome, ids: &[u128]) -> Record {
    Record { began, ended, outcome, ids: ids.iter().map(|n| id(*n)).collect() }
}

fn log(ids: &[u128]) -> Vec<(i64, Uuid)> {
    (1..).zip(ids.iter().map(|n| id(*n))).collect()
}

#[test]
fn a_right_history_passes_and_is_counted() {
    let history = [
        record(1, 4, Committed, &[1, 2]),
        record(2, 3, RolledBack, &[3]),
        record(5, 6, Unknown, &[4]),
        record(7, 8, Unknown, &[5, 6]),
        record(9, 10, Committed, &[]),
    ];
    let summary = check(&history, &log(&[1, 2, 5, 6]), 1).unwrap();
    let expected = Summary { committed: 2, rolled_back: 1, unknown: 2, unknown_present: 1, events: 4 };
    assert_eq!(summary, expected);
}

#[test]
fn attempts_that_overlap_may_stand_in_either_order() {
    let history = [record(1, 3, Committed, &[1]), record(2, 4, Committed, &[2])];
    check(&history, &log(&[1, 2]), 1).unwrap();
    check(&history, &log(&[2, 1]), 1).unwrap();
}

/// An unknown commit may take effect long after its writer gave up.
#[test]
fn an_unknown_attempt_binds_nobody_that_began_later() {
    let history = [record(1, 2, Unknown, &[1]), record(3, 4, Committed, &[2])];
    check(&history, &log(&[2, 1]), 1).unwrap();
}

#[test]
fn the_log_need_not_begin_at_one() {
    let history = [record(1, 2, Committed, &[1])];
    check(&history, &[(1001, id(1))], 1001).unwrap();
    assert!(check(&history, &[(1001, id(1))], 1).is_err());
}

/// A history, what was observed, and what must be said about it.
type Case<'a> = (&'a [Record], Vec<(i64, Uuid)>, &'a str);

#[test]
fn each_fault_is_named() {
    let one = [record(1, 2, Committed, &[1])];
    let two = [record(1, 2, Committed, &[1]), record(3, 4, Committed, &[2])];
    let pair = [record(1, 2, Committed, &[1, 2])];
    let unknown = [record(1, 2, Unknown, &[1, 2])];
    let cases: [Case<'_>; 13] = [
        (&two, vec![(1, id(1)), (3, id(2))], "number 2 is missing"),
        (&two, vec![(1, id(1)), (5, id(2))], "numbers 2 to 4 are missing"),
        (&one, vec![(1, id(1)), (1, id(1))], "number 1 came where 2 or more was due"),
        (&one, log(&[1, 1]), "is in the log twice, as 1 and as 2"),
        (&one, log(&[]), "of attempt 0 was committed and is not in the log"),
        (&[record(1, 2, RolledBack, &[1])], log(&[1]), "of attempt 0 was rolled back and is in the log as 1"),
        (&[], log(&[1]), "nobody appended it"),
        (&unknown, log(&[2]), "only 1 of the 2 events of attempt 0 are in the log"),
        (&pair, log(&[2, 1]), "the events of attempt 0 are apart or out of order: [2, 1]"),
        (&unknown, log(&[2, 1]), "the events of attempt 0 are apart or out of order: [2, 1]"),
        (
            &two,
            log(&[2, 1]),
            "attempt 1 began after attempt 0 was acknowledged, but has number 1 before its 2",
        ),
        (&[one[0].clone(), one[0].clone()], log(&[1]), "attempts 0 and 1 both claim event"),
        (&[record(1, u64::MAX, Unfinished, &[])], log(&[]), "attempt 0 has no outcome"),
    ];
    for (history, observed, expected) in cases {
        let violations = check(history, &observed, 1).unwrap_err();
        let texts: Vec<String> = violations.iter().map(Violation::to_string).collect();
        assert!(texts.iter().any(|text| text.contains(expected)), "{expected:?} is not in {texts:?}");
    }
}

/// A later attempt is compared with all that were acknowledged before it, not only with the last.
#[test]
fn order_is_checked_across_many_attempts() {
    let history = [
        record(1, 2, Committed, &[1]),
        record(3, 10, Committed, &[2]),
        record(4, 5, Committed, &[3]),
        record(11, 12, Committed, &[4]),
    ];
    check(&history, &log(&[1, 3, 2, 4]), 1).unwrap();
    let violations = check(&history, &log(&[1, 3, 4, 2]), 1).unwrap_err();
    assert_eq!(violations, [Violation::Reversed { earlier: 1, earlier_seq: 4, later: 3, later_seq: 3 }]);
}

/// A history and the log it left, made as a correct database makes it: every attempt takes effect, or does not,
/// at one moment between its beginning and its end.
#[derive(Debug, Clone)]
struct World {
    history: Vec<Record>,
    observed: Vec<(i64, Uuid)>,
}

/// Per attempt: three different moments, the outcome, whether an unknown one took effect, and how many events.
fn world() -> impl Strategy<Value = World> {
    let attempt = (proptest::array::uniform3(0_u64..1000), 0..4_u8, any::<bool>(), 0..5_usize);
    proptest::collection::vec(attempt, 1..30).prop_map(|plans| {
        let mut next_id = 0;
        let mut effects = Vec::new();
        let mut history = Vec::new();
        for (number, (mut moments, outcome, took_effect, events)) in plans.into_iter().enumerate() {
            moments.sort_unstable();
            // Different moments for everything: the place in the list decides between equal draws.
            let at = |step: usize| (moments[step] * 100 + number as u64) * 3 + step as u64;
            let ids: Vec<u128> = (0..events).map(|n| next_id + n as u128).collect();
            next_id += events as u128;
            let outcome = [Committed, Committed, RolledBack, Unknown][usize::from(outcome)];
            if outcome == Committed || (outcome == Unknown && took_effect) {
                effects.push((at(1), ids.clone()));
            }
            history.push(record(at(0), at(2), outcome, &ids));
        }
        effects.sort();
        let ids: Vec<u128> = effects.into_iter().flat_map(|(_, ids)| ids).collect();
        World { history, observed: log(&ids) }
    })
}

/// Two transactions of which one began after the other was acknowledged.
fn pair_in_order(world: &World) -> Option<(usize, usize)> {
    let present = |record: &Record| record.outcome == Committed && !record.ids.is_empty();
    let indices = 0..world.history.len();
    indices.clone().flat_map(|a| indices.clone().map(move |b| (a, b))).find(|&(a, b)| {
        let (a, b) = (&world.history[a], &world.history[b]);
        present(a) && present(b) && a.ended < b.began
    })
}

fn renumber(observed: &mut [(i64, Uuid)]) {
    for (seq, event) in (1..).zip(observed) {
        event.0 = seq;
    }
}

proptest! {
    #[test]
    fn every_valid_history_passes(world in world()) {
        let summary = check(&world.history, &world.observed, 1).unwrap();
        prop_assert_eq!(summary.events, world.observed.len());
    }

    #[test]
    fn a_lost_event_is_found(world in world(), which: Index) {
        let committed: Vec<Uuid> = world.history.iter()
            .filter(|record| record.outcome == Committed)
            .flat_map(|record| record.ids.clone())
            .collect();
        prop_assume!(!committed.is_empty());
        let lost = committed[which.index(committed.len())];
        let mut observed = world.observed;
        observed.retain(|(_, id)| *id != lost);
        renumber(&mut observed);
        let violations = check(&world.history, &observed, 1).unwrap_err();
        let only_that = matches!(violations[..], [Violation::Lost { id, .. }] if id == lost);
        prop_assert!(only_that);
    }

    #[test]
    fn a_hole_is_found(world in world(), at: Index) {
        prop_assume!(!world.observed.is_empty());
        let mut observed = world.observed;
        let at = at.index(observed.len());
        observed[at..].iter_mut().for_each(|event| event.0 += 1);
        let hole = Violation::Hole { from: at as i64 + 1, to: at as i64 + 1 };
        let violations = check(&world.history, &observed, 1).unwrap_err();
        prop_assert!(violations.contains(&hole));
    }

    #[test]
    fn a_repeated_event_is_found(world in world(), at: Index, renumbered: bool) {
        prop_assume!(!world.observed.is_empty());
        let mut observed = world.observed;
        let at = at.index(observed.len());
        observed.insert(at, observed[at]);
        if renumbered {
            renumber(&mut observed);
        }
        prop_assert!(check(&world.history, &observed, 1).is_err());
    }

    #[test]
    fn a_stranger_is_found(world in world(), at: Index) {
        let mut observed = world.observed;
        observed.insert(at.index(observed.len() + 1), (0, id(u128::MAX)));
        renumber(&mut observed);
        let violations = check(&world.history, &observed, 1).unwrap_err();
        let found = violations.iter().any(|it| matches!(it, Violation::Stranger { .. }));
        prop_assert!(found);
    }

    #[test]
    fn a_ghost_is_found(mut world in world(), which: Index) {
        let present: Vec<usize> = (0..world.history.len())
            .filter(|n| world.history[*n].outcome == Committed && !world.history[*n].ids.is_empty())
            .collect();
        prop_assume!(!present.is_empty());
        let attempt = present[which.index(present.len())];
        world.history[attempt].outcome = RolledBack;
        let violations = check(&world.history, &world.observed, 1).unwrap_err();
        let all_ghosts = violations.iter().all(|it| matches!(it, Violation::Ghost { .. }));
        prop_assert!(all_ghosts);
        prop_assert_eq!(violations.len(), world.history[attempt].ids.len());
    }

    #[test]
    fn a_torn_attempt_is_found(mut world in world(), which: Index) {
        let long: Vec<usize> = (0..world.history.len())
            .filter(|n| world.history[*n].outcome == Committed && world.history[*n].ids.len() > 1)
            .collect();
        prop_assume!(!long.is_empty());
        let attempt = long[which.index(long.len())];
        world.history[attempt].outcome = Unknown;
        let lost = world.history[attempt].ids[0];
        world.observed.retain(|(_, id)| *id != lost);
        renumber(&mut world.observed);
        let violations = check(&world.history, &world.observed, 1).unwrap_err();
        let torn = violations.iter().any(|it| matches!(it, Violation::Torn { attempt: n, .. } if *n == attempt));
        prop_assert!(torn);
    }

    #[test]
    fn append_order_that_is_not_kept_is_found(mut world in world(), which: Index) {
        let long: Vec<usize> =
            (0..world.history.len()).filter(|n| world.history[*n].ids.len() > 1).collect();
        prop_assume!(!long.is_empty());
        let attempt = long[which.index(long.len())];
        let places: HashMap<Uuid, i64> = world.observed.iter().map(|(seq, id)| (*id, *seq)).collect();
        prop_assume!(places.contains_key(&world.history[attempt].ids[0]));
        world.history[attempt].ids.swap(0, 1);
        let violations = check(&world.history, &world.observed, 1).unwrap_err();
        let only_that = matches!(violations[..], [Violation::Scattered { attempt: n, .. }] if n == attempt);
        prop_assert!(only_that);
    }

    #[test]
    fn a_reversed_order_is_found(world in world()) {
        let pair = pair_in_order(&world);
        prop_assume!(pair.is_some());
        let (earlier, later) = pair.unwrap();
        // The whole later attempt moves in front of everything.
        let ids = world.history[later].ids.clone();
        let (mut moved, rest): (Vec<_>, Vec<_>) =
            world.observed.into_iter().partition(|(_, id)| ids.contains(id));
        moved.extend(rest);
        renumber(&mut moved);
        let violations = check(&world.history, &moved, 1).unwrap_err();
        let reversed = violations.iter().any(|it| matches!(it, Violation::Reversed { later: n, .. } if *n == later));
        prop_assert!(reversed, "{} before {}: {:?}", earlier, later, violations);
    }
}
