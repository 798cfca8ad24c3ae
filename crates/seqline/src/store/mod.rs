//! All SQL of the library outside `migrations/`.
//!
//! Each function runs one statement on a connection that the caller gives it. None begins, commits, sleeps, retries
//! or logs.

pub(crate) mod access;
pub(crate) mod agents;
pub(crate) mod append;
pub(crate) mod audit;
pub(crate) mod commit;
pub(crate) mod connection;
pub(crate) mod consumer_views;
pub(crate) mod consumers;
pub(crate) mod durable;
pub(crate) mod identity;
pub(crate) mod jobs;
pub(crate) mod ledger;
pub(crate) mod listen;
pub(crate) mod migrations;
pub(crate) mod operate;
pub(crate) mod parking;
pub(crate) mod partitions;
pub(crate) mod read;
pub(crate) mod redact;
pub(crate) mod river;
pub(crate) mod schema;
pub(crate) mod sequencer;
pub(crate) mod settings;
pub(crate) mod tasks;
