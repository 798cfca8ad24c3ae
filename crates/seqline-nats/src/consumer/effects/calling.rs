//! Calling the handler, and keeping the effect of one event apart from the next.

use std::any::Any;
use std::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};

use futures_util::FutureExt;
use seqline::{AppendError, DatabaseError};
use sqlx::postgres::PgTransactionManager;
use sqlx_core::transaction::TransactionManager;

use super::{Effects, Held, Trouble, Work};
use crate::consumer::decide::Came;
use crate::consumer::error::PassError;
use crate::consumer::handler::{Context, HandlerError};
use crate::limits::CONFLICTS_MAX;
use crate::store;

/// What is recorded of a handler that ended the transaction.
pub(super) const ENDED: &str = "transaction_ended";

/// How a handler came back.
enum Called {
    Well,
    Failed(&'static str),
    Conflict,
    /// It may have left anything behind.
    Spoiled(&'static str),
}

impl Effects<'_> {
    /// Calls the handler for each event that was claimed, and says what those that failed failed with.
    pub(super) async fn run_handlers(
        &self,
        context: &mut Context<'_>,
        works: &[Work],
        held: &mut [Held],
    ) -> Result<Vec<Option<&'static str>>, Trouble> {
        let mut error_types = vec![None; works.len()];
        let Some(last) = held.iter().rposition(|held| *held == Held::Yes) else { return Ok(error_types) };
        self.shared.ask(store::effects::begin_effect(&mut context.tx)).await?;
        for (index, work) in works.iter().enumerate() {
            if held[index] != Held::Yes {
                continue;
            }
            if self.stop.is_cancelled() {
                held[index] = Held::Not(Came::Stopped);
                continue;
            }
            context.attempt = work.failures.saturating_add(1);
            context.position = work.position;
            let called = self.call(work, context).await;
            held[index] = Held::Not(Came::Handled);
            let failed = match called {
                Called::Well => self.end_effect(context, index, index == last).await?,
                Called::Failed(error_type) => Some(error_type),
                Called::Conflict if self.is_bad_luck(work) => return Err(PassError::Conflict.into()),
                Called::Conflict => Some("conflict"),
                Called::Spoiled(error_type) => return Err(Trouble::Spoiled { index, error_type }),
            };
            if let Some(error_type) = failed {
                self.undo_effect(context, work, index).await?;
                error_types[index] = Some(error_type);
                held[index] = Held::Not(Came::Failed { attempts: work.failures.saturating_add(1) });
            }
        }
        Ok(error_types)
    }

    async fn end_effect(
        &self,
        context: &mut Context<'_>,
        index: usize,
        is_last: bool,
    ) -> Result<Option<&'static str>, Trouble> {
        if PgTransactionManager::get_transaction_depth(&*context.tx) != 1 {
            // The driver would end that one in place of ours.
            return Err(Trouble::Spoiled { index, error_type: "nested_transaction" });
        }
        let ended = match is_last {
            true => self.shared.ask(store::effects::end_effect(&mut context.tx)).await,
            false => self.shared.ask(store::effects::next_effect(&mut context.tx)).await,
        };
        match ended {
            Ok(()) => Ok(None),
            Err(error) => match savepoint_error(&error) {
                Some(ENDED) => Err(Trouble::Spoiled { index, error_type: ENDED }),
                Some(error_type) => Ok(Some(error_type)),
                None => Err(error.into()),
            },
        }
    }

    async fn undo_effect(&self, context: &mut Context<'_>, work: &Work, index: usize) -> Result<(), Trouble> {
        if PgTransactionManager::get_transaction_depth(&*context.tx) != 1 {
            return Err(Trouble::Spoiled { index, error_type: "nested_transaction" });
        }
        match self.shared.ask(store::effects::undo_effect(&mut context.tx)).await {
            Ok(()) => Ok(()),
            Err(error) if savepoint_error(&error) == Some(ENDED) => {
                Err(Trouble::Spoiled { index, error_type: ENDED })
            }
            // Once it is the database, and every time it is the handler that ends its session.
            Err(_) if !self.is_bad_luck(work) => {
                Err(Trouble::Spoiled { index, error_type: "connection_lost" })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Whether an event that lost a conflict may lose another one.
    fn is_bad_luck(&self, work: &Work) -> bool {
        self.shared.note_bad_luck(work.event_id) <= CONFLICTS_MAX
    }

    async fn call(&self, work: &Work, context: &mut Context<'_>) -> Called {
        let shared = self.shared;
        // Whatever a panic leaves behind is rolled back, and the handler has been told to keep nothing in memory.
        let handling = shared.consumer.handler.handle(&work.event, context);
        let mut handling = AssertUnwindSafe(handling).catch_unwind();
        let handled = shared.clock.timeout(shared.config.handler_timeout, &mut handling).await;
        // What the handler holds is dropped here, and that is its code too.
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(handling)));
        match (handled, dropped) {
            (Some(Err(panic)), _) | (_, Err(panic)) => {
                discard(panic);
                Called::Spoiled("panic")
            }
            (None, Ok(())) => Called::Spoiled("timeout"),
            (Some(Ok(Ok(()))), Ok(())) => Called::Well,
            (Some(Ok(Err(error))), Ok(())) => {
                // What a handler says can hold a payload: not above debug.
                tracing::debug!(consumer = shared.name(), position = work.position, error = %error, "stream consumer handler error");
                if is_conflict(&error) { Called::Conflict } else { Called::Failed("handler") }
            }
        }
    }
}

/// What the end of an effect says about its handler; none when it is the database that fails.
fn savepoint_error(error: &PassError) -> Option<&'static str> {
    let PassError::Database(error) = error else { return None };
    match error.sqlstate()? {
        // A statement of the handler failed, and it went on.
        "25P02" => Some("transaction_failed"),
        // There is no transaction, or another one.
        "25P01" | "3B001" => Some(ENDED),
        _ => None,
    }
}

/// Whether a handler lost against another transaction, so that the same may go well at once.
fn is_conflict(error: &HandlerError) -> bool {
    let mut error: Option<&(dyn Error + 'static)> = Some(&**error);
    while let Some(link) = error {
        let sqlstate = match (link.downcast_ref(), link.downcast_ref(), link.downcast_ref()) {
            (Some(sqlx::Error::Database(error)), ..) => error.code().map(|code| code.into_owned()),
            (_, Some(error), _) => DatabaseError::sqlstate(error).map(str::to_owned),
            (_, _, Some(AppendError::Database(error))) => error.sqlstate().map(str::to_owned),
            _ => None,
        };
        if matches!(sqlstate.as_deref(), Some("40001" | "40P01")) {
            return true;
        }
        error = link.source();
    }
    false
}

/// Drops what a panic carried. That can panic in turn, and is then left where it is.
pub(in crate::consumer) fn discard(panic: Box<dyn Any + Send>) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        std::mem::forget(panic);
    }
}
