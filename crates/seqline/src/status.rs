//! What an operator wants to know about a log at a glance.

use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::error::DatabaseError;
use crate::limits::STAGED_COUNT_MAX;
use crate::settings::{self, Settings};
use crate::store;

/// The state of a log.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "the names say it")]
pub struct LogStatus {
    pub server_version: String,
    /// The highest migration that was applied.
    pub schema_version: i32,
    pub log_id: Uuid,
    /// The history that the numbers belong to.
    pub epoch: Uuid,
    pub head: i64,
    pub min_retained: i64,
    /// When the oldest retained event was appended.
    pub oldest_at: Option<OffsetDateTime>,
    /// When the newest event was appended.
    pub newest_at: Option<OffsetDateTime>,
    pub partitions: usize,
    /// How many more events fit into the partitions that exist. At 0 every append fails.
    pub headroom: i64,
    pub total_bytes: i64,
    /// When events get their numbers, and who tells listeners.
    pub settings: Settings,
    /// What waits for the sequencer.
    pub staged: Staged,
}

/// Transactions that have committed and whose events have no number yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Staged {
    /// How many, up to [`STAGED_COUNT_MAX`].
    pub transactions: i64,
    /// Since when the first of them waits.
    pub oldest_at: Option<OffsetDateTime>,
    /// The sequencer that has the lease; none when no process runs one.
    pub sequencer: Option<Uuid>,
}

impl LogStatus {
    /// How many events the log holds.
    #[must_use]
    pub fn retained(&self) -> i64 {
        self.head - self.min_retained + 1
    }
}

/// Reads the state of the log.
///
/// # Errors
///
/// [`DatabaseError`] when the database cannot be asked.
pub async fn status(connection: &mut PgConnection) -> Result<LogStatus, DatabaseError> {
    let (log_id, epoch) = store::settings::log_identity(connection).await?;
    let head = store::read::head(connection).await?;
    let min_retained = store::read::min_retained(connection).await?;
    let partitions = store::partitions::list(connection).await?;
    let next_without_partition = partitions.last().map_or(1, |partition| partition.upper_bound);
    Ok(LogStatus {
        server_version: store::schema::server_version(connection).await?,
        schema_version: store::schema::current_version(connection).await?,
        log_id,
        epoch,
        head,
        min_retained,
        oldest_at: store::read::occurred_at(connection, min_retained).await?,
        newest_at: store::read::occurred_at(connection, head).await?,
        partitions: partitions.len(),
        headroom: next_without_partition - 1 - head,
        total_bytes: partitions.iter().map(|partition| partition.total_bytes).sum(),
        settings: settings::settings(connection).await?,
        staged: staged(connection).await?,
    })
}

/// Reads what waits for the sequencer. It costs more the more wait.
///
/// # Errors
///
/// [`DatabaseError`] when the database cannot be asked.
pub async fn staged(connection: &mut PgConnection) -> Result<Staged, DatabaseError> {
    let (transactions, oldest_at, sequencer) =
        store::sequencer::backlog(connection, STAGED_COUNT_MAX).await?;
    Ok(Staged { transactions, oldest_at, sequencer })
}
