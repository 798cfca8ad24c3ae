//! PostgreSQL servers for tests: one that all tests of a process share, and servers of one's own.
//!
//! Their data lies in a temporary folder, in memory where it need not last, and is removed when the server is dropped or the
//! process ends, however it ends. Nothing in here is bound to the runtime of the test that happened to start the server.

use std::future::Future;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use nix::sys::statvfs::statvfs;
use seqline::embedded::{Durability, PostgresBinaries, PostgresServer, ServerConfig};
use sqlx::Connection;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use tempfile::TempDir;
use tokio::sync::{Mutex, OnceCell};
use uuid::Uuid;

use crate::pooler::Pooler;

/// What test servers run with, besides their durability.
pub(crate) const SETTINGS: [(&str, &str); 6] = [
    // Tests of one process run at the same time, each with a few pools.
    ("max_connections", "300"),
    ("max_prepared_transactions", "20"),
    ("max_locks_per_transaction", "128"),
    ("log_min_messages", "warning"),
    ("log_checkpoints", "off"),
    ("log_autovacuum_min_duration", "-1"),
];

/// Where files lie in memory. Each test has a database of hundreds of small files, made and removed again: on a disk that is a quarter of all
/// that the processors do, and next to nothing here.
const MEMORY: &str = "/dev/shm";

/// Bytes that have to be free there, several times what a whole run needs at once: full memory is worse than a slow disk.
const MEMORY_FREE_MIN: u64 = 8 * 1024 * 1024 * 1024;

static SHARED: OnceCell<TestServer> = OnceCell::const_new();

/// A PostgreSQL server that is gone, with its data, when it is dropped.
#[derive(Debug)]
pub struct TestServer {
    postgres: PostgresServer,
    /// Of the logins that have no more rights than the product needs.
    pub(crate) login_password: String,
    pub(crate) logins: OnceCell<()>,
    pub(crate) template: OnceCell<()>,
    pub(crate) pooler: OnceCell<Arc<Pooler>>,
    /// How databases are copied: behind `CREATE DATABASE .. TEMPLATE ..`.
    pub(crate) copy_strategy: &'static str,
    /// A template cannot be copied twice at the same time.
    pub(crate) copying: Mutex<()>,
}

impl TestServer {
    /// The server that all tests of this process share, without durability. Started by the first that asks.
    ///
    /// # Panics
    ///
    /// If no server can be started; says what to do.
    pub async fn shared() -> &'static TestServer {
        SHARED.get_or_init(TestServer::fast).await
    }

    /// A server of one's own, without durability.
    ///
    /// # Panics
    ///
    /// As [`shared`](Self::shared).
    pub async fn fast() -> TestServer {
        TestServer::with(Durability::Fast, &[]).await
    }

    /// A server of one's own with the durability of production: for crashes and measurements.
    ///
    /// # Panics
    ///
    /// As [`shared`](Self::shared).
    pub async fn durable() -> TestServer {
        TestServer::with(Durability::Durable, &[]).await
    }

    /// A server of one's own with further settings of PostgreSQL.
    ///
    /// # Panics
    ///
    /// As [`shared`](Self::shared).
    pub async fn with(durability: Durability, settings: &[(&str, &str)]) -> TestServer {
        must(start(durability, settings)).await
    }

    /// The server itself.
    pub fn postgres(&self) -> &PostgresServer {
        &self.postgres
    }

    /// How to connect as the superuser, to the database `postgres`.
    pub fn admin_options(&self) -> PgConnectOptions {
        self.postgres.admin_options()
    }

    /// Kills all processes of the server with SIGKILL and waits until they are gone.
    ///
    /// # Panics
    ///
    /// If they do not go.
    pub async fn kill(&mut self) {
        must(async { Ok(self.postgres.kill().await?) }).await;
    }

    /// Stops the server in good order.
    ///
    /// # Panics
    ///
    /// If it does not stop.
    pub async fn stop(&mut self) {
        must(async { Ok(self.postgres.stop().await?) }).await;
    }

    /// Starts it again on the same data and port.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub async fn start_again(&mut self) {
        must(async { Ok(self.postgres.start_again().await?) }).await;
    }

    /// The superuser's password.
    pub(crate) fn admin_password(&self) -> String {
        const FILE: &str = "seqline.password";
        std::fs::read_to_string(self.postgres.data_dir().join(FILE)).unwrap_or_default().trim().to_owned()
    }

    pub(crate) async fn connect_as_admin(&self, database: &str) -> anyhow::Result<PgConnection> {
        let options = self.admin_options().database(database);
        let connected = PgConnection::connect_with(&options).await;
        connected.with_context(|| format!("connect to the test database {database}"))
    }
}

/// The kit's own failures end the test.
pub(crate) async fn must<T>(work: impl Future<Output = anyhow::Result<T>>) -> T {
    match work.await {
        Ok(value) => value,
        Err(error) => panic!("{error:#}"),
    }
}

/// A new folder for the data of a server.
fn data_folder(durability: Durability) -> std::io::Result<TempDir> {
    let mut folder = tempfile::Builder::new();
    folder.prefix("seqline-test-");
    match durability {
        Durability::Fast if has_room(Path::new(MEMORY)) => folder.tempdir_in(MEMORY),
        _ => folder.tempdir(),
    }
}

fn has_room(folder: &Path) -> bool {
    statvfs(folder).is_ok_and(|found| found.blocks_available() * found.fragment_size() >= MEMORY_FREE_MIN)
}

async fn start(durability: Durability, settings: &[(&str, &str)]) -> anyhow::Result<TestServer> {
    let binaries = PostgresBinaries::find(None)?;
    let folder = data_folder(durability).context("make a data folder")?;
    let all = SETTINGS.iter().chain(settings).map(|(name, value)| (name.to_string(), value.to_string()));
    let config = ServerConfig {
        settings: all.collect(),
        durability,
        remove_data_on_exit: true,
        ..ServerConfig::new(binaries, folder.path())
    };
    let postgres = PostgresServer::start(config).await.context("start a test server")?;
    // From here on the server removes it.
    let _ = folder.keep();
    // Without fsync a copy of the files takes a quarter of the time (30 ms instead of 115). Before version 15
    // there is no other way, and no word for it.
    let copy_strategy = match durability {
        Durability::Fast if postgres.major() >= 15 => "STRATEGY file_copy",
        _ => "",
    };
    Ok(TestServer {
        postgres,
        copy_strategy,
        login_password: Uuid::new_v4().simple().to_string(),
        logins: OnceCell::new(),
        template: OnceCell::new(),
        pooler: OnceCell::new(),
        copying: Mutex::new(()),
    })
}
