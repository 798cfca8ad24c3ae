//! What jobs cost, measured on a server with production durability, beside a baseline in the same run.
//!
//! `bench_jobs [--seconds N] [PART ...]`: N seconds instead of 15 for each rate of writers; the parts are `rounds`, `start` and
//! `writers`, all of them when none is named. Exits with 1 when a threshold is missed.

#[path = "../bench_log/load.rs"]
mod load;
#[path = "../bench_consumers/log.rs"]
mod log;
#[path = "../measuring/mod.rs"]
mod measuring;

mod river;
mod rounds;
mod start;
mod writers;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};

const PARTS: [&str; 3] = ["rounds", "start", "writers"];

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(missed) if missed.is_empty() => ExitCode::SUCCESS,
        Ok(missed) => {
            missed.iter().for_each(|threshold| println!("MISSED  {threshold}"));
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The thresholds that were missed.
async fn run() -> anyhow::Result<Vec<String>> {
    let Arguments { duration, parts } = arguments()?;
    let server = measuring::durable_server().await?;
    let mut missed = Vec::new();
    for part in parts {
        match part.as_str() {
            "rounds" => missed.extend(rounds::measure(&server).await.context("hand events to River")?),
            "start" => start::measure(&server).await.context("time the start of jobs")?,
            _ => writers::measure(&server, duration).await.context("count what writers do")?,
        }
    }
    Ok(missed)
}

struct Arguments {
    duration: Duration,
    parts: Vec<String>,
}

fn arguments() -> anyhow::Result<Arguments> {
    const USAGE: &str = "usage: cargo xtask bench jobs [-- [--seconds N] [rounds] [start] [writers]]";
    let mut duration = Duration::from_secs(15);
    let mut parts = Vec::new();
    let mut given = std::env::args().skip(1);
    while let Some(argument) = given.next() {
        match argument.as_str() {
            "--seconds" => {
                let seconds: u64 =
                    given.next().context(USAGE)?.parse().context("--seconds takes a number")?;
                // Runs of less than a second measure nothing.
                duration = Duration::from_secs(seconds.max(3));
            }
            part if PARTS.contains(&part) => parts.push(argument),
            _ => bail!(USAGE),
        }
    }
    if parts.is_empty() {
        parts = PARTS.map(str::to_owned).to_vec();
    }
    Ok(Arguments { duration, parts })
}
