//! One round: a transaction that handles the next events of one lane of a consumer and moves its cursor.
//!
//! In this order: look, wait until what is there is durable, lock the cursor, read, plan, handle each event, write the jobs, move the cursor, commit. Everything that the handler wrote
//! through the round stands or falls with the cursor, so each event has its effects exactly once.
//!
//! - The lock is taken with SKIP LOCKED: of any number of workers one works on a lane, and the others do not wait.
//! - The events are read by a statement of their own after the lock, so they follow the cursor that the lock has shown.
//! - The cursor is moved by compare-and-set: only from where it was, only in the transaction that locked it, and only if
//!   nothing was appended. A handler that breaks the transaction therefore fails the round, whatever it did.
//! - A consumer that parks says on another connection what it tries, before it does.
//!
//! A connection on which something went wrong is closed and not reused, because it may be in the middle of an answer.
//!
//! Here are the transaction and its end; `read` finds the events, `handle` hands them to the handler, and `parking` is about those that
//! are put aside.

mod handle;
mod parking;
mod read;
mod result;

use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool, PgTransaction};
use tracing::Span;

use super::config::ConsumerConfig;
use super::error::RoundError;
use super::filter::Filter;
use super::handler::{AnyHandler, Round};
use super::jobs::{Outlet, RoundJobs};
use super::marks::Marks;
use super::name::ConsumerName;
use super::plan::LostRange;
use super::policy::{FailurePolicy, Mark};
use crate::clock::Clock;
use crate::deadline::{Lease, within};
use crate::durable::DurableHead;
use crate::error::{CommitError, DatabaseError};
use crate::event::StoredEvent;
use crate::job::JobError;
use crate::limits::{READ_EVENTS_MAX, ROUND_ATTEMPTS_MAX, SCAN_EVENTS_MAX};
use crate::store::consumers::{Advance, HeldCursor, Lock, Position, Standing};
use crate::store::parking::Trial;
use crate::{pool, store, trace};

use parking::Begun;

pub(super) use handle::discard;
pub use result::{Outcome, RoundResult};

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
    /// There may be events for this lane after this number.
    Behind { lane: u32, last_seq: i64, head: i64 },
    /// There is nothing to do.
    Nothing(RoundResult),
}

/// What was tried, when a mark says so.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Tried {
    /// Events of the log, and how the attempt before ended.
    Log(Trial, String),
    /// A parked event.
    Parked { lane: u32, seq: i64, attempt: u32, error_type: Option<String> },
}

/// What was done in the transaction.
struct Worked {
    result: RoundResult,
    /// From which number to which it went.
    span: (i64, i64),
}

impl From<RoundResult> for Worked {
    /// Nothing was.
    fn from(result: RoundResult) -> Self {
        Self { result, span: (0, 0) }
    }
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
    pub(super) policy: FailurePolicy,
    pub(super) marks: &'a Marks,
    pub(super) durable: &'a DurableHead,
    /// The lane; `None` is the one that is furthest behind.
    pub(super) lane: Option<u32>,
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
        let (mut beginning, mut tried) = (false, None);
        let result = self.on(lease.connection(), known, &mut beginning, &mut tried).await;
        // Dropped otherwise, which closes the connection: where it stands is not known. So too when the beginning failed, for the
        // driver believes that there is no transaction then, and there may be one.
        let usable = result.as_ref().err().is_none_or(leaves_connection_usable);
        if usable && !beginning && !lease.connection().is_in_transaction() {
            lease.done();
        }
        if let (Err(error), Some(tried)) = (&result, tried) {
            self.came_to_nothing(tried, error).await;
        }
        result
    }

    async fn on(
        &self,
        connection: &mut PgConnection,
        known: Known,
        beginning: &mut bool,
        tried: &mut Option<Tried>,
    ) -> Result<RoundResult, RoundError> {
        let (lane, known) = match (known, self.lane) {
            // What it is about to read is known to be durable, from a look before.
            (Known::Position(last_seq), Some(lane)) if last_seq < self.durable.known() => (lane, last_seq),
            _ => match self.look(connection).await? {
                Look::Behind { lane, last_seq, head } => {
                    within(self.config.deadline(), self.durable.wait_for(connection, head)).await?;
                    (lane, last_seq)
                }
                Look::Nothing(result) => return Ok(result),
            },
        };
        *beginning = true;
        let tx = self.ask(connection.begin_with(AssertSqlSafe(self.config.beginning(self.pool)))).await?;
        *beginning = false;
        let jobs = RoundJobs::new(self.outlet);
        let mut round = Round { tx, consumer: self.name, lane, jobs, span: Span::none() };
        let result = Box::pin(self.work(&mut round, known, tried)).await;
        // While the cursor is held, so that nobody else takes a mark for what it is not.
        if let (Err(error), Some(tried)) = (&result, tried.take_if(|_| result.is_err())) {
            self.came_to_nothing(tried, error).await;
        }
        let span = round.span.clone();
        let ended = self.end(round, &result).await;
        let result = match ended.and(result) {
            // The driver has ended the innermost transaction, and that was not the round.
            Ok(Worked { result, span: (first_seq, last_seq) })
                if result.outcome == Outcome::Processed && connection.is_in_transaction() =>
            {
                Err(RoundError::NestedTransaction { first_seq, last_seq })
            }
            worked => worked.map(|worked| worked.result),
        };
        trace::round_ended(&span, &result);
        result
    }

    async fn end(&self, round: Round<'_>, result: &Result<Worked, RoundError>) -> Result<(), RoundError> {
        match result {
            Ok(Worked { result: RoundResult { outcome: Outcome::Processed, .. }, .. }) => {
                self.commit(round.tx).await
            }
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
        let pooled = pool::is_pooled(self.pool);
        let names = [self.name.as_str()];
        let look = pool::alone(connection, pooled, async |connection| {
            store::consumers::positions(connection, &names).await
        });
        let positions = self.ask(look).await?;
        let Some(any) = positions.first() else { return Err(RoundError::MissingCursor) };
        if any.read_only_server {
            // What is new is on another server, as after a failover. Whoever hears this gets another connection.
            return Err(DatabaseError::read_only_server().into());
        }
        match any.standing {
            Standing::Active => {}
            Standing::Paused => return Ok(Look::Nothing(RoundResult::PAUSED)),
            Standing::Retired => return Ok(Look::Nothing(RoundResult::RETIRED)),
        }
        let mine = |at: &&Position| self.lane.is_none_or(|lane| lane == at.lane);
        let behind = positions.iter().filter(mine).filter(|at| !at.is_done());
        match behind.min_by_key(|at| (at.last_seq, at.lane)) {
            // Also when there is no such lane any more.
            None => Ok(Look::Nothing(RoundResult::IDLE)),
            Some(at) if at.last_seq > at.head => {
                Err(RoundError::AheadOfHead { last_seq: at.last_seq, head: at.head })
            }
            Some(at) => Ok(Look::Behind { lane: at.lane, last_seq: at.last_seq, head: at.head }),
        }
    }

    /// Everything between BEGIN and COMMIT.
    async fn work(
        &self,
        round: &mut Round<'_>,
        known: i64,
        tried: &mut Option<Tried>,
    ) -> Result<Worked, RoundError> {
        let name = self.name.as_str();
        let held = match self.ask(store::consumers::lock(&mut round.tx, name, round.lane, known)).await? {
            Lock::Held(held) => held,
            Lock::Locked => return Ok(RoundResult::LOCKED.into()),
            // The first lane is never taken away.
            Lock::Missing if round.lane > 0 => return Ok(RoundResult::IDLE.into()),
            Lock::Missing => return Err(RoundError::MissingCursor),
        };
        if let Some(seq) = held.due {
            return self.try_parked(round, &held, seq, tried).await;
        }
        let mark = match self.policy {
            FailurePolicy::Stall => None,
            FailurePolicy::Park { .. } => {
                self.ask(store::parking::mark(&mut round.tx, name, held.lane)).await?
            }
        };
        let mark = mark.and_then(|mark| mark.in_force(held.from));
        self.go_on(round, &held, mark.as_ref(), tried).await
    }

    /// Handles the next events of the log and moves the cursor over them; with a mark, one of them.
    async fn go_on(
        &self,
        round: &mut Round<'_>,
        held: &HeldCursor,
        mark: Option<&Mark>,
        tried: &mut Option<Tried>,
    ) -> Result<Worked, RoundError> {
        let limit = if mark.is_none() { self.batch_size() } else { 1 };
        let Some(mut read) = self.read(&mut round.tx, held, limit).await? else {
            return Ok(RoundResult::IDLE.into());
        };
        if let Some(LostRange { from, to }) = read.lost {
            let lost = store::consumers::record_loss(&mut round.tx, self.name.as_str(), from, to);
            self.ask(lost).await?;
        }
        let behind = self.put_behind(round, held, &mut read.events).await?;
        let parked = match self.begin_trial(round, held, mark, &mut read, tried).await? {
            Begun::Waits(pause) => return Ok(RoundResult::waiting(pause).into()),
            Begun::Parked => 1,
            Begun::Tries => 0,
        };
        let span = (read.first, read.new_last_seq);
        self.trace(round, &read.events, span);
        let jobs = self.handle_all(round, held, &read.events, span).await?;
        let advanced = self
            .ask(store::consumers::advance(
                &mut round.tx,
                self.name.as_str(),
                held,
                read.new_last_seq,
                self.may_append,
            ))
            .await;
        ended(advanced, span)?;
        let result = RoundResult {
            outcome: Outcome::Processed,
            processed: read.events.len(),
            scanned: read.count,
            jobs,
            parked,
            behind,
            full: read.full || read.new_last_seq - held.last_seq >= self.reach(held),
            lost: read.lost,
            last_seq: Some(read.new_last_seq),
            wait: None,
        };
        Ok(Worked { result, span })
    }

    /// From here on the round has a span: it has something to do.
    fn trace(&self, round: &mut Round<'_>, events: &[StoredEvent], span: (i64, i64)) {
        round.span = trace::round_span(self.name.as_str(), round.lane, span, events);
    }

    fn batch_size(&self) -> i64 {
        i64::from(self.config.batch_size.clamp(1, READ_EVENTS_MAX))
    }

    /// How far a round looks.
    fn reach(&self, held: &HeldCursor) -> i64 {
        match self.looks(held) {
            false => self.batch_size(),
            true => i64::from(self.config.scan_size.clamp(1, SCAN_EVENTS_MAX)),
        }
    }

    /// Whether a round looks before it reads: some events are not for it.
    fn looks(&self, held: &HeldCursor) -> bool {
        held.lanes > 1 || !self.filter.is_everything()
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

/// Whether the last statement of a round has ended it as it should.
fn ended(
    advanced: Result<Advance, DatabaseError>,
    (first_seq, last_seq): (i64, i64),
) -> Result<(), RoundError> {
    match advanced.map_err(RoundError::from) {
        Ok(Advance::Advanced) => Ok(()),
        Ok(Advance::TransactionEnded) => Err(RoundError::TransactionEnded { first_seq, last_seq }),
        Ok(Advance::Appended) => Err(RoundError::Appended { first_seq, last_seq }),
        Ok(Advance::CursorMoved) => Err(RoundError::CursorMoved { first_seq, last_seq }),
        Err(error) if error.is_in_failed_transaction() => {
            Err(RoundError::TransactionFailed { first_seq, last_seq })
        }
        Err(error) => Err(error),
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
        RoundError::Database(error) => !error.spoils_connection(),
        RoundError::Commit(CommitError::Database(error)) => !error.spoils_connection(),
        RoundError::Commit(error) => error.had_no_effect(),
        RoundError::Jobs { source: JobError::Database(error), .. } => !error.spoils_connection(),
        RoundError::Handler { .. } => !error.is_read_only_server(),
        RoundError::Jobs { .. }
        | RoundError::Appended { .. }
        | RoundError::TransactionFailed { .. }
        | RoundError::CursorMoved { .. }
        | RoundError::Gap(_)
        | RoundError::AheadOfHead { .. }
        | RoundError::ParkedFull { .. }
        | RoundError::MissingCursor => true,
    }
}
