//! Maintenance on a schedule: once per interval over all processes, by the clock of the database.

use seqline::maintenance::{Maintenance, MaintenanceConfig};
use seqline_testkit::TestServer;
use time::OffsetDateTime;

use super::*;
use crate::partitions::{ranges, small_partitions};

const INTERVAL: Duration = Duration::from_secs(3600);
const DONE: &str = "partition maintenance done";

/// A process that maintains on a schedule.
struct Scheduled {
    hand: ClockHand,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Scheduled {
    fn on(pool: PgPool) -> Self {
        let (clock, hand) = manual();
        // The hand moves the clock on by as much as it takes.
        let config = MaintenanceConfig { clock_skew_max: Duration::MAX, ..MaintenanceConfig::default() };
        let maintenance = Maintenance::new(pool, config, clock);
        let stop = CancellationToken::new();
        let told = stop.clone();
        let task = tokio::spawn(async move { maintenance.run_on_schedule(INTERVAL, told).await });
        Self { hand, stop, task }
    }

    /// One clock of its own, and a wait on it.
    async fn pauses(&self) {
        eventually(DEADLINE, "it pauses", async || self.hand.receivers() == 2).await;
    }

    /// Longer than its longest pause, so that it asks again.
    async fn asks_again(&self) {
        self.pauses().await;
        self.hand.advance(Duration::from_secs(60));
        // It has left the pause, or even come back to it.
        tokio::task::yield_now().await;
        self.pauses().await;
    }

    async fn stops(self) {
        self.stop.cancel();
        tokio::time::timeout(DEADLINE, self.task).await.expect("it stops").expect("it does not panic");
    }
}

async fn last_run(db: &TestDb) -> Option<(OffsetDateTime, Option<OffsetDateTime>)> {
    sqlx::query_as(
        "SELECT started_at, finished_at FROM seqline.periodic_tasks WHERE name = 'partition_maintenance'",
    )
    .fetch_optional(&db.admin())
    .await
    .unwrap()
}

async fn has_run(db: &TestDb) -> OffsetDateTime {
    eventually(DEADLINE, "a finished run", async || {
        last_run(db).await.is_some_and(|(_, finished_at)| finished_at.is_some())
    })
    .await;
    last_run(db).await.expect("it has run").0
}

/// As if the last run had begun longer ago.
async fn let_pass(db: &TestDb, interval: &str) {
    as_admin(
        db,
        &format!("UPDATE seqline.periodic_tasks SET started_at = started_at - interval '{interval}'"),
    )
    .await;
}

#[tokio::test]
async fn it_runs_at_the_start() {
    let db = TestDb::new().await;
    small_partitions(&db, 10, 1).await;
    append(&db.producer(), 1..=9).await;
    crate::partitions::set_sizes(&db, 10, 3).await;
    let scheduled = Scheduled::on(db.app_pool(2));
    has_run(&db).await;
    assert_eq!(ranges(&db).await, [(1, 11), (11, 21), (21, 31), (31, 41)]);
    scheduled.stops().await;
}

#[tokio::test]
async fn it_runs_once_in_an_interval_over_all_processes() {
    let (captured, _guard) = Captured::start();
    let db = TestDb::new().await;
    let processes =
        [Scheduled::on(db.app_pool(2)), Scheduled::on(db.app_pool(2)), Scheduled::on(db.app_pool(2))];
    let first = has_run(&db).await;
    for process in &processes {
        process.asks_again().await;
    }
    let late = Scheduled::on(db.app_pool(2));
    late.pauses().await;
    assert_eq!(last_run(&db).await.unwrap().0, first);
    assert_eq!(captured.count(DONE), 1);
    let_pass(&db, "1 hour").await;
    for process in &processes {
        process.asks_again().await;
    }
    eventually(DEADLINE, "the next run", async || captured.count(DONE) == 2).await;
    for process in &processes {
        process.asks_again().await;
    }
    assert_eq!(captured.count(DONE), 2);
    late.stops().await;
    for process in processes {
        process.stops().await;
    }
}

#[tokio::test]
async fn it_does_not_run_before_the_interval_is_over() {
    let (captured, _guard) = Captured::start();
    let db = TestDb::new().await;
    let scheduled = Scheduled::on(db.app_pool(2));
    has_run(&db).await;
    let_pass(&db, "59 minutes").await;
    scheduled.asks_again().await;
    scheduled.asks_again().await;
    assert_eq!(captured.count(DONE), 1);
    scheduled.stops().await;
}

#[tokio::test]
async fn a_run_of_a_process_that_died_is_repeated_when_its_time_is_over() {
    let (captured, _guard) = Captured::start();
    let db = TestDb::new().await;
    let sql = "INSERT INTO seqline.periodic_tasks VALUES ('partition_maintenance', clock_timestamp(), NULL)";
    sqlx::raw_sql(sql).execute(&db.app()).await.unwrap();
    let begun = last_run(&db).await.unwrap().0;
    let scheduled = Scheduled::on(db.app_pool(2));
    let_pass(&db, "4 minutes").await;
    scheduled.asks_again().await;
    assert_eq!(captured.count(DONE), 0, "it may still run");
    let_pass(&db, "1 minute").await;
    scheduled.asks_again().await;
    assert!(has_run(&db).await > begun);
    assert_eq!(captured.count(DONE), 1);
    scheduled.stops().await;
}

#[tokio::test]
async fn a_run_that_fails_is_repeated_when_its_time_is_over_and_ends_nothing() {
    let (captured, _guard) = Captured::start();
    let db = TestDb::new().await;
    as_admin(&db, "REVOKE EXECUTE ON FUNCTION seqline.sync_event_log_ensure_partitions FROM seqline_app")
        .await;
    let scheduled = Scheduled::on(db.app_pool(2));
    eventually(DEADLINE, "the failure", async || captured.count("partition maintenance failed") == 1).await;
    scheduled.asks_again().await;
    assert_eq!(captured.count("partition maintenance failed"), 1);
    as_admin(&db, "GRANT EXECUTE ON FUNCTION seqline.sync_event_log_ensure_partitions TO seqline_app").await;
    let_pass(&db, "5 minutes").await;
    scheduled.asks_again().await;
    has_run(&db).await;
    assert_eq!((captured.count("partition maintenance failed"), captured.count(DONE)), (1, 1));
    scheduled.stops().await;
}

#[tokio::test]
async fn an_outage_of_the_database_ends_nothing_and_is_logged_once() {
    let (captured, _guard) = Captured::start();
    // Without durability a crash would take back what the last run has noted.
    let mut server = TestServer::durable().await;
    let db = TestDb::on(&server).await;
    let pool = PgPoolOptions::new().max_connections(2).acquire_timeout(6 * SHORT);
    let scheduled = Scheduled::on(pool.connect_lazy_with(db.options(Role::App)));
    has_run(&db).await;
    let_pass(&db, "1 hour").await;
    scheduled.pauses().await;
    server.kill().await;
    for _ in 0..2 {
        scheduled.asks_again().await;
    }
    eventually(DEADLINE, "the outage is logged", async || captured.count("waits for the database") == 1)
        .await;
    server.start_again().await;
    eventually(DEADLINE, "the next run", async || {
        scheduled.hand.advance(Duration::from_secs(60));
        captured.count(DONE) == 2
    })
    .await;
    assert_eq!(captured.count("waits for the database"), 1);
    eventually(DEADLINE, "the end is logged", async || captured.count("can ask the database again") == 1)
        .await;
    scheduled.stops().await;
}

#[tokio::test]
async fn a_stop_ends_it() {
    let db = TestDb::new().await;
    let scheduled = Scheduled::on(db.app_pool(2));
    scheduled.pauses().await;
    scheduled.stops().await;
}

#[tokio::test]
async fn a_run_that_seems_to_be_in_the_future_keeps_nobody_from_the_next() {
    let (captured, _guard) = Captured::start();
    let db = TestDb::new().await;
    as_admin(
        &db,
        "INSERT INTO seqline.periodic_tasks
         VALUES ('partition_maintenance', now() + interval '10 days', now() + interval '10 days')",
    )
    .await;
    let maintenance = Maintenance::new(db.app_pool(1), MaintenanceConfig::default(), Clock::system());
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    let task = tokio::spawn(async move { maintenance.run_on_schedule(POLL, stopped).await });
    eventually(DEADLINE, "a run", async || captured.count("partition maintenance done") >= 1).await;
    stop.cancel();
    task.await.unwrap();
}

#[tokio::test]
async fn a_run_that_others_are_in_the_way_of_ends_with_the_stop() {
    let db = TestDb::new().await;
    crate::partitions::small_partitions(&db, 2, 8).await;
    append(&db.producer(), 1..=9).await;
    let mut reader = db.connect(Role::App).await;
    sqlx::raw_sql("BEGIN; SELECT count(*) FROM seqline.event_log").execute(&mut reader).await.unwrap();
    // Without the stop it would be at it for days, by a clock that stands still.
    let config = MaintenanceConfig {
        retention: Duration::ZERO,
        detach_attempts: 1_000,
        detach_retry_pause: Duration::from_secs(1_000),
        ..MaintenanceConfig::default()
    };
    let (clock, hand) = Clock::manual(Clock::system().now());
    let waits = hand.receivers();
    let maintenance = Maintenance::new(db.app_pool(1), config, clock);
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    let task = tokio::spawn(async move { maintenance.run_on_schedule(1_000 * POLL, stopped).await });
    eventually(DEADLINE, "a pause between two attempts", async || hand.receivers() > waits).await;
    stop.cancel();
    tokio::time::timeout(DEADLINE, task).await.expect("it ends with the stop").unwrap();
}
