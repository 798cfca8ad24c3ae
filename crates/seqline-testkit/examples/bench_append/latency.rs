//! How long it takes from a commit to its number, and to a tail's sink.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use futures_util::future::BoxFuture;
use seqline::tail::{Sink, SinkError, Tail, TailConfig};
use seqline::{Clock, StoredEvent};
use seqline_testkit::bench::machine::wait;
use seqline_testkit::bench::report::number;
use seqline_testkit::bench::thresholds::keys;
use seqline_testkit::bench::{Latencies, Report, Table};
use seqline_testkit::{Role, TestDb, TestServer, eventually};
use sqlx::PgConnection;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::Plan;
use crate::databases::{Running, after_commit, settle, wait_for_drops};
use crate::measuring::now;
use crate::open_loop::{Append, Done, append};

const PER_SECOND: u32 = 1_000;
/// Between two looks at the head.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);
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

/// From the answer to a COMMIT to the sink, by each way to number; the shares of the rate that were kept.
pub(crate) async fn tail(server: &TestServer, plan: Plan, report: &mut Report) -> anyhow::Result<Vec<f64>> {
    let mut table = table("From a commit that was acknowledged to a tail's sink", plan);
    let what = "from a commit to a tail's sink";
    let db = TestDb::on(server).await;
    let (at_commit, of_at_commit) = to_a_sink(&db, plan.open_loop).await?;
    tell(&mut table, report, what, "at commit", &at_commit, &of_at_commit);
    drop(db);
    wait_for_drops(server).await;
    let db = after_commit(server).await?;
    let sequencer = Running::start(&db).await;
    let (latencies, done) = to_a_sink(&db, plan.open_loop).await?;
    tell(&mut table, report, what, "after commit", &latencies, &done);
    sequencer.finish().await?;
    drop(db);
    wait_for_drops(server).await;
    report.table(table);
    report.judge(keys::TAIL_P99, at_commit.percentile(99.0))?;
    Ok(vec![of_at_commit.kept])
}

/// From the answer to a COMMIT to the first look at the head that is not below the event; the share of the rate that was kept.
pub(crate) async fn numbered(server: &TestServer, plan: Plan, report: &mut Report) -> anyhow::Result<f64> {
    let db = after_commit(server).await?;
    settle(&db).await?;
    let sequencer = Running::start(&db).await;
    let stop = CancellationToken::new();
    let looking = tokio::spawn(look_at_head(db.connect(Role::App).await, stop.clone()));
    let done = append(&db, PER_SECOND, plan.open_loop).await?;
    sequencer.finish().await?;
    let mut connection = db.connect(Role::App).await;
    let head = seqline::read::head(&mut connection).await?;
    ensure!(head == done.committed, "{head} events of {} commits have a number", done.committed);
    // One more look has seen the last of them.
    wait(10 * LOOK_INTERVAL).await;
    stop.cancel();
    let looks = looking.await??;

    let seqs: Vec<(Uuid, i64)> =
        sqlx::query_as("SELECT id, seq FROM seqline.event_log").fetch_all(&mut connection).await?;
    let seqs: HashMap<Uuid, i64> = seqs.into_iter().collect();
    let seen = |append: &Append| {
        let seq = *seqs.get(&append.id)?;
        let look = looks.get(looks.partition_point(|(head, _)| *head < seq))?;
        Some(look.1.saturating_duration_since(append.answered))
    };
    let latencies: Option<Vec<Duration>> = done.appends.iter().map(seen).collect();
    let latencies = Latencies::new(latencies.context("an event was not seen to get its number")?);
    drop((connection, db));
    wait_for_drops(server).await;
    let mut table = table("From a commit that was acknowledged to its number", plan);
    tell(&mut table, report, "from a commit to its number", "after commit", &latencies, &done);
    report.table(table);
    report.judge(keys::NUMBERED_P99, latencies.percentile(99.0))?;
    Ok(done.kept)
}

/// When the head was first seen where.
async fn look_at_head(
    mut connection: PgConnection,
    stop: CancellationToken,
) -> anyhow::Result<Vec<(i64, Instant)>> {
    let mut looks: Vec<(i64, Instant)> = Vec::new();
    while !stop.is_cancelled() {
        let head = seqline::read::head(&mut connection).await?;
        if looks.last().is_none_or(|(last, _)| head > *last) {
            looks.push((head, now()));
        }
        wait(LOOK_INTERVAL).await;
    }
    Ok(looks)
}

fn table(what: &str, plan: Plan) -> Table {
    Table::new(
        format!("{what}, {PER_SECOND} events/s for {:.0} s, ms", plan.open_loop.as_secs_f64()),
        ["sequencing", "events", "median", "p99", "longest", "rate kept"],
    )
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
