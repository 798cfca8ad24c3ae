//! What people do to a relay: look at it, let it stand still, take it back, forget it, say that they know what it met. Each change leaves a row
//! in `seqline.audit_log`. Nothing here needs a broker.
//!
//! As `seqline_app`.

use seqline::DatabaseError;
use seqline::consumer::Mode;
use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

pub use crate::refusal::Refusal;
use crate::store::relay_operate::{self as store, IncidentRow, StatusRow};

/// How a relay stands.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RelayStatus {
    /// Its name.
    pub name: String,
    /// The stream into which it copies the log.
    pub stream: String,
    /// The history that its position belongs to.
    pub epoch: Uuid,
    /// Every event up to here is in the stream.
    pub position: i64,
    /// The highest number in the log.
    pub head: i64,
    /// When the transaction of the first event began that is in the log and not in the stream; `None` at the head.
    pub oldest_unpublished_at: Option<OffsetDateTime>,
    /// The stream is known up to here.
    pub stream_seq: i64,
    /// Since when it stands still because somebody wants that.
    pub paused_since: Option<OffsetDateTime>,
    /// Where somebody wants it to go on, as long as it has not done that.
    pub rewind_to: Option<i64>,
    /// Whether a process runs it.
    pub active: bool,
    /// Until when nobody else runs it, if that one says nothing.
    pub leased_until: Option<OffsetDateTime>,
    /// What keeps it from going on, by name, and since when.
    pub stalled_by: Option<(String, OffsetDateTime)>,
    /// When its row was written last.
    pub updated_at: OffsetDateTime,
    /// What it met that nobody has acknowledged, by kind.
    pub incidents: Vec<Incident>,
}

impl RelayStatus {
    /// How many events of the log are not in the stream. A relay of a history that is over can be above the head.
    #[must_use]
    pub fn behind(&self) -> i64 {
        self.head.saturating_sub(self.position).max(0)
    }

    fn of(row: StatusRow, incidents: Vec<Incident>) -> Self {
        Self {
            name: row.name,
            stream: row.stream,
            epoch: row.epoch,
            position: row.position,
            head: row.head,
            oldest_unpublished_at: row.oldest_unpublished_at,
            stream_seq: row.stream_seq,
            paused_since: row.paused_at,
            rewind_to: row.rewind_to,
            active: row.active,
            leased_until: row.leased_until,
            stalled_by: row.stalled_by.zip(row.stalled_since),
            updated_at: row.updated_at,
            incidents,
        }
    }
}

/// Something that a relay met and that somebody should know about. One for each kind, however often it happened.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Incident {
    /// What it is: `behind_retention`, `stream_recreated`, `stream_lost_messages`, `foreign_messages`, `orphaned_messages`,
    /// `hole_filled_late`, `published_again`, `payload_left_out` or `histories_differ`.
    pub kind: String,
    /// How many events or messages.
    pub count: i64,
    /// The first position of the log that it is about, where it is about some.
    pub first_position: Option<i64>,
    /// The last of them.
    pub last_position: Option<i64>,
    /// Where in the stream the last was met.
    pub stream_seq: Option<i64>,
    /// When it was met first.
    pub first_at: OffsetDateTime,
    /// And last.
    pub last_at: OffsetDateTime,
}

impl From<IncidentRow> for Incident {
    fn from(row: IncidentRow) -> Self {
        Self {
            kind: row.kind,
            count: row.count,
            first_position: row.first_position,
            last_position: row.last_position,
            stream_seq: row.stream_seq,
            first_at: row.first_at,
            last_at: row.last_at,
        }
    }
}

/// Where a relay stood before somebody changed something about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RelayPlace {
    /// Every event up to here was in the stream.
    pub position: i64,
    /// The stream was known up to here.
    pub stream_seq: i64,
}

impl From<store::Place> for RelayPlace {
    fn from(place: store::Place) -> Self {
        Self { position: place.position, stream_seq: place.stream_seq }
    }
}

/// Why something was not done. Nothing was changed then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RelayOperateError {
    /// It was refused, with the reason.
    #[error("{}", .0.message)]
    Refused(Refusal),
    /// What the database or the connection reported.
    #[error("database refused it: {0}")]
    Database(DatabaseError),
}

impl From<sqlx::Error> for RelayOperateError {
    fn from(error: sqlx::Error) -> Self {
        Refusal::of(error).map_or_else(Self::Database, Self::Refused)
    }
}

/// All relays that have reached their broker once, by name. Two statements: what they say can be a moment apart.
///
/// # Errors
///
/// [`DatabaseError`] when the database cannot be asked.
pub async fn statuses(connection: &mut PgConnection) -> Result<Vec<RelayStatus>, DatabaseError> {
    let rows = store::statuses(connection).await?;
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let mut open = store::open_incidents(connection).await?;
    let with_incidents = |row: StatusRow| {
        let (its, others) = std::mem::take(&mut open).into_iter().partition(|it| it.relay == row.name);
        open = others;
        let its: Vec<IncidentRow> = its;
        RelayStatus::of(row, its.into_iter().map(Incident::from).collect())
    };
    Ok(rows.into_iter().map(with_incidents).collect())
}

/// Lets a relay send nothing more until [`resume`], and says whether that is new. What is under way arrives.
///
/// # Errors
///
/// [`RelayOperateError`] when there is no such relay, or the reason is too long.
pub async fn pause(
    connection: &mut PgConnection,
    name: &str,
    why: Option<&str>,
) -> Result<bool, RelayOperateError> {
    Ok(store::set_paused(connection, name, true, why).await?)
}

/// Lets a paused relay go on where it stands, and says whether that is new.
///
/// # Errors
///
/// As [`pause`].
pub async fn resume(
    connection: &mut PgConnection,
    name: &str,
    why: Option<&str>,
) -> Result<bool, RelayOperateError> {
    Ok(store::set_paused(connection, name, false, why).await?)
}

/// Has a relay publish what comes after a position, at the end of the stream: again, if it is lower than where the relay stands. The relay
/// does it when it looks next. Consumers with a ledger handle nothing twice. Returns where it stands.
///
/// # Errors
///
/// [`RelayOperateError`] when there is no such relay, the log has no such position, or the reason is missing that is needed to do it.
pub async fn rewind(
    connection: &mut PgConnection,
    name: &str,
    position: i64,
    mode: Mode<'_>,
) -> Result<RelayPlace, RelayOperateError> {
    let (apply, why) = parts(mode);
    Ok(store::rewind(connection, name, position, apply, why).await?.into())
}

/// Forgets a relay that is out of use. Retention waits for it no longer, and what it met is forgotten with it. Returns where it stood.
///
/// # Errors
///
/// [`RelayOperateError`] when there is no such relay, a process runs it, or the reason is missing that is needed to do it.
pub async fn delete(
    connection: &mut PgConnection,
    name: &str,
    mode: Mode<'_>,
) -> Result<RelayPlace, RelayOperateError> {
    let (apply, why) = parts(mode);
    Ok(store::delete(connection, name, apply, why).await?.into())
}

/// Says that somebody knows what a relay met. How many kinds of it there were.
///
/// # Errors
///
/// [`RelayOperateError`] when there is no such relay, or the reason is missing that is needed to do it.
pub async fn acknowledge(
    connection: &mut PgConnection,
    name: &str,
    mode: Mode<'_>,
) -> Result<i64, RelayOperateError> {
    let (apply, why) = parts(mode);
    Ok(store::acknowledge(connection, name, apply, why).await?)
}

fn parts(mode: Mode<'_>) -> (bool, Option<&str>) {
    match mode {
        Mode::Plan => (false, None),
        Mode::Apply { why } => (true, why),
    }
}
