//! A durable, gapless, commit-ordered event log inside your PostgreSQL database.
//!
//! An application appends events in the same transaction as its own rows. If that transaction commits, its
//! events are in the log and have the next numbers of one sequence without holes; if it does not, they
//! never were. Whoever sees number `k` sees every smaller number that retention has kept.
//!
//! ```no_run
//! use seqline::{NewEvent, Payload};
//!
//! # async fn example(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
//! let mut tx = seqline::begin(&pool).await?;
//! sqlx::query("UPDATE orders SET paid = true WHERE id = $1").bind(17_i64).execute(&mut *tx).await?;
//! let event = NewEvent::builder("order.paid", "order", "any")
//!     .resource_id("17")
//!     .payload(Payload::from_json(r#"{"amount": 1250}"#)?)
//!     .build()?;
//! seqline::append(&mut tx, &[event]).await?;
//! seqline::commit(tx).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Modules in reading order
//!
//! | module | what it does |
//! |---|---|
//! | [`event`] | an event before ([`NewEvent`]) and after ([`StoredEvent`]) it has its number |
//! | [`payload`] | JSON that the log accepts |
//! | [`append`](mod@append) | the one way in: [`begin`], [`append`](fn@append) |
//! | [`commit`](mod@commit) | the end of a transaction, where its events are numbered and made durable |
//! | [`read`] | pages of the log, its two ends, and what somebody may see of them |
//! | [`access`] | principals, tokens and grants: who may do and see what |
//! | [`redact`] | take out of the log what an event said |
//! | [`envelope`] | the one JSON form in which an event leaves |
//! | [`durable`] | how far the log may be handed out |
//! | [`identity`] | whether this is the server and the history that the numbers belong to |
//! | [`tail`] | follow the log and hand it to sinks |
//! | [`consumer`] | handle every event exactly once, in your database |
//! | [`ledger`] | handle an event once that comes more than once, from elsewhere |
//! | [`audit`] | who did what to it, and why |
//! | [`job`] | hand work to a job queue, in the same transaction |
//! | [`maintenance`] | partitions and retention |
//! | [`sequencer`] | numbering after commit |
//! | [`settings`] | how the database numbers, who tells listeners, and whether it takes events |
//! | [`pool`] | connections that lead to a server that takes writes |
//! | [`mod@migrate`] | the schema and its versions |
//! | [`status`] | what an operator wants to know about a log |
//! | `embedded` | a private PostgreSQL server (feature `embedded`) |
//!
//! # Features
//!
//! `opentelemetry`: an append takes its correlation id and trace context from the current `tracing` span; rounds, and events in them whose
//! request was recorded, have spans, and their jobs carry the trace on.
//! `embedded`: run a private PostgreSQL server from binaries on this machine.
//! `riverqueue`: insert jobs through a client of the crate of this name that the application holds.

pub mod limits;

pub mod event;
pub mod payload;

pub mod access;
pub mod agent;
pub mod append;
pub mod audit;
pub mod commit;
pub mod consumer;
pub mod durable;
pub mod envelope;
pub mod identity;
pub mod job;
pub mod ledger;
pub mod maintenance;
pub mod migrate;
pub mod pool;
pub mod read;
pub mod redact;
pub mod sequencer;
pub mod settings;
pub mod status;
pub mod tail;

pub mod clock;
#[cfg(feature = "embedded")]
pub mod embedded;
pub mod error;

mod backoff;
mod deadline;
mod listen;
mod store;
mod trace;

pub use append::{append, begin};
pub use clock::Clock;
pub use commit::{Committer, commit};
pub use durable::DurableHead;
pub use error::{AppendError, CommitError, DatabaseError, ErrorKind, ReadError};
pub use event::{Actor, InvalidEvent, NewEvent, Rule, StoredEvent};
pub use payload::Payload;
