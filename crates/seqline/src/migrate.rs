//! The schema and its versions.
//!
//! Numbered, forward only, in one transaction, with a version table of its own in schema `seqline`: an application's own
//! migration tool never sees it. A migration that was applied is never edited, which a checksum proves. Running it
//! again does nothing; running it from many processes at once is safe. After the schema it makes sure that partitions
//! exist, so a fresh database can take events at once.
//!
//! Someone who may not create roles or schemas gets the SQL for someone who may.

use sqlx::PgConnection;

use crate::clock::Clock;
use crate::error::DatabaseError;
use crate::limits::{MIGRATE_LOCK_RETRY, MIGRATE_LOCK_WAIT_MAX};
use crate::maintenance::ensure_partitions;
use crate::store::migrations::{self, MIGRATIONS};
use crate::store::schema::{self, Facts};

/// The oldest PostgreSQL that is supported.
const OLDEST_SERVER: i32 = 14;

/// What a migration did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Migrated {
    /// The version before, 0 for a fresh database.
    pub from: i32,
    /// The version now.
    pub to: i32,
    /// Partitions that were created.
    pub partitions_created: i32,
}

/// Why the schema could not be brought up to date. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MigrateError {
    /// The server is too old.
    #[error("PostgreSQL {found} is too old: Seqline needs {OLDEST_SERVER} or newer")]
    OldServer {
        /// Its version.
        found: String,
    },
    /// The database cannot hold every JSON string.
    #[error("database {database} has encoding {found}: Seqline needs UTF8")]
    Encoding {
        /// The database.
        database: String,
        /// Its encoding.
        found: String,
    },
    /// The server is a standby.
    #[error("the server is a read-only standby: migrate the primary")]
    Standby,
    /// A newer Seqline was here.
    #[error("the schema has version {found}, this program knows {known}: use a newer program")]
    SchemaNewer {
        /// The version of the schema.
        found: i32,
        /// The newest version of this program.
        known: i32,
    },
    /// A migration is not the one that was applied.
    #[error(
        "migration {version} differs from the one that was applied: this program and the database do not belong together"
    )]
    Edited {
        /// Its number.
        version: i32,
    },
    /// A migration between others was never applied.
    #[error(
        "migration {version} was never applied although later ones were: somebody changed seqline.schema_version"
    )]
    Missing {
        /// Its number.
        version: i32,
    },
    /// A schema of that name is somebody else's.
    #[error("schema seqline exists but is not Seqline's: it has no table schema_version")]
    ForeignSchema,
    /// The role may not do what is needed.
    #[error(
        "role {user} may not create Seqline's roles and schema in database {database}. Ask somebody who may to run this, then migrate again:\n\n{sql}"
    )]
    Privileges {
        /// The role.
        user: String,
        /// The database.
        database: String,
        /// What to run, as a superuser or a role with CREATEROLE.
        sql: String,
    },
    /// Another process has been migrating for long.
    #[error("another process is migrating this database and did not finish in time: try again")]
    Busy,
    /// What the database reported.
    #[error("database refused the migration: {0}")]
    Database(#[from] DatabaseError),
}

impl From<sqlx::Error> for MigrateError {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error.into())
    }
}

impl MigrateError {
    /// Whether the same call may succeed later without anybody doing anything.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Busy => true,
            Self::Database(error) => error.is_retryable(),
            _ => false,
        }
    }
}

/// The newest version that this program knows.
#[must_use]
pub fn newest_version() -> i32 {
    MIGRATIONS[MIGRATIONS.len() - 1].version
}

/// Brings the schema up to date and makes sure that partitions exist.
///
/// Not cancel safe for the connection: after a dropped future close it.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use sqlx::Connection;
///
/// let mut connection = sqlx::PgConnection::connect("postgres://localhost/app").await?;
/// let migrated = seqline::migrate::migrate(&mut connection).await?;
/// println!("schema version {}", migrated.to);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// See [`MigrateError`]: each case says what to do.
pub async fn migrate(connection: &mut PgConnection) -> Result<Migrated, MigrateError> {
    let facts = schema::facts(connection).await?;
    check_server(&facts)?;
    let from = match pending_from(connection, &facts).await? {
        None => newest_version(),
        Some(_) => {
            lock(connection).await?;
            let result = apply_pending(connection).await;
            // The lock ends with the connection in any case; a failure to give it back is not worth losing the result.
            let unlocked = schema::migrate_unlock(connection).await;
            let from = result?;
            unlocked?;
            from
        }
    };
    let facts = schema::facts(connection).await?;
    let partitions_created =
        as_owner(connection, &facts, async |connection| ensure_partitions(connection).await).await?;
    Ok(Migrated { from, to: newest_version(), partitions_created })
}

/// The SQL of all migrations after `version`, for somebody who applies schema changes by hand with psql. Version 0 gives
/// everything, roles included. Running it has the same result as [`migrate`].
#[must_use]
pub fn script(version: i32) -> String {
    migrations::psql_script(version)
}

/// Does something as the owner, if this role may. A member that does not inherit the owner's rights has none of them
/// otherwise, and a role that is no member may have been granted what is needed.
async fn as_owner<T>(
    connection: &mut PgConnection,
    facts: &Facts,
    work: impl AsyncFnOnce(&mut PgConnection) -> Result<T, DatabaseError>,
) -> Result<T, MigrateError> {
    if !facts.may_act_as_owner {
        return Ok(work(connection).await?);
    }
    schema::begin_as_owner(connection).await?;
    let result = work(connection).await;
    match &result {
        Ok(_) => schema::commit(connection).await?,
        Err(_) => schema::roll_back(connection).await?,
    }
    Ok(result?)
}

fn check_server(facts: &Facts) -> Result<(), MigrateError> {
    if facts.server_version_num < OLDEST_SERVER * 10_000 {
        return Err(MigrateError::OldServer { found: facts.server_version.clone() });
    }
    if facts.encoding != "UTF8" {
        return Err(MigrateError::Encoding {
            database: facts.database.clone(),
            found: facts.encoding.clone(),
        });
    }
    if facts.is_standby {
        return Err(MigrateError::Standby);
    }
    if facts.schema_exists && !facts.version_table_exists {
        return Err(MigrateError::ForeignSchema);
    }
    Ok(())
}

/// The version from which migrations are missing, `None` when none is.
async fn pending_from(connection: &mut PgConnection, facts: &Facts) -> Result<Option<i32>, MigrateError> {
    if !facts.version_table_exists {
        return Ok(Some(0));
    }
    let applied =
        as_owner(connection, facts, async |connection| Ok(schema::applied(connection).await?)).await?;
    let found = applied.last().map_or(0, |(version, _)| *version);
    if found > newest_version() {
        return Err(MigrateError::SchemaNewer { found, known: newest_version() });
    }
    for (expected, (version, _)) in (1..).zip(&applied) {
        if *version != expected {
            return Err(MigrateError::Missing { version: expected });
        }
    }
    for (version, checksum) in &applied {
        let known = MIGRATIONS.iter().find(|migration| migration.version == *version);
        if known.is_none_or(|migration| migration.checksum() != *checksum) {
            return Err(MigrateError::Edited { version: *version });
        }
    }
    Ok((found < newest_version()).then_some(found))
}

async fn lock(connection: &mut PgConnection) -> Result<(), MigrateError> {
    let clock = Clock::system();
    let attempts = MIGRATE_LOCK_WAIT_MAX.as_millis() / MIGRATE_LOCK_RETRY.as_millis();
    for _ in 0..attempts {
        if schema::try_migrate_lock(connection).await? {
            return Ok(());
        }
        clock.sleep(MIGRATE_LOCK_RETRY).await;
    }
    Err(MigrateError::Busy)
}

/// Applies what is missing, under the lock, and returns the version before.
async fn apply_pending(connection: &mut PgConnection) -> Result<i32, MigrateError> {
    // Roles belong to the server: a migration of another database, under another lock, may create them at the
    // same moment. Then everything is rolled back, and they exist on the next attempt.
    const ATTEMPTS: usize = 5;
    let mut attempt = 1;
    loop {
        let facts = schema::facts(connection).await?;
        let Some(from) = pending_from(connection, &facts).await? else { return Ok(newest_version()) };
        check_privileges(&facts)?;
        let result = schema::run_script(connection, migrations::transaction(from)).await;
        let Err(error) = result else { return Ok(from) };
        let error = DatabaseError::from(error);
        schema::roll_back(connection).await?;
        let raced = matches!(error.sqlstate(), Some("42710" | "23505"));
        if !raced || attempt == ATTEMPTS {
            return Err(error.into());
        }
        attempt += 1;
    }
}

fn check_privileges(facts: &Facts) -> Result<(), MigrateError> {
    let schema_possible = facts.schema_exists || facts.may_create_schema;
    if facts.roles_possible && facts.owner_possible && schema_possible {
        return Ok(());
    }
    Err(MigrateError::Privileges {
        user: facts.user.clone(),
        database: facts.database.clone(),
        sql: migrations::request(&facts.user, &facts.database, facts.server_version_num >= 160_000),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn migrations_are_numbered_without_a_hole() {
        let versions: Vec<i32> = MIGRATIONS.iter().map(|migration| migration.version).collect();
        assert_eq!(versions, (1..=newest_version()).collect::<Vec<_>>());
    }

    #[test]
    fn the_printed_script_of_a_current_schema_changes_nothing() {
        let script = script(newest_version());
        assert!(!script.contains("Migration") && !script.contains("CREATE ROLE"));
    }
}
