//! What a consumer does with an event.

use std::error::Error;
use std::fmt;
use std::future::Future;

use futures_util::future::BoxFuture;
use sqlx::{PgConnection, PgTransaction};
use tracing::Span;

use super::jobs::RoundJobs;
use super::name::ConsumerName;
use crate::event::StoredEvent;

/// Why a handler did not handle an event. Only the fact is logged and recorded, not what it says: that can hold a payload.
/// At debug level its text is in the log. The sentence of a [`JobError`](crate::job::JobError) holds none, and is logged.
pub type HandlerError = Box<dyn Error + Send + Sync>;

/// Handles events, one at a time, in the order of the log.
///
/// It runs inside the transaction of the round: what it writes through [`Round::connection`] is committed together with
/// the cursor, or not at all. So each event has its effects exactly once, with any number of workers, and after a crash
/// at any moment. That holds for what is in the transaction and for nothing else: whatever must happen elsewhere is handed
/// on as a row that something else picks up.
///
/// - An error rolls the whole round back. The event comes again; later events wait, unless the consumer
///   [parks](super::FailurePolicy::Park). So does a panic, and a handler that
///   takes longer than [`event_timeout`](super::ConsumerConfig::event_timeout).
/// - The same event can be handed over again, also without an error in sight, when a round was rolled back for another
///   reason. Nothing that is kept in memory may depend on it.
/// - The transaction belongs to the round. Savepoints are fine; a handler that ends the transaction, or goes on after a
///   statement in it has failed, fails the round.
/// - It appends no events, unless the consumer was declared with [`Consumer::may_append`](super::Consumer::may_append).
///
/// ```
/// use seqline::StoredEvent;
/// use seqline::consumer::{Handler, HandlerError, Round};
///
/// struct Invoices;
///
/// impl Handler for Invoices {
///     async fn handle(&self, event: &StoredEvent, round: &mut Round<'_>) -> Result<(), HandlerError> {
///         if event.event_type == "order.paid" {
///             sqlx::query("INSERT INTO invoices (order_id) VALUES ($1)")
///                 .bind(&event.resource_id)
///                 .execute(round.connection())
///                 .await?;
///         }
///         Ok(())
///     }
/// }
/// ```
pub trait Handler: Send + Sync + 'static {
    /// Handles the next event. The future may be dropped at any point; the round is rolled back then.
    fn handle(
        &self,
        event: &StoredEvent,
        round: &mut Round<'_>,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send;
}

/// What a handler is given besides the event: the transaction of the round.
pub struct Round<'t> {
    pub(super) tx: PgTransaction<'t>,
    pub(super) consumer: &'t ConsumerName,
    pub(super) lane: u32,
    pub(super) jobs: RoundJobs<'t>,
    /// Of the trace, once there is something to do.
    pub(super) span: Span,
}

impl<'t> Round<'t> {
    /// The connection, inside the transaction of the round.
    pub fn connection(&mut self) -> &mut PgConnection {
        &mut self.tx
    }

    /// The transaction of the round, for [`append`](fn@crate::append) by consumers that may.
    pub fn transaction(&mut self) -> &mut PgTransaction<'t> {
        &mut self.tx
    }

    /// The jobs of the round.
    pub fn jobs(&mut self) -> &mut RoundJobs<'t> {
        &mut self.jobs
    }

    /// Whose round it is.
    #[must_use]
    pub fn consumer(&self) -> &ConsumerName {
        self.consumer
    }

    /// In which lane it is, from 0.
    #[must_use]
    pub fn lane(&self) -> u32 {
        self.lane
    }
}

impl fmt::Debug for Round<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Round").field("consumer", &self.consumer).finish_non_exhaustive()
    }
}

/// A handler of any type.
pub(super) trait AnyHandler: Send + Sync {
    fn handle<'a>(
        &'a self,
        event: &'a StoredEvent,
        round: &'a mut Round<'_>,
    ) -> BoxFuture<'a, Result<(), HandlerError>>;
}

impl<H: Handler> AnyHandler for H {
    fn handle<'a>(
        &'a self,
        event: &'a StoredEvent,
        round: &'a mut Round<'_>,
    ) -> BoxFuture<'a, Result<(), HandlerError>> {
        // Calling it is inside too, so that its panics are where those of the future are.
        Box::pin(async move { Handler::handle(self, event, round).await })
    }
}
