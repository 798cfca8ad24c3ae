//! One module for each command.

pub(crate) mod access;
pub(crate) mod agents;
pub(crate) mod append;
pub(crate) mod audit;
pub(crate) mod config;
pub(crate) mod consumers;
pub(crate) mod dead_letters;
pub(crate) mod doctor;
pub(crate) mod healthcheck;
pub(crate) mod import;
pub(crate) mod jobs;
pub(crate) mod migrate;
pub(crate) mod parked;
pub(crate) mod partitions;
pub(crate) mod redact;
pub(crate) mod relay;
pub(crate) mod restore;
pub(crate) mod serve;
pub(crate) mod settings;
pub(crate) mod status;
pub(crate) mod stream;
pub(crate) mod tail;
pub(crate) mod up;

use std::io::Read;
use std::path::Path;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::cli::ConfigArgs;
use crate::config::{Config, ConfigFile, Loaded, load};
use crate::failure::Failure;
use crate::limits::CONFIG_BYTES_MAX;

/// Cancelled when the user or the system asks the process to end. Whoever does the work decides how; a second signal ends
/// the process at once, whatever it is doing. Listening begins with the call, so that no signal is missed.
pub(crate) fn asked_to_stop() -> CancellationToken {
    let stop = CancellationToken::new();
    // Without handlers a signal ends the process, which is also what was asked for.
    if let (Ok(interrupt), Ok(terminate)) = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    {
        tokio::spawn(listen(interrupt, terminate, stop.clone()));
    }
    stop
}

async fn listen(mut interrupt: Signal, mut terminate: Signal, stop: CancellationToken) {
    let mut either = async || {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    };
    either().await;
    stop.cancel();
    either().await;
    std::process::exit(130);
}

/// What the database refuses by a rule, in its words.
fn refused(refusal: seqline_nats::relay::operate::Refusal) -> Failure {
    let hint = refusal.hint.map_or_else(String::new, |hint| format!(". {}", hint.trim_end_matches('.')));
    Failure::Refused(refusal.message + &hint)
}

pub(crate) fn file_failure(what: &str, path: &Path, error: &std::io::Error) -> Failure {
    Failure::Unavailable(format!("cannot {what} {}: {error}", path.display()))
}

/// Settings from the file, the environment and the command line.
pub(crate) fn configuration(args: &ConfigArgs) -> Result<Config, Failure> {
    loaded(args).map(|loaded| loaded.config)
}

/// The same, with where each value comes from.
pub(crate) fn loaded(args: &ConfigArgs) -> Result<Loaded, Failure> {
    let file = args.config.as_deref().filter(|file| !file.is_empty());
    let file = file.map(|file| read(Path::new(file))).transpose()?;
    load(file.as_ref(), std::env::vars_os(), args.set.iter().map(String::as_str))
        .map_err(|problems| Failure::Usage(problems.to_string()))
}

/// The file with settings. Its name is known to be right when it can be read; what is in it is another question.
fn read(path: &Path) -> Result<ConfigFile, Failure> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(CONFIG_BYTES_MAX + 1).read_to_end(&mut bytes))
        .map_err(|error| file_failure("read", path, &error))?;
    let name = path.display().to_string();
    if bytes.len() as u64 > CONFIG_BYTES_MAX {
        return Err(Failure::Usage(format!(
            "{name} has more than {CONFIG_BYTES_MAX} bytes: this is not a file with settings"
        )));
    }
    Ok(ConfigFile { name, bytes })
}
