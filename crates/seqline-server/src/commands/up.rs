//! `seqline up`: everything that is needed, here and now.
//!
//! Without a database URL it runs a PostgreSQL server of its own on this machine; with one it uses that database. Either
//! way it brings the schema up to date, keeps partitions and retention while it runs, and stops on Ctrl-C. The data is
//! never deleted.

use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use seqline::Clock;
use seqline::embedded::{Durability, EmbeddedError, PostgresBinaries, PostgresServer, ServerConfig};
use seqline::maintenance::Maintenance;
use seqline::migrate::{Migrated, migrate};
use serde::Serialize;
use sqlx::ConnectOptions;
use sqlx::postgres::PgConnectOptions;

use super::{Stop, asked_to_stop, file_failure};
use crate::cli::{DatabaseArgs, UpArgs};
use crate::failure::Failure;
use crate::{connect, store};

/// How often partitions are maintained while `up` runs (`sync.partition_maintenance_interval`).
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(60 * 60);

#[derive(Serialize)]
struct Ready<'a> {
    database_url: &'a str,
    pid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    postgres_pid: Option<i32>,
}

pub(crate) async fn run(database: &DatabaseArgs, args: UpArgs) -> Result<(), Failure> {
    let mut stop = asked_to_stop();
    match connect::given_url(database) {
        Some(url) => on_given_database(&url, &args, &mut stop).await,
        None => on_embedded_server(&args, &mut stop).await,
    }
}

async fn on_given_database(url: &str, args: &UpArgs, stop: &mut Stop) -> Result<(), Failure> {
    let options = connect::parse(url)?;
    let migrated = migrate(&mut connect::connect(&options).await?).await?;
    say_schema(migrated);
    let ready = ready_file(args, &Ready { database_url: url, pid: std::process::id(), postgres_pid: None })?;
    eprintln!("Ready. Press Ctrl-C to stop.");
    let result = serve(&options, args, None, stop).await;
    remove(ready);
    result
}

async fn on_embedded_server(args: &UpArgs, stop: &mut Stop) -> Result<(), Failure> {
    let data_dir = match &args.data_dir {
        Some(dir) => dir.clone(),
        None => default_data_dir()?,
    };
    let binaries = PostgresBinaries::find(args.pg_bin.as_deref()).map_err(embedded_failure)?;
    let config = ServerConfig {
        port: args.port,
        durability: Durability::Durable,
        ..ServerConfig::new(binaries, &data_dir)
    };
    let mut server = tokio::select! {
        started = PostgresServer::start(config) => started.map_err(embedded_failure)?,
        () = &mut *stop => { eprintln!("Stopping."); return Ok(()) }
    };
    let result = with_server(&mut server, args, stop).await;
    let stopped = server.stop().await.map_err(embedded_failure);
    result.and(stopped)
}

async fn with_server(server: &mut PostgresServer, args: &UpArgs, stop: &mut Stop) -> Result<(), Failure> {
    let password = random_password()?;
    let (options, migrated) = prepare(server, &password).await?;
    let user = store::embedded::USER;
    let database_url = format!("postgres://{user}:{password}@127.0.0.1:{}/{user}", server.port());
    let url_file = server.data_dir().join("url");
    write_private(&url_file, &database_url)?;
    eprintln!(
        "PostgreSQL {} runs on 127.0.0.1 port {}, data in {}",
        server.version(),
        server.port(),
        server.data_dir().display()
    );
    say_schema(migrated);
    let ready = ready_file(
        args,
        &Ready {
            database_url: &database_url,
            pid: std::process::id(),
            postgres_pid: server.postmaster_pid(),
        },
    )
    .inspect_err(|_| remove(Some(url_file.clone())))?;
    let program = program();
    eprintln!(
        "Ready. In another terminal:\n\n  export SEQLINE_DATABASE_URL=\"$(cat '{}')\"\n  {program} append order.created --resource-kind order --payload '{{\"total\": 12.5}}'\n  {program} tail --follow\n\nPress Ctrl-C to stop.",
        url_file.display()
    );
    let result = serve(&options, args, Some(server), stop).await;
    remove(Some(url_file));
    remove(ready);
    result
}

/// Role, database and schema. The user's role has the rights of an application and not those of the superuser.
async fn prepare(server: &PostgresServer, password: &str) -> Result<(PgConnectOptions, Migrated), Failure> {
    let admin = server.admin_options();
    let failed = |error: sqlx::Error| Failure::from(seqline::DatabaseError::from(error));
    let mut connection = admin.connect().await.map_err(failed)?;
    store::embedded::set_user(&mut connection, password).await.map_err(failed)?;
    if !store::embedded::database_exists(&mut connection).await.map_err(failed)? {
        store::embedded::create_database(&mut connection).await.map_err(failed)?;
    }
    let mut connection = admin.database(store::embedded::USER).connect().await.map_err(failed)?;
    let migrated = migrate(&mut connection).await?;
    store::embedded::grant_roles(&mut connection).await.map_err(failed)?;
    let options = server
        .admin_options()
        .username(store::embedded::USER)
        .password(password)
        .database(store::embedded::USER);
    Ok((options.application_name("seqline"), migrated))
}

/// Maintains partitions until asked to stop, or until the embedded server ends on its own.
async fn serve(
    options: &PgConnectOptions,
    args: &UpArgs,
    server: Option<&mut PostgresServer>,
    stop: &mut Stop,
) -> Result<(), Failure> {
    let pool = connect::pool(options, 1).await?;
    let clock = Clock::system();
    let maintenance = Maintenance::new(pool, args.retention.config(), clock.clone());
    let maintain = async {
        loop {
            match maintenance.run().await {
                Ok(report) => tracing::info!(
                    created = report.created,
                    closed = report.closed,
                    dropped = report.dropped,
                    "partition maintenance done"
                ),
                Err(error) => tracing::error!(error = %error, "partition maintenance failed"),
            }
            clock.sleep(MAINTENANCE_INTERVAL).await;
        }
    };
    tokio::select! {
        () = stop => {
            eprintln!("Stopping.");
            Ok(())
        }
        () = gone(server, &clock) => Err(Failure::Unavailable("the PostgreSQL server ended on its own".to_owned())),
        () = maintain => Ok(()),
    }
}

/// Resolves when the embedded server is no longer there.
async fn gone(server: Option<&mut PostgresServer>, clock: &Clock) {
    let Some(server) = server else { return std::future::pending().await };
    while server.is_running() {
        clock.sleep(Duration::from_secs(1)).await;
    }
}

fn say_schema(migrated: Migrated) {
    let version = migrated.to;
    match migrated.from {
        from if from == version => eprintln!("The schema is current (version {version})."),
        0 => eprintln!("The schema was created (version {version})."),
        from => eprintln!("The schema was updated (version {from} to {version})."),
    }
}

/// How the user can call this program again: as it was called, which with cargo is a path.
fn program() -> String {
    std::env::args().next().unwrap_or_else(|| "seqline".to_owned())
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
    use std::io::Write;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}", std::process::id()));
    let temporary = path.with_file_name(name);
    std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&temporary)
        .and_then(|mut file| writeln!(file, "{text}"))
        .and_then(|()| std::fs::rename(&temporary, path))
        .map_err(|error| file_failure("write", path, &error))
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
