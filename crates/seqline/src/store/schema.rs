//! What `migrate` asks and does.

use sqlx::{AssertSqlSafe, PgConnection, Row};

/// The key of the advisory lock under which one process at a time migrates: "seqline" in bytes.
const MIGRATE_LOCK: i64 = 0x0073_6571_6c69_6e65;

/// What is known about the database before anything is changed.
pub(crate) struct Facts {
    pub(crate) server_version_num: i32,
    pub(crate) server_version: String,
    pub(crate) encoding: String,
    pub(crate) is_standby: bool,
    pub(crate) database: String,
    pub(crate) user: String,
    pub(crate) schema_exists: bool,
    pub(crate) version_table_exists: bool,
    /// All roles exist, or this user may create them.
    pub(crate) roles_possible: bool,
    /// This user may do `SET ROLE seqline_owner` now.
    pub(crate) may_act_as_owner: bool,
    /// It may, or may make itself a member, or may create the role.
    pub(crate) owner_possible: bool,
    pub(crate) may_create_schema: bool,
}

pub(crate) async fn facts(connection: &mut PgConnection) -> Result<Facts, sqlx::Error> {
    let row = sqlx::query(
        "SELECT current_setting('server_version_num')::integer, current_setting('server_version'),
                current_setting('server_encoding'), pg_is_in_recovery(), current_database()::text, current_user::text,
                EXISTS (SELECT FROM pg_namespace WHERE nspname = 'seqline'),
                EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                        WHERE n.nspname = 'seqline' AND c.relname = 'schema_version'),
                (me.rolsuper OR me.rolcreaterole OR (SELECT count(*) = 5 FROM pg_roles WHERE rolname IN
                    ('seqline_owner', 'seqline_app', 'seqline_producer', 'seqline_reader', 'seqline_consumer'))),
                CASE
                    WHEN owner.oid IS NULL THEN false
                    WHEN current_setting('server_version_num')::integer >= 160000
                        THEN pg_has_role(me.oid, owner.oid, 'SET')
                    ELSE pg_has_role(me.oid, owner.oid, 'MEMBER')
                END,
                (me.rolsuper OR owner.oid IS NULL
                    OR (me.rolcreaterole AND current_setting('server_version_num')::integer < 160000)
                    OR EXISTS (SELECT FROM pg_auth_members m
                               WHERE m.roleid = owner.oid AND m.member = me.oid AND m.admin_option)),
                (me.rolsuper OR has_database_privilege(me.oid, current_database(), 'CREATE'))
         FROM pg_roles me
         LEFT JOIN pg_roles owner ON owner.rolname = 'seqline_owner'
         WHERE me.rolname = current_user",
    )
    .fetch_one(connection)
    .await?;
    Ok(Facts {
        server_version_num: row.try_get(0)?,
        server_version: row.try_get(1)?,
        encoding: row.try_get(2)?,
        is_standby: row.try_get(3)?,
        database: row.try_get(4)?,
        user: row.try_get(5)?,
        schema_exists: row.try_get(6)?,
        version_table_exists: row.try_get(7)?,
        roles_possible: row.try_get(8)?,
        may_act_as_owner: row.try_get(9)?,
        owner_possible: row.try_get::<bool, _>(10)? || row.try_get::<bool, _>(9)?,
        may_create_schema: row.try_get(11)?,
    })
}

pub(crate) async fn server_version(connection: &mut PgConnection) -> Result<String, sqlx::Error> {
    sqlx::query_scalar("SELECT current_setting('server_version')").fetch_one(connection).await
}

/// 0 for a schema that has no version yet.
pub(crate) async fn current_version(connection: &mut PgConnection) -> Result<i32, sqlx::Error> {
    sqlx::query_scalar("SELECT coalesce(max(version), 0) FROM seqline.schema_version")
        .fetch_one(connection)
        .await
}

/// Number and checksum of each migration that was applied.
pub(crate) async fn applied(connection: &mut PgConnection) -> Result<Vec<(i32, String)>, sqlx::Error> {
    let rows = sqlx::query("SELECT version, checksum FROM seqline.schema_version ORDER BY version")
        .fetch_all(connection)
        .await?;
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
}

/// Tried and not waited for: a waiting session would hold a snapshot, for which CREATE INDEX CONCURRENTLY of the
/// lock's holder would wait in turn.
pub(crate) async fn try_migrate_lock(connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar("SELECT pg_try_advisory_lock($1)").bind(MIGRATE_LOCK).fetch_one(connection).await
}

pub(crate) async fn migrate_unlock(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::query("SELECT pg_advisory_unlock($1)").bind(MIGRATE_LOCK).execute(connection).await.map(drop)
}

/// Runs a script of several statements, as one transaction of its own unless it says otherwise.
pub(crate) async fn run_script(connection: &mut PgConnection, script: String) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(script)).execute(connection).await.map(drop)
}

pub(crate) async fn roll_back(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::raw_sql("ROLLBACK").execute(connection).await.map(drop)
}

/// The role ends with the transaction.
pub(crate) async fn begin_as_owner(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::raw_sql("BEGIN; SET LOCAL ROLE seqline_owner").execute(connection).await.map(drop)
}

pub(crate) async fn commit(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::raw_sql("COMMIT").execute(connection).await.map(drop)
}
