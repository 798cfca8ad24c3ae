//! Parking: an event that cannot be handled is put aside, and what is healthy is not.

use seqline::NewEvent;
use seqline::consumer::{FailurePolicy, LaneKey, Mode, discard_parked, retry_parked, wait_for};
use tracing::Level;

use super::*;

mod blame;
mod processes;

/// Appends an event about each of these resources in one transaction.
pub(crate) async fn append_about(db: &TestDb, resources: &[&str]) {
    let events: Vec<NewEvent> = resources
        .iter()
        .map(|id| {
            NewEvent::builder("test.happened", "order", "any")
                .resource_id(*id)
                .build()
                .expect("the event is valid")
        })
        .collect();
    let mut tx = seqline::begin(&db.producer()).await.unwrap();
    seqline::append(&mut tx, &events).await.unwrap();
    seqline::commit(tx).await.unwrap();
    db.settled().await;
}

fn park(after_attempts: u32) -> FailurePolicy {
    FailurePolicy::Park { after_attempts, backoff: Duration::ZERO }
}

fn parking(handler: impl Handler, after_attempts: u32) -> Consumer {
    probe(handler).on_failure(park(after_attempts))
}

/// Rounds until there is nothing to do, and how often which failed.
async fn work(bench: &Bench) -> Vec<&'static str> {
    let mut failures = Vec::new();
    loop {
        match bench.round().await {
            Ok(round) if round.outcome == Outcome::Idle => return failures,
            Ok(_) => {}
            Err(error) => failures.push(error.error_type()),
        }
        assert!(failures.len() < 100, "it comes to an end");
    }
}

/// Number, key, attempts, whether it is tried by itself, and the last error, of what is parked.
type Parked = (i64, Option<String>, i32, bool, Option<String>);

async fn parked(db: &TestDb) -> Vec<Parked> {
    sqlx::query_as(
        "SELECT seq, key, attempts, next_attempt_at IS NOT NULL, error_type FROM seqline.parked_events ORDER BY seq",
    )
    .fetch_all(&db.admin())
    .await
    .unwrap()
}

async fn parked_seqs(db: &TestDb) -> Vec<i64> {
    parked(db).await.into_iter().map(|row| row.0).collect()
}

async fn apply_retry(db: &TestDb, seq: Option<i64>) -> (i64, i64) {
    let mode = Mode::Apply { why: Some("a test") };
    let change = retry_parked(&mut db.connect(Role::App).await, &name(PROBE), seq, mode).await.unwrap();
    (change.events, change.behind)
}

#[tokio::test]
async fn an_event_that_fails_is_parked_after_its_attempts_and_the_others_of_its_key_wait_behind_it() {
    let switch = Switch::on();
    let bench = Bench::on(database().await, config(), parking(switch.failing_at(3), 3)).await;
    append_about(&bench.db, &["a", "b", "x", "a", "x", "c"]).await;
    // Once among the others, and then three times alone.
    assert_eq!(work(&bench).await, ["handler"; 4]);
    assert_eq!(switch.times(), 4);
    assert_eq!(effects(&bench.db).await, twice([1, 2, 4, 6]));
    assert_eq!(cursor(&bench.db, PROBE).await, 6);
    let key = || Some("order/x".to_owned());
    let failed = Some("handler".to_owned());
    assert_eq!(parked(&bench.db).await, [(3, key(), 3, false, failed), (5, key(), 0, false, None)]);
    // Nobody has asked for it, and what is behind it waits.
    append_about(&bench.db, &["x", "a"]).await;
    assert_eq!(work(&bench).await, [""; 0]);
    assert_eq!(effects(&bench.db).await, twice([1, 2, 4, 6, 8]));
    assert_eq!(parked_seqs(&bench.db).await, [3, 5, 7]);
    let state = state_of(&bench.db, PROBE).await;
    assert_eq!((state.lag(), state.parked, state.first_parked), (0, 3, Some(3)));
    bench.assert_pool_is_sound().await;
}

#[tokio::test]
async fn a_retry_handles_them_in_order() {
    let switch = Switch::on();
    let bench = Bench::on(database().await, config(), parking(switch.failing_at(1), 1)).await;
    append_about(&bench.db, &["x", "x", "a", "x"]).await;
    work(&bench).await;
    assert_eq!((effects(&bench.db).await, parked_seqs(&bench.db).await), (twice([3]), vec![1, 2, 4]));
    switch.off();
    assert_eq!(work(&bench).await, [""; 0], "nobody has asked for it");
    assert_eq!(apply_retry(&bench.db, Some(1)).await, (1, 2));
    append_about(&bench.db, &["x"]).await;
    assert_eq!(work(&bench).await, [""; 0]);
    let order: Vec<i64> =
        sqlx::query_scalar("SELECT seq FROM effects ORDER BY id").fetch_all(&bench.db.admin()).await.unwrap();
    assert_eq!(order, twice([3, 1, 2, 4, 5]));
    assert_eq!(parked_seqs(&bench.db).await, [0; 0]);
}

#[tokio::test]
async fn a_retry_that_fails_tries_as_often_as_the_consumer_says_and_waits_again() {
    let switch = Switch::on();
    let bench = Bench::on(database().await, config(), parking(switch.failing_at(1), 2)).await;
    append_about(&bench.db, &["x", "x"]).await;
    work(&bench).await;
    let before = switch.times();
    apply_retry(&bench.db, None).await;
    assert_eq!(work(&bench).await, ["handler"; 2]);
    assert_eq!(switch.times() - before, 2);
    let key = || Some("order/x".to_owned());
    let failed = Some("handler".to_owned());
    assert_eq!(parked(&bench.db).await, [(1, key(), 2, false, failed), (2, key(), 0, false, None)]);
    assert_eq!(effects(&bench.db).await, [0; 0]);
}

#[tokio::test]
async fn what_waits_behind_a_parked_event_fails_on_its_own() {
    let healed = Switch::on();
    let other = Switch::on();
    let (first, second) = (healed.clone(), other.clone());
    let handler = acting(move |event, _| {
        let fails = (event.seq == 1 && first.acts()) || (event.seq == 2 && second.acts());
        Box::pin(async move { if fails { Err("refused".into()) } else { Ok(()) } })
    });
    let bench = Bench::on(database().await, config(), parking(handler, 2)).await;
    append_about(&bench.db, &["x", "x", "x"]).await;
    work(&bench).await;
    healed.off();
    apply_retry(&bench.db, None).await;
    assert_eq!(work(&bench).await, ["handler"; 2]);
    assert_eq!((effects(&bench.db).await, parked_seqs(&bench.db).await), (twice([1]), vec![2, 3]));
    other.off();
    apply_retry(&bench.db, None).await;
    work(&bench).await;
    assert_eq!((effects(&bench.db).await, parked_seqs(&bench.db).await), (twice([1, 2, 3]), vec![]));
}

#[tokio::test]
async fn a_discarded_event_is_never_handled_and_those_behind_it_follow() {
    let switch = Switch::on();
    let bench = Bench::on(database().await, config(), parking(switch.failing_at(1), 1)).await;
    append_about(&bench.db, &["x", "x", "x"]).await;
    work(&bench).await;
    let mut session = bench.db.connect(Role::App).await;
    let discard = async |session: &mut PgConnection, why| {
        discard_parked(session, &name(PROBE), Some(1), Mode::Apply { why }).await
    };
    for why in [None, Some(" \n")] {
        assert_eq!(discard(&mut session, why).await.unwrap_err().to_string(), "the reason is missing");
    }
    let change = discard(&mut session, Some("it was a test order")).await.unwrap();
    assert_eq!((change.events, change.behind), (1, 2));
    switch.off();
    assert_eq!(work(&bench).await, [""; 0]);
    assert_eq!((effects(&bench.db).await, parked_seqs(&bench.db).await), (twice([2, 3]), vec![]));
    let (action, before, why): (String, String, String) =
        sqlx::query_as("SELECT action, before::text, why FROM seqline.audit_log")
            .fetch_one(&bench.db.admin())
            .await
            .unwrap();
    assert_eq!((action.as_str(), why.as_str()), ("parked.discard", "it was a test order"));
    assert_eq!(
        before,
        r#"{"parked": [{"key": "order/x", "seq": 1, "attempts": 1, "error_type": "handler"}]}"#
    );
}

#[tokio::test]
async fn only_the_first_of_a_key_can_be_asked_for() {
    let switch = Switch::on();
    let bench = Bench::on(database().await, config(), parking(switch.failing_at(1), 1)).await;
    append_about(&bench.db, &["x", "x"]).await;
    work(&bench).await;
    let mut session = bench.db.connect(Role::App).await;
    for (seq, message) in [
        (2, "parked event 2 of consumer probe waits for 1 of the same key"),
        (3, "consumer probe has no parked event 3"),
    ] {
        let refused = retry_parked(&mut session, &name(PROBE), Some(seq), Mode::Plan).await.unwrap_err();
        assert_eq!(refused.to_string(), message);
    }
}

#[tokio::test]
async fn an_event_without_a_key_is_parked_alone() {
    let switch = Switch::on();
    let consumer = parking(switch.failing_at(1), 1).lanes(LaneKey::Channel, 1);
    let bench = Bench::on(database().await, config(), consumer).await;
    append_about(&bench.db, &["x", "x"]).await;
    work(&bench).await;
    assert_eq!(parked(&bench.db).await, [(1, None, 1, false, Some("handler".to_owned()))]);
    assert_eq!(effects(&bench.db).await, twice([2]));
}

#[tokio::test]
async fn every_way_to_fail_counts_that_is_the_events_fault() {
    type Failing = fn(&mut Round<'_>) -> Handling<'static>;
    let ways: [(&str, Failing); 3] = [
        ("handler", |_| Box::pin(async { Err("refused".into()) })),
        ("panic", |_| Box::pin(async { std::panic::resume_unwind(Box::new("on purpose")) })),
        ("appended", |_| Box::pin(async { Ok(()) })),
    ];
    for (error_type, fail) in ways {
        let handler = acting(move |event, round| {
            if event.seq != 2 {
                return Box::pin(async { Ok(()) });
            }
            if error_type != "appended" {
                return fail(round);
            }
            Box::pin(async move {
                let event = crate::support::event(0);
                seqline::append(round.transaction(), &[event]).await?;
                Ok(())
            })
        });
        let bench = Bench::on(database().await, config(), parking(handler, 2)).await;
        append_about(&bench.db, &["a", "x", "b"]).await;
        assert_eq!(work(&bench).await, [error_type; 3]);
        let key = Some("order/x".to_owned());
        assert_eq!(parked(&bench.db).await, [(2, key, 2, false, Some(error_type.to_owned()))]);
        assert_eq!(effects(&bench.db).await, twice([1, 3]), "{error_type}");
    }
}

#[tokio::test]
async fn what_is_not_the_events_fault_is_not_counted() {
    let switch = Switch::on();
    let acts = switch.clone();
    let handler = acting(move |event, round| {
        if event.seq != 2 || !acts.acts() {
            return Box::pin(async { Ok(()) });
        }
        let times = acts.times();
        Box::pin(async move {
            if times.is_multiple_of(2) {
                sqlx::query("SELECT pg_terminate_backend(pg_backend_pid())")
                    .execute(round.connection())
                    .await?;
            }
            let conflict = "DO $$ BEGIN RAISE SQLSTATE '40001'; END $$";
            sqlx::raw_sql(conflict).execute(round.connection()).await?;
            Ok(())
        })
    });
    let bench = Bench::on(database().await, config(), parking(handler, 2)).await;
    append_about(&bench.db, &["a", "x", "b"]).await;
    for _ in 0..10 {
        bench.round().await.unwrap_err();
    }
    switch.off();
    assert_eq!(work(&bench).await, [""; 0]);
    assert_eq!(effects(&bench.db).await, twice(1..=3));
    assert_eq!(parked_seqs(&bench.db).await, [0; 0]);
}

#[tokio::test]
async fn the_next_attempt_comes_after_the_backoff_in_any_process() {
    let switch = Switch::on();
    let policy = FailurePolicy::Park { after_attempts: 3, backoff: Duration::from_secs(3600) };
    let consumer = || probe(switch.failing_at(1)).on_failure(policy);
    let config = || ConsumerConfig { failure_backoff_cap: Duration::from_secs(5000), ..config() };
    let mut bench = Bench::on(database().await, config(), consumer()).await;
    append_about(&bench.db, &["x", "a"]).await;
    bench.round().await.unwrap_err();
    for pause in [3600, 5000] {
        bench.round().await.unwrap_err();
        // Another process does not hasten it, and neither does waiting for less.
        bench = Bench::on(bench.db, config(), consumer()).await;
        let round = bench.round().await.unwrap();
        assert_eq!(round.outcome, Outcome::Waiting);
        let wait = round.wait.expect("there is something to wait for").as_secs_f64();
        assert!((f64::from(pause) - 600.0..=f64::from(pause)).contains(&wait), "{wait}");
        as_admin(&bench.db, "UPDATE seqline.round_marks SET next_attempt_at = now()").await;
    }
    bench.round().await.unwrap_err();
    assert_eq!(work(&bench).await, [""; 0], "after the last attempt nothing is waited for");
    assert_eq!((effects(&bench.db).await, parked_seqs(&bench.db).await), (twice([2]), vec![1]));
}

#[tokio::test]
async fn a_consumer_has_so_many_parked_events_and_then_it_stalls() {
    let switch = Switch::on();
    let bench = Bench::on(database().await, config(), parking(switch.failing_at(1), 1)).await;
    as_admin(&bench.db, "UPDATE seqline.settings SET parked_max_events = 2").await;
    append_about(&bench.db, &["x", "x", "a"]).await;
    work(&bench).await;
    append_about(&bench.db, &["b", "x"]).await;
    for _ in 0..2 {
        let error = bench.round().await.unwrap_err();
        assert_eq!((error.error_type(), error.seq()), ("parked_full", Some(4)), "{error}");
    }
    assert_eq!((cursor(&bench.db, PROBE).await, effects(&bench.db).await), (3, twice([3])));
    as_admin(&bench.db, "UPDATE seqline.settings SET parked_max_events = 3").await;
    assert_eq!(work(&bench).await, [""; 0]);
    assert_eq!((effects(&bench.db).await, parked_seqs(&bench.db).await), (twice([3, 4]), vec![1, 2, 5]));
}

#[tokio::test]
async fn a_consumer_that_stalls_leaves_no_marks_and_keeps_the_order_of_what_was_parked_before() {
    let switch = Switch::on();
    let bench = Bench::on(database().await, config(), parking(switch.failing_at(1), 1)).await;
    append_about(&bench.db, &["x", "a"]).await;
    work(&bench).await;
    as_admin(&bench.db, "DELETE FROM seqline.round_marks").await;
    let bench = Bench::on(bench.db, config(), probe(switch.failing_at(5))).await;
    append_about(&bench.db, &["x", "b"]).await;
    assert_eq!(work(&bench).await, [""; 0]);
    assert_eq!((effects(&bench.db).await, parked_seqs(&bench.db).await), (twice([2, 4]), vec![1, 3]));
    append_about(&bench.db, &["y"]).await;
    for _ in 0..3 {
        bench.round().await.unwrap_err();
    }
    let marks: i64 = sqlx::query_scalar("SELECT count(*) FROM seqline.round_marks")
        .fetch_one(&bench.db.admin())
        .await
        .unwrap();
    assert_eq!(marks, 0);
    apply_retry(&bench.db, None).await;
    switch.off();
    assert_eq!(work(&bench).await, [""; 0]);
    assert_eq!(effects(&bench.db).await, twice(1..=5));
}

#[tokio::test]
async fn a_worker_goes_on_by_itself_and_says_what_it_has_parked_once() {
    let (captured, _guard) = Captured::start();
    let switch = Switch::on();
    let db = database().await;
    append_about(&db, &["a", "x", "x", "b", "c"]).await;
    let consumer = parking(switch.failing_at(2), 3);
    let running = Running::on(&db, ConsumerConfig { batch_size: 2, ..quick() }, Clock::system(), [consumer]);
    reaches(&db, PROBE, 5).await;
    assert_eq!((effects(&db).await, parked_seqs(&db).await), (twice([1, 4, 5]), vec![2, 3]));
    let mut session = db.connect(Role::Producer).await;
    assert!(!wait_for(&mut session, &name(PROBE), 2, Duration::ZERO).await.unwrap(), "it was not handled");
    assert!(wait_for(&mut session, &name(PROBE), 4, Duration::ZERO).await.unwrap());
    switch.off();
    apply_retry(&db, Some(2)).await;
    eventually(DEADLINE, "the parked events are handled", async || parked_seqs(&db).await.is_empty()).await;
    assert_eq!(effects(&db).await, twice(1..=5));
    running.stops().await;
    let warnings = captured.said(Level::WARN);
    assert_eq!(captured.count("event consumer parked an event"), 1, "{warnings:?}");
    assert_eq!(captured.count("event consumer round failed"), 1, "{warnings:?}");
    assert!(warnings.iter().any(|line| line.contains("seq=2")), "{warnings:?}");
}

#[tokio::test]
async fn a_parked_event_that_is_gone_is_lost_and_not_tried_for_ever() {
    let switch = Switch::on();
    let bench = Bench::on(database().await, config(), parking(switch.failing_at(1), 1)).await;
    append_about(&bench.db, &["x", "x"]).await;
    work(&bench).await;
    as_admin(&bench.db, "DELETE FROM seqline.event_log WHERE seq = 1").await;
    apply_retry(&bench.db, None).await;
    switch.off();
    assert_eq!(work(&bench).await, [""; 0]);
    assert_eq!((effects(&bench.db).await, parked_seqs(&bench.db).await), (twice([2]), vec![]));
    assert_eq!(state_of(&bench.db, PROBE).await.lost, 1);
}
