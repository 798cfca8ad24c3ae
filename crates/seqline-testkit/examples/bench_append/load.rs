//! Writers that do one transaction after the other, and a clock to count them by.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use seqline_testkit::bench::machine::wait;
use seqline_testkit::{Role, TestDb};
use sqlx::PgConnection;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::measuring::now;

/// Running writers, each with a connection of its own. Without a pool: what that asks a connection between two transactions would be
/// the same for all ways, and make them look more alike than they are.
pub(crate) struct Load {
    done: Arc<AtomicU64>,
    stop: CancellationToken,
    writers: JoinSet<anyhow::Result<()>>,
}

impl Load {
    /// When all are connected.
    pub(crate) async fn start(db: &TestDb, writers: u32, work: impl Work) -> Self {
        let (done, stop) = (Arc::new(AtomicU64::new(0)), CancellationToken::new());
        let mut connections = Vec::new();
        for _ in 0..writers {
            connections.push(db.connect(Role::App).await);
        }
        let mut tasks = JoinSet::new();
        for mut connection in connections {
            let (done, stop, work) = (Arc::clone(&done), stop.clone(), work.clone());
            tasks.spawn(async move {
                while !stop.is_cancelled() {
                    work.transact(&mut connection).await?;
                    done.fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            });
        }
        Self { done, stop, writers: tasks }
    }

    /// How many transactions were committed.
    pub(crate) fn committed(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Transactions per second over the next `duration`.
    pub(crate) async fn rate(&self, duration: Duration) -> f64 {
        let (before, start) = (self.committed(), now());
        wait(duration).await;
        (self.committed() - before) as f64 / start.elapsed().as_secs_f64()
    }

    /// The same for a database where a sequencer gives numbers: what was numbered in the time counts too.
    pub(crate) async fn rate_and_numbered(
        &self,
        db: &TestDb,
        duration: Duration,
        events_per_transaction: i64,
    ) -> anyhow::Result<(f64, Numbered)> {
        let mut connection = db.connect(Role::App).await;
        let (committed, head) = (self.committed(), seqline::read::head(&mut connection).await?);
        let rate = self.rate(duration).await;
        let numbered = (seqline::read::head(&mut connection).await? - head) as f64;
        let committed = (self.committed() - committed) as f64 * events_per_transaction as f64;
        let left = self.committed() as i64 * events_per_transaction - (head + numbered as i64);
        Ok((rate, Numbered { share: numbered / committed.max(1.0), left: left.max(0) as f64 }))
    }

    /// How many there were in all.
    pub(crate) async fn stop(mut self) -> anyhow::Result<u64> {
        self.stop.cancel();
        while let Some(writer) = self.writers.join_next().await {
            writer??;
        }
        Ok(self.committed())
    }
}

/// What became of the events of a measurement before its end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Numbered {
    /// Of those that were committed in the time.
    pub(crate) share: f64,
    /// Those that wait at its end, of all that were committed.
    pub(crate) left: f64,
}

/// What a writer does.
pub(crate) trait Work: Clone + Send + 'static {
    /// One transaction.
    fn transact(&self, connection: &mut PgConnection) -> impl Future<Output = anyhow::Result<()>> + Send;
}
