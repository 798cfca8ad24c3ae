//! `seqline up`: everything that is needed, here and now.
//!
//! Without a database URL it runs a PostgreSQL server of its own on this machine; with one it uses that database. Either
//! way it brings the schema up to date, keeps partitions and retention while it runs, numbers what is to be numbered after commit, answers
//! the API, and stops on Ctrl-C. The data is never deleted.

mod local;
mod running;

use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use seqline::embedded::{Durability, EmbeddedError, PostgresBinaries, PostgresServer, ServerConfig};
use seqline::migrate::Migrated;
use serde::{Deserialize, Serialize};
use sqlx::ConnectOptions;
use sqlx::postgres::PgConnectOptions;
use tokio_util::sync::CancellationToken;

use self::running::Upping;
use super::{asked_to_stop, configuration, file_failure, migrate};
use crate::api::ApiServer;
use crate::cli::{DatabaseArgs, UpArgs};
use crate::config::Config;
use crate::connect::GivenUrl;
use crate::failure::Failure;
use crate::ops::server::OpsServer;
use crate::streaming::Streaming;
use crate::{connect, store};

#[derive(Serialize)]
struct Ready<'a> {
    database_url: &'a str,
    /// Where it answers the API.
    api_url: &'a str,
    /// A token that may do everything, on a server of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    api_token: Option<&'a str>,
    /// Where it answers /livez, /readyz and /metrics.
    ops_url: &'a str,
    pid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    postgres_pid: Option<i32>,
}

pub(crate) async fn run(database: &DatabaseArgs, args: UpArgs) -> Result<(), Failure> {
    let stop = asked_to_stop();
    let mut config = configuration(&args.config)?;
    args.retention.apply(&mut config);
    if let Some(file) = args.ready_file.as_deref().filter(|file| is_stale(file)) {
        remove_leftover(file)?;
    }
    let addresses = Addresses {
        ops: OpsServer::bind(args.ops_listen, "--ops-listen").await?,
        api: ApiServer::bind(args.api_listen, "--api-listen").await?,
        streaming: Streaming::relay_where_given(args.nats_url.as_deref(), &config)?,
    };
    if let Some(streaming) = &addresses.streaming {
        eprintln!(
            "The log is copied into the stream {} of the broker at {}.",
            config.stream.name,
            streaming.place()
        );
    }
    match connect::given_urls(database).as_slice() {
        [] => Box::pin(on_embedded_server(&args, &config, addresses, &stop)).await,
        given => Box::pin(on_given_database(given, &args, &config, addresses, &stop)).await,
    }
}

/// Where it will answer, and where the log is copied to.
struct Addresses {
    ops: OpsServer,
    api: ApiServer,
    streaming: Option<Streaming>,
}

impl Addresses {
    fn ops_url(&self) -> String {
        format!("http://{}", self.ops.address())
    }

    fn api_url(&self) -> String {
        format!("http://{}", self.api.address())
    }

    fn upping<'a>(
        self,
        options: &'a PgConnectOptions,
        config: &'a Config,
        stop: &'a CancellationToken,
    ) -> Upping<'a> {
        Upping { options, config, ops: self.ops, api: self.api, streaming: self.streaming, stop }
    }
}

async fn on_given_database(
    given: &[GivenUrl],
    args: &UpArgs,
    config: &Config,
    addresses: Addresses,
    stop: &CancellationToken,
) -> Result<(), Failure> {
    let url = &given[0].url;
    let options = connect::parse(url)?;
    let prepared = async {
        let connection = connect::connect(&options).await?;
        say_database(&options, given);
        Ok::<_, Failure>(migrate::both(connection, &options, &config.jobs.schema).await?.0)
    };
    let Some(migrated) = unless_stopped(prepared, stop).await? else { return Ok(()) };
    say_schema(migrated);
    let (ops_url, api_url) = (addresses.ops_url(), addresses.api_url());
    let mut written = None;
    let ready = || {
        let (pid, api_token, postgres_pid) = (std::process::id(), None, None);
        let ready =
            Ready { database_url: url, api_url: &api_url, api_token, ops_url: &ops_url, pid, postgres_pid };
        written = ready_file(args, &ready)?;
        say_how_to_ask(&api_url);
        eprintln!("{}\n\nPress Ctrl-C to stop.", where_it_tells(&ops_url));
        Ok(())
    };
    let result = running::run(addresses.upping(&options, config, stop), None, ready).await;
    remove(written);
    result
}

async fn on_embedded_server(
    args: &UpArgs,
    config: &Config,
    addresses: Addresses,
    stop: &CancellationToken,
) -> Result<(), Failure> {
    let data_dir = match &args.data_dir {
        Some(dir) => dir.clone(),
        None => default_data_dir()?,
    };
    let binaries = PostgresBinaries::find(args.pg_bin.as_deref()).map_err(embedded_failure)?;
    let server_config = ServerConfig {
        port: args.port,
        durability: Durability::Durable,
        ..ServerConfig::new(binaries, &data_dir)
    };
    let started = async { PostgresServer::start(server_config).await.map_err(embedded_failure) };
    let Some(mut server) = unless_stopped(started, stop).await? else { return Ok(()) };
    let result = with_server(&mut server, args, config, addresses, stop).await;
    let stopped = server.stop().await.map_err(embedded_failure);
    result.and(stopped)
}

async fn with_server(
    server: &mut PostgresServer,
    args: &UpArgs,
    config: &Config,
    addresses: Addresses,
    stop: &CancellationToken,
) -> Result<(), Failure> {
    let url_file = server.data_dir().join("url");
    // The folder is ours now, so nobody else's password is in there.
    remove_leftover(&url_file)?;
    let password = random_password()?;
    let prepared = unless_stopped(prepare(server, &password, &config.jobs.schema), stop).await?;
    let Some(Prepared { options, migrated, token }) = prepared else { return Ok(()) };
    let user = store::embedded::USER;
    let database_url = format!("postgres://{user}:{password}@127.0.0.1:{}/{user}", server.port());
    write_private(&url_file, &database_url)?;
    eprintln!(
        "PostgreSQL {} runs on 127.0.0.1 port {}, data in {}",
        server.version(),
        server.port(),
        server.data_dir().display()
    );
    say_schema(migrated);
    let (ops_url, api_url) = (addresses.ops_url(), addresses.api_url());
    let postgres_pid = server.postmaster_pid();
    let mut written = None;
    let ready = || {
        let ready = Ready {
            database_url: &database_url,
            api_url: &api_url,
            api_token: Some(&token),
            ops_url: &ops_url,
            pid: std::process::id(),
            postgres_pid,
        };
        written = ready_file(args, &ready)?;
        say_how_to_go_on(&url_file, &api_url, &token, &ops_url);
        Ok(())
    };
    let result = running::run(addresses.upping(&options, config, stop), Some(server), ready).await;
    remove(Some(url_file));
    remove(written);
    result
}

/// What comes of the work, or `None` when it was dropped because the user did not want to wait for it.
async fn unless_stopped<T>(
    work: impl Future<Output = Result<T, Failure>>,
    stop: &CancellationToken,
) -> Result<Option<T>, Failure> {
    tokio::select! {
        done = work => done.map(Some),
        () = stop.cancelled() => {
            eprintln!("Stopping.");
            Ok(None)
        }
    }
}

/// A server of its own that can be used.
struct Prepared {
    options: PgConnectOptions,
    migrated: Migrated,
    token: String,
}

/// Role, database, schema and token. The user's role has the rights of an application and not those of the superuser.
async fn prepare(server: &PostgresServer, password: &str, jobs_schema: &str) -> Result<Prepared, Failure> {
    let admin = server.admin_options();
    let failed = |error: sqlx::Error| Failure::from(seqline::DatabaseError::from(error));
    let mut connection = admin.connect().await.map_err(failed)?;
    store::embedded::set_user(&mut connection, password).await.map_err(failed)?;
    if !store::embedded::database_exists(&mut connection).await.map_err(failed)? {
        store::embedded::create_database(&mut connection).await.map_err(failed)?;
    }
    let admin = admin.database(store::embedded::USER);
    let connection = admin.connect().await.map_err(failed)?;
    let (migrated, _) = migrate::both(connection, &admin, jobs_schema).await?;
    let mut connection = admin.connect().await.map_err(failed)?;
    store::embedded::grant_roles(&mut connection).await.map_err(failed)?;
    let options = server
        .admin_options()
        .username(store::embedded::USER)
        .password(password)
        .database(store::embedded::USER)
        .application_name("seqline");
    let token = local::token(&mut options.connect().await.map_err(failed)?).await?;
    Ok(Prepared { options, migrated, token })
}

fn say_schema(migrated: Migrated) {
    let version = migrated.to;
    match migrated.from {
        from if from == version => eprintln!("The schema is current (version {version})."),
        0 => eprintln!("The schema was created (version {version})."),
        from => eprintln!("The schema was updated (version {from} to {version})."),
    }
}

/// Which database it is and who said so: a variable can be set without the user thinking of it.
fn say_database(options: &PgConnectOptions, given: &[GivenUrl]) {
    let database = options.get_database().unwrap_or_else(|| options.get_username());
    let origins: Vec<&str> = given.iter().map(|given| given.origin).collect();
    eprintln!(
        "Using database {}/{database}, given by {}. To run an embedded server instead, leave out {}.",
        connect::place(options),
        origins[0],
        origins.join(" and ")
    );
}

fn where_it_tells(ops_url: &str) -> String {
    format!("Health and metrics: {ops_url}/livez, {ops_url}/readyz, {ops_url}/metrics")
}

/// The way to a token, on a database where somebody decides who gets one.
fn say_how_to_ask(api_url: &str) {
    let program = program();
    eprintln!(
        "Ready. The API is at {api_url}, and {api_url}/v1/docs says what it takes. Who may append, and a token for them:\n\n  {program} principals create shop --kind app --rights append\n  {program} tokens create shop\n"
    );
}

fn say_how_to_go_on(url_file: &Path, api_url: &str, token: &str, ops_url: &str) {
    let program = program();
    let url_file = quoted(&url_file.display().to_string());
    eprintln!(
        "Ready. In another terminal:\n\n  export SEQLINE_DATABASE_URL=\"$(cat {url_file})\"\n  {program} append order.created --resource-kind order --payload '{{\"total\": 12.5}}'\n  {program} tail --follow\n  {program} serve --role worker\n  {program} status\n\nOver HTTP, as the principal {}, whose token is good until this is started again; {api_url}/v1/docs says what else there is:\n\n  {}\n\n{}\n\nPress Ctrl-C to stop.",
        local::LOCAL,
        curl(api_url, token),
        where_it_tells(ops_url)
    );
}

/// A line that appends an event when it is pasted.
fn curl(api_url: &str, token: &str) -> String {
    const EVENT: &str = r#"{"type": "order.created", "resource_kind": "order", "receive_action": "any", "payload": {"total": 12.5}}"#;
    format!(
        "curl {api_url}/v1/events -H 'Authorization: Bearer {token}' -H 'Content-Type: application/json' -d '{EVENT}'"
    )
}

/// How the user can call this program again in a shell, from whatever folder.
fn program() -> String {
    let called = std::env::args().next().unwrap_or_else(|| "seqline".to_owned());
    // By a path, as with cargo. Else the shell has found it, and will again.
    let path = called.contains('/').then(|| std::env::current_exe().ok()).flatten();
    let program = path.map_or(called, |path| path.display().to_string());
    let plain = |c: char| c.is_alphanumeric() || "/._-+:@,".contains(c);
    if program.chars().all(plain) { program } else { quoted(&program) }
}

/// As one word of a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// Where data goes that the user did not think about.
fn default_data_dir() -> Result<PathBuf, Failure> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if nix::unistd::Uid::effective().is_root() {
        // PostgreSQL does not run as root, and its own user cannot enter root's home.
        return Ok(PathBuf::from("/var/lib/seqline"));
    }
    set("XDG_DATA_HOME")
        .or_else(|| Some(set("HOME")?.join(".local/share")))
        .map(|base| base.join("seqline"))
        .ok_or_else(|| Failure::Usage("no home folder: give --data-dir".to_owned()))
}

/// 128 random bits.
fn random_password() -> Result<String, Failure> {
    use std::io::Read;
    let mut bytes = [0_u8; 16];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(|error| file_failure("read", Path::new("/dev/urandom"), &error))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn ready_file(args: &UpArgs, ready: &Ready<'_>) -> Result<Option<PathBuf>, Failure> {
    let Some(path) = &args.ready_file else { return Ok(None) };
    let text = serde_json::to_string(ready).map_err(|error| Failure::Unexpected(error.to_string()))?;
    write_private(path, &text)?;
    Ok(Some(path.clone()))
}

/// Written whole or not at all, and readable for the owner only: there is a password in it.
fn write_private(path: &Path, text: &str) -> Result<(), Failure> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}", std::process::id()));
    let temporary = path.with_file_name(name);
    // Of a process with the same number that was killed; or somebody has put a link there, which must not be followed.
    remove_leftover(&temporary)?;
    create_private(&temporary, text)
        .and_then(|()| std::fs::rename(&temporary, path))
        .inspect_err(|_| remove(Some(temporary.clone())))
        .map_err(|error| file_failure("write", path, &error))
}

fn create_private(path: &Path, text: &str) -> std::io::Result<()> {
    use std::io::Write;
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    writeln!(file, "{text}")
}

/// Whether the process that wrote a ready file is gone. One that runs keeps its file.
fn is_stale(ready_file: &Path) -> bool {
    #[derive(Deserialize)]
    struct Written {
        pid: i32,
    }
    let text = std::fs::read(ready_file).unwrap_or_default();
    let Ok(Written { pid }) = serde_json::from_slice(&text) else { return false };
    let pid = nix::unistd::Pid::from_raw(pid);
    // In a container every run can have the same number.
    pid == nix::unistd::getpid() || nix::sys::signal::kill(pid, None) == Err(nix::errno::Errno::ESRCH)
}

/// A file that an earlier run had no time to remove.
fn remove_leftover(path: &Path) -> Result<(), Failure> {
    match std::fs::remove_file(path) {
        Err(error) if !is_absent(&error) => Err(file_failure("remove", path, &error)),
        _ => Ok(()),
    }
}

fn is_absent(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// What told others that the server is there goes with it. That it is gone already is as good.
fn remove(path: Option<PathBuf>) {
    if let Some(path) = path {
        let _ = std::fs::remove_file(path);
    }
}

fn embedded_failure(error: EmbeddedError) -> Failure {
    match error {
        EmbeddedError::OtherMajor { .. } | EmbeddedError::TooOld { .. } | EmbeddedError::NotOurs { .. } => {
            Failure::Refused(error.to_string())
        }
        error => Failure::Unavailable(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_planted_link_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (victim, url) = (folder.path().join("victim"), folder.path().join("url"));
        std::fs::write(&victim, "mine").unwrap();
        symlink(&victim, folder.path().join(format!("url.{}", std::process::id()))).unwrap();
        write_private(&url, "secret").unwrap();
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "mine");
        assert_eq!(std::fs::read_to_string(&url).unwrap(), "secret\n");
        assert_eq!(url.symlink_metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_shell_reads_a_quoted_path_as_it_is() {
        for path in ["/plain", "/it's a \"folder\" $HOME/`x`\\"] {
            let script = format!("printf %s \"$(printf %s {})\"", quoted(path));
            let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), path);
        }
    }

    #[test]
    fn a_ready_file_is_stale_when_its_process_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ready.json");
        let mut child =
            std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        std::fs::write(&file, format!("{{\"database_url\":\"\",\"pid\":{}}}\n", child.id())).unwrap();
        assert!(!is_stale(&file));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(is_stale(&file));
    }
}
