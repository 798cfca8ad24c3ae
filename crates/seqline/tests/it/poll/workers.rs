//! Several workers, many appenders, and somebody who ends sessions: every event has its effect exactly once.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use seqline_testkit::{Role, TestDb, eventually};
use sqlx::Connection;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::support::{event, head};

/// What may happen to a worker or an appender whose session is ended, and the conflicts of stricter isolation levels.
const EXPECTED: [&str; 4] = ["57P01", "40001", "40P01", "25P02"];

/// Work until there were this many events.
const EVENTS: i64 = 1_500;

#[derive(Clone)]
struct Shop {
    db: Arc<TestDb>,
    done: CancellationToken,
    appended: Arc<AtomicI64>,
}

impl Shop {
    async fn open() -> Self {
        let db = Arc::new(TestDb::new().await);
        let mut session = db.connect(Role::Consumer).await;
        run(&mut session, "CREATE TABLE effects (seq bigint NOT NULL, worker int NOT NULL)").await;
        register(&mut session, "totals", "oldest").await;
        Self { db, done: CancellationToken::new(), appended: Arc::default() }
    }

    /// Appends in transactions of any size, of which every fifth is rolled back.
    async fn append(self) {
        let mut connection = None;
        while !self.done.is_cancelled() {
            let session = match &mut connection {
                Some(session) => session,
                none => none.insert(self.db.connect(Role::Producer).await),
            };
            let appended = async {
                let events: Vec<_> = (0..fastrand::i64(1..=20)).map(event).collect();
                let mut tx = session.begin().await.ok()?;
                seqline::append(&mut tx, &events).await.ok()?;
                if fastrand::u8(0..5) == 0 {
                    tx.rollback().await.ok()?;
                } else {
                    tx.commit().await.ok()?;
                    self.appended.fetch_add(events.len() as i64, Ordering::Relaxed);
                }
                Some(())
            };
            if appended.await.is_none() {
                connection = None;
            }
        }
    }

    /// Polls and writes in the same transaction, and now and then rolls back or goes away.
    async fn work(self, worker: i32, begin: &'static str) {
        let mut connection = None;
        while !self.done.is_cancelled() {
            let session = match &mut connection {
                Some(session) => session,
                none => none.insert(self.db.connect(Role::Consumer).await),
            };
            match self.round(session, worker, begin).await {
                Ok(()) if fastrand::u8(0..20) > 0 => {}
                Ok(()) => connection = None,
                Err(error) => {
                    if error.as_database_error().is_some() {
                        let refused = refusal(&error);
                        assert!(EXPECTED.contains(&refused.sqlstate.as_str()), "{refused:?}");
                    }
                    connection = None;
                }
            }
        }
    }

    async fn round(
        &self,
        session: &mut PgConnection,
        worker: i32,
        begin: &'static str,
    ) -> Result<(), sqlx::Error> {
        sqlx::raw_sql(begin).execute(&mut *session).await?;
        let seqs: Vec<i64> = sqlx::query_scalar("SELECT seq FROM seqline.poll('totals', $1)")
            // Often up to the head, where others commit meanwhile.
            .bind(fastrand::choice([1, 10, 50, 10_000]))
            .fetch_all(&mut *session)
            .await?;
        sqlx::query("INSERT INTO effects SELECT unnest($1::bigint[]), $2")
            .bind(&seqs)
            .bind(worker)
            .execute(&mut *session)
            .await?;
        match fastrand::u8(0..20) {
            0 => sqlx::raw_sql("ROLLBACK").execute(session).await?,
            // The session is dropped in the middle of the transaction.
            1 => return Err(sqlx::Error::WorkerCrashed),
            _ => sqlx::raw_sql("COMMIT").execute(session).await?,
        };
        Ok(())
    }

    async fn end_sessions(self) {
        let mut admin = self.db.connect(Role::Admin).await;
        while !self.done.is_cancelled() {
            let sql = format!(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()
                 AND usename IN ('{}', '{}') ORDER BY random() LIMIT 1",
                Role::Consumer.login(),
                Role::Producer.login()
            );
            run(&mut admin, &sql).await;
            // The pace: a few each second.
            run(&mut admin, "SELECT pg_sleep(0.2)").await;
        }
    }

    /// Stops everybody, handles what is left, and looks at the effects.
    async fn close(self, mut tasks: JoinSet<()>) {
        eventually(3 * DEADLINE, "enough events, and more than one who worked on them", async || {
            // A task that fails says why.
            if let Some(ended) = tasks.try_join_next() {
                ended.unwrap();
            }
            self.appended.load(Ordering::Relaxed) >= EVENTS && self.workers().await > 1
        })
        .await;
        self.done.cancel();
        tasks.join_all().await;
        self.db.settled().await;
        let mut session = self.db.connect(Role::Consumer).await;
        eventually(DEADLINE, "the head", async || {
            let rest =
                "WITH p AS (INSERT INTO effects SELECT seq, 0 FROM seqline.poll('totals', 500) RETURNING 1)
                 SELECT count(*) FROM p";
            sqlx::query_scalar::<_, i64>(rest).fetch_one(&mut session).await.unwrap() == 0
        })
        .await;
        let wrong: Vec<(i64, i64)> = sqlx::query_as(
            "SELECT g, (SELECT count(*) FROM effects e WHERE e.seq = g)
             FROM generate_series(1, greatest(seqline.head(), (SELECT max(seq) FROM effects))) g
             WHERE (SELECT count(*) FROM effects e WHERE e.seq = g) <> 1",
        )
        .fetch_all(&self.db.admin())
        .await
        .unwrap();
        assert_eq!(wrong, [], "seq and how often it had an effect");
        let head = head(&self.db).await;
        assert_eq!(cursor(&self.db, "totals").await, head);
        assert!(head >= EVENTS, "{head}");
    }

    /// How many of them have an effect that was committed.
    async fn workers(&self) -> i64 {
        sqlx::query_scalar("SELECT count(DISTINCT worker) FROM effects WHERE worker > 0")
            .fetch_one(&self.db.admin())
            .await
            .unwrap()
    }
}

/// What a call returns and where it puts the cursor have to come from one look at the log.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cursor_stands_behind_what_was_returned_although_others_commit_meanwhile() {
    let shop = Shop::open().await;
    // So many that reading them takes longer than a commit.
    crate::support::append(&shop.db.producer(), 1..=3_000).await;
    let mut tasks = JoinSet::new();
    for _ in 0..3 {
        tasks.spawn(shop.clone().append());
    }
    let mut session = shop.db.connect(Role::Consumer).await;
    for round in 0..25 {
        let name = format!("round_{round}");
        register(&mut session, &name, "oldest").await;
        let seqs = poll(&mut session, &name, 10_000).await;
        assert_eq!(seqs, (1..=seqs.len() as i64).collect::<Vec<_>>());
        assert_eq!(cursor(&shop.db, &name).await, seqs.len() as i64, "round {round}");
    }
    shop.done.cancel();
    tasks.join_all().await;
}

async fn every_event_has_its_effect_once(begin: &'static str, faults: bool) {
    let shop = Shop::open().await;
    let mut tasks = JoinSet::new();
    for _ in 0..6 {
        tasks.spawn(shop.clone().append());
    }
    for worker in 1..=3 {
        tasks.spawn(shop.clone().work(worker, begin));
    }
    if faults {
        tasks.spawn(shop.clone().end_sessions());
    }
    shop.close(tasks).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_event_has_its_effect_once_with_three_workers_and_six_appenders() {
    every_event_has_its_effect_once("BEGIN", false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_event_has_its_effect_once_while_sessions_are_ended() {
    every_event_has_its_effect_once("BEGIN", true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_event_has_its_effect_once_with_serializable_workers() {
    every_event_has_its_effect_once("BEGIN ISOLATION LEVEL SERIALIZABLE", true).await;
}
