//! Waiting for other processes, always with a limit.
//!
//! This is real time, not that of a `Clock`: no process ends sooner because a test moves a clock.

use std::time::{Duration, Instant};

/// Pause between two looks. Short, because a test suite starts and stops many servers.
const PAUSE: Duration = Duration::from_millis(10);

/// Something that is being waited for.
pub(super) struct Wait {
    since: Instant,
}

impl Wait {
    #[expect(clippy::disallowed_methods, reason = "real time, see the module")]
    pub(super) fn start() -> Wait {
        Wait { since: Instant::now() }
    }

    pub(super) fn has_taken(&self, limit: Duration) -> bool {
        self.since.elapsed() >= limit
    }

    /// Lets some time pass before the next look.
    #[expect(clippy::disallowed_methods, reason = "real time, see the module")]
    pub(super) async fn pause(&self) {
        tokio::time::sleep(PAUSE).await;
    }
}

/// Waits until `done` says so; false when that took longer than `limit`.
pub(super) async fn wait_until(limit: Duration, mut done: impl FnMut() -> bool) -> bool {
    let wait = Wait::start();
    loop {
        if done() {
            return true;
        }
        if wait.has_taken(limit) {
            return false;
        }
        wait.pause().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn waiting_ends_with_the_limit() {
        assert!(wait_until(Duration::ZERO, || true).await);
        assert!(!wait_until(Duration::ZERO, || false).await);
    }
}
