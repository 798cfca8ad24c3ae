//! Operations that begin at a fixed rate, whatever becomes of those before them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use seqline_testkit::bench::machine::wait;
use seqline_testkit::{Role, TestDb};
use sqlx::{Connection, PgConnection};
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::databases::ORDERS;
use crate::measuring::now;
use crate::ways::event;

/// More than are at work at the same time as long as the server keeps up.
const CONNECTIONS: usize = 32;
/// What each connection does first, one after the other: cold ones would pile up what begins at a fixed rate, and that takes long
/// to go.
const APPENDS_BEFORE: usize = 10;
/// The rate itself settles, too.
const WARM_UP: Duration = Duration::from_secs(2);

/// An append of one event.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Append {
    pub(crate) id: Uuid,
    /// When it was to begin.
    pub(crate) due: Instant,
    /// When its COMMIT was answered.
    pub(crate) answered: Instant,
}

/// What was done at a fixed rate.
pub(crate) struct Done {
    /// Without those of the warm-up.
    pub(crate) appends: Vec<Append>,
    /// All that were committed.
    pub(crate) committed: i64,
    /// The rate that was reached against the one that was asked for.
    pub(crate) kept: f64,
}

/// Appends an event per transaction at this rate, and waits for the end of the last.
pub(crate) async fn append(db: &TestDb, per_second: u32, duration: Duration) -> anyhow::Result<Done> {
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut connection = db.connect(Role::App).await;
        for _ in 0..APPENDS_BEFORE {
            append_one(&mut connection).await?;
        }
        connections.push(connection);
    }
    let interval = Duration::from_secs(1) / per_second;
    let next = Arc::new(AtomicU64::new(0));
    let start = now() + Duration::from_millis(50);
    let (measured_from, end) = (start + WARM_UP, start + WARM_UP + duration);
    let mut tasks = JoinSet::new();
    for mut connection in connections {
        let next = Arc::clone(&next);
        tasks.spawn(async move {
            let mut appends = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let due = start + interval * u32::try_from(number)?;
                if due >= end {
                    return anyhow::Ok(appends);
                }
                wait(due.saturating_duration_since(now())).await;
                let id = append_one(&mut connection).await?;
                appends.push(Append { id, due, answered: now() });
            }
        });
    }
    let mut appends = Vec::new();
    while let Some(worker) = tasks.join_next().await {
        appends.extend(worker??);
    }
    let committed = (appends.len() + CONNECTIONS * APPENDS_BEFORE) as i64;
    let last = appends.iter().map(|append| append.answered).max().unwrap_or(end).max(end);
    appends.retain(|append| append.due >= measured_from);
    let kept = (end - start).as_secs_f64() / (last - start).as_secs_f64();
    Ok(Done { appends, committed, kept })
}

async fn append_one(connection: &mut PgConnection) -> anyhow::Result<Uuid> {
    let mut tx = connection.begin().await?;
    let ids = seqline::append(&mut tx, &[event(fastrand::i64(0..ORDERS))?]).await?;
    seqline::commit(tx).await?;
    Ok(ids[0])
}
