//! A synchronous standby of a test server: to be away for a while, to come back, and to take over.

use std::time::Duration;

use anyhow::{Context, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use seqline::embedded::{PostgresBinaries, PostgresServer, ServerConfig};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, Connection};

use crate::backup::{Copied, copy_cluster};
use crate::server::{SETTINGS, TestServer, must};
use crate::wait::eventually;

/// How long a standby may take to connect to its primary.
const DEADLINE: Duration = Duration::from_secs(60);

/// A standby that its primary waits for at each commit. It is gone, with its data, when it is dropped; let go of the primary first, or
/// stop it, or what is at its end there waits.
#[derive(Debug)]
pub struct Standby {
    postgres: PostgresServer,
    /// The process that was stopped.
    paused: Option<Pid>,
}

impl Standby {
    /// Copies a server, and makes it wait for the copy from then on.
    ///
    /// # Panics
    ///
    /// If that is not possible; the program `pg_basebackup` is needed beside `postgres`.
    pub async fn synchronous(primary: &TestServer) -> Standby {
        let standby = must(start(primary)).await;
        must(set(&primary.admin_options(), "synchronous_standby_names", "*")).await;
        standby.until_synchronous(primary).await;
        standby
    }

    /// How to connect to it as the superuser, to the database `postgres`.
    pub fn admin_options(&self) -> PgConnectOptions {
        self.postgres.admin_options()
    }

    /// How to connect to it, when `options` are for its primary: its roles and databases are the same.
    pub fn options(&self, options: PgConnectOptions) -> PgConnectOptions {
        options.port(self.postgres.port())
    }

    /// Waits until the primary waits for it again.
    ///
    /// # Panics
    ///
    /// If that takes long.
    pub async fn until_synchronous(&self, primary: &TestServer) {
        let mut admin = must(primary.connect_as_admin("postgres")).await;
        eventually(DEADLINE, "a synchronous standby", async || {
            let found = "SELECT EXISTS (SELECT FROM pg_stat_replication WHERE state = 'streaming' AND sync_state = 'sync')";
            sqlx::query_scalar(found).fetch_one(&mut admin).await.is_ok_and(|found| found)
        })
        .await;
    }

    /// Makes it receive nothing from now on, without a word to the primary, as behind a network that has gone silent.
    ///
    /// # Panics
    ///
    /// If it does not receive anything now.
    pub async fn pause(&mut self) {
        let pid = must(async {
            let mut admin = PgConnection::connect_with(&self.admin_options()).await?;
            let pid: i32 =
                sqlx::query_scalar("SELECT pid FROM pg_stat_wal_receiver").fetch_one(&mut admin).await?;
            kill(Pid::from_raw(pid), Signal::SIGSTOP)?;
            Ok(Pid::from_raw(pid))
        });
        // The process that receives, and no other: a server that stops ends this one, and would wait for ever if all were stopped.
        self.paused = Some(pid.await);
    }

    /// Lets it go on.
    pub fn resume(&mut self) {
        if let Some(pid) = self.paused.take() {
            // One that has ended meanwhile needs no signal.
            let _ = kill(pid, Signal::SIGCONT);
        }
    }

    /// Stops it in good order.
    ///
    /// # Panics
    ///
    /// If it does not stop.
    pub async fn stop(&mut self) {
        self.resume();
        must(async { Ok(self.postgres.stop().await?) }).await;
    }

    /// Starts it again.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub async fn start_again(&mut self) {
        must(async { Ok(self.postgres.start_again().await?) }).await;
    }

    /// Makes it a primary. It waits for nobody then.
    ///
    /// # Panics
    ///
    /// If it does not become one.
    pub async fn promote(&mut self) {
        self.resume();
        must(async {
            let mut admin = PgConnection::connect_with(&self.admin_options()).await?;
            let promoted: bool =
                sqlx::query_scalar("SELECT pg_promote(true, 60)").fetch_one(&mut admin).await?;
            ensure!(promoted, "the standby was not promoted in time");
            Ok(())
        })
        .await;
    }

    /// Sets a parameter of the standby itself.
    ///
    /// # Panics
    ///
    /// If there is no such parameter.
    pub async fn set(&self, name: &str, value: &str) {
        must(set(&self.admin_options(), name, value)).await;
    }
}

impl Drop for Standby {
    fn drop(&mut self) {
        self.resume();
    }
}

async fn start(primary: &TestServer) -> anyhow::Result<Standby> {
    let binaries = PostgresBinaries::find(None)?;
    let folder = tempfile::Builder::new().prefix("seqline-test-").tempdir().context("make a data folder")?;
    copy_cluster(primary, &binaries, folder.path(), Copied::Following).await?;
    let settings = SETTINGS.iter().map(|(name, value)| (name.to_string(), value.to_string()));
    let config = ServerConfig {
        settings: settings.collect(),
        remove_data_on_exit: true,
        ..ServerConfig::new(binaries, folder.path())
    };
    let postgres = PostgresServer::start(config).await.context("start a standby")?;
    // From here on the server removes it.
    let _ = folder.keep();
    Ok(Standby { postgres, paused: None })
}

async fn set(admin: &PgConnectOptions, name: &str, value: &str) -> anyhow::Result<()> {
    let mut connection = PgConnection::connect_with(admin).await?;
    let statement = format!("ALTER SYSTEM SET {name} = '{value}'");
    sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut connection).await?;
    sqlx::raw_sql("SELECT pg_reload_conf()").execute(&mut connection).await?;
    // A session learns of it with its next statement.
    let mut read = PgConnection::connect_with(admin).await?;
    eventually(DEADLINE, "the new value of a parameter", async || {
        let current: Result<String, _> =
            sqlx::query_scalar("SELECT current_setting($1)").bind(name).fetch_one(&mut read).await;
        current.is_ok_and(|current| current == value)
    })
    .await;
    Ok(())
}
