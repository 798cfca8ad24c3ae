//! River's schema: its place, its rights and its jobs.

use std::time::Duration;

use riverqueue::migrate::{POSTGRES_MIGRATIONS, SchemaName};
use sqlx::{AssertSqlSafe, PgConnection, Row};

/// The key of the advisory lock under which one process at a time migrates River: "seqlinej" in bytes.
const MIGRATE_LOCK: i64 = 0x7365_716c_696e_656a;

/// What River's migrations have in front of every name.
const TEMPLATE: &str = "/* TEMPLATE: schema */";

/// What is known about the schema before anything is changed.
pub(crate) struct Facts {
    pub(crate) user: String,
    pub(crate) database: String,
    /// Whose schema it is, if it exists.
    pub(crate) schema_owner: Option<String>,
    pub(crate) has_river: bool,
    pub(crate) has_relations: bool,
    pub(crate) may_create_schema: bool,
    pub(crate) may_act_as_owner: bool,
    /// From PostgreSQL 16 on a member can be kept from inheriting.
    pub(crate) inherits_by_option: bool,
    /// Another schema of the owner's that has jobs.
    pub(crate) other_schema: Option<String>,
}

pub(crate) async fn facts(connection: &mut PgConnection, schema: &str) -> Result<Facts, sqlx::Error> {
    let row = sqlx::query(
        "SELECT current_user::text, current_database()::text,
                (SELECT r.rolname::text FROM pg_namespace n JOIN pg_roles r ON r.oid = n.nspowner WHERE n.nspname = $1),
                EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                        WHERE n.nspname = $1 AND c.relname = 'river_migration'),
                EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1),
                has_database_privilege(current_database(), 'CREATE'),
                coalesce((SELECT CASE WHEN current_setting('server_version_num')::integer >= 160000
                                      THEN pg_has_role(o.oid, 'SET') ELSE pg_has_role(o.oid, 'MEMBER') END
                          FROM pg_roles o WHERE o.rolname = 'seqline_owner'), false),
                current_setting('server_version_num')::integer >= 160000,
                (SELECT min(n.nspname::text) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                     JOIN pg_roles r ON r.oid = n.nspowner
                 WHERE c.relname = 'river_job' AND r.rolname = 'seqline_owner' AND n.nspname <> $1)",
    )
    .bind(schema)
    .fetch_one(connection)
    .await?;
    Ok(Facts {
        user: row.try_get(0)?,
        database: row.try_get(1)?,
        schema_owner: row.try_get(2)?,
        has_river: row.try_get(3)?,
        has_relations: row.try_get(4)?,
        may_create_schema: row.try_get(5)?,
        may_act_as_owner: row.try_get(6)?,
        inherits_by_option: row.try_get(7)?,
        other_schema: row.try_get(8)?,
    })
}

/// The newest version of River that was applied. Its oldest table knows no lines of versions.
pub(crate) async fn version(
    connection: &mut PgConnection,
    schema: &SchemaName,
) -> Result<Option<i64>, sqlx::Error> {
    let sql = format!(
        "SELECT max(m.version) FROM {} m WHERE coalesce(to_jsonb(m) ->> 'line', 'main') = 'main'",
        schema.qualify("river_migration")
    );
    sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(connection).await
}

/// Tried and not waited for, as the lock of the log's migration.
pub(crate) async fn try_migrate_lock(connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar("SELECT pg_try_advisory_lock($1)").bind(MIGRATE_LOCK).fetch_one(connection).await
}

pub(crate) async fn migrate_unlock(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::query("SELECT pg_advisory_unlock($1)").bind(MIGRATE_LOCK).execute(connection).await.map(drop)
}

pub(crate) async fn create_schema(
    connection: &mut PgConnection,
    schema: &SchemaName,
) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(create_schema_sql(schema))).execute(connection).await.map(drop)
}

/// What a worker has to know about the jobs, beside running them.
pub(crate) struct Look {
    /// Whether this role may do what River does.
    pub(crate) may_work: bool,
    /// Queues that are paused.
    pub(crate) paused: Vec<String>,
    /// Jobs that are due for so long that nobody seems to work them.
    pub(crate) overdue: i64,
}

/// Whether this role may do what River does, without touching a table that it may not read.
pub(crate) async fn may_work(
    connection: &mut PgConnection,
    schema: &SchemaName,
) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar(
        "SELECT coalesce(bool_and(has_schema_privilege(n.oid, 'USAGE')
                                  AND CASE c.relkind WHEN 'S' THEN has_sequence_privilege(c.oid, 'USAGE')
                                      ELSE has_table_privilege(c.oid, r.privilege) END), false)
         FROM pg_namespace n
             JOIN pg_class c ON c.relnamespace = n.oid
                 AND c.relname IN ('river_job', 'river_job_id_seq', 'river_leader', 'river_queue', 'river_migration')
             JOIN unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS r (privilege)
                 ON r.privilege = 'SELECT' OR c.relname <> 'river_migration'
         WHERE n.nspname = $1",
    )
    .bind(schema.as_deref())
    .fetch_one(connection)
    .await
}

pub(crate) async fn look(
    connection: &mut PgConnection,
    schema: &SchemaName,
    overdue_after: Duration,
) -> Result<Look, sqlx::Error> {
    if !may_work(connection, schema).await? {
        return Ok(Look { may_work: false, paused: Vec::new(), overdue: 0 });
    }
    let (jobs, queues) = (schema.qualify("river_job"), schema.qualify("river_queue"));
    let sql = format!(
        "SELECT ARRAY(SELECT name FROM {queues} WHERE paused_at IS NOT NULL ORDER BY name LIMIT 10),
                (SELECT count(*) FROM {jobs} WHERE state = 'available' AND scheduled_at < now() - make_interval(secs => $1))"
    );
    let row = sqlx::query(AssertSqlSafe(sql)).bind(overdue_after.as_secs_f64()).fetch_one(connection).await?;
    Ok(Look { may_work: true, paused: row.try_get(0)?, overdue: row.try_get(1)? })
}

/// As one transaction.
pub(crate) async fn grant(connection: &mut PgConnection, schema: &SchemaName) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(grant_sql(schema))).execute(connection).await.map(drop)
}

/// How many jobs wait, run, and were discarded.
pub(crate) async fn counts(
    connection: &mut PgConnection,
    schema: &SchemaName,
) -> Result<(i64, i64, i64), sqlx::Error> {
    let sql = format!(
        "SELECT count(*) FILTER (WHERE state IN ('available', 'pending', 'retryable', 'scheduled')),
                count(*) FILTER (WHERE state = 'running'), count(*) FILTER (WHERE state = 'discarded')
         FROM {}",
        schema.qualify("river_job")
    );
    sqlx::query_as(AssertSqlSafe(sql)).fetch_one(connection).await
}

/// The state of a job, if there is one. No worker takes it before the transaction ends; one that just does is waited for.
pub(crate) async fn lock(
    connection: &mut PgConnection,
    schema: &SchemaName,
    id: i64,
) -> Result<Option<String>, sqlx::Error> {
    let sql = format!("SELECT state::text FROM {} WHERE id = $1 FOR UPDATE", schema.qualify("river_job"));
    sqlx::query_scalar(AssertSqlSafe(sql)).bind(id).fetch_optional(connection).await
}

/// Writes to the audit log what was done to a job, from which state to which.
pub(crate) async fn note(
    connection: &mut PgConnection,
    action: &str,
    id: i64,
    (before, after): (&str, &str),
    why: Option<&str>,
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "SELECT seqline.note_job($1, $2, jsonb_build_object('state', $3::text), jsonb_build_object('state', $4::text), $5)",
    )
    .bind(action)
    .bind(id)
    .bind(before)
    .bind(after)
    .bind(why)
    .execute(connection)
    .await
    .map(drop)
}

/// Discards a job that waits, and returns the state in which it was, if there is one.
pub(crate) async fn discard(
    connection: &mut PgConnection,
    schema: &SchemaName,
    id: i64,
) -> Result<Option<String>, sqlx::Error> {
    let table = schema.qualify("river_job");
    // The lock keeps a worker from taking it in between, and waits for one that just does.
    let sql = format!(
        "WITH before AS (SELECT id, state FROM {table} WHERE id = $1 FOR UPDATE),
              changed AS (UPDATE {table} AS job SET state = 'discarded', finalized_at = now()
                          FROM before
                          WHERE job.id = before.id
                            AND before.state IN ('available', 'pending', 'retryable', 'scheduled'))
         SELECT state::text FROM before"
    );
    sqlx::query_scalar(AssertSqlSafe(sql)).bind(id).fetch_optional(connection).await
}

/// Everything for psql. What is there already is left as it is, so it can be run after any version.
pub(crate) fn script(schema: &SchemaName) -> String {
    let table = schema.qualify("river_migration");
    let mut script = format!("\n-- River, for the server's own jobs\n{}", create_schema_sql(schema));
    for migration in &POSTGRES_MIGRATIONS {
        let version = migration.version;
        // The first makes the table of versions, and the fifth makes it again with lines.
        let missing = match version {
            1 => format!("to_regclass('{table}') IS NULL"),
            _ => format!("NOT EXISTS (SELECT FROM {table} WHERE version = {version})"),
        };
        let record = match version {
            ..5 => format!("INSERT INTO {table} (version) VALUES ({version});"),
            _ => format!("INSERT INTO {table} (line, version) VALUES ('main', {version});"),
        };
        // Each in a transaction of its own: a value that is added to an enum cannot be used before the commit.
        script.push_str(&format!(
            "\n-- River version {version} ({name})\nBEGIN;\nSET LOCAL ROLE seqline_owner;\nDO $seqline$ BEGIN IF {missing} THEN EXECUTE $river$\n{sql}\n{record}\n$river$; END IF; END $seqline$;\nCOMMIT;\n",
            name = migration.name,
            sql = migration_sql(migration.up_sql, schema),
        ));
    }
    script.push_str(&format!("\nBEGIN;\nSET LOCAL ROLE seqline_owner;\n{}COMMIT;\n", grant_sql(schema)));
    script
}

/// What somebody with more rights has to run so that the user of these facts can migrate.
pub(crate) fn request(facts: &Facts, schema: &SchemaName) -> String {
    let user = facts.user.replace('"', "\"\"");
    let option = if facts.inherits_by_option { " WITH INHERIT FALSE, SET TRUE" } else { "" };
    format!("{}GRANT seqline_owner TO \"{user}\"{option};\n", create_schema_sql(schema))
}

fn migration_sql(template: &str, schema: &SchemaName) -> String {
    let prefix = schema.quoted_identifier().map_or_else(String::new, |name| format!("{name}."));
    template.replace(TEMPLATE, &prefix)
}

fn create_schema_sql(schema: &SchemaName) -> String {
    format!("CREATE SCHEMA IF NOT EXISTS {} AUTHORIZATION seqline_owner;\n", name(schema))
}

/// A worker reads and writes rows, and the index of unique jobs calls a function. What is recorded of River's versions is for the
/// owner to write. All other rights are taken back, also those that an earlier version granted.
fn grant_sql(schema: &SchemaName) -> String {
    let name = name(schema);
    format!(
        "GRANT USAGE ON SCHEMA {name} TO seqline_app;
REVOKE ALL ON ALL TABLES IN SCHEMA {name} FROM seqline_app;
GRANT SELECT ON {name}.river_migration TO seqline_app;
GRANT SELECT, INSERT, UPDATE, DELETE ON {name}.river_job, {name}.river_leader, {name}.river_queue TO seqline_app;
GRANT USAGE, SELECT ON {name}.river_job_id_seq TO seqline_app;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {name} TO seqline_app;
"
    )
}

fn name(schema: &SchemaName) -> String {
    schema.quoted_identifier().unwrap_or_default()
}
