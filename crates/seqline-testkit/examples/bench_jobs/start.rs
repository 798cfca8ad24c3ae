//! How long a commit takes to reach a worker that waits for jobs.

use std::time::{Duration, Instant};

use anyhow::Context;
use riverqueue::{Job, QueueConfig, WorkOutcome, Workers};
use seqline::Clock;
use seqline::job::{JobArgs, JobSink, NewJob, River};
use seqline_testkit::bench::Report;
use seqline_testkit::{Role, TestDb, TestServer, eventually};
use tokio::sync::mpsc;

use crate::measuring::now;
use crate::river;

const JOBS: usize = 500;
/// Only a notification wakes a worker before that.
const POLL_INTERVAL: Duration = Duration::from_secs(86_400);
/// A client rests after each look, by default for 100 ms. One that waits has rested.
const COOLDOWN: Duration = Duration::from_millis(1);
/// From the end of a job to the next, so that nothing is under way: a worker that waits is measured, not one that works.
const PAUSE: Duration = Duration::from_millis(10);

pub(crate) async fn measure(server: &TestServer, report: &mut Report) -> anyhow::Result<()> {
    let db = TestDb::on(server).await;
    river::bring_up(&db).await?;
    let (sender, mut started) = mpsc::unbounded_channel();
    let mut workers = Workers::new();
    workers.add_fn(move |_, job: Job<river::SendInvoice>| {
        let sent = sender.send((job.args.seq, now()));
        async move { sent.map(|()| WorkOutcome::Complete) }
    })?;
    let queue = QueueConfig::new(10).with_fetch_poll_interval(POLL_INTERVAL);
    let client =
        river::client(db.app_pool(4))?.workers(workers).queue("default", queue).fetch_cooldown(COOLDOWN);
    let mut run = client.build()?.start()?;
    run.wait_ready().await?;

    let (river, pool) = (River::in_schema(river::SCHEMA), db.app_pool(1));
    let mut connection = db.connect(Role::App).await;
    let mut milliseconds = Vec::with_capacity(JOBS);
    for seq in 1..=JOBS as i64 {
        let args = JobArgs::new().with("order_id", "17").with("seq", seq);
        let job = NewJob::new("invoice.send", args).check()?;
        let mut tx = seqline::begin(&pool).await?;
        river.insert(&mut tx, &[job]).await?;
        seqline::commit(tx).await?;
        let committed = now();
        let next = tokio::time::timeout(Duration::from_secs(10), started.recv()).await;
        let (worked, at): (i64, Instant) =
            next.context("no notification came")?.context("the worker is gone")?;
        anyhow::ensure!(worked == seq, "job {worked} was started instead of {seq}");
        // PostgreSQL sends the notification before it answers, so the worker can be first.
        let after = at.saturating_duration_since(committed).as_secs_f64();
        let before = committed.saturating_duration_since(at).as_secs_f64();
        milliseconds.push((after - before) * 1e3);
        eventually(Duration::from_secs(10), "the end of the job", async || {
            let left = "SELECT NOT EXISTS (SELECT FROM river.river_job WHERE state <> 'completed')";
            sqlx::query_scalar(left).fetch_one(&mut connection).await.is_ok_and(|done: bool| done)
        })
        .await;
        Clock::system().sleep(PAUSE).await;
    }
    run.stop().await?;

    milliseconds.sort_by(f64::total_cmp);
    let percentile = |percent: usize| milliseconds[(JOBS * percent / 100).min(JOBS - 1)];
    println!(
        "from a commit that was acknowledged to the start of its job, {JOBS} jobs one at a time, woken by NOTIFY alone"
    );
    for (name, percent) in [("median", 50), ("p99", 99), ("longest", 100)] {
        println!("  {name:<7} {:>8.2} ms", percentile(percent));
        report.single(format!("from a commit to the start of its job, {name}"), "ms", percentile(percent));
    }
    println!();
    Ok(())
}
