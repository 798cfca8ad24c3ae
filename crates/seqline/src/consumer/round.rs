//! One round: a transaction that handles the next events of one consumer and moves its cursor.
//!
//! In this order: lock the cursor, read, plan, handle each event, write the jobs, move the cursor, commit. Everything that the handler wrote
//! through the round stands or falls with the cursor, so each event has its effects exactly once.
//!
//! - The lock is taken with SKIP LOCKED: of any number of workers one works on a consumer, and the others do not wait.
//! - The events are read by a statement of their own after the lock, so they follow the cursor that the lock has shown.
//! - The cursor is moved by compare-and-set: only from where it was, only in the transaction that locked it, and only if
//!   nothing was appended. A handler that breaks the transaction therefore fails the round, whatever it did.
//!
//! A connection on which something went wrong is closed and not reused, because it may be in the middle of an answer.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use futures_util::FutureExt;
use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool, PgTransaction};

use super::config::ConsumerConfig;
use super::error::RoundError;
use super::filter::Filter;
use super::handler::{AnyHandler, Round};
use super::jobs::{Outlet, RoundJobs};
use super::name::ConsumerName;
use super::plan::{LostRange, PlanError, Scan, plan_round};
use crate::clock::Clock;
use crate::deadline::{Lease, Stopwatch, within};
use crate::error::{CommitError, DatabaseError, GapError};
use crate::event::StoredEvent;
use crate::job::JobError;
use crate::limits::{READ_EVENTS_MAX, ROUND_ATTEMPTS_MAX, SCAN_EVENTS_MAX};
use crate::store;
use crate::store::consumers::{Advance, HeldCursor, Lock};

/// How a round ended that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Another transaction has the consumer in hand.
    Locked,
    /// Somebody has paused the consumer. Nothing was written.
    Paused,
    /// There was nothing new. Nothing was written.
    Idle,
    /// Events were handled and the cursor was moved.
    Processed,
}

/// What a round did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoundResult {
    /// How it ended.
    pub outcome: Outcome,
    /// How many events were handled.
    pub processed: usize,
    /// How many events were looked at. Without a filter these are those that were handled.
    pub scanned: i64,
    /// How many jobs of [`Round::jobs`] were inserted.
    pub jobs: usize,
    /// Whether that were as many as fit into a round, so that there may be more.
    pub full: bool,
    /// What retention took before the consumer had come to it.
    pub lost: Option<LostRange>,
    /// Where the cursor is, if the round has moved it.
    pub last_seq: Option<i64>,
}

impl RoundResult {
    const LOCKED: Self = Self::nothing(Outcome::Locked);
    const PAUSED: Self = Self::nothing(Outcome::Paused);
    const IDLE: Self = Self::nothing(Outcome::Idle);

    const fn nothing(outcome: Outcome) -> Self {
        Self { outcome, processed: 0, scanned: 0, jobs: 0, full: false, lost: None, last_seq: None }
    }
}

/// What is known before a round begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Known {
    /// Nothing, so it looks first, with one statement and no transaction: most rounds of most consumers find nothing, and that
    /// is all they cost.
    Nothing,
    /// The cursor is here, or further, and there may be events: the round before was full.
    Position(i64),
}

/// What is found before a round begins.
enum Look {
    /// There may be events after this number.
    Behind(i64),
    AtHead,
    Paused,
}

/// What a round has read.
struct Read {
    first: i64,
    last: i64,
    /// How many events there are from the first to the last.
    count: i64,
    /// Whether there may be more.
    full: bool,
    /// Those that are to be handled.
    events: Vec<StoredEvent>,
}

/// What a consumer needs for its rounds.
pub(super) struct Rounds<'a> {
    pub(super) pool: &'a PgPool,
    pub(super) config: &'a ConsumerConfig,
    pub(super) clock: &'a Clock,
    pub(super) name: &'a ConsumerName,
    pub(super) handler: &'a dyn AnyHandler,
    pub(super) may_append: bool,
    pub(super) outlet: Option<&'a Outlet>,
    pub(super) filter: &'a Filter,
}

impl Rounds<'_> {
    /// One round. One that lost against another transaction is tried again at once, a few times.
    pub(super) async fn run(&self, known: Known) -> Result<RoundResult, RoundError> {
        let mut attempt = 1;
        loop {
            match self.attempt(known).await {
                Err(error) if error.is_conflict() && attempt < ROUND_ATTEMPTS_MAX => attempt += 1,
                result => return result,
            }
        }
    }

    async fn attempt(&self, known: Known) -> Result<RoundResult, RoundError> {
        let mut lease = within(self.config.deadline(), Lease::acquire(self.pool)).await?;
        let mut beginning = false;
        let result = self.on(lease.connection(), known, &mut beginning).await;
        // Dropped otherwise, which closes the connection: where it stands is not known. So too when the beginning failed, for the
        // driver believes that there is no transaction then, and there may be one.
        let usable = result.as_ref().err().is_none_or(leaves_connection_usable);
        if usable && !beginning && !lease.connection().is_in_transaction() {
            lease.done();
        }
        result
    }

    async fn on(
        &self,
        connection: &mut PgConnection,
        known: Known,
        beginning: &mut bool,
    ) -> Result<RoundResult, RoundError> {
        let known = match known {
            Known::Position(last_seq) => last_seq,
            Known::Nothing => match self.look(connection).await? {
                Look::Behind(last_seq) => last_seq,
                Look::AtHead => return Ok(RoundResult::IDLE),
                Look::Paused => return Ok(RoundResult::PAUSED),
            },
        };
        *beginning = true;
        let tx = self.ask(connection.begin_with(AssertSqlSafe(self.config.beginning()))).await?;
        *beginning = false;
        let mut round = Round { tx, consumer: self.name, jobs: RoundJobs::new(self.outlet) };
        let result = self.work(&mut round, known).await;
        self.end(round, &result).await?;
        match result {
            // The driver has ended the innermost transaction, and that was not the round.
            Ok(RoundResult { scanned, last_seq: Some(last_seq), .. }) if connection.is_in_transaction() => {
                let first_seq = last_seq - scanned + 1;
                Err(RoundError::NestedTransaction { first_seq, last_seq })
            }
            result => result,
        }
    }

    async fn end(
        &self,
        round: Round<'_>,
        result: &Result<RoundResult, RoundError>,
    ) -> Result<(), RoundError> {
        match result {
            Ok(RoundResult { outcome: Outcome::Processed, .. }) => self.commit(round.tx).await,
            Ok(_) => Ok(self.ask(round.tx.rollback()).await?),
            Err(error) => {
                // One that is closed is rolled back too. What the rollback says does not matter beside the error.
                if leaves_connection_usable(error) {
                    drop(self.ask(round.tx.rollback()).await);
                }
                Ok(())
            }
        }
    }

    /// Where the cursor is, if there is anything to do.
    async fn look(&self, connection: &mut PgConnection) -> Result<Look, RoundError> {
        let positions = self.ask(store::consumers::positions(connection, &[self.name.as_str()])).await?;
        match positions.first() {
            None => Err(RoundError::MissingCursor),
            Some(at) if at.paused => Ok(Look::Paused),
            Some(at) if at.last_seq > at.head => {
                Err(RoundError::AheadOfHead { last_seq: at.last_seq, head: at.head })
            }
            Some(at) if at.last_seq == at.head => Ok(Look::AtHead),
            Some(at) => Ok(Look::Behind(at.last_seq)),
        }
    }

    /// Everything between BEGIN and COMMIT.
    async fn work(&self, round: &mut Round<'_>, known: i64) -> Result<RoundResult, RoundError> {
        let name = self.name.as_str();
        let held = match self.ask(store::consumers::lock(&mut round.tx, name, known)).await? {
            Lock::Held(held) => held,
            Lock::Locked => return Ok(RoundResult::LOCKED),
            Lock::Missing => return Err(RoundError::MissingCursor),
        };
        let Some(read) = self.read(&mut round.tx, held.last_seq).await? else { return Ok(RoundResult::IDLE) };
        let min_retained = match held.last_seq.checked_add(1) {
            Some(next) if next == read.first => None,
            _ => Some(self.ask(store::read::min_retained(&mut round.tx)).await?),
        };
        let seqs: Vec<i64> = read.events.iter().map(|event| event.seq).collect();
        let scan = Scan { first: read.first, last: read.last, count: read.count, matching: &seqs };
        let plan = match plan_round(held.last_seq, Some(scan), min_retained) {
            Ok(plan) => plan,
            Err(PlanError::Gap(gap)) => return Err(self.exact(&mut round.tx, &read, gap).await?.into()),
            Err(PlanError::Empty) => unreachable!("events were looked at"),
        };
        if let Some(LostRange { from, to }) = plan.lost {
            self.ask(store::consumers::record_loss(&mut round.tx, name, from, to)).await?;
        }
        let (first_seq, last_seq) = (read.first, plan.new_last_seq);
        let mut asked = Stopwatch::start();
        let mut jobs = 0;
        for event in &read.events {
            let handled = async {
                self.keep_alive(round, &mut asked).await?;
                round.jobs.begin_event(event);
                self.handle(event, round).await?;
                // As a rule all at once, at the end.
                if round.jobs.is_full() || (Some(&event.seq) == seqs.last() && round.jobs.is_any()) {
                    jobs += self.write_jobs(round, &held, first_seq, event.seq).await?;
                }
                Ok(())
            };
            handled.await.map_err(|error: RoundError| match error {
                // A handler before this one is to blame, or this one.
                error if error.is_in_failed_transaction() => {
                    RoundError::TransactionFailed { first_seq, last_seq: event.seq }
                }
                error => error,
            })?;
        }
        let advanced = store::consumers::advance(&mut round.tx, name, &held, last_seq, self.may_append);
        match self.ask(advanced).await.map_err(RoundError::from) {
            Ok(Advance::Advanced) => {}
            Ok(Advance::TransactionEnded) => {
                return Err(RoundError::TransactionEnded { first_seq, last_seq });
            }
            Ok(Advance::Appended) => return Err(RoundError::Appended { first_seq, last_seq }),
            Ok(Advance::CursorMoved) => return Err(RoundError::CursorMoved { first_seq, last_seq }),
            Err(error) if error.is_in_failed_transaction() => {
                return Err(RoundError::TransactionFailed { first_seq, last_seq });
            }
            Err(error) => return Err(error),
        }
        Ok(RoundResult {
            outcome: Outcome::Processed,
            processed: read.events.len(),
            scanned: read.count,
            jobs,
            full: read.full || plan.new_last_seq - held.last_seq >= self.reach(),
            lost: plan.lost,
            last_seq: Some(last_seq),
        })
    }

    /// The next events after `last_seq`: none at the head, else those that follow or those that retention has left.
    async fn read(&self, connection: &mut PgConnection, last_seq: i64) -> Result<Option<Read>, RoundError> {
        let read = self.read_after(connection, last_seq).await?;
        if read.is_some() {
            return Ok(read);
        }
        let head = self.ask(store::read::head(connection)).await?;
        if head == last_seq {
            return Ok(None);
        }
        if head < last_seq {
            return Err(RoundError::AheadOfHead { last_seq, head });
        }
        // The head has moved since, or retention took more than fits into a round. The lock on the log that the first read
        // took keeps retention from going on.
        let min_retained = self.ask(store::read::min_retained(connection)).await?;
        let after = last_seq.max(min_retained - 1);
        let read = self.read_after(connection, after).await?;
        if read.is_none() {
            let found = self.ask(store::read::first_after(connection, after)).await?.unwrap_or(head);
            return Err(GapError { expected: after + 1, found }.into());
        }
        Ok(read)
    }

    /// Reads once. With a filter it looks at more events than it gets.
    async fn read_after(
        &self,
        connection: &mut PgConnection,
        after: i64,
    ) -> Result<Option<Read>, RoundError> {
        let limit = self.batch_size();
        if self.filter.is_everything() {
            let events = self.ask(store::read::events_after(connection, after, limit)).await?;
            let Some((first, last)) = events.first().zip(events.last()) else { return Ok(None) };
            let count = events.len() as i64;
            return Ok(Some(Read { first: first.seq, last: last.seq, count, full: count == limit, events }));
        }
        let looking = store::read::look_after(connection, after, self.reach(), self.filter, limit);
        let Some(looked) = self.ask(looking).await? else { return Ok(None) };
        let events = self.ask(store::read::events(connection, &looked.matching)).await?;
        // Read by a second statement: none of what was found may be gone by then.
        let is_there = |seq: &&i64| events.binary_search_by_key(*seq, |event| event.seq).is_ok();
        if let Some(&expected) = looked.matching.iter().find(|seq| !is_there(seq)) {
            return Err(GapError { expected, found: looked.last }.into());
        }
        let full = events.len() as i64 == limit || looked.count == self.reach();
        Ok(Some(Read { first: looked.first, last: looked.last, count: looked.count, full, events }))
    }

    /// The place of a gap that was found by counting.
    async fn exact(
        &self,
        connection: &mut PgConnection,
        read: &Read,
        gap: GapError,
    ) -> Result<GapError, RoundError> {
        if self.filter.is_everything() || gap.found == read.first {
            return Ok(gap);
        }
        let before = self.ask(store::read::before_hole(connection, read.first, read.last)).await?;
        let Some(before) = before else { return Ok(gap) };
        let found = self.ask(store::read::first_after(connection, before)).await?;
        Ok(GapError { expected: before + 1, found: found.unwrap_or(gap.found) })
    }

    fn batch_size(&self) -> i64 {
        i64::from(self.config.batch_size.clamp(1, READ_EVENTS_MAX))
    }

    /// How far a round looks.
    fn reach(&self) -> i64 {
        match self.filter.is_everything() {
            true => self.batch_size(),
            false => i64::from(self.config.scan_size.clamp(1, SCAN_EVENTS_MAX)),
        }
    }

    async fn handle(&self, event: &StoredEvent, round: &mut Round<'_>) -> Result<(), RoundError> {
        let seq = event.seq;
        // Whatever a panic leaves behind is rolled back, and the handler has been told to keep nothing in memory.
        let mut handling = AssertUnwindSafe(self.handler.handle(event, round)).catch_unwind();
        let handled = self.clock.timeout(self.config.event_timeout, &mut handling).await;
        // What the handler holds is dropped here, and that is its code too.
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(handling)));
        match (handled, dropped) {
            (Some(Err(panic)), _) | (_, Err(panic)) => {
                discard(panic);
                Err(RoundError::Panicked { seq })
            }
            (Some(Ok(Ok(()))), Ok(())) => Ok(()),
            (Some(Ok(Err(source))), Ok(())) => Err(RoundError::Handler { seq, source }),
            (None, Ok(())) => Err(RoundError::TimedOut { seq }),
        }
    }

    /// Writes the jobs that wait, if the transaction is still that of the round: in another one they would stay when the round fails.
    async fn write_jobs(
        &self,
        round: &mut Round<'_>,
        held: &HeldCursor,
        first_seq: i64,
        last_seq: i64,
    ) -> Result<usize, RoundError> {
        if !self.ask(store::consumers::is_in_transaction_of(&mut round.tx, held)).await? {
            return Err(RoundError::TransactionEnded { first_seq, last_seq });
        }
        let Round { tx, consumer, jobs } = round;
        let written = within(self.config.deadline(), jobs.write(tx, consumer)).await;
        written.map_err(|source| RoundError::Jobs { first_seq, last_seq, source })
    }

    /// Sends a statement when the next handler could else be silent for so long, with those before it, that the server takes
    /// the round for one whose process is gone. What handlers have sent is not known.
    async fn keep_alive(&self, round: &mut Round<'_>, asked: &mut Stopwatch) -> Result<(), RoundError> {
        let slack = self.config.idle_in_tx_timeout.saturating_sub(self.config.event_timeout);
        if asked.elapsed() >= slack / 2 {
            self.ask(store::append::touch(&mut round.tx)).await?;
            *asked = Stopwatch::start();
        }
        Ok(())
    }

    async fn commit(&self, tx: PgTransaction<'_>) -> Result<(), RoundError> {
        let committed = async { tx.commit().await.map_err(CommitError::from) };
        match tokio::time::timeout(self.config.deadline(), committed).await {
            Ok(result) => result.map_err(RoundError::Commit),
            Err(_) => Err(RoundError::Commit(CommitError::Unknown(DatabaseError::late()))),
        }
    }

    /// One statement, within the deadline.
    async fn ask<T>(
        &self,
        statement: impl Future<Output = Result<T, sqlx::Error>>,
    ) -> Result<T, DatabaseError> {
        within(self.config.deadline(), async { Ok(statement.await?) }).await
    }
}

/// Drops what a panic carried. That can panic in turn, and is then left where it is.
pub(super) fn discard(panic: Box<dyn Any + Send>) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        std::mem::forget(panic);
    }
}

/// Whether nothing is under way on the connection. A handler that was stopped may have left a statement behind, and one that
/// ended the transaction may have begun another.
fn leaves_connection_usable(error: &RoundError) -> bool {
    match error {
        RoundError::Panicked { .. }
        | RoundError::TimedOut { .. }
        | RoundError::NestedTransaction { .. }
        | RoundError::TransactionEnded { .. } => false,
        RoundError::Database(error) => !error.is_connection_failure(),
        RoundError::Commit(error) => error.had_no_effect(),
        RoundError::Jobs { source: JobError::Database(error), .. } => !error.is_connection_failure(),
        RoundError::Jobs { .. }
        | RoundError::Handler { .. }
        | RoundError::Appended { .. }
        | RoundError::TransactionFailed { .. }
        | RoundError::CursorMoved { .. }
        | RoundError::Gap(_)
        | RoundError::AheadOfHead { .. }
        | RoundError::MissingCursor => true,
    }
}
