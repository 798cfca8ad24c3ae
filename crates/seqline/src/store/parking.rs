//! Marks of rounds, and events that are put aside.

use std::time::Duration;

use sqlx::{PgConnection, Row};

use super::consumers::{Advance, HeldCursor, advance_of};
use super::tasks::pg_interval;
use crate::consumer::Mark;

/// What the rounds of a lane have tried last. Only for whoever holds its cursor.
pub(crate) async fn mark(
    connection: &mut PgConnection,
    name: &str,
    lane: u32,
) -> Result<Option<Mark>, sqlx::Error> {
    let row = sqlx::query(
        "SELECT last_seq, until_seq, tried_seq, attempts, due_in, error_type FROM seqline.round_mark($1, $2)",
    )
    .bind(name)
    .bind(lane as i32)
    .fetch_one(connection)
    .await?;
    let Some(last_seq) = row.try_get(0)? else { return Ok(None) };
    Ok(Some(Mark {
        last_seq,
        until: row.try_get(1)?,
        tried: row.try_get(2)?,
        attempts: row.try_get::<i32, _>(3)?.unsigned_abs(),
        due_in: Duration::try_from_secs_f64(row.try_get(4)?).unwrap_or_default(),
        error_type: row.try_get(5)?,
    }))
}

/// How an attempt has ended of which nothing else is known: it is under way, or its process has died.
pub(crate) const ABORTED: &str = "aborted";

/// What a round is going to try: the events after `last_seq` up to `until`, or one of them alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Trial {
    pub(crate) lane: u32,
    pub(crate) last_seq: i64,
    pub(crate) until: i64,
    /// The one, and for which time.
    pub(crate) alone: Option<(i64, u32)>,
}

/// Says what is tried, how long to wait after it, and how it has ended: [`ABORTED`] until more is known.
pub(crate) async fn mark_round(
    connection: &mut PgConnection,
    name: &str,
    trial: Trial,
    pause: Duration,
    error_type: &str,
) -> Result<(), sqlx::Error> {
    sqlx::query("SELECT seqline.mark_round($1, $2, $3, $4, $5, $6, $7, $8)")
        .bind(name)
        .bind(trial.lane as i32)
        .bind(trial.last_seq)
        .bind(trial.until)
        .bind(trial.alone.map(|(seq, _)| seq))
        .bind(count(trial.alone.map_or(0, |(_, attempt)| attempt)))
        .bind(pg_interval(pause))
        .bind(error_type)
        .execute(connection)
        .await
        .map(drop)
}

/// Says that a parked event is tried for the `attempts`th time, and how long to wait after it; `None` is until somebody asks.
pub(crate) async fn mark_parked(
    connection: &mut PgConnection,
    name: &str,
    seq: i64,
    attempts: u32,
    pause: Option<Duration>,
    error_type: Option<&str>,
) -> Result<(), sqlx::Error> {
    sqlx::query("SELECT seqline.mark_parked($1, $2, $3, $4, $5)")
        .bind(name)
        .bind(seq)
        .bind(count(attempts))
        .bind(pause.map(pg_interval))
        .bind(error_type)
        .execute(connection)
        .await
        .map(drop)
}

/// Says how the attempt ended that was marked last: at a parked event, or at the log.
pub(crate) async fn note_attempt(
    connection: &mut PgConnection,
    name: &str,
    lane: u32,
    parked: Option<i64>,
    error_type: &str,
) -> Result<(), sqlx::Error> {
    sqlx::query("SELECT seqline.note_attempt($1, $2, $3, $4)")
        .bind(name)
        .bind(lane as i32)
        .bind(parked)
        .bind(error_type)
        .execute(connection)
        .await
        .map(drop)
}

/// How often a parked event was tried since somebody asked for it, and how the last attempt ended.
pub(crate) async fn parked_attempts(
    connection: &mut PgConnection,
    name: &str,
    seq: i64,
) -> Result<(u32, Option<String>), sqlx::Error> {
    let row: Option<(i32, Option<String>)> = sqlx::query_as(
        "SELECT attempts, error_type FROM seqline.parked_events WHERE consumer = $1 AND seq = $2",
    )
    .bind(name)
    .bind(seq)
    .fetch_optional(connection)
    .await?;
    let (attempts, error_type) = row.unwrap_or_default();
    Ok((attempts.unsigned_abs(), error_type))
}

/// Puts an event aside that was tried so often.
pub(crate) async fn park(
    connection: &mut PgConnection,
    name: &str,
    seq: i64,
    attempts: u32,
    error_type: &str,
) -> Result<(), sqlx::Error> {
    sqlx::query("SELECT seqline.park_event($1, $2, $3, $4)")
        .bind(name)
        .bind(seq)
        .bind(count(attempts))
        .bind(error_type)
        .execute(connection)
        .await
        .map(drop)
}

/// Puts those of these events aside that have to wait for one of the same key, and returns them.
pub(crate) async fn park_behind(
    connection: &mut PgConnection,
    name: &str,
    seqs: &[i64],
) -> Result<Vec<i64>, sqlx::Error> {
    sqlx::query_scalar("SELECT seqline.park_behind($1, $2)").bind(name).bind(seqs).fetch_one(connection).await
}

/// Ends the round of a parked event if everything is as it was when the cursor was locked.
pub(crate) async fn unpark(
    connection: &mut PgConnection,
    name: &str,
    seq: i64,
    held: &HeldCursor,
    may_append: bool,
) -> Result<Advance, sqlx::Error> {
    let row = sqlx::query("SELECT seqline.unpark_event($1, $2, $3, $4)")
        .bind(name)
        .bind(seq)
        .bind(&held.xid)
        .bind(may_append)
        .fetch_one(connection)
        .await?;
    Ok(advance_of(row.try_get(0)?))
}

fn count(attempts: u32) -> i32 {
    i32::try_from(attempts).unwrap_or(i32::MAX)
}
