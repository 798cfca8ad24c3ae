//! What the figures are made of, read from the database.

use riverqueue::migrate::SchemaName;
use seqline::DatabaseError;
use seqline::consumer::ConsumerState;
use seqline::maintenance::{Holding, holders};
use seqline::settings::MaintenanceMode;
use seqline::status::Staged;
use sqlx::PgConnection;
use time::OffsetDateTime;

use crate::limits::AGENT_CONSUMERS_SHOWN;
use crate::sqlstate;
use crate::store;
use crate::store::metrics::{AgentFacts, DatabaseFacts, JobFacts};

/// Everything, from one series of looks between which the database goes on.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    pub(super) log: LogFacts,
    pub(super) read_only: bool,
    pub(super) consumers: Vec<ConsumerState>,
    /// `None` where there are no agents, or a role may not see them.
    pub(super) agents: Option<AgentFacts>,
    /// Which partitions consumers have not passed; `None` for a role that may not know.
    pub(super) holdings: Option<Vec<Holding>>,
    pub(super) database: DatabaseFacts,
    /// `None` where there are no jobs, or a role may not see them.
    pub(super) jobs: Option<JobFacts>,
}

/// What is known of the log.
#[derive(Debug, Clone)]
pub(super) struct LogFacts {
    pub(super) head: i64,
    pub(super) retained: i64,
    pub(super) bytes: i64,
    pub(super) partitions: i64,
    pub(super) headroom: i64,
    pub(super) staged: Staged,
}

pub(super) async fn read(
    connection: &mut PgConnection,
    jobs_schema: &SchemaName,
    expired_before: OffsetDateTime,
) -> Result<Facts, DatabaseError> {
    let status = seqline::status::status(connection).await?;
    Ok(Facts {
        read_only: status.settings.maintenance == MaintenanceMode::ReadOnly,
        consumers: seqline::consumer::states(connection).await?,
        agents: unless_forbidden(
            store::metrics::agents(connection, AGENT_CONSUMERS_SHOWN).await.map_err(DatabaseError::from),
        )?,
        holdings: match status.oldest_at {
            Some(oldest) if oldest < expired_before => unless_forbidden(holders(connection).await)?,
            // Nothing has expired, so nothing is held; asking who keeps what costs much where there are many partitions.
            _ => Some(Vec::new()),
        },
        database: store::metrics::database(connection).await?,
        jobs: unless_forbidden(
            store::metrics::jobs(connection, jobs_schema).await.map_err(DatabaseError::from),
        )?,
        log: LogFacts {
            head: status.head,
            retained: status.retained(),
            bytes: status.total_bytes,
            partitions: status.partitions.try_into().unwrap_or(i64::MAX),
            headroom: status.headroom,
            staged: status.staged,
        },
    })
}

/// What a role may not see, or what is not there, is no failure of the rest.
fn unless_forbidden<T>(result: Result<T, DatabaseError>) -> Result<Option<T>, DatabaseError> {
    const UNDEFINED: [&str; 3] =
        [sqlstate::UNDEFINED_SCHEMA, sqlstate::UNDEFINED_TABLE, sqlstate::UNDEFINED_OBJECT];
    match result {
        Err(error)
            if error.sqlstate().is_some_and(|code| {
                code == sqlstate::INSUFFICIENT_PRIVILEGE || UNDEFINED.contains(&code)
            }) =>
        {
            Ok(None)
        }
        result => result.map(Some),
    }
}
