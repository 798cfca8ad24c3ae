//! All SQL of the command. Each function runs one statement and never begins, commits, sleeps, retries or logs.

pub(crate) mod doctor;
pub(crate) mod embedded;
pub(crate) mod horizon;
pub(crate) mod idempotency;
pub(crate) mod import;
pub(crate) mod jobs;
pub(crate) mod ledger;
pub(crate) mod metrics;
pub(crate) mod operate;
pub(crate) mod schema;
pub(crate) mod settings;
pub(crate) mod watch;
