//! What consumers of the stream gave up: list it, try it again, forget it. A dead letter refers to an event or a message and says why it was
//! given up; what the event says is in the log or in the stream, and nowhere else.
//!
//! As `seqline_app`. [`list`], [`show`] and [`counts`] are for `seqline_consumer` as well.

use seqline::DatabaseError;
use seqline::consumer::Mode;
use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::limits::SETTLED_AT_ONCE;
pub use crate::refusal::Refusal;
use crate::store::dead_letters::{self as store, BacklogRow, CountRow, DeadLetterRow};

/// How many [`list`] returns at most.
pub const LIST_MAX: u32 = 1000;

/// An event or message that was given up.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadLetter {
    /// Its number.
    pub id: i64,
    /// Which consumer gave it up.
    pub consumer: String,
    /// Why: `attempts_exhausted`, `unreadable`, `future_version`, `other_history` or `gone`.
    pub reason: String,
    /// Which event it is; `None` where the message does not say.
    pub event_id: Option<Uuid>,
    /// Its number in the log.
    pub position: Option<i64>,
    /// The stream that the consumer reads.
    pub stream: String,
    /// When that stream was made, in nanoseconds since 1970; `None` where it did not come from there.
    pub stream_created: Option<i64>,
    /// Where in it the message is.
    pub stream_seq: Option<i64>,
    /// Its subject.
    pub subject: Option<String>,
    /// Its size in bytes.
    pub size: Option<i64>,
    /// How often a handler has failed with it.
    pub attempts: u32,
    /// The kind of the last failure, and never what it says.
    pub error_type: Option<String>,
    /// When it was given up.
    pub recorded_at: OffsetDateTime,
}

impl DeadLetter {
    /// Whether it is of an event that is known, so that it can be tried again.
    #[must_use]
    pub fn can_be_replayed(&self) -> bool {
        self.event_id.is_some() && self.position.is_some()
    }
}

impl From<DeadLetterRow> for DeadLetter {
    fn from(row: DeadLetterRow) -> Self {
        Self {
            id: row.id,
            consumer: row.consumer,
            reason: row.reason,
            event_id: row.event_id,
            position: row.position,
            stream: row.stream,
            stream_created: row.stream_created,
            stream_seq: row.stream_seq,
            subject: row.subject,
            size: row.size,
            attempts: row.attempts.unsigned_abs(),
            error_type: row.error_type,
            recorded_at: row.recorded_at,
        }
    }
}

/// How many dead letters a consumer has for a reason.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadLetterCount {
    /// Which consumer.
    pub consumer: String,
    /// The reason.
    pub reason: String,
    /// How many.
    pub count: i64,
    /// When the first of them was given up.
    pub oldest_at: OffsetDateTime,
}

impl From<CountRow> for DeadLetterCount {
    fn from(row: CountRow) -> Self {
        Self { consumer: row.consumer, reason: row.reason, count: row.count, oldest_at: row.oldest_at }
    }
}

/// What waits for a consumer of the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConsumerBacklog {
    /// Its name.
    pub consumer: String,
    /// The stream that it reads.
    pub stream: String,
    /// How many events were found so far, by comparing the log with what was handled, that the broker had dropped.
    pub dropped: i64,
    /// How many events it has to try again.
    pub retries: i64,
    /// How many it gave up.
    pub dead_letters: i64,
}

impl From<BacklogRow> for ConsumerBacklog {
    fn from(row: BacklogRow) -> Self {
        let BacklogRow { consumer, stream, dropped, retries, dead_letters } = row;
        Self { consumer, stream, dropped, retries, dead_letters }
    }
}

/// What becomes of a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settle {
    /// The consumer tries the event again, as if it had never failed.
    Replay,
    /// It is forgotten, and the consumer never handles it.
    Discard,
}

/// Why something was not done. Nothing was changed then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeadLetterError {
    /// It was refused, with the reason.
    #[error("{}", .0.message)]
    Refused(Refusal),
    /// What the database or the connection reported.
    #[error("database refused it: {0}")]
    Database(DatabaseError),
}

impl From<sqlx::Error> for DeadLetterError {
    fn from(error: sqlx::Error) -> Self {
        Refusal::of(error).map_or_else(Self::Database, Self::Refused)
    }
}

/// Dead letters of a consumer or of all, in the order of their numbers, those above `after_id`, at most `limit` and [`LIST_MAX`].
///
/// # Errors
///
/// [`DatabaseError`] when the database cannot be asked.
pub async fn list(
    connection: &mut PgConnection,
    consumer: Option<&str>,
    after_id: i64,
    limit: u32,
) -> Result<Vec<DeadLetter>, DatabaseError> {
    let rows = store::list(connection, consumer, after_id, i64::from(limit.min(LIST_MAX))).await?;
    Ok(rows.into_iter().map(DeadLetter::from).collect())
}

/// One dead letter, if there is one of this number.
///
/// # Errors
///
/// [`DatabaseError`] when the database cannot be asked.
pub async fn show(connection: &mut PgConnection, id: i64) -> Result<Option<DeadLetter>, DatabaseError> {
    Ok(store::show(connection, id).await?.map(DeadLetter::from))
}

/// Settles dead letters of a consumer: these, or all where `ids` is `None`. All that can be tried again, with [`Settle::Replay`]: one that is of
/// no event that is known stays. Returns how many. All are settled in several transactions if they are many, of those that there were at the
/// beginning; after a failure some are settled, and who asks again goes on with the others.
///
/// # Errors
///
/// [`DeadLetterError`] when there is no such consumer, not all of these ids are dead letters of it that can be settled so, or the reason is
/// missing that discarding needs.
pub async fn settle(
    connection: &mut PgConnection,
    consumer: &str,
    ids: Option<&[i64]>,
    settle: Settle,
    mode: Mode<'_>,
) -> Result<i64, DeadLetterError> {
    let (apply, why) = match mode {
        Mode::Plan => (false, None),
        Mode::Apply { why } => (true, why),
    };
    let discard = settle == Settle::Discard;
    if ids.is_some() || !apply {
        return Ok(store::settle(connection, consumer, ids, discard, apply, why).await?);
    }
    let all = store::settle(connection, consumer, None, discard, false, None).await?;
    let mut settled = 0;
    loop {
        let more = store::settle(connection, consumer, None, discard, true, why).await?;
        settled += more;
        if more < SETTLED_AT_ONCE || settled >= all {
            return Ok(settled);
        }
    }
}

/// How many dead letters there are, by consumer and reason.
///
/// # Errors
///
/// [`DatabaseError`] when the database cannot be asked.
pub async fn counts(connection: &mut PgConnection) -> Result<Vec<DeadLetterCount>, DatabaseError> {
    Ok(store::counts(connection).await?.into_iter().map(DeadLetterCount::from).collect())
}

/// What waits for each consumer of the stream, by name, also where nothing does.
///
/// # Errors
///
/// [`DatabaseError`] when the database cannot be asked.
pub async fn backlogs(connection: &mut PgConnection) -> Result<Vec<ConsumerBacklog>, DatabaseError> {
    Ok(store::backlogs(connection).await?.into_iter().map(ConsumerBacklog::from).collect())
}
