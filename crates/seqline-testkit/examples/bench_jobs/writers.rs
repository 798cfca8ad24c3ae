//! What a runtime of jobs that has nothing to do costs those who append.

use std::time::Duration;

use riverqueue::{Job, QueueConfig, RunHandle, WorkOutcome, Workers};
use seqline_testkit::bench::{Report, Samples, median};
use seqline_testkit::{Role, TestDb, TestServer, eventually};

use crate::load::{Load, Work, create_business_table};
use crate::river;

const REPEATS: usize = 5;
const WARM_UP: Duration = Duration::from_secs(1);

/// What runs beside the writers, and is elected leader and idle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Beside {
    Nothing,
    /// A client that polls, as the server runs it.
    Polling,
    /// A client that also listens.
    Listening,
}

pub(crate) async fn measure(
    server: &TestServer,
    duration: Duration,
    report: &mut Report,
) -> anyhow::Result<()> {
    let db = TestDb::on(server).await;
    create_business_table(&db).await?;
    river::bring_up(&db).await?;
    println!(
        "one business UPDATE and one event per transaction beside an idle client of River, transactions/s (medians of {REPEATS}, interleaved)"
    );
    println!(
        "{:>8}  {:>9}  {:>15}  {:>6}  {:>17}  {:>6}",
        "writers", "no client", "one that polls", "ratio", "one that listens", "ratio"
    );
    for writers in [1, 8] {
        let [mut alone, mut polling, mut listening] = [const { Vec::new() }; 3].map(Samples::from);
        for _ in 0..REPEATS {
            for (beside, rates) in [
                (Beside::Nothing, &mut alone),
                (Beside::Polling, &mut polling),
                (Beside::Listening, &mut listening),
            ] {
                let client = start(&db, beside).await?;
                let load = Load::start(&db, writers, Work::UpdateAndAppend);
                load.rate(WARM_UP).await;
                rates.push(load.rate(duration / REPEATS as u32).await);
                load.stop().await?;
                if let Some(mut client) = client {
                    client.stop().await?;
                }
            }
        }
        for (name, rates) in
            [("no client", &alone), ("one that polls", &polling), ("one that listens", &listening)]
        {
            report.figure(format!("{writers} writers beside {name}"), "transactions/s", rates);
        }
        let ratio = |with: &Samples| {
            let pairs = with.values().iter().zip(alone.values());
            median(pairs.map(|(with, alone)| with / alone).collect())
        };
        let (of_polling, of_listening) = (ratio(&polling), ratio(&listening));
        println!(
            "{writers:>8}  {:>9.0}  {:>15.0}  {of_polling:>6.2}  {:>17.0}  {of_listening:>6.2}",
            alone.median(),
            polling.median(),
            listening.median()
        );
    }
    println!();
    Ok(())
}

/// An idle client, when it leads.
async fn start(db: &TestDb, beside: Beside) -> anyhow::Result<Option<RunHandle>> {
    if beside == Beside::Nothing {
        return Ok(None);
    }
    let mut workers = Workers::new();
    workers.add_fn(async |_, _: Job<river::SendInvoice>| anyhow::Ok(WorkOutcome::Complete))?;
    let queue = QueueConfig::new(10).with_fetch_poll_interval(Duration::from_secs(1));
    let client = river::client(db.app_pool(4))?
        .workers(workers)
        .queue("default", queue.clone())
        .queue("maintenance", queue);
    let client = match beside {
        Beside::Listening => client,
        Beside::Nothing | Beside::Polling => client.without_notifications(),
    };
    let client = client.build()?;
    let run = client.start()?;
    let mut connection = db.connect(Role::App).await;
    eventually(Duration::from_secs(20), "the election", async || {
        let leads = "SELECT EXISTS (SELECT FROM river.river_leader WHERE leader_id = $1)";
        sqlx::query_scalar(leads)
            .bind(client.id())
            .fetch_one(&mut connection)
            .await
            .is_ok_and(|leads: bool| leads)
    })
    .await;
    Ok(Some(run))
}
