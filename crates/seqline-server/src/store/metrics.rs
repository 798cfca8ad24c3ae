//! What figures are made of, beyond what the library reads.

use riverqueue::migrate::SchemaName;
use sqlx::{AssertSqlSafe, PgConnection, Row};

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
