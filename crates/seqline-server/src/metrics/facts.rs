//! What the figures are made of, read from the database.

use riverqueue::migrate::SchemaName;
use seqline::DatabaseError;
use seqline::consumer::ConsumerState;
use seqline::maintenance::{Holding, holders};
use seqline::settings::MaintenanceMode;
use seqline::status::Staged;
use seqline_nats::dead_letter::{self, ConsumerBacklog};
use seqline_nats::relay::operate::{self, RelayStatus};
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
    /// `None` where a role may not see them.
    pub(super) relays: Option<Vec<RelayFacts>>,
    /// The same of consumers of the stream.
    pub(super) stream_consumers: Option<Vec<StreamConsumerFacts>>,
    /// Which partitions consumers have not passed; `None` for a role that may not know.
    pub(super) holdings: Option<Vec<Holding>>,
    pub(super) database: DatabaseFacts,
    /// `None` where there are no jobs, or a role may not see them.
    pub(super) jobs: Option<JobFacts>,
}

/// What is known of a relay.
#[derive(Debug, Clone)]
pub(super) struct RelayFacts {
    pub(super) relay: String,
    pub(super) behind: i64,
    /// When the first of these events began.
    pub(super) oldest_at: Option<OffsetDateTime>,
    pub(super) active: bool,
    pub(super) paused: bool,
    pub(super) stalled_by: Option<String>,
    /// What it met that nobody has acknowledged: kinds, and how many.
    pub(super) incidents: Vec<(String, i64)>,
}

impl From<RelayStatus> for RelayFacts {
    fn from(status: RelayStatus) -> Self {
        Self {
            behind: status.behind(),
            relay: status.name,
            oldest_at: status.oldest_unpublished_at,
            active: status.active,
            paused: status.paused_since.is_some(),
            stalled_by: status.stalled_by.map(|(by, _)| by),
            incidents: status.incidents.into_iter().map(|it| (it.kind, it.count)).collect(),
        }
    }
}

/// What waits for a consumer of the stream.
#[derive(Debug, Clone)]
pub(super) struct StreamConsumerFacts {
    pub(super) consumer: String,
    pub(super) dropped: i64,
    pub(super) retries: i64,
    pub(super) dead_letters: i64,
}

impl From<ConsumerBacklog> for StreamConsumerFacts {
    fn from(backlog: ConsumerBacklog) -> Self {
        let ConsumerBacklog { consumer, dropped, retries, dead_letters, .. } = backlog;
        Self { consumer, dropped, retries, dead_letters }
    }
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
        relays: unless_forbidden(operate::statuses(connection).await)?
            .map(|relays| relays.into_iter().map(RelayFacts::from).collect()),
        stream_consumers: unless_forbidden(dead_letter::backlogs(connection).await)?
            .map(|backlogs| backlogs.into_iter().map(StreamConsumerFacts::from).collect()),
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
