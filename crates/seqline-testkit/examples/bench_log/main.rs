//! What the log costs, measured on a server with production durability, always beside a baseline in the same run.
//!
//! `bench_log [--seconds N]`: N seconds for each rate, 60 for the held snapshot when N is not given.

mod load;
mod measurements;

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use seqline_testkit::TestServer;
use sqlx::ConnectOptions;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let seconds = seconds()?;
    let server = TestServer::durable().await;
    check_durable(&server).await?;
    println!(
        "PostgreSQL {}, {} CPUs, fsync, synchronous_commit and full_page_writes on\n",
        server.postgres().version(),
        cpus()
    );
    measurements::one_transaction(&server).await?;
    measurements::others_during_a_large_transaction(&server).await?;
    measurements::rates(&server, Duration::from_secs(seconds.unwrap_or(10))).await?;
    measurements::many_partitions(&server, Duration::from_secs(seconds.unwrap_or(10))).await?;
    measurements::held_snapshot(&server, Duration::from_secs(seconds.unwrap_or(60))).await?;
    Ok(())
}

/// A number from a server that does not flush would be worth nothing.
async fn check_durable(server: &TestServer) -> anyhow::Result<()> {
    let mut connection = server.admin_options().connect().await?;
    for setting in ["fsync", "synchronous_commit", "full_page_writes"] {
        let value: String =
            sqlx::query_scalar("SELECT current_setting($1)").bind(setting).fetch_one(&mut connection).await?;
        ensure!(value == "on", "{setting} is {value}, a measurement needs on");
    }
    Ok(())
}

fn cpus() -> usize {
    std::thread::available_parallelism().map_or(0, std::num::NonZero::get)
}

fn seconds() -> anyhow::Result<Option<u64>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => Ok(None),
        ["--seconds", seconds] => seconds.parse().map(Some).context("--seconds takes a number"),
        _ => bail!("usage: cargo xtask bench log [-- --seconds N]"),
    }
}
