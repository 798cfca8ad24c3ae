//! How a database numbers events, who tells listeners, and whether it takes events at all: settings of the database, the same for every process
//! and language.
//!
//! They are changed while writers go on. A change is recorded in `seqline.audit_log`.

mod maintenance;

use std::fmt;
use std::str::FromStr;

use sqlx::PgConnection;

use crate::error::DatabaseError;
use crate::limits::{STAGING_CLOSE_PAUSE, STAGING_CLOSE_WAIT};
use crate::{deadline, sequencer, store};

pub use self::maintenance::{MaintenanceChange, MaintenanceMode, set_maintenance};

/// When events get their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sequencing {
    /// Inside COMMIT: once it has returned they are in the log. Appends need READ COMMITTED.
    AtCommit,
    /// Some milliseconds after it, by the [`sequencer`] of a server process: writers share nothing, and any isolation
    /// level and PREPARE TRANSACTION work.
    AfterCommit,
}

/// What tells listeners that there are new events. Without it they poll.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notification {
    /// The transaction that numbers them, or when several [`commit`](crate::commit()) of a process are under way the one that flushes for
    /// all, afterwards (while the server has `max_prepared_transactions = 0`). PostgreSQL lets only one transaction that notifies commit at a time, and fails it when the queue of notifications is
    /// full.
    InTransaction,
    /// [`commit`](crate::commit()) or the sequencer, afterwards; other writers call `seqline.wake()`. Never fails an append.
    AfterCommit,
    /// Nobody.
    Off,
}

impl Sequencing {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::AtCommit, Self::AfterCommit];

    /// Its name in the database and in commands.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AtCommit => "at_commit",
            Self::AfterCommit => "after_commit",
        }
    }
}

impl Notification {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::InTransaction, Self::AfterCommit, Self::Off];

    /// Its name in the database and in commands.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InTransaction => "in_transaction",
            Self::AfterCommit => "after_commit",
            Self::Off => "off",
        }
    }
}

/// A text that is not one of the values.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected one of {expected}")]
pub struct UnknownValue {
    expected: String,
}

impl FromStr for Sequencing {
    type Err = UnknownValue;

    fn from_str(text: &str) -> Result<Self, UnknownValue> {
        one_of(&Self::ALL, Self::as_str, text)
    }
}

impl FromStr for Notification {
    type Err = UnknownValue;

    fn from_str(text: &str) -> Result<Self, UnknownValue> {
        one_of(&Self::ALL, Self::as_str, text)
    }
}

fn one_of<T: Copy>(all: &[T], name: fn(T) -> &'static str, text: &str) -> Result<T, UnknownValue> {
    all.iter().copied().find(|value| name(*value) == text).ok_or_else(|| UnknownValue {
        expected: all.iter().map(|value| name(*value)).collect::<Vec<_>>().join(", "),
    })
}

impl fmt::Display for Sequencing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Display for Notification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The settings of a database.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// When events get their numbers.
    pub sequencing: Sequencing,
    /// Whether events can still wait for the sequencer: a change to [`Sequencing::AtCommit`] is not complete.
    pub staging_open: bool,
    /// What tells listeners.
    pub notification: Notification,
    /// Appends are refused when so many transactions wait for the sequencer.
    pub staged_transactions_max: i64,
    /// Whether the log takes events.
    pub maintenance: MaintenanceMode,
}

impl Settings {
    /// Whether no event can wait for the sequencer.
    #[must_use]
    pub fn is_at_commit_only(&self) -> bool {
        self.sequencing == Sequencing::AtCommit && !self.staging_open
    }
}

/// Reads them.
///
/// # Errors
///
/// [`DatabaseError`] when the database cannot be asked, or has a value that this version does not know.
pub async fn settings(connection: &mut PgConnection) -> Result<Settings, DatabaseError> {
    let stored = store::settings::numbering(connection).await?;
    let unknown = |error: UnknownValue| DatabaseError::from(sqlx::Error::Decode(Box::new(error)));
    Ok(Settings {
        sequencing: stored.sequencing.parse().map_err(unknown)?,
        staging_open: stored.staging_open,
        notification: stored.notification.parse().map_err(unknown)?,
        staged_transactions_max: stored.staged_transactions_max,
        maintenance: stored.maintenance.parse().map_err(unknown)?,
    })
}

/// What a change of [`Sequencing`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct SequencingChange {
    /// Whether it was another value before.
    pub changed: bool,
    /// Events that waited and were numbered on the way.
    pub drained: u64,
    /// Whether nothing can wait any more. False after a change to [`Sequencing::AtCommit`] while transactions that stage are open,
    /// prepared ones too: commits look for what these leave until the sequencer finds that they have ended.
    pub complete: bool,
}

/// Changes when events get their numbers, for transactions that come to their COMMIT from now on; open ones go on. The order of events is
/// that of commits across the change.
///
/// A change to [`Sequencing::AtCommit`] numbers what waits, in batches, before and after it. Not inside a transaction. Cancel safe: called
/// again, it goes on.
///
/// # Errors
///
/// [`DatabaseError`] when the database refuses it, or the numbering lock is not to be had in time.
pub async fn set_sequencing(
    connection: &mut PgConnection,
    sequencing: Sequencing,
    why: Option<&str>,
) -> Result<SequencingChange, DatabaseError> {
    let mut drained = 0;
    if sequencing == Sequencing::AtCommit {
        // The first commit after the change numbers what is left, with the lock in hand.
        drained = sequencer::drain(connection).await?;
    }
    let changed = store::settings::set_sequencing(connection, sequencing.as_str(), why).await?;
    let mut complete = true;
    if sequencing == Sequencing::AtCommit {
        let waiting = deadline::Stopwatch::start();
        loop {
            drained += sequencer::drain(connection).await?;
            complete = store::sequencer::close_staging(connection).await?;
            if complete || waiting.elapsed() >= STAGING_CLOSE_WAIT {
                break;
            }
            crate::Clock::system().sleep(STAGING_CLOSE_PAUSE).await;
        }
    }
    Ok(SequencingChange { changed, drained, complete })
}

/// Changes what tells listeners, and says whether it was something else before.
///
/// # Errors
///
/// [`DatabaseError`] when the database refuses it.
pub async fn set_notification(
    connection: &mut PgConnection,
    notification: Notification,
    why: Option<&str>,
) -> Result<bool, DatabaseError> {
    Ok(store::settings::set_notification(connection, notification.as_str(), why).await?)
}

/// Changes how many transactions may wait for the sequencer before appends are refused, from the next append on, and says whether it
/// was another number before.
///
/// # Errors
///
/// [`DatabaseError`] when the database refuses it: it is 1 to 1,000,000,000.
pub async fn set_staged_transactions_max(
    connection: &mut PgConnection,
    max: i64,
    why: Option<&str>,
) -> Result<bool, DatabaseError> {
    Ok(store::settings::set_staged_transactions_max(connection, max, why).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_others_are_told_what_there_is() {
        for value in Sequencing::ALL {
            assert_eq!(value.to_string().parse(), Ok(value));
        }
        for value in MaintenanceMode::ALL {
            assert_eq!(value.to_string().parse(), Ok(value));
        }
        for value in Notification::ALL {
            assert_eq!(value.to_string().parse(), Ok(value));
        }
        let error = "sometimes".parse::<Sequencing>().unwrap_err();
        assert_eq!(error.to_string(), "expected one of at_commit, after_commit");
        let error = "".parse::<Notification>().unwrap_err();
        assert_eq!(error.to_string(), "expected one of in_transaction, after_commit, off");
    }
}
