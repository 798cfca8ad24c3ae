//! What the log costs, measured on a server with production durability, always beside a baseline in the same run.
//!
//! `bench_log [--seconds N] [PART ...]`: N seconds for each rate, 60 for the held snapshot when N is not given; the parts are `sizes`,
//! `others`, `rates`, `partitions` and `held`, all of them when none is named.

#[path = "../measuring/mod.rs"]
mod measuring;

mod load;
mod measurements;

use std::process::ExitCode;
use std::time::Duration;

use seqline_testkit::TestServer;
use seqline_testkit::bench::{Arguments, Report, Usage};

const USAGE: Usage = Usage {
    bench: "log",
    numbers: &["--seconds"],
    parts: &["sizes", "others", "rates", "partitions", "held"],
    on_request: &[],
    keys: &[],
};

#[tokio::main]
async fn main() -> ExitCode {
    measuring::run(USAGE, &[], measure).await
}

async fn measure(server: &TestServer, arguments: &Arguments, report: &mut Report) -> anyhow::Result<()> {
    let rate = arguments.seconds().unwrap_or(Duration::from_secs(10));
    for part in &arguments.parts {
        match part.as_str() {
            "sizes" => measurements::one_transaction(server, report).await?,
            "others" => measurements::others_during_a_large_transaction(server, report).await?,
            "rates" => measurements::rates(server, rate, report).await?,
            "partitions" => measurements::many_partitions(server, rate, report).await?,
            _ => {
                let held = arguments.seconds().unwrap_or(Duration::from_secs(60));
                measurements::held_snapshot(server, held, report).await?;
            }
        }
    }
    Ok(())
}
