//! What consumers, jobs and readers get of an event that was redacted.

use std::sync::{Arc, Mutex};

use seqline::consumer::{FailurePolicy, LaneKey, Outcome, retry_parked};

use super::*;
use crate::consumers::{Bench, acting, config, cursor, database, effects, name, probe, twice};

type Got = Arc<Mutex<Vec<(i64, bool, String)>>>;

/// A handler that keeps what it gets, and fails at a number while it says something.
fn keeping(got: &Got, failing: i64) -> impl seqline::consumer::Handler + use<> {
    let got = Arc::clone(got);
    acting(move |event, _| {
        got.lock().unwrap().push((event.seq, event.redacted, event.payload.as_json().to_owned()));
        let fails = event.seq == failing && !event.redacted;
        Box::pin(async move { if fails { Err("refused".into()) } else { Ok(()) } })
    })
}

#[tokio::test]
async fn a_consumer_gets_redacted_events_as_such_and_then_the_notice() {
    let got = Got::default();
    let bench = Bench::on(database().await, config(), probe(keeping(&got, 0))).await;
    append(&bench.db.producer(), ["17", "18", "17"].map(order)).await;
    bench.processes(3).await;
    redact_resource(&bench.db.app(), "17", APPLY).await.unwrap();
    // The cursor has passed them: they do not come again, and the notice does.
    bench.processes(1).await;
    bench.begin_again().await;
    got.lock().unwrap().clear();
    bench.processes(4).await;
    let got = got.lock().unwrap().clone();
    let said = format!("{{\"card\": \"{PLANTED}\"}}");
    let flags: Vec<(i64, bool, bool)> =
        got.iter().map(|(seq, redacted, text)| (*seq, *redacted, *text == said)).collect();
    assert_eq!(flags, [(1, true, false), (2, false, true), (3, true, false), (4, false, false)]);
    assert_eq!((got[0].2.as_str(), got[2].2.as_str()), ("{}", "{}"));
    assert!(got[3].2.starts_with("{\"events\": [{\"id\": "), "{}", got[3].2);
    assert_eq!(effects(&bench.db).await, twice(1..=4));
}

#[tokio::test]
async fn a_parked_event_comes_redacted_when_it_is_tried_again() {
    let got = Got::default();
    let park = FailurePolicy::Park { after_attempts: 1, backoff: std::time::Duration::ZERO };
    let bench = Bench::on(database().await, config(), probe(keeping(&got, 1)).on_failure(park)).await;
    append(&bench.db.producer(), ["17", "18", "17"].map(order)).await;
    while cursor(&bench.db, "probe").await < 3 {
        drop(bench.round().await);
    }
    redact_resource(&bench.db.app(), "17", APPLY).await.unwrap();
    got.lock().unwrap().clear();
    let mut app = bench.db.connect(Role::App).await;
    assert_eq!(retry_parked(&mut app, &name("probe"), Some(1), APPLY).await.unwrap().events, 1);
    while bench.round().await.unwrap().outcome != Outcome::Idle {}
    let mut got = got.lock().unwrap().clone();
    got.sort();
    let redacted: Vec<(i64, bool)> = got.iter().map(|(seq, redacted, _)| (*seq, *redacted)).collect();
    // Parked behind it, and in order; then what was told meanwhile.
    assert_eq!(redacted, [(1, true), (3, true), (4, false)]);
    assert!(!got.iter().any(|(.., text)| text.contains(PLANTED)));
}

/// The notice is about the resource of the events, so it is in their lane, behind them.
#[tokio::test]
async fn a_notice_comes_in_the_lane_of_its_events() {
    let got = Got::default();
    let consumer = probe(keeping(&got, 0)).lanes(LaneKey::Resource, 5);
    let bench = Bench::on(database().await, config(), consumer).await;
    append(&bench.db.producer(), ["17", "18", "19", "20", "21"].map(order)).await;
    redact_resource(&bench.db.app(), "19", APPLY).await.unwrap();
    let lanes: Vec<i32> = sqlx::query_scalar(
        "SELECT seqline.lane_of(seqline.key_of('resource', e.resource_kind, e.resource_id, e.channel_id, e.thread_id, e.space_id), 5)
         FROM seqline.event_log e WHERE e.resource_id = '19' ORDER BY e.seq",
    )
    .fetch_all(&bench.db.admin())
    .await
    .unwrap();
    assert_eq!((lanes.len(), lanes[0]), (2, lanes[1]));
    while bench.round().await.unwrap().outcome != Outcome::Idle {}
    let order: Vec<i64> =
        got.lock().unwrap().iter().map(|got| got.0).filter(|seq| [3, 6].contains(seq)).collect();
    assert_eq!(order, [3, 6]);
}

#[tokio::test]
async fn a_poll_gives_it_redacted() {
    let db = TestDb::new().await;
    append(&db.producer(), ["17", "18"].map(order)).await;
    redact_resource(&db.app(), "17", APPLY).await.unwrap();
    sqlx::query("SELECT seqline.ensure_consumer('probe', 'poll', 'oldest', 1)")
        .execute(&db.admin())
        .await
        .unwrap();
    let rows: Vec<Value> = sqlx::query_scalar("SELECT to_jsonb(e) FROM seqline.poll('probe', 10) e")
        .fetch_all(&db.consumer())
        .await
        .unwrap();
    let said: Vec<(i64, bool, bool)> = rows
        .iter()
        .map(|row| (row["seq"].as_i64().unwrap(), !row["redacted_at"].is_null(), row["payload"] == json!({})))
        .collect();
    assert_eq!(said, [(1, true, true), (2, false, false), (3, false, false)]);
}

/// Many events in a row that say nothing, and a partition that is gone, stop nobody.
#[tokio::test]
async fn a_consumer_passes_what_was_redacted_and_what_was_dropped() {
    let got = Got::default();
    let db = database().await;
    small_partitions(&db, 20, 10).await;
    let bench = Bench::on(db, config(), probe(keeping(&got, 0))).await;
    append(&bench.db.producer(), (0..120).map(|n| order(if n < 110 { "17" } else { "18" }))).await;
    assert_eq!(redact_resource(&bench.db.app(), "17", APPLY).await.unwrap().events, 110);
    assert_eq!(crate::partitions::drop_oldest(&bench.db).await, 1);
    while bench.round().await.unwrap().outcome != Outcome::Idle {}
    assert_eq!(cursor(&bench.db, "probe").await, 121);
    assert_eq!(effects(&bench.db).await, twice(21..=121));
    let got = got.lock().unwrap();
    assert!(got.iter().all(|(seq, redacted, _)| *redacted == (*seq <= 110)));
}
