//! Retention: what is old enough goes, oldest first and whole partitions only, and nobody has to wait long for it.

mod closing;
mod holds;
mod writers;

use std::time::Duration;

use seqline::clock::ClockHand;
use seqline::maintenance::{Maintenance, MaintenanceConfig, MaintenanceReport};
use seqline::{Clock, ReadError, read, status};
use seqline_testkit::{FaultProxy, Role, TestDb, eventually};
use sqlx::postgres::PgPoolOptions;
use sqlx::{PgConnection, PgPool};
use tokio::task::JoinSet;

use self::writers::{Ids, Writers};
use crate::partitions::{drop_oldest, ensure, ranges, set_sizes, small_partitions};
use crate::support::{append, event, log, numbers};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const DEADLINE: Duration = Duration::from_secs(30);

/// Nothing is closed by age, and a detach is tried once: a manual clock never ends the pause before a second attempt.
fn config() -> MaintenanceConfig {
    MaintenanceConfig {
        retention: 30 * DAY,
        partition_max_age: 3650 * DAY,
        detach_lock_timeout: Duration::from_millis(50),
        detach_attempts: 1,
        detach_retry_pause: Duration::from_millis(500),
        // The clock is moved on by the retention.
        clock_skew_max: Duration::MAX,
        ..MaintenanceConfig::default()
    }
}

/// Maintenance at the present moment, and the hand that moves it on.
fn at_present(pool: PgPool, config: MaintenanceConfig) -> (Maintenance, ClockHand) {
    let (clock, hand) = Clock::manual(Clock::system().now());
    (Maintenance::new(pool, config, clock), hand)
}

/// Maintenance at a moment when all that has been appended so far is older than the retention.
fn after_retention(db: &TestDb) -> Maintenance {
    let (maintenance, hand) = at_present(db.app(), config());
    hand.advance(config().retention);
    maintenance
}

/// A connection that has read the log in a transaction that is still open.
async fn reader_in_the_way(db: &TestDb) -> PgConnection {
    let mut reader = db.connect(Role::Reader).await;
    sqlx::raw_sql("BEGIN; SELECT count(*) FROM seqline.event_log").execute(&mut reader).await.unwrap();
    reader
}

async fn leave(mut reader: PgConnection) {
    sqlx::raw_sql("COMMIT").execute(&mut reader).await.unwrap();
}

async fn ends(db: &TestDb) -> (i64, i64) {
    db.settled().await;
    let mut reader = db.connect(Role::Reader).await;
    (read::min_retained(&mut reader).await.unwrap(), read::head(&mut reader).await.unwrap())
}

#[tokio::test]
async fn old_partitions_go_and_the_one_that_holds_the_head_stays() {
    let db = TestDb::new().await;
    small_partitions(&db, 2, 3).await;
    append(&db.app(), 1..=5).await;
    let report = after_retention(&db).run().await.unwrap();
    assert_eq!(report, MaintenanceReport { created: 3, dropped: 2, ..Default::default() });
    assert_eq!(ends(&db).await, (5, 5));
    assert_eq!(ranges(&db).await, [(5, 7), (7, 9), (9, 11), (11, 13)]);
    assert_eq!(numbers(&mut db.connect(Role::Reader).await).await, [5]);
}

#[tokio::test]
async fn a_full_partition_that_ends_with_the_head_stays() {
    let db = TestDb::new().await;
    small_partitions(&db, 2, 3).await;
    append(&db.app(), 1..=4).await;
    assert_eq!(after_retention(&db).run().await.unwrap().dropped, 1);
    assert_eq!(ends(&db).await, (3, 4));
}

#[tokio::test]
async fn what_is_younger_than_the_retention_stays() {
    let db = TestDb::new().await;
    small_partitions(&db, 2, 3).await;
    let (maintenance, hand) = at_present(db.app(), config());
    hand.advance(config().retention);
    append(&db.app(), 1..=5).await;
    assert_eq!(maintenance.run().await.unwrap().dropped, 0);
    assert_eq!(ends(&db).await, (1, 5));
}

#[tokio::test]
async fn a_retention_longer_than_history_keeps_everything() {
    let db = TestDb::new().await;
    small_partitions(&db, 2, 3).await;
    append(&db.app(), 1..=5).await;
    let config = MaintenanceConfig { retention: Duration::MAX, partition_max_age: Duration::MAX, ..config() };
    let (maintenance, _hand) = at_present(db.app(), config);
    assert_eq!(maintenance.run().await.unwrap().dropped, 0);
}

#[tokio::test]
async fn a_later_partition_that_expires_first_waits_for_the_earlier_one() {
    let db = TestDb::new().await;
    small_partitions(&db, 2, 3).await;
    // Its events get the time at which it began and the numbers of the moment in which it commits.
    let mut early = seqline::begin(&db.app()).await.unwrap();
    seqline::append(&mut early, &[event(3), event(4)]).await.unwrap();
    let (maintenance, hand) = at_present(db.app(), config());
    hand.advance(config().retention);
    append(&db.app(), 1..=2).await;
    seqline::commit(early).await.unwrap();
    db.settled().await;
    append(&db.app(), [5]).await;
    assert_eq!(maintenance.run().await.unwrap().dropped, 0);
    assert_eq!(numbers(&mut db.connect(Role::Reader).await).await, [1, 2, 3, 4, 5]);
    assert_eq!(after_retention(&db).run().await.unwrap().dropped, 2);
}

#[tokio::test]
async fn an_empty_log_keeps_its_partitions() {
    let db = TestDb::new().await;
    small_partitions(&db, 2, 3).await;
    assert_eq!(after_retention(&db).run().await.unwrap(), MaintenanceReport::default());
    assert_eq!(ends(&db).await, (1, 0));
}

#[tokio::test]
async fn a_cutoff_in_the_future_is_refused() {
    let db = TestDb::new().await;
    small_partitions(&db, 2, 3).await;
    append(&db.app(), 1..=5).await;
    let (maintenance, hand) = at_present(db.app(), config());
    hand.advance(config().retention + DAY);
    let error = maintenance.run().await.unwrap_err();
    assert_eq!(error.sqlstate(), Some("22023"));
    assert_eq!(ends(&db).await, (1, 5));
}

#[tokio::test]
async fn arguments_without_a_value_and_waits_without_end_are_refused() {
    let db = TestDb::new().await;
    small_partitions(&db, 2, 3).await;
    append(&db.app(), 1..=5).await;
    let mut accepted = Vec::new();
    for sql in [
        "SELECT seqline.sync_event_log_drop_expired(NULL, now() - interval '1 day', 5, '1 s')",
        "SELECT seqline.sync_event_log_drop_expired(now() - interval '1 day', now() - interval '1 day', 5, NULL)",
        "SELECT seqline.sync_event_log_drop_expired(now() - interval '1 day', NULL, 5, '1 s')",
        "SELECT seqline.sync_event_log_drop_expired(now() - interval '1 day', now(), 5, '1 s')",
        "SELECT seqline.sync_event_log_close_partition(NULL, '1 s')",
        "SELECT seqline.sync_event_log_close_partition(now() - interval '1 day', NULL)",
        // Without end, and everybody queues behind it.
        "SELECT seqline.sync_event_log_drop_expired(now() - interval '1 day', now() - interval '1 day', 5, '0 s')",
        "SELECT seqline.sync_event_log_close_partition(now() - interval '1 day', '0 s')",
    ] {
        let outcome = sqlx::raw_sql(sql).execute(&db.app()).await;
        let code = outcome.err().and_then(|error| Some(error.as_database_error()?.code()?.into_owned()));
        if code.as_deref() != Some("22023") {
            accepted.push((sql, ends(&db).await));
        }
    }
    assert!(accepted.is_empty(), "accepted, with the ends of the log after it: {accepted:#?}");
}

#[tokio::test]
async fn a_head_that_does_not_exist_does_not_expose_the_partition_of_the_real_one() {
    let db = TestDb::new().await;
    small_partitions(&db, 2, 3).await;
    append(&db.app(), 1..=3).await;
    let mut dropped = Vec::new();
    for _ in 0..2 {
        let sql = "SELECT outcome FROM seqline.sync_event_log_drop_expired(now(), now(), 1000000000, '5 s')";
        dropped.push(sqlx::query_scalar::<_, String>(sql).fetch_one(&db.app()).await.unwrap());
    }
    assert_eq!(dropped, ["dropped", "nothing"]);
    assert_eq!(ends(&db).await, (3, 3));
}

#[tokio::test]
async fn a_reader_in_the_way_postpones_a_drop_and_the_new_partitions_stay() {
    let db = TestDb::new().await;
    small_partitions(&db, 2, 3).await;
    append(&db.app(), 1..=5).await;
    let reader = reader_in_the_way(&db).await;
    let report = after_retention(&db).run().await.unwrap();
    assert_eq!(report, MaintenanceReport { created: 3, postponed: true, ..Default::default() });
    assert_eq!(ranges(&db).await, [(1, 3), (3, 5), (5, 7), (7, 9), (9, 11), (11, 13)]);
    leave(reader).await;
    let report = after_retention(&db).run().await.unwrap();
    assert_eq!(report, MaintenanceReport { dropped: 2, ..Default::default() });
}

#[tokio::test]
async fn a_postponed_drop_is_tried_again_within_the_run() {
    let db = TestDb::new().await;
    small_partitions(&db, 2, 3).await;
    append(&db.app(), 1..=3).await;
    let reader = reader_in_the_way(&db).await;
    let config = MaintenanceConfig { detach_attempts: 1_000_000, ..config() };
    let (maintenance, hand) = at_present(db.app(), config.clone());
    hand.advance(config.retention);
    let idle = hand.receivers();
    let run = tokio::spawn(async move { maintenance.run().await });
    eventually(DEADLINE, "the pause after an attempt", async || hand.receivers() > idle).await;
    leave(reader).await;
    eventually(DEADLINE, "the end of the run", async || {
        hand.advance(Duration::from_millis(1));
        run.is_finished()
    })
    .await;
    let report = run.await.unwrap().unwrap();
    assert_eq!((report.dropped, report.postponed), (1, false));
}

#[tokio::test]
async fn an_append_that_queued_behind_a_detach_goes_on_before_the_reader_does() {
    let db = TestDb::new().await;
    small_partitions(&db, 2, 3).await;
    append(&db.app(), 1..=3).await;
    let reader = reader_in_the_way(&db).await;
    let pool = db.app();
    let detach = tokio::spawn(async move {
        sqlx::query("SELECT seqline.sync_event_log_drop_expired(now(), now(), 3, '500 ms')")
            .execute(&pool)
            .await
    });
    eventually(DEADLINE, "the detach waits", async || detach_is_waiting(&db).await).await;
    append(&db.producer(), [4]).await;
    let refused = detach.await.unwrap().unwrap_err();
    assert_eq!(refused.as_database_error().unwrap().code().unwrap(), "55P03");
    leave(reader).await;
}

async fn detach_is_waiting(db: &TestDb) -> bool {
    sqlx::query_scalar(
        "SELECT EXISTS (SELECT FROM pg_locks WHERE relation = 'seqline.event_log'::regclass
                        AND mode = 'AccessExclusiveLock' AND NOT granted)",
    )
    .fetch_one(&db.admin())
    .await
    .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_runs_at_once_drop_each_partition_once() {
    let db = TestDb::new().await;
    small_partitions(&db, 2, 2).await;
    for first in (1..20).step_by(2) {
        append(&db.app(), first..first + 2).await;
        ensure(&db.app()).await;
    }
    let (maintenance, hand) = at_present(
        db.app_pool(4),
        MaintenanceConfig { detach_lock_timeout: Duration::from_secs(5), ..config() },
    );
    hand.advance(config().retention);
    let mut runs = JoinSet::new();
    for _ in 0..4 {
        let maintenance = maintenance.clone();
        runs.spawn(async move { maintenance.run().await });
    }
    let reports: Vec<MaintenanceReport> =
        runs.join_all().await.into_iter().collect::<Result<_, _>>().expect("no run is in the way of another");
    assert_eq!(reports.iter().map(|report| report.dropped).sum::<i32>(), 9);
    assert_eq!(ends(&db).await, (19, 20));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers_that_bring_their_own_ids_do_not_keep_a_partition_from_being_dropped() {
    let db = TestDb::new().await;
    small_partitions(&db, 100, 1).await;
    set_sizes(&db, 1_000_000, 1).await;
    append(&db.app(), 1..=100).await;
    ensure(&db.app()).await;
    append(&db.app(), [101]).await;
    let maintenance = after_retention(&db);
    let writers = Writers::start(&db, Ids::Brought);
    eventually(DEADLINE, "a writer's event", async || ends(&db).await.1 > 101).await;
    eventually(DEADLINE, "a drop", async || maintenance.run().await.unwrap().dropped > 0).await;
    writers.stop().await;
}

#[tokio::test]
async fn a_position_behind_retention_is_told_what_is_left() {
    let db = TestDb::new().await;
    small_partitions(&db, 2, 3).await;
    append(&db.app(), 1..=5).await;
    drop_oldest(&db).await;
    let error = read::events_after(&mut db.connect(Role::Reader).await, 1, 100).await.unwrap_err();
    let ReadError::Expired { next_seq: 2, min_retained: 3 } = error else { panic!("{error:?}") };
}

#[tokio::test]
async fn a_dropped_event_can_no_longer_be_found_by_its_id() {
    let db = TestDb::new().await;
    small_partitions(&db, 2, 3).await;
    let ids = append(&db.app(), 1..=3).await;
    drop_oldest(&db).await;
    let mut reader = db.connect(Role::Reader).await;
    assert_eq!(read::seq_of(&mut reader, ids[0]).await.unwrap(), None);
    assert_eq!(read::seq_of(&mut reader, ids[2]).await.unwrap(), Some(3));
}

#[tokio::test]
async fn numbers_go_on_after_everything_but_the_head_was_dropped() {
    let db = TestDb::new().await;
    small_partitions(&db, 1, 3).await;
    append(&db.app(), 1..=3).await;
    after_retention(&db).run().await.unwrap();
    append(&db.app(), 4..=5).await;
    assert_eq!(numbers(&mut db.connect(Role::Reader).await).await, [3, 4, 5]);
    assert_eq!(ends(&db).await, (3, 5));
}

#[tokio::test]
async fn the_status_agrees_with_the_log() {
    let db = TestDb::new().await;
    small_partitions(&db, 2, 3).await;
    append(&db.app(), 1..=5).await;
    drop_oldest(&db).await;
    let mut app = db.connect(Role::App).await;
    let status = status::status(&mut app).await.unwrap();
    assert_eq!((status.min_retained, status.head, status.retained()), (3, 5, 3));
    assert_eq!((status.partitions, status.headroom), (2, 1));
    let rows = read::events_after(&mut app, 2, 10).await.unwrap();
    assert_eq!(status.oldest_at, rows.first().map(|event| event.occurred_at));
    assert_eq!(status.newest_at, rows.last().map(|event| event.occurred_at));
    assert_eq!(status.schema_version, seqline::migrate::newest_version());
}

#[tokio::test]
async fn the_status_of_an_empty_log_has_no_ages() {
    let db = TestDb::new().await;
    small_partitions(&db, 2, 3).await;
    let status = status::status(&mut db.connect(Role::App).await).await.unwrap();
    assert_eq!((status.min_retained, status.head, status.retained(), status.headroom), (1, 0, 0, 6));
    assert_eq!((status.oldest_at, status.newest_at), (None, None));
}

#[tokio::test]
async fn the_promised_headroom_is_exactly_what_can_be_appended() {
    let db = TestDb::at_commit().await;
    small_partitions(&db, 2, 3).await;
    append(&db.app(), [1]).await;
    let status = status::status(&mut db.connect(Role::App).await).await.unwrap();
    append(&db.app(), 2..=1 + status.headroom).await;
    let mut tx = seqline::begin(&db.app()).await.unwrap();
    seqline::append(&mut tx, &[event(0)]).await.unwrap();
    seqline::commit(tx).await.unwrap_err();
    assert_eq!(log(&mut db.connect(Role::Reader).await).await.len(), 6);
}

#[tokio::test]
async fn a_server_that_does_not_answer_ends_a_run_and_the_next_one_works() {
    let db = TestDb::new().await;
    let port = db.options(Role::App).get_port();
    let proxy = FaultProxy::start(([127, 0, 0, 1], port).into()).await.unwrap();
    let options = db.options(Role::App).port(proxy.addr().port());
    let pool = PgPoolOptions::new().max_connections(1).connect_lazy_with(options);
    let (maintenance, _hand) = at_present(pool.clone(), config());
    maintenance.run().await.unwrap();
    proxy.black_hole();
    let config = MaintenanceConfig { statement_timeout: Duration::from_millis(300), ..config() };
    let (impatient, _hand) = at_present(pool, config);
    let error = impatient.run().await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    proxy.heal();
    // What is new goes through a new connection: the old one is not used again.
    eventually(DEADLINE, "a run that works", async || maintenance.run().await.is_ok()).await;
}
