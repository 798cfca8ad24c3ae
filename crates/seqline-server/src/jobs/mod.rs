//! The server's own jobs: what has to be done now and then, once over all workers, and again when it fails.
//!
//! River keeps them in a schema of the same database, and so they outlive every process: a job whose worker dies is given to
//! another, one that fails is tried again with growing pauses, one that was given up stays to be looked at. A job that is due
//! once per interval is a row that is unique for that interval, so neither the number of workers nor a change of the leader
//! makes a second run.
//!
//! [`registry`] says which kinds there are and what each does, [`runtime`] runs them, [`schema`] brings River's tables up to
//! date. A new kind is an entry of the registry and touches nothing else. What a job is about is in its arguments as ids and
//! numbers: rows of River are seen by whoever operates the server, who is not to see payloads.

pub mod maintenance;
pub mod registry;
pub mod retry;
pub mod runtime;
pub mod schema;

pub(crate) mod ledger;
mod trace;
