//! The whole log at work on real input, while it is being broken, and the proof at the end.
//!
//! Eight writers take real webhook payloads and append them as events, each in a transaction that also updates a
//! business table; some roll back, some use savepoints. A tail follows. Meanwhile backends of writers and of the tail are
//! terminated, and once the whole server is killed with SIGKILL. Then everything is compared: what the writers were
//! told, what the tail delivered, what the log holds and what the business table says.
//!
//! `demo [--seconds N]`; exits with 1 when a promise was broken.

mod chaos;
mod payloads;
mod report;
mod sink;
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
/// After the writers have stopped, how long the tail may take to reach the head.
const CATCH_UP: Duration = Duration::from_secs(60);

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
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
        "{WRITERS} writers and a tail at work for {seconds} s, while backends and the server are killed"
    );
    let damage = chaos::run(&mut server, &db, Duration::from_secs(seconds)).await?;
    stop_writers.cancel();
    let mut work = writers::Work::default();
    for writer in writers {
        work.add(writer.await.context("a writer ended")?);
    }
    let mut connection = db.connect(Role::App).await;
    let head = seqline::read::head(&mut connection).await?;
    eventually(CATCH_UP, "the tail reaching the head", async || *position.borrow() == head).await;
    stop_tail.cancel();
    tail.await.context("the tail ended")?.context("the tail failed")?;

    let evidence = report::Evidence {
        history: history.snapshot(),
        delivered: delivered.take(),
        log: report::read_log(&mut connection, head).await?,
        accounts: writers::accounts(&mut connection).await?,
        payloads: &payloads,
        work,
        damage,
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
