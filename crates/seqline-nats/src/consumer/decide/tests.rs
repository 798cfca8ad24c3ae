use seqline::envelope::Delivery;
use seqline::{Payload, StoredEvent};
use time::OffsetDateTime;

use super::*;

const ATTEMPTS: u32 = 5;

fn event() -> StoredEvent {
    StoredEvent {
        seq: 7,
        id: Uuid::now_v7(),
        event_type: "order.created".to_owned(),
        schema_version: 1,
        occurred_at: OffsetDateTime::UNIX_EPOCH,
        permission_version: 0,
        actor_kind: None,
        actor_principal_id: None,
        space_id: None,
        channel_id: None,
        thread_id: None,
        resource_kind: "order".to_owned(),
        resource_id: None,
        resource_version: None,
        audience_principal_id: None,
        receive_action: "any".to_owned(),
        payload: Payload::empty().into(),
        truncated: false,
        client_msg_id: None,
        correlation_id: None,
        trace_context: None,
        redacted: false,
    }
}

fn message() -> (Identity, String) {
    let event = event();
    let identity = Identity { epoch: Uuid::now_v7(), position: event.seq, event_id: event.id };
    (identity, Envelope::new(&event, &Delivery::default()).to_json())
}

#[test]
fn each_end_of_a_message_has_its_outcome() {
    let terminate = |reason| Outcome::Terminate { reason };
    for (came, outcome) in [
        (Came::Handled, Outcome::Acknowledge),
        (Came::Duplicate, Outcome::Acknowledge),
        (Came::Settled, Outcome::Acknowledge),
        (Came::NotAskedFor, Outcome::Acknowledge),
        (Came::OtherHistory, Outcome::Acknowledge),
        (Came::Failed { attempts: 1 }, Outcome::Acknowledge),
        (Came::Failed { attempts: 4 }, Outcome::Acknowledge),
        (Came::Failed { attempts: 5 }, terminate(Reason::AttemptsExhausted)),
        (Came::Failed { attempts: 6 }, terminate(Reason::AttemptsExhausted)),
        (Came::Unreadable, terminate(Reason::Unreadable)),
        (Came::FutureVersion, terminate(Reason::FutureVersion)),
        (Came::Busy, Outcome::Retry { delay: BUSY_DELAY }),
        (Came::Stopped, Outcome::Retry { delay: Duration::ZERO }),
        (Came::Undecided, Outcome::Keep),
        (Came::HistoriesDiffer, Outcome::Keep),
    ] {
        assert_eq!(decide_outcome(came, ATTEMPTS), outcome, "{came:?}");
    }
}

#[test]
fn an_event_is_read_with_what_its_headers_say() {
    let (identity, payload) = message();
    for version in [None, Some(1)] {
        let content = Content::read(Some(identity), version, payload.as_bytes());
        assert!(
            matches!(content, Content::Event(read, envelope) if read == identity && envelope.id == identity.event_id)
        );
    }
}

#[test]
fn what_no_relay_wrote_is_unreadable() {
    let (identity, payload) = message();
    let unreadable =
        |identity, payload: &[u8]| matches!(Content::read(identity, Some(1), payload), Content::Unreadable);
    assert!(unreadable(None, payload.as_bytes()));
    assert!(unreadable(Some(identity), b""));
    assert!(unreadable(Some(identity), b"{\"id\": 1}"));
    assert!(unreadable(Some(identity), &payload.as_bytes()[..payload.len() - 1]));
    assert!(unreadable(Some(Identity { event_id: Uuid::now_v7(), ..identity }), payload.as_bytes()));
    assert!(unreadable(Some(Identity { position: 8, ..identity }), payload.as_bytes()));
}

#[test]
fn a_later_version_is_told_from_garbage_only_when_a_relay_wrote_it() {
    let (identity, _) = message();
    assert!(matches!(Content::read(Some(identity), Some(2), b"?"), Content::FutureVersion));
    assert!(matches!(Content::read(None, Some(2), b"?"), Content::Unreadable));
}

#[test]
fn the_event_that_the_log_has_at_its_position_tells_the_history_of_a_message() {
    let (identity, _) = message();
    let (id, other) = (identity.event_id, Uuid::now_v7());
    let told =
        |epoch, head, at, min_retained| history(&identity, &LogFacts { epoch, head }, at, min_retained);
    let (ours, elsewhere) = (identity.epoch, Uuid::now_v7());
    assert_eq!(told(ours, 7, Some(id), 1), History::Ours);
    assert_eq!(told(ours, 7, None, 1), History::Ours);
    assert_eq!(told(ours, 7, Some(other), 1), History::Differs);
    assert_eq!(told(ours, 6, None, 1), History::Ahead);
    assert_eq!(told(elsewhere, 7, Some(id), 1), History::Ours);
    assert_eq!(told(elsewhere, 7, Some(other), 1), History::Elsewhere);
    assert_eq!(told(elsewhere, 7, None, 7), History::Elsewhere);
    assert_eq!(told(elsewhere, 6, None, 7), History::Elsewhere);
    assert_eq!(told(elsewhere, 7, None, 8), History::Ours);
}

#[test]
fn retries_wait_longer_each_time_up_to_the_cap() {
    let (start, cap) = (Duration::from_secs(1), Duration::from_secs(5));
    let delays: Vec<u64> = (1..=4).map(|failures| retry_delay(failures, start, cap, 1.0).as_secs()).collect();
    assert_eq!(delays, [1, 2, 4, 5]);
    assert_eq!(retry_delay(u32::MAX, start, cap, 1.0), cap);
    assert_eq!(retry_delay(3, start, cap, 0.0), Duration::from_secs(2));
    assert_eq!(retry_delay(1, Duration::from_secs(9), cap, 1.0), cap);
}
