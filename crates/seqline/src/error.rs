//! What can go wrong, named so that a caller can decide.
//!
//! Each operation has an enum of its own. All of them answer two questions: may I retry
//! (`is_retryable`), and did anything happen (`had_no_effect`). None of them carries a payload: a failing row
//! or a JSON fragment that PostgreSQL adds to its errors stays out of [`DatabaseError`].

use std::fmt;

use sqlx::postgres::PgDatabaseError;
use uuid::Uuid;

use crate::event::{InvalidEvent, Rule};

/// The SQLSTATE of a write in a transaction that cannot write.
const READ_ONLY_TRANSACTION: &str = "25006";

const NO_WRITES: &str = "the server takes no writes, it is a standby or read only";

/// The closed set of error kinds across the product.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A bug, or a database that is not as the product left it.
    Internal,
    /// Nothing is wrong with the request: the same may succeed later.
    Unavailable,
    /// The request breaks a rule; a member is named.
    ValidationFailed,
    /// The database role may not do this.
    Forbidden,
    /// The reader's position is no longer in the log.
    ResyncRequired,
}

/// What the database or the connection to it reported, without row data.
///
/// `Display` is the primary message of PostgreSQL. Its detail and context can hold a failing row or a part of
/// a payload, so neither `Display` nor `Debug` shows them; [`DatabaseError::into_source`] gives the original.
pub struct DatabaseError(sqlx::Error);

impl DatabaseError {
    /// The five-character SQLSTATE, when the server answered.
    #[must_use]
    pub fn sqlstate(&self) -> Option<&str> {
        self.pg().map(PgDatabaseError::code)
    }

    /// Whether the same request may succeed later without any change.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        Self::is_of_surroundings(&self.0)
    }

    /// The same for what the driver reports.
    pub(crate) fn is_of_surroundings(error: &sqlx::Error) -> bool {
        match error.as_database_error().and_then(|error| error.code()).as_deref() {
            // Rollbacks by conflict, resources, operator intervention, a lock that was not available.
            Some(code) => {
                matches!(code.get(..2), Some("40" | "53" | "57" | "08")) && code != "57014"
                    || matches!(code, "55P03" | "25P03" | "25P04")
                    || Self::is_of_read_only_server(error)
            }
            None => Self::is_of_connection(error) || matches!(error, sqlx::Error::PoolTimedOut),
        }
    }

    /// Whether the connection failed or was ended by the server, so that the fate of what was sent last is open.
    #[must_use]
    pub fn is_connection_failure(&self) -> bool {
        Self::is_of_connection(&self.0)
    }

    /// Whether a write was refused because the server takes none: it is a standby, as a primary is after a failover, or was made read only.
    /// Nothing happened, and the connection is no good for writes: another one may lead to a server that takes them. A transaction
    /// that was begun as a read-only one is answered in the same way.
    #[must_use]
    pub fn is_read_only_server(&self) -> bool {
        Self::is_of_read_only_server(&self.0)
    }

    fn is_of_read_only_server(error: &sqlx::Error) -> bool {
        match error {
            sqlx::Error::Database(error) => {
                let pg = error.try_downcast_ref::<PgDatabaseError>();
                // The second is what a standby says to a transaction that is to write by its BEGIN.
                pg.is_some_and(|pg| {
                    pg.code() == READ_ONLY_TRANSACTION
                        || pg.code() == "0A000" && pg.routine() == Some("call_bool_check_hook")
                })
            }
            sqlx::Error::Io(error) => error.kind() == std::io::ErrorKind::ReadOnlyFilesystem,
            _ => false,
        }
    }

    /// Whether the connection is to be closed and not used again.
    pub(crate) fn spoils_connection(&self) -> bool {
        self.is_connection_failure() || self.is_read_only_server()
    }

    /// The server was found to take no writes, before any was tried.
    pub(crate) fn read_only_server() -> Self {
        Self(sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::ReadOnlyFilesystem, NO_WRITES)))
    }

    /// Nothing is done by a clock that is wrong.
    pub(crate) fn wrong_clock(message: String) -> Self {
        Self(sqlx::Error::InvalidArgument(message))
    }

    fn is_of_connection(error: &sqlx::Error) -> bool {
        match error.as_database_error().and_then(|error| error.code()) {
            Some(code) => {
                code.starts_with("08")
                    || matches!(&*code, "57P01" | "57P02" | "57P03" | "57P05" | "25P03" | "25P04")
            }
            None => matches!(
                error,
                sqlx::Error::Io(_)
                    | sqlx::Error::Protocol(_)
                    | sqlx::Error::Tls(_)
                    | sqlx::Error::WorkerCrashed
            ),
        }
    }

    /// The error as the driver reported it. Its detail can contain a payload: do not log it.
    #[must_use]
    pub fn into_source(self) -> sqlx::Error {
        self.0
    }

    /// The database did not answer within a deadline.
    pub(crate) fn late() -> Self {
        Self(sqlx::Error::Io(std::io::Error::new(
            std::io::ErrorKind::TimedOut,
            "no answer from the database in time",
        )))
    }

    pub(crate) fn is_late(&self) -> bool {
        matches!(&self.0, sqlx::Error::Io(error) if error.kind() == std::io::ErrorKind::TimedOut)
    }

    pub(crate) fn pg(&self) -> Option<&PgDatabaseError> {
        self.0.as_database_error()?.try_downcast_ref()
    }

    /// The constraint of a refusal that Seqline's own SQL raised, without the prefix.
    pub(crate) fn seqline_constraint(&self) -> Option<&str> {
        let pg = self.pg()?;
        (pg.schema() == Some("seqline")).then(|| pg.constraint()?.strip_prefix("seqline_")).flatten()
    }

    pub(crate) fn kind(&self) -> ErrorKind {
        match self.sqlstate() {
            Some("42501") => ErrorKind::Forbidden,
            _ if self.is_retryable() => ErrorKind::Unavailable,
            _ => ErrorKind::Internal,
        }
    }
}

impl From<sqlx::Error> for DatabaseError {
    fn from(error: sqlx::Error) -> Self {
        Self(error)
    }
}

impl fmt::Display for DatabaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pg() {
            Some(pg) if self.is_read_only_server() => {
                write!(f, "{NO_WRITES}: {} (SQLSTATE {})", pg.message(), pg.code())
            }
            Some(pg) => write!(f, "{} (SQLSTATE {})", pg.message(), pg.code()),
            None if self.is_read_only_server() => f.write_str(NO_WRITES),
            None => write!(f, "{}", self.0),
        }
    }
}

impl fmt::Debug for DatabaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DatabaseError({self})")
    }
}

impl std::error::Error for DatabaseError {}

/// Why events could not be appended. Whatever it was, nothing was appended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AppendError {
    /// An event breaks a rule of the log.
    #[error(transparent)]
    Invalid(#[from] InvalidEvent),
    /// A caller-supplied id is in the log already.
    #[error("{message}")]
    DuplicateId {
        /// The id, when the message of the database named it.
        id: Option<Uuid>,
        /// The message of the database.
        message: String,
    },
    /// The transaction runs in an isolation level in which the next number cannot be known.
    #[error("{message}")]
    Isolation {
        /// The message of the database.
        message: String,
    },
    /// The log is [read only](crate::settings::MaintenanceMode::ReadOnly) for maintenance. Retry when that is over.
    #[error("{message}")]
    ReadOnly {
        /// The message of the database.
        message: String,
    },
    /// Anything else that the database or the connection reported.
    #[error("database refused the append: {0}")]
    Database(DatabaseError),
}

impl AppendError {
    /// Whether the whole transaction may be tried again as it was.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::ReadOnly { .. } => true,
            Self::Database(error) => error.is_retryable(),
            Self::Invalid(_) | Self::DuplicateId { .. } | Self::Isolation { .. } => false,
        }
    }

    /// Always true: the events of a failed append are not in the transaction, and PostgreSQL refuses to commit a
    /// transaction after a failed statement.
    #[must_use]
    pub fn had_no_effect(&self) -> bool {
        true
    }

    /// The kind of this error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Invalid(_) | Self::DuplicateId { .. } => ErrorKind::ValidationFailed,
            Self::Isolation { .. } => ErrorKind::Internal,
            Self::ReadOnly { .. } => ErrorKind::Unavailable,
            Self::Database(error) => error.kind(),
        }
    }
}

impl From<sqlx::Error> for AppendError {
    fn from(error: sqlx::Error) -> Self {
        let error = DatabaseError(error);
        let Some((pg, constraint)) = error.pg().zip(error.seqline_constraint()) else {
            return Self::Database(error);
        };
        let message = pg.message().to_owned();
        match constraint {
            "duplicate_id" => Self::DuplicateId { id: uuid_in(&message), message },
            "isolation" => Self::Isolation { message },
            "read_only" => Self::ReadOnly { message },
            rule => match Rule::from_name(rule) {
                Some(rule) => {
                    Self::Invalid(InvalidEvent::new(rule, pg.column().unwrap_or_default(), message))
                }
                None => Self::Database(error),
            },
        }
    }
}

/// Why a transaction did not commit, or why it is not known whether it did.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommitError {
    /// The connection was lost before the answer: the transaction may have committed, or may still commit while its
    /// server process waits for the numbering lock. Try again with events of the same ids, if you gave them ids of your own: if the
    /// first attempt went through, the second is refused with [`AppendError::DuplicateId`].
    #[error("connection lost during commit, the outcome is unknown: {0}")]
    Unknown(DatabaseError),
    /// The transaction has committed, and the connection was lost before it was known to be durable. As a rule it is; a crash of the
    /// server at that very moment can take it back. Do not repeat it.
    #[error("committed, but the connection was lost before that was durable: {0}")]
    NotKnownDurable(DatabaseError),
    /// A statement of the transaction had failed before. PostgreSQL rolls such a transaction back at COMMIT and
    /// reports no error.
    #[error("the transaction had failed already and was rolled back")]
    AlreadyFailed,
    /// Another transaction appended an event with the same caller-supplied id first. Databases whose schema is older than version 19 say so
    /// at COMMIT; later ones when it is appended.
    #[error("{message}")]
    DuplicateId {
        /// The id, when the message of the database named it.
        id: Option<Uuid>,
        /// The message of the database.
        message: String,
    },
    /// The numbering lock was not obtained in time; the message says who held it.
    #[error("{message}")]
    NumberingLock {
        /// The message of the database.
        message: String,
    },
    /// There is no partition for the next numbers: partition maintenance has not run for long.
    #[error(
        "no partition of the event log for seq {first_seq} to {last_seq}: run partition maintenance and retry"
    )]
    NoPartition {
        /// First number without a partition, or the one that PostgreSQL named.
        first_seq: i64,
        /// Last number of the transaction.
        last_seq: i64,
    },
    /// Anything else that the database reported: a deferred constraint of the application, for example.
    #[error("database refused the commit: {0}")]
    Database(DatabaseError),
}

impl CommitError {
    /// Whether the whole transaction may be tried again as it was. Not so for an unknown outcome: it would
    /// append twice if the first attempt did commit.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::NumberingLock { .. } | Self::NoPartition { .. } => true,
            Self::Database(error) => error.is_retryable(),
            Self::Unknown(_) | Self::NotKnownDurable(_) | Self::AlreadyFailed | Self::DuplicateId { .. } => {
                false
            }
        }
    }

    /// Whether it is certain that nothing was committed.
    #[must_use]
    pub fn had_no_effect(&self) -> bool {
        !matches!(self, Self::Unknown(_) | Self::NotKnownDurable(_))
    }

    /// The kind of this error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Unknown(_)
            | Self::NotKnownDurable(_)
            | Self::NumberingLock { .. }
            | Self::NoPartition { .. } => ErrorKind::Unavailable,
            Self::DuplicateId { .. } => ErrorKind::ValidationFailed,
            Self::AlreadyFailed => ErrorKind::Internal,
            Self::Database(error) => error.kind(),
        }
    }
}

impl From<sqlx::Error> for CommitError {
    fn from(error: sqlx::Error) -> Self {
        let error = DatabaseError(error);
        if error.is_connection_failure() {
            return Self::Unknown(error);
        }
        let Some(pg) = error.pg() else {
            // The driver gave up on its own after COMMIT was sent, or before: it does not say which.
            return Self::Unknown(error);
        };
        let message = || pg.message().to_owned();
        match error.seqline_constraint() {
            Some("duplicate_id") => Self::DuplicateId { id: uuid_in(pg.message()), message: message() },
            Some("numbering_lock") => Self::NumberingLock { message: message() },
            _ => match missing_partition(&error) {
                Some((first_seq, last_seq)) => Self::NoPartition { first_seq, last_seq },
                None => Self::Database(error),
            },
        }
    }
}

/// A missing partition and a violated CHECK share their SQLSTATE; only the second names a constraint.
pub(crate) fn missing_partition(error: &DatabaseError) -> Option<(i64, i64)> {
    let pg = error.pg()?;
    let of_the_log =
        pg.code() == "23514" && pg.schema() == Some("seqline") && pg.table() == Some("event_log");
    if !of_the_log || pg.constraint().is_some() {
        return None;
    }
    // "no partition of the event log for seq 5 to 7", or PostgreSQL's own "... contains (seq) = (5)."
    let text =
        if pg.message().contains(" for seq ") { pg.message() } else { pg.detail().unwrap_or_default() };
    let mut numbers =
        text.split(|c: char| !c.is_ascii_digit()).filter(|s| !s.is_empty()).map_while(|s| s.parse().ok());
    let first = numbers.next()?;
    Some((first, numbers.next().unwrap_or(first)))
}

fn uuid_in(message: &str) -> Option<Uuid> {
    message.split_whitespace().find_map(|word| Uuid::try_parse(word).ok())
}

/// Why a page of the log could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// Retention has dropped events behind the position: they are gone, reading can go on at `min_retained`.
    #[error("seq {next_seq} is no longer in the log, the lowest retained seq is {min_retained}")]
    Expired {
        /// The number that the reader needed next.
        next_seq: i64,
        /// The lowest number still in the log.
        min_retained: i64,
    },
    /// A number is missing from the middle of the log. This cannot happen: do not go on.
    #[error(transparent)]
    Gap(#[from] GapError),
    /// The position is above the head: it belongs to another history of this database.
    #[error("position {after} is above the head {head} of the log: it belongs to another history")]
    AheadOfHead {
        /// The position of the reader.
        after: i64,
        /// The highest number in the log.
        head: i64,
    },
    /// What the database or the connection reported.
    #[error("database refused the read: {0}")]
    Database(#[from] DatabaseError),
}

impl ReadError {
    /// Whether the same read may succeed later.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Database(error) if error.is_retryable())
    }

    /// The kind of this error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Expired { .. } | Self::AheadOfHead { .. } => ErrorKind::ResyncRequired,
            Self::Gap(_) => ErrorKind::Internal,
            Self::Database(error) => error.kind(),
        }
    }
}

impl From<sqlx::Error> for ReadError {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(DatabaseError(error))
    }
}

/// A number is missing from the log although larger ones are in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("gap in the log: expected seq {expected}, found {found}")]
pub struct GapError {
    /// The number that had to come next.
    pub expected: i64,
    /// The number that came.
    pub found: i64,
}
