//! What the HTTP API costs, measured on a server with production durability, beside the library in the same run.
//!
//! `bench_api [--seconds N] [PART ...]`: N seconds instead of 5 for each rate; the parts are `append`, `catch-up`, `live` and `fan-out`, all of
//! them when none is named. The command `seqline` has to be built beside it, in the same profile. Exits with 1 when a threshold is missed.

#[path = "../measuring/backlog.rs"]
mod backlog;
#[path = "../measuring/client.rs"]
mod client;
#[path = "../measuring/cpu.rs"]
mod cpu;
#[path = "../measuring/event.rs"]
mod event;
#[path = "../measuring/mod.rs"]
mod measuring;
#[path = "../measuring/pages.rs"]
mod pages;
#[path = "../measuring/serving.rs"]
mod serving;
#[path = "../measuring/steady.rs"]
mod steady;

mod append;
mod catch_up;
mod fan_out;
mod live;
mod stream;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use seqline_testkit::TestServer;
use seqline_testkit::bench::thresholds::keys;
use seqline_testkit::bench::{Arguments, Report, Usage};

const USAGE: Usage = Usage {
    bench: "api",
    numbers: &["--seconds"],
    parts: &["append", "catch-up", "live", "fan-out"],
    on_request: &[],
    keys: &[keys::API_APPEND_TO_LIBRARY, keys::API_CATCH_UP_EVENTS, keys::API_LIVE_P99, keys::API_LIVE_KEPT],
};

#[tokio::main]
async fn main() -> ExitCode {
    measuring::run(USAGE, &[], measure).await
}

async fn measure(server: &TestServer, arguments: &Arguments, report: &mut Report) -> anyhow::Result<()> {
    // Runs of less than a second measure nothing.
    let duration = arguments.seconds().unwrap_or(Duration::from_secs(5)).max(Duration::from_secs(1));
    for part in &arguments.parts {
        match part.as_str() {
            "append" => append::measure(server, duration, report).await.context("append over HTTP")?,
            "catch-up" => catch_up::measure(server, report).await.context("catch up over HTTP")?,
            "live" => live::measure(server, duration * 2, report).await.context("follow over SSE")?,
            _ => fan_out::measure(server, duration, report).await.context("fan out to many")?,
        }
    }
    Ok(())
}
