//! How fast a consumer hands a backlog of events to River.

use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use riverqueue::InsertOpts;
use seqline::consumer::{
    Consumer, ConsumerConfig, ConsumerName, Consumers, Handler, HandlerError, Round, StartAt,
};
use seqline::job::{JobArgs, NewJob, River, RiverClient, Unique};
use seqline::{Clock, StoredEvent};
use seqline_testkit::bench::thresholds::keys;
use seqline_testkit::bench::{Report, Samples, median};
use seqline_testkit::{Role, TestDb, TestServer, eventually};
use sqlx::PgConnection;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::measuring::now;
use crate::{log, river};

const EVENTS: i64 = 50_000;
/// Before the first figure each way of working is done for the last so many events.
const WARM_UP: i64 = 5_000;
const REPEATS: usize = 3;
const BATCH_SIZE: u32 = 200;

/// What is done for an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    /// One job through the sink.
    Sink,
    /// The baseline: the same row by an INSERT of the handler's.
    Insert,
    /// One job through riverqueue's own client.
    Client,
    /// Nothing: the cost of the rounds themselves.
    Nothing,
    /// Two jobs through the sink.
    TwoJobs,
    /// One job through the sink, which is unique by its arguments.
    UniqueJob,
}

const ALL: [(Work, &str); 6] = [
    (Work::Sink, "one job, by the sink"),
    (Work::Insert, "one job, by an INSERT for each"),
    (Work::Client, "one job, by riverqueue's client"),
    (Work::Nothing, "no job, handling nothing"),
    (Work::TwoJobs, "two jobs, by the sink"),
    (Work::UniqueJob, "one unique job, by the sink"),
];

impl Work {
    fn jobs(self) -> i64 {
        match self {
            Self::Nothing => 0,
            Self::TwoJobs => 2,
            Self::Sink | Self::Insert | Self::Client | Self::UniqueJob => 1,
        }
    }
}

struct Inserting {
    work: Work,
    client: RiverClient,
    all_handled: Arc<Notify>,
}

impl Handler for Inserting {
    async fn handle(&self, event: &StoredEvent, round: &mut Round<'_>) -> Result<(), HandlerError> {
        let order_id = event.resource_id.as_deref().unwrap_or_default();
        let args = || JobArgs::new().with("order_id", order_id).with("seq", event.seq);
        match self.work {
            Work::Sink | Work::TwoJobs => {
                for kind in ["invoice.send", "invoice.book"].into_iter().take(self.work.jobs() as usize) {
                    round.jobs().insert(NewJob::new(kind, args()))?;
                }
            }
            Work::UniqueJob => {
                let unique = Some(Unique { by_args: true, ..Unique::default() });
                round.jobs().insert(NewJob { unique, ..NewJob::new("invoice.send", args()) })?;
            }
            Work::Insert => insert(round.connection(), event, order_id).await?,
            Work::Client => {
                let args = river::SendInvoice { order_id: order_id.to_owned(), seq: event.seq };
                self.client.insert(round.transaction(), event, args, InsertOpts::default()).await?;
            }
            Work::Nothing => {}
        }
        if event.seq == EVENTS {
            self.all_handled.notify_one();
        }
        Ok(())
    }
}

/// The row that the sink writes.
async fn insert(connection: &mut PgConnection, event: &StoredEvent, order_id: &str) -> sqlx::Result<()> {
    sqlx::query(
        "INSERT INTO river.river_job (args, kind, max_attempts, metadata, priority, queue, scheduled_at, state, tags)
         VALUES (jsonb_build_object('order_id', $1::text, 'seq', $2::bigint), 'invoice.send', 25,
             jsonb_build_object('seqline:seq', $2, 'seqline:event_id', $3::uuid), 1, 'default', now(), 'available', '{}')",
    )
    .bind(order_id)
    .bind(event.seq)
    .bind(event.id)
    .execute(connection)
    .await
    .map(drop)
}

pub(crate) async fn measure(server: &TestServer, report: &mut Report) -> anyhow::Result<()> {
    let db = TestDb::on(server).await;
    river::bring_up(&db).await?;
    log::fill(&db, EVENTS as usize).await?;
    for (work, _) in ALL {
        rate(&db, work, WARM_UP).await?;
    }
    let mut rates = ALL.map(|_| Samples::default());
    for _ in 0..REPEATS {
        for ((work, _), rates) in ALL.iter().zip(&mut rates) {
            rates.push(rate(&db, *work, EVENTS).await?);
        }
    }
    println!(
        "handing {EVENTS} events to River in rounds of {BATCH_SIZE}, events/s (medians of {REPEATS}, interleaved)"
    );
    println!("{:>32}  {:>8}  {:>8}  {:>8}", "for each event", "median", "lowest", "highest");
    for ((_, name), rates) in ALL.iter().zip(&rates) {
        let (median, lowest, highest) = (rates.median(), rates.lowest(), rates.highest());
        println!("{name:>32}  {median:>8.0}  {lowest:>8.0}  {highest:>8.0}");
        report.figure(format!("for each event {name}"), "events/s", rates);
    }
    let [sink, inserts, ..] = &rates;
    let pairs = sink.values().iter().zip(inserts.values());
    let ratio = median(pairs.map(|(sink, inserts)| sink / inserts).collect());
    println!("  the sink against an INSERT for each: {ratio:.2} (median of {REPEATS})\n");
    report.judge(keys::JOBS_EVENTS, sink.median())?;
    report.judge(keys::JOBS_TO_INSERT, ratio)
}

/// Events per second over the last `events` of the log.
async fn rate(db: &TestDb, work: Work, events: i64) -> anyhow::Result<f64> {
    sqlx::raw_sql("TRUNCATE river.river_job").execute(&db.app()).await?;
    sqlx::raw_sql("CHECKPOINT").execute(&db.admin()).await?;
    let mut connection = db.connect(Role::App).await;
    let name = ConsumerName::new(format!("jobs_{}", fastrand::u64(..)))?;
    let config = ConsumerConfig { batch_size: BATCH_SIZE, ..ConsumerConfig::default() };
    let mut consumers = Consumers::new(db.app_pool(2), db.options(Role::App), config, Clock::system());
    let all_handled = Arc::new(Notify::new());
    let client = RiverClient::new(river::client(db.app())?.build()?);
    let handler = Inserting { work, client, all_handled: Arc::clone(&all_handled) };
    let consumer = Consumer::new(name.clone(), handler).start_at(StartAt::Seq(EVENTS - events + 1));
    consumers.register(consumer.jobs(River::in_schema(river::SCHEMA)))?;

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
    check_jobs(&mut connection, work, events).await?;
    Ok(events as f64 / seconds)
}

/// A figure for something else than the whole work would be worth nothing.
async fn check_jobs(connection: &mut PgConnection, work: Work, events: i64) -> anyhow::Result<()> {
    let (jobs, of_events): (i64, i64) = sqlx::query_as(
        "SELECT count(*), count(DISTINCT (kind, metadata -> 'seqline:seq')) FROM river.river_job
         WHERE state = 'available' AND args -> 'seq' = metadata -> 'seqline:seq'
             AND (unique_key IS NOT NULL) = $1",
    )
    .bind(work == Work::UniqueJob)
    .fetch_one(connection)
    .await?;
    let due = events * work.jobs();
    ensure!((jobs, of_events) == (due, due), "{jobs} jobs of {of_events}, {due} are due");
    Ok(())
}
