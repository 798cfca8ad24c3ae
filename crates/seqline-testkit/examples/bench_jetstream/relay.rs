//! A backlog into a stream, pipelined, in atomic batches, and with each message awaited before the next.

use anyhow::{Context, ensure};
use seqline::Clock;
use seqline_nats::broker::{Broker, BrokerConfig};
use seqline_nats::relay::{Relay, RelayConfig};
use seqline_nats::stream::{StreamSettings, info};
use seqline_testkit::bench::thresholds::keys;
use seqline_testkit::bench::{Report, Samples};
use seqline_testkit::nats::{NatsCluster, NatsServer};
use seqline_testkit::{TestDb, TestServer};

use crate::backlog;
use crate::measuring::now;

const EVENTS: usize = 100_000;
/// Each of these waits for the one before, so fewer have to do.
const AWAITED: usize = 5_000;
const BATCH: u32 = 500;
const REPEATS: usize = 3;

/// How messages are sent.
#[derive(Clone, Copy)]
enum Way {
    Pipelined,
    Batches,
    Awaited,
}

pub(crate) async fn measure(server: &TestServer, report: &mut Report) -> anyhow::Result<()> {
    let (whole, short) = (TestDb::on(server).await, TestDb::on(server).await);
    backlog::fill(&whole, EVENTS).await?;
    backlog::fill(&short, AWAITED).await?;
    println!(
        "copying {EVENTS} events of 500 bytes into a stream, events/s (medians of {REPEATS}, interleaved)"
    );
    println!("  awaiting each: {AWAITED} events, each sent when the one before was acknowledged");
    println!(
        "{:>12}  {:>10}  {:>18}  {:>14}  {:>6}",
        "servers", "pipelined", "batches of 500", "awaiting each", "ratio"
    );
    let single = NatsServer::start().await;
    compare(&whole, &short, &single.url(), 1, report).await?;
    drop(single);
    let cluster = NatsCluster::start(3).await;
    compare(&whole, &short, &cluster.urls().join(","), 3, report).await?;
    println!();
    Ok(())
}

async fn compare(
    whole: &TestDb,
    short: &TestDb,
    url: &str,
    replicas: u8,
    report: &mut Report,
) -> anyhow::Result<()> {
    let [mut pipelined, mut batches, mut awaited] = [const { Vec::new() }; 3].map(Samples::from);
    for repeat in 0..REPEATS {
        let run = Run { url, replicas, repeat };
        awaited.push(run.rate(short, AWAITED, Way::Awaited).await?);
        pipelined.push(run.rate(whole, EVENTS, Way::Pipelined).await?);
        batches.push(run.rate(whole, EVENTS, Way::Batches).await?);
    }
    println!(
        "{replicas:>12}  {:>10.0}  {:>18.0}  {:>14.0}  {:>6.1}",
        pipelined.median(),
        batches.median(),
        awaited.median(),
        pipelined.to(&awaited)
    );
    for (way, rates) in [("pipelined", &pipelined), ("in batches", &batches), ("awaiting each", &awaited)] {
        report.figure(format!("relay, {replicas} servers, {way}"), "events/s", rates);
    }
    let key = if replicas == 1 { keys::RELAY_R1_EVENTS } else { keys::RELAY_R3_EVENTS };
    report.judge(key, pipelined.median())
}

struct Run<'a> {
    url: &'a str,
    replicas: u8,
    repeat: usize,
}

impl Run<'_> {
    async fn rate(&self, db: &TestDb, events: usize, way: Way) -> anyhow::Result<f64> {
        let mut stream = StreamSettings::default();
        stream.replicas = self.replicas;
        stream.atomic_batches = matches!(way, Way::Batches);
        let mut config = RelayConfig::default();
        // A relay of its own each time, so that it begins at the beginning.
        config.name = format!("{}-{}-{}", way.name(), self.replicas, self.repeat);
        config.stream = stream;
        match way {
            Way::Pipelined => {}
            Way::Batches => config.atomic_batches = Some(BATCH),
            Way::Awaited => config.window = 1,
        }
        let broker = Broker::new(BrokerConfig::new(self.url));
        // Connections and a stream that are there already, as for a relay that has run for a while.
        seqline_nats::stream::ensure_stream(&broker, &config.stream).await?;
        let name = config.stream.name.clone();
        let mut relay = Relay::new(db.app_pool(2), broker.clone(), config, Clock::system());
        // A task, as a relay is in a process.
        let start = now();
        let (drained, seconds) = tokio::spawn(async move {
            let drained = relay.drain_once().await;
            (drained, start.elapsed().as_secs_f64())
        })
        .await?;
        drained?;
        let found = info(&broker, &name).await?.context("the stream is gone")?.state.messages;
        ensure!(found == events as u64, "{found} messages are in the stream instead of {events}");
        broker.jetstream().await?.delete_stream(&name).await?;
        broker.close().await;
        Ok(events as f64 / seconds)
    }
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::Pipelined => "pipelined",
            Self::Batches => "batches",
            Self::Awaited => "awaited",
        }
    }
}
