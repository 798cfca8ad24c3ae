//! What holds for every plan. The tests beside this file use it, and so does the fuzzer.

use super::{LostRange, PlanError, RoundPlan, Scan, plan_round};

/// Plans a round in which everything that was read is to be handled, and panics unless the plan is right.
pub(super) fn check(last_seq: i64, seqs: &[i64], min_retained: Option<i64>) {
    let plan = check_scan(last_seq, Scan::of_all(seqs), min_retained);
    if plan.is_ok() {
        assert!(is_dense(seqs), "steps over a hole");
        assert_eq!(
            plan.map(|plan| plan.new_last_seq).ok(),
            seqs.last().copied(),
            "it goes where the events end"
        );
    } else if let Some((&first, _)) = seqs.split_first() {
        assert!(!is_dense(seqs) || !may_begin(last_seq, first, min_retained), "these events follow");
    }
}

/// Plans a round and panics unless the plan is right.
pub(super) fn check_scan(
    last_seq: i64,
    scan: Option<Scan<'_>>,
    min_retained: Option<i64>,
) -> Result<RoundPlan, PlanError> {
    let plan = plan_round(last_seq, scan, min_retained);
    let Some(Scan { first, last, count, matching }) = scan else {
        assert_eq!(plan, Err(PlanError::Empty), "there is nothing to plan");
        return plan;
    };
    let begins = may_begin(last_seq, first, min_retained);
    let whole = wide(last) - wide(first) + 1 == wide(count) && count > 0;
    let ascends = matching.windows(2).all(|pair| pair[0] < pair[1]);
    let within = matching.iter().all(|seq| first <= *seq && *seq <= last);
    match plan {
        Ok(RoundPlan { new_last_seq, lost }) => {
            assert!(begins, "steps over events that are retained");
            assert!(whole, "steps over a hole");
            assert!(ascends && within, "handles what was not looked at, or not in order");
            assert_eq!(new_last_seq, last, "the cursor goes where the scan ends, whatever matches");
            assert!(new_last_seq > last_seq, "the cursor moves, and forwards");
            let expected =
                (wide(first) > wide(last_seq) + 1).then(|| LostRange { from: last_seq + 1, to: first - 1 });
            assert_eq!(lost, expected, "what is lost lies between the cursor and the first event");
        }
        Err(PlanError::Empty) => panic!("something was looked at"),
        Err(_) => assert!(!(begins && whole && ascends && within), "this scan is right"),
    }
    plan
}

/// In numbers that do not overflow.
fn wide(seq: i64) -> i128 {
    i128::from(seq)
}

fn is_dense(seqs: &[i64]) -> bool {
    seqs.windows(2).all(|pair| wide(pair[1]) == wide(pair[0]) + 1)
}

/// Whether a scan may begin there: it follows the cursor, or retention took all that was between.
fn may_begin(last_seq: i64, first: i64, min_retained: Option<i64>) -> bool {
    let expected = wide(last_seq) + 1;
    wide(first) == expected || wide(first) > expected && min_retained == Some(first)
}

/// The same for what a fuzzer thinks of: the cursor, and a byte. Its lowest bit says that the lowest retained number comes next, and the
/// one above that the first number, the last one and the count of a scan do. The rest is how far it is from each number to the next,
/// where 0 means that the number itself follows.
pub(super) fn check_bytes(mut bytes: &[u8]) {
    let last_seq = take_seq(&mut bytes);
    let flags = take_byte(&mut bytes).unwrap_or_default();
    let min_retained = (flags & 1 != 0).then(|| take_seq(&mut bytes));
    if flags & 2 == 0 {
        return check(last_seq, &take_steps(&mut bytes, last_seq), min_retained);
    }
    let first = take_step(&mut bytes, last_seq).unwrap_or_default();
    let last = take_step(&mut bytes, first).unwrap_or_default();
    // As a rule near to what is right.
    let count = take_step(&mut bytes, last.wrapping_sub(first)).unwrap_or_default();
    let matching = take_steps(&mut bytes, first.wrapping_sub(1));
    // Refused or not: it is right.
    let _ = check_scan(last_seq, Some(Scan { first, last, count, matching: &matching }), min_retained);
}

fn take_steps(bytes: &mut &[u8], mut previous: i64) -> Vec<i64> {
    let mut seqs = Vec::new();
    while let Some(seq) = take_step(bytes, previous) {
        previous = seq;
        seqs.push(seq);
    }
    seqs
}

fn take_step(bytes: &mut &[u8], previous: i64) -> Option<i64> {
    Some(match i8::from_ne_bytes([take_byte(bytes)?]) {
        0 => take_seq(bytes),
        step => previous.wrapping_add(i64::from(step)),
    })
}

fn take_byte(bytes: &mut &[u8]) -> Option<u8> {
    let (first, rest) = bytes.split_first()?;
    *bytes = rest;
    Some(*first)
}

/// Little-endian; missing bytes are 0.
fn take_seq(bytes: &mut &[u8]) -> i64 {
    let (present, rest) = bytes.split_at(bytes.len().min(8));
    *bytes = rest;
    let mut whole = [0; 8];
    whole[..present.len()].copy_from_slice(present);
    i64::from_le_bytes(whole)
}
