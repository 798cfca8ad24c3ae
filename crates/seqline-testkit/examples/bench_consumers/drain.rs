//! How fast a backlog is worked off.

use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use seqline::consumer::{
    Consumer, ConsumerConfig, ConsumerName, Consumers, Handler, HandlerError, Round, StartAt,
};
use seqline::{Clock, StoredEvent};
use seqline_testkit::bench::thresholds::keys;
use seqline_testkit::bench::{Report, Samples, median};
use seqline_testkit::{Role, TestDb, TestServer, eventually};
use sqlx::{PgConnection, PgPool};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::log;
use crate::measuring::now;

const EVENTS: i64 = 100_000;
const REPEATS: usize = 3;
const BATCH_SIZES: [u32; 3] = [50, 200, 1_000];

/// At this batch size, which is the default, a handler that inserts a row is judged.
const JUDGED: u32 = 200;

/// What the handler does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    /// One INSERT for each event.
    Rows,
    /// One INSERT for all events of a round. Handlers are called for one event and cannot do that; this one knows where rounds
    /// begin because the log and the batch size are its own. It shows what the statements cost.
    OneStatement,
    /// Nothing: the cost of the rounds themselves.
    Nothing,
}

struct Inserting {
    work: Work,
    batch_size: i64,
    all_handled: Arc<Notify>,
}

impl Handler for Inserting {
    async fn handle(&self, event: &StoredEvent, round: &mut Round<'_>) -> Result<(), HandlerError> {
        let resource_id = event.resource_id.as_deref().unwrap_or_default();
        match self.work {
            Work::Rows => insert_effect(round.connection(), event.seq, resource_id).await?,
            Work::OneStatement if (event.seq - 1) % self.batch_size == 0 => {
                let seqs: Vec<i64> = (event.seq..event.seq + self.batch_size).collect();
                let resource_ids = vec![resource_id; seqs.len()];
                sqlx::query(
                    "INSERT INTO effects (seq, resource_id) SELECT * FROM unnest($1::bigint[], $2::text[])",
                )
                .bind(seqs)
                .bind(resource_ids)
                .execute(round.connection())
                .await?;
            }
            Work::OneStatement | Work::Nothing => {}
        }
        if event.seq == EVENTS {
            self.all_handled.notify_one();
        }
        Ok(())
    }
}

pub(crate) async fn measure(server: &TestServer, report: &mut Report) -> anyhow::Result<()> {
    let db = TestDb::on(server).await;
    create_effects(&db.app()).await?;
    log::fill(&db, EVENTS as usize).await?;
    println!("draining {EVENTS} events into a table, events/s (medians of {REPEATS}, interleaved)");
    println!("  without Seqline: the same INSERTs over one connection, in transactions of the batch size");
    println!(
        "{:>8}  {:>15}  {:>12}  {:>6}  {:>26}  {:>16}",
        "batch", "without Seqline", "row by row", "ratio", "one statement for a round", "handling nothing"
    );
    for batch_size in BATCH_SIZES {
        let [mut baseline, mut rows, mut statement, mut nothing] =
            [const { Vec::new() }; 4].map(Samples::from);
        for _ in 0..REPEATS {
            baseline.push(without_seqline(&db, batch_size).await?);
            rows.push(with_seqline(&db, batch_size, Work::Rows).await?);
            statement.push(with_seqline(&db, batch_size, Work::OneStatement).await?);
            nothing.push(with_seqline(&db, batch_size, Work::Nothing).await?);
        }
        let ratio = median(
            rows.values().iter().zip(baseline.values()).map(|(rows, baseline)| rows / baseline).collect(),
        );
        for (name, rates) in [
            ("without Seqline", &baseline),
            ("row by row", &rows),
            ("one statement for a round", &statement),
            ("handling nothing", &nothing),
        ] {
            report.figure(format!("drain in batches of {batch_size}, {name}"), "events/s", rates);
        }
        let (baseline, rows) = (baseline.median(), rows.median());
        println!(
            "{batch_size:>8}  {baseline:>15.0}  {rows:>12.0}  {ratio:>6.2}  {:>26.0}  {:>16.0}",
            statement.median(),
            nothing.median()
        );
        if batch_size == JUDGED {
            report.judge(keys::DRAIN_EVENTS, rows)?;
        }
    }
    println!();
    Ok(())
}

async fn without_seqline(db: &TestDb, batch_size: u32) -> anyhow::Result<f64> {
    clear(db).await?;
    let mut connection = db.connect(Role::App).await;
    // A task, as consumers are.
    let (seconds, mut connection) = tokio::spawn(async move {
        let start = now();
        for first in (1..=EVENTS).step_by(batch_size as usize) {
            sqlx::raw_sql("BEGIN").execute(&mut connection).await?;
            for seq in first..(first + i64::from(batch_size)).min(EVENTS + 1) {
                insert_effect(&mut connection, seq, log::RESOURCE).await?;
            }
            sqlx::raw_sql("COMMIT").execute(&mut connection).await?;
        }
        anyhow::Ok((start.elapsed().as_secs_f64(), connection))
    })
    .await??;
    check_effects(&mut connection).await?;
    Ok(EVENTS as f64 / seconds)
}

async fn with_seqline(db: &TestDb, batch_size: u32, work: Work) -> anyhow::Result<f64> {
    clear(db).await?;
    let mut connection = db.connect(Role::App).await;
    let name = ConsumerName::new(format!("drain_{}", fastrand::u64(..)))?;
    let config = ConsumerConfig { batch_size, ..ConsumerConfig::default() };
    let mut consumers = Consumers::new(db.app_pool(2), db.options(Role::App), config, Clock::system());
    let all_handled = Arc::new(Notify::new());
    let handler =
        Inserting { work, batch_size: i64::from(batch_size), all_handled: Arc::clone(&all_handled) };
    consumers.register(Consumer::new(name.clone(), handler).start_at(StartAt::Oldest))?;

    let stop = CancellationToken::new();
    let start = now();
    let running = tokio::spawn(consumers.run(stop.clone()));
    all_handled.notified().await;
    eventually(Duration::from_secs(10), "the last commit", async || {
        log::cursor(&mut connection, &name).await.is_ok_and(|last_seq| last_seq == EVENTS)
    })
    .await;
    let seconds = start.elapsed().as_secs_f64();
    stop.cancel();
    running.await??;
    if work != Work::Nothing {
        check_effects(&mut connection).await?;
    }
    Ok(EVENTS as f64 / seconds)
}

async fn clear(db: &TestDb) -> anyhow::Result<()> {
    sqlx::raw_sql("TRUNCATE effects").execute(&db.app()).await?;
    sqlx::raw_sql("CHECKPOINT").execute(&db.admin()).await?;
    Ok(())
}

/// A figure for something else than the whole work would be worth nothing.
async fn check_effects(connection: &mut PgConnection) -> anyhow::Result<()> {
    let (rows, seqs, resource_ids): (i64, i64, i64) = sqlx::query_as(
        "SELECT count(*), count(DISTINCT seq), count(*) FILTER (WHERE resource_id = $1) FROM effects
         WHERE seq BETWEEN 1 AND $2",
    )
    .bind(log::RESOURCE)
    .bind(EVENTS)
    .fetch_one(connection)
    .await?;
    ensure!(
        (rows, seqs, resource_ids) == (EVENTS, EVENTS, EVENTS),
        "the effects are not those of all events"
    );
    Ok(())
}

/// The table that handlers and baselines write to.
async fn create_effects(pool: &PgPool) -> sqlx::Result<()> {
    sqlx::raw_sql("CREATE TABLE effects (seq bigint NOT NULL, resource_id text NOT NULL)")
        .execute(pool)
        .await?;
    Ok(())
}

async fn insert_effect(connection: &mut PgConnection, seq: i64, resource_id: &str) -> sqlx::Result<()> {
    sqlx::query("INSERT INTO effects (seq, resource_id) VALUES ($1, $2)")
        .bind(seq)
        .bind(resource_id)
        .execute(connection)
        .await
        .map(drop)
}
