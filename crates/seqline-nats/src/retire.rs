//! Consumers of the stream that are out of use: gone from the broker and from the database.
//!
//! Each leaves a consumer at the broker, for which messages are counted for ever, and a row in the database, which metrics name.

use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::stream::ConsumerErrorKind;
use seqline::DatabaseError;
use seqline::consumer::Mode;
use sqlx::PgConnection;

use crate::broker::Broker;
pub use crate::refusal::Refusal;
use crate::store::consumers::{self as store, ForgottenRow};
use crate::stream::StreamError;

/// What went with a consumer, or would go.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Forgotten {
    /// The stream that it read.
    pub stream: String,
    /// How many events it had to try again.
    pub retries: i64,
    /// How many it had given up.
    pub dead_letters: i64,
}

impl From<ForgottenRow> for Forgotten {
    fn from(row: ForgottenRow) -> Self {
        let ForgottenRow { stream, retries, dead_letters } = row;
        Self { stream, retries, dead_letters }
    }
}

/// What becomes of the record of what a consumer has handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handled {
    /// It stays for as long as it is kept anyway: one of the same name that comes later handles nothing twice.
    Stays,
    /// It goes as well, in one statement: for consumers that have handled little, and whose names do not come again.
    Goes,
}

/// Why a consumer was not forgotten. Nothing was changed then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RetireError {
    /// It was refused, with the reason.
    #[error("{}", .0.message)]
    Refused(Refusal),
    /// What the database or the connection reported.
    #[error("database refused it: {0}")]
    Database(DatabaseError),
}

impl From<sqlx::Error> for RetireError {
    fn from(error: sqlx::Error) -> Self {
        Refusal::of(error).map_or_else(Self::Database, Self::Refused)
    }
}

/// Forgets a consumer in the database, with what it has to try again and what it gave up. One that runs records itself again when it has lost
/// its place at the broker, so stop it first.
///
/// # Errors
///
/// [`RetireError`] when there is no such consumer, or the reason is missing that is needed to do it.
pub async fn forget(
    connection: &mut PgConnection,
    consumer: &str,
    handled: Handled,
    mode: Mode<'_>,
) -> Result<Forgotten, RetireError> {
    let (apply, why) = match mode {
        Mode::Plan => (false, None),
        Mode::Apply { why } => (true, why),
    };
    Ok(store::forget(connection, consumer, handled == Handled::Goes, apply, why).await?.into())
}

/// Deletes a consumer at the broker, with what it had in hand. Whether there was one.
///
/// # Errors
///
/// [`StreamError`] when the broker cannot be asked. Whether it was deleted is not known then, and it may be asked again.
pub async fn delete(broker: &Broker, stream: &str, consumer: &str) -> Result<bool, StreamError> {
    let silent = || StreamError::Silent(stream.to_owned());
    let handle = broker.jetstream().await?.get_stream_no_info(stream).await.map_err(|_| silent())?;
    match handle.delete_consumer(consumer).await {
        Ok(_) => Ok(true),
        Err(error) => match error.kind() {
            ConsumerErrorKind::JetStream(error)
                if matches!(
                    error.error_code(),
                    ErrorCode::CONSUMER_NOT_FOUND | ErrorCode::STREAM_NOT_FOUND
                ) =>
            {
                Ok(false)
            }
            ConsumerErrorKind::JetStream(error) => {
                Err(StreamError::Refused { stream: stream.to_owned(), code: error.error_code().0 })
            }
            _ => Err(silent()),
        },
    }
}
