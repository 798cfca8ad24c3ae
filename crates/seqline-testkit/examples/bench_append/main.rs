//! What an event costs in a transaction, beside what others do instead, on a server with production durability.
//!
//! `bench_append [--seconds N] [--runs N] [--held-minutes N] [PART ...]`: N seconds for each rate instead of 3, taken so many times
//! instead of 3, and minutes for the held snapshot instead of 5; the parts are `rates`, `batch`, `numbered`, `tail` and `held`, all of
//! them when none is named, and `held-after-commit` and `gate`, which are not judged. Exits with 1 when a threshold is missed.

#[path = "../measuring/mod.rs"]
mod measuring;

mod batch;
mod databases;
mod gate;
mod held;
mod latency;
mod load;
mod open_loop;
mod peers;
mod rates;
mod ways;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use seqline_testkit::TestServer;
use seqline_testkit::bench::thresholds::keys;
use seqline_testkit::bench::{Arguments, Report, Usage};

const USAGE: Usage = Usage {
    bench: "append",
    numbers: &["--seconds", "--runs", "--held-minutes"],
    parts: &["rates", "batch", "numbered", "tail", "held"],
    on_request: &["held-after-commit", "gate"],
    keys: &[
        keys::AT_COMMIT_32_TO_COUNTER,
        keys::AT_COMMIT_32_TO_8,
        keys::AT_COMMIT_64_TO_COUNTER,
        keys::AT_COMMIT_64_TO_8,
        keys::AFTER_COMMIT_TO_PGMQ,
        keys::AFTER_COMMIT_TO_OUTBOX,
        keys::AFTER_COMMIT_NUMBERED,
        keys::BATCH_EVENTS,
        keys::BATCH_TO_INSERT,
        keys::NUMBERED_P99,
        keys::HELD_RATIO,
        keys::TAIL_P99,
        keys::KEPT_RATE,
    ],
};

/// The same for all ways: room for what a run writes, and no checkpoint in the middle of one because of it. No prepared transactions, as
/// servers are by default: where they are possible a numbered transaction is kept from being prepared, which costs something.
const SETTINGS: [(&str, &str); 4] = [
    ("shared_buffers", "512MB"),
    ("max_wal_size", "4GB"),
    ("checkpoint_timeout", "30min"),
    ("max_prepared_transactions", "0"),
];

/// What was asked for.
#[derive(Debug, Clone, Copy)]
struct Plan {
    /// Of one rate.
    duration: Duration,
    runs: u32,
    /// How long operations are begun at a fixed rate.
    open_loop: Duration,
    held: Duration,
}

#[tokio::main]
async fn main() -> ExitCode {
    measuring::run(USAGE, &SETTINGS, measure).await
}

async fn measure(server: &TestServer, arguments: &Arguments, report: &mut Report) -> anyhow::Result<()> {
    let duration = arguments.seconds().unwrap_or(Duration::from_secs(3));
    let plan = Plan {
        duration,
        runs: arguments.number("--runs").map_or(3, |runs| runs.max(1.0) as u32),
        open_loop: 5 * duration,
        held: Duration::from_secs_f64(arguments.number("--held-minutes").unwrap_or(5.0) * 60.0),
    };
    let mut kept = Vec::new();
    for part in &arguments.parts {
        match part.as_str() {
            "rates" => rates::measure(server, plan, arguments, report).await.context("compare rates")?,
            "batch" => batch::measure(server, plan, report).await.context("compare batches")?,
            "numbered" => kept.push(latency::numbered(server, plan, report).await.context("time numbering")?),
            "tail" => kept.extend(latency::tail(server, plan, report).await.context("time a tail")?),
            "held" => {
                let (p99, rates) = held::at_commit(server, plan, report).await.context("hold a snapshot")?;
                report.judge(keys::HELD_RATIO, p99)?;
                kept.extend(rates);
            }
            "gate" => gate::measure(server, plan, report).await.context("compare gates")?,
            _ => {
                held::after_commit(server, plan, report).await.context("hold a snapshot")?;
            }
        }
    }
    // A latency at a rate that was not reached is that of another one.
    if let Some(lowest) = kept.into_iter().min_by(f64::total_cmp) {
        report.judge(keys::KEPT_RATE, lowest)?;
    }
    Ok(())
}
