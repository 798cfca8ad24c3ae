use proptest::prelude::*;

use super::*;

const EPOCH: Uuid = Uuid::from_u128(1);
const OLD: Uuid = Uuid::from_u128(2);
const LOG: Standing = Standing { epoch: EPOCH, head: 100, min_retained: 10 };

fn cursor(position: i64, stream_seq: u64) -> Cursor {
    Cursor {
        epoch: EPOCH,
        position,
        stream_created: 1,
        stream_seq,
        position_at_seq: None,
        base_stream_seq: 0,
        base_position: 0,
        rewinds: 0,
    }
}

fn says(epoch: Uuid, position: i64, id: u128) -> Option<Identity> {
    Some(Identity { epoch, position, event_id: Uuid::from_u128(id) })
}

fn walked(from: &Cursor, met: &[Met]) -> Walk {
    let mut walk = Walk::from(from, 1, 0);
    for (stream_seq, met) in (from.stream_seq + 1..).zip(met) {
        walk.meet(stream_seq, *met).unwrap();
    }
    walk
}

use Met::{Deleted, Differs, Foreign, Orphan, Ours};

#[test]
fn a_message_is_ours_when_the_log_has_its_event_there_whatever_its_epoch() {
    let there = Some(Uuid::from_u128(50));
    assert_eq!(judge(says(EPOCH, 50, 50), &LOG, there), Ours(50));
    assert_eq!(judge(says(OLD, 50, 50), &LOG, there), Ours(50));
    assert_eq!(judge(says(OLD, 50, 51), &LOG, there), Orphan);
    assert_eq!(judge(says(OLD, 500, 51), &LOG, None), Orphan);
    assert_eq!(judge(None, &LOG, there), Foreign);
}

#[test]
fn another_event_of_the_present_history_is_two_histories() {
    assert_eq!(judge(says(EPOCH, 50, 51), &LOG, Some(Uuid::from_u128(50))), Differs(50));
    assert_eq!(judge(says(EPOCH, 101, 51), &LOG, None), Differs(101));
}

#[test]
fn what_retention_has_dropped_is_believed() {
    assert_eq!(judge(says(EPOCH, 9, 51), &LOG, None), Ours(9));
    assert_eq!(judge(says(OLD, 9, 51), &LOG, None), Ours(9));
}

#[test]
fn messages_without_a_hole_are_walked_over_with_what_others_wrote() {
    let walk = walked(&cursor(20, 5), &[Ours(21), Foreign, Ours(22), Orphan, Foreign]);
    assert_eq!(walk.position(), 22);
    assert_eq!(walk.settled(), Settled { position: 22, stream_seq: 10, position_at_seq: None });
    assert_eq!(walk.foreign, Count { count: 2, stream_seq: 10 });
    assert_eq!(walk.orphans, Count { count: 1, stream_seq: 9 });
    assert_eq!(walk.missing(), Vec::<i64>::new());
}

#[test]
fn a_hole_freezes_the_cursor_before_it_until_it_is_filled() {
    let from = cursor(20, 5);
    let hole = [Ours(21), Foreign, Ours(24), Ours(25)];
    let walk = walked(&from, &hole);
    assert_eq!((walk.position(), walk.missing()), (21, vec![22, 23]));
    assert_eq!(walk.settled(), Settled { position: 21, stream_seq: 7, position_at_seq: None });

    let half = [&hole[..], &[Ours(22)]].concat();
    let walk = walked(&from, &half);
    assert_eq!((walk.position(), walk.missing(), walk.settled().stream_seq), (22, vec![23], 7));

    let filled = [&half[..], &[Ours(23)]].concat();
    let walk = walked(&from, &filled);
    assert_eq!((walk.position(), walk.missing()), (25, vec![]));
    assert_eq!(walk.settled(), Settled { position: 25, stream_seq: 11, position_at_seq: Some(23) });
}

#[test]
fn what_others_wrote_is_counted_once_however_often_it_is_walked_over() {
    let mut walk = Walk::from(&cursor(20, 5), 1, 7);
    for (stream_seq, met) in (6..).zip([Foreign, Orphan, Foreign]) {
        walk.meet(stream_seq, met).unwrap();
    }
    assert_eq!((walk.foreign.count, walk.orphans.count), (1, 0));
}

#[test]
fn a_copy_that_is_there_again_changes_nothing() {
    let walk = walked(&cursor(20, 5), &[Ours(21), Ours(20), Ours(21), Ours(22)]);
    assert_eq!((walk.position(), walk.missing()), (22, vec![]));
}

#[test]
fn two_histories_end_the_walk() {
    let mut walk = Walk::from(&cursor(20, 5), 1, 0);
    assert_eq!(walk.meet(6, Differs(21)), Err(Differ { position: 21, stream_seq: 6 }));
    assert_eq!(LookBack::default().meet(6, Differs(21)), Err(Differ { position: 21, stream_seq: 6 }));
}

#[test]
fn a_message_that_was_deleted_in_between_is_missing_and_one_at_the_end_is_counted() {
    let walk = walked(&cursor(20, 5), &[Ours(21), Deleted, Ours(23), Deleted, Deleted]);
    assert_eq!((walk.position(), walk.missing(), walk.gone_at_end()), (21, vec![22], 2));
    let walk = walked(&cursor(20, 5), &[Deleted, Ours(21)]);
    assert_eq!((walk.position(), walk.missing(), walk.gone_at_end()), (21, vec![], 0));
}

#[test]
fn what_the_stream_has_dropped_since_was_published() {
    // Places 6 to 8 are gone: events 21 and 22, and something else.
    let mut walk = Walk::from(&cursor(20, 5), 9, 0);
    walk.meet(9, Ours(23)).unwrap();
    assert_eq!((walk.position(), walk.missing()), (23, vec![]));
    // Three places cannot have held four events.
    let mut walk = Walk::from(&cursor(20, 5), 9, 0);
    walk.meet(9, Ours(25)).unwrap();
    assert_eq!((walk.position(), walk.missing()), (20, vec![21, 22, 23, 24]));
}

#[test]
fn what_the_log_has_dropped_is_skipped() {
    let mut walk = walked(&cursor(3, 0), &[Ours(4), Foreign, Ours(6), Ours(10), Ours(12)]);
    walk.skip_to_retained(10);
    assert_eq!((walk.position(), walk.missing()), (10, vec![11]));
    let mut walk = walked(&cursor(3, 0), &[Ours(4)]);
    walk.skip_to_retained(10);
    assert_eq!((walk.position(), walk.settled().position), (9, 9));
    walk.skip_to_retained(5);
    assert_eq!(walk.position(), 9);
}

#[test]
fn nothing_of_ours_is_no_anchor() {
    let mut back = LookBack::default();
    for (stream_seq, met) in [(3, Foreign), (2, Orphan), (1, Deleted)] {
        assert!(!back.meet(stream_seq, met).unwrap());
    }
    assert_eq!(back.anchor(Some(Anchor { stream_seq: 0, position: 0 }), 1), None);
}

#[test]
fn a_stream_that_begins_in_the_middle_of_the_log_is_walked_from_its_beginning() {
    let mut back = LookBack::default();
    for (stream_seq, position) in (7..=20).rev().zip((5007..=5020).rev()) {
        assert!(!back.meet(stream_seq, Ours(position)).unwrap());
    }
    assert_eq!(back.anchor(None, 7), Some(Anchor { stream_seq: 6, position: 5006 }));
    let base = Anchor { stream_seq: 6, position: 4000 };
    assert_eq!(back.anchor(Some(base), 7), Some(base));
}

/// A stream as a relay with this window leaves it: where a foreign message got in, some of those in flight are missing and filled in later.
fn stream(window: i64, choices: &[(u8, u8)]) -> Vec<Met> {
    let (mut stream, mut next) = (Vec::new(), 1);
    for (lost, foreign) in choices {
        let in_flight: Vec<i64> = (next..next + window).collect();
        next += window;
        let lost = usize::from(*lost).min(in_flight.len());
        stream.extend((0..*foreign).map(|_| Foreign));
        stream.extend(in_flight[lost..].iter().map(|position| Ours(*position)));
        stream.extend((0..*foreign).map(|_| Foreign));
        stream.extend(in_flight[..lost].iter().map(|position| Ours(*position)));
    }
    stream
}

proptest! {
    /// Wherever the stream ends, and wherever the walk begins: what it says is there, is, and what it says is missing, is not.
    #[test]
    fn a_walk_from_any_settled_place_finds_just_what_is_missing(
        choices in proptest::collection::vec((0_u8..8, 0_u8..3), 1..6),
        end in 0_usize..60,
        begin in 0_usize..60,
    ) {
        let stream = stream(6, &choices);
        let end = end.min(stream.len());
        let whole = walked(&cursor(0, 0), &stream[..end]);
        let first = walked(&cursor(0, 0), &stream[..begin.min(end)]);
        let Settled { position, stream_seq, position_at_seq } = first.settled();
        let from = Cursor { position_at_seq, ..cursor(position, stream_seq) };
        let rest = walked(&from, &stream[usize::try_from(stream_seq).unwrap()..end]);
        prop_assert_eq!((rest.position(), rest.missing()), (whole.position(), whole.missing()));

        let there: BTreeSet<i64> = stream[..end].iter().filter_map(|met| match met { Ours(p) => Some(*p), _ => None }).collect();
        let last = there.last().copied().unwrap_or(0);
        let missing: Vec<i64> = (1..last).filter(|position| !there.contains(position)).collect();
        prop_assert_eq!(whole.missing(), missing);
    }
}

/// The window is so large that a stream for this is made once.
#[test]
fn an_anchor_leads_to_just_what_is_missing_wherever_the_stream_ends() {
    let window = i64::from(RELAY_WINDOW_MAX);
    let stream = stream(window, &[(200, 2), (0, 0), (255, 1), (3, 3)]);
    for end in
        [stream.len(), stream.len() - 2, stream.len() - 100, 3 * stream.len() / 4 - 50, stream.len() / 2]
    {
        let whole = walked(&cursor(0, 0), &stream[..end]);
        let mut back = LookBack::default();
        let places = (1..=end as u64).rev().zip(stream[..end].iter().rev());
        for (stream_seq, met) in places {
            if back.meet(stream_seq, *met).unwrap() {
                break;
            }
        }
        let anchor = back.anchor(Some(Anchor { stream_seq: 0, position: 0 }), 1).unwrap();
        let from = cursor(anchor.position, anchor.stream_seq);
        let rest = walked(&from, &stream[usize::try_from(anchor.stream_seq).unwrap()..end]);
        assert_eq!((rest.position(), rest.missing()), (whole.position(), whole.missing()), "end {end}");
    }
}
