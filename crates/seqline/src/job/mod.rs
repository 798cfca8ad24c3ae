//! Hand work to a job queue, in the transaction that makes it necessary.
//!
//! A job that is a row of the same database is there exactly when its transaction is committed. A consumer that inserts one for an
//! event therefore inserts it exactly once, whatever is killed when: the jobs of a round are committed together with its
//! cursor, or not at all.
//!
//! ```no_run
//! use seqline::StoredEvent;
//! use seqline::consumer::{Consumer, ConsumerName, Handler, HandlerError, Round};
//! use seqline::job::{JobArgs, NewJob, River};
//!
//! struct Invoices;
//!
//! impl Handler for Invoices {
//!     async fn handle(&self, event: &StoredEvent, round: &mut Round<'_>) -> Result<(), HandlerError> {
//!         if let ("order.paid", Some(order)) = (event.event_type.as_str(), &event.resource_id) {
//!             let args = JobArgs::new().with("order_id", order);
//!             round.jobs().insert(NewJob { queue: "mail".into(), ..NewJob::new("invoice.send", args) })?;
//!         }
//!         Ok(())
//!     }
//! }
//!
//! # fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let invoices = Consumer::new(ConsumerName::new("invoices")?, Invoices).jobs(River::in_schema("public"));
//! # drop(invoices);
//! # Ok(())
//! # }
//! ```
//!
//! # What to know
//!
//! - The job is created exactly once. It is *run* at least once: a worker can do its work and die before it has said so, and then
//!   another does it again. Work that must not happen twice is made idempotent, or is recognised by its receiver, for which
//!   the id of the event is a good key.
//! - A job carries ids, not data ([`JobArgs`]). It carries the number, the id and the correlation id of its event, so that it can be
//!   traced back.
//! - Where jobs go is a [`JobSink`]: [`River`], or [`SqlSink`] for any other queue in PostgreSQL. An application that holds a client
//!   of the crate `riverqueue` can use that (`RiverClient`, feature `riverqueue`).

mod args;
#[cfg(feature = "riverqueue")]
mod client;
mod error;
mod new_job;
mod river;
mod sink;
mod sql;
mod unique;

pub use args::{JobArg, JobArgs};
#[cfg(feature = "riverqueue")]
pub use client::RiverClient;
pub use error::{InvalidJob, JobError};
pub use new_job::{Job, JobOrigin, NewJob, Unique, UniqueUntil};
pub use river::River;
pub(crate) use sink::AnyJobSink;
pub use sink::{DuplicateJob, InsertedJobs, JobSink, SinkHealth};
pub use sql::SqlSink;
