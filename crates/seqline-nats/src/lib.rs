//! Seqline's log in NATS JetStream.
//!
//! When one machine, or one language, is not enough for those who handle events, the log is copied into a JetStream stream and consumers run
//! wherever they like. Two things are hard about that, and both are here:
//!
//! - The [`relay`] copies the log into the stream so that each event is in it exactly once and in order, whatever happens to the broker, the
//!   network, the database or the relay. It needs no outbox: the log is one.
//! - The [`consumer`] runtime hands messages to a handler inside a database transaction in which the event is claimed. A broker delivers at
//!   least once; the effect happens once. A handler cannot acknowledge, refuse or deduplicate: it does its work or fails.
//!
//! # Modules in reading order
//!
//! | module | what it does |
//! |---|---|
//! | [`subject`] | the one place that knows what subjects look like |
//! | [`message`] | an event as a message: headers and envelope, both ways |
//! | [`broker`] | the connection: lazily opened, and opened again |
//! | [`stream`] | the stream as it should be, without harm to one that is there |
//! | [`relay`] | the log into the stream |
//! | [`consumer`] | the stream into a handler |
//! | [`report`] | what the broker says of the stream and its consumers |
//! | [`dead_letter`] | what was given up: list, try again, forget |
//! | [`retire`] | consumers that are out of use |
//!
//! # Servers
//!
//! nats-server 2.10 and newer. 2.9 works as a single node.

pub mod broker;
pub mod consumer;
pub mod dead_letter;
pub mod message;
pub mod relay;
pub mod report;
pub mod retire;
pub mod stream;
pub mod subject;

mod limits;
mod refusal;
mod store;

pub use seqline::Clock;
pub use seqline::envelope::Envelope;
