//! How long it takes from a commit to its number, and to a tail's sink.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Context;
use futures_util::future::BoxFuture;
use seqline::tail::{Sink, SinkError, Tail, TailConfig};
use seqline::{Clock, StoredEvent};
use seqline_testkit::bench::report::number;
use seqline_testkit::bench::thresholds::keys;
use seqline_testkit::bench::{Latencies, Report, Table};
use seqline_testkit::{Role, TestDb, TestServer, eventually};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::Plan;
use crate::databases::{settle, wait_for_drops};
use crate::measuring::now;
use crate::open_loop::{Done, append};

const PER_SECOND: u32 = 1_000;
/// How long after the last commit everything must have arrived.
const CATCH_UP: Duration = Duration::from_secs(60);

/// Takes down when it was given which event.
#[derive(Debug, Clone, Default)]
struct Noting(Arc<Mutex<HashMap<Uuid, Instant>>>);

impl Sink for Noting {
    fn accept<'a>(&'a mut self, batch: &'a [StoredEvent]) -> BoxFuture<'a, Result<(), SinkError>> {
        let at = now();
        let mut noted = self.0.lock().expect("nobody panics with it");
        noted.extend(batch.iter().map(|event| (event.id, at)));
        drop(noted);
        Box::pin(async { Ok(()) })
    }
}

/// From the answer to a COMMIT to the sink; the share of the rate that was kept.
pub(crate) async fn tail(server: &TestServer, plan: Plan, report: &mut Report) -> anyhow::Result<Vec<f64>> {
    let mut table = Table::new(
        format!(
            "From a commit that was acknowledged to a tail's sink, {PER_SECOND} events/s for {} s, ms",
            plan.open_loop.as_secs()
        ),
        ["sequencing", "events", "median", "p99", "longest", "rate kept"],
    );
    let db = TestDb::on(server).await;
    let (latencies, done) = to_a_sink(&db, plan.open_loop).await?;
    drop(db);
    wait_for_drops(server).await;
    tell(&mut table, report, "from a commit to a tail's sink", "at commit", &latencies, &done);
    report.table(table);
    report.judge(keys::TAIL_P99, latencies.percentile(99.0))?;
    Ok(vec![done.kept])
}

async fn to_a_sink(db: &TestDb, duration: Duration) -> anyhow::Result<(Latencies, Done)> {
    settle(db).await?;
    let noting = Noting::default();
    let tail =
        Tail::new(db.app_pool(2), db.options(Role::App), TailConfig::default(), Clock::system()).await?;
    let (position, mut listening) = (tail.head(), tail.listening());
    let stop = CancellationToken::new();
    let running = tokio::spawn(tail.run(vec![Box::new(noting.clone())], stop.clone()));
    listening.wait_for(|listening| *listening).await?;
    let done = append(db, PER_SECOND, duration).await?;
    eventually(CATCH_UP, "the last event at the sink", async || *position.borrow() >= done.committed).await;
    stop.cancel();
    running.await??;
    let noted = noting.0.lock().expect("nobody panics with it");
    let latencies: Option<Vec<Duration>> = done
        .appends
        .iter()
        // The sink can be first: a notification is sent before the answer.
        .map(|append| Some(noted.get(&append.id)?.saturating_duration_since(append.answered)))
        .collect();
    Ok((Latencies::new(latencies.context("an event did not reach the sink")?), done))
}

fn tell(table: &mut Table, report: &mut Report, what: &str, sequencing: &str, of: &Latencies, done: &Done) {
    let percentiles = [of.percentile(50.0), of.percentile(99.0), of.longest()];
    for (name, value) in ["median", "p99", "longest"].into_iter().zip(percentiles) {
        report.single(format!("{what}, {sequencing}, {name}"), "ms", value);
    }
    report.single(format!("{what}, {sequencing}, rate kept"), "", done.kept);
    let [median, p99, longest] = percentiles.map(number);
    table.row([sequencing.to_owned(), of.count().to_string(), median, p99, longest, number(done.kept)]);
}
