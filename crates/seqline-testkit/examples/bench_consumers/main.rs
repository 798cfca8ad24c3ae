//! What consumers cost, measured on a server with production durability, beside a baseline in the same run.
//!
//! `bench_consumers [--seconds N] [PART ...]`: N seconds instead of 60 for idle consumers and for the held snapshot; the parts
//! are `drain`, `divided`, `idle`, `wake` and `held`, all of them when none is named. Exits with 1 when a threshold is missed.

#[path = "../measuring/mod.rs"]
mod measuring;

mod divided;
mod drain;
mod held;
mod idle;
mod log;
mod wake;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};

const PARTS: [&str; 5] = ["drain", "divided", "idle", "wake", "held"];

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
            "drain" => missed.extend(drain::measure(&server).await.context("drain a backlog")?),
            "divided" => divided::measure(&server).await.context("compare lanes and policies")?,
            "idle" => {
                missed.extend(idle::measure(&server, duration).await.context("count for idle consumers")?)
            }
            "wake" => wake::measure(&server).await.context("time wake-ups")?,
            _ => held::measure(&server, duration).await.context("hold a snapshot")?,
        }
    }
    Ok(missed)
}

struct Arguments {
    duration: Duration,
    parts: Vec<String>,
}

fn arguments() -> anyhow::Result<Arguments> {
    const USAGE: &str =
        "usage: cargo xtask bench consumers [-- [--seconds N] [drain] [divided] [idle] [wake] [held]]";
    let mut duration = Duration::from_secs(60);
    let mut parts = Vec::new();
    let mut given = std::env::args().skip(1);
    while let Some(argument) = given.next() {
        match argument.as_str() {
            "--seconds" => {
                let seconds: u64 =
                    given.next().context(USAGE)?.parse().context("--seconds takes a number")?;
                // Steps of less than a second measure nothing.
                duration = Duration::from_secs(seconds.max(6));
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
