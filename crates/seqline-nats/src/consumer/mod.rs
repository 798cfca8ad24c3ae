//! The stream into a handler: each event has its effects once.
//!
//! A broker delivers at least once, in any order after a failure, and forgets. So an event is claimed in the database before it is handled, in
//! the transaction of its effect, and the broker is told afterwards. Whatever happens in between, the event comes again and is recognised.
//!
//! ```no_run
//! use seqline_nats::broker::{Broker, BrokerConfig};
//! use seqline_nats::consumer::{Recorder, Runtime, StreamConsumer, StreamConsumerConfig};
//! use seqline_nats::stream::StreamSettings;
//!
//! # async fn example(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
//! let stop = tokio_util::sync::CancellationToken::new();
//! let broker = Broker::new(BrokerConfig::new("nats://broker.example.com:4222"));
//! let consumer = StreamConsumer::new("orders", Recorder)?.types(["order.*"])?;
//! let (stream, config) = (StreamSettings::default(), StreamConsumerConfig::default());
//! Runtime::new(pool, broker, stream, consumer, config, seqline::Clock::system()).run(stop).await;
//! # Ok(())
//! # }
//! ```
//!
//! # What to know
//!
//! - Events that fail are tried again from the database, where they hold up nobody, and are [dead letters](crate::dead_letter) in the end.
//! - What cannot be read is a dead letter at once. It is written before the broker is told.
//! - While the database is away nothing is fetched and nothing is given back: what is in hand stays in hand.
//! - What the broker dropped before it was delivered, at a bound of the stream or by somebody's hand, is found by comparing the log with what was
//!   handled, and is handled from the log.
//! - Order is that of the log as long as nothing fails and one process runs. Whoever needs more looks at versions of resources.
//! - It needs the rights of `seqline_consumer` and `seqline_reader`, and those of its handler.
//!
//! # Modules
//!
//! `decide` says what a message is and what becomes of it, `filters` what the broker is asked for, and neither does anything; `pull` fetches, `hand`
//! keeps, `effects` is the transaction, `retry` and `reconcile` handle what the broker forgot, `durable` and `place` are about the consumer at the
//! broker and in the database, `say` writes the log, `shared` is what passes share, and `runtime`
//! holds them together.

mod config;
mod decide;
mod definition;
pub(crate) mod durable;
mod effects;
mod error;
mod filters;
mod hand;
mod handler;
mod pace;
mod place;
mod pull;
mod reconcile;
mod recorder;
mod retry;
mod runtime;
mod say;
mod shared;
mod tally;

pub use config::StreamConsumerConfig;
pub use definition::{InvalidConsumer, StartAt, StreamConsumer};
pub use error::PassError;
pub use handler::{Context, Handler, HandlerError};
pub use recorder::Recorder;
pub use runtime::Runtime;
pub use tally::{ConsumerTally, Pass};
