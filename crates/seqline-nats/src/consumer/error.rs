//! Why a pass could not be made.

use seqline::{CommitError, DatabaseError};

use crate::broker::BrokerError;
use crate::stream::StreamError;

/// Why a pass could not be made, or not to its end. It says nothing about events: one that a handler fails with is an ordinary end of a pass.
/// What was in hand stays in hand, nobody else gets it meanwhile, and the next pass goes on with it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PassError {
    /// The broker cannot be reached.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// The stream cannot be used.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// The broker does not answer in time.
    #[error("the broker does not answer")]
    Silent,
    /// The broker refuses, with the code of its API.
    #[error("the broker refuses the consumer: code {0}")]
    Refused(u64),
    /// The broker has a consumer of this name that is of another kind. It is somebody else's.
    #[error("the broker has another kind of consumer of this name: its {0} differs")]
    Mismatch(&'static str),
    /// The database cannot be asked.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// The database did not answer in time.
    #[error("no answer from the database in time")]
    DatabaseLate,
    /// It is not known whether the database has committed.
    #[error(transparent)]
    Commit(CommitError),
    /// The log does not reach as far as a message: the database is behind the stream.
    #[error("the log ends before a message of its history")]
    DatabaseBehind,
    /// The log has another event where a message of its epoch says that its event is: the database lost its end and went on, or no relay wrote the
    /// message. Nobody can say which of them is right, so the message stays in hand until the restore is finalized, or it is deleted.
    #[error("the log has another event at the position of a message of its epoch")]
    HistoriesDiffer,
    /// A handler lost a conflict with another transaction.
    #[error("a handler lost a conflict with another transaction")]
    Conflict,
}

impl PassError {
    /// Whether the database cannot be asked. One that is behind can.
    pub(super) fn is_of_database(&self) -> bool {
        matches!(self, Self::Database(_) | Self::DatabaseLate | Self::Commit(_))
    }

    /// Whether something that somebody else has was waited for in vain.
    pub(super) fn is_lock_timeout(&self) -> bool {
        matches!(self, Self::Database(error) if error.sqlstate() == Some("55P03"))
    }

    /// For figures and logs: `broker`, `stream`, `consumer`, `database`, `histories_differ` or `conflict`.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Broker(_) | Self::Silent => "broker",
            Self::Stream(_) => "stream",
            Self::Refused(_) | Self::Mismatch(_) => "consumer",
            Self::Database(_) | Self::DatabaseLate | Self::Commit(_) | Self::DatabaseBehind => "database",
            Self::HistoriesDiffer => "histories_differ",
            Self::Conflict => "conflict",
        }
    }
}

impl From<sqlx::Error> for PassError {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error.into())
    }
}
