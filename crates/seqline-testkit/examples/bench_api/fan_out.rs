//! Many clients that follow, beside writers that append a lot.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};
use seqline_testkit::bench::Report;
use seqline_testkit::bench::machine::wait;
use seqline_testkit::{TestDb, TestServer};
use tokio::task::JoinSet;

use crate::client::Client;
use crate::cpu;
use crate::event::event;
use crate::measuring::now;
use crate::serving::Serving;

const CLIENTS: usize = 100;
const PER_SECOND: usize = 10_000;
/// Events in a transaction.
const TOGETHER: usize = 100;
/// How long those may take that are late.
const PATIENCE: Duration = Duration::from_secs(300);

pub(crate) async fn measure(
    server: &TestServer,
    duration: Duration,
    report: &mut Report,
) -> anyhow::Result<()> {
    let db = TestDb::on(server).await;
    let serving = Serving::start(&db, &[]).await?;
    let pid = serving.pid().context("the server has ended")?;
    let total = PER_SECOND * duration.as_secs() as usize;
    let delivered = Arc::new(AtomicU64::new(0));
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let client = Client::connect(serving.address, &serving.token).await?;
        let mut events = client.follow("/v1/events/stream?after=head").await?;
        let delivered = delivered.clone();
        clients.spawn(async move {
            for expected in 1..=total as i64 {
                let seq = events.next().await?;
                ensure!(seq == expected, "seq {seq} came instead of {expected}");
                delivered.fetch_add(1, Ordering::Relaxed);
            }
            anyhow::Ok(())
        });
    }
    let (start, used) = (now(), cpu::of(pid)?);
    let committed = append(&db, total).await?;
    let at_the_end = delivered.load(Ordering::Relaxed);
    let all = async {
        while let Some(client) = clients.join_next().await {
            client??;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(PATIENCE, all).await.context("events did not arrive")??;
    let seconds = start.elapsed().as_secs_f64();
    let processors = (cpu::of(pid)? - used) / seconds;
    serving.stop().await?;
    let deliveries = (total * CLIENTS) as f64;
    println!(
        "{CLIENTS} clients that follow all of {PER_SECOND} events/s for {} s, writers and clients on the same machine",
        duration.as_secs()
    );
    println!("  committed, events/s                     {committed:>10.0}");
    println!("  delivered when the last was committed   {:>9.0}%", at_the_end as f64 / deliveries * 100.0);
    println!("  delivered, events/s                     {:>10.0}", deliveries / seconds);
    println!("  processors of the server                {processors:>10.2}\n");
    report.single("fan-out, committed", "events/s", committed);
    report.single(format!("fan-out to {CLIENTS}, delivered"), "events/s", deliveries / seconds);
    report.single(format!("fan-out to {CLIENTS}, the server"), "processors", processors);
    Ok(())
}

/// Appends at the rate, and says which it was.
async fn append(db: &TestDb, total: usize) -> anyhow::Result<f64> {
    let pool = db.app_pool(1);
    let events = vec![event()?; TOGETHER];
    let (start, interval) = (now(), Duration::from_secs(1) * TOGETHER as u32 / PER_SECOND as u32);
    for number in 0..total / TOGETHER {
        wait((start + interval * u32::try_from(number)?).saturating_duration_since(now())).await;
        let mut tx = seqline::begin(&pool).await?;
        seqline::append(&mut tx, &events).await?;
        seqline::commit(tx).await?;
    }
    Ok(total as f64 / start.elapsed().as_secs_f64())
}
