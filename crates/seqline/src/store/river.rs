//! River's tables.

use std::collections::BTreeSet;

use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, PgConnection, Row as _};
use time::OffsetDateTime;

use crate::job::NewJob;
use crate::limits::PAUSED_QUEUES_MAX;

/// The statements for one schema: PostgreSQL prepares each once for a connection.
#[derive(Debug)]
pub(crate) struct Statements {
    lock: String,
    state: String,
    announce: String,
    insert: String,
    insert_unique: String,
}

/// What the catalog says about River in a schema. No table is read for it.
pub(crate) struct Facts {
    pub(crate) role: String,
    pub(crate) has_jobs: bool,
    pub(crate) has_migrations: bool,
    pub(crate) has_lines: bool,
    pub(crate) may_insert: bool,
    pub(crate) found_in: Vec<String>,
}

/// What River's tables say.
pub(crate) struct State {
    pub(crate) version: Option<i64>,
    pub(crate) paused_queues: Vec<String>,
}

/// A job and what belongs to its row.
pub(crate) struct Row<'a> {
    /// Its place among the jobs that were asked for.
    pub(crate) index: usize,
    pub(crate) job: &'a NewJob,
    pub(crate) metadata: String,
    pub(crate) unique_key: Option<Vec<u8>>,
    pub(crate) unique_states: Option<i32>,
}

/// The row of a job.
pub(crate) struct Written {
    pub(crate) id: i64,
    /// Whether it is the row of another job, which is the same by its key.
    pub(crate) existed: bool,
}

impl Statements {
    pub(crate) fn new(schema: &str) -> Self {
        let schema = format!("\"{}\"", schema.replace('"', "\"\""));
        let insert = format!(
            "INSERT INTO {schema}.river_job
                 (args, kind, max_attempts, metadata, priority, queue, scheduled_at, state, tags, unique_key, unique_states)
             SELECT j.args::jsonb, j.kind, j.max_attempts, j.metadata::jsonb, j.priority, j.queue,
                 coalesce(j.run_at, now()),
                 (CASE WHEN j.run_at IS NULL THEN 'available' ELSE 'scheduled' END)::{schema}.river_job_state,
                 string_to_array(j.tags, ','), j.unique_key, j.unique_states::bit(8)
             FROM unnest($1::text[], $2::text[], $3::smallint[], $4::text[], $5::smallint[], $6::text[],
                     $7::timestamptz[], $8::text[], $9::bytea[], $10::integer[])
                 WITH ORDINALITY AS j (args, kind, max_attempts, metadata, priority, queue,
                     run_at, tags, unique_key, unique_states, place)
             ORDER BY j.place"
        );
        let version = format!("(SELECT max(version) FROM {schema}.river_migration WHERE line = 'main')");
        let paused = format!("SELECT name FROM {schema}.river_queue WHERE paused_at IS NOT NULL");
        Self {
            lock: format!("LOCK TABLE {schema}.river_job IN ROW EXCLUSIVE MODE"),
            state: format!("SELECT {version}, ARRAY({paused} ORDER BY name LIMIT {PAUSED_QUEUES_MAX})"),
            announce: format!(
                "SELECT {version}, ARRAY({paused} AND name = ANY($1) ORDER BY name LIMIT {PAUSED_QUEUES_MAX}),
                     (SELECT count(pg_notify($2, payload)) FROM unnest($3::text[]) AS payload)"
            ),
            // A row that another transaction committed since this statement began is met by updating it only. It stays as it is.
            insert_unique: format!(
                "{insert}
                 ON CONFLICT (unique_key)
                     WHERE unique_key IS NOT NULL AND unique_states IS NOT NULL
                         AND {schema}.river_job_state_in_bitmask(unique_states, state)
                     DO UPDATE SET kind = river_job.kind
                 RETURNING id, xmax <> 0"
            ),
            insert: format!("{insert} RETURNING id, false"),
        }
    }
}

/// What the catalog says. It does not fail for what is missing or not allowed, and so leaves the transaction usable.
pub(crate) async fn facts(connection: &mut PgConnection, schema: &str) -> Result<Facts, sqlx::Error> {
    let row = sqlx::query(
        "SELECT current_user::text, job.oid IS NOT NULL, migration.oid IS NOT NULL, line.attnum IS NOT NULL,
             coalesce(has_schema_privilege(schema.oid, 'USAGE')
                 AND has_table_privilege(job.oid, 'SELECT') AND has_table_privilege(job.oid, 'INSERT')
                 AND has_table_privilege(job.oid, 'UPDATE') AND has_sequence_privilege(id.oid, 'USAGE')
                 AND has_table_privilege(migration.oid, 'SELECT') AND has_table_privilege(queue.oid, 'SELECT'), false),
             ARRAY(SELECT n.nspname::text FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
                   WHERE c.relname = 'river_job' AND c.relkind IN ('r', 'p') AND n.nspname <> wanted.name
                   ORDER BY 1 LIMIT 5)
         FROM (SELECT $1::text AS name) AS wanted
             LEFT JOIN pg_catalog.pg_namespace schema ON schema.nspname = wanted.name
             LEFT JOIN pg_catalog.pg_class job ON job.relnamespace = schema.oid AND job.relname = 'river_job'
             LEFT JOIN pg_catalog.pg_class id ON id.relnamespace = schema.oid AND id.relname = 'river_job_id_seq'
             LEFT JOIN pg_catalog.pg_class queue ON queue.relnamespace = schema.oid AND queue.relname = 'river_queue'
             LEFT JOIN pg_catalog.pg_class migration
                 ON migration.relnamespace = schema.oid AND migration.relname = 'river_migration'
             LEFT JOIN pg_catalog.pg_attribute line ON line.attrelid = migration.oid AND line.attname = 'line'",
    )
    .bind(schema)
    .fetch_one(connection)
    .await?;
    Ok(Facts {
        role: row.try_get(0)?,
        has_jobs: row.try_get(1)?,
        has_migrations: row.try_get(2)?,
        has_lines: row.try_get(3)?,
        may_insert: row.try_get(4)?,
        found_in: row.try_get(5)?,
    })
}

/// Takes the lock that inserting takes, before any other: River's migrations lock this table first and the others after it.
pub(crate) async fn lock(connection: &mut PgConnection, statements: &Statements) -> Result<(), sqlx::Error> {
    sqlx::query(AssertSqlSafe(statements.lock.as_str())).execute(connection).await.map(drop)
}

pub(crate) async fn state(
    connection: &mut PgConnection,
    statements: &Statements,
) -> Result<State, sqlx::Error> {
    state_of(sqlx::query(AssertSqlSafe(statements.state.as_str())).fetch_one(connection).await?)
}

/// The state of River's schema and of these queues. When the transaction commits, workers of `now` hear that there are jobs.
pub(crate) async fn announce(
    connection: &mut PgConnection,
    statements: &Statements,
    schema: &str,
    queues: &BTreeSet<&str>,
    now: &BTreeSet<&str>,
) -> Result<State, sqlx::Error> {
    let queues: Vec<&str> = queues.iter().copied().collect();
    // Nothing in the name of a queue has to be escaped.
    let payloads: Vec<String> = now.iter().map(|queue| format!(r#"{{"queue":"{queue}"}}"#)).collect();
    let announcing = sqlx::query(AssertSqlSafe(statements.announce.as_str()))
        .bind(queues)
        .bind(format!("{schema}.river_insert"))
        .bind(payloads);
    state_of(announcing.fetch_one(connection).await?)
}

fn state_of(row: PgRow) -> Result<State, sqlx::Error> {
    Ok(State { version: row.try_get(0)?, paused_queues: row.try_get(1)? })
}

/// Inserts jobs, none of which has a key that another one has, and returns their rows in the same order.
pub(crate) async fn insert(
    connection: &mut PgConnection,
    statements: &Statements,
    rows: &[Row<'_>],
) -> Result<Vec<Written>, sqlx::Error> {
    // What makes a row unique costs each row something, so only those pay for it who need it.
    let statement = match rows.iter().any(|row| row.unique_key.is_some()) {
        true => &statements.insert_unique,
        false => &statements.insert,
    };
    let args: Vec<String> = rows.iter().map(|row| row.job.args.to_json()).collect();
    let kinds: Vec<&str> = rows.iter().map(|row| row.job.kind.as_str()).collect();
    let max_attempts: Vec<i16> = rows.iter().map(|row| row.job.max_attempts).collect();
    let metadata: Vec<&str> = rows.iter().map(|row| row.metadata.as_str()).collect();
    let priorities: Vec<i16> = rows.iter().map(|row| row.job.priority).collect();
    let queues: Vec<&str> = rows.iter().map(|row| row.job.queue.as_str()).collect();
    let run_at: Vec<Option<OffsetDateTime>> = rows.iter().map(|row| row.job.run_at).collect();
    let tags: Vec<String> = rows.iter().map(|row| row.job.tags.join(",")).collect();
    let unique_keys: Vec<Option<&[u8]>> = rows.iter().map(|row| row.unique_key.as_deref()).collect();
    let unique_states: Vec<Option<i32>> = rows.iter().map(|row| row.unique_states).collect();
    let written = sqlx::query(AssertSqlSafe(statement.as_str()))
        .bind(args)
        .bind(kinds)
        .bind(max_attempts)
        .bind(metadata)
        .bind(priorities)
        .bind(queues)
        .bind(run_at)
        .bind(tags)
        .bind(unique_keys)
        .bind(unique_states)
        .fetch_all(connection)
        .await?;
    written.iter().map(|row| Ok(Written { id: row.try_get(0)?, existed: row.try_get(1)? })).collect()
}
