//! Why a round failed, and why consumers cannot run.

use std::error::Error;

use super::handler::HandlerError;
use super::name::ConsumerName;
use crate::error::{AppendError, CommitError, DatabaseError, GapError};
use crate::job::JobError;

/// Why a round failed. Whatever it was, the cursor did not move and nothing of the round is left, unless the error says
/// otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RoundError {
    /// The handler returned an error.
    #[error("the handler failed at seq {seq}")]
    Handler {
        /// The event.
        seq: i64,
        /// What it returned. It is the application's and can hold a payload.
        source: HandlerError,
    },
    /// The handler panicked.
    #[error("the handler panicked at seq {seq}")]
    Panicked {
        /// The event.
        seq: i64,
    },
    /// The handler took longer than it may for one event.
    #[error("the handler did not come back from seq {seq} in time")]
    TimedOut {
        /// The event.
        seq: i64,
    },
    /// The handler appended events, and its consumer was not declared to.
    #[error("a handler of seq {first_seq} to {last_seq} appended events, which its consumer may not")]
    Appended {
        /// First event of the round.
        first_seq: i64,
        /// Last event of the round.
        last_seq: i64,
    },
    /// A statement of the handler failed and the handler went on. PostgreSQL has given up the transaction then.
    #[error("a statement of a handler of seq {first_seq} to {last_seq} failed and the handler went on")]
    TransactionFailed {
        /// First event of the round.
        first_seq: i64,
        /// Last event of the round.
        last_seq: i64,
    },
    /// The handler began a nested transaction of the driver and left it open, neither committed nor dropped.
    #[error("a handler of seq {first_seq} to {last_seq} left a nested transaction open")]
    NestedTransaction {
        /// First event of the round.
        first_seq: i64,
        /// Last event of the round.
        last_seq: i64,
    },
    /// The handler ended the round's transaction. If it committed it, the effects of the events until then are there, and
    /// will be again: the handler has to be corrected.
    #[error("a handler of seq {first_seq} to {last_seq} ended the transaction of the round")]
    TransactionEnded {
        /// First event of the round.
        first_seq: i64,
        /// Last event of the round.
        last_seq: i64,
    },
    /// The handler moved the cursor, which only the round does.
    #[error("a handler of seq {first_seq} to {last_seq} moved the cursor of its consumer")]
    CursorMoved {
        /// First event of the round.
        first_seq: i64,
        /// Last event of the round.
        last_seq: i64,
    },
    /// The jobs that its handlers asked for could not be inserted.
    #[error("the jobs of seq {first_seq} to {last_seq} were not inserted: {source}")]
    Jobs {
        /// First event of the round.
        first_seq: i64,
        /// Last event whose jobs were to be inserted.
        last_seq: i64,
        /// Why.
        source: JobError,
    },
    /// A number is missing from the log and retention does not explain it. This cannot happen: do not move the cursor.
    #[error(transparent)]
    Gap(#[from] GapError),
    /// The cursor is above the head: the database was taken back to an earlier state. New events would be skipped until
    /// the head has passed the cursor, so nothing is handled before the cursor is set anew.
    #[error("the cursor is at {last_seq}, above the head {head} of the log: it belongs to another history")]
    AheadOfHead {
        /// Where the cursor is.
        last_seq: i64,
        /// The highest number in the log.
        head: i64,
    },
    /// The event would have to be parked, and the consumer has as many parked events as the setting `parked_max_events` allows.
    #[error("seq {seq} would have to be parked, and there are too many parked events")]
    ParkedFull {
        /// The event.
        seq: i64,
    },
    /// The consumer has no cursor: it was never ensured, or somebody removed it.
    #[error("the consumer has no cursor")]
    MissingCursor,
    /// The round could not be committed. With [`CommitError::Unknown`] it may have been; the cursor says whether it was.
    #[error("the round was not committed: {0}")]
    Commit(#[source] CommitError),
    /// What the database or the connection reported.
    #[error("database refused the round: {0}")]
    Database(#[from] DatabaseError),
}

impl RoundError {
    /// One word of a closed set, for logs, metrics and the table of failures.
    #[must_use]
    pub fn error_type(&self) -> &'static str {
        match self {
            Self::Handler { .. } => "handler",
            Self::Panicked { .. } => "panic",
            Self::TimedOut { .. } => "timeout",
            Self::Appended { .. } => "appended",
            Self::TransactionFailed { .. } => "transaction_failed",
            Self::NestedTransaction { .. } => "nested_transaction",
            Self::TransactionEnded { .. } => "transaction_ended",
            Self::CursorMoved { .. } => "cursor_moved",
            Self::Jobs { .. } => "jobs",
            Self::Gap(_) => "gap",
            Self::AheadOfHead { .. } => "ahead_of_head",
            Self::ParkedFull { .. } => "parked_full",
            Self::MissingCursor => "missing_cursor",
            Self::Commit(_) => "commit",
            Self::Database(_) => "database",
        }
    }

    /// The event that the consumer cannot pass, as far as that is known: the first of those that it can be.
    #[must_use]
    pub fn seq(&self) -> Option<i64> {
        match self {
            Self::Handler { seq, .. }
            | Self::Panicked { seq }
            | Self::TimedOut { seq }
            | Self::ParkedFull { seq } => Some(*seq),
            Self::Appended { first_seq, .. }
            | Self::TransactionFailed { first_seq, .. }
            | Self::NestedTransaction { first_seq, .. }
            | Self::TransactionEnded { first_seq, .. }
            | Self::CursorMoved { first_seq, .. }
            | Self::Jobs { first_seq, .. } => Some(*first_seq),
            Self::Gap(gap) => Some(gap.expected),
            Self::AheadOfHead { .. } | Self::MissingCursor | Self::Commit(_) | Self::Database(_) => None,
        }
    }

    /// Why, in a sentence that can be said in a log, if there is one. An error of jobs has one, also behind an error of the handler's.
    pub(super) fn reason(&self) -> Option<String> {
        let job_error = match self {
            Self::Jobs { source, .. } => Some(source),
            Self::Handler { source, .. } => causes(source.as_ref()).find_map(|cause| cause.downcast_ref()),
            _ => None,
        };
        job_error.filter(|error| error.is_sayable()).map(JobError::to_string)
    }

    /// Whether the event is to blame, or what the handler did with it, and not something that others would have met too: a database
    /// that is away or full, or another transaction.
    pub(super) fn is_of_event(&self) -> bool {
        match self {
            Self::Handler { source, .. } => !causes(source.as_ref()).any(is_of_surroundings),
            Self::Jobs { source, .. } => !is_of_surroundings(source),
            // What is checked at the end, such as a deferred constraint.
            Self::Commit(CommitError::Database(error)) => !error.is_retryable(),
            Self::Panicked { .. }
            | Self::TimedOut { .. }
            | Self::Appended { .. }
            | Self::TransactionFailed { .. }
            | Self::NestedTransaction { .. }
            | Self::TransactionEnded { .. }
            | Self::CursorMoved { .. } => true,
            Self::Gap(_)
            | Self::AheadOfHead { .. }
            | Self::ParkedFull { .. }
            | Self::MissingCursor
            | Self::Commit(_)
            | Self::Database(_) => false,
        }
    }

    /// Whether the round lost against another transaction and may be tried again at once: a deadlock, a lock that was not
    /// had in time, or a conflict of serializable transactions.
    pub(super) fn is_conflict(&self) -> bool {
        self.has_sqlstate(|code| matches!(code, "40P01" | "55P03" | "40001"))
    }

    /// Whether a write was refused because the server takes none.
    pub(super) fn is_read_only_server(&self) -> bool {
        match self {
            Self::Database(error) => error.is_read_only_server(),
            _ => self.has_sqlstate(|code| code == "25006"),
        }
    }

    /// Whether a statement was refused because one before it had failed.
    pub(super) fn is_in_failed_transaction(&self) -> bool {
        self.has_sqlstate(|code| code == "25P02")
    }

    fn has_sqlstate(&self, is: fn(&str) -> bool) -> bool {
        match self {
            Self::Handler { source, .. } => sqlstates(source.as_ref()).any(|code| is(&code)),
            Self::Commit(CommitError::Database(error)) | Self::Database(error) => {
                error.sqlstate().is_some_and(is)
            }
            Self::Jobs { source, .. } => sqlstates(source).any(|code| is(&code)),
            Self::Commit(CommitError::NumberingLock { .. }) => is("55P03"),
            _ => false,
        }
    }
}

/// An error and what caused it.
fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

/// Whether this error says that the same may succeed later without any change, or that the queue is not as it should be.
fn is_of_surroundings(error: &(dyn Error + 'static)) -> bool {
    match error.downcast_ref() {
        Some(JobError::Database(error)) => return error.is_retryable(),
        Some(
            JobError::Invalid(_)
            | JobError::TooMany
            | JobError::Incomplete { .. }
            | JobError::Client(_)
            | JobError::Sink(_),
        )
        | None => {}
        Some(_) => return true,
    }
    // They say what the database reported and have no cause of their own.
    if let Some(error) = error.downcast_ref::<AppendError>() {
        return error.is_retryable();
    }
    if let Some(error) = error.downcast_ref::<DatabaseError>() {
        return error.is_retryable();
    }
    error.downcast_ref().is_some_and(DatabaseError::is_of_surroundings)
}

/// What PostgreSQL said, wherever it is in the causes of an error.
fn sqlstates<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = String> + 'a {
    causes(error).filter_map(|error| {
        if let Some(error) = error.downcast_ref::<sqlx::Error>() {
            return error.as_database_error().and_then(|error| error.code()).map(|code| code.into_owned());
        }
        // It says what the database reported and has no cause of its own.
        if let Some(AppendError::Database(error)) = error.downcast_ref() {
            return error.sqlstate().map(str::to_owned);
        }
        error.downcast_ref::<DatabaseError>().and_then(|error| error.sqlstate()).map(str::to_owned)
    })
}

/// Why a consumer was not registered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegistrationError {
    /// A consumer of this name is registered already.
    #[error("consumer {0} is registered already")]
    Duplicate(ConsumerName),
}

/// Why consumers could not begin, or ended although nobody asked for it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConsumersError {
    /// A cursor could not be made.
    #[error(transparent)]
    Ensure(#[from] EnsureError),
    /// The task of a consumer ended. This is a bug; the process should end with it.
    #[error("the task of consumer {0} ended")]
    Ended(ConsumerName),
}

/// Why the cursors of consumers could not be made. None was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnsureError {
    /// A consumer of this name is polled by SQL: one cursor cannot serve two programs.
    #[error("{message}")]
    OtherKind {
        /// The message of the database, which names it.
        message: String,
    },
    /// The number at which a consumer shall start is not in the log.
    #[error("{message}")]
    Start {
        /// The message of the database.
        message: String,
    },
    /// Anything else that the database or the connection reported.
    #[error("database refused to make the cursors of consumers: {0}")]
    Database(DatabaseError),
}

impl From<DatabaseError> for EnsureError {
    fn from(error: DatabaseError) -> Self {
        let message = || error.pg().map(|pg| pg.message().to_owned()).unwrap_or_default();
        match error.seqline_constraint() {
            Some("consumer_kind") => Self::OtherKind { message: message() },
            Some("consumer_start") => Self::Start { message: message() },
            _ => Self::Database(error),
        }
    }
}

impl EnsureError {
    /// Whether the same may succeed later without any change.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Database(error) if error.is_retryable())
    }
}
