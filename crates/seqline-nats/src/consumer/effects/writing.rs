//! What a transaction says besides the effects: what failed, what is given up, what waits no longer.

use std::time::Duration;

use sqlx::PgConnection;
use uuid::Uuid;

use super::{Effects, Held, Source, Whence, Work};
use crate::consumer::decide::{Came, Reason, retry_delay};
use crate::consumer::error::PassError;
use crate::store;
use crate::store::retries::{Failure, Letter};

/// What becomes of an event that failed.
enum Next {
    Again(Failure),
    Never(Letter),
}

/// An event that failed, and with what.
struct Failed<'a> {
    event_id: Uuid,
    position: i64,
    whence: &'a Whence,
    error_type: &'static str,
}

/// A failure of an event whose transaction is lost, and that is not in the database yet.
#[derive(Debug, Clone)]
pub(in crate::consumer) struct Unrecorded {
    pub(in crate::consumer) event_id: Uuid,
    pub(in crate::consumer) position: i64,
    /// How often it had failed before, if the database knows nothing else.
    failures: u32,
    whence: Whence,
    error_type: &'static str,
    times: u32,
}

impl Unrecorded {
    pub(super) fn of(work: &Work, error_type: &'static str) -> Self {
        let Work { event_id, position, failures, .. } = *work;
        Self { event_id, position, failures, whence: work.whence.clone(), error_type, times: 1 }
    }

    fn failed(&self) -> Failed<'_> {
        let Self { event_id, position, error_type, .. } = *self;
        Failed { event_id, position, whence: &self.whence, error_type }
    }

    /// The same one more.
    pub(in crate::consumer) fn add(&mut self, other: &Self) {
        self.times = self.times.saturating_add(other.times);
        self.error_type = other.error_type;
    }
}

impl Effects<'_> {
    /// Writes down what cannot be handled. For how many that was news.
    pub(in crate::consumer) async fn give_up(&self, letters: &[Letter]) -> Result<u64, PassError> {
        let mut lease = self.shared.lease().await?;
        let mut tx = self.shared.ask(lease.begin()).await?;
        let written = self.write_letters(&mut tx, letters).await?;
        self.shared.commit(tx).await?;
        lease.done();
        Ok(written)
    }

    /// The same for events that are due and cannot be had.
    pub(in crate::consumer) async fn give_up_due(&self, letters: &[Letter]) -> Result<u64, PassError> {
        let shared = self.shared;
        let ids: Vec<Uuid> = letters.iter().filter_map(|letter| letter.event_id).collect();
        let mut lease = shared.lease().await?;
        let mut tx = shared.ask(lease.begin()).await?;
        let due = shared.ask(store::retries::hold_due(&mut tx, shared.name(), &ids)).await?;
        let is_due = |letter: &&Letter| due.iter().any(|(id, _)| letter.event_id == Some(*id));
        let letters: Vec<Letter> = letters.iter().filter(is_due).cloned().collect();
        let written = self.write_letters(&mut tx, &letters).await?;
        let ids: Vec<Uuid> = due.iter().map(|(id, _)| *id).collect();
        shared.ask(store::retries::remove(&mut tx, shared.name(), &ids)).await?;
        shared.commit(tx).await?;
        lease.done();
        Ok(written)
    }

    async fn write_letters(&self, tx: &mut PgConnection, letters: &[Letter]) -> Result<u64, PassError> {
        let (consumer, stream) = (self.shared.name(), self.shared.stream.name.as_str());
        self.shared.ask(store::retries::give_up(tx, consumer, stream, letters)).await
    }

    /// What the transaction says besides the effects.
    pub(super) async fn write_down(
        &self,
        tx: &mut PgConnection,
        source: Source,
        works: &[Work],
        came: &mut [Held],
        error_types: &[Option<&'static str>],
    ) -> Result<(), PassError> {
        let shared = self.shared;
        let (mut unclaimed, mut failures, mut letters, mut removed) = (vec![], vec![], vec![], vec![]);
        for ((work, came), error_type) in works.iter().zip(came.iter()).zip(error_types) {
            match came.came() {
                Came::Failed { attempts } => {
                    unclaimed.push(work.event_id);
                    let failed = Failed {
                        event_id: work.event_id,
                        position: work.position,
                        whence: &work.whence,
                        error_type: error_type.unwrap_or("handler"),
                    };
                    match self.failure(&failed, attempts) {
                        Next::Again(failure) => failures.push(failure),
                        Next::Never(letter) => {
                            letters.push(letter);
                            removed.push(work.event_id);
                        }
                    }
                }
                Came::Stopped => unclaimed.push(work.event_id),
                Came::OtherHistory => {
                    let event = Some((work.event_id, work.position));
                    letters.push(letter(&work.whence, Reason::OtherHistory, event, work.failures, None));
                    removed.push(work.event_id);
                }
                Came::Handled | Came::Duplicate => removed.push(work.event_id),
                _ => {}
            }
        }
        if !unclaimed.is_empty() {
            shared.ask(store::effects::unclaim(tx, shared.name(), &unclaimed)).await?;
        }
        if !failures.is_empty() {
            shared.ask(store::retries::put(tx, shared.name(), &failures, 1)).await?;
        }
        if !letters.is_empty() {
            self.write_letters(tx, &letters).await?;
        }
        if source == Source::Retries && !removed.is_empty() {
            shared.ask(store::retries::remove(tx, shared.name(), &removed)).await?;
        }
        Ok(())
    }

    fn failure(&self, failed: &Failed<'_>, attempts: u32) -> Next {
        let config = &self.shared.config;
        let Failed { event_id, position, whence, error_type } = *failed;
        if attempts >= config.attempts {
            let event = Some((event_id, position));
            return Next::Never(letter(whence, Reason::AttemptsExhausted, event, attempts, Some(error_type)));
        }
        let delay = retry_delay(attempts, config.retry_backoff, config.retry_backoff_cap, fastrand::f64());
        Next::Again(Failure {
            event_id,
            position,
            stream_seq: whence.stream_seq,
            attempts: i32::try_from(attempts).unwrap_or(i32::MAX),
            delay_seconds: delay.as_secs_f64(),
            error_type,
        })
    }

    /// Records that an event failed whose transaction is lost. Between that and this anybody may have had it: so the failure is added to what is
    /// there now. Waits for whoever has the event at most so long.
    pub(in crate::consumer) async fn record_failure(
        &self,
        unrecorded: &Unrecorded,
        patience: Duration,
    ) -> Result<Came, PassError> {
        let (shared, name, event_id) = (self.shared, self.shared.name(), unrecorded.event_id);
        let mut lease = shared.lease().await?;
        let mut tx = shared.ask(lease.begin()).await?;
        shared
            .ask(store::effects::bound_locks(&mut tx, patience.min(shared.config.statement_timeout)))
            .await?;
        // When this is had the server has rolled the other transaction back, and the events in it are free again.
        shared.ask(store::effects::hold_one(&mut tx, name, event_id)).await?;
        let forgotten = self.take_back_ended(&mut tx).await?;
        let claimed = shared.ask(store::effects::is_claimed(&mut tx, name, event_id)).await?;
        let attempts = shared.ask(store::retries::hold_attempts(&mut tx, name, event_id)).await?;
        let is_given_up = match attempts {
            Some(_) => false,
            None => shared.ask(store::retries::is_given_up(&mut tx, name, event_id)).await?,
        };
        let before = attempts.map_or(unrecorded.failures, i32::unsigned_abs);
        let came = match (claimed, is_given_up) {
            (true, _) => Came::Duplicate,
            (false, true) => Came::Settled,
            (false, false) => Came::Failed { attempts: before.saturating_add(unrecorded.times) },
        };
        let mut waits_no_longer = came == Came::Duplicate;
        if let Came::Failed { attempts } = came {
            match self.failure(&unrecorded.failed(), attempts) {
                Next::Again(failure) => {
                    let times = i32::try_from(unrecorded.times).unwrap_or(i32::MAX);
                    shared.ask(store::retries::put(&mut tx, name, &[failure], times)).await?;
                }
                Next::Never(letter) => {
                    self.write_letters(&mut tx, &[letter]).await?;
                    waits_no_longer = true;
                }
            }
        }
        if waits_no_longer {
            shared.ask(store::retries::remove(&mut tx, name, &[event_id])).await?;
        }
        shared.commit(tx).await?;
        lease.done();
        shared.forget_ended(forgotten);
        Ok(came)
    }

    /// Takes back what handlers have committed that was not theirs. How many such transactions there were.
    pub(super) async fn take_back_ended(&self, tx: &mut PgConnection) -> Result<usize, PassError> {
        let ended = self.shared.ended();
        for (transaction, event_ids) in &ended {
            let taken = store::effects::unclaim_of(tx, self.shared.name(), event_ids, transaction);
            self.shared.ask(taken).await?;
        }
        Ok(ended.len())
    }
}

/// The dead letter of a message.
pub(in crate::consumer) fn letter(
    whence: &Whence,
    reason: Reason,
    event: Option<(Uuid, i64)>,
    attempts: u32,
    error_type: Option<&'static str>,
) -> Letter {
    Letter {
        reason: reason.as_str(),
        event_id: event.map(|(id, _)| id),
        position: event.map(|(_, position)| position),
        stream_created: whence.stream_created,
        stream_seq: whence.stream_seq,
        subject: whence.subject.clone(),
        size: whence.size,
        attempts: i32::try_from(attempts).unwrap_or(i32::MAX),
        error_type,
    }
}
