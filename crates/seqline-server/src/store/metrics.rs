//! What figures are made of, beyond what the library reads.

use std::collections::HashMap;

use riverqueue::migrate::SchemaName;
use sqlx::{AssertSqlSafe, PgConnection, Row};
use time::OffsetDateTime;

use super::horizon::oldest_age;

/// What is known of the server and of this database on it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct DatabaseFacts {
    /// Whether the server only follows another one.
    pub(crate) follows: bool,
    /// From 0 to 1.
    pub(crate) notification_queue_usage: f64,
    /// In seconds: of those of the [rule](super::horizon) that this role can see.
    pub(crate) oldest_transaction_age: Option<f64>,
    pub(crate) lock_waiters: i64,
    /// In seconds, of the longest.
    pub(crate) lock_wait: Option<f64>,
}

/// What is known of the server's own jobs.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct JobFacts {
    /// How many are in each state, also those with none.
    pub(crate) counts: Vec<(String, i64)>,
    /// In seconds, of the one that is due for longest and that nobody takes.
    pub(crate) overdue_age: Option<f64>,
    /// In seconds, since the last run of maintenance that ended well.
    pub(crate) maintenance_age: Option<f64>,
}

/// What is known of the consumers of agents that are not disabled.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct AgentFacts {
    /// How many somebody has, who may be gone without a word.
    pub(crate) held: i64,
    /// How many nobody has.
    pub(crate) free: i64,
    /// Those furthest behind, beginning with the last.
    pub(crate) behind: Vec<AgentLag>,
}

/// How far a consumer of an agent is behind.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct AgentLag {
    pub(crate) agent: String,
    pub(crate) consumer: String,
    /// The head less its acknowledgement.
    pub(crate) lag: i64,
    /// When the first event began that is still in the log and that it has not acknowledged, if there is any.
    pub(crate) pending_at: Option<OffsetDateTime>,
}

pub(crate) async fn database(connection: &mut PgConnection) -> Result<DatabaseFacts, sqlx::Error> {
    let row = sqlx::query(concat!(
        "SELECT pg_catalog.pg_notification_queue_usage(), ",
        oldest_age!(),
        ",
                waits.count, waits.longest, pg_catalog.pg_is_in_recovery()
         FROM (SELECT count(*), extract(epoch FROM clock_timestamp() - min(waitstart))::double precision AS longest
               FROM pg_catalog.pg_locks
               WHERE relation = 'seqline.numbering'::regclass AND NOT granted
                   AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())) AS waits"
    ))
    .fetch_one(connection)
    .await?;
    Ok(DatabaseFacts {
        notification_queue_usage: row.try_get(0)?,
        oldest_transaction_age: row.try_get(1)?,
        lock_waiters: row.try_get(2)?,
        lock_wait: row.try_get(3)?,
        follows: row.try_get(4)?,
    })
}

/// Of at most `shown` consumers how far they are. The table and that of the principals are read once, and of the log so many rows, each by its
/// number.
pub(crate) async fn agents(connection: &mut PgConnection, shown: i64) -> Result<AgentFacts, sqlx::Error> {
    // All are counted and then cut off: no index is kept for this, since every save would have to change it. The ends of the log are looked
    // up once, and not for each row. What belongs to an agent that is disabled is late by intention.
    let rows = sqlx::query(
        "SELECT c.agent_id, c.consumer, c.acked_seq, (SELECT seqline.head()) - c.acked_seq, (SELECT seqline.min_retained()),
                count(c.holder_session_id) OVER (), count(*) OVER ()
         FROM seqline.agent_consumer_cursors c JOIN seqline.principals p ON p.id = c.agent_id AND p.disabled_at IS NULL
         ORDER BY c.acked_seq, c.agent_id, c.consumer LIMIT $1",
    )
    .bind(shown)
    .fetch_all(&mut *connection)
    .await?;
    let Some(first) = rows.first() else { return Ok(AgentFacts::default()) };
    let (held, all): (i64, i64) = (first.try_get(5)?, first.try_get(6)?);
    let mut behind = Vec::with_capacity(rows.len());
    let mut pending = Vec::with_capacity(rows.len());
    for row in &rows {
        let lag: i64 = row.try_get(3)?;
        let acked: i64 = row.try_get(2)?;
        // What comes next, unless retention took it: then what is left begins there.
        pending.push(acked.saturating_add(1).max(row.try_get(4)?));
        behind.push(AgentLag {
            agent: row.try_get(0)?,
            consumer: row.try_get(1)?,
            lag: lag.max(0),
            pending_at: None,
        });
    }
    let times = times(connection, &pending).await?;
    for (consumer, seq) in behind.iter_mut().zip(&pending).filter(|(consumer, _)| consumer.lag > 0) {
        consumer.pending_at = times.get(seq).copied();
    }
    Ok(AgentFacts { held, free: all - held, behind })
}

/// When these events began. Not persistent, so that it is planned with the numbers, and opens those partitions alone in which they are.
async fn times(
    connection: &mut PgConnection,
    seqs: &[i64],
) -> Result<HashMap<i64, OffsetDateTime>, sqlx::Error> {
    let rows = sqlx::query("SELECT seq, occurred_at FROM seqline.event_log WHERE seq = ANY ($1)")
        .bind(seqs)
        .persistent(false)
        .fetch_all(connection)
        .await?;
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
}

/// The names of at most so many consumers of a stream.
pub(crate) async fn stream_consumers(
    connection: &mut PgConnection,
    stream: &str,
    most: i64,
) -> Result<Vec<String>, sqlx::Error> {
    sqlx::query_scalar(
        "SELECT c.name FROM seqline.stream_consumers c WHERE c.stream = $1 ORDER BY c.name LIMIT $2",
    )
    .bind(stream)
    .bind(most)
    .fetch_all(connection)
    .await
}

pub(crate) async fn jobs(
    connection: &mut PgConnection,
    schema: &SchemaName,
) -> Result<JobFacts, sqlx::Error> {
    let jobs = schema.qualify("river_job");
    let sql = format!(
        "SELECT ARRAY(SELECT state::text FROM states ORDER BY state), ARRAY(SELECT count FROM states ORDER BY state),
                (SELECT extract(epoch FROM now() - min(scheduled_at))::double precision FROM {jobs}
                 WHERE state = 'available' AND scheduled_at < now()),
                (SELECT extract(epoch FROM now() - coalesce(max(finalized_at) FILTER (WHERE state = 'completed'), min(created_at)))::double precision
                 FROM {jobs} WHERE kind = 'sync.partition_maintenance')
         FROM (SELECT) AS one"
    );
    let sql = format!(
        "WITH states (state, count) AS (
             SELECT s.state, (SELECT count(*) FROM {jobs} j WHERE j.state = s.state)
             FROM unnest(enum_range(NULL::{})) AS s (state))
         {sql}",
        schema.qualify("river_job_state")
    );
    let row = sqlx::query(AssertSqlSafe(sql)).fetch_one(connection).await?;
    let (states, counts): (Vec<String>, Vec<i64>) = (row.try_get(0)?, row.try_get(1)?);
    Ok(JobFacts {
        counts: states.into_iter().zip(counts).collect(),
        overdue_age: row.try_get(2)?,
        maintenance_age: row.try_get(3)?,
    })
}
