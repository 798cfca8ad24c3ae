//! What a snapshot that somebody holds does to cursors: PostgreSQL keeps every version of them as long.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::ensure;
use seqline::consumer::{
    Consumer, ConsumerConfig, ConsumerName, Consumers, Handler, HandlerError, Round, StartAt,
};
use seqline::{Clock, StoredEvent};
use seqline_testkit::bench::{Report, Samples};
use seqline_testkit::{Role, TestDb, TestServer};
use sqlx::PgConnection;
use tokio_util::sync::CancellationToken;

use crate::log;
use crate::measuring::now;

const CONSUMERS: usize = 5;
const STEPS: u32 = 6;
/// More than five consumers get through in the time, one event in a round.
const EVENTS_PER_S: u64 = 1_000;
const WARM_UP: Duration = Duration::from_secs(2);

struct Counting(Arc<AtomicU64>);

impl Handler for Counting {
    async fn handle(&self, _: &StoredEvent, _: &mut Round<'_>) -> Result<(), HandlerError> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

pub(crate) async fn measure(
    server: &TestServer,
    duration: Duration,
    report: &mut Report,
) -> anyhow::Result<()> {
    let db = TestDb::on(server).await;
    let step = duration / STEPS;
    let events = EVENTS_PER_S * (duration + 3 * step + WARM_UP).as_secs();
    log::fill(&db, usize::try_from(events)?).await?;

    let config = ConsumerConfig { batch_size: 1, ..ConsumerConfig::default() };
    let pool = db.app_pool(CONSUMERS as u32);
    let mut consumers = Consumers::new(pool, db.options(Role::App), config, Clock::system());
    let rounds = Arc::new(AtomicU64::new(0));
    for n in 0..CONSUMERS {
        let consumer = Consumer::new(ConsumerName::new(format!("held_{n}"))?, Counting(Arc::clone(&rounds)));
        consumers.register(consumer.start_at(StartAt::Oldest))?;
    }
    let rate = async |duration: Duration| {
        let (before, start) = (rounds.load(Ordering::Relaxed), now());
        Clock::system().sleep(duration).await;
        (rounds.load(Ordering::Relaxed) - before) as f64 / start.elapsed().as_secs_f64()
    };
    let stop = CancellationToken::new();
    let running = tokio::spawn(consumers.run(stop.clone()));
    println!(
        "{CONSUMERS} consumers, one event in a round, while a snapshot is held for {} s",
        duration.as_secs()
    );
    println!("{:>18}  {:>8}  {:>11}", "", "rounds/s", "dead tuples");
    let mut observer = db.connect(Role::Admin).await;
    rate(WARM_UP).await;
    let free = rate(step).await;
    println!("{:>18}  {free:>8.0}  {:>11}", "without it", dead_tuples(&mut observer).await?);

    let mut reader = db.connect(Role::App).await;
    sqlx::raw_sql(
        "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT pg_current_xact_id(), (SELECT count(*) FROM pg_class)",
    )
    .execute(&mut reader)
    .await?;
    let mut rates = Vec::new();
    for number in 1..=STEPS {
        let rate = rate(step).await;
        rates.push(rate);
        let until = format!("up to second {}", (step * number).as_secs());
        println!("{until:>18}  {rate:>8.0}  {:>11}", dead_tuples(&mut observer).await?);
    }
    sqlx::raw_sql("COMMIT").execute(&mut reader).await?;
    let after = rate(2 * step).await;
    println!("{:>18}  {after:>8.0}  {:>11}", "after it", dead_tuples(&mut observer).await?);
    println!(
        "  last step against the first: {:.2}\n",
        rates[rates.len() - 1] / rates[0].max(f64::MIN_POSITIVE)
    );
    report.single("rounds, no snapshot held", "rounds/s", free);
    report.figure("rounds while a snapshot is held, step by step", "rounds/s", &Samples::from(rates));
    report.single("rounds after it", "rounds/s", after);
    stop.cancel();
    running.await??;
    for state in seqline::consumer::states(&mut observer).await? {
        ensure!(state.lag() > 0, "consumer {} ran out of events", state.name);
    }
    Ok(())
}

/// Dead versions of cursors, as PostgreSQL's statistics have them.
async fn dead_tuples(connection: &mut PgConnection) -> sqlx::Result<i64> {
    sqlx::query_scalar(
        "SELECT n_dead_tup FROM pg_stat_all_tables WHERE relid = 'seqline.event_consumer_cursors'::regclass",
    )
    .fetch_one(connection)
    .await
}
