//! How fast the log gets into a stream of JetStream, and how fast consumers handle what is there, measured on a server with production
//! durability and with the broker beside it.
//!
//! `bench_jetstream [PART ...]`: the parts are `relay` and `consumer`, both of them when none is named. Exits with 1 when a threshold is missed.

#[path = "../measuring/backlog.rs"]
mod backlog;
#[path = "../measuring/event.rs"]
mod event;
#[path = "../measuring/mod.rs"]
mod measuring;

mod consumer;
mod relay;

use std::process::ExitCode;

use anyhow::Context;
use seqline_testkit::TestServer;
use seqline_testkit::bench::thresholds::keys;
use seqline_testkit::bench::{Arguments, Report, Usage};

const USAGE: Usage = Usage {
    bench: "jetstream",
    numbers: &[],
    parts: &["relay", "consumer"],
    on_request: &[],
    keys: &[keys::RELAY_R1_EVENTS, keys::RELAY_R3_EVENTS, keys::STREAM_CONSUMER_EVENTS],
};

#[tokio::main]
async fn main() -> ExitCode {
    measuring::run(USAGE, &[], measure).await
}

async fn measure(server: &TestServer, arguments: &Arguments, report: &mut Report) -> anyhow::Result<()> {
    for part in &arguments.parts {
        match part.as_str() {
            "relay" => relay::measure(server, report).await.context("copy a log into a stream")?,
            _ => consumer::measure(server, report).await.context("consume a stream")?,
        }
    }
    Ok(())
}
