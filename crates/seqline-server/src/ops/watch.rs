//! Looks at the database now and then, for `/readyz`.

use std::time::Duration;

use seqline::Clock;
use tokio_util::sync::CancellationToken;

use super::Health;
use crate::connect::OwnConnection;
use crate::store;

/// Looks every `interval` until `stop` is cancelled. A look that takes longer than `limit` has failed.
pub(crate) async fn run(
    mut database: OwnConnection,
    health: Health,
    clock: Clock,
    interval: Duration,
    limit: Duration,
    stop: CancellationToken,
) {
    loop {
        tokio::select! {
            seen = clock.timeout(limit, database.ask(store::watch::look)) => match seen {
                Some(Ok(seen)) => health.saw(Some(seen)),
                // Whoever works with the database says what is wrong with it.
                Some(Err(error)) => {
                    tracing::debug!(error = %error, "look at the database failed");
                    health.saw(None);
                }
                None => health.saw(None),
            },
            () = stop.cancelled() => return,
        }
        tokio::select! {
            () = clock.sleep(interval) => {}
            () = stop.cancelled() => return,
        }
    }
}
