//! The durable head: how far the log may be handed out.
//!
//! A commit can be visible before it is durable. An event that was given to somebody and that a crash takes back would be worse than one
//! that comes late: the next event gets its number. So whatever hands events out stops at the durable head.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use sqlx::PgConnection;

use crate::deadline::Stopwatch;
use crate::error::DatabaseError;
use crate::limits::{DURABLE_PATIENCE, DURABLE_POLL_INTERVAL, FLUSH_RETRY_INTERVAL};
use crate::store;

/// Knows up to which number the log is durable, and waits for more. One for each reader, or one for all of a process.
///
/// On a server without synchronous standbys an event is durable once the server has flushed its write-ahead log beyond it. Others
/// flush all the time, so as a rule waiting is enough; after [`DURABLE_PATIENCE`] a small commit of its own makes sure. With
/// synchronous standbys an event is durable when they have it, and only a commit that waits for them can tell.
///
/// ```no_run
/// # async fn example(connection: &mut sqlx::PgConnection) -> Result<(), seqline::ReadError> {
/// let durable = seqline::DurableHead::default();
/// let page = seqline::read::events_after(connection, 0, 500).await?;
/// if let Some(last) = page.last() {
///     durable.wait_for(connection, last.seq).await?;
///     // Now the page may leave the process.
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
pub struct DurableHead {
    known: AtomicI64,
}

impl DurableHead {
    /// Returns when all events up to `seq`, which the caller has seen, are durable. Not inside a transaction. Cancel safe.
    ///
    /// It waits for as long as a synchronous standby is away.
    ///
    /// # Errors
    ///
    /// [`DatabaseError`] when the database cannot be asked. Nothing is known of the events then.
    pub async fn wait_for(&self, connection: &mut PgConnection, seq: i64) -> Result<(), DatabaseError> {
        if seq <= self.known() {
            return Ok(());
        }
        let look = store::durable::look(connection).await?;
        if look.synchronous_standbys {
            flush_on_standbys(connection).await?;
        } else if let Some((written, flushed)) = look.written.zip(look.flushed) {
            wait_for_flush(connection, written, flushed).await?;
        }
        // Not the larger one: after a failover to a server that has less, the log is shorter.
        self.known.store(look.head, Ordering::Relaxed);
        Ok(())
    }

    /// The highest number that it has waited for, or seen beside it.
    pub(crate) fn known(&self) -> i64 {
        self.known.load(Ordering::Relaxed)
    }
}

async fn wait_for_flush(
    connection: &mut PgConnection,
    written: i64,
    mut flushed: i64,
) -> Result<(), DatabaseError> {
    let waiting = Stopwatch::start();
    while flushed < written {
        // The position is behind what is flushed for ever when nobody writes: it can be that of a page that has just begun.
        if waiting.elapsed() >= DURABLE_PATIENCE {
            store::durable::flush(connection).await?;
            return Ok(());
        }
        pause(DURABLE_POLL_INTERVAL).await;
        flushed = store::durable::flushed(connection).await?;
    }
    Ok(())
}

/// One at a time for each login: a server goes on waiting for its standby when the client has given up, so those that are tried again
/// and again would fill it.
async fn flush_on_standbys(connection: &mut PgConnection) -> Result<(), DatabaseError> {
    while store::durable::flush_waits(connection).await? {
        pause(FLUSH_RETRY_INTERVAL).await;
    }
    Ok(store::durable::flush(connection).await?)
}

/// By the system's time: what a real server does is waited for.
async fn pause(duration: Duration) {
    crate::clock::Clock::system().sleep(duration).await;
}
