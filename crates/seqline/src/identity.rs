//! Whether this is the server and the history that the numbers of the log belong to.
//!
//! A number means something together with the *epoch*: the history that it was given in. After a restore the log continues at the number
//! of the backup, and numbers above it are given again to other events. Whoever has seen the first ones must not go on as if nothing had
//! happened. So the log records which server its epoch belongs to, and whoever hands out positions compares that with the server that answers,
//! remembers how far it has seen the log, and hands out nothing while they disagree. A new epoch settles it: [`finalize()`].
//!
//! ```no_run
//! use seqline::identity::{HistoryWatch, Look, OnChange, look};
//!
//! # async fn example(connection: &mut sqlx::PgConnection) -> Result<(), Box<dyn std::error::Error>> {
//! let mut watch = HistoryWatch::default();
//! // At the start, after each new connection, and now and then.
//! match look(connection, &mut watch, OnChange::Refuse).await? {
//!     Look::GoOn { .. } => {}
//!     Look::NewEpoch { from, to, .. } => println!("positions of {from:?} end here, those of {to} begin"),
//!     Look::Wait { reason, .. } => println!("nothing is handed out: {reason}"),
//!     // What a later version may add: not to go on is what is safe.
//!     _ => println!("nothing is handed out"),
//! }
//! # Ok(())
//! # }
//! ```

mod compare;
mod finalize;
mod history;
#[cfg(test)]
mod tests;

use sqlx::{Connection, PgConnection};
use uuid::Uuid;

use crate::consumer::Mode;
use crate::durable::DurableHead;
use crate::error::DatabaseError;
use crate::{pool, store};

pub use compare::{
    BrokenReason, CursorAbove, Decision, Difference, Identity, IdentityCheck, OnChange, Standing,
    UnknownRule, WaitReason, decide,
};
pub use finalize::{Finalized, Move, Need, RestoredConsumers, UnknownChoice, finalize};
pub use history::{HistoryWatch, Verdict};

/// Why the epoch was not changed. Nothing was changed then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EpochError {
    /// It was refused, with the reason.
    #[error("{message}")]
    Refused {
        /// Which rule refused it, such as `restore_not_needed`.
        rule: String,
        /// The message of the database.
        message: String,
        /// What to do, if it said so: a sentence.
        hint: Option<String>,
    },
    /// Anything else that the database or the connection reported.
    #[error(transparent)]
    Database(DatabaseError),
}

impl EpochError {
    /// Whether the same may succeed later without any change.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Database(error) if error.is_retryable())
    }
}

impl From<sqlx::Error> for EpochError {
    fn from(error: sqlx::Error) -> Self {
        let error = DatabaseError::from(error);
        let refused = error.pg().zip(error.seqline_constraint()).filter(|(pg, _)| pg.code() == "22023");
        match refused {
            Some((pg, rule)) => Self::Refused {
                rule: rule.to_owned(),
                message: pg.message().to_owned(),
                hint: pg.hint().map(str::to_owned),
            },
            None => Self::Database(error),
        }
    }
}

/// Asks the database what it says of its history, all in one statement. As `seqline_app` or `seqline_reader`.
///
/// # Errors
///
/// [`DatabaseError`] when the database cannot be asked, or records a reason that this version does not know.
pub async fn check(connection: &mut PgConnection) -> Result<IdentityCheck, DatabaseError> {
    let row = store::identity::check(connection).await?;
    let reason = row.broken_reason.map(|name| {
        BrokenReason::ALL.into_iter().find(|reason| reason.as_str() == name).ok_or_else(|| {
            DatabaseError::from(sqlx::Error::Decode("an unknown reason for a broken history".into()))
        })
    });
    let recorded = Identity {
        system_identifier: row.recorded_system,
        timeline: Some(row.recorded_timeline),
        database_oid: row.recorded_database,
    };
    let server = Identity {
        system_identifier: row.server_system,
        timeline: row.server_timeline,
        database_oid: row.server_database,
    };
    let above = row.above_consumers.into_iter().zip(row.above_lanes).zip(row.above_seqs);
    Ok(IdentityCheck {
        log_id: row.log_id,
        epoch: row.epoch,
        head: row.head,
        recorded,
        server,
        differences: recorded.compare(&server),
        broken: reason.transpose()?.zip(row.broken_at),
        cursors_above: above
            .map(|((consumer, lane), last_seq)| CursorAbove { consumer, lane: lane.unsigned_abs(), last_seq })
            .collect(),
    })
}

/// Records in the database that its history went back, and says whether that was news: so that a process that starts later knows, also when
/// the log has grown past what was seen. As `seqline_app`. Refused by the database when it is not so.
///
/// # Errors
///
/// [`EpochError`]: nothing was recorded.
pub async fn record_broken(
    connection: &mut PgConnection,
    epoch: Uuid,
    reason: BrokenReason,
    seen_head: Option<i64>,
) -> Result<bool, EpochError> {
    pool::alone(connection, keeps_none(connection), async |connection| {
        Ok(store::identity::record_broken(connection, epoch, reason.as_str(), seen_head).await?)
    })
    .await
}

/// Records that this server goes on with the same history, after a failover in which nothing was lost, and says whether that was news.
/// `seen_head` is the highest durable number of the epoch that the caller has seen. As `seqline_app`.
///
/// # Errors
///
/// [`EpochError`]: nothing was recorded. The database refuses what [`decide`] does not accept.
pub async fn accept(
    connection: &mut PgConnection,
    epoch: Uuid,
    seen_head: Option<i64>,
    why: Option<&str>,
) -> Result<bool, EpochError> {
    pool::alone(connection, keeps_none(connection), async |connection| {
        Ok(store::identity::accept(connection, epoch, seen_head, why).await?)
    })
    .await
}

/// Whether the connection keeps no statements so far, as one through a pooler in transaction mode. On another one a transaction around a
/// statement does no harm.
fn keeps_none(connection: &PgConnection) -> bool {
    connection.cached_statements_size() == 0
}

/// What a look did because the rule says so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Acted {
    /// There was nothing to do.
    Nothing,
    /// A failover was accepted: see [`accept`].
    Accepted,
    /// A new epoch was started: see [`finalize()`].
    Finalized(Finalized),
}

/// What a look at the history came to.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Look {
    /// The same epoch as at the last look: positions may be handed out.
    GoOn {
        /// The epoch.
        epoch: Uuid,
        /// What was found.
        check: IdentityCheck,
        /// What was done then.
        acted: Acted,
    },
    /// Another epoch than at the last look, or the first look of all. Positions may be handed out in it, and those of the one before may
    /// not: whatever holds one starts anew.
    NewEpoch {
        /// The epoch before; none at the first look.
        from: Option<Uuid>,
        /// The epoch from now on.
        to: Uuid,
        /// What was found.
        check: IdentityCheck,
        /// What was done then.
        acted: Acted,
    },
    /// Nothing may be handed out.
    Wait {
        /// Why.
        reason: WaitReason,
        /// Whether the database knows that its history is broken, if it is: a process that starts later sees the same then.
        recorded: bool,
        /// What was found.
        check: IdentityCheck,
    },
}

/// What the audit log holds as the reason for a new epoch that a rule started.
const NEW_EPOCH: &str = "epoch.on_change = new_epoch";

/// The same for a failover that a rule accepted.
const ACCEPT: &str = "epoch.on_change = accept";

/// Looks at the history once, and does what the rule says: all that a process has to do at its start, after each new connection and now and
/// then. Whoever serves positions serves none while it says [`Look::Wait`], or when it fails.
///
/// What is seen to be broken is recorded. That cannot be where the role or the server only reads: the look says the same then, and the
/// process remembers. `watch` learns only what is durable; where commits wait for synchronous standbys only what [`HistoryWatch::remember`]
/// is told. Not inside a transaction.
///
/// # Errors
///
/// [`EpochError`] when the database cannot be asked, or what the rule says cannot be done now.
pub async fn look(
    connection: &mut PgConnection,
    watch: &mut HistoryWatch,
    rule: OnChange,
) -> Result<Look, EpochError> {
    match look_once(connection, watch, rule).await {
        // Somebody else was faster.
        Err(EpochError::Refused { rule: refusal, .. })
            if matches!(refusal.as_str(), "restore_not_needed" | "accept_epoch") =>
        {
            look_once(connection, watch, rule).await
        }
        looked => looked,
    }
}

async fn look_once(
    connection: &mut PgConnection,
    watch: &mut HistoryWatch,
    rule: OnChange,
) -> Result<Look, EpochError> {
    let check = check(connection).await.map_err(EpochError::Database)?;
    // That it has seen nothing says nothing.
    let seen = watch.seen(check.epoch).filter(|seen| *seen > 0);
    let recorded = note_broken(connection, &check, seen).await;
    let (from, known) = (watch.epoch(), watch.epoch() == Some(check.epoch));
    match decide(&check, rule, seen) {
        Decision::Wait(reason) => Ok(Look::Wait { reason, recorded, check }),
        decision @ (Decision::GoOn | Decision::AcceptIdentity) => {
            let mut acted = Acted::Nothing;
            if decision == Decision::AcceptIdentity {
                if let Err(error) = accept(connection, check.epoch, seen, Some(ACCEPT)).await {
                    return not_done(error, seen, recorded, check);
                }
                acted = Acted::Accepted;
            }
            let durable = durable_head(connection, &check, seen).await.map_err(EpochError::Database)?;
            watch.remember(check.epoch, durable);
            Ok(match known {
                true => Look::GoOn { epoch: check.epoch, check, acted },
                false => Look::NewEpoch { from, to: check.epoch, check, acted },
            })
        }
        Decision::Finalize => {
            let why = Mode::Apply { why: Some(NEW_EPOCH) };
            let done = match finalize(connection, RestoredConsumers::Keep, Need::Found, why).await {
                Ok(done) => done,
                Err(error) => return not_done(error, seen, recorded, check),
            };
            let to = done.new_epoch.unwrap_or(done.old_epoch);
            watch.remember(to, done.head);
            Ok(Look::NewEpoch { from, to, check, acted: Acted::Finalized(done) })
        }
    }
}

/// What the rule says could not be done now, so nothing is handed out until it can; unless somebody else was faster.
fn not_done(
    error: EpochError,
    seen: Option<i64>,
    recorded: bool,
    check: IdentityCheck,
) -> Result<Look, EpochError> {
    match (&error, decide(&check, OnChange::Refuse, seen)) {
        (EpochError::Database(reason), Decision::Wait(wait)) => {
            tracing::debug!(error = %reason, reason = %wait, "what the rule says could not be done");
            Ok(Look::Wait { reason: wait, recorded, check })
        }
        _ => Err(error),
    }
}

/// Records what is seen to be broken, and says whether the database knows.
async fn note_broken(connection: &mut PgConnection, check: &IdentityCheck, seen: Option<i64>) -> bool {
    if check.broken.is_some() {
        return true;
    }
    let reason = match seen {
        Some(seen) if seen > check.head && !check.in_recovery() => BrokenReason::HeadWentBack,
        _ if !check.cursors_above.is_empty() => BrokenReason::CursorAboveHead,
        _ => return false,
    };
    match record_broken(connection, check.epoch, reason, seen).await {
        Ok(_) => true,
        // The caller is told, and says so once.
        Err(error) => {
            tracing::debug!(error = %error, reason = %reason, "a broken history could not be recorded");
            false
        }
    }
}

/// How much of the head that was found is durable, without waiting for another server.
async fn durable_head(
    connection: &mut PgConnection,
    check: &IdentityCheck,
    seen: Option<i64>,
) -> Result<i64, DatabaseError> {
    let seen = seen.unwrap_or(0);
    if check.head <= seen || store::durable::look(connection).await?.synchronous_standbys {
        return Ok(seen);
    }
    DurableHead::default().wait_for(connection, check.head).await?;
    Ok(check.head)
}
