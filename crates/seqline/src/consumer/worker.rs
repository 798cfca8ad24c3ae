//! The task of one consumer: when its next round is due, and what is said about the last.
//!
//! A consumer works when it is woken, by a commit or because a poll found it behind; after a full round it goes on at once.
//! After a failure it pauses, longer each time, and a wake-up does not shorten that: what failed a moment ago fails again.
//! Wake-ups that come while it works are one wake-up.
//!
//! A failing database ends nothing here, and neither does a panic. Until a round succeeds each kind of failure is logged once,
//! and then their end once.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::definition::Consumer;
use super::error::RoundError;
use super::round::{Known, Outcome, RoundResult, discard};
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

/// Kinds of failures that are told apart until the next success. There are fewer, unless reasons differ from round to round.
const SAID_FAILURES_MAX: usize = 32;

/// What was said about a consumer.
#[derive(Debug, Default)]
struct Said {
    /// In the log, since the last success: with what it fails, and why if that can be said. Each is said once, since another
    /// kind is another thing to know.
    failures: Vec<(&'static str, Option<String>)>,
    /// In the log: that it is paused.
    paused: bool,
    /// In the table of failures. Unknown at first: a process before this one may have recorded a failure.
    recorded: Option<Record>,
}

/// What the table of failures says about a consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Record {
    Recovered,
    Failing { error_type: &'static str, seq: Option<i64> },
}

/// What comes after a round.
enum Next {
    /// Another one at once.
    Round(Known),
    /// One when somebody wakes the consumer. `settled` unless another worker was at it.
    Wake { settled: bool },
    /// One after a pause.
    Pause,
}

impl Worker {
    pub(super) async fn run(self) {
        let config = &self.shared.config;
        let mut backoff = Backoff::new(config.poll_interval, config.failure_backoff_cap);
        let mut said = Said::default();
        let mut known = Known::Nothing;
        while !self.stop.is_cancelled() {
            // The guard for the handler is in the round. Errors of the application have code of their own, too.
            let worked = AssertUnwindSafe(self.work(&mut said, known)).catch_unwind().await;
            known = Known::Nothing;
            let next = match worked {
                Ok(next) => next,
                Err(panic) => {
                    discard(panic);
                    self.note(&mut said, "panic", None, None).await;
                    Next::Pause
                }
            };
            match next {
                Next::Round(position) => {
                    backoff.reset();
                    known = position;
                }
                Next::Wake { settled } => {
                    // That another worker is at it says nothing about how it goes here.
                    if settled {
                        backoff.reset();
                    }
                    tokio::select! {
                        () = self.stop.cancelled() => {}
                        () = self.wake.notified() => {}
                    }
                }
                Next::Pause => {
                    tokio::select! {
                        () = self.stop.cancelled() => {}
                        () = self.shared.clock.sleep(backoff.next(fastrand::f64())) => {}
                    }
                }
            }
        }
    }

    /// One round, and what is to be said about it.
    async fn work(&self, said: &mut Said, known: Known) -> Next {
        match Box::pin(self.shared.rounds(&self.consumer).run(known)).await {
            Ok(result) => {
                self.succeeded(said, result).await;
                match result.last_seq.filter(|_| result.full) {
                    Some(last_seq) => Next::Round(Known::Position(last_seq)),
                    None => Next::Wake { settled: result.outcome != Outcome::Locked },
                }
            }
            Err(error) => {
                // What a handler says can hold a payload: not above debug.
                tracing::debug!(
                    consumer = self.consumer.name.as_str(),
                    seq = error.seq(),
                    error = &error as &dyn std::error::Error,
                    "event consumer round error"
                );
                if matches!(error, RoundError::MissingCursor) {
                    self.start_anew().await;
                }
                self.note(said, error.error_type(), error.seq(), error.reason()).await;
                Next::Pause
            }
        }
    }

    async fn succeeded(&self, said: &mut Said, result: RoundResult) {
        let consumer = self.consumer.name.as_str();
        if result.outcome == Outcome::Locked {
            return;
        }
        let paused = result.outcome == Outcome::Paused;
        match (std::mem::replace(&mut said.paused, paused), paused) {
            (false, true) => tracing::warn!(consumer, "event consumer is paused"),
            (true, false) => tracing::info!(consumer, "event consumer goes on"),
            _ => {}
        }
        if paused {
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
        if !std::mem::take(&mut said.failures).is_empty() {
            tracing::info!(consumer, "event consumer recovered");
        }
        self.record(said, Record::Recovered).await;
    }

    /// Says that the consumer fails, in the log and in the table.
    async fn note(
        &self,
        said: &mut Said,
        error_type: &'static str,
        seq: Option<i64>,
        reason: Option<String>,
    ) {
        let failure = (error_type, reason);
        if said.failures.len() < SAID_FAILURES_MAX && !said.failures.contains(&failure) {
            let reason = &failure.1;
            let consumer = self.consumer.name.as_str();
            tracing::error!(consumer, seq, "error.type" = error_type, reason, "event consumer round failed");
            said.failures.push(failure);
        }
        tokio::select! {
            () = self.record(said, Record::Failing { error_type, seq }) => {}
            // The database may be away, and then this takes long.
            () = self.stop.cancelled() => {}
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
