//! Redaction: what an event said is taken out of the log, and all else about it stays.
//!
//! The payload of exactly the events that are named becomes `{}`, and their envelopes say `redacted`. In the same transaction whoever could see
//! them gets a [`Notice`], and `seqline.audit_log` a row without anything of what they said. Nothing brings it back. Where copies may be left, and
//! for how long, is in the guide.
//!
//! It is done in the transaction of the caller, so that an application which deletes its own rows redacts together with that:
//!
//! ```no_run
//! use seqline::consumer::Mode;
//!
//! # async fn example(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
//! let mut tx = seqline::begin(&pool).await?;
//! sqlx::query("DELETE FROM customers WHERE id = $1").bind(17_i64).execute(&mut *tx).await?;
//! let redaction = seqline::redact::resource(&mut tx, "customer", "17", None, Mode::Apply { why: Some("asked to") }).await?;
//! seqline::commit(tx).await?;
//! assert_eq!(redaction.waiting, 0, "they have no number yet: once more, in a moment");
//! # Ok(())
//! # }
//! ```

mod notice;

use sqlx::{Postgres, Transaction};
use uuid::Uuid;

use crate::consumer::Mode;
use crate::error::{DatabaseError, ErrorKind};
use crate::store;

pub use self::notice::{NOTICE_TYPE, Notice, RedactedEvent};

/// What a redaction did, or would do.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Redaction {
    /// How many events it redacted.
    pub events: i64,
    /// How many of those that were meant had been redacted before.
    pub already: i64,
    /// How many there are beyond those that it was to be at most. The same again redacts more of them.
    pub remaining: i64,
    /// How many wait for their numbers and were not touched, where events are [numbered after
    /// commit](crate::settings::Sequencing::AfterCommit). The same again when they have them, some milliseconds later, redacts them.
    pub waiting: i64,
    /// The partitions they are in. What they said is in the files of these until they are vacuumed.
    pub partitions: Vec<String>,
}

impl Redaction {
    /// Whether any event was meant: nothing that was asked for is in the log otherwise, or waits to be.
    #[must_use]
    pub fn is_about_any(&self) -> bool {
        self.events + self.already + self.remaining + self.waiting > 0
    }
}

/// Why nothing was redacted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RedactError {
    /// It was refused, with the reason.
    #[error("{message}")]
    Refused {
        /// Which rule refused it, such as `redact_notice`.
        rule: String,
        /// The message of the database.
        message: String,
        /// What to do, if it said so: a sentence.
        hint: Option<String>,
    },
    /// The transaction is not READ COMMITTED, so it could miss events that are in the log.
    #[error("{message}")]
    Isolation {
        /// The message of the database.
        message: String,
    },
    /// The log is [read only](crate::settings::MaintenanceMode::ReadOnly) for maintenance, so the notices cannot be appended. Retry when that
    /// is over.
    #[error("{message}")]
    ReadOnly {
        /// The message of the database.
        message: String,
    },
    /// Anything else that the database or the connection reported.
    #[error("database refused the redaction: {0}")]
    Database(DatabaseError),
}

impl RedactError {
    /// Whether the whole transaction may be tried again as it was.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::ReadOnly { .. } => true,
            Self::Database(error) => error.is_retryable(),
            Self::Refused { .. } | Self::Isolation { .. } => false,
        }
    }

    /// The kind of this error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Refused { .. } => ErrorKind::ValidationFailed,
            Self::Isolation { .. } => ErrorKind::Internal,
            Self::ReadOnly { .. } => ErrorKind::Unavailable,
            Self::Database(error) => error.kind(),
        }
    }
}

impl From<sqlx::Error> for RedactError {
    fn from(error: sqlx::Error) -> Self {
        let error = DatabaseError::from(error);
        let Some((pg, constraint)) = error.pg().zip(error.seqline_constraint()) else {
            return Self::Database(error);
        };
        let message = pg.message().to_owned();
        match constraint {
            "isolation" => Self::Isolation { message },
            "read_only" => Self::ReadOnly { message },
            rule @ ("redact_event" | "redact_notice" | "redact_resource" | "audit_why") => {
                Self::Refused { rule: rule.to_owned(), message, hint: pg.hint().map(str::to_owned) }
            }
            _ => Self::Database(error),
        }
    }
}

/// Redacts one event. A second time it changes nothing, appends nothing, and says so.
///
/// As `seqline_app`. The transaction is one that appends: it ends with [`commit`](crate::commit()). Events that it has appended itself are not in
/// the log yet and stay as they are.
///
/// # Errors
///
/// [`RedactError`]: nothing was redacted, and the transaction has failed. A [`Notice`] is refused: it says nothing that could be redacted.
pub async fn event(
    tx: &mut Transaction<'_, Postgres>,
    id: Uuid,
    mode: Mode<'_>,
) -> Result<Redaction, RedactError> {
    let (apply, why) = mode.parts();
    Ok(store::redact::event(tx, id, apply, why).await?)
}

/// Redacts all events about a resource that are in the log now, or at most so many: the oldest, for whoever has not the time for all in one
/// transaction. Otherwise like [`event`].
///
/// What is appended later is not touched, also by transactions that are open. So the resource is removed in the same transaction, or before.
///
/// # Errors
///
/// [`RedactError`]: nothing was redacted, and the transaction has failed.
pub async fn resource(
    tx: &mut Transaction<'_, Postgres>,
    kind: &str,
    id: &str,
    at_most: Option<u32>,
    mode: Mode<'_>,
) -> Result<Redaction, RedactError> {
    let (apply, why) = mode.parts();
    Ok(store::redact::resource(tx, (kind, id), at_most, apply, why).await?)
}
