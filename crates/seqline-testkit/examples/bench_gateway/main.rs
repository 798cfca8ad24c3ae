//! What the gateway costs, measured on a server with production durability.
//!
//! `bench_gateway [--seconds N] [PART ...]`: N seconds instead of 10 for the fan-out; the parts are `idle`, `fan-out` and `consumer`, all of
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

mod consumer;
mod fan_out;
mod idle;
mod memory;
mod socket;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use seqline::access::{PrincipalKind, Rights};
use seqline_testkit::bench::thresholds::keys;
use seqline_testkit::bench::{Arguments, Report, Usage};
use seqline_testkit::{Role, TestDb, TestServer};
use sqlx::Connection;

const USAGE: Usage = Usage {
    bench: "gateway",
    numbers: &["--seconds"],
    parts: &["idle", "fan-out", "consumer"],
    on_request: &[],
    keys: &[
        keys::GATEWAY_IDLE_MEMORY,
        keys::GATEWAY_IDLE_PROCESSOR,
        keys::GATEWAY_FAN_OUT_KEPT,
        keys::GATEWAY_CONSUMER_EVENTS,
    ],
};

#[tokio::main]
async fn main() -> ExitCode {
    measuring::run(USAGE, &[], measure).await
}

async fn measure(server: &TestServer, arguments: &Arguments, report: &mut Report) -> anyhow::Result<()> {
    // Runs of less than a second measure nothing.
    let duration = arguments.seconds().unwrap_or(Duration::from_secs(10)).max(Duration::from_secs(1));
    for part in &arguments.parts {
        match part.as_str() {
            "idle" => idle::measure(server, report).await.context("idle connections")?,
            "fan-out" => fan_out::measure(server, duration, report).await.context("fan out to many")?,
            _ => consumer::measure(server, report).await.context("one consumer of an agent")?,
        }
    }
    Ok(())
}

/// Tokens of so many new principals.
async fn tokens(db: &TestDb, kind: PrincipalKind, count: usize) -> anyhow::Result<Vec<String>> {
    let mut connection = db.connect(Role::App).await;
    let mut tx = connection.begin().await?;
    let mut tokens = Vec::with_capacity(count);
    for number in 0..count {
        let id = format!("{}-{number}", kind.as_str());
        tokens.push(serving::principal(&mut tx, &id, kind, Rights::default()).await?);
    }
    tx.commit().await?;
    Ok(tokens)
}
