//! A thousand apps that follow everything, each over a connection of its own.

use std::time::Duration;

use anyhow::{Context, ensure};
use futures_util::{StreamExt, TryStreamExt, stream};
use seqline::access::PrincipalKind;
use seqline_testkit::bench::thresholds::keys;
use seqline_testkit::bench::{Latencies, Report};
use seqline_testkit::{TestDb, TestServer};
use serde_json::json;
use tokio::task::JoinSet;

use crate::measuring::now;
use crate::serving::Serving;
use crate::socket::Socket;
use crate::{cpu, steady, tokens};

const CONNECTIONS: usize = 1_000;
const PER_SECOND: u32 = 100;
const WARM_UP: Duration = Duration::from_secs(2);
/// Connections that begin at the same time.
const AT_ONCE: usize = 32;
/// How long those may take that are late.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) async fn measure(
    server: &TestServer,
    duration: Duration,
    report: &mut Report,
) -> anyhow::Result<()> {
    let db = TestDb::on(server).await;
    let serving = Serving::start(&db, &[]).await?;
    let pid = serving.pid().context("the server has ended")?;
    let postmaster = server.postgres().postmaster_pid().context("PostgreSQL has ended")?.unsigned_abs();
    let total = (PER_SECOND * (duration + WARM_UP).as_secs() as u32) as usize;

    let address = serving.address;
    let coming = stream::iter(tokens(&db, PrincipalKind::App, CONNECTIONS).await?)
        .map(async |token| Socket::ready(address, &json!({ "token": token })).await)
        .buffer_unordered(AT_ONCE);
    let sockets: Vec<_> = coming.try_collect().await?;
    let mut clients = JoinSet::new();
    for (mut socket, _) in sockets {
        clients.spawn(async move {
            let mut arrivals = Vec::with_capacity(total);
            for expected in 1..=total as i64 {
                let seq = socket.event().await?;
                arrivals.push(now());
                ensure!(seq == expected, "seq {seq} came instead of {expected}");
            }
            anyhow::Ok(arrivals)
        });
    }
    let processors =
        || anyhow::Ok([cpu::of(pid)?, cpu::of_server(postmaster)?, cpu::of(std::process::id())?]);
    let (before, start) = (processors()?, now() + Duration::from_millis(50));
    let answered = steady::append(&db, PER_SECOND, total as u64, start).await?;
    let all = async {
        let mut all = Vec::with_capacity(CONNECTIONS);
        while let Some(client) = clients.join_next().await {
            all.push(client??);
        }
        anyhow::Ok(all)
    };
    let arrivals = tokio::time::timeout(PATIENCE, all).await.context("events did not arrive")??;
    let seconds = start.elapsed().as_secs_f64();
    let after = processors()?;
    serving.stop().await?;

    let last = answered.iter().map(|(_, at)| *at).max().context("nothing was appended")?;
    let kept = (duration + WARM_UP).as_secs_f64() / (last - start).as_secs_f64();
    let warm: Vec<_> = answered.iter().filter(|(_, at)| *at >= start + WARM_UP).collect();
    let latencies = Latencies::new(arrivals.iter().flat_map(|arrivals| {
        // Their numbers begin with 1.
        warm.iter().map(|(seq, at)| arrivals[*seq as usize - 1].saturating_duration_since(*at))
    }));
    let delivered: usize = arrivals.iter().map(Vec::len).sum();
    println!(
        "from a commit that was acknowledged to the sockets of {CONNECTIONS} apps that follow all of {PER_SECOND} events/s \
         ({} deliveries)",
        latencies.count()
    );
    for (name, percent) in [("median", 50.0), ("p99", 99.0), ("longest", 100.0)] {
        println!("  {name:<26} {:>8.2} ms", latencies.percentile(percent));
        report.single(format!("from a commit to a socket, {name}"), "ms", latencies.percentile(percent));
    }
    println!("  delivered                  {delivered:>8} of {}", total * CONNECTIONS);
    println!("  rate kept                  {kept:>8.2}");
    for (at, name) in ["the server", "PostgreSQL", "the clients and writers"].into_iter().enumerate() {
        let used = (after[at] - before[at]) / seconds;
        println!("  processors of {name:<23} {used:>5.2}");
        report.single(format!("fan-out, {name}"), "processors", used);
    }
    println!();
    report.judge(keys::GATEWAY_FAN_OUT_KEPT, kept.min(1.0))
}
