//! Events that the broker has forgotten: those that failed, those that it dropped, and those that somebody wants tried again.

use async_nats::jetstream::stream::Stream;
use seqline::envelope::{Delivery, Envelope};
use seqline::pool::Lease;
use seqline::{ReadError, StoredEvent};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::decide::{Came, Content, Reason};
use super::durable;
use super::effects::{Effects, Source, Whence, Work, letter};
use super::error::PassError;
use super::runtime::{Runtime, State};
use super::tally::Pass;
use crate::limits::RETRIES_BATCH_MAX;
use crate::message::envelope_version;
use crate::store;
use crate::store::retries::{Due, Letter};

/// What there is to be had of an event that is due.
enum Had {
    Event(Work),
    Gone(Letter),
    /// The broker would have to be asked, and cannot be.
    NotNow,
}

impl Runtime {
    /// Handles what is due, if it is time to look.
    pub(super) async fn try_again(
        &self,
        state: &mut State,
        stop: &CancellationToken,
        pass: &mut Pass,
    ) -> Result<(), PassError> {
        let shared = &*self.shared;
        let now = shared.clock.elapsed();
        if now < state.retry_at {
            return Ok(());
        }
        let limit = shared.batch().min(RETRIES_BATCH_MAX);
        let mut lease = shared.lease().await?;
        let name = shared.name();
        let due = lease.alone(async |connection| store::retries::due(connection, name, limit).await);
        let due = shared.ask(due).await?;
        let is_full = due.len() >= limit as usize;
        let (mut works, mut gone, mut is_silent) = (Vec::new(), Vec::new(), false);
        for due in due {
            // One answer that does not come is enough to wait for.
            let stream = state.link.as_ref().map(|link| &link.stream).filter(|_| !is_silent);
            match self.had(&mut lease, stream, due).await? {
                Had::Event(work) => works.push(work),
                Had::Gone(letter) => gone.push(letter),
                Had::NotNow => is_silent = true,
            }
        }
        lease.done();
        let effects = Effects { shared, stop };
        let has_gone = gone.len();
        if has_gone > 0 {
            let given_up = Box::pin(effects.give_up_due(&gone)).await?;
            pass.dead += given_up;
            self.say_gone(given_up);
        }
        let settled = Box::pin(effects.settle(Source::Retries, works)).await;
        let mut progress = has_gone;
        for (work, came) in settled.done {
            progress += usize::from(!matches!(
                came,
                Came::Busy | Came::Undecided | Came::HistoriesDiffer | Came::Stopped
            ));
            self.note((work.event_id, work.position), came, true, pass);
        }
        match settled.error {
            Some(error) => Err(error),
            None => {
                // What is busy now is looked at again after a pause.
                if is_silent {
                    state.retry_at = now.saturating_add(shared.config.failure_backoff_cap);
                } else if !is_full || progress == 0 {
                    state.retry_at = now.saturating_add(shared.config.idle_pause);
                }
                Ok(())
            }
        }
    }

    /// An event from the log, wherever it is there now; else from the stream.
    async fn had(&self, lease: &mut Lease, stream: Option<&Stream>, due: Due) -> Result<Had, PassError> {
        if let Some(event) = self.logged(lease, &due).await? {
            return Ok(Had::Event(work_of(
                &due,
                Box::new(Envelope::new(&event, &Delivery::default())),
                event.seq,
            )));
        }
        let whence = Whence { stream_seq: due.stream_seq, ..Whence::default() };
        let gone = letter(
            &whence,
            Reason::Gone,
            Some((due.event_id, due.position)),
            due.attempts.unsigned_abs(),
            None,
        );
        let Some(seq) = due.stream_seq.and_then(|seq| u64::try_from(seq).ok()) else {
            return Ok(Had::Gone(gone));
        };
        let Some(stream) = stream else { return Ok(Had::NotNow) };
        let stored = match durable::message_at(stream, seq).await {
            Ok(Some(stored)) => stored,
            Ok(None) => return Ok(Had::Gone(gone)),
            // Whatever it is, it is no reason for the others to wait.
            Err(_) => return Ok(Had::NotNow),
        };
        let headers = Some(&stored.message.headers);
        match Content::read(stored.identity, envelope_version(headers), &stored.message.payload) {
            Content::Event(identity, envelope) if identity.event_id == due.event_id => {
                let mut work = work_of(&due, envelope, identity.position);
                work.identity = Some(identity);
                Ok(Had::Event(work))
            }
            _ => Ok(Had::Gone(gone)),
        }
    }

    /// The event, if the log has it: as a rule at the position where it was met, and elsewhere after a restore.
    async fn logged(&self, lease: &mut Lease, due: &Due) -> Result<Option<StoredEvent>, PassError> {
        let shared = &*self.shared;
        let at = shared.ask(read_at(lease, due.position, due.event_id)).await?;
        if at.is_some() {
            return Ok(at);
        }
        let id = due.event_id;
        let seq = shared.ask(lease.alone(async |connection| found(connection, id).await)).await?;
        match seq {
            Some(seq) => shared.ask(read_at(lease, seq, id)).await,
            None => Ok(None),
        }
    }
}

async fn found(connection: &mut sqlx::PgConnection, id: Uuid) -> Result<Option<i64>, sqlx::Error> {
    seqline::read::seq_of(connection, id).await.map_err(seqline::DatabaseError::into_source)
}

async fn read_at(lease: &mut Lease, position: i64, id: Uuid) -> Result<Option<StoredEvent>, PassError> {
    let read = lease
        .alone(async |connection| {
            match seqline::read::events_after(connection, position.saturating_sub(1), 1).await {
                Ok(page) => Ok(page.into_iter().next()),
                Err(ReadError::Database(error)) => Err(error.into_source()),
                // Retention has it, or another history.
                Err(_) => Ok(None),
            }
        })
        .await?;
    Ok(read.filter(|event| event.seq == position && event.id == id))
}

fn work_of(due: &Due, event: Box<Envelope>, position: i64) -> Work {
    Work {
        event,
        identity: None,
        event_id: due.event_id,
        position,
        failures: due.attempts.unsigned_abs(),
        whence: Whence { stream_seq: due.stream_seq, ..Whence::default() },
        reply: None,
    }
}
