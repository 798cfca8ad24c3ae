//! A case: its server, all that goes on there, the kills, and the looks at what is left.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use fastrand::Rng;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use seqline::Committer;
use seqline::embedded::Durability;
use seqline::settings::{Sequencing, set_notification, set_sequencing};
use sqlx::postgres::{PgConnection, PgPoolOptions};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::flushed::Watch;
use super::observers::{self, Faults, Memory};
use super::verdict::{self, Given, Handled};
use super::writers::{Writer, kinds};
use super::{Failed, Fault, Plan, Report, Waiting};
use crate::db::{Role, TestDb};
use crate::history::{History, Record};
use crate::server::{TestServer, must};
use crate::wait::eventually;

/// Under a server that is killed again and again things take longer than otherwise.
const DEADLINE: Duration = Duration::from_secs(60);

/// The server writes its log as late as it can: what nobody waits for is lost when it is killed.
const LATE: [(&str, &str); 2] = [("wal_writer_delay", "10s"), ("wal_writer_flush_after", "131072")];

/// Nothing of the server's own makes anything durable.
const QUIET: [(&str, &str); 3] =
    [("autovacuum", "off"), ("bgwriter_lru_maxpages", "0"), ("checkpoint_timeout", "1h")];

/// The application name of writers.
const WRITER: &str = "crash-writer";

/// Sequencers that run when numbers are given after commit.
const SEQUENCERS: usize = 2;

struct Stage {
    plan: Plan,
    random: Rng,
    server: TestServer,
    db: Arc<TestDb>,
    history: History,
    faults: Faults,
    memories: Vec<Memory>,
    watch: Watch,
    acknowledged: Arc<AtomicU64>,
    report: Report,
    /// No writer begins another transaction.
    calm: CancellationToken,
    /// Everybody else has seen everything.
    over: CancellationToken,
    writers: Vec<JoinHandle<()>>,
    observers: Vec<JoinHandle<()>>,
    sequencers: Vec<JoinHandle<()>>,
}

pub(super) async fn run(plan: &Plan) -> Result<Report, Box<Failed>> {
    let failed = |round, faults| Box::new(Failed { plan: plan.clone(), round, faults });
    let mut stage = must(Box::pin(Stage::start(plan.clone()))).await;
    for round in 0..plan.rounds {
        stage.until_busy().await;
        Box::pin(stage.crash()).await;
        let found = must(stage.look()).await;
        // Without a wait a flush is missing at once. What it leads to shows after a crash.
        if found
            .iter()
            .any(|fault| plan.waiting == Waiting::Kept || !matches!(fault, Fault::NotFlushed { .. }))
        {
            return Err(failed(round, found));
        }
    }
    must(Box::pin(stage.finish())).await.map_err(|faults| failed(plan.rounds, faults))
}

impl Stage {
    async fn start(plan: Plan) -> anyhow::Result<Stage> {
        let mut settings = LATE.to_vec();
        if plan.waiting == Waiting::LeftOut {
            settings.extend(QUIET);
        }
        let server = TestServer::with(Durability::Durable, &settings).await;
        let db = Arc::new(TestDb::numbering(&server, Sequencing::AtCommit).await);
        let mut admin = db.connect(Role::Admin).await;
        let made = sqlx::raw_sql("CREATE EXTENSION pg_walinspect").execute(&mut admin).await;
        made.context("the extension pg_walinspect is needed, which comes with PostgreSQL 15 and later")?;
        sqlx::raw_sql(observers::EFFECTS).execute(&mut admin).await?;
        set_sequencing(&mut admin, plan.mode.sequencing, None).await?;
        set_notification(&mut admin, plan.mode.notification, None).await?;
        let memories = match plan.waiting {
            Waiting::Kept => vec![Memory::of("the reader"), Memory::of("the tail")],
            Waiting::LeftOut => vec![Memory::of("the reader")],
        };
        let mut stage = Stage {
            random: Rng::with_seed(plan.seed),
            watch: Watch { admin: db.admin(), checked: Arc::default() },
            plan,
            server,
            db,
            history: History::new(),
            faults: Faults::default(),
            memories,
            acknowledged: Arc::default(),
            report: Report::default(),
            calm: CancellationToken::new(),
            over: CancellationToken::new(),
            writers: Vec::new(),
            observers: Vec::new(),
            sequencers: Vec::new(),
        };
        stage.start_observers();
        stage.start_writers();
        Ok(stage)
    }

    fn start_writers(&mut self) {
        let kinds = kinds(self.plan.waiting);
        let pool = PgPoolOptions::new()
            .max_connections(u32::try_from(kinds.len()).unwrap_or(u32::MAX))
            .acquire_timeout(DEADLINE)
            .connect_lazy_with(self.db.options(Role::App).application_name(WRITER));
        // One's own, so that cases that run at the same time have nothing in common.
        let committer = Committer::new(seqline::limits::COMMITS_AT_ONCE);
        for kind in kinds {
            let writer = Writer {
                kind: *kind,
                mode: self.plan.mode,
                waiting: self.plan.waiting,
                pool: pool.clone(),
                committer: committer.clone(),
                random: self.random.fork(),
                history: self.history.clone(),
                watch: self.watch.clone(),
                faults: self.faults.clone(),
                acknowledged: self.acknowledged.clone(),
                stop: self.calm.clone(),
            };
            self.writers.push(tokio::spawn(Box::pin(writer.run())));
        }
    }

    fn start_observers(&mut self) {
        let (waiting, faults, over) = (self.plan.waiting, &self.faults, &self.over);
        let pool = self.db.pool(Role::Reader, 1);
        let reader = observers::page(pool, waiting, self.memories[0].clone(), faults.clone(), over.clone());
        self.observers.push(tokio::spawn(Box::pin(reader)));
        // Those below make durable what they come to.
        if waiting == Waiting::LeftOut {
            return;
        }
        let (db, memory, tail_faults, stop) =
            (self.db.clone(), self.memories[1].clone(), faults.clone(), over.clone());
        self.observers.push(tokio::spawn(Box::pin(async move {
            observers::tail(&db, memory, tail_faults, stop).await;
        })));
        let (db, faults, stop) = (self.db.clone(), faults.clone(), over.clone());
        self.observers
            .push(tokio::spawn(Box::pin(async move { observers::consume(&db, faults, stop).await })));
        if self.plan.mode.sequencing == Sequencing::AfterCommit {
            for _ in 0..SEQUENCERS {
                let sequencer = self.start_sequencer();
                self.sequencers.push(sequencer);
            }
        }
    }

    fn start_sequencer(&self) -> JoinHandle<()> {
        tokio::spawn(Box::pin(observers::sequence(self.db.app_pool(2), self.over.clone())))
    }

    /// Until a random number of transactions more is acknowledged.
    async fn until_busy(&mut self) {
        let enough = self.acknowledged.load(Ordering::Relaxed) + self.random.u64(20..200);
        eventually(DEADLINE, "enough acknowledged transactions", async || {
            let failed = self.plan.waiting == Waiting::Kept && !self.faults.found().is_empty();
            self.acknowledged.load(Ordering::Relaxed) >= enough || failed
        })
        .await;
    }

    async fn crash(&mut self) {
        if !self.sequencers.is_empty() && self.random.bool() {
            let one = self.random.usize(..self.sequencers.len());
            self.sequencers[one].abort();
            self.sequencers[one] = self.start_sequencer();
        }
        if self.random.u8(..) < 64 && self.kill_one().await.is_ok() {
            self.report.one_killed += 1;
        } else {
            self.server.kill().await;
            self.server.start_again().await;
            self.report.all_killed += 1;
        }
    }

    /// Kills the server process of a writer. The server ends all others then, and recovers.
    async fn kill_one(&mut self) -> anyhow::Result<()> {
        let mut witness = self.db.connect(Role::Admin).await;
        let victim: i32 = sqlx::query_scalar(
            "SELECT pid FROM pg_stat_activity WHERE application_name = $1 ORDER BY random() LIMIT 1",
        )
        .bind(WRITER)
        .fetch_one(&mut witness)
        .await?;
        kill(Pid::from_raw(victim), Signal::SIGKILL)?;
        eventually(DEADLINE, "the end of all server processes", async || {
            sqlx::raw_sql("SELECT 1").execute(&mut witness).await.is_err()
        })
        .await;
        Ok(())
    }

    /// A connection as soon as the server lets one in.
    async fn connect(&self) -> PgConnection {
        use sqlx::Connection;
        let options = self.db.options(Role::Admin);
        let mut connected = None;
        eventually(DEADLINE, "a connection", async || {
            connected = PgConnection::connect_with(&options).await.ok();
            connected.is_some()
        })
        .await;
        connected.expect("it was waited for")
    }

    /// What is wrong now, while everybody goes on.
    async fn look(&mut self) -> anyhow::Result<Vec<Fault>> {
        let mut admin = self.connect().await;
        let (records, given) = self.told();
        let rows: Vec<(Option<i64>, Uuid)> = sqlx::query_as(
            "SELECT seq, id FROM seqline.event_log UNION ALL SELECT NULL, id FROM seqline.staged_events
             UNION ALL SELECT NULL, id FROM seqline.staged_transactions WHERE id IS NOT NULL
             ORDER BY seq NULLS LAST",
        )
        .fetch_all(&mut admin)
        .await?;
        let log: Vec<(i64, Uuid)> = rows.iter().filter_map(|(seq, id)| Some(((*seq)?, *id))).collect();
        let staged: HashSet<Uuid> = rows[log.len()..].iter().map(|(_, id)| *id).collect();
        let mut faults = self.faults.found();
        faults.extend(verdict::after_recovery(&records, &given, &log, &staged));
        Ok(faults)
    }

    fn told(&self) -> (Vec<Record>, Vec<Given>) {
        (self.history.snapshot(), self.memories.iter().map(Memory::given).collect())
    }

    /// Lets everybody come to the end, and checks everything.
    async fn finish(mut self) -> anyhow::Result<Result<Report, Vec<Fault>>> {
        self.calm.cancel();
        for writer in self.writers.drain(..) {
            writer.await.context("a writer")?;
        }
        let mut admin = self.connect().await;
        until_zero(
            &mut admin,
            "the end of all writers",
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'crash-writer' AND state <> 'idle'",
        )
        .await;
        until_zero(&mut admin, "the last number", "SELECT count(*) FROM seqline.staged_transactions").await;
        let log: Vec<(i64, Uuid)> = sqlx::query_as("SELECT seq, id FROM seqline.event_log ORDER BY seq")
            .fetch_all(&mut admin)
            .await?;
        let head = log.last().map_or(0, |(seq, _)| *seq);
        let consumes = self.plan.waiting == Waiting::Kept;
        eventually(DEADLINE, "all observers at the head", async || {
            let handled = !consumes || observers::cursor(&mut admin).await.is_ok_and(|cursor| cursor >= head);
            handled && self.memories.iter().all(|memory| memory.position() >= head)
                || !self.faults.found().is_empty()
        })
        .await;
        self.over.cancel();
        for observer in self.observers.drain(..).chain(self.sequencers.drain(..)) {
            observer.await.context("an observer")?;
        }
        let handled: Option<Handled> =
            if consumes { Some(observers::handled(&mut admin).await?) } else { None };
        let (records, given) = self.told();
        let mut faults = self.faults.found();
        match verdict::in_the_end(&records, &given, handled.as_ref(), &log) {
            Ok(summary) if faults.is_empty() => Ok(Ok(Report {
                summary,
                flushes_checked: self.watch.checked.load(Ordering::Relaxed),
                ..self.report
            })),
            Ok(_) => Ok(Err(faults)),
            Err(found) => {
                faults.extend(found);
                Ok(Err(faults))
            }
        }
    }
}

async fn until_zero(admin: &mut PgConnection, what: &str, count: &'static str) {
    eventually(DEADLINE, what, async || {
        sqlx::query_scalar::<_, i64>(count).fetch_one(&mut *admin).await.is_ok_and(|count| count == 0)
    })
    .await;
}
