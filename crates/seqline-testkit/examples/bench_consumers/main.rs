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

use anyhow::Context;
use seqline_testkit::TestServer;
use seqline_testkit::bench::thresholds::keys;
use seqline_testkit::bench::{Arguments, Report, Usage};

const USAGE: Usage = Usage {
    bench: "consumers",
    numbers: &["--seconds"],
    parts: &["drain", "divided", "idle", "wake", "held"],
    on_request: &[],
    keys: &[keys::DRAIN_EVENTS, keys::IDLE_ROUND_TRIPS],
};

#[tokio::main]
async fn main() -> ExitCode {
    measuring::run(USAGE, &[], measure).await
}

async fn measure(server: &TestServer, arguments: &Arguments, report: &mut Report) -> anyhow::Result<()> {
    // Steps of less than a second measure nothing.
    let duration = arguments.seconds().unwrap_or(Duration::from_secs(60)).max(Duration::from_secs(6));
    for part in &arguments.parts {
        match part.as_str() {
            "drain" => drain::measure(server, report).await.context("drain a backlog")?,
            "divided" => divided::measure(server, report).await.context("compare lanes and policies")?,
            "idle" => idle::measure(server, duration, report).await.context("count for idle consumers")?,
            "wake" => wake::measure(server, report).await.context("time wake-ups")?,
            _ => held::measure(server, duration, report).await.context("hold a snapshot")?,
        }
    }
    Ok(())
}
