//! Appends chunks, each in one transaction together with the note that its lines are done.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use indicatif::ProgressBar;
use seqline::{AppendError, Clock, CommitError, DatabaseError, DurableHead, NewEvent, read};
use sqlx::{PgPool, PgTransaction};
use tokio::sync::{Mutex, mpsc};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::Tally;
use super::convert::Converter;
use super::input::Chunk;
use super::rejects::{Reject, Rejects};
use crate::failure::{Failure, unstorable};
use crate::limits::{ATTEMPTS, RETRY_PAUSE};
use crate::store::import::{self as store, Range};

pub(super) struct Writer {
    pub(super) pool: PgPool,
    /// Where progress is kept; `None` for an import that cannot be resumed.
    pub(super) name: Option<String>,
    /// The run to which the import must still belong.
    pub(super) run: Uuid,
    pub(super) converter: Arc<Converter>,
    pub(super) chunks: Arc<Mutex<mpsc::Receiver<Chunk>>>,
    pub(super) rejects: Arc<Mutex<Rejects>>,
    pub(super) tally: Arc<Tally>,
    pub(super) progress: ProgressBar,
    pub(super) stop: CancellationToken,
}

/// Works until no chunk is left. Asked to stop, it completes the chunk that it has begun.
pub(super) async fn run(writer: Writer) -> Result<(), Failure> {
    loop {
        let chunk = tokio::select! {
            biased;
            () = writer.stop.cancelled() => return Ok(()),
            chunk = async { writer.chunks.lock().await.recv().await } => chunk,
        };
        let Some(chunk) = chunk else { return Ok(()) };
        let bytes = chunk.bytes;
        let range = writer.do_chunk(chunk).await?;
        writer.tally.imported.fetch_add(range.imported, Ordering::Relaxed);
        writer.tally.rejected.fetch_add(range.rejected, Ordering::Relaxed);
        writer.progress.inc(bytes);
    }
}

/// How an attempt at a chunk failed.
enum Attempt {
    /// The whole chunk may be tried again.
    Retry(Failure),
    /// It may have been committed: look before trying again.
    Unknown(Failure),
    /// An event was refused by the database: try the events one by one.
    OneByOne,
    /// For good.
    Failed(Failure),
}

impl Writer {
    async fn do_chunk(&self, chunk: Chunk) -> Result<Range, Failure> {
        let (first_line, last_line) = (chunk.first_line, chunk.last_line);
        let mut rejects = Vec::new();
        let mut events = Vec::new();
        for (number, line) in chunk.lines {
            match line {
                Err(reason) => rejects.push(Reject { line: number, reason: reason.to_owned(), text: None }),
                Ok(text) => match self.converter.convert(&text) {
                    Ok(event) => events.push((number, text, event)),
                    Err(reason) => rejects.push(Reject { line: number, reason, text: Some(text) }),
                },
            }
        }
        let mut pause = RETRY_PAUSE;
        // Lines whose rejection is in the file already, from an attempt before.
        let mut kept = HashSet::new();
        let mut one_by_one = false;
        let clock = Clock::system();
        let mut attempt = 1;
        loop {
            let mut range = Range {
                first_line,
                last_line,
                imported: events.len() as i64,
                rejected: rejects.len() as i64,
            };
            let result = self.attempt(&mut range, &events, &rejects, one_by_one, &mut kept).await;
            let failure = match result {
                Ok(()) => return Ok(range),
                Err(Attempt::OneByOne) => {
                    one_by_one = true;
                    continue;
                }
                Err(Attempt::Unknown(failure)) => match self.recorded(&range).await {
                    Ok(Some(range)) => return Ok(range),
                    // Without a name there is no note of it: doing it again could double it.
                    Ok(None) if self.name.is_none() => return Err(failure),
                    _ => failure,
                },
                Err(Attempt::Retry(failure)) => failure,
                Err(Attempt::Failed(failure)) => return Err(failure),
            };
            if attempt == ATTEMPTS {
                return Err(failure);
            }
            attempt += 1;
            tokio::select! {
                () = clock.sleep(pause) => pause *= 2,
                () = self.stop.cancelled() => return Err(failure),
            }
        }
    }

    async fn attempt(
        &self,
        range: &mut Range,
        events: &[(i64, String, NewEvent)],
        rejects: &[Reject],
        one_by_one: bool,
        kept: &mut HashSet<i64>,
    ) -> Result<(), Attempt> {
        let mut tx = seqline::begin(&self.pool).await.map_err(of_database)?;
        if let Some(name) = &self.name {
            self.require_ownership(&mut tx, name).await?;
        }
        let late = if one_by_one {
            self.append_one_by_one(&mut tx, events).await?
        } else {
            let all: Vec<NewEvent> = events.iter().map(|(_, _, event)| event.clone()).collect();
            seqline::append(&mut tx, &all).await.map_err(of_append)?;
            Vec::new()
        };
        range.imported -= late.len() as i64;
        range.rejected += late.len() as i64;
        if let Some(name) = &self.name {
            store::record_range(&mut tx, name, *range).await.map_err(|error| of_record(error.into()))?;
        }
        {
            let mut file = self.rejects.lock().await;
            let new: Vec<&Reject> =
                rejects.iter().chain(&late).filter(|reject| !kept.contains(&reject.line)).collect();
            file.write(&new).map_err(Attempt::Failed)?;
            kept.extend(new.iter().map(|reject| reject.line));
        }
        seqline::commit(tx).await.map_err(|error| match error {
            CommitError::Unknown(_) | CommitError::NotKnownDurable(_) => Attempt::Unknown(error.into()),
            error if error.is_retryable() => Attempt::Retry(error.into()),
            error => Attempt::Failed(error.into()),
        })
    }

    /// The import must belong to this run until the transaction ends.
    async fn require_ownership(&self, tx: &mut PgTransaction<'static>, name: &str) -> Result<(), Attempt> {
        let failed = |error: sqlx::Error| of_database(error.into());
        store::keep_others_waiting(tx, name).await.map_err(failed)?;
        if store::belongs_to(tx, name, self.run).await.map_err(failed)? {
            return Ok(());
        }
        Err(Attempt::Failed(Failure::Refused(format!("another run of the import {name} has taken over"))))
    }

    /// Appends what the database takes and returns the rest.
    async fn append_one_by_one(
        &self,
        tx: &mut PgTransaction<'static>,
        events: &[(i64, String, NewEvent)],
    ) -> Result<Vec<Reject>, Attempt> {
        let failed = |error: sqlx::Error| of_database(error.into());
        let mut refused = Vec::new();
        for (line, text, event) in events {
            store::savepoint(tx).await.map_err(failed)?;
            match seqline::append(tx, std::slice::from_ref(event)).await {
                Ok(_) => store::release_savepoint(tx).await.map_err(failed)?,
                Err(error) => {
                    let Some(reason) = refusal(&error) else { return Err(of_append(error)) };
                    store::rollback_to_savepoint(tx).await.map_err(failed)?;
                    refused.push(Reject { line: *line, reason, text: Some(text.clone()) });
                }
            }
        }
        Ok(refused)
    }

    /// The note that these lines are done, by whatever attempt. One that a crash of the server can take back is not told of before it
    /// cannot.
    async fn recorded(&self, lines: &Range) -> Result<Option<Range>, DatabaseError> {
        let Some(name) = &self.name else { return Ok(None) };
        let mut connection = self.pool.acquire().await?;
        let ranges = store::ranges(&mut connection, name).await?;
        let range = ranges
            .into_iter()
            .find(|range| range.first_line == lines.first_line && range.last_line == lines.last_line);
        if range.is_some() {
            let head = read::head(&mut connection).await?;
            DurableHead::default().wait_for(&mut connection, head).await?;
        }
        Ok(range)
    }
}

/// Why the event itself is at fault; `None` when it is not.
fn refusal(error: &AppendError) -> Option<String> {
    match error {
        AppendError::Invalid(_) | AppendError::DuplicateId { .. } => Some(error.to_string()),
        error => unstorable(error),
    }
}

fn of_append(error: AppendError) -> Attempt {
    if refusal(&error).is_some() {
        Attempt::OneByOne
    } else if matches!(error, AppendError::ReadOnly { .. }) {
        // For longer than it is tried again.
        Attempt::Failed(error.into())
    } else if error.is_retryable() {
        Attempt::Retry(error.into())
    } else {
        Attempt::Failed(error.into())
    }
}

fn of_database(error: DatabaseError) -> Attempt {
    if error.is_retryable() { Attempt::Retry(error.into()) } else { Attempt::Failed(error.into()) }
}

/// A note that is there already is of an attempt whose outcome was not known: it went through meanwhile.
fn of_record(error: DatabaseError) -> Attempt {
    if error.sqlstate() == Some("23505") { Attempt::Unknown(error.into()) } else { of_database(error) }
}
