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

    /// How many there were in all.
    pub(crate) async fn stop(mut self) -> anyhow::Result<u64> {
        self.stop.cancel();
        while let Some(writer) = self.writers.join_next().await {
            writer??;
        }
        Ok(self.committed())
    }
}

/// What a writer does.
pub(crate) trait Work: Clone + Send + 'static {
    /// One transaction.
    fn transact(&self, connection: &mut PgConnection) -> impl Future<Output = anyhow::Result<()>> + Send;
}
