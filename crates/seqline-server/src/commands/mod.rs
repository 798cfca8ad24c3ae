//! One module for each command.

pub(crate) mod append;
pub(crate) mod import;
pub(crate) mod migrate;
pub(crate) mod partitions;
pub(crate) mod serve;
pub(crate) mod status;
pub(crate) mod tail;
pub(crate) mod up;

use std::path::Path;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::failure::Failure;

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

pub(crate) fn file_failure(what: &str, path: &Path, error: &std::io::Error) -> Failure {
    Failure::Unavailable(format!("cannot {what} {}: {error}", path.display()))
}
