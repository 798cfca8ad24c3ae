use super::*;

mod model;

const BOUNDS: Bounds = Bounds { events: 3, bytes: 100, ack_timeout: Duration::from_secs(60) };

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn looked(after: i64, up_to: i64, seen: &[i64]) -> Input {
    let seen = seen.iter().map(|seq| Seen { seq: *seq, bytes: 10 }).collect();
    Input::Looked(Looked { after, up_to, seen })
}

fn ack(seq: i64) -> Input {
    Input::Acknowledged { seq, head: 100 }
}

fn delivered(actions: &[Action]) -> Vec<(i64, bool)> {
    let deliveries = actions.iter().filter_map(|action| match action {
        Action::Deliver { seq, redelivered } => Some((*seq, *redelivered)),
        _ => None,
    });
    deliveries.collect()
}

#[test]
fn delivery_stops_at_the_bound_of_events_and_goes_on_with_an_acknowledgement() {
    let mut window = Window::begin(0, None, None);
    let actions = window.step(at(0), &BOUNDS, looked(0, 5, &[1, 2, 3, 4, 5]));
    assert_eq!(delivered(&actions), [(1, false), (2, false), (3, false)]);
    assert_eq!((window.wants(&BOUNDS), window.position()), (None, 3));
    assert_eq!(window.step(at(1), &BOUNDS, ack(2)), []);
    assert_eq!(window.wants(&BOUNDS), Some(Wants { after: 3, events: 2, bytes: 90 }));
    let actions = window.step(at(1), &BOUNDS, looked(3, 5, &[4, 5]));
    assert_eq!(delivered(&actions), [(4, false), (5, false)]);
}

#[test]
fn delivery_stops_at_the_bound_of_bytes_but_one_event_always_fits() {
    let seen = |seq, bytes| Seen { seq, bytes };
    let mut window = Window::begin(0, None, None);
    let page = Looked { after: 0, up_to: 3, seen: vec![seen(1, 500), seen(2, 1), seen(3, 1)] };
    let actions = window.step(at(0), &BOUNDS, Input::Looked(page));
    assert_eq!((delivered(&actions), window.position()), (vec![(1, false)], 1));
    assert_eq!(window.wants(&BOUNDS), None);
    window.step(at(0), &BOUNDS, ack(1));
    let page = Looked { after: 1, up_to: 3, seen: vec![seen(2, 60), seen(3, 60)] };
    let actions = window.step(at(0), &BOUNDS, Input::Looked(page));
    assert_eq!((delivered(&actions), window.position()), (vec![(2, false)], 2));
    assert_eq!(window.wants(&BOUNDS), None, "the next one is known not to fit");
}

#[test]
fn an_event_that_does_not_fit_is_not_asked_for_until_it_does() {
    let seen = |seq, bytes| Seen { seq, bytes };
    let page = |after, seen: Vec<Seen>| Input::Looked(Looked { after, up_to: 9, seen });
    let mut window = Window::begin(0, None, None);
    window.step(at(0), &BOUNDS, page(0, vec![seen(1, 30), seen(2, 30), seen(3, 60)]));
    assert_eq!((window.position(), window.wants(&BOUNDS)), (2, None), "40 bytes are left, and 60 are needed");
    window.step(at(0), &BOUNDS, ack(1));
    assert_eq!(window.wants(&BOUNDS), Some(Wants { after: 2, events: 2, bytes: 70 }));
    window.step(at(0), &BOUNDS, page(2, vec![seen(3, 60)]));
    assert_eq!(window.in_flight(), 2);
    // One that is larger than all of it waits until it is alone.
    window.step(at(0), &BOUNDS, page(9, vec![seen(10, 500)]));
    assert_eq!(window.wants(&BOUNDS), None);
    window.step(at(0), &BOUNDS, ack(2));
    assert_eq!(window.wants(&BOUNDS), None);
    window.step(at(0), &BOUNDS, ack(3));
    assert!(window.wants(&BOUNDS).is_some());
    // Nor is it remembered when that is somewhere else.
    window.step(at(0), &BOUNDS, ack(20));
    assert!(window.wants(&BOUNDS).is_some());
}

#[test]
fn what_is_settled_is_up_to_the_oldest_event_that_is_not_acknowledged() {
    let mut window = Window::begin(0, None, None);
    assert_eq!(window.settled(7), 7);
    window.step(at(0), &BOUNDS, looked(0, 9, &[4, 6]));
    assert_eq!(window.settled(9), 3);
    window.step(at(0), &BOUNDS, ack(4));
    assert_eq!(window.settled(9), 5);
    window.step(at(60), &BOUNDS, Input::Woken);
    assert_eq!(window.settled(4), 5, "also while it is overdue");
    window.step(at(60), &BOUNDS, ack(6));
    assert_eq!((window.settled(6), window.settled(12)), (6, 12));
}

#[test]
fn a_loss_of_before_is_none() {
    let mut window = Window::begin(5, None, None);
    window.step(at(0), &BOUNDS, looked(5, 9, &[]));
    let before = window.clone();
    let lost = Input::Lost { reason: LostReason::Retention, position: 5, head: 90 };
    assert_eq!((window.step(at(0), &BOUNDS, lost), window), (vec![], before));
}

#[test]
fn what_the_agent_may_not_see_neither_blocks_nor_needs_an_acknowledgement() {
    let mut window = Window::begin(0, Some(9), None);
    let actions = window.step(at(0), &BOUNDS, looked(0, 9, &[]));
    assert_eq!((actions, window.position(), window.acked()), (vec![Action::CaughtUp { head: 9 }], 9, 0));
    assert_eq!((window.deadline(&BOUNDS), window.in_flight()), (None, 0));
}

#[test]
fn acknowledgements_below_zero_or_above_the_head_are_none() {
    let mut window = Window::begin(5, None, None);
    let ack = |seq, head| Input::Acknowledged { seq, head };
    assert_eq!(window.step(at(0), &BOUNDS, ack(-1, 7)), [Action::Refuse(NoAck::BelowZero)]);
    assert_eq!(window.step(at(0), &BOUNDS, ack(8, 7)), [Action::Refuse(NoAck::AboveHead)]);
    assert_eq!(window.acked(), 5);
    // One who has seen less of the log than the window.
    assert_eq!((window.step(at(0), &BOUNDS, ack(5, 0)), window.acked()), (vec![], 5));
    // The same again, and one before it, change nothing.
    assert_eq!((window.step(at(0), &BOUNDS, ack(3, 7)), window.acked()), (vec![], 5));
    // Cumulative, also beyond what was delivered: that is not delivered any more.
    assert_eq!((window.step(at(0), &BOUNDS, ack(7, 7)), window.acked()), (vec![], 7));
    assert_eq!(window.wants(&BOUNDS).map(|wants| wants.after), Some(7));
    assert_eq!(
        window.step(at(0), &BOUNDS, looked(5, 8, &[6, 7, 8])),
        [Action::Deliver { seq: 8, redelivered: false }]
    );
}

#[test]
fn what_is_not_acknowledged_in_time_comes_again_in_order_and_marked() {
    let mut window = Window::begin(0, None, None);
    window.step(at(0), &BOUNDS, looked(0, 2, &[1, 2]));
    window.step(at(50), &BOUNDS, looked(2, 3, &[3]));
    assert_eq!(window.deadline(&BOUNDS), Some(at(60)));
    assert_eq!(window.step(at(59), &BOUNDS, Input::Woken), []);
    // The deadline is that of the oldest which is not acknowledged.
    window.step(at(59), &BOUNDS, ack(2));
    assert_eq!(window.step(at(109), &BOUNDS, Input::Woken), []);
    assert_eq!(window.step(at(110), &BOUNDS, Input::Woken), [Action::WentBack { events: 1 }]);
    assert_eq!((window.in_flight(), window.position()), (0, 2));
    // A page that was asked for before.
    assert_eq!(window.step(at(110), &BOUNDS, looked(3, 4, &[4])), []);
    let actions = window.step(at(111), &BOUNDS, looked(2, 5, &[3, 4, 5]));
    assert_eq!(delivered(&actions), [(3, true), (4, false), (5, false)]);
    assert_eq!(window.deadline(&BOUNDS), Some(at(171)), "the deadline begins again");
    // And again, as often as it takes: now all three were delivered.
    window.step(at(171), &BOUNDS, Input::Woken);
    let actions = window.step(at(171), &BOUNDS, looked(2, 6, &[3, 4, 5, 6]));
    assert_eq!(delivered(&actions), [(3, true), (4, true), (5, true)]);
    window.step(at(172), &BOUNDS, ack(5));
    assert_eq!(delivered(&window.step(at(172), &BOUNDS, looked(5, 6, &[6]))), [(6, false)]);
}

#[test]
fn an_acknowledgement_that_comes_late_counts() {
    let mut window = Window::begin(0, None, None);
    window.step(at(0), &BOUNDS, looked(0, 3, &[1, 2, 3]));
    assert_eq!(window.step(at(60), &BOUNDS, ack(3)), [], "with the deadline itself");
    window.step(at(61), &BOUNDS, looked(3, 6, &[4, 5, 6]));
    window.step(at(121), &BOUNDS, Input::Woken);
    // After it, for a part of what is about to be delivered again.
    window.step(at(122), &BOUNDS, ack(5));
    assert_eq!(window.position(), 5);
    assert_eq!(delivered(&window.step(at(122), &BOUNDS, looked(5, 7, &[6, 7]))), [(6, true), (7, false)]);
}

#[test]
fn what_was_taken_from_the_agent_meanwhile_is_not_delivered_again() {
    let mut window = Window::begin(0, None, None);
    window.step(at(0), &BOUNDS, looked(0, 3, &[1, 2, 3]));
    window.step(at(60), &BOUNDS, Input::Woken);
    assert_eq!(delivered(&window.step(at(60), &BOUNDS, looked(0, 3, &[1, 3]))), [(1, true), (3, true)]);
    // It was delivered once, long ago, and the mark is for what the deadline brings again.
    window.step(at(61), &BOUNDS, ack(3));
    assert!(window.overdue.is_empty());
}

#[test]
fn the_end_of_the_backlog_is_told_once() {
    let mut window = Window::begin(0, Some(4), None);
    assert_eq!(delivered(&window.step(at(0), &BOUNDS, looked(0, 3, &[1, 2, 3]))).len(), 3);
    window.step(at(60), &BOUNDS, Input::Woken);
    window.step(at(60), &BOUNDS, looked(0, 3, &[1, 2, 3]));
    assert_eq!(window.step(at(61), &BOUNDS, ack(3)), []);
    let end = [Action::Deliver { seq: 4, redelivered: false }, Action::CaughtUp { head: 4 }];
    assert_eq!(window.step(at(61), &BOUNDS, looked(3, 4, &[4])), end);
    window.step(at(121), &BOUNDS, Input::Woken);
    assert_eq!(
        window.step(at(121), &BOUNDS, looked(3, 4, &[4])),
        [Action::Deliver { seq: 4, redelivered: true }]
    );
    // At once if there is none, and by an acknowledgement beyond it.
    assert_eq!(
        Window::begin(4, Some(4), None).step(at(0), &BOUNDS, Input::Woken),
        [Action::CaughtUp { head: 4 }]
    );
    assert_eq!(Window::begin(0, Some(4), None).step(at(0), &BOUNDS, ack(4)), [Action::CaughtUp { head: 4 }]);
}

#[test]
fn what_was_lost_is_told_until_it_is_acknowledged() {
    for (reason, acked, head) in [(LostReason::Retention, 2, 90), (LostReason::CursorAhead, 95, 90)] {
        let mut window = Window::begin(acked, Some(80), None);
        let lost = Lost { reason, after: acked, position: head };
        let actions = window.step(at(0), &BOUNDS, Input::Lost { reason, position: acked, head });
        assert_eq!(actions, [Action::Resync(lost)], "and no end of a backlog");
        assert_eq!((window.acked(), window.position(), window.lost()), (head, head, Some(lost)));
        // It is lost again before the agent knows: the beginning is what counts.
        let again = Lost { reason: LostReason::Retention, after: acked, position: 99 };
        let input = Input::Lost { reason: LostReason::Retention, position: head, head: 99 };
        assert_eq!(window.step(at(1), &BOUNDS, input), [Action::Resync(again)]);
        window.step(at(2), &BOUNDS, ack(98));
        assert_eq!(window.lost(), Some(again));
        window.step(at(2), &BOUNDS, ack(99));
        assert_eq!((window.lost(), window.acked()), (None, 99));
    }
}

#[test]
fn a_window_is_the_same_after_it_was_stored() {
    let mut window = Window::begin(0, Some(50), None);
    window.step(at(0), &BOUNDS, looked(0, 3, &[1, 2, 3]));
    window.step(at(60), &BOUNDS, Input::Woken);
    window.step(at(60), &BOUNDS, looked(0, 2, &[1, 2]));
    window.step(at(60), &BOUNDS, ack(1));
    let stored = serde_json::to_string(&window).unwrap();
    let expected = r#"{"position":2,"in_flight":[[2,10,60000]],"overdue":[3],"backlog_end":50}"#;
    assert_eq!(stored, expected);
    let read = || serde_json::from_str::<Window>(&stored).unwrap();
    assert_eq!(read().resumed(1, None), window);
    // What was acknowledged meanwhile is neither in flight nor delivered again.
    window.step(at(61), &BOUNDS, ack(2));
    assert_eq!(read().resumed(2, None), window);
    let further = read().resumed(3, None);
    assert_eq!((further.acked(), further.position(), further.overdue.len()), (3, 3, 0));
}
