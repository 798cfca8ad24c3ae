//! Lanes: of each key one has the events, in order, and they work at the same time.

use seqline::NewEvent;
use seqline::consumer::{Division, Filter, LaneKey, Mode, OperateError, divide, wait_for};
use sha2::{Digest, Sha256};

use super::parking::append_about;
use super::*;

const APPLY: Mode<'_> = Mode::Apply { why: Some("a test") };

/// What is written down about it, in other words than those of the database.
fn lane_of(key: &str, lanes: u32) -> u32 {
    let digest = Sha256::digest(key.as_bytes());
    u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]]) % lanes
}

/// Resources of which each lane gets some.
fn resources(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("r{}", n % 17)).collect()
}

async fn append_resources(db: &TestDb, resources: &[String]) {
    append_about(db, &resources.iter().map(String::as_str).collect::<Vec<_>>()).await;
}

/// A consumer that writes down by which lane an event was handled.
fn in_lanes(lanes: u32) -> Consumer {
    let handler = acting(|event, round| {
        let (seq, lane) = (event.seq, round.lane());
        Box::pin(async move {
            sqlx::query("INSERT INTO lanes_of (seq, lane) VALUES ($1, $2)")
                .bind(seq)
                .bind(i64::from(lane))
                .execute(round.connection())
                .await?;
            Ok(())
        })
    });
    probe(handler).lanes(LaneKey::Resource, lanes)
}

async fn lanes_database() -> TestDb {
    let db = database().await;
    let sql = "CREATE TABLE lanes_of (id bigserial, seq bigint NOT NULL, lane bigint NOT NULL)";
    sqlx::raw_sql(sql).execute(&db.app()).await.unwrap();
    db
}

/// Number and lane of what was handled, in the order in which it was.
async fn handled(db: &TestDb) -> Vec<(i64, i64)> {
    sqlx::query_as("SELECT seq, lane FROM lanes_of ORDER BY id").fetch_all(&db.admin()).await.unwrap()
}

/// Each event was handled once, by the lane of its key.
async fn assert_divided(db: &TestDb, resources: &[String], lanes: u32) {
    let mut handled = handled(db).await;
    handled.sort_unstable();
    let expected: Vec<(i64, i64)> = (1..)
        .zip(resources)
        .map(|(seq, id)| (seq, i64::from(lane_of(&format!("order/{id}"), lanes))))
        .collect();
    assert_eq!(handled, expected);
    assert_eq!(effects(db).await, twice(1..=resources.len() as i64));
}

async fn positions(db: &TestDb) -> Vec<i64> {
    sqlx::query_scalar(
        "SELECT last_seq FROM seqline.event_consumer_cursors WHERE name = 'probe' ORDER BY lane",
    )
    .fetch_all(&db.admin())
    .await
    .unwrap()
}

async fn drains(bench: &Bench) {
    while bench.round().await.unwrap().outcome != Outcome::Idle {}
}

async fn divides(
    db: &TestDb,
    lanes: u32,
    key: Option<LaneKey>,
    wait: Duration,
    mode: Mode<'_>,
) -> Result<Division, OperateError> {
    let mut session = db.connect(Role::App).await;
    divide(&mut session, &Clock::system(), &name(PROBE), (lanes, key), wait, mode).await
}

#[tokio::test]
async fn the_lane_of_a_key_is_what_is_written_down() {
    let db = TestDb::new().await;
    let mut session = db.connect(Role::App).await;
    let long = "k".repeat(300);
    for key in ["", "order/17", "order/18", "Stra\u{df}e", "\u{1f4e6}", &long] {
        for lanes in [1_i32, 2, 3, 7, 64] {
            let found: i32 = sqlx::query_scalar("SELECT seqline.lane_of($1, $2)")
                .bind(key)
                .bind(lanes)
                .fetch_one(&mut session)
                .await
                .unwrap();
            assert_eq!(found.unsigned_abs(), lane_of(key, lanes.unsigned_abs()), "{key} in {lanes}");
        }
    }
    // What others can compare theirs with.
    assert_eq!((lane_of("order/17", 4), lane_of("order/17", 64)), (1, 53));
}

#[tokio::test]
async fn each_event_is_handled_once_by_the_lane_of_its_key() {
    let resources = resources(60);
    let bench = Bench::on(lanes_database().await, config(), in_lanes(4)).await;
    append_resources(&bench.db, &resources).await;
    drains(&bench).await;
    assert_divided(&bench.db, &resources, 4).await;
    assert_eq!(positions(&bench.db).await, [60; 4]);
    let state = state_of_lanes(&bench.db).await;
    assert_eq!((state.lanes, state.last_seq, state.lag()), (4, 60, 0));
}

async fn state_of_lanes(db: &TestDb) -> ConsumerState {
    let all = states(&mut db.connect(Role::App).await).await.unwrap();
    all.into_iter().find(|state| state.name == PROBE).unwrap()
}

#[tokio::test]
async fn events_are_divided_by_the_key_that_was_chosen_and_those_without_one_are_in_the_first_lane() {
    let events = || {
        let event = || NewEvent::builder("test.happened", "order", "any");
        [
            event().resource_id("r1").channel("c1").space("s1"),
            event().resource_id("r2").channel("c1").thread("t1"),
            event().channel("c2").thread("t2").space("s2"),
            event().resource_id("r3"),
            event(),
        ]
    };
    let keys = [
        (LaneKey::Resource, [Some("order/r1"), Some("order/r2"), None, Some("order/r3"), None]),
        (LaneKey::Channel, [Some("c1"), Some("c1"), Some("c2"), None, None]),
        (LaneKey::Thread, [None, Some("t1"), Some("t2"), None, None]),
        (LaneKey::Space, [Some("s1"), None, Some("s2"), None, None]),
    ];
    for (key, of_events) in keys {
        let bench = Bench::on(lanes_database().await, config(), in_lanes(8).lanes(key, 8)).await;
        let built: Vec<NewEvent> = events().into_iter().map(|event| event.build().unwrap()).collect();
        let mut tx = seqline::begin(&bench.db.producer()).await.unwrap();
        seqline::append(&mut tx, &built).await.unwrap();
        seqline::commit(tx).await.unwrap();
        bench.db.settled().await;
        drains(&bench).await;
        let mut found = handled(&bench.db).await;
        found.sort_unstable();
        let expected: Vec<(i64, i64)> = (1..)
            .zip(of_events)
            .map(|(seq, key)| (seq, key.map_or(0, |key| i64::from(lane_of(key, 8)))))
            .collect();
        assert_eq!(found, expected, "{key}");
    }
}

#[tokio::test]
async fn a_lane_that_hangs_does_not_hold_up_the_others() {
    let resources = resources(30);
    let db = database().await;
    append_resources(&db, &resources).await;
    let gate = Gate::closed();
    let hanging = lane_of(&format!("order/{}", resources[0]), 3);
    let at_gate = gate.clone();
    let handler = acting(move |event, _| {
        let (gate, seq) = (at_gate.clone(), event.seq);
        Box::pin(async move {
            if seq == 1 {
                gate.pass(1).await;
            }
            Ok(())
        })
    });
    let consumer = probe(handler).lanes(LaneKey::Resource, 3);
    let running = Running::on(&db, quick(), Clock::system(), [consumer]);
    eventually(DEADLINE, "the other lanes are done", async || {
        let positions = positions(&db).await;
        positions.iter().filter(|seq| **seq == 30).count() == 2
    })
    .await;
    assert_eq!(positions(&db).await[hanging as usize], 0);
    let mut session = db.connect(Role::Producer).await;
    assert!(!wait_for(&mut session, &name(PROBE), 1, Duration::ZERO).await.unwrap(), "one lane is behind");
    gate.open();
    assert!(wait_for(&mut session, &name(PROBE), 30, DEADLINE).await.unwrap());
    assert_eq!(effects(&db).await, twice(1..=30));
    running.stops().await;
}

#[tokio::test]
async fn workers_share_the_lanes_with_writers_and_filters_and_each_key_stays_in_order() {
    let db = lanes_database().await;
    let consumer = || {
        let filter = Filter::everything().types(["test.*"]);
        in_lanes(5).filter(filter).unwrap()
    };
    let running: Vec<_> = (0..3)
        .map(|_| {
            let config = ConsumerConfig { batch_size: 3, scan_size: 7, ..quick() };
            Running::on(&db, config, Clock::system(), [consumer()])
        })
        .collect();
    let mut all = Vec::new();
    for _ in 0..20 {
        let resources = resources(17);
        append_resources(&db, &resources).await;
        all.extend(resources);
    }
    let mut session = db.connect(Role::Producer).await;
    assert!(wait_for(&mut session, &name(PROBE), all.len() as i64, DEADLINE).await.unwrap());
    assert_divided(&db, &all, 5).await;
    let mut last: std::collections::HashMap<&String, i64> = std::collections::HashMap::new();
    for (seq, _) in handled(&db).await {
        let before = last.insert(&all[seq as usize - 1], seq);
        assert!(before < Some(seq), "{seq} after {before:?}");
    }
    for running in running {
        running.stops().await;
    }
}

#[tokio::test]
async fn a_consumer_keeps_its_lanes_whatever_its_program_says_and_it_is_said_once() {
    let (captured, _guard) = Captured::start();
    let bench = Bench::on(lanes_database().await, config(), in_lanes(3)).await;
    let resources = resources(10);
    append_resources(&bench.db, &resources).await;
    let running = Running::on(&bench.db, quick(), Clock::system(), [in_lanes(1)]);
    let mut session = bench.db.connect(Role::Producer).await;
    assert!(wait_for(&mut session, &name(PROBE), 10, DEADLINE).await.unwrap());
    running.stops().await;
    assert_divided(&bench.db, &resources, 3).await;
    assert_eq!(captured.count("event consumer has other lanes than its program says"), 1);
}

#[tokio::test]
async fn lanes_out_of_bounds_are_refused() {
    for lanes in [0, 65, u32::MAX] {
        let db = database().await;
        let (pool, listen) = (db.app_pool(1), db.options(Role::App));
        let consumers =
            consumers(pool, listen, config(), Clock::system(), [probe(plain()).lanes(LaneKey::Space, lanes)]);
        let error = consumers.ensure().await.unwrap_err();
        assert!(error.to_string().contains("the number of lanes is not between 1 and 64"), "{error}");
    }
}

#[tokio::test]
async fn one_lane_becomes_several_where_it_stands_and_several_one() {
    let mut all = resources(20);
    let mut bench = Bench::on(lanes_database().await, config(), in_lanes(1)).await;
    append_resources(&bench.db, &all).await;
    bench.processes(10).await;
    let plan = divides(&bench.db, 4, None, Duration::ZERO, Mode::Plan).await.unwrap();
    assert_eq!((plan.lanes_before, plan.last_seq, plan.behind), (1, 10, 0));
    assert_eq!(positions(&bench.db).await, [10], "it was only planned");
    divides(&bench.db, 4, None, Duration::ZERO, APPLY).await.unwrap();
    assert_eq!(positions(&bench.db).await, [10; 4]);
    drains(&bench).await;
    divides(&bench.db, 1, None, Duration::ZERO, APPLY).await.unwrap();
    let more = resources(5);
    append_resources(&bench.db, &more).await;
    all.extend(more);
    bench = Bench::on(bench.db, config(), in_lanes(1)).await;
    drains(&bench).await;
    assert_eq!(positions(&bench.db).await, [25]);
    assert_eq!(effects(&bench.db).await, twice(1..=25));
    let actions: Vec<(String, String)> =
        sqlx::query_as("SELECT before::text, after::text FROM seqline.audit_log ORDER BY id")
            .fetch_all(&bench.db.admin())
            .await
            .unwrap();
    let row = |before: u32, after: u32, last_seq: i64| {
        (
            format!(r#"{{"key": "resource", "lanes": {before}}}"#),
            format!(r#"{{"key": "resource", "lanes": {after}, "last_seq": {last_seq}}}"#),
        )
    };
    assert_eq!(actions, [row(1, 4, 10), row(4, 1, 20)]);
}

#[tokio::test]
async fn lanes_are_not_divided_anew_while_one_is_behind_and_go_on_as_before() {
    let resources = resources(40);
    let bench = Bench::on(lanes_database().await, config(), in_lanes(3)).await;
    append_resources(&bench.db, &resources).await;
    // One lane is ahead.
    as_admin(&bench.db, "UPDATE seqline.event_consumer_cursors SET last_seq = 25 WHERE lane = 1").await;
    let error = divides(&bench.db, 2, None, Duration::from_millis(60), APPLY).await.unwrap_err();
    assert_eq!(error.to_string(), "lane 0 is at seq 0 and did not come to seq 25 in time");
    assert_eq!(positions(&bench.db).await, [0, 25, 0]);
    drains(&bench).await;
    assert_eq!(positions(&bench.db).await, [40; 3], "nothing is left that would stop them");
}

#[tokio::test]
async fn the_database_divides_only_what_is_at_one_place_whoever_asks() {
    let bench = Bench::on(lanes_database().await, config(), in_lanes(3)).await;
    append_resources(&bench.db, &resources(40)).await;
    as_admin(&bench.db, "UPDATE seqline.event_consumer_cursors SET last_seq = 25 WHERE lane = 1").await;
    let mut app = bench.db.connect(Role::App).await;
    for (lanes, key) in [("2", "NULL"), ("3", "'channel'")] {
        let sql = format!("SELECT seqline.set_consumer_lanes('probe', {lanes}, {key}, true, NULL)");
        let error = sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut app).await.unwrap_err();
        let message = error.as_database_error().unwrap().message().to_owned();
        assert_eq!(message, "lane 0 of consumer probe is at seq 0, and another at 25");
    }
    assert_eq!(positions(&bench.db).await, [0, 25, 0]);
}

#[tokio::test]
async fn lanes_that_nobody_works_on_are_not_waited_for() {
    let bench = Bench::on(lanes_database().await, config(), in_lanes(3)).await;
    append_resources(&bench.db, &resources(10)).await;
    as_admin(&bench.db, "UPDATE seqline.event_consumer_cursors SET last_seq = 5 WHERE lane = 1").await;
    as_admin(&bench.db, "SELECT seqline.set_consumer_paused('probe', true, NULL)").await;
    let error = divides(&bench.db, 2, None, 100 * DEADLINE, APPLY).await.unwrap_err();
    let message = "no round of consumer probe begins, so its lanes do not come to the same place";
    assert_eq!(error.to_string(), message);
}

#[tokio::test]
async fn lanes_that_are_gathered_wait_for_each_other_and_are_then_divided_anew() {
    let resources = resources(40);
    let bench =
        Bench::on(lanes_database().await, ConsumerConfig { batch_size: 4, ..config() }, in_lanes(3)).await;
    append_resources(&bench.db, &resources).await;
    // Rounds of the lane that is furthest behind: none is where another is.
    for _ in 0..4 {
        bench.round().await.unwrap();
    }
    let before = positions(&bench.db).await;
    let furthest = *before.iter().max().unwrap();
    assert!(before.iter().any(|seq| *seq < furthest) && furthest < 40, "{before:?}");
    let dividing = divides(&bench.db, 7, None, DEADLINE, APPLY);
    let rounds = async {
        let gathered = async || {
            let barrier: Option<i64> = sqlx::query_scalar("SELECT barrier_seq FROM seqline.event_consumers")
                .fetch_one(&bench.db.admin())
                .await
                .unwrap();
            barrier == Some(furthest)
        };
        eventually(DEADLINE, "the lanes are gathered", gathered).await;
        drains(&bench).await;
    };
    let (divided, ()) = tokio::join!(dividing, rounds);
    divided.unwrap();
    assert_eq!(positions(&bench.db).await.len(), 7);
    drains(&bench).await;
    assert_eq!(positions(&bench.db).await, [40; 7]);
    assert_eq!(effects(&bench.db).await, twice(1..=40));
    let lanes = |seq: i64| if seq <= furthest { 3 } else { 7 };
    for (seq, lane) in handled(&bench.db).await {
        let key = format!("order/{}", resources[seq as usize - 1]);
        assert_eq!(lane, i64::from(lane_of(&key, lanes(seq))), "{seq}");
    }
}

#[tokio::test]
async fn who_gathers_lanes_and_dies_holds_them_up_for_a_while_only() {
    let resources = resources(20);
    let bench = Bench::on(lanes_database().await, config(), in_lanes(2)).await;
    append_resources(&bench.db, &resources).await;
    as_admin(&bench.db, "SELECT seqline.gather_lanes('probe', '10 minutes')").await;
    assert_eq!(bench.round().await.unwrap().outcome, Outcome::Idle);
    as_admin(&bench.db, "UPDATE seqline.event_consumers SET barrier_until = clock_timestamp()").await;
    drains(&bench).await;
    assert_divided(&bench.db, &resources, 2).await;
}

#[tokio::test]
async fn workers_that_run_divide_their_work_anew() {
    let mut all = resources(50);
    let db = lanes_database().await;
    append_resources(&db, &all).await;
    let running = [1, 2].map(|_| {
        Running::on(&db, ConsumerConfig { batch_size: 5, ..quick() }, Clock::system(), [in_lanes(2)])
    });
    eventually(DEADLINE, "the consumer", async || !positions(&db).await.is_empty()).await;
    let mut session = db.connect(Role::Producer).await;
    for lanes in [5, 1, 8] {
        divides(&db, lanes, None, DEADLINE, APPLY).await.unwrap();
        let more = resources(20);
        append_resources(&db, &more).await;
        all.extend(more);
        assert!(wait_for(&mut session, &name(PROBE), all.len() as i64, DEADLINE).await.unwrap());
        assert_eq!(positions(&db).await, vec![all.len() as i64; lanes as usize]);
    }
    assert_eq!(effects(&db).await, twice(1..=all.len() as i64));
    for running in running {
        running.stops().await;
    }
}

#[tokio::test]
async fn a_round_of_a_lane_that_is_taken_away_is_waited_for() {
    let resources = resources(10);
    let db = lanes_database().await;
    append_resources(&db, &resources).await;
    let gate = Gate::closed();
    let bench = Bench::on(db, config(), probe(gate.handler()).lanes(LaneKey::Resource, 2)).await;
    let dividing = async {
        gate.is_reached(1).await;
        let mut session = bench.db.connect(Role::App).await;
        sqlx::query("SET lock_timeout = '50ms'").execute(&mut session).await.unwrap();
        let wanted = (1, None);
        let error = divide(&mut session, &Clock::system(), &name(PROBE), wanted, Duration::ZERO, APPLY).await;
        gate.open();
        error.unwrap_err()
    };
    let (round, error) = tokio::join!(bench.round(), dividing);
    round.unwrap();
    assert!(error.is_retryable(), "{error}");
    drains(&bench).await;
    assert_eq!(effects(&bench.db).await, twice(1..=10));
}

#[tokio::test]
async fn the_key_is_not_changed_while_events_are_parked_by_it() {
    let bench = Bench::on(database().await, config(), probe(plain())).await;
    append_about(&bench.db, &["x"]).await;
    bench.processes(1).await;
    as_admin(
        &bench.db,
        "INSERT INTO seqline.parked_events (consumer, seq, key) VALUES ('probe', 1, 'order/x')",
    )
    .await;
    let error = divides(&bench.db, 1, Some(LaneKey::Channel), Duration::ZERO, Mode::Plan).await.unwrap_err();
    assert_eq!(error.to_string(), "consumer probe has parked events, which wait by resource");
    divides(&bench.db, 3, None, Duration::ZERO, APPLY).await.unwrap();
    as_admin(&bench.db, "DELETE FROM seqline.parked_events").await;
    divides(&bench.db, 3, Some(LaneKey::Channel), Duration::ZERO, APPLY).await.unwrap();
}

#[tokio::test]
async fn a_lane_above_the_head_fails_and_does_not_move_while_another_goes_on() {
    let (db, resources) = (lanes_database().await, resources(20));
    append_resources(&db, &resources).await;
    let bench = Bench::on(db, config(), in_lanes(2)).await;
    as_admin(&bench.db, "UPDATE seqline.event_consumer_cursors SET last_seq = 50 WHERE lane = 1").await;
    let error = seqline_testkit::drain(&bench.consumers, &name(PROBE)).await.unwrap_err();
    assert!(matches!(error, RoundError::AheadOfHead { last_seq: 50, head: 20 }), "{error:?}");
    assert_eq!(positions(&bench.db).await, [20, 50]);
    let handled = handled(&bench.db).await;
    assert!(!handled.is_empty() && handled.iter().all(|(_, lane)| *lane == 0), "{handled:?}");
}
