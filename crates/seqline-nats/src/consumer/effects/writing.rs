//! What a transaction says besides the effects: what failed, what is given up, what waits no longer.

use sqlx::PgConnection;
use uuid::Uuid;

use super::{Effects, Held, Source, Whence, Work};
use crate::consumer::decide::{Came, Reason, retry_delay};
use crate::consumer::error::PassError;
use crate::limits::FAILED_LOCK_WAIT;
use crate::store;
use crate::store::retries::{Failure, Letter};

/// What becomes of an event that failed.
enum Next {
    Again(Failure),
    Never(Letter),
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
                    match self.failure(work, attempts, error_type.unwrap_or("handler")) {
                        Next::Again(failure) => failures.push(failure),
                        Next::Never(letter) => {
                            letters.push(letter);
                            removed.push(work.event_id);
                        }
                    }
                }
                Came::Stopped => unclaimed.push(work.event_id),
                Came::OtherHistory => {
                    letters.push(letter_of(work, Reason::OtherHistory, work.failures, None));
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
            shared.ask(store::retries::put(tx, shared.name(), &failures)).await?;
        }
        if !letters.is_empty() {
            self.write_letters(tx, &letters).await?;
        }
        if source == Source::Retries && !removed.is_empty() {
            shared.ask(store::retries::remove(tx, shared.name(), &removed)).await?;
        }
        Ok(())
    }

    fn failure(&self, work: &Work, attempts: u32, error_type: &'static str) -> Next {
        let config = &self.shared.config;
        if attempts >= config.attempts {
            return Next::Never(letter_of(work, Reason::AttemptsExhausted, attempts, Some(error_type)));
        }
        let delay = retry_delay(attempts, config.retry_backoff, config.retry_backoff_cap, fastrand::f64());
        Next::Again(Failure {
            event_id: work.event_id,
            position: work.position,
            stream_seq: work.whence.stream_seq,
            attempts: i32::try_from(attempts).unwrap_or(i32::MAX),
            delay_seconds: delay.as_secs_f64(),
            error_type,
        })
    }

    /// Records that an event failed whose transaction is lost.
    pub(super) async fn record_failure(
        &self,
        source: Source,
        work: &Work,
        error_type: &'static str,
    ) -> Result<Came, PassError> {
        let shared = self.shared;
        let mut lease = shared.lease().await?;
        let mut tx = shared.ask(lease.begin()).await?;
        shared.ask(store::effects::bound_locks(&mut tx, FAILED_LOCK_WAIT)).await?;
        // When this is had the server has rolled the other transaction back, and the events in it are free again.
        shared.ask(store::effects::hold_one(&mut tx, shared.name(), work.event_id)).await?;
        let forgotten = self.take_back_ended(&mut tx).await?;
        let claimed = store::effects::is_claimed(&mut tx, shared.name(), work.event_id);
        let came = match shared.ask(claimed).await? {
            true => Came::Duplicate,
            false => Came::Failed { attempts: work.failures.saturating_add(1) },
        };
        let mut held = [Held::Not(came)];
        self.write_down(&mut tx, source, std::slice::from_ref(work), &mut held, &[Some(error_type)]).await?;
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

/// The dead letter of an event.
fn letter_of(work: &Work, reason: Reason, attempts: u32, error_type: Option<&'static str>) -> Letter {
    letter(&work.whence, reason, Some((work.event_id, work.position)), attempts, error_type)
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
