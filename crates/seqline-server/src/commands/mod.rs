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

/// Resolves when the user or the system asks the process to end. Listening begins with the call and not with the first
/// poll, so that no signal is missed in between. After the first, a second signal ends the process at once.
pub(crate) fn asked_to_stop() -> Stop {
    use tokio::signal::unix::{SignalKind, signal};

    let signals = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()));
    Box::pin(async move {
        let mut signals = match signals {
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
    })
}

/// The wish that the process ends.
pub(crate) type Stop = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

pub(crate) fn file_failure(what: &str, path: &Path, error: &std::io::Error) -> Failure {
    Failure::Unavailable(format!("cannot {what} {}: {error}", path.display()))
}
