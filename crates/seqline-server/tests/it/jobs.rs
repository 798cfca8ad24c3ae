//! The server's own jobs, run by real workers.

mod command;
mod failures;
mod schedule;
mod schema;
mod troubles;

pub(crate) use command::filled;
use seqline_testkit::{Role, TestDb, eventually};
use sqlx::PgConnection;

use crate::support::{DEADLINE, Seqline, Sessions, run_sql};
use crate::worker::worker;

/// The one job that there is so far.
const KIND: &str = "sync.partition_maintenance";

/// A worker with these settings.
fn with(db: &TestDb, settings: &[(&str, &str)]) -> Seqline {
    settings.iter().fold(worker(db), |worker, (key, value)| {
        worker.env(&format!("SEQLINE_{}", key.replace('.', "__").to_uppercase()), value)
    })
}

/// What a statement says of the jobs, whose table it calls `jobs`.
async fn ask<T>(db: &TestDb, sql: &str) -> T
where
    T: for<'r> sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres> + Send + Unpin,
{
    let sql = sql.replace("FROM jobs", "FROM seqline_jobs.river_job AS jobs");
    sqlx::query_scalar(sqlx::AssertSqlSafe(sql)).fetch_one(&db.admin()).await.expect("jobs can be asked")
}

/// Waits until at least one job fulfils a condition.
async fn there_is(db: &TestDb, condition: &str) {
    let sql = format!("SELECT count(*) FROM jobs WHERE {condition}");
    eventually(DEADLINE, condition, async || ask::<i64>(db, &sql).await > 0).await;
}

/// Maintenance waits in its first step from now on, until this connection commits.
async fn hold_maintenance(db: &TestDb) -> PgConnection {
    let mut holder = db.connect(Role::Admin).await;
    let without_limit = "ALTER FUNCTION seqline.sync_event_log_ensure_partitions SET lock_timeout = '10min'";
    run_sql(&mut holder, without_limit).await;
    run_sql(&mut holder, "BEGIN; SELECT FROM seqline.log_bounds FOR UPDATE").await;
    holder
}

/// Waits until it is there.
async fn maintenance_is_held(db: &TestDb) {
    let waiting = "wait_event_type = 'Lock' AND query LIKE '%sync_event_log_ensure_partitions%'";
    Sessions::of(db, Role::App).reach(1, waiting).await;
}
