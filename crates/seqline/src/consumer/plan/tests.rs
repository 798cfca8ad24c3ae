use proptest::prelude::*;

use super::check::{check, check_bytes, check_scan};
use super::*;

const MIN: i64 = i64::MIN;
const MAX: i64 = i64::MAX;

fn to(new_last_seq: i64) -> Result<RoundPlan, PlanError> {
    Ok(RoundPlan { new_last_seq, lost: None })
}

fn over(from: i64, to: i64, new_last_seq: i64) -> Result<RoundPlan, PlanError> {
    Ok(RoundPlan { new_last_seq, lost: Some(LostRange { from, to }) })
}

fn gap(expected: i64, found: i64) -> Result<RoundPlan, PlanError> {
    Err(PlanError::Gap(GapError { expected, found }))
}

/// What it is, the cursor, the numbers read, the lowest one retained, and the plan.
type Case = (&'static str, i64, &'static [i64], Option<i64>, Result<RoundPlan, PlanError>);

#[test]
fn a_round_goes_on_where_the_cursor_stands_or_where_retention_has_left_something() {
    let cases: &[Case] = &[
        ("contiguous", 3, &[4, 5, 6], None, to(6)),
        ("the first of a log", 0, &[1, 2], None, to(2)),
        ("a single one", 3, &[4], None, to(4)),
        ("contiguous, whatever is retained", 3, &[4, 5], Some(1), to(5)),
        ("contiguous at the lower end of the log", 3, &[4, 5], Some(4), to(5)),
        ("contiguous, and what is retained is beside the point", 3, &[4, 5], Some(9), to(5)),
        ("retention loss", 3, &[10, 11], Some(10), over(4, 9, 11)),
        ("retention loss of one", 3, &[5], Some(5), over(4, 4, 5)),
        ("claimed loss with another first number", 3, &[11, 12], Some(10), gap(4, 11)),
        ("claimed loss with a lower first number", 3, &[9, 10], Some(10), gap(4, 9)),
        ("a jump that nothing explains", 3, &[5, 6], Some(1), gap(4, 5)),
        ("a jump although the next is retained", 3, &[5, 6], Some(4), gap(4, 5)),
        ("a jump and nobody has looked", 3, &[5, 6], None, gap(4, 5)),
        ("a hole inside", 3, &[4, 6], None, gap(5, 6)),
        ("a hole inside that retention seems to explain", 3, &[4, 6], Some(6), gap(5, 6)),
        ("a hole behind a loss", 3, &[10, 12], Some(10), gap(11, 12)),
        ("a hole at the end", 0, &[1, 2, 3, 5], None, gap(4, 5)),
        ("nothing", 3, &[], None, Err(PlanError::Empty)),
        ("nothing, whatever is retained", 3, &[], Some(9), Err(PlanError::Empty)),
        ("descending", 3, &[4, 3], None, gap(5, 3)),
        ("twice the same", 3, &[4, 4], None, gap(5, 4)),
        ("what was handled already", 3, &[3, 4], None, gap(4, 3)),
        ("what was handled already, as the lowest of the log", 3, &[2, 3], Some(2), gap(4, 2)),
        ("the last number there is", MAX - 1, &[MAX], None, to(MAX)),
        ("after the last number there is", MAX, &[MAX], Some(MAX), gap(MAX, MAX)),
        ("after the last number there is, from the beginning", MAX, &[MIN], Some(MIN), gap(MAX, MIN)),
        ("past the last number there is", MAX - 1, &[MAX, MIN], None, gap(MAX, MIN)),
        ("everything is lost but the last", 0, &[MAX], Some(MAX), over(1, MAX - 1, MAX)),
        ("from the first number there is", MIN, &[MIN + 1], None, to(MIN + 1)),
        ("the whole range is lost", MIN, &[MAX], Some(MAX), over(MIN + 1, MAX - 1, MAX)),
    ];
    for (what, last_seq, seqs, min_retained, expected) in cases {
        assert_eq!(plan_round(*last_seq, Scan::of_all(seqs), *min_retained), *expected, "{what}");
    }
}

#[test]
fn a_lost_range_counts_both_of_its_ends() {
    assert_eq!(LostRange { from: 4, to: 9 }.events(), 6);
    assert_eq!(LostRange { from: 4, to: 4 }.events(), 1);
    assert_eq!(LostRange { from: 1, to: MAX }.events(), MAX);
}

#[test]
fn a_scan_is_passed_as_a_whole_or_not_at_all() {
    let scan = |first, last, count, matching| Some(Scan { first, last, count, matching });
    type Case<'a> = (&'static str, i64, Option<Scan<'a>>, Result<RoundPlan, PlanError>);
    let cases: &[Case<'_>] = &[
        ("nothing matches", 3, scan(4, 1003, 1000, &[]), to(1003)),
        ("some match", 3, scan(4, 1003, 1000, &[4, 17, 1003]), to(1003)),
        ("up to the last that matches", 3, scan(4, 17, 14, &[5, 17]), to(17)),
        ("behind a loss", 3, scan(10, 19, 10, &[12]), over(4, 9, 19)),
        ("one is missing in between", 3, scan(4, 1003, 999, &[17]), gap(5, 1003)),
        ("one too many", 3, scan(4, 1003, 1001, &[17]), gap(5, 1003)),
        ("nothing was counted", 3, scan(4, 4, 0, &[]), gap(5, 4)),
        ("a match before what was looked at", 3, scan(4, 9, 6, &[3, 5]), gap(4, 5)),
        ("a match behind what was looked at", 3, scan(4, 9, 6, &[5, 10]), gap(6, 10)),
        ("matches descend", 3, scan(4, 9, 6, &[6, 5]), gap(7, 5)),
        ("a match twice", 3, scan(4, 9, 6, &[5, 5]), gap(6, 5)),
        ("it ends before it begins", 3, scan(4, 3, 0, &[]), gap(5, 3)),
        ("everything there is", MIN, scan(MIN + 1, MAX, MAX, &[]), gap(MIN + 2, MAX)),
    ];
    for (what, last_seq, scan, expected) in cases {
        assert_eq!(plan_round(*last_seq, *scan, Some(10)), *expected, "{what}");
    }
}

/// What fuzzing has begun with, and found.
#[test]
fn seeds_of_the_fuzzer_hold() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/plan_round");
    let mut seeds = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        check_bytes(&std::fs::read(entry.unwrap().path()).unwrap());
        seeds += 1;
    }
    assert!(seeds >= 5, "{seeds} seeds");
}

/// Numbers as logs have them, and now and then others.
fn some_seq() -> impl Strategy<Value = i64> {
    prop_oneof![4 => 0..20_i64, 1 => Just(MIN), 1 => MAX - 3..=MAX, 1 => any::<i64>()]
}

fn some_seqs() -> impl Strategy<Value = Vec<i64>> {
    let run = (some_seq(), 0..12_i64)
        .prop_map(|(first, length)| (0..length).map(|step| first.wrapping_add(step)).collect());
    prop_oneof![3 => run, 1 => prop::collection::vec(some_seq(), 0..6)]
}

/// A scan that is right, but for at most one thing: how many were counted, which match, where it begins.
#[derive(Debug, Clone, Copy)]
enum Spoiled {
    Nothing,
    Count(i64),
    Before,
    Behind,
    Descending,
    Twice,
    Begin(i64),
}

fn some_spoiled() -> impl Strategy<Value = Spoiled> {
    let off = || prop_oneof![-3..0_i64, 1..4_i64, Just(MIN), Just(MAX)];
    prop_oneof![
        3 => Just(Spoiled::Nothing),
        2 => off().prop_map(Spoiled::Count),
        1 => Just(Spoiled::Before),
        1 => Just(Spoiled::Behind),
        1 => Just(Spoiled::Descending),
        1 => Just(Spoiled::Twice),
        1 => off().prop_map(Spoiled::Begin),
    ]
}

proptest! {
    #[test]
    fn a_scan_with_one_fault_is_refused_and_one_without_is_passed(
        last_seq in prop_oneof![0..1000_i64, Just(MIN), MAX - 60..=MAX - 51],
        lost in prop_oneof![Just(0), 1..9_i64],
        length in 1..40_i64,
        matches in prop::collection::vec(any::<bool>(), 40),
        spoiled in some_spoiled(),
    ) {
        let mut first = last_seq + 1 + lost;
        let last = first + length - 1;
        let mut count = length;
        let mut matching: Vec<i64> = (first..=last).zip(matches).filter(|(_, m)| *m).map(|(seq, _)| seq).collect();
        let min_retained = (lost > 0).then_some(first);
        match spoiled {
            Spoiled::Nothing => {}
            Spoiled::Count(off) => count = count.saturating_add(off),
            Spoiled::Before => matching.insert(0, first - 1),
            Spoiled::Behind => matching.push(last + 1),
            Spoiled::Descending => {
                prop_assume!(matching.len() > 1);
                matching.reverse();
            }
            Spoiled::Twice => {
                prop_assume!(!matching.is_empty());
                matching.push(matching[matching.len() - 1]);
            }
            Spoiled::Begin(off) => {
                first = first.saturating_add(off);
                count = last.saturating_sub(first).saturating_add(1);
                matching.retain(|seq| *seq >= first);
            }
        }
        let plan = check_scan(last_seq, Some(Scan { first, last, count, matching: &matching }), min_retained);
        match spoiled {
            Spoiled::Nothing if lost == 0 => prop_assert_eq!(plan, to(last)),
            Spoiled::Nothing => prop_assert_eq!(plan, over(last_seq + 1, last_seq + lost, last)),
            // Another loss than retention explains, or one that it does, unless the scan begins at the cursor.
            Spoiled::Begin(off) if lost > 0 && off == -lost => prop_assert_eq!(plan, to(last)),
            _ => prop_assert!(matches!(plan, Err(PlanError::Gap(_))), "{:?}", plan),
        }
    }

    #[test]
    fn whatever_was_looked_at_is_passed_as_a_whole_or_not_at_all(
        last_seq in some_seq(), first in some_seq(), last in some_seq(), count in some_seq(), matching in some_seqs(),
        min_retained in prop::option::of(some_seq()),
    ) {
        // Whether it is right is looked at there.
        let _ = check_scan(last_seq, Some(Scan { first, last, count, matching: &matching }), min_retained);
        let count = last.saturating_sub(first).saturating_add(1);
        let _ = check_scan(first.saturating_sub(1), Some(Scan { first, last, count, matching: &matching }), min_retained);
    }

    #[test]
    fn a_plan_steps_over_nothing_but_what_retention_took(
        last_seq in some_seq(),
        seqs in some_seqs(),
        min_retained in prop::option::of(some_seq()),
    ) {
        check(last_seq, &seqs, min_retained);
    }

    #[test]
    fn what_matches_says_nothing_about_how_far_a_plan_goes(
        last_seq in 0..1000_i64, length in 1..50_i64, matches in prop::collection::vec(any::<bool>(), 50), counted in 0..60_i64,
    ) {
        let seqs: Vec<i64> = (last_seq + 1..=last_seq + length).zip(matches).filter(|(_, m)| *m).map(|(seq, _)| seq).collect();
        let scan = Scan { first: last_seq + 1, last: last_seq + length, count: counted, matching: &seqs };
        let plan = plan_round(last_seq, Some(scan), None);
        prop_assert_eq!(plan.is_ok(), counted == length);
        prop_assert!(plan.is_err() || plan == to(last_seq + length));
    }

    #[test]
    fn what_follows_the_cursor_is_always_handled(last_seq in 0..1000_i64, length in 1..50_i64) {
        let seqs: Vec<i64> = (last_seq + 1..=last_seq + length).collect();
        prop_assert_eq!(plan_round(last_seq, Scan::of_all(&seqs), None), to(last_seq + length));
    }

    #[test]
    fn one_number_that_is_missing_is_always_found(last_seq in 0..1000_i64, length in 3..50_i64, at in 1..48_i64) {
        let missing = last_seq + 1 + at.min(length - 2);
        let seqs: Vec<i64> = (last_seq + 1..=last_seq + length).filter(|seq| *seq != missing).collect();
        prop_assert_eq!(plan_round(last_seq, Scan::of_all(&seqs), None), gap(missing, missing + 1));
    }
}
