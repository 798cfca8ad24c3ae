//! Which consumer has handled which event: a row for each, written in the transaction of the effect.
//!
//! Whoever may get an event more than once claims it first. If that is the first time, the effect follows in the same transaction; if not,
//! nothing is left to do. The row and the effect are committed together or not at all, so the effect happens once however often the event
//! comes. The insert is the check: there is no moment between a look and a write.
//!
//! ```no_run
//! use seqline::ledger::{Claim, claim};
//!
//! # async fn example(pool: sqlx::PgPool, event_id: uuid::Uuid) -> Result<(), Box<dyn std::error::Error>> {
//! let mut tx = seqline::begin(&pool).await?;
//! if claim(&mut tx, "invoices", event_id).await? == Claim::New {
//!     sqlx::query("INSERT INTO invoices (event_id) VALUES ($1)").bind(event_id).execute(&mut *tx).await?;
//! }
//! seqline::commit(tx).await?;
//! // Only now may the sender hear that the event is done with.
//! # Ok(())
//! # }
//! ```
//!
//! # What it does not do
//!
//! It covers what is in the transaction and nothing else. A request to somebody else's server cannot be rolled back: who sends one chooses
//! whether it may be sent twice or not at all.
//!
//! [Consumers of the log](crate::consumer) need no ledger, because they have a cursor. It is for those who get events from elsewhere: from a
//! stream, a queue or a webhook.

use std::time::Duration;

use sqlx::PgConnection;
use uuid::Uuid;

use crate::error::DatabaseError;
use crate::store;

/// Whether a consumer gets an event for the first time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// It does: the effect belongs into this transaction.
    New,
    /// It was handled before, and that is committed.
    Duplicate,
}

/// Claims an event for a consumer, inside the transaction of the effect.
///
/// While another transaction has claimed it and is not at its end, this waits: for a duplicate when that one commits, to be the first when it
/// rolls back. A rollback, also one to a savepoint, takes the claim back. Claims are by the id of the event, wherever it came from this time.
///
/// Outside a transaction it claims for good, and a failure after it would be an event that is never handled.
///
/// # Errors
///
/// [`DatabaseError`]: nothing is claimed.
pub async fn claim(tx: &mut PgConnection, consumer: &str, event_id: Uuid) -> Result<Claim, DatabaseError> {
    let new = store::ledger::claim_all(tx, consumer, &[event_id]).await?;
    Ok(if new.is_empty() { Claim::Duplicate } else { Claim::New })
}

/// The same for many events at once, in one statement: the ids of those that are new, in no order. An id that is given twice is new once.
///
/// # Errors
///
/// [`DatabaseError`]: nothing is claimed.
pub async fn claim_all(
    tx: &mut PgConnection,
    consumer: &str,
    event_ids: &[Uuid],
) -> Result<Vec<Uuid>, DatabaseError> {
    Ok(store::ledger::claim_all(tx, consumer, event_ids).await?)
}

/// How often a consumer has handled an event: 0 or 1, never more.
///
/// # Errors
///
/// [`DatabaseError`] when the database cannot be asked.
pub async fn times_handled(
    connection: &mut PgConnection,
    consumer: &str,
    event_id: Uuid,
) -> Result<u8, DatabaseError> {
    Ok(u8::from(store::ledger::is_claimed(connection, consumer, event_id).await?))
}

/// Removes at most `limit` claims that are older than that, by the clock of the database, and returns how many. What several processes remove
/// at the same time they divide.
///
/// An event that comes again after its claim was removed is handled again. So claims have to be kept for as long as an event can come: the
/// retention of the log, the age up to which a stream keeps messages, and a margin.
///
/// # Errors
///
/// [`DatabaseError`]: nothing was removed.
pub async fn prune(
    connection: &mut PgConnection,
    older_than: Duration,
    limit: u32,
) -> Result<u64, DatabaseError> {
    Ok(store::ledger::prune(connection, older_than, limit).await?)
}
