//! What is shown of consumers and of what they have parked.

use seqline::consumer::{
    ConsumerDetails, FailurePolicy, Filter, LaneKey, Mode, ParkedEvent, details, parked, parked_event, pause,
    skip,
};
use seqline::{NewEvent, Payload};

use super::*;

/// Appends an event about each of these resources; an empty one stands for none.
async fn append_about(db: &TestDb, resources: &[&str]) {
    let event = |id: &&str| {
        let payload = Payload::from_json("{}").expect("the payload is an object");
        NewEvent::builder("order.created", "order", "any").resource_id(*id).payload(payload).build()
    };
    let events: Vec<NewEvent> = resources.iter().map(|id| event(id).expect("the event is valid")).collect();
    let mut tx = seqline::begin(&db.producer()).await.expect("a transaction begins");
    seqline::append(&mut tx, &events).await.expect("the events are appended");
    seqline::commit(tx).await.expect("the transaction commits");
    db.settled().await;
}

/// A consumer that parks what it cannot handle after so many attempts.
fn parking(handler: impl Handler, after_attempts: u32, backoff: Duration) -> Consumer {
    probe(handler).on_failure(FailurePolicy::Park { after_attempts, backoff })
}

/// A consumer that has come to the end of the log, and parked these and what waits for them.
async fn has_parked(resources: &[&str], seqs: &'static [i64]) -> Bench {
    let db = database().await;
    append_about(&db, resources).await;
    let handler = acting(|event, _| {
        let fails = seqs.contains(&event.seq);
        Box::pin(async move { if fails { Err("refused".into()) } else { Ok(()) } })
    });
    let bench = Bench::on(db, config(), parking(handler, 1, Duration::ZERO)).await;
    eventually(DEADLINE, "all is passed", async || {
        drop(bench.round().await);
        cursor(&bench.db, PROBE).await == resources.len() as i64
    })
    .await;
    bench
}

async fn details_of(db: &TestDb) -> ConsumerDetails {
    let found = details(&mut db.connect(Role::App).await, &name(PROBE)).await.expect("it can be read");
    found.expect("the consumer is there")
}

#[tokio::test]
async fn parked_events_say_what_they_are_and_what_they_wait_for() {
    let bench = has_parked(&["a", "b", "a", "", "a"], &[1, 4]).await;
    let mut connection = bench.db.connect(Role::App).await;
    let found = parked(&mut connection, Some(&name(PROBE)), 10).await.unwrap();
    assert!(!found.more);
    let shown = |event: &ParkedEvent| {
        (event.seq, event.key.clone(), event.attempts, event.error_type.clone(), event.waits_for)
    };
    let key = || Some("order/a".to_owned());
    let failed = || Some("handler".to_owned());
    assert_eq!(
        found.events.iter().map(shown).collect::<Vec<_>>(),
        [
            (1, key(), 1, failed(), None),
            (3, key(), 0, None, Some(1)),
            (4, None, 1, failed(), None),
            (5, key(), 0, None, Some(1)),
        ]
    );
    let labels = |event: &ParkedEvent| (event.event_type.clone().unwrap(), event.resource.clone().unwrap());
    assert_eq!(labels(&found.events[0]), ("order.created".to_owned(), "order/a".to_owned()));
    assert_eq!(labels(&found.events[2]), ("order.created".to_owned(), "order".to_owned()));
    assert!(found.events.iter().all(|event| event.consumer == PROBE));
    assert_eq!(found.events[0].next_attempt_at, None);
    assert_eq!(parked_event(&mut connection, &name(PROBE), 3).await.unwrap(), Some(found.events[1].clone()));
    assert_eq!(parked_event(&mut connection, &name(PROBE), 2).await.unwrap(), None);
}

#[tokio::test]
async fn a_list_of_parked_events_has_a_limit_and_says_when_there_are_more() {
    let bench = has_parked(&["a", "b", "a", "a"], &[1]).await;
    let mut connection = bench.db.connect(Role::App).await;
    for (limit, seqs, more) in [(1, &[1][..], true), (2, &[1, 3], true), (3, &[1, 3, 4], false)] {
        let found = parked(&mut connection, None, limit).await.unwrap();
        assert_eq!(found.events.iter().map(|event| event.seq).collect::<Vec<_>>(), seqs);
        assert_eq!(found.more, more, "limit {limit}");
    }
    let others = parked(&mut connection, Some(&name("nobody")), 10).await.unwrap();
    assert_eq!((others.events.len(), others.more), (0, false));
    let state = state_of(&bench.db, PROBE).await;
    assert_eq!((state.parked, state.first_parked), (3, Some(1)));
}

#[tokio::test]
async fn the_details_are_those_of_the_consumer() {
    let db = database().await;
    append_about(&db, &["a", "b", "c", "d"]).await;
    let filter = Filter::everything().types(["invoice.paid", "order.*"]).spaces(["shop-1"]);
    let consumer = probe(plain()).filter(filter.clone()).unwrap().lanes(LaneKey::Channel, 2);
    let bench = Bench::on(db, config(), consumer).await;
    let mut connection = bench.db.connect(Role::App).await;
    assert_eq!(details(&mut connection, &name("nobody")).await.unwrap(), None);
    skip(&mut connection, &name(PROBE), 4, Mode::Apply { why: Some("it is broken") }).await.unwrap();
    pause(&mut connection, &name(PROBE), None).await.unwrap();
    as_admin(
        &bench.db,
        "INSERT INTO seqline.lost_ranges (consumer, lost_from, lost_to, acknowledged_at)
         VALUES ('probe', 1, 2, now()), ('probe', 3, 5, NULL), ('other', 6, 7, NULL), ('probe', 8, 8, NULL)",
    )
    .await;
    let found = details_of(&bench.db).await;
    assert_eq!((found.filter, found.lane_key.as_str(), found.state.lanes), (filter, "channel", 2));
    assert_eq!(
        found.lanes.iter().map(|lane| (lane.lane, lane.last_seq)).collect::<Vec<_>>(),
        [(0, 0), (1, 0)]
    );
    assert!(found.lanes.iter().all(|lane| lane.trying.is_none()));
    assert_eq!((found.skipped, found.skipped_count), (vec![4], 1));
    let losses: Vec<_> = found.losses.iter().map(|loss| (loss.from, loss.to)).collect();
    assert_eq!((losses, found.losses_count, found.state.lost), (vec![(8, 8), (3, 5)], 2, 4));
    let audit: Vec<_> = found
        .audit
        .iter()
        .map(|entry| (entry.who.as_str(), entry.action.as_str(), entry.why.as_deref()))
        .collect();
    let who = Role::App.login();
    assert_eq!(audit[..2], [(who, "consumer.pause", None), (who, "consumer.skip", Some("it is broken"))]);
    assert_eq!(found.audit[0].before, "{}");
    assert!(found.audit[0].after.starts_with("{\"paused_at\": "), "{:?}", found.audit[0]);
}

#[tokio::test]
async fn the_details_are_bounded_and_say_how_much_there_is() {
    let bench = Bench::new(config(), plain()).await;
    append(&bench.db.producer(), 1..=3).await;
    as_admin(
        &bench.db,
        "INSERT INTO seqline.skipped_events (consumer, seq, why) SELECT 'probe', s, 'x' FROM generate_series(-5, 40) s;
         INSERT INTO seqline.lost_ranges (consumer, lost_from, lost_to) SELECT 'probe', 2 * s, 2 * s FROM generate_series(1, 30) s;
         INSERT INTO seqline.audit_log (action, subject, before, after)
         SELECT 'parked.discard', 'probe', jsonb_build_object('parked', repeat('x', 10000)), '{}' FROM generate_series(1, 9)",
    )
    .await;
    let found = details_of(&bench.db).await;
    assert!(found.filter.is_everything());
    assert_eq!((found.skipped.len(), found.skipped[0], found.skipped_count), (20, 1, 40));
    assert_eq!((found.losses.len(), found.losses[0].from, found.losses_count), (20, 60, 30));
    assert_eq!((found.audit.len(), found.audit[0].before.len()), (5, 500));
}

#[tokio::test]
async fn the_details_say_what_is_tried_until_the_cursor_has_left_it_behind() {
    let db = database().await;
    append_about(&db, &["a", "b", "c"]).await;
    let switch = Switch::on();
    let bench = Bench::on(db, config(), parking(switch.failing_at(2), 9, Duration::ZERO)).await;
    let trying = async || details_of(&bench.db).await.lanes.remove(0).trying;
    assert_eq!(trying().await, None);
    bench.round().await.unwrap_err();
    let mark = trying().await.expect("many are tried");
    assert_eq!((mark.until_seq, mark.attempts, mark.error_type), (3, 0, None));
    bench.processes(1).await;
    assert_eq!(trying().await.map(|mark| (mark.until_seq, mark.attempts)), Some((3, 0)));
    for attempts in 1..=2 {
        bench.round().await.unwrap_err();
        let mark = trying().await.expect("one is tried");
        assert_eq!(
            (mark.until_seq, mark.attempts, mark.error_type.as_deref()),
            (3, attempts, Some("handler"))
        );
    }
    switch.off();
    while cursor(&bench.db, PROBE).await < 3 {
        bench.round().await.unwrap();
    }
    assert_eq!(trying().await, None);
}
