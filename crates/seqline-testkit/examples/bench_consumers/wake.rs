//! How long a commit takes to reach a handler.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use seqline::consumer::{Consumer, ConsumerConfig, ConsumerName, Consumers, Handler, HandlerError, Round};
use seqline::{Clock, StoredEvent};
use seqline_testkit::bench::Report;
use seqline_testkit::{Role, TestDb, TestServer, eventually};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::log;
use crate::measuring::now;

const EVENTS: usize = 1_000;
/// Only a notification wakes a consumer before that.
const POLL_INTERVAL: Duration = Duration::from_secs(86_400);
/// From one round to the next append, so that no round is under way: a consumer that waits is measured, not one that works.
const PAUSE: Duration = Duration::from_millis(5);

struct Noting(mpsc::UnboundedSender<(i64, Instant)>);

impl Handler for Noting {
    async fn handle(&self, event: &StoredEvent, _: &mut Round<'_>) -> Result<(), HandlerError> {
        self.0.send((event.seq, now()))?;
        Ok(())
    }
}

pub(crate) async fn measure(server: &TestServer, report: &mut Report) -> anyhow::Result<()> {
    let db = TestDb::on(server).await;
    let config = ConsumerConfig { poll_interval: POLL_INTERVAL, ..ConsumerConfig::default() };
    let mut consumers = Consumers::new(db.app_pool(2), db.options(Role::App), config, Clock::system());
    let (sender, mut handled) = mpsc::unbounded_channel();
    let name = ConsumerName::new("woken")?;
    consumers.register(Consumer::new(name.clone(), Noting(sender)))?;
    consumers.ensure().await?;
    let mut listening = consumers.listening();
    let stop = CancellationToken::new();
    let running = tokio::spawn(consumers.run(stop.clone()));
    listening.wait_for(|listening| *listening).await?;

    let pool = db.app_pool(1);
    let mut connection = db.connect(Role::App).await;
    let event = log::event();
    let mut milliseconds = Vec::with_capacity(EVENTS);
    for seq in 1..=EVENTS as i64 {
        let mut tx = seqline::begin(&pool).await?;
        seqline::append(&mut tx, std::slice::from_ref(&event)).await?;
        seqline::commit(tx).await?;
        let committed = now();
        let next = tokio::time::timeout(Duration::from_secs(10), handled.recv()).await;
        let (handled, at) = next.context("no notification came")?.context("the handler is gone")?;
        ensure!(handled == seq, "seq {handled} was handled instead of {seq}");
        // PostgreSQL sends the notification before it answers the writer, so the handler can be first.
        let after = at.saturating_duration_since(committed).as_secs_f64();
        let before = committed.saturating_duration_since(at).as_secs_f64();
        milliseconds.push((after - before) * 1e3);
        eventually(Duration::from_secs(10), "the end of the round", async || {
            log::cursor(&mut connection, &name).await.is_ok_and(|last_seq| last_seq == seq)
        })
        .await;
        Clock::system().sleep(PAUSE).await;
    }
    stop.cancel();
    running.await??;

    milliseconds.sort_by(f64::total_cmp);
    let percentile = |percent: usize| milliseconds[(EVENTS * percent / 100).min(EVENTS - 1)];
    println!(
        "from a commit that was acknowledged to the handler, {EVENTS} events one at a time, woken by NOTIFY alone"
    );
    for (name, percent) in [("median", 50), ("p99", 99), ("longest", 100)] {
        println!("  {name:<7} {:>8.2} ms", percentile(percent));
        report.single(format!("from a commit to the handler, {name}"), "ms", percentile(percent));
    }
    println!();
    Ok(())
}
