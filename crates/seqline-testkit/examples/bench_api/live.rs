//! From a commit that was acknowledged to a client that follows, at a steady rate.

use std::time::Duration;

use anyhow::Context;
use seqline_testkit::bench::thresholds::keys;
use seqline_testkit::bench::{Latencies, Report};
use seqline_testkit::{TestDb, TestServer};

use crate::client::Client;
use crate::measuring::now;
use crate::serving::Serving;
use crate::steady;

const PER_SECOND: u32 = 500;
const WARM_UP: Duration = Duration::from_secs(2);

pub(crate) async fn measure(
    server: &TestServer,
    duration: Duration,
    report: &mut Report,
) -> anyhow::Result<()> {
    let db = TestDb::on(server).await;
    let serving = Serving::start(&db, &[]).await?;
    let client = Client::connect(serving.address, &serving.token).await?;
    let mut events = client.follow("/v1/events/stream?after=head").await?;
    let total = (PER_SECOND * (duration + WARM_UP).as_secs() as u32) as usize;
    let arrivals = tokio::spawn(async move {
        let mut arrivals = Vec::with_capacity(total);
        while arrivals.len() < total {
            let seq = events.next().await?;
            arrivals.push((seq, now()));
        }
        anyhow::Ok(arrivals)
    });
    let start = now() + Duration::from_millis(50);
    let answered = steady::append(&db, PER_SECOND, total as u64, start).await?;
    let arrivals = tokio::time::timeout(Duration::from_secs(30), arrivals).await;
    let arrivals = arrivals.context("events did not arrive")???;
    serving.stop().await?;

    let last = answered.iter().map(|(_, at)| *at).max().context("nothing was appended")?;
    let kept = (duration + WARM_UP).as_secs_f64() / (last - start).as_secs_f64();
    // In the order of their numbers: those of a transaction of one event follow each other.
    let first = arrivals.first().context("nothing arrived")?.0;
    let latencies = answered.iter().filter(|(_, at)| *at >= start + WARM_UP).filter_map(|(seq, at)| {
        let (_, arrived) = arrivals.get(usize::try_from(seq - first).ok()?)?;
        Some(arrived.saturating_duration_since(*at))
    });
    let latencies = Latencies::new(latencies);
    println!(
        "from a commit that was acknowledged to one client that follows, at {PER_SECOND} events/s ({} events)",
        latencies.count()
    );
    for (name, percent) in [("median", 50.0), ("p99", 99.0), ("longest", 100.0)] {
        println!("  {name:<7} {:>8.2} ms", latencies.percentile(percent));
        report.single(format!("from a commit to a stream, {name}"), "ms", latencies.percentile(percent));
    }
    println!("  rate kept {kept:>6.2}\n");
    report.judge(keys::API_LIVE_P99, latencies.percentile(99.0))?;
    report.judge(keys::API_LIVE_KEPT, kept.min(1.0))
}
