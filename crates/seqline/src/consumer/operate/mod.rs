//! What people and other programs do to consumers that run elsewhere.
//!
//! Each operation leaves a row in `seqline.audit_log`. Those that change where or whether a consumer goes on wait for its rounds that
//! are under way, as long as the session's `lock_timeout` allows. What is only planned takes no lock and changes nothing.

mod divide;
mod moves;
mod parked;

use std::time::Duration;

use sqlx::PgConnection;

use super::name::ConsumerName;
use crate::error::DatabaseError;
use crate::store;

pub use divide::{Division, LaneBehind, divide, gather_lanes, lane_behind, release_lanes};
pub use moves::{
    Acknowledged, Replay, Retirement, Rewind, Skip, Target, acknowledge, replay, retire, rewind, skip,
};
pub use parked::{ParkedChange, discard_parked, retry_parked};

/// Whether something is done, or only looked at what it would do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode<'a> {
    /// Nothing is changed.
    Plan,
    /// It is done, and written to the audit log together with this reason, at most 1000 characters.
    Apply {
        /// Why.
        why: Option<&'a str>,
    },
}

impl<'a> Mode<'a> {
    pub(crate) fn parts(self) -> (bool, Option<&'a str>) {
        match self {
            Self::Plan => (false, None),
            Self::Apply { why } => (true, why),
        }
    }
}

/// Lets no round of a consumer begin until [`resume`], on all workers and for `seqline.poll`, and says whether that is new. When it
/// returns, none is under way that could still commit: it waits for one that is, as long as the session's `lock_timeout` allows.
///
/// The others go on. Retention waits for it as for any other that is behind, and not for ever. Who did it and `why`, at most 1000
/// characters, are recorded in `seqline.audit_log`.
///
/// # Errors
///
/// [`OperateError`] when there is no such consumer, or the database refuses it. Nothing was changed then.
pub async fn pause(
    connection: &mut PgConnection,
    name: &ConsumerName,
    why: Option<&str>,
) -> Result<bool, OperateError> {
    Ok(store::operate::set_paused(connection, name.as_str(), true, why).await?)
}

/// Lets a paused or retired consumer go on where it stands, and says whether that is new. Workers notice within their poll interval.
///
/// # Errors
///
/// As [`pause`].
pub async fn resume(
    connection: &mut PgConnection,
    name: &ConsumerName,
    why: Option<&str>,
) -> Result<bool, OperateError> {
    Ok(store::operate::set_paused(connection, name.as_str(), false, why).await?)
}

/// Waits until a consumer has passed the event with this number, and says whether it has: so that whoever has appended it reads
/// what comes of it. At most a minute.
///
/// It holds the connection and a snapshot, and needs a transaction that sees what others commit, or none.
///
/// ```no_run
/// # async fn example(pool: sqlx::PgPool, id: uuid::Uuid) -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
///
/// use seqline::consumer::{ConsumerName, wait_for};
///
/// let mut connection = pool.acquire().await?;
/// let seq = seqline::read::seq_of(&mut connection, id).await?.ok_or("the event is not committed")?;
/// let totals = ConsumerName::new("order_totals")?;
/// if !wait_for(&mut connection, &totals, seq, Duration::from_secs(2)).await? {
///     // What is read now may be without the event.
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// [`OperateError`] when there is no such consumer, the transaction could never see it, or the database refuses it.
pub async fn wait_for(
    connection: &mut PgConnection,
    name: &ConsumerName,
    seq: i64,
    timeout: Duration,
) -> Result<bool, OperateError> {
    Ok(store::operate::wait_for(connection, name.as_str(), seq, timeout).await?)
}

/// Why something was not done to a consumer. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OperateError {
    /// It was refused, with the reason.
    #[error("{message}")]
    Refused {
        /// Which rule refused it, such as `consumer_unknown`.
        rule: String,
        /// The message of the database.
        message: String,
        /// What to do, if it said so: a sentence.
        hint: Option<String>,
    },
    /// A lane did not come to the place of the others in time.
    #[error("lane {lane} is at seq {last_seq} and did not come to seq {furthest} in time")]
    LaneBehind {
        /// Its number.
        lane: u32,
        /// The last event that it has passed.
        last_seq: i64,
        /// Where the lane is that is furthest.
        furthest: i64,
    },
    /// No event is as late as the time that was given.
    #[error("no event was appended at that time or later")]
    NothingSince,
    /// No event was appended from the one time up to the other.
    #[error("no event was appended between these times")]
    NothingBetween,
    /// What the database or the connection reported.
    #[error("database refused it: {0}")]
    Database(DatabaseError),
}

impl From<sqlx::Error> for OperateError {
    fn from(error: sqlx::Error) -> Self {
        let error = DatabaseError::from(error);
        match (error.seqline_constraint(), error.pg()) {
            (Some(rule), Some(pg)) => Self::Refused {
                rule: rule.to_owned(),
                message: pg.message().to_owned(),
                hint: pg.hint().map(str::to_owned),
            },
            _ => Self::Database(error),
        }
    }
}

impl OperateError {
    /// Whether the same may succeed later without any change.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Database(error) => error.is_retryable(),
            Self::LaneBehind { .. } => true,
            Self::Refused { .. } | Self::NothingSince | Self::NothingBetween => false,
        }
    }
}
