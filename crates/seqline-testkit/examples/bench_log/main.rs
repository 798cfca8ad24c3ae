//! What the log costs, measured on a server with production durability, always beside a baseline in the same run.
//!
//! `bench_log [--seconds N]`: N seconds for each rate, 60 for the held snapshot when N is not given.

#[path = "../measuring/mod.rs"]
mod measuring;

mod load;
mod measurements;

use std::time::Duration;

use anyhow::{Context, bail};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let seconds = seconds()?;
    let server = measuring::durable_server().await?;
    measurements::one_transaction(&server).await?;
    measurements::others_during_a_large_transaction(&server).await?;
    measurements::rates(&server, Duration::from_secs(seconds.unwrap_or(10))).await?;
    measurements::many_partitions(&server, Duration::from_secs(seconds.unwrap_or(10))).await?;
    measurements::held_snapshot(&server, Duration::from_secs(seconds.unwrap_or(60))).await?;
    Ok(())
}

fn seconds() -> anyhow::Result<Option<u64>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => Ok(None),
        ["--seconds", seconds] => seconds.parse().map(Some).context("--seconds takes a number"),
        _ => bail!("usage: cargo xtask bench log [-- --seconds N]"),
    }
}
