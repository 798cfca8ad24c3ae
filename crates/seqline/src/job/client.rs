//! The client of an application that uses the crate `riverqueue`.

use riverqueue::{Client, InsertOpts, InsertResult, JobArgs as RiverArgs};
use sqlx::PgTransaction;

use super::args::{JobArgs, is_name};
use super::error::{InvalidJob, JobError};
use super::new_job::JobOrigin;
use super::river::{TRACEPARENT, metadata_of};
use crate::event::StoredEvent;
use crate::trace;

/// Inserts jobs through the application's own client of the crate `riverqueue`, so that its types, defaults, hooks and middleware
/// apply.
///
/// Kinds and arguments are those of the application's types, so a worker of the same program cannot disagree with what is inserted. The
/// client writes one statement for each job; for many jobs an event, and for kinds that are known at run time only, there is
/// [`River`](super::River).
///
/// ```no_run
/// use riverqueue::{InsertOpts, JobArgs};
/// use seqline::StoredEvent;
/// use seqline::consumer::{Handler, HandlerError, Round};
/// use seqline::job::RiverClient;
///
/// #[derive(JobArgs, serde::Serialize, serde::Deserialize)]
/// #[river(kind = "invoice.send")]
/// struct SendInvoice {
///     order_id: String,
/// }
///
/// struct Invoices {
///     river: RiverClient,
/// }
///
/// impl Handler for Invoices {
///     async fn handle(&self, event: &StoredEvent, round: &mut Round<'_>) -> Result<(), HandlerError> {
///         if let ("order.paid", Some(order_id)) = (event.event_type.as_str(), event.resource_id.clone()) {
///             let args = SendInvoice { order_id };
///             self.river.insert(round.transaction(), event, args, InsertOpts::default()).await?;
///         }
///         Ok(())
///     }
/// }
/// ```
#[derive(Debug, Clone)]
pub struct RiverClient(Client);

impl RiverClient {
    /// Over this client.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self(client)
    }

    /// Inserts a job for an event in the transaction: it is there when that is committed, and never was when it is rolled back.
    /// The number, id and correlation id of the event are added to its metadata, and with the feature `opentelemetry` the `traceparent` of the
    /// current span, if that and the request that appended the event are recorded, and the metadata has none.
    ///
    /// The version of River's schema is the client's affair, and so is how many jobs an event gets.
    ///
    /// Not cancel safe: after a dropped future the transaction has to be rolled back.
    ///
    /// # Errors
    ///
    /// [`JobError::Invalid`] when the arguments hold anything but whole numbers and ids, [`JobError::Database`] with what the
    /// database reported, and [`JobError::Client`] with anything else that the client said.
    pub async fn insert<A: RiverArgs>(
        &self,
        tx: &mut PgTransaction<'_>,
        event: &StoredEvent,
        args: A,
        opts: InsertOpts,
    ) -> Result<InsertResult<A>, JobError> {
        let value = serde_json::to_value(&args).map_err(|error| JobError::Client(error.into()))?;
        ids_only(value)?.check()?;
        let mut metadata = opts.metadata().cloned().unwrap_or_default();
        // Whoever has a trace of their own goes on with that.
        let traceparent =
            (!metadata.contains_key(TRACEPARENT)).then(|| trace::traceparent_for(event)).flatten();
        for (key, value) in metadata_of(JobOrigin::of(event), traceparent.as_deref()) {
            metadata.insert(&key, value).map_err(|error| JobError::Client(error.into()))?;
        }
        let inserting = self.0.insert(args).opts(opts.with_metadata(metadata)).tx(tx);
        inserting.await.map_err(|error| match error {
            // What the database said, and not what the client made of a row that is written by then.
            riverqueue::Error::Database(error) if is_from_the_database(&error) => error.into(),
            error => JobError::Client(error.into()),
        })
    }
}

fn is_from_the_database(error: &sqlx::Error) -> bool {
    matches!(
        error,
        sqlx::Error::Database(_) | sqlx::Error::Io(_) | sqlx::Error::Protocol(_) | sqlx::Error::WorkerCrashed
    )
}

/// The arguments of a type of the application, if they are what the arguments of a job may be.
fn ids_only(args: serde_json::Value) -> Result<JobArgs, InvalidJob> {
    use serde_json::Value;

    let Value::Object(members) = args else { return Err(InvalidJob::NoObject) };
    let mut ids = JobArgs::new();
    for (name, value) in members {
        if !is_name(&name) {
            return Err(InvalidJob::ArgumentName);
        }
        ids = match value {
            Value::String(id) => ids.with(name, id),
            Value::Number(number) => match number.as_i64() {
                Some(number) => ids.with(name, number),
                None => return Err(InvalidJob::ArgumentType(name)),
            },
            _ => return Err(InvalidJob::ArgumentType(name)),
        };
    }
    Ok(ids)
}
