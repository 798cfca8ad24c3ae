//! Retention waits: what a consumer has still to get stays, and not for ever.

use seqline::consumer::LostRange;
use seqline::maintenance::holders;
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, Connection};
use time::OffsetDateTime;
use tokio::task::JoinHandle;
use tracing::Level;

use super::*;
use crate::consumers::{Bench, Captured, as_admin, plain, probe, reaches};

/// Partitions of two events, five events, and all of them so many days old.
async fn five_events(days: i32) -> TestDb {
    let db = TestDb::new().await;
    prepare(&db, days).await;
    db
}

async fn prepare(db: &TestDb, days: i32) {
    small_partitions(db, 2, 3).await;
    append(&db.app(), 1..=5).await;
    as_admin(db, &format!("UPDATE seqline.event_log SET occurred_at = occurred_at - interval '{days} days'"))
        .await;
}

/// Retention of 30 days, and 30 days for those who are behind.
fn maintenance(db: &TestDb) -> Maintenance {
    let config = MaintenanceConfig { retention_hold: 30 * DAY, ..config() };
    Maintenance::new(db.app(), config, Clock::system())
}

/// Makes a consumer whose lanes stand there.
async fn stands(db: &TestDb, name: &str, kind: &str, lanes: &[i64]) {
    let ensure = format!("SELECT seqline.ensure_consumer('{name}', '{kind}', 'head', {})", lanes.len());
    as_admin(db, &ensure).await;
    for (lane, last_seq) in lanes.iter().enumerate() {
        let set = format!("UPDATE seqline.event_consumer_cursors SET last_seq = {last_seq}");
        as_admin(db, &format!("{set} WHERE name = '{name}' AND lane = {lane}")).await;
    }
}

async fn parks(db: &TestDb, name: &str, seqs: &[i64]) {
    for seq in seqs {
        let sql = format!("INSERT INTO seqline.parked_events (consumer, seq) VALUES ('{name}', {seq})");
        as_admin(db, &sql).await;
    }
}

/// How many partitions a run drops, and who keeps the next.
async fn run(db: &TestDb) -> (i32, Vec<String>) {
    let report = maintenance(db).run().await.unwrap();
    assert!(!report.postponed);
    (report.dropped, report.held.map(|held| held.holders.0).unwrap_or_default())
}

fn kept_by<const N: usize>(names: [&str; N]) -> Vec<String> {
    names.map(str::to_owned).into()
}

async fn lost_ranges(db: &TestDb) -> Vec<(String, i64, i64)> {
    sqlx::query_as("SELECT consumer, lost_from, lost_to FROM seqline.lost_ranges ORDER BY 1, 2")
        .fetch_all(&db.admin())
        .await
        .unwrap()
}

#[tokio::test]
async fn what_a_consumer_has_not_passed_stays_whoever_runs_it() {
    for kind in ["worker", "poll"] {
        let db = five_events(40).await;
        stands(&db, "totals", kind, &[1]).await;
        assert_eq!(run(&db).await, (0, kept_by(["totals"])), "{kind}");
        assert_eq!(ends(&db).await, (1, 5));
        as_admin(&db, "UPDATE seqline.event_consumer_cursors SET last_seq = 2").await;
        assert_eq!(run(&db).await, (1, kept_by(["totals"])), "{kind}");
        as_admin(&db, "UPDATE seqline.event_consumer_cursors SET last_seq = 4").await;
        assert_eq!(run(&db).await, (1, kept_by([])), "{kind}");
        assert_eq!(ends(&db).await, (5, 5));
        assert_eq!(lost_ranges(&db).await, []);
    }
}

#[tokio::test]
async fn one_lane_of_several_is_enough() {
    let db = five_events(40).await;
    stands(&db, "totals", "worker", &[5, 3, 5]).await;
    assert_eq!(run(&db).await, (1, kept_by(["totals"])));
    as_admin(&db, "UPDATE seqline.event_consumer_cursors SET last_seq = 5 WHERE lane = 1").await;
    assert_eq!(run(&db).await, (1, kept_by([])));
}

#[tokio::test]
async fn a_parked_event_keeps_its_partition_and_all_after_it() {
    let db = five_events(40).await;
    stands(&db, "totals", "worker", &[5]).await;
    parks(&db, "totals", &[3]).await;
    assert_eq!(run(&db).await, (1, kept_by(["totals"])));
    as_admin(&db, "SELECT seqline.discard_parked('totals', 3, true, 'not needed')").await;
    assert_eq!(run(&db).await, (1, kept_by([])));
    assert_eq!(lost_ranges(&db).await, []);
}

#[tokio::test]
async fn a_paused_consumer_keeps_its_events_and_a_retired_one_does_not() {
    let db = five_events(40).await;
    stands(&db, "totals", "worker", &[0]).await;
    parks(&db, "totals", &[1]).await;
    as_admin(&db, "SELECT seqline.set_consumer_paused('totals', true, 'mending')").await;
    assert_eq!(run(&db).await, (0, kept_by(["totals"])));
    as_admin(&db, "SELECT seqline.retire_consumer('totals', true, 'nobody needs it')").await;
    assert_eq!(run(&db).await, (2, kept_by([])));
    // It can come back, and then finds that what it had parked is gone.
    assert_eq!(lost_ranges(&db).await, [("totals".to_owned(), 1, 1)]);
}

#[tokio::test]
async fn a_replay_keeps_what_it_is_to_get_and_nothing_behind_that() {
    let db = five_events(40).await;
    stands(&db, "totals", "worker", &[5]).await;
    as_admin(&db, "SELECT seqline.replay_consumer('totals', 'again', 1, 3, true, 'totals were wrong')").await;
    assert_eq!(run(&db).await, (0, kept_by(["again"])));
    for (last_seq, dropped, holders) in [(2, 1, kept_by(["again"])), (3, 1, kept_by([]))] {
        let set = format!("UPDATE seqline.event_consumer_cursors SET last_seq = {last_seq}");
        as_admin(&db, &format!("{set} WHERE name = 'again'")).await;
        assert_eq!(run(&db).await, (dropped, holders));
    }
    // One that has lost all of its piece waits for nothing in the rest.
    let db = five_events(40).await;
    stands(&db, "again", "worker", &[0]).await;
    as_admin(&db, "UPDATE seqline.event_consumers SET until_seq = 2").await;
    assert_eq!(drop_oldest(&db).await, 1);
    assert_eq!(run(&db).await, (1, kept_by([])));
}

#[tokio::test]
async fn a_cursor_above_the_head_keeps_nothing() {
    let db = five_events(40).await;
    stands(&db, "totals", "worker", &[1000]).await;
    assert_eq!(run(&db).await, (2, kept_by([])));
}

#[tokio::test]
async fn a_consumer_without_a_cursor_keeps_nothing() {
    let db = five_events(40).await;
    stands(&db, "totals", "worker", &[0]).await;
    as_admin(&db, "DELETE FROM seqline.event_consumer_cursors").await;
    assert_eq!(run(&db).await, (2, kept_by([])));
}

#[tokio::test]
async fn those_who_keep_a_partition_are_named_furthest_behind_first_and_how_old_it_is() {
    let db = five_events(40).await;
    for (name, last_seq) in [("a", 1), ("b", 0), ("c", 2)] {
        stands(&db, name, "poll", &[last_seq]).await;
    }
    parks(&db, "c", &[2]).await;
    let held = maintenance(&db).run().await.unwrap().held.unwrap();
    assert_eq!(held.name, "event_log_from_0000000000000000001");
    assert_eq!(held.holders.0, ["b", "a", "c"]);
    let beyond = held.beyond_retention;
    assert!((10 * DAY..10 * DAY + DEADLINE).contains(&beyond), "{beyond:?}");
}

#[tokio::test]
async fn what_nobody_has_come_to_when_the_hold_is_over_is_dropped_and_recorded_by_the_next_round() {
    let bench =
        Bench::on(crate::consumers::database().await, crate::consumers::config(), probe(plain())).await;
    prepare(&bench.db, 59).await;
    let of_probe = (0, kept_by(["probe"]));
    assert_eq!(run(&bench.db).await, of_probe);
    as_admin(&bench.db, "UPDATE seqline.event_log SET occurred_at = occurred_at - interval '1 day'").await;
    let report = maintenance(&bench.db).run().await.unwrap();
    assert_eq!((report.dropped, report.held, report.lost.len()), (2, None, 2));
    assert_eq!(report.lost[1].holders.0, ["probe"]);
    assert_eq!(lost_ranges(&bench.db).await, []);
    assert_eq!(bench.processes(1).await.lost, Some(LostRange { from: 1, to: 4 }));
    assert_eq!(lost_ranges(&bench.db).await, [("probe".to_owned(), 1, 4)]);
}

#[tokio::test]
async fn a_partition_is_held_until_all_of_its_events_are_older_than_the_hold() {
    let db = five_events(70).await;
    stands(&db, "totals", "worker", &[0]).await;
    as_admin(&db, "UPDATE seqline.event_log SET occurred_at = now() - interval '50 days' WHERE seq = 1")
        .await;
    assert_eq!(run(&db).await, (0, kept_by(["totals"])));
}

#[tokio::test]
async fn what_was_parked_in_a_dropped_partition_is_recorded_with_the_drop() {
    let db = TestDb::new().await;
    small_partitions(&db, 5, 3).await;
    append(&db.app(), 1..=6).await;
    as_admin(&db, "UPDATE seqline.event_log SET occurred_at = occurred_at - interval '70 days'").await;
    for name in ["invoices", "totals"] {
        stands(&db, name, "worker", &[6]).await;
    }
    parks(&db, "totals", &[1, 2, 4, 6]).await;
    parks(&db, "invoices", &[3]).await;
    let report = maintenance(&db).run().await.unwrap();
    assert_eq!((report.dropped, report.lost[0].holders.0.clone()), (1, kept_by(["invoices", "totals"])));
    let lost = |name: &str, from, to| (name.to_owned(), from, to);
    assert_eq!(lost_ranges(&db).await, [lost("invoices", 3, 3), lost("totals", 1, 2), lost("totals", 4, 4)]);
    let parked: Vec<(String, i64)> = sqlx::query_as("SELECT consumer, seq FROM seqline.parked_events")
        .fetch_all(&db.admin())
        .await
        .unwrap();
    assert_eq!(parked, [("totals".to_owned(), 6)]);
}

#[tokio::test]
async fn what_waited_behind_a_parked_event_that_was_dropped_follows() {
    let db = TestDb::new().await;
    small_partitions(&db, 5, 3).await;
    append(&db.app(), 1..=9).await;
    as_admin(&db, "UPDATE seqline.event_log SET occurred_at = occurred_at - interval '70 days'").await;
    stands(&db, "totals", "worker", &[9]).await;
    stands(&db, "invoices", "worker", &[9]).await;
    as_admin(
        &db,
        "INSERT INTO seqline.parked_events (consumer, seq, key, error_type) VALUES
             ('totals', 1, 'a', 'handler'), ('totals', 6, 'a', NULL), ('totals', 7, 'a', NULL),
             ('totals', 2, 'b', 'handler'), ('totals', 8, 'b', 'panic'), ('totals', 9, 'c', NULL), ('invoices', 6, 'a', NULL)",
    )
    .await;
    assert_eq!(maintenance(&db).run().await.unwrap().dropped, 1);
    // The first of its key, unless it has failed itself; of nobody else.
    let due: Vec<(String, i64)> =
        sqlx::query_as("SELECT consumer, seq FROM seqline.parked_events WHERE next_attempt_at IS NOT NULL")
            .fetch_all(&db.admin())
            .await
            .unwrap();
    assert_eq!(due, [("totals".to_owned(), 6)]);
}

#[tokio::test]
async fn without_a_hold_retention_waits_for_nobody() {
    let db = five_events(31).await;
    stands(&db, "totals", "worker", &[0]).await;
    parks(&db, "totals", &[1]).await;
    let config = MaintenanceConfig { retention_hold: Duration::ZERO, ..config() };
    let report = Maintenance::new(db.app(), config, Clock::system()).run().await.unwrap();
    assert_eq!((report.dropped, report.held), (2, None));
    assert_eq!(lost_ranges(&db).await, [("totals".to_owned(), 1, 1)]);
}

#[tokio::test]
async fn a_hold_longer_than_history_is_for_ever() {
    let db = five_events(40).await;
    stands(&db, "totals", "worker", &[0]).await;
    let config = MaintenanceConfig { retention_hold: Duration::MAX, ..config() };
    let report = Maintenance::new(db.app(), config, Clock::system()).run().await.unwrap();
    assert_eq!((report.dropped, report.held.is_some()), (0, true));
}

/// A run that has looked at the consumers and waits for somebody who uses the log.
async fn waits_for_the_log(db: &TestDb, options: PgConnectOptions) -> JoinHandle<MaintenanceReport> {
    let config = MaintenanceConfig {
        retention_hold: 30 * DAY,
        detach_lock_timeout: DEADLINE,
        detach_lock_timeout_max: DEADLINE,
        ..config()
    };
    let pool = PgPoolOptions::new().max_connections(1).connect_lazy_with(options);
    let maintenance = Maintenance::new(pool, config, Clock::system());
    let run = tokio::spawn(async move { maintenance.run().await.unwrap() });
    eventually(DEADLINE, "the drop waits", async || detach_is_waiting(db).await).await;
    run
}

#[tokio::test]
async fn events_that_are_given_to_a_consumer_while_a_drop_waits_stay() {
    const GIVES: [&str; 4] = [
        "SELECT * FROM seqline.rewind_consumer('totals', 1, true, 'totals were wrong')",
        "SELECT seqline.register_consumer('late', 'oldest')",
        "SELECT * FROM seqline.replay_consumer('totals', 'again', 1, 2, true, 'totals were wrong')",
        "SELECT count(*) FROM seqline.event_log; SELECT seqline.park_event('totals', 2, 3, 'handler')",
    ];
    for gives in GIVES {
        // Whatever the isolation level of the session is by default.
        for isolation in ["read committed", "serializable"] {
            let db = five_events(40).await;
            stands(&db, "totals", "worker", &[5]).await;
            let mut app = db.connect(Role::App).await;
            sqlx::raw_sql(AssertSqlSafe(format!("BEGIN; {gives}"))).execute(&mut app).await.unwrap();
            let options = db.options(Role::App).options([("default_transaction_isolation", isolation)]);
            let run = waits_for_the_log(&db, options).await;
            sqlx::raw_sql("COMMIT").execute(&mut app).await.unwrap();
            let report = run.await.unwrap();
            assert_eq!((report.dropped, report.held.is_some()), (0, true), "{gives}, {isolation}");
            assert_eq!(ends(&db).await, (1, 5), "{gives}, {isolation}");
        }
    }
}

#[tokio::test]
async fn a_rewind_that_waits_for_a_drop_is_told_what_is_left() {
    let db = five_events(40).await;
    stands(&db, "totals", "worker", &[5]).await;
    let mut dropping = db.connect(Role::App).await;
    let drop = "SELECT seqline.sync_event_log_drop_expired(now() - interval '30 days', now() - interval '60 days', 5, '5 s')";
    sqlx::raw_sql(AssertSqlSafe(format!("BEGIN; {drop}"))).execute(&mut dropping).await.unwrap();
    let pool = db.app();
    let rewind = tokio::spawn(async move {
        sqlx::query("SELECT * FROM seqline.rewind_consumer('totals', 1, true, 'totals were wrong')")
            .execute(&pool)
            .await
    });
    let waits = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%rewind_consumer(%'
                 AND datname = current_database())";
    eventually(DEADLINE, "the rewind waits", async || {
        sqlx::query_scalar(waits).fetch_one(&db.admin()).await.unwrap()
    })
    .await;
    sqlx::raw_sql("COMMIT").execute(&mut dropping).await.unwrap();
    let refused = rewind.await.unwrap().unwrap_err().to_string();
    assert!(refused.contains("seq 1 is not in the log: it holds 3 to 5"), "{refused}");
}

#[tokio::test]
async fn a_drop_that_finds_the_partition_held_gives_the_log_back_at_once() {
    let db = five_events(40).await;
    stands(&db, "totals", "worker", &[5]).await;
    let mut app = db.connect(Role::App).await;
    let rewind = "BEGIN; SELECT * FROM seqline.rewind_consumer('totals', 1, true, 'totals were wrong')";
    sqlx::raw_sql(rewind).execute(&mut app).await.unwrap();
    let mut dropping = db.connect(Role::App).await;
    let drop = "BEGIN; SELECT seqline.sync_event_log_drop_expired(now() - interval '30 days', now() - interval '60 days', 5, '20 s')";
    let dropped = tokio::spawn(async move {
        sqlx::raw_sql(drop).execute(&mut dropping).await.unwrap();
        dropping
    });
    eventually(DEADLINE, "the drop waits", async || detach_is_waiting(&db).await).await;
    sqlx::raw_sql("COMMIT").execute(&mut app).await.unwrap();
    let dropping = dropped.await.unwrap();
    // Its transaction is still open.
    append(&db.producer(), [6]).await;
    assert_eq!(ends(&db).await, (1, 6));
    dropping.close().await.unwrap();
}

#[tokio::test]
async fn a_partition_that_is_held_costs_nobody_a_lock() {
    let db = five_events(40).await;
    stands(&db, "totals", "worker", &[0]).await;
    let reader = reader_in_the_way(&db).await;
    assert_eq!(run(&db).await, (0, kept_by(["totals"])));
    leave(reader).await;
}

#[tokio::test]
async fn a_drop_that_could_not_see_what_others_commit_is_refused() {
    let db = five_events(40).await;
    let mut app = db.connect(Role::App).await;
    sqlx::raw_sql("BEGIN ISOLATION LEVEL REPEATABLE READ").execute(&mut app).await.unwrap();
    let drop = "SELECT seqline.sync_event_log_drop_expired(now(), now(), 5, '5 s')";
    let error = sqlx::raw_sql(drop).execute(&mut app).await.unwrap_err();
    assert_eq!(error.as_database_error().unwrap().code().unwrap(), "0A000");
}

#[tokio::test]
async fn rounds_and_drops_at_once_lose_nothing() {
    let db = crate::consumers::database().await;
    small_partitions(&db, 5, 4).await;
    let running =
        crate::consumers::Running::on(&db, crate::consumers::quick(), Clock::system(), [probe(plain())]);
    // Who does not stand anywhere yet holds nothing.
    reaches(&db, "probe", 0).await;
    let config = MaintenanceConfig {
        retention: Duration::ZERO,
        retention_hold: 30 * DAY,
        detach_lock_timeout: Duration::from_secs(1),
        ..config()
    };
    let maintenance = Maintenance::new(db.app(), config, Clock::system());
    let mut dropped = 0;
    for first in (1..=100).step_by(4) {
        append(&db.producer(), first..first + 4).await;
        dropped += maintenance.run().await.unwrap().dropped;
    }
    reaches(&db, "probe", 100).await;
    dropped += maintenance.run().await.unwrap().dropped;
    running.stops().await;
    assert_eq!(lost_ranges(&db).await, []);
    assert_eq!(crate::consumers::effects(&db).await, crate::consumers::twice(1..=100));
    assert!(dropped >= 18, "{dropped}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rewinds_and_drops_at_once_lose_nothing() {
    let db = TestDb::new().await;
    small_partitions(&db, 3, 100).await;
    let config = MaintenanceConfig {
        retention: Duration::ZERO,
        retention_hold: 30 * DAY,
        detach_lock_timeout: Duration::from_secs(5),
        detach_lock_timeout_max: Duration::from_secs(5),
        ..config()
    };
    let maintenance = Maintenance::new(db.app(), config, Clock::system());
    let stop = tokio_util::sync::CancellationToken::new();
    let stopped = stop.clone();
    let dropping = tokio::spawn(async move {
        let mut dropped = 0;
        while !stopped.is_cancelled() {
            dropped += maintenance.run().await.unwrap().dropped;
        }
        dropped
    });
    let mut app = db.connect(Role::App).await;
    sqlx::raw_sql("SELECT seqline.register_consumer('totals', 'oldest')").execute(&mut app).await.unwrap();
    let mut rewound = 0;
    for first in (1..=400).step_by(2) {
        append(&db.producer(), first..first + 2).await;
        sqlx::raw_sql("SELECT seqline.poll('totals', 100)").execute(&mut app).await.unwrap();
        // To the oldest of this moment, which may be gone at the next: then it is refused.
        let rewind = "SELECT * FROM seqline.rewind_consumer('totals', seqline.min_retained(), true, 'again')";
        match sqlx::raw_sql(rewind).execute(&mut app).await {
            Ok(_) => rewound += 1,
            Err(error) => assert!(error.to_string().contains("not in the log"), "{error}"),
        }
        sqlx::raw_sql("SELECT seqline.poll('totals', 100)").execute(&mut app).await.unwrap();
    }
    stop.cancel();
    let dropped = dropping.await.unwrap();
    assert_eq!(lost_ranges(&db).await, []);
    assert!(rewound > 0 && dropped > 0, "{rewound} rewinds, {dropped} drops");
}

const STAYS: &str = "expired events stay, consumers have not passed them";
const DROPPED: &str = "events were dropped that consumers had not passed";

#[tokio::test]
async fn what_is_held_is_logged_once_in_a_run_with_names() {
    let db = five_events(40).await;
    for n in 10..22 {
        stands(&db, &format!("c{n}"), "poll", &[0]).await;
    }
    let (captured, _guard) = Captured::start();
    run(&db).await;
    let lines = captured.said(Level::WARN);
    assert_eq!(lines.len(), 1, "{lines:?}");
    let names = "c10, c11, c12, c13, c14, c15, c16, c17, c18, c19 and 2 more";
    for part in [
        STAYS,
        "partition=\"event_log_from_0000000000000000001\"",
        names,
        "beyond_retention_s=8640",
        "hold_s=2592000",
    ] {
        assert!(lines[0].contains(part), "{part}: {lines:?}");
    }
}

#[tokio::test]
async fn what_was_held_and_is_dropped_is_an_error_with_names() {
    let db = five_events(70).await;
    stands(&db, "totals", "worker", &[3]).await;
    stands(&db, "invoices", "worker", &[0]).await;
    let (captured, _guard) = Captured::start();
    assert_eq!(run(&db).await, (2, kept_by([])));
    let lines = captured.said(Level::ERROR);
    let expected = ["consumers=invoices ", "consumers=invoices, totals "];
    assert_eq!(lines.len(), expected.len(), "{lines:?}");
    for (line, names) in lines.iter().zip(expected) {
        assert!(line.contains(DROPPED) && line.contains(names), "{lines:?}");
    }
}

#[tokio::test]
async fn a_drop_that_nobody_held_says_nothing() {
    let db = five_events(70).await;
    stands(&db, "totals", "worker", &[5]).await;
    let (captured, _guard) = Captured::start();
    assert_eq!(run(&db).await, (2, kept_by([])));
    assert_eq!(captured.said(Level::WARN), [] as [String; 0]);
}

#[tokio::test]
async fn who_keeps_what_is_known_for_each_partition_before_the_heads() {
    let db = five_events(40).await;
    stands(&db, "totals", "worker", &[5, 1]).await;
    stands(&db, "invoices", "poll", &[2]).await;
    stands(&db, "audit", "poll", &[4]).await;
    parks(&db, "audit", &[3, 4]).await;
    let all = holders(&mut db.connect(Role::App).await).await.unwrap();
    let seen: Vec<_> =
        all.iter().map(|of| (of.lower_bound, of.consumer.as_str(), of.last_seq, of.parked)).collect();
    assert_eq!(seen, [(1, "totals", 1, 0), (3, "totals", 1, 0), (3, "invoices", 2, 0), (3, "audit", 4, 2)]);
    assert_eq!(all[0].partition, "event_log_from_0000000000000000001");
    let times: Vec<OffsetDateTime> =
        sqlx::query_scalar("SELECT occurred_at FROM seqline.event_log WHERE seq IN (2, 4) ORDER BY seq")
            .fetch_all(&db.admin())
            .await
            .unwrap();
    assert_eq!([all[0].last_event_at, all[1].last_event_at], [Some(times[0]), Some(times[1])]);
    assert_eq!(holders(&mut five_events(40).await.connect(Role::App).await).await.unwrap(), []);
}
