//! The `seqline` command: try the log, append to it, import into it, follow it, operate it.
//!
//! Data goes to standard output, talk to standard error. `--json` works on everything that prints data. Exit codes:
//!
//! | code | meaning |
//! |---|---|
//! | 0 | done |
//! | 1 | something unexpected: please report it |
//! | 2 | the command line is wrong |
//! | 3 | the database, a file or an address is not available now: trying again may help; a server is not ready |
//! | 4 | refused: an event breaks a rule, a right is missing, versions do not fit |
//! | 5 | partly done: lines of an import were rejected, by this run or one before |
//! | 130 | interrupted |
//!
//! Errors are [`failure::Failure`] where the world of the user is to blame, with one clear sentence and a
//! code; anything else is a bug.

pub mod cli;
pub mod config;
pub mod failure;
pub mod jobs;
pub mod metrics;

mod address;
#[expect(dead_code, reason = "for routes that come one after the other")]
mod api;
mod broker;
mod commands;
mod connect;
mod delivery;
mod fanout;
mod lifecycle;
mod limits;
mod log_format;
mod operate;
mod ops;
mod output;
mod recorder;
mod sqlstate;
mod store;
mod streaming;
mod telemetry;

use std::io::IsTerminal;
use std::process::ExitCode;

use seqline::Clock;
use tracing_subscriber::fmt::format::JsonFields;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt};

use crate::cli::{Cli, Command};
use crate::config::Config;
use crate::failure::Failure;
use crate::limits::RUNTIME_END_TIMEOUT;
use crate::log_format::Traced;
use crate::telemetry::Telemetry;

/// What a server has before anything runs: what can be set, and what it tells.
struct Server {
    config: Config,
    telemetry: Telemetry,
    clock: Clock,
}

/// Runs the command and turns its outcome into an exit code.
#[must_use]
pub fn main(cli: Cli) -> ExitCode {
    let server = match prepare(&cli.command) {
        Ok(server) => server,
        Err(failure) => return end(&failure),
    };
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return end(&Failure::Unexpected(format!("cannot start threads: {error}"))),
    };
    let result = runtime.block_on(Box::pin(run(cli, server.as_ref())));
    runtime.shutdown_timeout(RUNTIME_END_TIMEOUT);
    if let Some(server) = &server {
        server.telemetry.shutdown();
    }
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => end(&failure),
    }
}

/// Says what is wrong, unless it is said already.
fn end(failure: &Failure) -> ExitCode {
    if let Some(message) = failure.message() {
        eprintln!("seqline: {message}");
    }
    ExitCode::from(failure.exit_code())
}

/// Settings, logs and traces. What a server may choose about its traces is a setting, so that is read first.
fn prepare(command: &Command) -> Result<Option<Server>, Failure> {
    let server = match command {
        Command::Serve(args) => {
            let (config, clock) = (commands::configuration(&args.config)?, Clock::system());
            let telemetry = Telemetry::new(&config, clock.clone())?;
            Some(Server { config, telemetry, clock })
        }
        _ => None,
    };
    init_logs(command, server.as_ref().map(|server| &server.telemetry))?;
    Ok(server)
}

/// On standard error: for people, warnings and errors, but for what the command itself says in its one sentence; for a server,
/// one JSON object per line, and what a running one tells as well. `SEQLINE_LOG` takes a filter such as `info`; what is none is
/// refused, since logs are all that a server gives.
fn init_logs(command: &Command, telemetry: Option<&Telemetry>) -> Result<(), Failure> {
    let default = match command {
        Command::Serve(_) => "info,sqlx=off,riverqueue=off,async_nats=off,opentelemetry=off",
        Command::Partitions(_) => {
            "warn,seqline::commit=off,seqline::maintenance=off,sqlx=off,riverqueue=off,async_nats=off"
        }
        _ => "warn,seqline::commit=off,sqlx=off,riverqueue=off,async_nats=off",
    };
    let given = std::env::var_os("SEQLINE_LOG").unwrap_or_default();
    let filter = match given.to_str().map(str::trim) {
        Some("") => Some(EnvFilter::new(default)),
        text => text.and_then(log_filter),
    };
    let filter = filter.ok_or_else(|| {
        Failure::Usage("SEQLINE_LOG is not a filter such as info, debug or seqline=debug".to_owned())
    })?;
    // A second call in one process keeps the first subscriber, which is what is wanted.
    let _ = match telemetry {
        Some(telemetry) => {
            // The default writes what the panic says, which can be anything, and not as JSON.
            std::panic::set_hook(Box::new(|panic| {
                let location = panic.location().map(ToString::to_string);
                tracing::error!(location, "panic");
            }));
            let line =
                fmt::format().json().flatten_event(true).with_current_span(false).with_span_list(false);
            let logs = fmt::layer().fmt_fields(JsonFields::new()).event_format(Traced(line));
            let logs = logs.with_writer(std::io::stderr);
            let subscriber = Registry::default().with(telemetry.layer()).with(logs.with_filter(filter));
            tracing::subscriber::set_global_default(subscriber)
        }
        None => {
            let logs = fmt::layer().with_writer(std::io::stderr).with_ansi(std::io::stderr().is_terminal());
            tracing::subscriber::set_global_default(Registry::default().with(logs.with_filter(filter)))
        }
    };
    Ok(())
}

/// A filter, if it is one. A single word that is no level would be taken for a module that does not exist, and all would be
/// silent.
fn log_filter(text: &str) -> Option<EnvFilter> {
    let is_level = |word: &str| word.parse::<tracing_subscriber::filter::LevelFilter>().is_ok();
    let known = |word: &str| {
        is_level(word)
            || word.starts_with("seqline")
            || ["sqlx", "riverqueue", "async_nats", "opentelemetry"].contains(&word)
    };
    let misspelt = text.split(',').map(str::trim).any(|part| !part.contains(['=', ':', '[']) && !known(part));
    // They repeat themselves for as long as database or broker are away, and what is worth a line of it is told by those who use them.
    let quiet = ["riverqueue", "async_nats"].into_iter().filter(|module| !text.contains(module));
    let quiet: String = quiet.map(|module| format!(",{module}=off")).collect();
    if misspelt { None } else { EnvFilter::try_new(format!("{text}{quiet}")).ok() }
}

async fn run(cli: Cli, server: Option<&Server>) -> Result<(), Failure> {
    let database = cli.database;
    match cli.command {
        Command::Up(args) => commands::up::run(&database, args).await,
        Command::Migrate(args) => commands::migrate::run(&database, args).await,
        Command::Append(args) => commands::append::run(&database, *args)
            .await
            .map_err(|failure| failure.granted_by("seqline_producer or seqline_app")),
        Command::Import(args) => commands::import::run(&database, *args).await,
        Command::Tail(args) => commands::tail::run(&database, args)
            .await
            .map_err(|failure| failure.granted_by("seqline_reader or seqline_app")),
        Command::Status(args) => commands::status::run(&database, args).await,
        Command::Settings(args) => commands::settings::run(&database, args).await,
        Command::Partitions(args) => commands::partitions::run(&database, args).await,
        Command::Consumers(args) => commands::consumers::run(&database, args).await,
        Command::Parked(args) => commands::parked::run(&database, args).await,
        Command::Jobs(args) => commands::jobs::run(&database, args).await,
        Command::Redact(args) => commands::redact::run(&database, args).await,
        Command::Principals(args) => commands::access::principals::run(&database, args).await,
        Command::Tokens(args) => commands::access::tokens::run(&database, args).await,
        Command::Grants(args) => commands::access::grants::run(&database, args).await,
        Command::Agents(args) => commands::agents::run(&database, args).await,
        Command::Stream(args) => commands::stream::run(&database, args).await,
        Command::Relay(args) => commands::relay::run(&database, args).await,
        Command::DeadLetters(args) => commands::dead_letters::run(&database, args).await,
        Command::Audit(args) => commands::audit::run(&database, args).await,
        Command::Restore(args) => commands::restore::run(&database, args).await,
        Command::Doctor(args) => commands::doctor::run(&database, args).await,
        Command::Config(args) => commands::config::run(&args),
        Command::Healthcheck(args) => commands::healthcheck::run(&args).await,
        Command::Serve(args) => match server {
            Some(server) => Box::pin(commands::serve::run(&database, args, server)).await,
            None => Err(Failure::Unexpected("a server was not prepared".to_owned())),
        },
    }
}
