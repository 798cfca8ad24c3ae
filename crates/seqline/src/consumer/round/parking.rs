//! Events that are put aside, and what says that they were tried.

use std::time::Duration;

use super::read::Read;
use super::{RoundResult, Rounds, Tried, Worked, ended};
use crate::consumer::error::RoundError;
use crate::consumer::handler::Round;
use crate::consumer::plan::LostRange;
use crate::consumer::policy::{FailurePolicy, Next};
use crate::deadline::within;
use crate::error::DatabaseError;
use crate::event::StoredEvent;
use crate::store;
use crate::store::consumers::HeldCursor;

/// How many events a round has put aside.
pub(super) struct Aside {
    /// Because they had failed.
    pub(super) parked: usize,
    /// Because one of their key is.
    pub(super) behind: usize,
}

impl Rounds<'_> {
    /// Takes those events out that are not to be handled now, and parks them.
    pub(super) async fn put_aside(
        &self,
        round: &mut Round<'_>,
        held: &HeldCursor,
        next: &Next,
        events: &mut Vec<StoredEvent>,
    ) -> Result<Aside, RoundError> {
        let name = self.name.as_str();
        let mut aside = Aside { parked: 0, behind: 0 };
        let Some(first) = events.first().map(|event| event.seq) else { return Ok(aside) };
        if held.has_parked {
            let seqs: Vec<i64> = events.iter().map(|event| event.seq).collect();
            let behind = self.ask(store::parking::park_behind(&mut round.tx, name, &seqs)).await;
            let behind = behind.map_err(|error| parked_full(error, first))?;
            aside.behind = behind.len();
            events.retain(|event| behind.binary_search(&event.seq).is_err());
        }
        if let (Next::Park { attempts, error_type }, Some(event)) = (next, events.first()) {
            let parked =
                self.ask(store::parking::park(&mut round.tx, name, event.seq, *attempts, error_type)).await;
            parked.map_err(|error| parked_full(error, event.seq))?;
            aside.parked = 1;
            events.clear();
        }
        Ok(aside)
    }

    /// Says what will be tried, so that it is known whatever becomes of this process.
    pub(super) async fn mark(
        &self,
        held: &HeldCursor,
        next: &Next,
        read: &Read,
        tried: &mut Option<Tried>,
    ) -> Result<(), RoundError> {
        if self.policy == FailurePolicy::Stall || read.events.is_empty() {
            return Ok(());
        }
        let (lane, last_seq) = (held.lane, held.from);
        match *next {
            Next::Many => {
                self.write_mark(lane, (last_seq, read.new_last_seq, 0), Duration::ZERO).await?;
                *tried = Some(Tried::Many { lane, last_seq });
            }
            Next::One { attempt, until } => {
                let pause = self.policy.pause_after(attempt, self.config.failure_backoff_cap);
                self.write_mark(lane, (last_seq, until, attempt), pause.unwrap_or_default()).await?;
                *tried = Some(Tried::One { lane, last_seq, until, attempt });
            }
            Next::Wait(_) | Next::Park { .. } => {}
        }
        Ok(())
    }

    /// Tries a parked event. The cursor is held for it, so that nothing of its key is handled meanwhile, and does not move.
    pub(super) async fn try_parked(
        &self,
        round: &mut Round<'_>,
        held: &HeldCursor,
        seq: i64,
        tried: &mut Option<Tried>,
    ) -> Result<Worked, RoundError> {
        let name = self.name.as_str();
        let events = self.ask(store::read::events(&mut round.tx, &[seq])).await?;
        let lost = events.is_empty().then_some(LostRange { from: seq, to: seq });
        if lost.is_some() {
            self.ask(store::consumers::record_loss(&mut round.tx, name, seq, seq)).await?;
        } else {
            let attempt = self.ask(store::parking::parked_attempts(&mut round.tx, name, seq)).await? + 1;
            let pause = self.policy.pause_after(attempt, self.config.failure_backoff_cap);
            self.write_parked_mark(seq, attempt, pause).await?;
            *tried = Some(Tried::Parked { lane: held.lane, seq, attempt });
        }
        let jobs = self.handle_all(round, held, &events, (seq, seq)).await?;
        let unparked = store::parking::unpark(&mut round.tx, name, seq, held, self.may_append);
        ended(self.ask(unparked).await, (seq, seq))?;
        Ok(Worked { result: RoundResult::of_parked(events.len(), jobs, lost), span: (seq, seq) })
    }

    /// A round that was marked has failed. What is not the event's fault is taken back as far as that is possible: the attempt was none.
    pub(super) async fn came_to_nothing(&self, tried: Tried, error: &RoundError) {
        let written = match (tried, error.is_of_event()) {
            (Tried::Many { .. }, true) => Ok(()),
            (Tried::One { lane, .. }, true) => self.note(lane, None, error).await,
            (Tried::Parked { lane, seq, .. }, true) => self.note(lane, Some(seq), error).await,
            (Tried::Many { lane, last_seq }, false) => {
                self.write_mark(lane, (last_seq, last_seq, 0), Duration::ZERO).await
            }
            (Tried::One { lane, last_seq, until, attempt }, false) => {
                self.write_mark(lane, (last_seq, until, attempt - 1), Duration::ZERO).await
            }
            (Tried::Parked { seq, attempt, .. }, false) => {
                self.write_parked_mark(seq, attempt - 1, Some(Duration::ZERO)).await
            }
        };
        if let Err(error) = written {
            // It counts for one more attempt, or for an attempt whose end is not known.
            tracing::debug!(
                consumer = self.name.as_str(),
                error = &error as &dyn std::error::Error,
                "event consumer mark stays as it was"
            );
        }
    }

    async fn write_mark(
        &self,
        lane: u32,
        mark: (i64, i64, u32),
        pause: Duration,
    ) -> Result<(), DatabaseError> {
        within(self.config.deadline(), async {
            let mut lease = self.marks.acquire(self.pool).await?;
            store::parking::mark_round(lease.connection(), self.name.as_str(), lane, mark, pause).await?;
            lease.done();
            Ok(())
        })
        .await
    }

    async fn write_parked_mark(
        &self,
        seq: i64,
        attempts: u32,
        pause: Option<Duration>,
    ) -> Result<(), DatabaseError> {
        within(self.config.deadline(), async {
            let mut lease = self.marks.acquire(self.pool).await?;
            store::parking::mark_parked(lease.connection(), self.name.as_str(), seq, attempts, pause).await?;
            lease.done();
            Ok(())
        })
        .await
    }

    async fn note(&self, lane: u32, parked: Option<i64>, error: &RoundError) -> Result<(), DatabaseError> {
        within(self.config.deadline(), async {
            let mut lease = self.marks.acquire(self.pool).await?;
            let noting = store::parking::note_attempt(
                lease.connection(),
                self.name.as_str(),
                lane,
                parked,
                error.error_type(),
            );
            noting.await?;
            lease.done();
            Ok(())
        })
        .await
    }
}

/// Tells apart that there are too many.
fn parked_full(error: DatabaseError, seq: i64) -> RoundError {
    match error.seqline_constraint() {
        Some("parked_max_events") => RoundError::ParkedFull { seq },
        _ => error.into(),
    }
}
