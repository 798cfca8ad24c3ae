//! Consumers of agents.

use std::time::Duration;

use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, PgConnection, Row};
use time::OffsetDateTime;
use uuid::Uuid;

use super::tasks::pg_interval;
use crate::agent::{
    AgentConsumer, Cursor, Holder, HolderKind, Locked, Lost, LostReason, Save, Saved, Take, Taking,
};

/// A row `c`, as [`decode`] takes it.
const CURSOR: &str = "c.agent_id, c.consumer, c.acked_seq, c.generation, c.holder_session_id, c.holder_kind, c.held_since, c.seen_at,
    c.lost_reason, c.lost_after, c.lost_position, c.created_at, c.updated_at";

/// What a save changes, from an acknowledgement and whether the agent knows what it lost.
///
/// Who knows of no loss, and has not come to where the consumer goes on after one, does not know of that one: it may have been stored without
/// an answer.
const SAVED: &str = "acked_seq = greatest(c.acked_seq, s.acked_seq),
    lost_reason = CASE WHEN NOT s.knows_lost OR s.acked_seq < c.lost_position THEN c.lost_reason END,
    lost_after = CASE WHEN NOT s.knows_lost OR s.acked_seq < c.lost_position THEN c.lost_after END,
    lost_position = CASE WHEN NOT s.knows_lost OR s.acked_seq < c.lost_position THEN c.lost_position END,
    updated_at = CASE WHEN s.acked_seq > c.acked_seq THEN clock_timestamp() ELSE c.updated_at END,
    seen_at = clock_timestamp()";

/// And that nobody holds it any more.
const RELEASED: &str =
    ", holder_session_id = NULL, holder_kind = NULL, held_since = NULL, rest_window = NULL";

/// Whether somebody who comes leaves a row `c` alone. Who leaves it to nobody gives no time.
const LEFT_TO_ITS_HOLDER: &str = "coalesce(c.holder_session_id IS NOT NULL
    AND c.seen_at > clock_timestamp() - $7::interval AND ($8::bigint IS NULL OR c.generation > $8)
    AND c.holder_session_id IS DISTINCT FROM $9::uuid, false)";

/// In one statement: who held it is looked up and locked first, so what is returned is who was replaced.
pub(crate) async fn take(connection: &mut PgConnection, taking: &Taking<'_>) -> Result<Take, sqlx::Error> {
    loop {
        let row = sqlx::query(AssertSqlSafe(format!(
            "WITH before AS MATERIALIZED (
                 SELECT {CURSOR}, {LEFT_TO_ITS_HOLDER} AS held
                 FROM seqline.agent_consumer_cursors c
                 WHERE c.agent_id = $1 AND c.consumer = $2 AND seqline.require_epoch($10) FOR NO KEY UPDATE
             ), taken AS (
                 INSERT INTO seqline.agent_consumer_cursors AS c (agent_id, consumer, acked_seq, holder_session_id, holder_kind, held_since)
                 SELECT $1, $2, $3, $4, $5, clock_timestamp()
                 WHERE seqline.require_epoch($10) AND NOT coalesce((SELECT b.held FROM before b),
                     (SELECT count(*) FROM seqline.agent_consumer_cursors o WHERE o.agent_id = $1) >= $6)
                 ON CONFLICT (agent_id, consumer) DO UPDATE SET
                     holder_session_id = EXCLUDED.holder_session_id, holder_kind = EXCLUDED.holder_kind, held_since = EXCLUDED.held_since,
                     generation = c.generation + 1, rest_window = NULL, seen_at = clock_timestamp(), updated_at = clock_timestamp()
                 WHERE NOT {LEFT_TO_ITS_HOLDER}
                 RETURNING {CURSOR}
             )
             SELECT true, t.*, b.holder_session_id, b.holder_kind, b.held_since, b.seen_at FROM taken t LEFT JOIN before b ON true
             UNION ALL
             SELECT false, {before}, NULL, NULL, NULL, NULL FROM before c WHERE c.held",
            before = CURSOR
        )))
        .bind(taking.consumer.agent())
        .bind(taking.consumer.name())
        .bind(taking.start)
        .bind(taking.session)
        .bind(taking.kind.as_str())
        .bind(i64::from(taking.consumers_max))
        .bind(taking.unless_seen_within.map(pg_interval))
        .bind(taking.unless_after)
        .bind(taking.but_from)
        .bind(taking.epoch)
        .fetch_optional(&mut *connection)
        .await;
        let row = match row {
            Err(error) if is_of_no_agent(&error) => return Ok(Take::NoAgent),
            row => row?,
        };
        let Some(row) = row else {
            // Somebody else created it at the same moment, and has it.
            match cursor(connection, taking.consumer).await? {
                Some(_) => continue,
                None => return Ok(Take::TooMany),
            }
        };
        let cursor = decode(&row, 1)?;
        if !row.try_get::<bool, _>(0)? {
            return Ok(Take::Held(cursor));
        }
        return Ok(Take::Taken { cursor, before: decode_holder(&row, 14)? });
    }
}

pub(crate) async fn save(connection: &mut PgConnection, save: &Save) -> Result<Saved, sqlx::Error> {
    change(connection, save, "").await
}

pub(crate) async fn release(connection: &mut PgConnection, save: &Save) -> Result<Saved, sqlx::Error> {
    change(connection, save, RELEASED).await
}

async fn change(connection: &mut PgConnection, save: &Save, more: &str) -> Result<Saved, sqlx::Error> {
    let changed = sqlx::query(AssertSqlSafe(format!(
        "UPDATE seqline.agent_consumer_cursors c SET {SAVED}{more}
         FROM (VALUES ($4::bigint, $5::bool)) AS s (acked_seq, knows_lost)
         WHERE c.agent_id = $1 AND c.consumer = $2 AND c.holder_session_id = $3"
    )))
    .bind(save.consumer.agent())
    .bind(save.consumer.name())
    .bind(save.session)
    .bind(save.acked_seq)
    .bind(save.knows_lost)
    .execute(&mut *connection)
    .await?;
    done(connection, &save.consumer, changed.rows_affected()).await
}

/// What became of a change to the row of a holder: none was made if that is somebody else by now.
async fn done(
    connection: &mut PgConnection,
    consumer: &AgentConsumer,
    rows: u64,
) -> Result<Saved, sqlx::Error> {
    if rows > 0 {
        return Ok(Saved::Done);
    }
    let holder = cursor(connection, consumer).await?.and_then(|cursor| cursor.holder);
    Ok(if holder.is_some() { Saved::Replaced } else { Saved::Released })
}

pub(crate) async fn save_all(
    connection: &mut PgConnection,
    saves: &[Save],
) -> Result<Vec<Option<Saved>>, sqlx::Error> {
    change_all(connection, saves, "").await
}

pub(crate) async fn release_all(
    connection: &mut PgConnection,
    saves: &[Save],
) -> Result<Vec<Option<Saved>>, sqlx::Error> {
    change_all(connection, saves, RELEASED).await
}

async fn change_all(
    connection: &mut PgConnection,
    saves: &[Save],
    more: &str,
) -> Result<Vec<Option<Saved>>, sqlx::Error> {
    let agents: Vec<&str> = saves.iter().map(|save| save.consumer.agent()).collect();
    let names: Vec<&str> = saves.iter().map(|save| save.consumer.name()).collect();
    let sessions: Vec<Uuid> = saves.iter().map(|save| save.session).collect();
    let acked: Vec<i64> = saves.iter().map(|save| save.acked_seq).collect();
    let known: Vec<bool> = saves.iter().map(|save| save.knows_lost).collect();
    // A holder that is one when the statement begins and whose row was not saved is not known: somebody has it locked, or has just taken it.
    let rows: Vec<(i64, bool, Option<bool>)> = sqlx::query_as(AssertSqlSafe(format!(
        "WITH s AS MATERIALIZED (
             SELECT s.* FROM unnest($1::text[], $2::text[], $3::uuid[], $4::bigint[], $5::bool[]) WITH ORDINALITY
                 AS s (agent_id, consumer, session, acked_seq, knows_lost, at)
         ), own AS MATERIALIZED (
             SELECT s.* FROM s
             JOIN seqline.agent_consumer_cursors c ON c.agent_id = s.agent_id AND c.consumer = s.consumer AND c.holder_session_id = s.session
             FOR NO KEY UPDATE OF c SKIP LOCKED
         ), saved AS (
             UPDATE seqline.agent_consumer_cursors c SET {SAVED}{more} FROM own s
             WHERE c.agent_id = s.agent_id AND c.consumer = s.consumer AND c.holder_session_id = s.session
             RETURNING s.at
         )
         SELECT s.at, saved.at IS NOT NULL, c.holder_session_id = s.session
         FROM s LEFT JOIN saved ON saved.at = s.at
         LEFT JOIN seqline.agent_consumer_cursors c ON c.agent_id = s.agent_id AND c.consumer = s.consumer"
    )))
    .bind(agents)
    .bind(names)
    .bind(sessions)
    .bind(acked)
    .bind(known)
    .fetch_all(connection)
    .await?;
    let mut outcomes = vec![None; saves.len()];
    for (at, is_saved, held) in rows {
        let outcome = match (is_saved, held) {
            (true, _) => Some(Saved::Done),
            (false, Some(true)) => None,
            (false, Some(false)) => Some(Saved::Replaced),
            (false, None) => Some(Saved::Released),
        };
        if let Some(place) = usize::try_from(at - 1).ok().and_then(|at| outcomes.get_mut(at)) {
            *place = outcome;
        }
    }
    Ok(outcomes)
}

pub(crate) async fn lose(
    connection: &mut PgConnection,
    consumer: &AgentConsumer,
    session: Uuid,
    lost: &Lost,
) -> Result<Saved, sqlx::Error> {
    let moved = sqlx::query(
        "UPDATE seqline.agent_consumer_cursors c
         SET acked_seq = $6, lost_reason = $4, lost_after = $5, lost_position = $6, updated_at = clock_timestamp(), seen_at = clock_timestamp()
         WHERE c.agent_id = $1 AND c.consumer = $2 AND c.holder_session_id = $3",
    )
    .bind(consumer.agent())
    .bind(consumer.name())
    .bind(session)
    .bind(lost.reason.as_str())
    .bind(lost.after)
    .bind(lost.position)
    .execute(&mut *connection)
    .await?;
    done(connection, consumer, moved.rows_affected()).await
}

pub(crate) async fn acknowledge(
    connection: &mut PgConnection,
    consumer: &AgentConsumer,
    seq: i64,
    generation: Option<i64>,
    epoch: Uuid,
) -> Result<Option<(Cursor, bool)>, sqlx::Error> {
    let row = sqlx::query(AssertSqlSafe(format!(
        "UPDATE seqline.agent_consumer_cursors c SET acked_seq = greatest(c.acked_seq, $3),
             lost_reason = CASE WHEN c.lost_position > $3 THEN c.lost_reason END,
             lost_after = CASE WHEN c.lost_position > $3 THEN c.lost_after END,
             lost_position = CASE WHEN c.lost_position > $3 THEN c.lost_position END,
             updated_at = CASE WHEN $3 > c.acked_seq THEN clock_timestamp() ELSE c.updated_at END
         WHERE c.agent_id = $1 AND c.consumer = $2 AND c.generation = coalesce($4, c.generation)
             AND seqline.require_epoch($5)
         RETURNING {CURSOR}"
    )))
    .bind(consumer.agent())
    .bind(consumer.name())
    .bind(seq)
    .bind(generation)
    .bind(epoch)
    .fetch_optional(&mut *connection)
    .await?;
    if let Some(row) = row {
        return Ok(Some((decode(&row, 0)?, true)));
    }
    Ok(cursor(connection, consumer).await?.map(|cursor| (cursor, false)))
}

pub(crate) async fn cursor(
    connection: &mut PgConnection,
    consumer: &AgentConsumer,
) -> Result<Option<Cursor>, sqlx::Error> {
    let row = sqlx::query(AssertSqlSafe(format!(
        "SELECT {CURSOR} FROM seqline.agent_consumer_cursors c WHERE c.agent_id = $1 AND c.consumer = $2"
    )))
    .bind(consumer.agent())
    .bind(consumer.name())
    .fetch_optional(connection)
    .await?;
    row.map(|row| decode(&row, 0)).transpose()
}

pub(crate) async fn lock(
    connection: &mut PgConnection,
    consumer: &AgentConsumer,
    epoch: Uuid,
) -> Result<Option<Locked>, sqlx::Error> {
    let row = sqlx::query(AssertSqlSafe(format!(
        "SELECT {CURSOR}, c.rest_window, (1000 * extract(epoch FROM clock_timestamp()))::bigint
         FROM seqline.agent_consumer_cursors c
         WHERE c.agent_id = $1 AND c.consumer = $2 AND seqline.require_epoch($3) FOR NO KEY UPDATE"
    )))
    .bind(consumer.agent())
    .bind(consumer.name())
    .bind(epoch)
    .fetch_optional(connection)
    .await?;
    row.map(|row| {
        let now: i64 = row.try_get(14)?;
        let now = Duration::from_millis(now.unsigned_abs());
        Ok(Locked { cursor: decode(&row, 0)?, window: row.try_get(13)?, now })
    })
    .transpose()
}

pub(crate) async fn store_window(
    connection: &mut PgConnection,
    save: &Save,
    window: &str,
) -> Result<bool, sqlx::Error> {
    let stored = sqlx::query(AssertSqlSafe(format!(
        "UPDATE seqline.agent_consumer_cursors c SET {SAVED}, rest_window = $6
         FROM (VALUES ($4::bigint, $5::bool)) AS s (acked_seq, knows_lost)
         WHERE c.agent_id = $1 AND c.consumer = $2 AND c.holder_session_id = $3 AND c.holder_kind = 'rest'"
    )))
    .bind(save.consumer.agent())
    .bind(save.consumer.name())
    .bind(save.session)
    .bind(save.acked_seq)
    .bind(save.knows_lost)
    .bind(window)
    .execute(connection)
    .await?;
    Ok(stored.rows_affected() > 0)
}

pub(crate) async fn list(
    connection: &mut PgConnection,
    agent: Option<&str>,
    after: Option<&AgentConsumer>,
    limit: i64,
) -> Result<Vec<Cursor>, sqlx::Error> {
    let rows = sqlx::query(AssertSqlSafe(format!(
        "SELECT {CURSOR} FROM seqline.agent_consumer_cursors c
         WHERE c.agent_id = coalesce($1, c.agent_id) AND (c.agent_id, c.consumer) > ($2, $3)
         ORDER BY c.agent_id, c.consumer LIMIT $4"
    )))
    .bind(agent)
    .bind(after.map_or("", AgentConsumer::agent))
    .bind(after.map_or("", AgentConsumer::name))
    .bind(limit)
    .persistent(false)
    .fetch_all(connection)
    .await?;
    rows.iter().map(|row| decode(row, 0)).collect()
}

pub(crate) async fn free(
    connection: &mut PgConnection,
    consumer: &AgentConsumer,
    acked_seq: Option<i64>,
    apply: bool,
    why: Option<&str>,
) -> Result<Cursor, sqlx::Error> {
    let row = sqlx::query(AssertSqlSafe(format!(
        "SELECT {CURSOR} FROM seqline.free_agent_consumer($1, $2, $3, $4, $5) c"
    )))
    .bind(consumer.agent())
    .bind(consumer.name())
    .bind(acked_seq)
    .bind(apply)
    .bind(why)
    .fetch_one(connection)
    .await?;
    decode(&row, 0)
}

/// A row whose first column is at `from`.
fn decode(row: &PgRow, from: usize) -> Result<Cursor, sqlx::Error> {
    let lost: Option<String> = row.try_get(from + 8)?;
    let lost = match lost {
        None => None,
        Some(reason) => Some(Lost {
            reason: known(LostReason::named(&reason))?,
            after: row.try_get(from + 9)?,
            position: row.try_get(from + 10)?,
        }),
    };
    Ok(Cursor {
        consumer: AgentConsumer::stored(row.try_get(from)?, row.try_get(from + 1)?),
        acked_seq: row.try_get(from + 2)?,
        generation: row.try_get(from + 3)?,
        holder: decode_holder(row, from + 4)?,
        lost,
        created_at: row.try_get(from + 11)?,
        updated_at: row.try_get(from + 12)?,
    })
}

fn decode_holder(row: &PgRow, from: usize) -> Result<Option<Holder>, sqlx::Error> {
    let Some(session): Option<Uuid> = row.try_get(from)? else { return Ok(None) };
    let kind: String = row.try_get(from + 1)?;
    let (since, seen_at): (OffsetDateTime, OffsetDateTime) = (row.try_get(from + 2)?, row.try_get(from + 3)?);
    Ok(Some(Holder { session, kind: known(HolderKind::named(&kind))?, since, seen_at }))
}

/// A consumer was to be created for a principal that is not there.
fn is_of_no_agent(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(sqlx::error::DatabaseError::is_foreign_key_violation)
}

fn known<T>(value: Option<T>) -> Result<T, sqlx::Error> {
    value.ok_or_else(|| sqlx::Error::Decode("a value that this version does not know".into()))
}

pub(crate) async fn delete(
    connection: &mut PgConnection,
    consumer: &AgentConsumer,
    apply: bool,
    why: Option<&str>,
) -> Result<Cursor, sqlx::Error> {
    let row = sqlx::query(AssertSqlSafe(format!(
        "SELECT {CURSOR} FROM seqline.delete_agent_consumer($1, $2, $3, $4) c"
    )))
    .bind(consumer.agent())
    .bind(consumer.name())
    .bind(apply)
    .bind(why)
    .fetch_one(connection)
    .await?;
    decode(&row, 0)
}
