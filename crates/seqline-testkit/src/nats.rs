//! Brokers of NATS with JetStream, alone and as a cluster: to kill, pause and start again, and to lose what they stored.
//!
//! Each listens on a free port of 127.0.0.1, keeps what it stores in a temporary folder, and is gone with it when it is dropped or when the
//! test process ends, however that ends. Nothing in here is bound to the runtime of the test that started it.
//!
//! The program is the one that `SEQLINE_NATS_BIN` names, else the `nats-server` on the `PATH`. The kit has no client of NATS: a test connects
//! to [`NatsServer::url`] with its own, or through a [`FaultProxy`](crate::FaultProxy) to [`NatsServer::addr`].

mod cluster;
mod options;
mod probe;
mod process;

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::server::must;
use crate::wait::pause;

pub use cluster::NatsCluster;
pub use options::NatsOptions;
use options::Place;
use probe::Info;
use process::{Folder, Process, copy_folder, empty_folder};

/// Ports that no system gives to whoever asks for any: while a broker is away, nobody gets its port by accident.
const PORTS: std::ops::Range<u16> = 10_000..32_000;

/// How often other ports are tried when somebody else was faster.
const TRIES: u32 = 10;

/// Between two looks whether a broker is ready.
const LOOK: Duration = Duration::from_millis(20);

/// Looks until it counts as one that does not answer: at least 30 seconds.
const LOOKS: u32 = 1500;

/// How much of its log is told when it does not start.
const TOLD_BYTES: usize = 2000;

/// A broker that is gone, with what it stored, when it is dropped, or when the test ends in whatever way.
#[derive(Debug)]
pub struct NatsServer {
    // Ends before the folder goes.
    process: Option<Process>,
    folder: Folder,
    place: Place,
    options: NatsOptions,
    version: String,
    copies: u32,
    /// Where in its log what it says since its last start begins.
    log_start: usize,
}

/// What a broker had stored at some time. It goes with the broker's folder.
#[derive(Debug, Clone)]
pub struct StoreCopy {
    folder: PathBuf,
}

/// Why a broker has not started.
enum Refused {
    /// Somebody else has one of its ports.
    PortInUse(anyhow::Error),
    Other(anyhow::Error),
}

impl NatsServer {
    /// Starts one with JetStream, which anybody may use.
    ///
    /// # Panics
    ///
    /// If it cannot be started; says what to do.
    pub async fn start() -> NatsServer {
        NatsServer::with(NatsOptions::default()).await
    }

    /// The same with options.
    ///
    /// # Panics
    ///
    /// As [`start`](Self::start).
    pub async fn with(options: NatsOptions) -> NatsServer {
        must(launch(options)).await
    }

    /// One that acknowledges only what was flushed to the disk: for measurements.
    ///
    /// # Panics
    ///
    /// As [`start`](Self::start).
    pub async fn durable() -> NatsServer {
        NatsServer::with(NatsOptions::default().durable()).await
    }

    /// One older than 2.10, if `SEQLINE_NATS_OLD_BIN` names such a program. A test that needs it says so if not, and passes over.
    ///
    /// # Panics
    ///
    /// As [`start`](Self::start), and as [`NatsOptions::old`].
    pub async fn old() -> Option<NatsServer> {
        match NatsOptions::old() {
            Some(options) => Some(NatsServer::with(options).await),
            None => None,
        }
    }

    /// Where clients connect, such as `nats://127.0.0.1:14222`. It stays the same over a restart.
    pub fn url(&self) -> String {
        format!("nats://{}", self.addr())
    }

    /// The same for a [`FaultProxy`](crate::FaultProxy).
    pub fn addr(&self) -> SocketAddr {
        local(self.place.port)
    }

    /// Where it answers over HTTP about itself, such as `/jsz`.
    pub fn monitor_addr(&self) -> SocketAddr {
        local(self.place.monitor)
    }

    /// What it calls itself, as in `cluster.leader` of what JetStream says of a stream. Each broker has another name.
    pub fn name(&self) -> &str {
        &self.place.name
    }

    /// Its version, such as `2.15.0`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Its process, if it runs.
    pub fn process_id(&self) -> Option<u32> {
        self.process.as_ref().map(Process::id)
    }

    /// The folder of what it stores.
    pub fn store_dir(&self) -> PathBuf {
        self.folder.path().join("store")
    }

    /// All that it has logged, over all restarts.
    pub fn log(&self) -> String {
        log(self.folder.path())
    }

    /// Kills it with SIGKILL and waits until it is gone. Does nothing if it does not run.
    ///
    /// # Panics
    ///
    /// If it does not go.
    pub async fn kill(&mut self) {
        must(self.end(Signal::SIGKILL)).await;
    }

    /// Stops it in good order, also when it is paused, and waits until it is gone. Does nothing if it does not run.
    ///
    /// # Panics
    ///
    /// If it does not stop.
    pub async fn stop(&mut self) {
        must(self.end(Signal::SIGTERM)).await;
    }

    /// Makes it do nothing from now on, while its connections stay open.
    ///
    /// # Panics
    ///
    /// If it does not run.
    pub fn pause(&mut self) {
        self.signal(Signal::SIGSTOP);
    }

    /// Lets it go on.
    ///
    /// # Panics
    ///
    /// If it does not run.
    pub fn resume(&mut self) {
        self.signal(Signal::SIGCONT);
    }

    /// Starts it again with the same name, port and store, and waits until it is ready. One that runs is stopped before. A node of a cluster
    /// is ready when clients can connect; what the cluster can do then is [`NatsCluster::until_ready`].
    ///
    /// # Panics
    ///
    /// If it does not stop, or not start.
    pub async fn restart(&mut self) {
        must(async {
            self.end(Signal::SIGTERM).await?;
            self.launch_again().await
        })
        .await;
    }

    /// Has it start with other options the next time: another version on the same store, other rights, less space.
    pub fn set_options(&mut self, options: NatsOptions) {
        self.options = options;
    }

    /// Removes all that it stored, as if its disk had been lost.
    ///
    /// # Panics
    ///
    /// If it runs.
    pub fn wipe_store(&mut self) {
        self.while_stopped(|server| empty_folder(&server.store_dir()));
    }

    /// Copies what it has stored until now.
    ///
    /// # Panics
    ///
    /// If it runs.
    pub fn copy_store(&mut self) -> StoreCopy {
        self.while_stopped(|server| {
            server.copies += 1;
            let folder = server.folder.path().join(format!("copy-{}", server.copies));
            copy_folder(&server.store_dir(), &folder)?;
            Ok(StoreCopy { folder })
        })
    }

    /// Puts back what it had stored before, as if from an older backup.
    ///
    /// # Panics
    ///
    /// If it runs, or if the copy is of a broker that is gone.
    pub fn restore_store(&mut self, copy: &StoreCopy) {
        self.while_stopped(|server| {
            empty_folder(&server.store_dir())?;
            copy_folder(&copy.folder, &server.store_dir())
        });
    }

    /// Sends a request, such as `$JS.API.INFO`, and returns the answer, which is JSON. None if there is no answer within five seconds, and from a
    /// broker that wants a login or TLS. For whoever has no client of NATS at hand.
    pub async fn ask(&self, subject: &str, body: &Value) -> Option<Value> {
        probe::ask(self.addr(), subject, body.to_string().as_bytes()).await.ok()
    }

    async fn end(&mut self, signal: Signal) -> anyhow::Result<()> {
        let Some(mut process) = self.process.take() else { return Ok(()) };
        process.signal(signal)?;
        // A process that is paused takes note of SIGTERM only when it goes on.
        process.signal(Signal::SIGCONT)?;
        process.gone().await?;
        Ok(())
    }

    #[track_caller]
    fn signal(&mut self, signal: Signal) {
        let Some(process) = &mut self.process else { panic!("the broker {} does not run", self.place.name) };
        if let Err(error) = process.signal(signal) {
            panic!("{error:#}");
        }
    }

    #[track_caller]
    fn while_stopped<T>(&mut self, work: impl FnOnce(&mut Self) -> anyhow::Result<T>) -> T {
        assert!(self.process.is_none(), "stop or kill the broker {} first", self.place.name);
        match work(self) {
            Ok(value) => value,
            Err(error) => panic!("{error:#}"),
        }
    }

    /// Somebody may have its port for a moment.
    async fn launch_again(&mut self) -> anyhow::Result<()> {
        for _ in 1..TRIES {
            match self.run().await {
                Ok(()) => return Ok(()),
                Err(Refused::PortInUse(_)) => pause(LOOK).await,
                Err(Refused::Other(error)) => return Err(error),
            }
        }
        self.run().await.map_err(Refused::into_error)
    }

    /// Starts the process and waits until clients can connect.
    async fn run(&mut self) -> Result<(), Refused> {
        self.spawn()?;
        self.until_ready().await
    }

    fn spawn(&mut self) -> anyhow::Result<()> {
        let folder = self.folder.path();
        let program = self.options.find_program()?;
        let config = folder.join("nats.conf");
        fs::write(&config, self.options.config(&self.place, &self.store_dir())).context("write nats.conf")?;
        self.log_start = log(folder).len();
        self.process = Some(Process::start(&program, &config, &log_file(folder))?);
        Ok(())
    }

    async fn until_ready(&mut self) -> Result<(), Refused> {
        for _ in 0..LOOKS {
            if let Some(status) = self.process.as_mut().map(Process::ended).transpose()?.flatten() {
                self.process = None;
                return Err(self.refused(&format!("nats-server ended at once with {status}")));
            }
            if let Ok(info) = self.ready().await {
                self.version = info.version;
                return Ok(());
            }
            pause(LOOK).await;
        }
        self.process = None;
        Err(self.refused("nats-server does not answer"))
    }

    /// What it says of itself, if it is this broker that answers and it is ready.
    async fn ready(&self) -> anyhow::Result<Info> {
        let info = probe::info(self.addr()).await?;
        ensure!(info.server_name == self.place.name, "another broker has this port");
        // One that is older than the parameter says the same when it stores for itself alone.
        let path = if self.options.has_jetstream() { "/healthz?js-enabled-only=true" } else { "/healthz" };
        probe::monitored(self.monitor_addr(), path).await?;
        Ok(info)
    }

    fn refused(&self, what: &str) -> Refused {
        let log = self.log();
        let recent = log.get(self.log_start..).unwrap_or(&log);
        let told = recent.len().saturating_sub(TOLD_BYTES);
        let told = recent.get(told..).unwrap_or(recent);
        let error = anyhow::anyhow!("{what}; it says:\n{told}");
        if recent.contains("address already in use") {
            Refused::PortInUse(error)
        } else {
            Refused::Other(error)
        }
    }
}

impl Refused {
    fn into_error(self) -> anyhow::Error {
        match self {
            Self::PortInUse(error) | Self::Other(error) => error,
        }
    }
}

impl From<anyhow::Error> for Refused {
    fn from(error: anyhow::Error) -> Refused {
        Refused::Other(error)
    }
}

async fn launch(options: NatsOptions) -> anyhow::Result<NatsServer> {
    for _ in 1..TRIES {
        let mut server = prepared(options.clone(), free_place()?)?;
        match server.run().await {
            Ok(()) => return Ok(server),
            Err(Refused::PortInUse(_)) => {}
            Err(Refused::Other(error)) => return Err(error),
        }
    }
    let mut server = prepared(options, free_place()?)?;
    server.run().await.map_err(Refused::into_error)?;
    Ok(server)
}

/// A broker that does not run yet.
fn prepared(options: NatsOptions, place: Place) -> anyhow::Result<NatsServer> {
    let folder = Folder::create()?;
    let server =
        NatsServer { process: None, folder, place, options, version: String::new(), copies: 0, log_start: 0 };
    fs::create_dir(server.store_dir()).context("make a folder")?;
    Ok(server)
}

fn free_place() -> anyhow::Result<Place> {
    let name = format!("seqline-{:016x}", fastrand::u64(..));
    Ok(Place { name, port: free_port()?, monitor: free_port()?, cluster: None })
}

/// One that nobody has at the moment. Somebody may be faster: the broker says so then.
fn free_port() -> anyhow::Result<u16> {
    for _ in 0..1000 {
        let port = fastrand::u16(PORTS);
        if TcpListener::bind(local(port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("found no free port from {} to {}", PORTS.start, PORTS.end)
}

fn local(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

fn log_file(folder: &Path) -> PathBuf {
    folder.join("nats.log")
}

fn log(folder: &Path) -> String {
    fs::read(log_file(folder)).map(|text| String::from_utf8_lossy(&text).into_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_port_that_somebody_else_has_is_told_from_other_failures() {
        let held = TcpListener::bind(local(0)).unwrap();
        let port = held.local_addr().unwrap().port();
        let taken = Place { port, ..free_place().unwrap() };
        let mut server = prepared(NatsOptions::default(), taken).unwrap();
        assert!(matches!(server.run().await, Err(Refused::PortInUse(_))));
        assert_eq!(server.process_id(), None);

        drop(held);
        assert!(server.run().await.is_ok());
        server.kill().await;
        server.set_options(NatsOptions::default().lines("no_such_option: 1"));
        assert!(matches!(server.run().await, Err(Refused::Other(_))), "what it said before does not count");
    }

    #[tokio::test]
    async fn another_broker_that_answers_does_not_make_one_ready() {
        let other = NatsServer::start().await;
        let place = Place { name: "seqline-test".into(), ..other.place.clone() };
        let server = prepared(NatsOptions::default(), place).unwrap();
        let error = server.ready().await.unwrap_err().to_string();
        assert_eq!(error, "another broker has this port");
    }
}
