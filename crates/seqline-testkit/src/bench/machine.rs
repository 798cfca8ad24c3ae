//! What figures were measured on.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::ensure;
use sqlx::{Connection, PgConnection};

use super::report::number;
use super::samples::median;
use crate::server::TestServer;

/// What a server has to flush, so that its figures are those of production.
const DURABILITY: [&str; 3] = ["fsync", "synchronous_commit", "full_page_writes"];
const COMMITS: usize = 200;

/// Fails unless the server has the durability of production: a figure of any other would be worth nothing.
///
/// # Errors
///
/// Names the setting that is not on.
pub async fn ensure_durable(connection: &mut PgConnection) -> anyhow::Result<()> {
    for setting in DURABILITY {
        let value: String = sqlx::query_scalar("SELECT current_setting($1)")
            .bind(setting)
            .fetch_one(&mut *connection)
            .await?;
        ensure!(value == "on", "{setting} is {value}, a measurement needs on");
    }
    Ok(())
}

/// Describes the machine and the server on it.
///
/// # Errors
///
/// When the server does not have the durability of production, or does not answer.
pub async fn describe(server: &TestServer) -> anyhow::Result<Vec<(&'static str, String)>> {
    let mut connection = PgConnection::connect_with(&server.admin_options()).await?;
    ensure_durable(&mut connection).await?;
    let settings = settings(&mut connection).await?;
    let commit = cost_of_a_commit(&mut connection).await?;
    let processors = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let memory = first_number("/proc/meminfo", "MemTotal:").map(|kib| kib / 1024.0 / 1024.0);
    Ok(vec![
        ("processors", format!("{processors} of {}", cpu_model())),
        ("memory", memory.map_or_else(unknown, |gib| format!("{} GiB", number(gib)))),
        ("kernel", read("/proc/sys/kernel/osrelease").map_or_else(unknown, |text| text.trim().to_owned())),
        ("PostgreSQL", server.postgres().version().to_string()),
        ("durability", format!("{} on", DURABILITY.join(", "))),
        ("settings that are not the default", settings),
        (
            "one commit",
            format!(
                "{} ms, median of {COMMITS} with one row each, one after the other",
                number(commit * 1e3)
            ),
        ),
        ("client", "on the same machine as the server".to_owned()),
    ])
}

/// Those that can change a figure.
async fn settings(connection: &mut PgConnection) -> anyhow::Result<String> {
    let settings: Vec<String> = sqlx::query_scalar(
        "SELECT name || ' = ' || current_setting(name) FROM pg_settings
         WHERE setting IS DISTINCT FROM boot_val AND source IN ('configuration file', 'command line')
             AND (category !~ '^(File Locations|Connections and Auth|Reporting and Logging|Preset|.*Locale)'
                  OR name = 'max_connections')
         ORDER BY name",
    )
    .fetch_all(connection)
    .await?;
    Ok(if settings.is_empty() { "none".to_owned() } else { settings.join(", ") })
}

/// Seconds. What it costs to make one small transaction durable is the floor under everything that commits alone.
async fn cost_of_a_commit(connection: &mut PgConnection) -> anyhow::Result<f64> {
    sqlx::raw_sql("CREATE TABLE IF NOT EXISTS commits (n bigint)").execute(&mut *connection).await?;
    let mut seconds = Vec::with_capacity(COMMITS);
    for n in 0..COMMITS as i64 {
        let start = now();
        sqlx::query("INSERT INTO commits (n) VALUES ($1)").bind(n).execute(&mut *connection).await?;
        seconds.push(start.elapsed().as_secs_f64());
    }
    sqlx::raw_sql("DROP TABLE commits").execute(connection).await?;
    Ok(median(seconds))
}

/// The time of a measurement.
#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
#[must_use]
pub fn now() -> Instant {
    Instant::now()
}

/// Waits; a benchmark has rates to keep.
pub async fn wait(duration: Duration) {
    seqline::Clock::system().sleep(duration).await;
}

fn cpu_model() -> String {
    let text = read("/proc/cpuinfo").unwrap_or_default();
    let model = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    model.map_or_else(unknown, |(_, model)| model.trim().to_owned())
}

fn first_number(path: &str, label: &str) -> Option<f64> {
    let text = read(path)?;
    let line = text.lines().find_map(|line| line.strip_prefix(label))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Not every system has it.
fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok()
}

fn unknown() -> String {
    "unknown".to_owned()
}
