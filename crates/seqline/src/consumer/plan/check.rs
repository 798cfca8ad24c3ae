//! What holds for every plan. The tests beside this file use it, and so does the fuzzer.

use super::{LostRange, PlanError, RoundPlan, Scan, plan_round};

/// Plans a round and panics unless the plan is right.
pub(super) fn check(last_seq: i64, seqs: &[i64], min_retained: Option<i64>) {
    let plan = plan_round(last_seq, Scan::of_all(seqs), min_retained);
    // In numbers that do not overflow.
    let wide = |seq: i64| i128::from(seq);
    let dense = seqs.windows(2).all(|pair| wide(pair[1]) == wide(pair[0]) + 1);
    let follows = seqs.first().is_some_and(|first| wide(*first) == wide(last_seq) + 1);
    let behind_loss =
        seqs.first().is_some_and(|first| wide(*first) > wide(last_seq) + 1 && min_retained == Some(*first));
    match plan {
        Ok(RoundPlan { new_last_seq, lost }) => {
            assert!(dense, "steps over a hole");
            assert!(follows || behind_loss, "steps over events that are retained");
            assert_eq!(Some(&new_last_seq), seqs.last(), "the cursor goes where the events end");
            assert!(new_last_seq > last_seq, "the cursor moves, and forwards");
            let expected = behind_loss.then(|| LostRange { from: last_seq + 1, to: seqs[0] - 1 });
            assert_eq!(lost, expected, "what is lost lies between the cursor and the first event");
        }
        Err(PlanError::Empty) => assert!(seqs.is_empty(), "there are events"),
        Err(_) => {
            assert!(!seqs.is_empty(), "nothing is no gap");
            assert!(!dense || !(follows || behind_loss), "these events follow");
        }
    }
}

/// The same for what a fuzzer thinks of: the cursor, the lowest retained number if the next byte is odd, and then how far it is
/// from each number to the next, where 0 means that the number itself follows.
pub(super) fn check_bytes(mut bytes: &[u8]) {
    let last_seq = take_seq(&mut bytes);
    let looked = take_byte(&mut bytes).is_some_and(|byte| byte % 2 == 1);
    let min_retained = looked.then(|| take_seq(&mut bytes));
    let mut seqs = Vec::new();
    let mut previous = last_seq;
    while let Some(step) = take_byte(&mut bytes) {
        previous = match i8::from_ne_bytes([step]) {
            0 => take_seq(&mut bytes),
            step => previous.wrapping_add(i64::from(step)),
        };
        seqs.push(previous);
    }
    check(last_seq, &seqs, min_retained);
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
