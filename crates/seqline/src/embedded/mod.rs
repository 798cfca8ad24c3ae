//! A private PostgreSQL server, run from binaries that are already on this machine.
//!
//! What it promises: the server answers on the loopback interface only and only with its password; its data
//! folder is never deleted unless the caller asked for that; a first start that was killed leaves nothing half
//! done; and the server never outlives the process that started it, however that process ends.
//!
//! `seqline up` keeps its log in such a server, and tests use one each. It is not a way to run a database in
//! production: it has no backups, no replication and no upgrade from one major version to the next.
//!
//! ```no_run
//! # async fn run() -> Result<(), seqline::embedded::EmbeddedError> {
//! use seqline::embedded::{PostgresBinaries, PostgresServer, ServerConfig};
//!
//! let binaries = PostgresBinaries::find(None)?;
//! let mut server = PostgresServer::start(ServerConfig::new(binaries, "./data")).await?;
//! println!("PostgreSQL {} on port {}", server.version(), server.port());
//! server.stop().await?;
//! # Ok(())
//! # }
//! ```
//!
//! The data folder holds everything: `pgdata/` (the cluster), `postgres.log`, `seqline.password` (of the
//! superuser `postgres`) and `socket/`.
//!
//! PostgreSQL refuses to run as root. Started by root it runs as the owner of the data folder, or, when root
//! owns that, as `postgres` or `nobody`, who then becomes the owner.

mod error;
mod server;

mod account;
mod binaries;
mod folder;
mod initdb;
mod install;
mod launch;
mod ports;
mod processes;
mod startup_log;
mod waiting;

pub use self::binaries::{OLDEST_MAJOR, PostgresBinaries};
pub use self::error::EmbeddedError;
pub use self::server::{Durability, PostgresServer, ServerConfig};
