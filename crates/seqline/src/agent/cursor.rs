//! The row of a consumer, and what its holders do with it. Each change is one statement.

use std::fmt;
use std::time::Duration;

use sqlx::{PgConnection, Postgres, Transaction};
use time::OffsetDateTime;
use uuid::Uuid;

use super::AgentConsumer;
use crate::error::DatabaseError;
use crate::store;

/// Over which way somebody holds a consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HolderKind {
    /// A connection to the gateway.
    Gateway,
    /// Requests over REST.
    Rest,
}

impl HolderKind {
    /// Its name in the database and on the way.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Gateway => "gateway",
            Self::Rest => "rest",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        [Self::Gateway, Self::Rest].into_iter().find(|kind| kind.as_str() == name)
    }
}

impl fmt::Display for HolderKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Who holds a consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder {
    /// The session of the connection, or the id of the window.
    pub session: Uuid,
    /// Which of both.
    pub kind: HolderKind,
    /// Since when.
    pub since: OffsetDateTime,
    /// When it was last heard of, by the clock of the database.
    pub seen_at: OffsetDateTime,
}

/// Why a consumer cannot go on where it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LostReason {
    /// What came next was removed from the log.
    Retention,
    /// The log ends before it.
    CursorAhead,
    /// The log was restored, and the cursor with it: what came after the backup is gone, or comes again under other numbers.
    EpochChanged,
}

impl LostReason {
    /// Its name in the database and on the way.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Retention => "retention",
            Self::CursorAhead => "cursor_ahead",
            Self::EpochChanged => "epoch_changed",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        [Self::Retention, Self::CursorAhead, Self::EpochChanged]
            .into_iter()
            .find(|reason| reason.as_str() == name)
    }
}

/// What a consumer lost, which it is told until it is seen to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lost {
    /// Why.
    pub reason: LostReason,
    /// The last acknowledgement before that. What came after it may never have been seen.
    pub after: i64,
    /// Where it goes on: after this number.
    pub position: i64,
}

/// A consumer as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cursor {
    /// Which one.
    pub consumer: AgentConsumer,
    /// Everything up to here is acknowledged.
    pub acked_seq: i64,
    /// How often it was taken. Rises with each holder.
    pub generation: i64,
    /// Who has it; nobody after it was released.
    pub holder: Option<Holder>,
    /// What the agent was told to have lost, until it is seen to know.
    pub lost: Option<Lost>,
    /// When it was first taken.
    pub created_at: OffsetDateTime,
    /// When its acknowledgement or holder last changed.
    pub updated_at: OffsetDateTime,
}

/// Somebody who comes for a consumer.
#[derive(Debug, Clone, Copy)]
pub struct Taking<'a> {
    /// Which one.
    pub consumer: &'a AgentConsumer,
    /// Who comes: an id that nobody had before.
    pub session: Uuid,
    /// Over which way.
    pub kind: HolderKind,
    /// Where the consumer begins if there is none of this name yet.
    pub start: i64,
    /// How many consumers the agent may have. Those who create some at the same moment can exceed it by as many.
    pub consumers_max: u32,
    /// Leave it to a holder that was heard of within this time.
    pub unless_seen_within: Option<Duration>,
    /// Of those only to one who came after this generation: for somebody who had it then, and does not know whether somebody has come since.
    pub unless_after: Option<i64>,
    /// And not to this session, of which is known that nobody uses it.
    pub but_from: Option<Uuid>,
    /// To which epoch `start` belongs, and what the holder will be given.
    pub epoch: Uuid,
}

/// What became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Take {
    /// It is the holder now.
    Taken {
        /// The consumer as it is from now on.
        cursor: Cursor,
        /// Who held it before, if that is known.
        before: Option<Holder>,
    },
    /// Somebody else has it and was heard of lately. Nothing was changed.
    Held(Cursor),
    /// There is none of this name, and the agent has as many as it may.
    TooMany,
    /// There is no such principal any more.
    NoAgent,
}

/// Takes a consumer, and creates it if there is none of this name. Whoever held it holds it no longer; its window over REST is gone.
///
/// Cancelled while the database works on it, it may or may not have happened: take it again.
///
/// # Errors
///
/// [`DatabaseError`] when the database cannot be asked, and when the log is in another epoch: nothing is taken then.
pub async fn take(connection: &mut PgConnection, taking: &Taking<'_>) -> Result<Take, DatabaseError> {
    Ok(store::agents::take(connection, taking).await?)
}

/// What a holder saves.
#[derive(Debug, Clone)]
pub struct Save {
    /// Which consumer.
    pub consumer: AgentConsumer,
    /// The holder.
    pub session: Uuid,
    /// Its acknowledgement. A lower one than that which is stored changes nothing.
    pub acked_seq: i64,
    /// Whether the agent knows what it [lost](Cursor::lost), or lost nothing.
    pub knows_lost: bool,
}

/// What became of something that only the holder can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Saved {
    /// It is done: it still is the holder.
    Done,
    /// Somebody else holds the consumer. Nothing was changed.
    Replaced,
    /// Nobody holds it: an operator has taken it from who did, or there is none of this name any more. Nothing was changed.
    Released,
}

/// Saves what a holder has. It counts as heard of. Waits for whoever has locked the row.
///
/// # Errors
///
/// [`DatabaseError`] when the database cannot be asked. What was saved then is not known; the same again is safe.
pub async fn save(connection: &mut PgConnection, save: &Save) -> Result<Saved, DatabaseError> {
    Ok(store::agents::save(connection, save).await?)
}

/// Saves what many holders have, in one statement that waits for nobody: of a row that somebody has locked at that moment nothing is saved
/// and nothing known, which is `None`. Each holder counts as heard of.
///
/// # Errors
///
/// [`DatabaseError`] when the database cannot be asked. What was saved then is not known; the same again is safe.
pub async fn save_all(
    connection: &mut PgConnection,
    saves: &[Save],
) -> Result<Vec<Option<Saved>>, DatabaseError> {
    Ok(store::agents::save_all(connection, saves).await?)
}

/// Saves, and holds the consumer no longer, so that whoever waits need not wait for it. Waits for whoever has locked the row.
///
/// # Errors
///
/// [`DatabaseError`] when the database cannot be asked.
pub async fn release(connection: &mut PgConnection, save: &Save) -> Result<Saved, DatabaseError> {
    Ok(store::agents::release(connection, save).await?)
}

/// The same for many holders, in one statement that waits for nobody, as [`save_all`].
///
/// # Errors
///
/// [`DatabaseError`] when the database cannot be asked. The same again is safe.
pub async fn release_all(
    connection: &mut PgConnection,
    saves: &[Save],
) -> Result<Vec<Option<Saved>>, DatabaseError> {
    Ok(store::agents::release_all(connection, saves).await?)
}

/// Moves the consumer of this holder to where it can go on, and keeps what it lost until that is known. This is the one way in which an
/// acknowledgement can become lower.
///
/// # Errors
///
/// [`DatabaseError`] when the database cannot be asked.
pub async fn lose(
    connection: &mut PgConnection,
    consumer: &AgentConsumer,
    session: Uuid,
    lost: &Lost,
) -> Result<Saved, DatabaseError> {
    Ok(store::agents::lose(connection, consumer, session, lost).await?)
}

/// Acknowledges for whoever may, without being the holder, or with a generation only while it is that of the consumer. Returns the consumer as
/// it is then, and whether the generation was the right one; `None` if there is no such consumer. A lower number than that which is stored
/// changes nothing.
///
/// # Errors
///
/// [`DatabaseError`] when the database cannot be asked, and when the log is in another epoch than the one that `seq` is of: nothing is changed then.
pub async fn acknowledge(
    connection: &mut PgConnection,
    consumer: &AgentConsumer,
    seq: i64,
    generation: Option<i64>,
    epoch: Uuid,
) -> Result<Option<(Cursor, bool)>, DatabaseError> {
    Ok(store::agents::acknowledge(connection, consumer, seq, generation, epoch).await?)
}

/// A consumer as it is; `None` if there is none of this name.
///
/// # Errors
///
/// [`DatabaseError`] when the database cannot be asked.
pub async fn cursor(
    connection: &mut PgConnection,
    consumer: &AgentConsumer,
) -> Result<Option<Cursor>, DatabaseError> {
    Ok(store::agents::cursor(connection, consumer).await?)
}

/// A consumer that nobody else can change until the transaction ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Locked {
    /// As it is.
    pub cursor: Cursor,
    /// The window of its holder over REST, as [`store_window`] was given it.
    pub window: Option<String>,
    /// The time of the database, since 1970. All processes that run windows over REST go by it.
    pub now: Duration,
}

/// Locks a consumer for the rest of the transaction, which should be short; `None` if there is none of this name.
///
/// # Errors
///
/// [`DatabaseError`] when the database cannot be asked, and when the log is in another epoch than this one, in which the caller would go on.
pub async fn lock(
    tx: &mut Transaction<'_, Postgres>,
    consumer: &AgentConsumer,
    epoch: Uuid,
) -> Result<Option<Locked>, DatabaseError> {
    Ok(store::agents::lock(tx, consumer, epoch).await?)
}

/// Saves together with the window of a holder over REST: a text of at most 1 MiB, which is not looked at. Says whether it is the holder.
///
/// # Errors
///
/// [`DatabaseError`] when the database cannot be asked.
pub async fn store_window(
    tx: &mut Transaction<'_, Postgres>,
    save: &Save,
    window: &str,
) -> Result<bool, DatabaseError> {
    Ok(store::agents::store_window(tx, save, window).await?)
}
