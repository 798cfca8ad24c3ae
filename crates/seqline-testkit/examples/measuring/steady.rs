//! Appending at a steady rate.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use seqline_testkit::bench::machine::wait;
use seqline_testkit::{Role, TestDb};
use sqlx::Connection;
use tokio::task::JoinSet;

use crate::event::event;
use crate::measuring::now;

const WRITERS: usize = 16;

/// Appends one event in a transaction at a steady rate; the number of each and when its COMMIT was answered.
pub(crate) async fn append(
    db: &TestDb,
    per_second: u32,
    total: u64,
    start: Instant,
) -> anyhow::Result<Vec<(i64, Instant)>> {
    let (next, interval) = (Arc::new(AtomicU64::new(0)), Duration::from_secs(1) / per_second);
    let mut writers = JoinSet::new();
    for _ in 0..WRITERS {
        let (mut connection, next) = (db.connect(Role::App).await, next.clone());
        writers.spawn(async move {
            let (event, mut answered) = (event()?, Vec::new());
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= total {
                    break;
                }
                let due = start + interval * u32::try_from(number)?;
                wait(due.saturating_duration_since(now())).await;
                let mut tx = connection.begin().await?;
                let ids = seqline::append(&mut tx, std::slice::from_ref(&event)).await?;
                seqline::commit(tx).await?;
                answered.push((ids[0], now()));
            }
            let mut numbered = Vec::with_capacity(answered.len());
            for (id, at) in answered {
                let seq = seqline::read::seq_of(&mut connection, id).await?;
                numbered.push((seq.context("an event without a number")?, at));
            }
            anyhow::Ok(numbered)
        });
    }
    let mut answered = Vec::new();
    while let Some(writer) = writers.join_next().await {
        answered.extend(writer??);
    }
    Ok(answered)
}
