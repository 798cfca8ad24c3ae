//! One module for each command.

pub(crate) mod append;
pub(crate) mod import;
pub(crate) mod migrate;
pub(crate) mod partitions;
pub(crate) mod status;
pub(crate) mod tail;
pub(crate) mod up;

use std::path::Path;

use crate::failure::Failure;

/// Resolves when the user or the system asks the process to end. The second signal ends it at once.
pub(crate) async fn asked_to_stop() {
    use tokio::signal::unix::{SignalKind, signal};

    let mut signals = match (signal(SignalKind::interrupt()), signal(SignalKind::terminate())) {
        (Ok(interrupt), Ok(terminate)) => (interrupt, terminate),
        // Without handlers a signal ends the process, which is also what was asked for.
        _ => return std::future::pending().await,
    };
    tokio::select! {
        _ = signals.0.recv() => {}
        _ = signals.1.recv() => {}
    }
    tokio::spawn(async move {
        tokio::select! {
            _ = signals.0.recv() => {}
            _ = signals.1.recv() => {}
        }
        std::process::exit(130);
    });
}

pub(crate) fn file_failure(what: &str, path: &Path, error: &std::io::Error) -> Failure {
    Failure::Unavailable(format!("cannot {what} {}: {error}", path.display()))
}
