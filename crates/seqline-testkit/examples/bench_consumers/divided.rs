//! What lanes bring to a handler that waits, and what marks cost a consumer that parks.

use std::time::Duration;

use anyhow::ensure;
use seqline::consumer::{
    Consumer, ConsumerConfig, ConsumerName, Consumers, FailurePolicy, Handler, HandlerError, LaneKey, Round,
    StartAt, wait_for,
};
use seqline::{Clock, NewEvent, StoredEvent};
use seqline_testkit::bench::{Report, Samples};
use seqline_testkit::{Role, TestDb, TestServer};
use tokio_util::sync::CancellationToken;

use crate::measuring::now;

const REPEATS: usize = 3;
const LANES: [u32; 5] = [1, 2, 4, 8, 16];

/// Events for a handler that waits for a millisecond at each.
const WAITED_EVENTS: i64 = 2_000;
const WAIT: Duration = Duration::from_millis(1);

/// Events for a handler that writes a row for each.
const WRITTEN_EVENTS: i64 = 50_000;
const BATCH_SIZES: [u32; 3] = [10, 50, 200];

/// Resources among which the events are divided evenly.
const RESOURCES: i64 = 997;

/// Waits for something else, as a handler does that asks another service or a slow query.
struct Waiting;

impl Handler for Waiting {
    async fn handle(&self, _: &StoredEvent, round: &mut Round<'_>) -> Result<(), HandlerError> {
        sqlx::query("SELECT pg_sleep($1)").bind(WAIT.as_secs_f64()).execute(round.connection()).await?;
        Ok(())
    }
}

struct Writing;

impl Handler for Writing {
    async fn handle(&self, event: &StoredEvent, round: &mut Round<'_>) -> Result<(), HandlerError> {
        sqlx::query("INSERT INTO effects (seq) VALUES ($1)")
            .bind(event.seq)
            .execute(round.connection())
            .await?;
        Ok(())
    }
}

/// Prints both tables.
pub(crate) async fn measure(server: &TestServer, report: &mut Report) -> anyhow::Result<()> {
    lanes(server, report).await?;
    marks(server, report).await
}

async fn lanes(server: &TestServer, report: &mut Report) -> anyhow::Result<()> {
    let db = filled(server, WAITED_EVENTS).await?;
    println!(
        "{WAITED_EVENTS} events by a handler that waits for {WAIT:?} at each, events/s (medians of {REPEATS}, interleaved)"
    );
    println!("{:>8}  {:>10}  {:>12}", "lanes", "events/s", "to one lane");
    let mut rates = LANES.map(|_| Vec::new());
    for _ in 0..REPEATS {
        for (rates, lanes) in rates.iter_mut().zip(LANES) {
            let consumer = |name| Consumer::new(name, Waiting).lanes(LaneKey::Resource, lanes);
            rates.push(drain(&db, WAITED_EVENTS, 50, consumer).await?);
        }
    }
    let rates = rates.map(Samples::from);
    for (lanes, rate) in LANES.into_iter().zip(&rates) {
        report.figure(format!("a handler that waits, {lanes} lanes"), "events/s", rate);
    }
    let rates = rates.map(|rates| rates.median());
    for (lanes, rate) in LANES.into_iter().zip(rates) {
        println!("{lanes:>8}  {rate:>10.0}  {:>12.1}", rate / rates[0]);
    }
    println!();
    Ok(())
}

async fn marks(server: &TestServer, report: &mut Report) -> anyhow::Result<()> {
    let db = filled(server, WRITTEN_EVENTS).await?;
    sqlx::raw_sql("CREATE TABLE effects (seq bigint NOT NULL)").execute(&db.app()).await?;
    println!("{WRITTEN_EVENTS} events into a table, events/s (medians of {REPEATS}, interleaved)");
    println!("{:>8}  {:>10}  {:>10}  {:>6}", "batch", "stalls", "parks", "ratio");
    for batch_size in BATCH_SIZES {
        let (mut stalls, mut parks) = (Samples::default(), Samples::default());
        for _ in 0..REPEATS {
            for (rates, policy) in [
                (&mut stalls, FailurePolicy::Stall),
                (&mut parks, FailurePolicy::Park { after_attempts: 5, backoff: Duration::from_secs(1) }),
            ] {
                sqlx::raw_sql("TRUNCATE effects").execute(&db.app()).await?;
                let consumer = |name| Consumer::new(name, Writing).on_failure(policy);
                rates.push(drain(&db, WRITTEN_EVENTS, batch_size, consumer).await?);
                let effects: i64 = sqlx::query_scalar("SELECT count(DISTINCT seq) FROM effects")
                    .fetch_one(&db.app())
                    .await?;
                ensure!(effects == WRITTEN_EVENTS, "the effects are not those of all events");
            }
        }
        report.figure(format!("batches of {batch_size}, a consumer that stalls"), "events/s", &stalls);
        report.figure(format!("batches of {batch_size}, a consumer that parks"), "events/s", &parks);
        let (stalls, parks) = (stalls.median(), parks.median());
        println!("{batch_size:>8}  {stalls:>10.0}  {parks:>10.0}  {:>6.2}", parks / stalls);
    }
    println!();
    Ok(())
}

/// Events per second of a consumer that handles everything.
async fn drain(
    db: &TestDb,
    events: i64,
    batch_size: u32,
    consumer: impl FnOnce(ConsumerName) -> Consumer,
) -> anyhow::Result<f64> {
    sqlx::raw_sql("CHECKPOINT").execute(&db.admin()).await?;
    let name = ConsumerName::new(format!("drain_{}", fastrand::u64(..)))?;
    let config = ConsumerConfig { batch_size, ..ConsumerConfig::default() };
    let mut consumers = Consumers::new(db.app_pool(20), db.options(Role::App), config, Clock::system());
    consumers.register(consumer(name.clone()).start_at(StartAt::Oldest))?;
    consumers.ensure().await?;
    let mut connection = db.connect(Role::App).await;
    let stop = CancellationToken::new();
    let start = now();
    let running = tokio::spawn(consumers.run(stop.clone()));
    ensure!(wait_for(&mut connection, &name, events, Duration::from_secs(60)).await?, "it is too slow");
    let seconds = start.elapsed().as_secs_f64();
    stop.cancel();
    running.await??;
    Ok(events as f64 / seconds)
}

/// A log of events about many resources.
async fn filled(server: &TestServer, events: i64) -> anyhow::Result<TestDb> {
    let db = TestDb::on(server).await;
    let pool = db.app_pool(1);
    for first in (0..events).step_by(1_000) {
        let batch: Result<Vec<NewEvent>, _> = (first..(first + 1_000).min(events))
            .map(|n| {
                NewEvent::builder("order.created", "order", "any")
                    .resource_id((n % RESOURCES).to_string())
                    .build()
            })
            .collect();
        let mut tx = seqline::begin(&pool).await?;
        seqline::append(&mut tx, &batch?).await?;
        seqline::commit(tx).await?;
    }
    sqlx::raw_sql("VACUUM ANALYZE").execute(&mut db.connect(Role::Admin).await).await?;
    Ok(db)
}
