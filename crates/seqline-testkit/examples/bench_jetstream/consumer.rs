//! A stream into a handler with a small effect in the database: batches, in which each event keeps its own fate, beside a transaction for each
//! message.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::ensure;
use seqline::Clock;
use seqline::envelope::Envelope;
use seqline_nats::broker::{Broker, BrokerConfig};
use seqline_nats::consumer::{Context, Handler, HandlerError, Runtime, StreamConsumer, StreamConsumerConfig};
use seqline_nats::relay::{Relay, RelayConfig};
use seqline_nats::stream::StreamSettings;
use seqline_testkit::bench::thresholds::keys;
use seqline_testkit::bench::{Report, Samples};
use seqline_testkit::nats::NatsServer;
use seqline_testkit::{Role, TestDb, TestServer};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::backlog;
use crate::measuring::now;

const EVENTS: usize = 20_000;
const REPEATS: usize = 3;
const BATCHES: [u32; 2] = [25, 1];

/// Writes a row for each event.
struct Inserting {
    handled: Arc<AtomicUsize>,
    all_handled: Arc<Notify>,
}

impl Handler for Inserting {
    async fn handle(&self, event: &Envelope, context: &mut Context<'_>) -> Result<(), HandlerError> {
        sqlx::query("INSERT INTO effects (event_id, resource_id) VALUES ($1, $2)")
            .bind(event.id)
            .bind(event.resource.id.as_deref())
            .execute(context.connection())
            .await?;
        if self.handled.fetch_add(1, Ordering::Relaxed) + 1 == EVENTS {
            self.all_handled.notify_one();
        }
        Ok(())
    }
}

pub(crate) async fn measure(server: &TestServer, report: &mut Report) -> anyhow::Result<()> {
    let db = TestDb::on(server).await;
    backlog::fill(&db, EVENTS).await?;
    let nats = NatsServer::start().await;
    let broker = Broker::new(BrokerConfig::new(nats.url()));
    let mut relay = Relay::new(db.app_pool(2), broker.clone(), RelayConfig::default(), Clock::system());
    relay.drain_once().await?;
    let [mut batched, mut single, mut two] = [const { Vec::new() }; 3].map(Samples::from);
    for repeat in 0..REPEATS {
        single.push(rate(&db, &broker, BATCHES[1], 1, repeat).await?);
        batched.push(rate(&db, &broker, BATCHES[0], 1, repeat).await?);
        two.push(rate(&db, &broker, BATCHES[0], 2, repeat).await?);
    }
    println!(
        "consuming {EVENTS} events of 500 bytes, one INSERT for each, durable commits, events/s (medians of {REPEATS}, interleaved)"
    );
    println!("  one transaction for each message {:>8.0}", single.median());
    println!("  batches of {}                    {:>8.0}", BATCHES[0], batched.median());
    println!("  ratio                            {:>8.2}", batched.to(&single));
    println!("  two instances                    {:>8.0}\n", two.median());
    report.figure("one transaction for each message", "events/s", &single);
    report.figure("batches of 25", "events/s", &batched);
    report.figure("batches of 25, two instances", "events/s", &two);
    report.judge(keys::STREAM_CONSUMER_EVENTS, batched.median())
}

/// Each time another durable, which begins at the beginning.
async fn rate(
    db: &TestDb,
    broker: &Broker,
    batch: u32,
    instances: usize,
    repeat: usize,
) -> anyhow::Result<f64> {
    let mut admin = db.connect(Role::Admin).await;
    sqlx::raw_sql(
        "DROP TABLE IF EXISTS effects; CREATE TABLE effects (event_id uuid NOT NULL, resource_id text);
         GRANT INSERT, SELECT ON effects TO PUBLIC; CHECKPOINT",
    )
    .execute(&mut admin)
    .await?;
    let name = format!("bench_{batch}_{instances}_{repeat}");
    let (handled, all_handled) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
    let stop = CancellationToken::new();
    let start = now();
    let mut running = Vec::new();
    for _ in 0..instances {
        let handler = Inserting { handled: handled.clone(), all_handled: all_handled.clone() };
        let mut config = StreamConsumerConfig::default();
        config.batch = batch;
        let runtime = Runtime::new(
            db.app_pool(2),
            broker.clone(),
            StreamSettings::default(),
            StreamConsumer::new(&name, handler)?,
            config,
            Clock::system(),
        );
        let stop = stop.clone();
        running.push(tokio::spawn(async move { runtime.run(stop).await }));
    }
    all_handled.notified().await;
    let seconds = start.elapsed().as_secs_f64();
    stop.cancel();
    for instance in running {
        instance.await?;
    }
    let effects: i64 = sqlx::query_scalar("SELECT count(*) FROM effects").fetch_one(&mut admin).await?;
    ensure!(effects == EVENTS as i64, "{effects} effects instead of {EVENTS}");
    Ok(EVENTS as f64 / seconds)
}
