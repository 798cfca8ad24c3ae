//! The task of one consumer: when its next round is due, and what is said about the last.
//!
//! A consumer works when it is woken, by a commit or because a poll found it behind; after a full round it goes on at once.
//! After a failure it pauses, longer each time, and a wake-up does not shorten that: what failed a moment ago fails again.
//! Wake-ups that come while it works are one wake-up.
//!
//! A failing database ends nothing here. The same failure is logged once, and its end once.

use std::sync::Arc;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::definition::Consumer;
use super::error::RoundError;
use super::round::{Known, Outcome, RoundResult};
use super::shared::Shared;
use crate::backoff::Backoff;
use crate::deadline::{Lease, within};
use crate::error::DatabaseError;
use crate::store;

/// The task of one consumer.
pub(super) struct Worker {
    pub(super) shared: Arc<Shared>,
    pub(super) consumer: Arc<Consumer>,
    pub(super) wake: Arc<Notify>,
    pub(super) stop: CancellationToken,
}

/// What was said about a consumer last.
#[derive(Debug, Default)]
struct Said {
    /// In the log: that it fails.
    failing: bool,
    /// In the table of failures. Unknown at first: a process before this one may have recorded a failure.
    recorded: Option<Record>,
}

/// What the table of failures says about a consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Record {
    Recovered,
    Failing { error_type: &'static str, seq: Option<i64> },
}

impl Worker {
    pub(super) async fn run(self) {
        let config = &self.shared.config;
        let rounds = self.shared.rounds(&self.consumer);
        let mut backoff = Backoff::new(config.poll_interval, config.failure_backoff_cap);
        let mut said = Said::default();
        let mut known = Known::Nothing;
        while !self.stop.is_cancelled() {
            let result = Box::pin(rounds.run(known)).await;
            known = Known::Nothing;
            match result {
                Ok(result) => {
                    self.succeeded(&mut said, result).await;
                    // That another worker is at it says nothing about how it goes here.
                    if result.outcome != Outcome::Locked {
                        backoff.reset();
                    }
                    if let Some(last_seq) = result.last_seq.filter(|_| result.full) {
                        known = Known::Position(last_seq);
                        continue;
                    }
                    tokio::select! {
                        () = self.stop.cancelled() => {}
                        () = self.wake.notified() => {}
                    }
                }
                Err(error) => {
                    self.failed(&mut said, &error).await;
                    tokio::select! {
                        () = self.stop.cancelled() => {}
                        () = self.shared.clock.sleep(backoff.next(fastrand::f64())) => {}
                    }
                }
            }
        }
    }

    async fn succeeded(&self, said: &mut Said, result: RoundResult) {
        let consumer = self.consumer.name.as_str();
        if result.outcome == Outcome::Locked {
            return;
        }
        if let Some(lost) = result.lost {
            tracing::error!(
                consumer,
                seq = lost.to + 1,
                lost_from = lost.from,
                lost_to = lost.to,
                "event consumer lost events to retention"
            );
        }
        if std::mem::take(&mut said.failing) {
            tracing::info!(consumer, "event consumer recovered");
        }
        self.record(said, Record::Recovered).await;
    }

    async fn failed(&self, said: &mut Said, error: &RoundError) {
        let (consumer, seq, error_type) = (self.consumer.name.as_str(), error.seq(), error.error_type());
        if !std::mem::replace(&mut said.failing, true) {
            tracing::error!(consumer, seq, "error.type" = error_type, "event consumer round failed");
        }
        // What a handler says can hold a payload: not above debug.
        tracing::debug!(consumer, seq, error = error as &dyn std::error::Error, "event consumer round error");
        if matches!(error, RoundError::MissingCursor) {
            self.start_anew().await;
        }
        if !error.is_outage() {
            self.record(said, Record::Failing { error_type, seq }).await;
        }
    }

    /// A consumer whose cursor is gone is a new one.
    async fn start_anew(&self) {
        match self.shared.ensure(std::slice::from_ref(&self.consumer)).await {
            Ok(()) => tracing::error!(
                consumer = self.consumer.name.as_str(),
                start_at = %self.consumer.start_at,
                "event consumer had no cursor, it was made anew"
            ),
            // The next round fails in the same way and comes back here.
            Err(error) => {
                tracing::debug!(error = &error as &dyn std::error::Error, "event consumer has no cursor yet")
            }
        }
    }

    /// Writes it to the table unless that says so already. When that fails the next round tries again; whoever reads logs has
    /// been told.
    async fn record(&self, said: &mut Said, record: Record) {
        if said.recorded == Some(record) {
            return;
        }
        let name = self.consumer.name.as_str();
        let config = &self.shared.config;
        let written = within(config.statement_timeout, async {
            let mut lease = Lease::acquire(&self.shared.pool).await?;
            match record {
                Record::Recovered => store::consumers::record_recovery(lease.connection(), name).await?,
                Record::Failing { error_type, seq } => {
                    store::consumers::record_failure(lease.connection(), name, error_type, seq).await?;
                }
            }
            lease.done();
            Ok::<_, DatabaseError>(())
        });
        if written.await.is_ok() {
            said.recorded = Some(record);
        }
    }
}
