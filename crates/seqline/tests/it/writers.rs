//! Many writers, everything going wrong that can, and a tail watching: the log keeps its promises.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use seqline::tail::{Sink, SinkError, Start, Tail, TailConfig, TailError};
use seqline::{Clock, CommitError, StoredEvent};
use seqline_testkit::{History, Role, Summary, TestDb, TestServer, check, eventually};
use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, PgPool, PgTransaction};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::numbering::create_late_refusal;
use crate::support::{assert_nothing_staged, event, head, log};

const WRITERS: u64 = 32;

/// Under a terminated or killed server things take longer than otherwise.
const DEADLINE: Duration = Duration::from_secs(90);

/// How a writer's transaction went wrong, if it did.
enum Failed {
    /// It certainly did not commit.
    RolledBack,
    /// The connection broke during COMMIT.
    Unknown,
    /// It committed, and the connection broke before that was durable.
    NotKnownDurable,
}

/// Whether the server is killed, which takes back what was not durable.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Server {
    Stays,
    IsKilled,
}

/// One random transaction: `ids` are those that it will have in the log if it commits.
async fn transaction(pool: &PgPool, random: &mut fastrand::Rng, ids: &mut Vec<Uuid>) -> Result<(), Failed> {
    let mut tx = seqline::begin(pool).await.map_err(|_| Failed::RolledBack)?;
    // Until COMMIT is sent, whatever fails is a rollback.
    let wants_commit = work(&mut tx, random, ids).await.map_err(|_| Failed::RolledBack)?;
    if !wants_commit {
        // Rolled back by the server at the latest when the connection goes.
        let _ = tx.rollback().await;
        return Err(Failed::RolledBack);
    }
    match seqline::commit(tx).await {
        Ok(()) => Ok(()),
        Err(CommitError::Unknown(_)) => Err(Failed::Unknown),
        Err(CommitError::NotKnownDurable(_)) => Err(Failed::NotKnownDurable),
        Err(CommitError::NumberingLock { .. }) => Err(Failed::RolledBack),
        // The refusal that the writer itself has ordered, or a connection lost before COMMIT was sent.
        Err(CommitError::Database(error))
            if error.sqlstate() == Some("P0001") || error.is_connection_failure() =>
        {
            Err(Failed::RolledBack)
        }
        Err(error) => panic!("a commit failed: {error}"),
    }
}

/// One to three events with savepoints and switches around them. False if it shall be rolled back.
async fn work(
    tx: &mut PgTransaction<'_>,
    random: &mut fastrand::Rng,
    ids: &mut Vec<Uuid>,
) -> Result<bool, Box<dyn std::error::Error + Send + Sync>> {
    if random.u8(..) < 25 {
        sqlx::raw_sql("SET CONSTRAINTS ALL IMMEDIATE").execute(&mut **tx).await?;
    }
    let events: Vec<_> = (0..random.usize(1..=3)).map(|_| event(random.i64(..))).collect();
    if random.bool() {
        ids.extend(seqline::append(tx, &events).await?);
    } else {
        for event in events {
            ids.extend(seqline::append(tx, &[event]).await?);
            savepoint(tx, random, ids).await?;
        }
    }
    match random.u8(..) {
        0..25 => sqlx::raw_sql("SET CONSTRAINTS ALL IMMEDIATE").execute(&mut **tx).await?,
        25..50 => {
            sqlx::raw_sql("SET CONSTRAINTS ALL DEFERRED; INSERT INTO late DEFAULT VALUES")
                .execute(&mut **tx)
                .await?
        }
        50..75 => return Ok(false),
        _ => return Ok(true),
    };
    Ok(true)
}

/// Sometimes a savepoint with an append in it, kept or rolled back.
async fn savepoint(
    tx: &mut PgTransaction<'_>,
    random: &mut fastrand::Rng,
    ids: &mut Vec<Uuid>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    if random.u8(..) >= 80 {
        return Ok(());
    }
    sqlx::raw_sql("SAVEPOINT s").execute(&mut **tx).await?;
    let inside = seqline::append(tx, &[event(0)]).await?;
    if random.bool() {
        sqlx::raw_sql("SET CONSTRAINTS ALL IMMEDIATE").execute(&mut **tx).await?;
    }
    if random.bool() {
        sqlx::raw_sql("ROLLBACK TO s").execute(&mut **tx).await?;
    } else {
        ids.extend(inside);
    }
    sqlx::raw_sql("RELEASE s").execute(&mut **tx).await?;
    Ok(())
}

/// Writers that go on until they are told to stop.
async fn write(pool: PgPool, history: History, seed: u64, server: Server, stop: Arc<AtomicBool>) {
    join_all((0..WRITERS).map(|writer| {
        let (pool, history, stop) = (pool.clone(), history.clone(), stop.clone());
        let mut random = fastrand::Rng::with_seed(seed.wrapping_add(writer));
        async move {
            while !stop.load(Ordering::Relaxed) {
                let attempt = history.begin();
                let mut ids = Vec::new();
                match transaction(&pool, &mut random, &mut ids).await {
                    Ok(()) => attempt.committed(ids),
                    Err(Failed::NotKnownDurable) if server == Server::Stays => attempt.committed(ids),
                    Err(Failed::RolledBack) => attempt.rolled_back(ids),
                    Err(Failed::Unknown | Failed::NotKnownDurable) => attempt.unknown(ids),
                }
            }
        }
    }))
    .await;
}

/// What a tail has delivered.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<(i64, Uuid)>>>);

impl Sink for Seen {
    fn accept<'a>(&'a mut self, batch: &'a [StoredEvent]) -> BoxFuture<'a, Result<(), SinkError>> {
        Box::pin(async move {
            self.0.lock().unwrap().extend(batch.iter().map(|event| (event.seq, event.id)));
            Ok(())
        })
    }
}

/// A tail that runs beside the writers.
struct Observer {
    seen: Seen,
    position: watch::Receiver<i64>,
    stop: CancellationToken,
    running: JoinHandle<Result<(), TailError>>,
}

impl Observer {
    async fn start(db: &TestDb) -> Self {
        let config = TailConfig {
            start: Start::After(0),
            poll_interval: Duration::from_millis(100),
            listen_reconnect_backoff_cap: Duration::from_millis(500),
            ..TailConfig::default()
        };
        let tail = Tail::new(db.pool(Role::Reader, 2), db.options(Role::Reader), config, Clock::system())
            .await
            .unwrap();
        let (seen, position, stop) = (Seen::default(), tail.head(), CancellationToken::new());
        let running = tokio::spawn(tail.run(vec![Box::new(seen.clone())], stop.clone()));
        Self { seen, position, stop, running }
    }

    /// Waits until it has seen everything and gives what it saw.
    async fn finish(self, head: i64) -> Vec<(i64, Uuid)> {
        eventually(DEADLINE, "the tail at the head", async || *self.position.borrow() >= head).await;
        self.stop.cancel();
        self.running.await.unwrap().unwrap();
        std::mem::take(&mut *self.seen.0.lock().unwrap())
    }
}

/// A run with its writers and its observer.
struct Run {
    db: TestDb,
    history: History,
    observer: Observer,
    stop: Arc<AtomicBool>,
    writers: JoinHandle<()>,
}

impl Run {
    async fn start(db: TestDb, seed: u64, server: Server) -> Self {
        create_late_refusal(&db).await;
        let observer = Observer::start(&db).await;
        let pool = PgPoolOptions::new()
            .max_connections(32)
            .acquire_timeout(DEADLINE)
            .connect_lazy_with(db.options(Role::App).application_name("writer"));
        let (history, stop) = (History::new(), Arc::new(AtomicBool::new(false)));
        let writers = tokio::spawn(write(pool, history.clone(), seed, server, stop.clone()));
        Self { db, history, observer, stop, writers }
    }

    /// Waits until the tail has seen so many events.
    async fn until_seen(&self, events: i64) {
        eventually(DEADLINE, "enough events", async || {
            assert!(!self.writers.is_finished(), "the writers have failed");
            *self.observer.position.borrow() >= events
        })
        .await;
    }

    /// Stops the writers and checks everything.
    async fn finish(self, seed: u64) -> Summary {
        self.stop.store(true, Ordering::Relaxed);
        self.writers.await.unwrap();
        let mut admin = self.db.connect(Role::Admin).await;
        // A backend whose client is gone may still be on its way to the end.
        eventually(DEADLINE, "the end of all writers", async || {
            let backends: i64 = sqlx::query_scalar(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
                 AND application_name = 'writer' AND state <> 'idle'",
            )
            .fetch_one(&mut admin)
            .await
            .unwrap();
            backends == 0
        })
        .await;
        let log = log(&mut admin).await;
        let seen = self.observer.finish(log.last().map_or(0, |(seq, _)| *seq)).await;
        assert!(seen == log, "the tail saw something else than the log, seed {seed}");
        assert_nothing_staged(&mut admin).await;
        check(&self.history.snapshot(), &log, 1).unwrap_or_else(|violations| {
            panic!("{} violations with seed {seed}, the first: {}", violations.len(), violations[0])
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_many_writers_commit_is_in_the_log_once_in_order_and_nothing_else() {
    let seed = fastrand::u64(..);
    let run = Run::start(TestDb::new().await, seed, Server::Stays).await;
    run.until_seen(2_000).await;
    let summary = run.finish(seed).await;
    assert!(
        summary.committed > 500 && summary.rolled_back > 100,
        "too little of everything: {summary:?}, seed {seed}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn terminated_writers_leave_neither_holes_nor_ghosts() {
    let seed = fastrand::u64(..);
    let run = Run::start(TestDb::new().await, seed, Server::Stays).await;
    let admin = run.db.admin();
    let mut terminated = 0_i64;
    for _ in 0..40 {
        let seen = *run.observer.position.borrow();
        run.until_seen(seen + 25).await;
        // Those that commit first: they are where it hurts most.
        terminated += sqlx::query_scalar::<_, i64>(
            "SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM (
                 SELECT pid FROM pg_stat_activity
                 WHERE datname = current_database() AND application_name = 'writer'
                 ORDER BY (state = 'active' AND query = 'COMMIT') DESC, random() LIMIT 3) w",
        )
        .fetch_one(&admin)
        .await
        .unwrap();
    }
    let summary = run.finish(seed).await;
    assert!(terminated > 50 && summary.unknown > 0, "{terminated} terminated, {summary:?}, seed {seed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_comes_back_with_everything_acknowledged_and_no_hole() {
    let seed = fastrand::u64(..);
    let mut server = TestServer::durable().await;
    let run = Run::start(TestDb::on(&server).await, seed, Server::IsKilled).await;
    for _ in 0..3 {
        let seen = *run.observer.position.borrow();
        run.until_seen(seen + 300).await;
        server.kill().await;
        server.start_again().await;
    }
    let seen = *run.observer.position.borrow();
    run.until_seen(seen + 300).await;
    let summary = run.finish(seed).await;
    assert!(summary.committed > 300, "{summary:?}, seed {seed}");
}

#[tokio::test]
async fn a_killed_server_forgets_what_was_staged() {
    let mut server = TestServer::durable().await;
    let db = TestDb::on(&server).await;
    let mut tx = seqline::begin(&db.app()).await.unwrap();
    seqline::append(&mut tx, &[event(1), event(2)]).await.unwrap();
    server.kill().await;
    drop(tx);
    server.start_again().await;
    let mut admin = db.connect(Role::Admin).await;
    assert_nothing_staged(&mut admin).await;
    let put = "SELECT seqline.append('test.happened', '{}', 'test', 'any')";
    sqlx::raw_sql(AssertSqlSafe(put)).execute(&mut admin).await.unwrap();
    assert_eq!(head(&db).await, 1);
}
