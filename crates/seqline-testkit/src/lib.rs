//! Real servers, real faults and a checker, for tests of Seqline and of what is built on it.
//!
//! A test gets a database of its own on a real PostgreSQL, can break the network and kill the server, and at
//! the end lets a checker decide whether the log kept its promises. No test needs a database that somebody set
//! up before, and none leaves anything behind: servers and their data go when the test process ends, even
//! after a `kill -9`.
//!
//! ```no_run
//! # #[tokio::main] async fn main() {
//! use seqline_testkit::TestDb;
//!
//! let db = TestDb::new().await; // migrated, nobody else's
//! sqlx::query("CREATE TABLE orders (id bigint)").execute(&db.app()).await.unwrap();
//! # }
//! ```
//!
//! # What to use when
//!
//! | module | for |
//! |---|---|
//! | [`db`] | a database of one's own, and logins with no more rights than the product needs |
//! | [`sequencing`] | the same tests with events numbered inside COMMIT and after it |
//! | [`server`] | a server of one's own: to kill it, or to measure with production durability |
//! | [`pooler`] | a pooler in transaction mode in front of a server |
//! | [`nats`] | brokers of NATS with JetStream, alone and as a cluster: to kill, pause, start again, and to lose what they stored |
//! | [`proxy`] | a network that is slow, cut, or silent |
//! | [`history`] | record what writers did |
//! | [`mod@check`] | compare that with what a reader saw |
//! | [`consumption`] | compare what a consumer did with what it was asked for |
//! | [`mod@drain`] | let a consumer handle everything that is there |
//! | [`crash`] | kill a server again and again under writers and observers, and check what is left |
//! | [`standby`] | a synchronous standby of a server, to stop, resume and promote |
//! | [`backup`] | a base backup to restore in place or elsewhere, and a dump to load elsewhere |
//! | [`guide`] | run what a page of the guide shows |
//! | [`wait`] | wait for a condition; tests never sleep |
//! | [`mod@bench`] | thresholds and reports of benchmarks |
//!
//! # Which PostgreSQL
//!
//! The one that `SEQLINE_PG_BIN` names, else the newest that is found on this machine
//! ([`seqline::embedded::PostgresBinaries::find`]).
//!
//! # Which NATS
//!
//! The nats-server that `SEQLINE_NATS_BIN` names, else the one on the `PATH`; an older one, for what needs it, only from
//! `SEQLINE_NATS_OLD_BIN`.
//!
//! # Failures
//!
//! Whatever the kit itself cannot do (no PostgreSQL, no nats-server, a full disk) is a panic that says what to do: a test has
//! no other use for it.

pub mod db;
pub mod sequencing;
pub mod server;

pub mod nats;
pub mod pooler;
pub mod proxy;

pub mod check;
pub mod consumption;
pub mod history;

pub mod backup;
pub mod crash;
pub mod standby;

pub mod drain;
pub mod guide;
pub mod wait;

pub mod bench;

pub use backup::{Backup, Restored};
pub use check::{Summary, Violation, check};
pub use db::{Role, TestDb};
pub use drain::drain;
pub use history::{Attempt, History, Outcome, Record};
pub use nats::{NatsCluster, NatsOptions, NatsServer};
pub use pooler::Pooler;
pub use proxy::FaultProxy;
pub use sequencing::{settled, settled_behind};
pub use server::TestServer;
pub use standby::Standby;
pub use wait::eventually;
