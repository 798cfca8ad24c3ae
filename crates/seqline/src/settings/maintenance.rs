//! Whether the log takes events. While it is read only for maintenance every append is refused, and reading, consumers, retention and
//! jobs go on.

use std::fmt;
use std::str::FromStr;

use sqlx::PgConnection;

use super::{Sequencing, UnknownValue, one_of, settings};
use crate::deadline::Stopwatch;
use crate::durable::DurableHead;
use crate::error::DatabaseError;
use crate::limits::{READ_ONLY_WAIT, STAGING_CLOSE_PAUSE};
use crate::{clock, read, sequencer, store};

/// Whether the log takes events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MaintenanceMode {
    /// It does, as ever.
    Off,
    /// Every append is refused with [`AppendError::ReadOnly`](crate::AppendError::ReadOnly), in every language. All else goes on.
    ReadOnly,
}

impl MaintenanceMode {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Off, Self::ReadOnly];

    /// Its name in the database and in commands.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::ReadOnly => "read_only",
        }
    }
}

impl FromStr for MaintenanceMode {
    type Err = UnknownValue;

    fn from_str(text: &str) -> Result<Self, UnknownValue> {
        one_of(&Self::ALL, Self::as_str, text)
    }
}

impl fmt::Display for MaintenanceMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// What a change of [`MaintenanceMode`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct MaintenanceChange {
    /// Whether it was another value before.
    pub changed: bool,
    /// Events that waited and were numbered on the way.
    pub drained: u64,
    /// With [`MaintenanceMode::ReadOnly`]: whether the head does not move any more. False when a transaction that had appended before was
    /// still open after [`READ_ONLY_WAIT`]: what it has appended is numbered when it ends. Called again, it waits again.
    pub complete: bool,
    /// The highest number of the log, which is durable.
    pub head: i64,
}

/// Makes the log read only for maintenance, or ends that.
///
/// From [`MaintenanceMode::ReadOnly`] on every append is refused, also one more of a transaction that has appended before. What was
/// appended before is numbered when its transaction commits. That is waited for, for at most [`READ_ONLY_WAIT`], and what waits for the
/// sequencer is numbered. When the change is [complete](MaintenanceChange::complete) the log has its last event.
///
/// A REPEATABLE READ or SERIALIZABLE transaction with a snapshot from before does not see the change (they can append with numbering after
/// commit only). It is refused at its COMMIT then, with SQLSTATE 40001.
///
/// Not inside a transaction. Cancel safe: called again, it goes on.
///
/// # Errors
///
/// [`DatabaseError`] when the database refuses it, or the numbering lock is not to be had in time. The setting may have been changed
/// then.
pub async fn set_maintenance(
    connection: &mut PgConnection,
    mode: MaintenanceMode,
    why: Option<&str>,
) -> Result<MaintenanceChange, DatabaseError> {
    let changed = store::settings::set_maintenance(connection, mode.as_str(), why).await?;
    let (mut complete, mut drained) = (true, 0);
    if mode == MaintenanceMode::ReadOnly {
        let waiting = Stopwatch::start();
        complete = have_ended(connection, &waiting).await?;
        if complete {
            // From here on nothing is staged by a snapshot from before. What was a moment ago is waited for.
            store::settings::refuse_older_snapshots(connection).await?;
            complete = have_ended(connection, &waiting).await?;
        }
        drained = sequencer::drain(connection).await?;
        if settings(connection).await?.sequencing == Sequencing::AtCommit {
            complete &= store::sequencer::close_staging(connection).await?;
        }
    }
    let head = read::head(connection).await?;
    DurableHead::default().wait_for(connection, head).await?;
    Ok(MaintenanceChange { changed, drained, complete, head })
}

/// Whether those who have appended and are open now have ended within the time that is left. Others who come later are refused, so they
/// are not waited for.
async fn have_ended(connection: &mut PgConnection, waiting: &Stopwatch) -> Result<bool, DatabaseError> {
    let mut open = store::settings::open_transactions(connection).await?;
    while !open.is_empty() {
        if waiting.elapsed() >= READ_ONLY_WAIT {
            return Ok(false);
        }
        clock::Clock::system().sleep(STAGING_CLOSE_PAUSE).await;
        let still = store::settings::open_transactions(connection).await?;
        open.retain(|transaction| still.contains(transaction));
    }
    Ok(true)
}
