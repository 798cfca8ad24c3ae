//! The task of one lane of a consumer: when its next round is due, and what is said about the last.
//!
//! A consumer works when it is woken, by a commit or because a poll found it behind; after a full round it goes on at once.
//! After a failure it pauses, longer each time, and a wake-up does not shorten that: what failed a moment ago fails again.
//! Wake-ups that come while it works are one wake-up.
//!
//! A failing database ends nothing here, and neither does a panic. Until a round succeeds each kind of failure is logged once,
//! and then their end once.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::definition::Consumer;
use super::error::RoundError;
use super::lanes::Lanes;
use super::policy::FailurePolicy;
use super::round::{Known, Outcome, RoundResult, discard};
use super::shared::Shared;
use crate::backoff::Backoff;
use crate::deadline::{Lease, within};
use crate::error::DatabaseError;
use crate::store;
use crate::store::consumers::Standing;

/// The task of one lane of a consumer.
pub(super) struct Worker {
    pub(super) shared: Arc<Shared>,
    pub(super) consumer: Arc<Consumer>,
    pub(super) lane: u32,
    pub(super) lanes: Arc<Lanes>,
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
    /// The event of the last failure. Rounds of one event that come only closer to it are no recovery.
    failing: Option<i64>,
    /// In the log: that it is paused or retired.
    standing: Standing,
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
    /// One after a pause, which is longer each time.
    Pause,
    /// One when an event may be tried again.
    Wait(Duration),
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
                    self.sleep(backoff.next(fastrand::f64())).await;
                }
                Next::Wait(pause) => {
                    backoff.reset();
                    // Somebody may decide about the event meanwhile.
                    self.sleep(pause.min(config.poll_interval)).await;
                }
            }
        }
    }

    async fn sleep(&self, pause: Duration) {
        tokio::select! {
            () = self.stop.cancelled() => {}
            () = self.shared.clock.sleep(pause) => {}
        }
    }

    /// One round, and what is to be said about it.
    async fn work(&self, said: &mut Said, known: Known) -> Next {
        let round = Box::pin(self.shared.rounds(&self.consumer, Some(self.lane)).run(known)).await;
        self.consumer.tally.count(&round);
        match round {
            Ok(result) => {
                self.succeeded(said, result).await;
                match (result.wait, result.full, result.last_seq) {
                    (Some(pause), ..) => Next::Wait(pause),
                    (None, true, Some(last_seq)) => Next::Round(Known::Position(last_seq)),
                    (None, true, None) => Next::Round(Known::Nothing),
                    (None, false, _) => Next::Wake { settled: result.outcome != Outcome::Locked },
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
                // Its mark says when the event is tried again.
                let has_mark = error.is_of_event() && !matches!(error, RoundError::Commit(_));
                match self.consumer.policy {
                    FailurePolicy::Park { .. } if has_mark => Next::Round(Known::Nothing),
                    _ => Next::Pause,
                }
            }
        }
    }

    async fn succeeded(&self, said: &mut Said, result: RoundResult) {
        let consumer = self.consumer.name.as_str();
        let lane = self.lane_to_say();
        if matches!(result.outcome, Outcome::Locked | Outcome::Waiting) {
            return;
        }
        let standing = match result.outcome {
            Outcome::Paused => Standing::Paused,
            Outcome::Retired => Standing::Retired,
            _ => Standing::Active,
        };
        // Of all lanes one says it.
        if std::mem::replace(&mut said.standing, standing) != standing && self.lane == 0 {
            match standing {
                Standing::Paused => tracing::warn!(consumer, "event consumer is paused"),
                Standing::Retired => tracing::warn!(consumer, "event consumer is retired"),
                Standing::Active => tracing::info!(consumer, "event consumer goes on"),
            }
        }
        if standing != Standing::Active {
            return;
        }
        if result.parked > 0 {
            tracing::warn!(consumer, lane, seq = result.last_seq, "event consumer parked an event");
        }
        if result.behind > 0 {
            tracing::debug!(
                consumer,
                lane,
                seq = result.last_seq,
                count = result.behind,
                "event consumer parked events behind others of their keys"
            );
        }
        if let Some(lost) = result.lost {
            tracing::error!(
                consumer,
                lane,
                seq = lost.to + 1,
                lost_from = lost.from,
                lost_to = lost.to,
                "event consumer lost events to retention"
            );
        }
        if result.last_seq.zip(said.failing).is_some_and(|(last_seq, failing)| last_seq < failing) {
            return;
        }
        said.failing = None;
        if !std::mem::take(&mut said.failures).is_empty() {
            tracing::info!(consumer, lane, "event consumer recovered");
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
        said.failing = seq;
        let failure = (error_type, reason);
        if said.failures.len() < SAID_FAILURES_MAX && !said.failures.contains(&failure) {
            let reason = &failure.1;
            let consumer = self.consumer.name.as_str();
            let lane = self.lane_to_say();
            tracing::error!(
                consumer,
                lane,
                seq,
                "error.type" = error_type,
                reason,
                "event consumer round failed"
            );
            said.failures.push(failure);
        }
        tokio::select! {
            () = self.record(said, Record::Failing { error_type, seq }) => {}
            // The database may be away, and then this takes long.
            () = self.stop.cancelled() => {}
        }
    }

    /// The lane, if there is another one.
    fn lane_to_say(&self) -> Option<u32> {
        (self.lanes.count() > 1).then_some(self.lane)
    }

    /// A consumer whose cursor is gone is a new one.
    async fn start_anew(&self) {
        match self.shared.ensure(std::slice::from_ref(&self.consumer)).await {
            Ok(_) => tracing::error!(
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
            let written = lease.alone(async |connection| match record {
                Record::Recovered => store::consumers::record_recovery(connection, name, self.lane).await,
                Record::Failing { error_type, seq } => {
                    store::consumers::record_failure(connection, name, self.lane, error_type, seq).await
                }
            });
            written.await?;
            lease.done();
            Ok::<_, DatabaseError>(())
        });
        if written.await.is_ok() {
            said.recorded = Some(record);
        }
    }
}
