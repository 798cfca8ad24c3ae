//! Waiting for something to become true, always with a deadline, and failing with its name.

use std::panic::Location;
use std::time::Duration;

/// Pause between two looks.
const PAUSE: Duration = Duration::from_millis(10);

/// Waits until `condition` is true.
///
/// ```
/// # #[tokio::main] async fn main() {
/// use std::time::Duration;
/// use seqline_testkit::eventually;
///
/// let mut looks = 0;
/// eventually(Duration::from_secs(5), "the third look", async || {
///     looks += 1;
///     looks == 3
/// })
/// .await;
/// # }
/// ```
///
/// # Panics
///
/// If the condition is not true within `deadline`, or its check does not come back; names `what` and the caller.
#[track_caller]
pub fn eventually(
    deadline: Duration,
    what: &str,
    mut condition: impl AsyncFnMut() -> bool,
) -> impl Future<Output = ()> {
    let caller = Location::caller();
    async move {
        let looking = async {
            while !condition().await {
                pause(PAUSE).await;
            }
        };
        if tokio::time::timeout(deadline, looking).await.is_err() {
            panic!("{what} did not happen within {deadline:?} (waited for at {caller})");
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "the one place where tests let time pass")]
pub(crate) async fn pause(duration: Duration) {
    tokio::time::sleep(duration).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    #[should_panic(expected = "the impossible did not happen within 20ms (waited for at ")]
    async fn what_never_happens_is_named() {
        eventually(Duration::from_millis(20), "the impossible", async || false).await;
    }

    #[tokio::test]
    #[should_panic(expected = "an answer did not happen within 20ms")]
    async fn a_check_that_hangs_is_cut_off() {
        eventually(Duration::from_millis(20), "an answer", async || std::future::pending().await).await;
    }
}
