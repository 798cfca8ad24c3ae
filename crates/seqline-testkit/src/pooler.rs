//! A pooler in front of a server, in transaction mode: each transaction of a client may get another connection to the server.
//!
//! With `SEQLINE_TEST_POOLER=transaction` in the environment the pools of each [`TestDb`](crate::TestDb) go through one, and what
//! [`TestDb::options`](crate::TestDb::options) makes, such as listening connections, to the server itself.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions, Connection};

use crate::db::Role;
use crate::server::{TestServer, must};
use crate::wait::pause;

/// The variable that names the program.
const PROGRAM: &str = "SEQLINE_PGBOUNCER_BIN";

/// The variable that says whether pools go through one.
const CHOICE: &str = "SEQLINE_TEST_POOLER";

/// Connections to the server, of each login to each database. Fewer than clients, so that they have to be shared.
const SHARED: u32 = 4;

/// How long it may take to start.
const ATTEMPTS: u32 = 500;

/// A PgBouncer that is gone when it is dropped, or when the test ends in whatever way.
#[derive(Debug)]
pub struct Pooler {
    port: u16,
    /// A shell that lives for as long as its standard input is open, and then ends the pooler.
    process: Child,
    _folder: tempfile::TempDir,
}

impl Pooler {
    /// Starts one in front of a server, for the logins of test databases, with so many connections to the server for each of them and
    /// each database.
    ///
    /// # Panics
    ///
    /// If it cannot be started; says what to do.
    pub async fn start(server: &TestServer, connections: u32) -> Pooler {
        Pooler::with(server, connections, "").await
    }

    /// The same with further lines of its configuration.
    ///
    /// # Panics
    ///
    /// As [`start`](Self::start).
    pub async fn with(server: &TestServer, connections: u32, lines: &str) -> Pooler {
        must(start(server, connections, lines)).await
    }

    /// The same way to connect, but through the pooler, as clients of one in transaction mode have to.
    pub fn through(&self, options: &PgConnectOptions) -> PgConnectOptions {
        options.clone().host("127.0.0.1").port(self.port).statement_cache_capacity(0)
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

/// The pooler of a server, if the environment says that there is one.
pub(crate) async fn chosen(server: &TestServer) -> anyhow::Result<Option<Arc<Pooler>>> {
    match std::env::var(CHOICE).as_deref() {
        Err(_) | Ok("") => return Ok(None),
        Ok("transaction") => {}
        Ok(_) => bail!("{CHOICE} is transaction, or not set"),
    }
    let pooler =
        server.pooler.get_or_try_init(async || anyhow::Ok(Arc::new(start(server, SHARED, "").await?)));
    Ok(Some(Arc::clone(pooler.await?)))
}

fn program() -> anyhow::Result<PathBuf> {
    match std::env::var_os(PROGRAM).filter(|program| !program.is_empty()) {
        Some(program) => Ok(program.into()),
        None => bail!(
            "{PROGRAM} does not name the program pgbouncer: cargo xtask test fetches it and sets the variable"
        ),
    }
}

async fn start(server: &TestServer, connections: u32, lines: &str) -> anyhow::Result<Pooler> {
    let program = program()?;
    let folder = tempfile::Builder::new().prefix("seqline-pooler-").tempdir().context("make a folder")?;
    // Taken and given back: nobody else is likely to get it in between, and the pooler would say so.
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
    let users = folder.path().join("users.txt");
    let config = folder.path().join("pgbouncer.ini");
    fs::write(&users, logins(server))?;
    fs::write(
        &config,
        format!(
            "[databases]\n* = host=127.0.0.1 port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
             auth_type = plain\nauth_file = {}\npool_mode = transaction\ndefault_pool_size = {connections}\nmax_client_conn = 1000\n\
             ignore_startup_parameters = extra_float_digits\nlog_connections = 0\nserver_idle_timeout = 5\nlog_disconnections = 0\n{lines}\n",
            server.postgres().port(),
            users.display(),
        ),
    )?;
    // It refuses to run as root. A server does not either, so its data belongs to somebody who can.
    let owner = server.postgres().data_dir().join("pgdata").metadata()?;
    for path in [folder.path(), &users, &config] {
        fs::set_permissions(path, fs::Permissions::from_mode(if path.is_dir() { 0o700 } else { 0o600 }))?;
        lchown(path, Some(owner.uid()), Some(owner.gid()))?;
    }
    let process = launch(&program, &config, &owner)
        .with_context(|| format!("run {}, which {PROGRAM} names", program.display()))?;
    let mut pooler = Pooler { port, process, _folder: folder };
    let options = pooler.through(&server.admin_options()).username(Role::Admin.login());
    for _ in 0..ATTEMPTS {
        if let Ok(connection) = PgConnection::connect_with(&options.clone().disable_statement_logging()).await
        {
            connection.close().await?;
            return Ok(pooler);
        }
        if let Some(status) = pooler.process.try_wait()? {
            bail!("pgbouncer ended at once with {status}");
        }
        pause(Duration::from_millis(20)).await;
    }
    bail!("pgbouncer does not answer")
}

/// Ends with the test, however that ends: the pipe is closed then.
fn launch(program: &Path, config: &Path, owner: &fs::Metadata) -> std::io::Result<Child> {
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", "\"$0\" -q \"$1\" </dev/null & read -r _; kill $! 2>/dev/null; wait"])
        .args([program, config])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::inherit())
        .current_dir("/");
    if nix::unistd::geteuid().is_root() {
        command.uid(owner.uid()).gid(owner.gid());
    }
    command.spawn()
}

/// Who may come in, with the password that the server wants.
fn logins(server: &TestServer) -> String {
    let admin = server.admin_password();
    std::iter::once((Role::Admin, admin.as_str()))
        .chain(Role::LOGINS.into_iter().map(|role| (role, server.login_password.as_str())))
        .map(|(role, password)| format!("\"{}\" \"{password}\"\n", role.login()))
        .collect()
}
