//! Events that are put aside, and what says that they were tried.

use std::time::Duration;

use super::read::Read;
use super::{RoundResult, Rounds, Tried, Worked, ended};
use crate::consumer::error::RoundError;
use crate::consumer::handler::Round;
use crate::consumer::plan::LostRange;
use crate::consumer::policy::{FailurePolicy, Fate, Mark, fate};
use crate::deadline::within;
use crate::error::DatabaseError;
use crate::event::StoredEvent;
use crate::store::consumers::HeldCursor;
use crate::store::parking::{ABORTED, Trial};
use crate::{pool, store};

/// How a round of a consumer goes on when its events were read.
pub(super) enum Begun {
    /// It tries those that are left.
    Tries,
    /// Its event was put aside.
    Parked,
    /// Its event is not to be tried yet.
    Waits(Duration),
}

/// What is written about an attempt.
enum Note {
    Round(Trial, Duration, String),
    /// The parked event, for which time it is tried, and how long to wait after it.
    Parked(i64, u32, Option<Duration>, Option<String>),
    /// How an attempt ended, at the log or at a parked event.
    Ended(u32, Option<i64>, &'static str),
}

impl Rounds<'_> {
    /// Parks those events behind others of their keys, and returns how many that were.
    pub(super) async fn put_behind(
        &self,
        round: &mut Round<'_>,
        held: &HeldCursor,
        events: &mut Vec<StoredEvent>,
    ) -> Result<usize, RoundError> {
        let Some(first) = events.first().map(|event| event.seq).filter(|_| held.has_parked) else {
            return Ok(0);
        };
        let seqs: Vec<i64> = events.iter().map(|event| event.seq).collect();
        let behind = self.ask(store::parking::park_behind(&mut round.tx, self.name.as_str(), &seqs)).await;
        let behind = behind.map_err(|error| parked_full(error, first))?;
        events.retain(|event| behind.binary_search(&event.seq).is_err());
        Ok(behind.len())
    }

    /// Says what will be tried, so that it is known whatever becomes of this process. One event that was tried as often as it may be is
    /// parked instead.
    pub(super) async fn begin_trial(
        &self,
        round: &mut Round<'_>,
        held: &HeldCursor,
        mark: Option<&Mark>,
        read: &mut Read,
        tried: &mut Option<Tried>,
    ) -> Result<Begun, RoundError> {
        let Some(seq) = read.events.first().map(|event| event.seq) else { return Ok(Begun::Tries) };
        if self.policy == FailurePolicy::Stall {
            return Ok(Begun::Tries);
        }
        let (lane, last_seq) = (held.lane, held.from);
        let Some(mark) = mark else {
            let trial = Trial { lane, last_seq, until: read.new_last_seq, alone: None };
            self.write(Note::Round(trial, Duration::ZERO, ABORTED.to_owned())).await?;
            *tried = Some(Tried::Log(trial, ABORTED.to_owned()));
            return Ok(Begun::Tries);
        };
        match fate(seq, mark, self.policy.attempts()) {
            Fate::Wait(pause) => Ok(Begun::Waits(pause)),
            Fate::Park { attempts, error_type } => {
                let name = self.name.as_str();
                let parked =
                    self.ask(store::parking::park(&mut round.tx, name, seq, attempts, &error_type)).await;
                parked.map_err(|error| parked_full(error, seq))?;
                read.events.clear();
                Ok(Begun::Parked)
            }
            Fate::Try(attempt) => {
                let trial = Trial { lane, last_seq, until: mark.until, alone: Some((seq, attempt)) };
                let pause = self.policy.pause_after(attempt, self.config.failure_backoff_cap);
                self.write(Note::Round(trial, pause.unwrap_or_default(), ABORTED.to_owned())).await?;
                *tried = Some(Tried::Log(trial, mark.error_type.clone()));
                self.ask(store::consumers::keep_lock(&mut round.tx)).await?;
                Ok(Begun::Tries)
            }
        }
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
            let (attempts, error_type) =
                self.ask(store::parking::parked_attempts(&mut round.tx, name, seq)).await?;
            let attempt = attempts + 1;
            let pause = self.policy.pause_after(attempt, self.config.failure_backoff_cap);
            self.write(Note::Parked(seq, attempt, pause, Some(ABORTED.to_owned()))).await?;
            *tried = Some(Tried::Parked { lane: held.lane, seq, attempt, error_type });
            self.ask(store::consumers::keep_lock(&mut round.tx)).await?;
        }
        self.trace(round, &events, (seq, seq));
        let jobs = self.handle_all(round, held, &events, (seq, seq)).await?;
        let unparked = store::parking::unpark(&mut round.tx, name, seq, held, self.may_append);
        ended(self.ask(unparked).await, (seq, seq))?;
        Ok(Worked { result: RoundResult::of_parked(events.len(), jobs, lost), span: (seq, seq) })
    }

    /// A round that was marked has failed. What is not the event's fault is taken back as far as that is possible: the attempt was none.
    pub(super) async fn came_to_nothing(&self, tried: Tried, error: &RoundError) {
        let note = match (tried, error.is_of_event()) {
            (Tried::Log(Trial { alone: None, .. }, _), true) => return,
            (Tried::Log(trial, _), true) => Note::Ended(trial.lane, None, error.error_type()),
            (Tried::Parked { lane, seq, .. }, true) => Note::Ended(lane, Some(seq), error.error_type()),
            (Tried::Log(trial, error_type), false) => {
                let taken_back = match trial.alone {
                    None => Trial { until: trial.last_seq, ..trial },
                    Some((seq, attempt)) => Trial { alone: Some((seq, attempt - 1)), ..trial },
                };
                Note::Round(taken_back, Duration::ZERO, error_type)
            }
            // Later, or it would keep its lane from everything else for as long as it fails so.
            (Tried::Parked { seq, attempt, error_type, .. }, false) => {
                Note::Parked(seq, attempt - 1, Some(self.config.poll_interval), error_type)
            }
        };
        if let Err(error) = self.write(note).await {
            // It counts for one more attempt, or for an attempt whose end is not known.
            tracing::debug!(
                consumer = self.name.as_str(),
                error = &error as &dyn std::error::Error,
                "event consumer mark stays as it was"
            );
        }
    }

    /// On the connection for marks. One that was kept may have been closed meanwhile, and then it is done on a new one.
    async fn write(&self, note: Note) -> Result<(), DatabaseError> {
        let (name, pooled) = (self.name.as_str(), pool::is_pooled(self.pool));
        within(self.config.deadline(), async {
            loop {
                let mut lease = self.marks.acquire(self.pool).await?;
                let connection = lease.connection();
                let written = pool::alone(connection, pooled, async |connection| match &note {
                    Note::Round(trial, pause, error_type) => {
                        store::parking::mark_round(connection, name, *trial, *pause, error_type).await
                    }
                    Note::Parked(seq, attempt, pause, error_type) => {
                        let error_type = error_type.as_deref();
                        store::parking::mark_parked(connection, name, *seq, *attempt, *pause, error_type)
                            .await
                    }
                    Note::Ended(lane, parked, error_type) => {
                        store::parking::note_attempt(connection, name, *lane, *parked, error_type).await
                    }
                });
                match written.await.map_err(DatabaseError::from) {
                    Err(error) if error.is_connection_failure() && lease.was_kept() => {}
                    Err(error) => return Err(error),
                    Ok(()) => {
                        lease.done();
                        return Ok(());
                    }
                }
            }
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
