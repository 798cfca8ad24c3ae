//! What a consumer does with an event.

use std::error::Error;
use std::fmt;
use std::future::Future;

use futures_util::future::BoxFuture;
use seqline::envelope::Envelope;
use sqlx::{PgConnection, PgTransaction};

/// Why a handler did not handle an event. Only the fact is logged and recorded, not what it says: that can hold a payload. At debug level its
/// text is in the log.
pub type HandlerError = Box<dyn Error + Send + Sync>;

/// Handles events, one at a time.
///
/// It runs inside the transaction in which its event was claimed: what it writes through [`Context::connection`] is committed together with
/// the claim, or not at all. So each event has its effects once, with any number of processes, however often the broker delivers it and
/// whenever a process dies. It returns, and the event is handled; or it fails, and the event comes again. It cannot do anything else: not
/// acknowledge, not refuse, not see the message.
///
/// - An effect outside the database is not covered. A request to somebody else's server cannot be rolled back: whoever sends one chooses
///   whether it may be sent twice or not at all, and says so.
/// - An error, a panic and a handler that takes longer than [`handler_timeout`](super::StreamConsumerConfig::handler_timeout) are failures.
///   The event is tried again later while others go on, so events that fail are handled out of order. After
///   [`attempts`](super::StreamConsumerConfig::attempts) failures it is a [dead letter](crate::dead_letter).
/// - The same event can be handed over again without a failure, when its transaction was rolled back for another reason. Nothing that is kept in
///   memory may depend on it. A process that dies while it handles an event is no failure of that event.
/// - The transaction belongs to the consumer, and other events are in it. Savepoints are fine. A handler that ends it fails; if it committed
///   it, what it wrote until then stays, and can be written once more. The claims of events that were to follow in the transaction are committed
///   with it. The process takes them back; if it dies before, these events count as handled and never are.
///
/// ```
/// use seqline::envelope::Envelope;
/// use seqline_nats::consumer::{Context, Handler, HandlerError};
///
/// struct Invoices;
///
/// impl Handler for Invoices {
///     async fn handle(&self, event: &Envelope, context: &mut Context<'_>) -> Result<(), HandlerError> {
///         sqlx::query("INSERT INTO invoices (order_id) VALUES ($1)")
///             .bind(&event.resource.id)
///             .execute(context.connection())
///             .await?;
///         Ok(())
///     }
/// }
/// ```
pub trait Handler: Send + Sync + 'static {
    /// Handles an event. The future may be dropped at any point; the transaction is rolled back then.
    fn handle(
        &self,
        event: &Envelope,
        context: &mut Context<'_>,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send;
}

/// What a handler is given besides the event: the transaction of the claim.
pub struct Context<'t> {
    pub(super) tx: PgTransaction<'t>,
    pub(super) consumer: &'t str,
    pub(super) attempt: u32,
    pub(super) position: i64,
}

impl<'t> Context<'t> {
    /// The connection, inside the transaction of the claim.
    pub fn connection(&mut self) -> &mut PgConnection {
        &mut self.tx
    }

    /// The transaction of the claim, for [`append`](fn@seqline::append).
    pub fn transaction(&mut self) -> &mut PgTransaction<'t> {
        &mut self.tx
    }

    /// Whose handler it is.
    #[must_use]
    pub fn consumer(&self) -> &str {
        self.consumer
    }

    /// Which attempt at the event it is: 1, and one more for each failure that was recorded. For logs; what is right must not depend on it.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The number of the event in the log.
    #[must_use]
    pub fn position(&self) -> i64 {
        self.position
    }
}

impl fmt::Debug for Context<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("consumer", &self.consumer)
            .field("attempt", &self.attempt)
            .field("position", &self.position)
            .finish_non_exhaustive()
    }
}

/// A handler of any type.
pub(super) trait AnyHandler: Send + Sync {
    fn handle<'a>(
        &'a self,
        event: &'a Envelope,
        context: &'a mut Context<'_>,
    ) -> BoxFuture<'a, Result<(), HandlerError>>;
}

impl<H: Handler> AnyHandler for H {
    fn handle<'a>(
        &'a self,
        event: &'a Envelope,
        context: &'a mut Context<'_>,
    ) -> BoxFuture<'a, Result<(), HandlerError>> {
        // Calling it is inside too, so that its panics are where those of the future are.
        Box::pin(async move { Handler::handle(self, event, context).await })
    }
}
