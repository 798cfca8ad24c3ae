//! The `seqline` command: try the log, append to it, import into it, follow it, operate it.
//!
//! Data goes to standard output, talk to standard error. `--json` works on everything that prints data. Exit codes:
//!
//! | code | meaning |
//! |---|---|
//! | 0 | done |
//! | 1 | something unexpected: please report it |
//! | 2 | the command line is wrong |
//! | 3 | the database or a file is not available now: trying again may help |
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

mod commands;
mod connect;
mod lifecycle;
mod limits;
mod output;
mod recorder;
mod store;

use std::io::IsTerminal;
use std::process::ExitCode;

use tracing_subscriber::EnvFilter;

use crate::cli::{Cli, Command};
use crate::failure::Failure;
use crate::limits::RUNTIME_END_TIMEOUT;

/// Runs the command and turns its outcome into an exit code.
#[must_use]
pub fn main(cli: Cli) -> ExitCode {
    if let Err(failure) = init_logs(&cli.command) {
        eprintln!("seqline: {}", failure.message().unwrap_or_default());
        return ExitCode::from(failure.exit_code());
    }
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("seqline: cannot start threads: {error}");
            return ExitCode::from(1);
        }
    };
    let result = runtime.block_on(Box::pin(run(cli)));
    runtime.shutdown_timeout(RUNTIME_END_TIMEOUT);
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if let Some(message) = failure.message() {
                eprintln!("seqline: {message}");
            }
            ExitCode::from(failure.exit_code())
        }
    }
}

/// On standard error: for people, warnings and errors, but for what the command itself says in its one sentence; for a server,
/// one JSON object per line, and what a running one tells as well. `SEQLINE_LOG` takes a filter such as `info`; what is none is
/// refused, since logs are all that a server gives.
fn init_logs(command: &Command) -> Result<(), Failure> {
    let serves = matches!(command, Command::Serve(_));
    let default = match command {
        Command::Serve(_) => "info,sqlx=off,riverqueue=off",
        Command::Partitions(_) => "warn,seqline::commit=off,seqline::maintenance=off,sqlx=off,riverqueue=off",
        _ => "warn,seqline::commit=off,sqlx=off,riverqueue=off",
    };
    let given = std::env::var_os("SEQLINE_LOG").unwrap_or_default();
    let filter = match given.to_str().map(str::trim) {
        Some("") => Some(EnvFilter::new(default)),
        text => text.and_then(log_filter),
    };
    let filter = filter.ok_or_else(|| {
        Failure::Usage("SEQLINE_LOG is not a filter such as info, debug or seqline=debug".to_owned())
    })?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // A second call in one process keeps the first subscriber, which is what is wanted.
    let _ = if serves {
        let builder = builder.json().flatten_event(true).with_current_span(false).with_span_list(false);
        // The default writes what the panic says, which can be anything, and not as JSON.
        std::panic::set_hook(Box::new(|panic| {
            let location = panic.location().map(ToString::to_string);
            tracing::error!(location, "panic");
        }));
        tracing::subscriber::set_global_default(builder.finish())
    } else {
        let builder = builder.with_ansi(std::io::stderr().is_terminal());
        tracing::subscriber::set_global_default(builder.finish())
    };
    Ok(())
}

/// A filter, if it is one. A single word that is no level would be taken for a module that does not exist, and all would be
/// silent.
fn log_filter(text: &str) -> Option<EnvFilter> {
    let is_level = |word: &str| word.parse::<tracing_subscriber::filter::LevelFilter>().is_ok();
    let known =
        |word: &str| is_level(word) || word.starts_with("seqline") || ["sqlx", "riverqueue"].contains(&word);
    let misspelt = text.split(',').map(str::trim).any(|part| !part.contains(['=', ':', '[']) && !known(part));
    // River repeats itself for as long as the database is away, and what is worth a line of it is told by the jobs.
    let quiet = if text.contains("riverqueue") { "" } else { ",riverqueue=off" };
    if misspelt { None } else { EnvFilter::try_new(format!("{text}{quiet}")).ok() }
}

async fn run(cli: Cli) -> Result<(), Failure> {
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
        Command::Serve(args) => commands::serve::run(&database, args).await,
    }
}
