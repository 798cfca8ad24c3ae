//! The whole log at work on real input, while it is being broken, and the proof at the end.
//!
//! Eight writers take real webhook payloads and append them as events, each in a transaction that also updates a
//! business table; some roll back, some use savepoints. A tail follows. Two worker processes run the same consumer, which
//! writes two rows and inserts two jobs for each event; clients of River in the same processes work these. An agent gets the
//! events that it may see from `seqline serve`, over the gateway. Meanwhile backends of writers and of the tail are terminated,
//! workers are killed in the middle of their rounds and of their jobs, and once all of PostgreSQL is killed with SIGKILL. The
//! agent's connection is cut, it is killed and started again, and paused for longer than it has to acknowledge; a second
//! instance takes over, its server is killed and started again, it is paused, a third instance takes over, over REST and at
//! another server, and the second one wakes up and acknowledges. A relay, `seqline serve --role relay`, copies the log into a stream of a real
//! nats-server, and two processes consume it; the relay, the broker and the consumers are killed with SIGKILL. Then everything is compared: what the
//! writers were told, what the tail delivered, what the log holds, what the business table says, what the workers have written, which jobs there are
//! and what became of them, what the instances of the agent have done, in which order, what is in the stream, and what its consumers have done.
//!
//! `demo [--seconds N]`; exits with 1 when a promise was broken.

mod agent;
mod agents;
mod chaos;
mod jobs;
mod journal;
mod payloads;
mod report;
mod serving;
mod sink;
mod stream_worker;
mod streams;
mod worker;
mod workers;
mod writers;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use seqline::Clock;
use seqline::tail::{Tail, TailConfig};
use seqline_testkit::{History, Role, TestDb, TestServer, eventually};
use tokio_util::sync::CancellationToken;

const WRITERS: usize = 8;
const DEFAULT_SECONDS: u64 = 30;
/// After the writers have stopped, how long the tail and the workers may take to reach the head.
const CATCH_UP: Duration = Duration::from_secs(60);
/// And how long jobs may take after that. A killed leader of River's clients is succeeded after ten seconds.
const FINISH: Duration = Duration::from_secs(45);

#[tokio::main]
async fn main() -> ExitCode {
    let result = match std::env::args().nth(1).as_deref() {
        Some(worker::ARGUMENT) => worker::run().await.map(|()| true),
        Some(agent::ARGUMENT) => agent::run().await.map(|()| true),
        Some(stream_worker::ARGUMENT) => stream_worker::run().await.map(|()| true),
        _ => Box::pin(run()).await,
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("demo failed: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> anyhow::Result<bool> {
    let seconds = seconds()?;
    let payloads = payloads::load()?;
    println!("{} real webhook payloads loaded", payloads.len());
    let mut server = TestServer::durable().await;
    let db = TestDb::on(&server).await;
    println!("PostgreSQL {} runs with production durability", server.postgres().version());
    writers::create_accounts(&db.admin()).await?;
    worker::create_effects(&db.admin()).await?;
    stream_worker::create_effects(&db.admin()).await?;
    jobs::create(&db.admin(), &db.app()).await?;

    let delivered = sink::Delivered::default();
    let config = TailConfig {
        poll_interval: Duration::from_millis(500),
        listen_reconnect_backoff_cap: Duration::from_secs(1),
        ..TailConfig::default()
    };
    let tail = Tail::new(db.app_pool(2), db.options(Role::App), config, Clock::system()).await?;
    let position = tail.head();
    let stop_tail = CancellationToken::new();
    let tail = tokio::spawn(tail.run(vec![Box::new(delivered.clone())], stop_tail.clone()));

    let mut workers = workers::Workers::start(&db)?;
    let agents = agents::Agents::start(&db).await?;
    let mut streams = streams::Streams::start(&db).await?;
    println!("nats-server {} runs beside it", streams.broker());
    let history = History::new();
    let stop_writers = CancellationToken::new();
    let payloads = std::sync::Arc::new(payloads);
    let writers: Vec<_> = (0..WRITERS)
        .map(|_| {
            tokio::spawn(writers::run(
                db.pool(Role::App, 1),
                history.clone(),
                payloads.clone(),
                stop_writers.clone(),
            ))
        })
        .collect();

    println!(
        "{WRITERS} writers, a tail, {} worker processes, an agent, a relay and consumers of its stream at work for {seconds} s, while workers, the agent, its server, the relay, the broker, consumers, backends and PostgreSQL are killed",
        workers.number()
    );
    let stop_killing = CancellationToken::new();
    let duration = Duration::from_secs(seconds);
    let chaos = async {
        let damage = chaos::run(&mut server, &db, duration).await;
        stop_killing.cancel();
        damage
    };
    let (damage, kills, last, disturbed) = tokio::join!(
        chaos,
        workers.kill_over_and_over(&db, &stop_killing),
        agents.disturb(duration),
        streams.disturb(duration)
    );
    let (damage, kills, last) = (damage?, kills?, last?);
    disturbed.context("disturb the stream")?;
    stop_writers.cancel();
    let mut work = writers::Work::default();
    for writer in writers {
        work.add(writer.await.context("a writer ended")?);
    }
    let mut connection = db.connect(Role::App).await;
    let head = seqline::read::head(&mut connection).await?;
    eventually(CATCH_UP, "the tail reaching the head", async || *position.borrow() == head).await;
    workers::catch_up(&mut connection, head, CATCH_UP).await;
    let agents = last.finish(head, CATCH_UP).await?;
    let streams = streams.finish(head, CATCH_UP).await?;
    jobs::wait(&mut connection, FINISH).await?;
    workers.stop().await?;
    stop_tail.cancel();
    tail.await.context("the tail ended")?.context("the tail failed")?;

    let evidence = report::Evidence {
        history: history.snapshot(),
        delivered: delivered.take(),
        log: report::read_log(&mut connection, head).await?,
        accounts: writers::accounts(&mut connection).await?,
        payloads: &payloads,
        effects: workers::effects(&mut connection).await?,
        cursor: workers::cursor(&mut connection).await?,
        jobs: jobs::read(&mut connection).await?,
        agents,
        streams,
        work,
        damage,
        kills,
    };
    let kept = report::print(&evidence);
    server.stop().await;
    Ok(kept)
}

fn seconds() -> anyhow::Result<u64> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => Ok(DEFAULT_SECONDS),
        ["--seconds", seconds] => seconds.parse().context("--seconds takes a number"),
        _ => bail!("usage: cargo xtask demo [-- --seconds N]"),
    }
}
