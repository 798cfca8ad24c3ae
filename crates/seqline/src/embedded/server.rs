//! A private server: start, stop, kill, start again.

use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgSslMode};
use sqlx::{ConnectOptions, Connection};

use super::folder::DataFolder;
use super::processes::{children, is_alive, is_postgres};
use super::startup_log::StartupLog;
use super::waiting::{Wait, wait_until};
use super::{EmbeddedError, PostgresBinaries, initdb, install, launch, ports};

/// How long a server may take until it answers.
const START_LIMIT: Duration = Duration::from_secs(30);

/// How long it may take when it first has to recover from a crash.
const RECOVERY_LIMIT: Duration = Duration::from_secs(600);

/// How long one attempt to connect may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// How long the supervisor may take to end the server: it raises its means twice, after 10 s each.
const STOP_LIMIT: Duration = Duration::from_secs(35);

/// How long the kernel may take to remove killed processes.
const KILL_LIMIT: Duration = Duration::from_secs(30);

/// How often another free port is tried when somebody else was faster.
const PORT_TRIES: usize = 5;

/// Whether a commit survives the crash of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// As in production: `fsync`, `synchronous_commit` and `full_page_writes` are on.
    Durable,
    /// All three are off: faster, and a crash of the server loses acknowledged commits, one of the machine all data. For
    /// tests.
    Fast,
}

/// What server to start.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// The programs.
    pub binaries: PostgresBinaries,
    /// Where everything is kept. Made if it is not there.
    pub data_dir: PathBuf,
    /// A port on 127.0.0.1; `None` picks a free one.
    pub port: Option<u16>,
    /// Settings of PostgreSQL, by name. Address, port, socket and durability are not taken from here.
    pub settings: Vec<(String, String)>,
    /// Whether a commit survives the crash of the machine.
    pub durability: Durability,
    /// Whether the data folder is removed when the server has been dropped or this process has ended.
    pub remove_data_on_exit: bool,
}

impl ServerConfig {
    /// A durable server on a free port that keeps its data.
    pub fn new(binaries: PostgresBinaries, data_dir: impl Into<PathBuf>) -> ServerConfig {
        ServerConfig {
            binaries,
            data_dir: data_dir.into(),
            port: None,
            settings: Vec::new(),
            durability: Durability::Durable,
            remove_data_on_exit: false,
        }
    }
}

/// A private PostgreSQL server. Dropping it stops it, without waiting for the end.
///
/// It is not bound to the runtime it was started on.
#[derive(Debug)]
pub struct PostgresServer {
    // Dropped in this order: the server first, then its data, then the lock on the folder.
    run: Option<Run>,
    _janitor: Option<Lifeline>,
    folder: DataFolder,
    binaries: PostgresBinaries,
    config: ServerConfig,
    port: u16,
    password: String,
}

/// A running server.
#[derive(Debug)]
struct Run {
    supervisor: Lifeline,
    postmaster: i32,
}

/// A helper process that does its work as soon as it is let go.
#[derive(Debug)]
struct Lifeline(Option<Child>);

impl Drop for Lifeline {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take()
            && !launch::has_ended(&mut child)
        {
            launch::let_go(child);
        }
    }
}

impl Lifeline {
    fn has_ended(&mut self) -> bool {
        self.0.as_mut().is_none_or(launch::has_ended)
    }

    /// Closes the pipe, and keeps the process to wait for.
    fn release(&mut self) {
        if let Some(child) = &mut self.0 {
            drop(child.stdin.take());
        }
    }
}

impl PostgresServer {
    /// Starts a server and waits until it answers. A new data folder gets a new cluster first.
    ///
    /// # Errors
    ///
    /// Every reason has a variant of [`EmbeddedError`], whose message says what to do.
    ///
    /// # Cancellation
    ///
    /// Dropping the future stops whatever was started; a cluster that was not complete is made anew next time.
    pub async fn start(config: ServerConfig) -> Result<PostgresServer, EmbeddedError> {
        if let Some(port) = config.port {
            ports::require_free(port)?;
        }
        let folder = DataFolder::claim(&config.data_dir).await?;
        let binaries = match folder.account() {
            Some(account) => install::within_reach(config.binaries.clone(), account).await?,
            None => config.binaries.clone(),
        };
        let has_cluster = folder.has_cluster_for(&binaries)?;
        // From here on the folder is ours to remove.
        let janitor = match config.remove_data_on_exit {
            true => Some(Lifeline(Some(launch::spawn_janitor(folder.root())?))),
            false => None,
        };
        if !has_cluster {
            initdb::initialize(&folder, &binaries, config.durability).await?;
        }
        let password = folder.password()?;
        let mut server =
            PostgresServer { run: None, _janitor: janitor, folder, binaries, port: 0, password, config };
        server.launch_on_some_port().await?;
        Ok(server)
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The data folder, as an absolute path.
    pub fn data_dir(&self) -> &Path {
        self.folder.root()
    }

    /// The log of the server.
    pub fn log_file(&self) -> PathBuf {
        self.folder.log()
    }

    /// The version, as `18.6`.
    pub fn version(&self) -> &str {
        self.binaries.version()
    }

    /// The major version, as `18`.
    pub fn major(&self) -> u16 {
        self.binaries.major()
    }

    /// How to connect as the superuser, to the database `postgres`.
    pub fn admin_options(&self) -> PgConnectOptions {
        // The variables of libpq, which sqlx reads too, belong to another server.
        PgConnectOptions::new_without_pgpass()
            .host("127.0.0.1")
            .port(self.port)
            .username("postgres")
            .password(&self.password)
            .database("postgres")
            .ssl_mode(PgSslMode::Disable)
            .application_name("seqline")
            // Statements of the superuser set passwords.
            .disable_statement_logging()
    }

    /// The same as a URL, to hand to another process. It holds the password: never log it.
    pub fn admin_url(&self) -> String {
        format!("postgres://postgres:{}@127.0.0.1:{}/postgres?sslmode=disable", self.password, self.port)
    }

    /// The server's main process, while it was not stopped by us.
    pub fn postmaster_pid(&self) -> Option<i32> {
        self.run.as_ref().map(|run| run.postmaster)
    }

    /// Whether the server runs. False as well when it ended by itself.
    pub fn is_running(&mut self) -> bool {
        self.run.as_mut().is_some_and(|run| !run.supervisor.has_ended())
    }

    /// Stops the server: open transactions are rolled back, and everything is written. Waits for the end.
    ///
    /// # Errors
    ///
    /// [`EmbeddedError::NotStopped`] if it did not end in time, which even after a kill can happen when the
    /// disk hangs.
    pub async fn stop(&mut self) -> Result<(), EmbeddedError> {
        let Some(run) = &mut self.run else { return Ok(()) };
        run.supervisor.release();
        let pid = run.postmaster;
        if !wait_until(STOP_LIMIT, || run.supervisor.has_ended()).await {
            return Err(EmbeddedError::NotStopped { pid });
        }
        self.run = None;
        tracing::debug!(port = self.port, "postgresql stopped");
        Ok(())
    }

    /// Kills the server with SIGKILL, all of its processes at once, as a crash would. Waits until all are gone.
    ///
    /// # Errors
    ///
    /// [`EmbeddedError::NotStopped`] if the kernel did not remove them in time.
    pub async fn kill(&mut self) -> Result<(), EmbeddedError> {
        let Some(run) = &mut self.run else { return Ok(()) };
        let pid = run.postmaster;
        let mut doomed = vec![pid];
        if is_postgres(pid) {
            // Stopped first, or it could start another process between the look and the kill.
            send(pid, Signal::SIGSTOP);
            doomed.extend(children(pid));
            doomed.iter().for_each(|pid| send(*pid, Signal::SIGKILL));
        }
        let all_gone = || run.supervisor.has_ended() && doomed.iter().all(|pid| !is_alive(*pid));
        if !wait_until(KILL_LIMIT, all_gone).await {
            return Err(EmbeddedError::NotStopped { pid });
        }
        self.run = None;
        tracing::debug!(port = self.port, "postgresql killed");
        Ok(())
    }

    /// Starts the server again on the same data and port, after [`stop`](Self::stop), [`kill`](Self::kill) or
    /// an end of its own. Recovers from a crash first. Does nothing while it runs.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub async fn start_again(&mut self) -> Result<(), EmbeddedError> {
        if self.is_running() {
            return Ok(());
        }
        self.run = None;
        ports::require_free(self.port)?;
        self.launch().await
    }

    async fn launch_on_some_port(&mut self) -> Result<(), EmbeddedError> {
        if let Some(port) = self.config.port {
            self.port = port;
            return self.launch().await;
        }
        for _ in 1..PORT_TRIES {
            self.port = ports::free_port()?;
            match self.launch().await {
                Err(EmbeddedError::PortInUse { .. }) => {}
                outcome => return outcome,
            }
        }
        self.port = ports::free_port()?;
        self.launch().await
    }

    async fn launch(&mut self) -> Result<(), EmbeddedError> {
        self.folder.rotate_log()?;
        let log = StartupLog::mark(self.folder.log());
        let child = launch::spawn(&self.folder, &self.binaries, &self.config, self.port)?;
        let mut supervisor = Lifeline(Some(child));
        let postmaster = self.wait_until_ready(&mut supervisor, &log).await?;
        self.run = Some(Run { supervisor, postmaster });
        tracing::debug!(port = self.port, version = self.version(), "postgresql started");
        Ok(())
    }

    /// Waits until the server itself says that it is ready, so that an answer from somebody else on the same
    /// port is not taken for it, and then until it lets us in.
    async fn wait_until_ready(
        &self,
        supervisor: &mut Lifeline,
        log: &StartupLog,
    ) -> Result<i32, EmbeddedError> {
        let wait = Wait::start();
        loop {
            if supervisor.has_ended() {
                return Err(self.ended_early(log));
            }
            let own = self.folder.pid_file().filter(|file| is_postgres(file.pid));
            let limit = match &own {
                Some(file) if file.is_ready => {
                    if self.lets_us_in().await? {
                        return Ok(file.pid);
                    }
                    START_LIMIT
                }
                Some(_) => RECOVERY_LIMIT,
                None => START_LIMIT,
            };
            if wait.has_taken(limit) {
                let log = log.path().into();
                return Err(EmbeddedError::NotReady { seconds: limit.as_secs(), log });
            }
            wait.pause().await;
        }
    }

    async fn lets_us_in(&self) -> Result<bool, EmbeddedError> {
        let options = self.admin_options().disable_statement_logging();
        match tokio::time::timeout(CONNECT_LIMIT, PgConnection::connect_with(&options)).await {
            Ok(Ok(connection)) => {
                // It has answered; how this connection ends does not matter.
                let _ = connection.close().await;
                Ok(true)
            }
            Ok(Err(sqlx::Error::Database(error))) if error.code().as_deref() == Some("28P01") => {
                Err(EmbeddedError::PasswordRejected { file: self.folder.password_file() })
            }
            _ => Ok(false),
        }
    }

    fn ended_early(&self, log: &StartupLog) -> EmbeddedError {
        if log.says_port_taken() {
            return EmbeddedError::PortInUse { port: self.port };
        }
        EmbeddedError::EndedEarly { lines: log.quote(), log: log.path().into() }
    }
}

/// A process that has ended meanwhile needs no signal.
fn send(pid: i32, signal: Signal) {
    let _ = kill(Pid::from_raw(pid), signal);
}
