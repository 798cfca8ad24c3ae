//! What the benchmarks have in common.

use std::time::Instant;

use anyhow::ensure;
use seqline_testkit::TestServer;
use sqlx::ConnectOptions;

#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// A server whose figures are those of production. A number from a server that does not flush would be worth nothing.
pub(crate) async fn durable_server() -> anyhow::Result<TestServer> {
    let server = TestServer::durable().await;
    let mut connection = server.admin_options().connect().await?;
    for setting in ["fsync", "synchronous_commit", "full_page_writes"] {
        let value: String =
            sqlx::query_scalar("SELECT current_setting($1)").bind(setting).fetch_one(&mut connection).await?;
        ensure!(value == "on", "{setting} is {value}, a measurement needs on");
    }
    println!(
        "PostgreSQL {}, {} CPUs, fsync, synchronous_commit and full_page_writes on\n",
        server.postgres().version(),
        std::thread::available_parallelism().map_or(0, std::num::NonZero::get)
    );
    Ok(server)
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
