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

use anyhow::Context;
use seqline_testkit::TestServer;
use seqline_testkit::bench::thresholds::keys;
use seqline_testkit::bench::{Arguments, Report, Usage};

const USAGE: Usage = Usage {
    bench: "jobs",
    numbers: &["--seconds"],
    parts: &["rounds", "start", "writers"],
    on_request: &[],
    keys: &[keys::JOBS_EVENTS, keys::JOBS_TO_INSERT],
};

#[tokio::main]
async fn main() -> ExitCode {
    measuring::run(USAGE, &[], measure).await
}

async fn measure(server: &TestServer, arguments: &Arguments, report: &mut Report) -> anyhow::Result<()> {
    // Runs of less than a second measure nothing.
    let duration = arguments.seconds().unwrap_or(Duration::from_secs(15)).max(Duration::from_secs(3));
    for part in &arguments.parts {
        match part.as_str() {
            "rounds" => rounds::measure(server, report).await.context("hand events to River")?,
            "start" => start::measure(server, report).await.context("time the start of jobs")?,
            _ => writers::measure(server, duration, report).await.context("count what writers do")?,
        }
    }
    Ok(())
}
