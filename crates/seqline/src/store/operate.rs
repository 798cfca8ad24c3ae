//! What people decide about consumers. Each statement says what it does, or would do without `apply`.

use std::time::Duration;

use sqlx::{FromRow, PgConnection};
use time::OffsetDateTime;

use super::tasks::pg_interval;

/// Pauses a consumer or lets it go on, and says whether that changed anything.
pub(crate) async fn set_paused(
    connection: &mut PgConnection,
    name: &str,
    paused: bool,
    why: Option<&str>,
) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar("SELECT seqline.set_consumer_paused($1, $2, $3)")
        .bind(name)
        .bind(paused)
        .bind(why)
        .fetch_one(connection)
        .await
}

/// Waits until a consumer has passed a number, and says whether it has.
pub(crate) async fn wait_for(
    connection: &mut PgConnection,
    name: &str,
    seq: i64,
    timeout: Duration,
) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar("SELECT seqline.wait_for($1, $2, make_interval(secs => $3))")
        .bind(name)
        .bind(seq)
        .bind(timeout.as_secs_f64())
        .fetch_one(connection)
        .await
}

/// The smallest number with a time at or after this one.
pub(crate) async fn seq_at(
    connection: &mut PgConnection,
    time: OffsetDateTime,
) -> Result<Option<i64>, sqlx::Error> {
    sqlx::query_scalar("SELECT seqline.seq_at($1)").bind(time).fetch_one(connection).await
}

#[derive(FromRow)]
pub(crate) struct RewindRow {
    pub(crate) furthest: i64,
    pub(crate) events: i64,
    pub(crate) parked: i64,
    pub(crate) skipped: i64,
}

pub(crate) async fn rewind(
    connection: &mut PgConnection,
    name: &str,
    to: i64,
    apply: bool,
    why: Option<&str>,
) -> Result<RewindRow, sqlx::Error> {
    sqlx::query_as("SELECT * FROM seqline.rewind_consumer($1, $2, $3, $4)")
        .bind(name)
        .bind(to)
        .bind(apply)
        .bind(why)
        .fetch_one(connection)
        .await
}

#[derive(FromRow)]
pub(crate) struct SkipRow {
    pub(crate) in_log: bool,
    pub(crate) r#type: Option<String>,
    pub(crate) resource: Option<String>,
    pub(crate) ahead: i64,
}

pub(crate) async fn skip(
    connection: &mut PgConnection,
    name: &str,
    seq: i64,
    apply: bool,
    why: Option<&str>,
) -> Result<SkipRow, sqlx::Error> {
    sqlx::query_as("SELECT * FROM seqline.skip_event($1, $2, $3, $4)")
        .bind(name)
        .bind(seq)
        .bind(apply)
        .bind(why)
        .fetch_one(connection)
        .await
}

#[derive(FromRow)]
pub(crate) struct RetireRow {
    pub(crate) last_seq: i64,
    pub(crate) events: i64,
    pub(crate) parked: i64,
}

pub(crate) async fn retire(
    connection: &mut PgConnection,
    name: &str,
    apply: bool,
    why: Option<&str>,
) -> Result<RetireRow, sqlx::Error> {
    sqlx::query_as("SELECT * FROM seqline.retire_consumer($1, $2, $3)")
        .bind(name)
        .bind(apply)
        .bind(why)
        .fetch_one(connection)
        .await
}

/// Lets no lane go further than the one that is furthest, for so long; `None` takes that back.
pub(crate) async fn gather_lanes(
    connection: &mut PgConnection,
    name: &str,
    hold: Option<Duration>,
) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar("SELECT seqline.gather_lanes($1, $2)")
        .bind(name)
        .bind(hold.map(pg_interval))
        .fetch_one(connection)
        .await
}

#[derive(FromRow)]
pub(crate) struct LanesRow {
    pub(crate) lanes_before: i32,
    pub(crate) key_before: String,
    pub(crate) last_seq: i64,
    pub(crate) behind: i32,
}

pub(crate) async fn set_lanes(
    connection: &mut PgConnection,
    name: &str,
    (lanes, key): (u32, Option<&str>),
    apply: bool,
    why: Option<&str>,
) -> Result<LanesRow, sqlx::Error> {
    sqlx::query_as("SELECT * FROM seqline.set_consumer_lanes($1, $2, $3, $4, $5)")
        .bind(name)
        .bind(i32::try_from(lanes).unwrap_or(i32::MAX))
        .bind(key)
        .bind(apply)
        .bind(why)
        .fetch_one(connection)
        .await
}

#[derive(FromRow)]
pub(crate) struct ReplayRow {
    pub(crate) kind: String,
    pub(crate) events: i64,
}

pub(crate) async fn replay(
    connection: &mut PgConnection,
    (name, into): (&str, &str),
    (from, to): (i64, i64),
    apply: bool,
    why: Option<&str>,
) -> Result<ReplayRow, sqlx::Error> {
    sqlx::query_as("SELECT * FROM seqline.replay_consumer($1, $2, $3, $4, $5, $6)")
        .bind(name)
        .bind(into)
        .bind(from)
        .bind(to)
        .bind(apply)
        .bind(why)
        .fetch_one(connection)
        .await
}

#[derive(FromRow)]
pub(crate) struct LossesRow {
    pub(crate) ranges: i64,
    pub(crate) events: i64,
}

pub(crate) async fn acknowledge(
    connection: &mut PgConnection,
    name: &str,
    apply: bool,
    why: Option<&str>,
) -> Result<LossesRow, sqlx::Error> {
    sqlx::query_as("SELECT * FROM seqline.acknowledge_losses($1, $2, $3)")
        .bind(name)
        .bind(apply)
        .bind(why)
        .fetch_one(connection)
        .await
}

#[derive(FromRow)]
pub(crate) struct ParkedChangeRow {
    pub(crate) events: i64,
    pub(crate) behind: i64,
}

/// Of one parked event, or of all.
pub(crate) async fn retry_parked(
    connection: &mut PgConnection,
    name: &str,
    seq: Option<i64>,
    apply: bool,
    why: Option<&str>,
) -> Result<ParkedChangeRow, sqlx::Error> {
    sqlx::query_as("SELECT * FROM seqline.retry_parked($1, $2, $3, $4)")
        .bind(name)
        .bind(seq)
        .bind(apply)
        .bind(why)
        .fetch_one(connection)
        .await
}

/// Of one parked event, or of all.
pub(crate) async fn discard_parked(
    connection: &mut PgConnection,
    name: &str,
    seq: Option<i64>,
    apply: bool,
    why: Option<&str>,
) -> Result<ParkedChangeRow, sqlx::Error> {
    sqlx::query_as("SELECT * FROM seqline.discard_parked($1, $2, $3, $4)")
        .bind(name)
        .bind(seq)
        .bind(apply)
        .bind(why)
        .fetch_one(connection)
        .await
}
