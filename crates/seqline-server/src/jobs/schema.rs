//! River's tables, brought up to date by `seqline migrate` and looked at by whoever uses them.

use riverqueue::migrate::{Error, MIGRATION_VERSION_LATEST, PostgresMigrator, SchemaName};
use seqline::{Clock, DatabaseError};
use sqlx::PgConnection;
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};

use crate::connect;
use crate::failure::Failure;
use crate::limits::{CONNECT_TIMEOUT, JOBS_MIGRATE_LOCK_RETRY, JOBS_MIGRATE_LOCK_WAIT_MAX};
use crate::store;
use crate::store::jobs::Facts;

/// What a migration did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobsMigrated {
    /// The version of River before, 0 if there was none.
    pub from: i64,
    /// The version now.
    pub to: i64,
}

/// Refuses a schema that is somebody else's, before anything is changed.
///
/// # Errors
///
/// [`Failure`] that says whose it is.
pub async fn refuse_foreign(connection: &mut PgConnection, schema: &str) -> Result<(), Failure> {
    own_facts(connection, schema).await.map(drop)
}

/// Brings River up to date in `schema`, which it makes, and lets `seqline_app` use it. After the migration of the log, which
/// makes the roles. Any number of processes may do it at once.
///
/// # Errors
///
/// [`Failure`] that says what to do. Versions that were applied stay.
pub async fn migrate(options: &PgConnectOptions, schema: &str) -> Result<JobsMigrated, Failure> {
    let mut connection = connect::connect(options).await?;
    let name = schema_name(schema)?;
    let facts = own_facts(&mut connection, schema).await?;
    // Who may act as the owner does so, and need not be able to read what is there otherwise.
    if facts.has_river && !facts.may_act_as_owner {
        let from = version(&mut connection, &name).await?;
        if from == MIGRATION_VERSION_LATEST {
            return Ok(JobsMigrated { from, to: from });
        }
    }
    lock(&mut connection).await?;
    // The lock ends with the connection in any case; a failure to give it back is not worth losing the result.
    let result = migrate_locked(&mut connection, options, &name, schema).await;
    let unlocked = store::jobs::migrate_unlock(&mut connection).await;
    let migrated = result?;
    unlocked.map_err(failed)?;
    Ok(migrated)
}

/// Refuses a schema that a worker cannot work with.
///
/// # Errors
///
/// [`Failure`] that says what to do.
pub async fn check(connection: &mut PgConnection, schema: &str) -> Result<(), Failure> {
    match version(connection, &schema_name(schema)?).await? {
        found if found < MIGRATION_VERSION_LATEST => Err(Failure::Refused(format!(
            "the schema {schema} of the jobs has River version {found}, this program needs {MIGRATION_VERSION_LATEST}: run seqline migrate"
        ))),
        _ => Ok(()),
    }
}

/// The same, and a role that may not work the jobs.
///
/// # Errors
///
/// [`Failure`] that says what to do.
pub async fn check_for_work(connection: &mut PgConnection, schema: &str) -> Result<(), Failure> {
    check(connection, schema).await?;
    match store::jobs::may_work(connection, &schema_name(schema)?).await.map_err(failed)? {
        true => Ok(()),
        false => Err(Failure::Refused(format!(
            "this role may not work the jobs in schema {schema}: run seqline migrate, and grant the role seqline_app"
        ))),
    }
}

/// The SQL for somebody who applies schema changes by hand with psql, after that of the log. What is there already is left as
/// it is.
///
/// # Errors
///
/// [`Failure`] when the name cannot be one of a schema.
pub fn script(schema: &str) -> Result<String, Failure> {
    Ok(store::jobs::script(&schema_name(schema)?))
}

async fn own_facts(connection: &mut PgConnection, schema: &str) -> Result<Facts, Failure> {
    let facts = store::jobs::facts(connection, schema).await.map_err(failed)?;
    match &facts.schema_owner {
        Some(owner) if owner != "seqline_owner" => Err(Failure::Refused(format!(
            "the schema {schema} exists and belongs to {owner}: give the jobs another one with jobs.schema"
        ))),
        Some(_) if facts.has_relations && !facts.has_river => Err(Failure::Refused(format!(
            "the schema {schema} holds something else than River's tables: give the jobs another one with jobs.schema"
        ))),
        _ if !facts.has_river && facts.other_schema.is_some() => Err(Failure::Refused(format!(
            "the jobs of this database are in the schema {}: set jobs.schema to it, or rename that schema to {schema}",
            facts.other_schema.unwrap_or_default()
        ))),
        _ => Ok(facts),
    }
}

/// The version of River that is there.
async fn version(connection: &mut PgConnection, schema: &SchemaName) -> Result<i64, Failure> {
    let found = match store::jobs::version(connection, schema).await.map_err(DatabaseError::from) {
        Ok(found) => found.unwrap_or(0),
        Err(error) => return Err(unusable(error, schema)),
    };
    if found > MIGRATION_VERSION_LATEST {
        return Err(Failure::Refused(format!(
            "the schema {schema} of the jobs has River version {found}, this program knows {MIGRATION_VERSION_LATEST}: use a newer program"
        )));
    }
    Ok(found)
}

/// What to say when the tables of the jobs cannot be used.
pub(crate) fn unusable(error: DatabaseError, schema: &SchemaName) -> Failure {
    match error.sqlstate() {
        Some("42P01" | "3F000") => Failure::Refused(format!(
            "no jobs are in the schema {schema}: run seqline migrate, or correct jobs.schema"
        )),
        _ => error.into(),
    }
}

async fn lock(connection: &mut PgConnection) -> Result<(), Failure> {
    let clock = Clock::system();
    let attempts = JOBS_MIGRATE_LOCK_WAIT_MAX.as_millis() / JOBS_MIGRATE_LOCK_RETRY.as_millis();
    for _ in 0..attempts {
        if store::jobs::try_migrate_lock(connection).await.map_err(failed)? {
            return Ok(());
        }
        clock.sleep(JOBS_MIGRATE_LOCK_RETRY).await;
    }
    Err(Failure::Unavailable(
        "another process is migrating the jobs of this database and did not finish in time: try again"
            .to_owned(),
    ))
}

async fn migrate_locked(
    connection: &mut PgConnection,
    options: &PgConnectOptions,
    name: &SchemaName,
    schema: &str,
) -> Result<JobsMigrated, Failure> {
    let facts = own_facts(connection, schema).await?;
    if !facts.may_act_as_owner || facts.schema_owner.is_none() && !facts.may_create_schema {
        return Err(Failure::Refused(format!(
            "role {} may not create or change the schema {schema} of the jobs in database {}. Ask somebody who may to run this, then migrate again:\n\n{}",
            facts.user,
            facts.database,
            store::jobs::request(&facts, name)
        )));
    }
    if facts.schema_owner.is_none() {
        store::jobs::create_schema(connection, name).await.map_err(failed)?;
    }
    let pool = owners_pool(options);
    let migrated = async {
        let mut owner = pool.acquire().await.map_err(failed)?;
        let from = if facts.has_river { version(&mut owner, name).await? } else { 0 };
        drop(owner);
        if facts.has_river && from == 0 {
            return Err(Failure::Refused(format!(
                "the schema {schema} of the jobs has a table river_migration that names no version: somebody changed it"
            )));
        }
        let migrator = PostgresMigrator::new(pool.clone()).with_schema(name.clone());
        migrator.migrate_up().await.map_err(|error| match error {
            Error::Database(error) => failed(error),
            error => Failure::Unexpected(error.to_string()),
        })?;
        let mut owner = pool.acquire().await.map_err(failed)?;
        store::jobs::grant(&mut owner, name).await.map_err(failed)?;
        Ok(JobsMigrated { from, to: MIGRATION_VERSION_LATEST })
    }
    .await;
    pool.close().await;
    migrated
}

/// Whose connections make tables that belong to the owner. They begin as the owner: a pooler could hand a session that became it
/// to somebody else.
fn owners_pool(options: &PgConnectOptions) -> PgPool {
    PgPoolOptions::new()
        .max_connections(2)
        .acquire_timeout(CONNECT_TIMEOUT)
        .connect_lazy_with(options.clone().options([("role", "seqline_owner")]))
}

/// The configuration accepts names only that River accepts.
pub(crate) fn schema_name(schema: &str) -> Result<SchemaName, Failure> {
    SchemaName::new(schema).map_err(|error| Failure::Usage(error.to_string()))
}

fn failed(error: sqlx::Error) -> Failure {
    DatabaseError::from(error).into()
}
