//! What the doctor asks. Catalogs are asked by name, so that an answer comes also without the schema or a right to it; and statements have no
//! names, which sessions that share a process would have in common.

use riverqueue::migrate::SchemaName;
use sqlx::postgres::PgListener;
use sqlx::{AssertSqlSafe, PgConnection, Row};
use time::OffsetDateTime;

/// The transaction of one check: it changes nothing, and ends soon.
pub(crate) async fn begin_check(connection: &mut PgConnection, timeout_ms: u128) -> Result<(), sqlx::Error> {
    let sql = format!(
        "BEGIN READ ONLY; SET LOCAL statement_timeout = '{timeout_ms}ms'; SET LOCAL lock_timeout = '{timeout_ms}ms'"
    );
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await.map(drop)
}

pub(crate) async fn end_check(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::raw_sql("ROLLBACK").execute(connection).await.map(drop)
}

/// What the server is.
pub(crate) struct Server {
    pub(crate) version: String,
    pub(crate) in_recovery: bool,
    pub(crate) read_only_default: bool,
    /// Settings of it that are off and keep commits from being safe.
    pub(crate) unsafe_settings: Vec<String>,
}

pub(crate) async fn server(connection: &mut PgConnection) -> Result<Server, sqlx::Error> {
    let row = sqlx::query(
        "SELECT current_setting('server_version'), pg_is_in_recovery(), current_setting('default_transaction_read_only') = 'on',
                ARRAY(SELECT name::text FROM pg_settings WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit')
                      AND setting = 'off' ORDER BY name)",
    )
    .persistent(false)
    .fetch_one(connection)
    .await?;
    Ok(Server {
        version: row.try_get(0)?,
        in_recovery: row.try_get(1)?,
        read_only_default: row.try_get(2)?,
        unsafe_settings: row.try_get(3)?,
    })
}

/// Whether there is a schema.
pub(crate) async fn schema_exists(connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar("SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = 'seqline')")
        .persistent(false)
        .fetch_one(connection)
        .await
}

/// Who asks, and what they may do.
pub(crate) struct Roles {
    pub(crate) user: String,
    pub(crate) superuser: bool,
    /// Roles of the product that do not exist.
    pub(crate) missing: Vec<String>,
    /// Roles of the product whose rights they have.
    pub(crate) has: Vec<String>,
}

pub(crate) async fn roles(connection: &mut PgConnection) -> Result<Roles, sqlx::Error> {
    let row = sqlx::query(
        "WITH product AS (
             SELECT n.name, r.oid FROM unnest(ARRAY['seqline_owner', 'seqline_app', 'seqline_producer', 'seqline_reader',
                 'seqline_consumer']) AS n (name) LEFT JOIN pg_roles r ON r.rolname = n.name
         )
         SELECT current_user::text, (SELECT r.rolsuper FROM pg_roles r WHERE r.rolname = current_user),
                ARRAY(SELECT p.name FROM product p WHERE p.oid IS NULL ORDER BY p.name),
                ARRAY(SELECT p.name FROM product p WHERE p.oid IS NOT NULL AND pg_has_role(p.oid, 'USAGE') ORDER BY p.name)",
    )
    .persistent(false)
    .fetch_one(connection)
    .await?;
    Ok(Roles {
        user: row.try_get(0)?,
        superuser: row.try_get(1)?,
        missing: row.try_get(2)?,
        has: row.try_get(3)?,
    })
}

/// Who has the right to number, and who waits for it.
pub(crate) struct NumberingLock {
    pub(crate) holder: Option<Session>,
    pub(crate) waiters: i64,
    /// How long the first of them has waited, as far as it can be seen.
    pub(crate) longest_wait_seconds: Option<f64>,
}

/// A session that has something.
pub(crate) struct Session {
    /// None for a prepared transaction.
    pub(crate) pid: Option<i32>,
    pub(crate) application: Option<String>,
    /// None when this role may not see it.
    pub(crate) state: Option<String>,
    pub(crate) query: Option<String>,
    pub(crate) age_seconds: Option<f64>,
}

pub(crate) async fn numbering_lock(connection: &mut PgConnection) -> Result<NumberingLock, sqlx::Error> {
    let row = sqlx::query(
        "WITH locks AS (
             SELECT l.pid, l.granted, l.waitstart FROM pg_locks l
             JOIN pg_class c ON c.oid = l.relation JOIN pg_namespace n ON n.oid = c.relnamespace
             JOIN pg_database d ON d.oid = l.database
             WHERE l.locktype = 'relation' AND n.nspname = 'seqline' AND c.relname = 'numbering' AND d.datname = current_database()
               AND l.mode <> 'AccessShareLock'
         )
         SELECT h.pid IS NOT NULL OR h.granted IS NOT NULL, h.pid, a.application_name, a.state, a.query,
                extract(epoch FROM clock_timestamp() - a.xact_start)::double precision,
                (SELECT count(*) FROM locks w WHERE NOT w.granted),
                (SELECT extract(epoch FROM clock_timestamp() - min(w.waitstart))::double precision FROM locks w WHERE NOT w.granted)
         FROM (VALUES (1)) AS one (n)
         LEFT JOIN LATERAL (SELECT l.pid, l.granted FROM locks l WHERE l.granted LIMIT 1) h ON true
         LEFT JOIN pg_stat_activity a ON a.pid = h.pid",
    )
    .persistent(false)
    .fetch_one(connection)
    .await?;
    let is_held: Option<bool> = row.try_get(0)?;
    let holder = Session {
        pid: row.try_get(1)?,
        application: row.try_get(2)?,
        state: row.try_get(3)?,
        query: row.try_get(4)?,
        age_seconds: row.try_get(5)?,
    };
    Ok(NumberingLock {
        holder: is_held.unwrap_or(false).then_some(holder),
        waiters: row.try_get(6)?,
        longest_wait_seconds: row.try_get(7)?,
    })
}

/// How long ago the last run of maintenance was completed, in seconds, as far as it is still known.
pub(crate) async fn maintenance_age(
    connection: &mut PgConnection,
    schema: &SchemaName,
) -> Result<Option<f64>, sqlx::Error> {
    let sql = format!(
        "SELECT extract(epoch FROM now() - max(finalized_at))::double precision FROM {}
         WHERE state = 'completed' AND kind = 'sync.partition_maintenance'",
        schema.qualify("river_job")
    );
    sqlx::query_scalar(AssertSqlSafe(sql)).persistent(false).fetch_one(connection).await
}

/// Since when the log is read only and by whom, if the last entry of the audit log about that says so.
pub(crate) async fn read_only_since(
    connection: &mut PgConnection,
) -> Result<Option<(OffsetDateTime, String)>, sqlx::Error> {
    sqlx::query_as(
        "SELECT a.recorded_at, a.who FROM (SELECT * FROM seqline.audit_log WHERE action = 'settings.maintenance' ORDER BY id DESC LIMIT 1) a
         WHERE a.after = to_jsonb('read_only'::text)",
    )
    .persistent(false)
    .fetch_optional(connection)
    .await
}

/// How full the queue of notifications is: 0 to 1.
pub(crate) async fn notification_queue(connection: &mut PgConnection) -> Result<f64, sqlx::Error> {
    sqlx::query_scalar("SELECT pg_notification_queue_usage()").persistent(false).fetch_one(connection).await
}

/// The time of the server.
pub(crate) async fn time(connection: &mut PgConnection) -> Result<OffsetDateTime, sqlx::Error> {
    sqlx::query_scalar("SELECT clock_timestamp()").persistent(false).fetch_one(connection).await
}

/// Which process serves this session now, and how the session is named there.
pub(crate) async fn backend(connection: &mut PgConnection) -> Result<(i32, String), sqlx::Error> {
    let row = sqlx::query("SELECT pg_backend_pid(), current_setting('application_name')")
        .persistent(false)
        .fetch_one(connection)
        .await?;
    Ok((row.try_get(0)?, row.try_get(1)?))
}

/// What tells databases apart, without the schema: the cluster and the database.
pub(crate) async fn place(connection: &mut PgConnection) -> Result<(i64, i64), sqlx::Error> {
    let row = sqlx::query(
        "SELECT s.system_identifier, d.oid::bigint FROM pg_control_system() s, pg_database d WHERE d.datname = current_database()",
    )
    .persistent(false)
    .fetch_one(connection)
    .await?;
    Ok((row.try_get(0)?, row.try_get(1)?))
}

/// The channel of the doctor.
pub(crate) async fn listen(listener: &mut PgListener, channel: &str) -> Result<(), sqlx::Error> {
    listener.listen(channel).await
}

pub(crate) async fn notify(connection: &mut PgConnection, channel: &str) -> Result<(), sqlx::Error> {
    sqlx::query("SELECT pg_notify($1, '')")
        .bind(channel)
        .persistent(false)
        .execute(connection)
        .await
        .map(drop)
}

/// The kind of a statement, which says nothing of its values.
pub(crate) fn kind_of(query: &str) -> &'static str {
    const KINDS: [&str; 22] = [
        "SELECT", "INSERT", "UPDATE", "DELETE", "MERGE", "WITH", "COMMIT", "END", "BEGIN", "ROLLBACK",
        "PREPARE", "COPY", "CREATE", "ALTER", "DROP", "TRUNCATE", "LOCK", "VACUUM", "CALL", "DO", "SET",
        "FETCH",
    ];
    let word: String = query.trim_start().chars().take_while(char::is_ascii_alphabetic).collect();
    KINDS.into_iter().find(|kind| kind.eq_ignore_ascii_case(&word)).unwrap_or("something else")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_of_a_statement_shows_nothing_else_of_it() {
        for (query, kind) in [
            ("INSERT INTO notes VALUES ('secret')", "INSERT"),
            ("  select 'secret'", "SELECT"),
            ("secret()", "something else"),
            ("/* secret */ SELECT 1", "something else"),
            ("", "something else"),
        ] {
            assert_eq!(kind_of(query), kind);
        }
    }
}
