//! The checker passes what is right and finds what is wrong.

use proptest::prelude::*;

use super::*;

fn handled(seq: i64) -> Step {
    Step::Handled { seq }
}

fn parked(seq: i64) -> Step {
    Step::Parked { seq }
}

fn discarded(seq: i64) -> Step {
    Step::Discarded { seq }
}

fn skipped(seq: i64) -> Step {
    Step::Skipped { seq }
}

fn rewound(to: i64) -> Step {
    Step::Rewound { to }
}

fn stands(lane: i32, at: i64) -> Step {
    Step::Stands { lane, at, head: 6 }
}

/// Odd ones have the key a, even ones b; 5 stands alone, and nobody asked for 6.
fn log() -> Vec<Logged> {
    let key = |seq| match seq {
        5 => None,
        seq if seq % 2 == 1 => Some("a".to_owned()),
        _ => Some("b".to_owned()),
    };
    (1..=6).map(|seq| Logged { seq, key: key(seq), matches: seq != 6 }).collect()
}

#[test]
fn what_is_right_passes_and_is_counted() {
    let all = [1, 2, 3, 4, 5].map(handled);
    check(&log(), &all).unwrap();
    check(&log(), &[5, 2, 1, 4, 3].map(handled)).unwrap();
    let steps = [
        stands(0, 0),
        stands(1, 0),
        skipped(2),
        parked(1),
        stands(0, 2),
        handled(5),
        parked(3),
        stands(0, 6),
        handled(4),
        stands(1, 6),
        discarded(1),
        handled(3),
        // Too late.
        skipped(3),
        Step::Gone { lane: 1 },
        stands(0, 3),
        rewound(4),
        handled(4),
        handled(5),
        stands(0, 6),
    ];
    let expected = Tally { handled: 5, parked: 2, discarded: 1, skipped: 1, rewinds: 1, lanes: 2 };
    assert_eq!(check(&log(), &steps), Ok(expected));
}

#[test]
fn each_fault_is_named() {
    let begin = |steps: &[Step]| steps.to_vec();
    let cases: [(Vec<Step>, usize, Fault); 17] = [
        (begin(&[handled(7)]), 0, Fault::Unknown { seq: 7 }),
        (begin(&[parked(0)]), 0, Fault::Unknown { seq: 0 }),
        (begin(&[handled(6)]), 0, Fault::Unasked { seq: 6 }),
        (begin(&[parked(6)]), 0, Fault::Unasked { seq: 6 }),
        (begin(&[handled(1), handled(1)]), 1, Fault::Doubled { seq: 1 }),
        (begin(&[handled(1), rewound(2), handled(1)]), 2, Fault::Doubled { seq: 1 }),
        (begin(&[handled(3)]), 0, Fault::OutOfOrder { seq: 3, before: 1 }),
        (begin(&[parked(1), handled(3)]), 1, Fault::OutOfOrder { seq: 3, before: 1 }),
        (begin(&[parked(1), parked(3), handled(3)]), 2, Fault::OutOfOrder { seq: 3, before: 1 }),
        (begin(&[parked(1), discarded(1), handled(1)]), 2, Fault::GivenUp { seq: 1 }),
        (begin(&[skipped(1), handled(1)]), 1, Fault::GivenUp { seq: 1 }),
        (begin(&[handled(1), parked(1)]), 1, Fault::ParkedAgain { seq: 1 }),
        (begin(&[parked(1), parked(1)]), 1, Fault::ParkedAgain { seq: 1 }),
        (begin(&[discarded(1)]), 0, Fault::NotParked { seq: 1 }),
        (begin(&[stands(0, 7)]), 0, Fault::AboveHead { lane: 0, at: 7, head: 6 }),
        (begin(&[handled(1), stands(0, 3), handled(2)]), 1, Fault::Passed { seq: 2, at: 3 }),
        (begin(&[handled(1), handled(2)]), 2, Fault::Left { seq: 3 }),
    ];
    for (steps, step, fault) in cases {
        assert_eq!(check(&log(), &steps), Err(Misstep { step, fault }), "{steps:?}");
    }
}

#[test]
fn one_lane_that_is_behind_keeps_what_is_open_from_being_passed() {
    let steps = |last| [stands(0, 0), stands(1, 0), handled(1), stands(0, 3), last];
    let misstep = Misstep { step: 4, fault: Fault::Passed { seq: 2, at: 3 } };
    assert_eq!(check(&log(), &steps(stands(1, 3))), Err(misstep));
    assert_eq!(check(&log(), &steps(Step::Gone { lane: 1 })), Err(misstep));
    let still_right = Misstep { step: 5, fault: Fault::Left { seq: 2 } };
    assert_eq!(check(&log(), &steps(stands(1, 1))), Err(still_right));
}

#[test]
fn after_a_rewind_everything_from_there_on_has_to_come_again() {
    let all = [1, 2, 3, 4, 5].map(handled).to_vec();
    let again =
        |rest: &[Step]| check(&log(), &[&all[..], &[stands(0, 6), stands(0, 2), rewound(3)], rest].concat());
    assert_eq!(again(&[]).unwrap_err().fault, Fault::Left { seq: 3 });
    assert_eq!(again(&[handled(4), stands(0, 6)]).unwrap_err().fault, Fault::Passed { seq: 3, at: 6 });
    assert_eq!(again(&[handled(3), handled(4), handled(5), stands(0, 6)]).map(|tally| tally.handled), Ok(8));
    // What was given up is so no more.
    let given_up = [skipped(4), handled(1), handled(2), handled(3), handled(5), rewound(3), handled(3)];
    assert_eq!(check(&log(), &given_up).unwrap_err().fault, Fault::Left { seq: 4 });
}

proptest! {
    /// A history of one lane that was right is wrong when one of its events is left out, doubled, or changes its place with a later one
    /// of its key.
    #[test]
    fn a_right_history_that_was_spoiled_is_found(
        keys in prop::collection::vec(0..4_u8, 2..40), at in any::<prop::sample::Index>(), spoil in 0..3_u8,
    ) {
        let log: Vec<Logged> =
            (1..).zip(&keys).map(|(seq, key)| Logged { seq, key: Some(key.to_string()), matches: true }).collect();
        let head = log.len() as i64;
        let mut seqs: Vec<i64> = (1..=head).collect();
        let steps = |seqs: &[i64]| -> Vec<Step> { seqs.iter().map(|seq| handled(*seq)).collect() };
        prop_assert_eq!(check(&log, &steps(&seqs)).unwrap().handled, keys.len());
        let at = at.index(keys.len());
        match spoil {
            0 => drop(seqs.remove(at)),
            1 => seqs.push(seqs[at]),
            _ => {
                let later = keys.iter().skip(at + 1).position(|key| *key == keys[at]);
                prop_assume!(later.is_some());
                seqs.swap(at, at + 1 + later.unwrap());
            }
        }
        prop_assert!(check(&log, &steps(&seqs)).is_err());
    }
}
