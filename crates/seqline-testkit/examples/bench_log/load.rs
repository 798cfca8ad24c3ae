//! Writers that do one business UPDATE and append one event per transaction, and a clock to count them by.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use seqline::{Clock, NewEvent, Payload};
use seqline_testkit::{Role, TestDb};
use sqlx::PgPool;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::measuring::now;

/// What a transaction of the load consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    /// The baseline: the business UPDATE alone.
    UpdateOnly,
    /// The UPDATE and one event.
    UpdateAndAppend,
    /// One event alone, where the UPDATE would have a cost of its own that is not of interest.
    AppendOnly,
}

pub(crate) fn event() -> NewEvent {
    let payload =
        Payload::from_json(r#"{"order": 17, "customer": "Alex", "total": 12.50, "lines": [1, 2, 3]}"#);
    let payload = payload.expect("the payload is an object");
    NewEvent::builder("order.created", "order", "any")
        .resource_id("17")
        .payload(payload)
        .build()
        .expect("it is valid")
}

/// A business table with one row for each writer, so that writers meet at the log and nowhere else.
pub(crate) async fn create_business_table(db: &TestDb) -> sqlx::Result<()> {
    let admin = db.admin();
    sqlx::query("CREATE TABLE IF NOT EXISTS orders (id bigint PRIMARY KEY, n bigint NOT NULL)")
        .execute(&admin)
        .await?;
    sqlx::query("GRANT SELECT, UPDATE ON orders TO PUBLIC").execute(&admin).await?;
    sqlx::query("INSERT INTO orders SELECT id, 0 FROM generate_series(0, 255) id ON CONFLICT DO NOTHING")
        .execute(&admin)
        .await?;
    Ok(())
}

/// Running writers.
pub(crate) struct Load {
    done: Arc<AtomicU64>,
    stop: CancellationToken,
    writers: JoinSet<anyhow::Result<()>>,
}

impl Load {
    pub(crate) fn start(db: &TestDb, writers: u32, work: Work) -> Self {
        let (done, stop) = (Arc::new(AtomicU64::new(0)), CancellationToken::new());
        let mut tasks = JoinSet::new();
        for writer in 0..writers {
            let pool = db.pool(Role::App, 1);
            tasks.spawn(write(pool, i64::from(writer), work, Arc::clone(&done), stop.clone()));
        }
        Self { done, stop, writers: tasks }
    }

    /// Transactions per second over the next `duration`.
    pub(crate) async fn rate(&self, duration: Duration) -> f64 {
        let (before, start) = (self.done.load(Ordering::Relaxed), now());
        Clock::system().sleep(duration).await;
        (self.done.load(Ordering::Relaxed) - before) as f64 / start.elapsed().as_secs_f64()
    }

    pub(crate) async fn stop(mut self) -> anyhow::Result<()> {
        self.stop.cancel();
        while let Some(writer) = self.writers.join_next().await {
            writer??;
        }
        Ok(())
    }
}

async fn write(
    pool: PgPool,
    writer: i64,
    work: Work,
    done: Arc<AtomicU64>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let event = event();
    while !stop.is_cancelled() {
        let mut tx = seqline::begin(&pool).await?;
        if work != Work::AppendOnly {
            sqlx::query("UPDATE orders SET n = n + 1 WHERE id = $1").bind(writer).execute(&mut *tx).await?;
        }
        if work != Work::UpdateOnly {
            seqline::append(&mut tx, std::slice::from_ref(&event)).await?;
        }
        seqline::commit(tx).await?;
        done.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}
