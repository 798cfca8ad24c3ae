//! What operators look at and do over HTTP: the same as with the command, by the same functions.
//!
//! All of it needs the right `operate`. Whoever has it not is refused before anything is looked up, so the answer says nothing of what
//! exists. A change runs in a transaction that names the principal, for the audit log, and waits for a round that is under way only so
//! long. Few requests at a time are in the database, so that operators leave connections to everybody else.

mod audit;
mod consumers;
mod jobs;
mod parked;
mod partitions;
mod place;
mod redactions;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use seqline::DatabaseError;
use seqline::consumer::Mode;
use serde::Deserialize;
use sqlx::PgTransaction;
use tokio::sync::OwnedSemaphorePermit;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;

use super::body::wrong_param;
use super::{Api, Caller, Code, Door, Problem};
use crate::limits::{API_OPERATORS_WAIT, API_RETRY_AFTER, ROUND_WAIT_MAX};
use crate::operate::{Refusal, commit};
use crate::store;

/// All of it.
pub(super) fn router() -> OpenApiRouter<Door> {
    OpenApiRouter::new()
        .merge(consumers::router())
        .merge(parked::router())
        .merge(partitions::router())
        .merge(jobs::router())
        .merge(redactions::router())
        .merge(audit::router())
}

/// A caller who may operate.
struct Operator {
    api: Api,
    principal: String,
}

impl FromRequestParts<Door> for Operator {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, door: &Door) -> Result<Self, Problem> {
        let api = Api::from_request_parts(parts, door).await?;
        let caller = Caller::from_request_parts(parts, door).await?;
        caller.may_operate()?;
        Ok(Self { api, principal: caller.access.principal.clone() })
    }
}

impl Operator {
    /// A place among those whose requests are in the database.
    async fn place(&self) -> Result<OwnedSemaphorePermit, Problem> {
        let place = self.api.operators.clone().acquire_owned();
        match self.api.clock.timeout(API_OPERATORS_WAIT, place).await {
            Some(Ok(place)) => Ok(place),
            _ => Err(Problem::unavailable("other requests of operators are being answered")),
        }
    }

    /// How long it may take. Waiting for a round is part of its statement.
    fn limit(&self) -> Duration {
        ROUND_WAIT_MAX + self.api.config.database.statement_timeout
    }

    /// Looks at something, in a transaction.
    async fn look<T>(
        &self,
        work: impl AsyncFnOnce(&mut PgTransaction<'_>) -> Result<T, Refusal>,
    ) -> Result<T, Problem> {
        self.within(None, work).await
    }

    /// Changes something in a transaction, for the principal that asks.
    async fn act<T>(
        &self,
        work: impl AsyncFnOnce(&mut PgTransaction<'_>) -> Result<T, Refusal>,
    ) -> Result<T, Problem> {
        self.within(Some(&self.principal), work).await
    }

    async fn within<T>(
        &self,
        principal: Option<&str>,
        work: impl AsyncFnOnce(&mut PgTransaction<'_>) -> Result<T, Refusal>,
    ) -> Result<T, Problem> {
        let _place = self.place().await?;
        let limit = self.limit();
        let mut lease = self.api.database.lease().await?;
        // From then on it is not known what becomes of it.
        let commits = AtomicBool::new(false);
        let worked = async {
            let mut transaction = lease.begin().await?;
            store::operate::bound(&mut transaction, ROUND_WAIT_MAX, limit)
                .await
                .map_err(DatabaseError::from)?;
            if let Some(principal) = principal {
                seqline::audit::act_for(&mut transaction, principal).await?;
            }
            let worked = work(&mut transaction).await;
            match &worked {
                Ok(_) => {
                    commits.store(true, Ordering::Relaxed);
                    commit(transaction).await?;
                }
                Err(_) => transaction.rollback().await.map_err(DatabaseError::from)?,
            }
            worked
        };
        // A database that has vanished without a word says nothing to either.
        let worked = self.api.clock.timeout(limit, worked).await;
        match worked {
            Some(Err(Refusal::Database(error))) => Err(error.into()),
            Some(Err(Refusal::OutcomeUnknown(error))) => {
                tracing::warn!(error = %error, "connection lost while a change of an operator was committed");
                Err(undecided(principal))
            }
            Some(worked) => {
                lease.done();
                Ok(worked?)
            }
            None if commits.load(Ordering::Relaxed) => Err(undecided(principal)),
            None => Err(Problem::unavailable("the database does not answer")),
        }
    }
}

/// Said when a transaction may have committed. Whoever only looked has lost nothing.
fn undecided(principal: Option<&str>) -> Problem {
    match principal {
        Some(_) => outcome_unknown(),
        None => Problem::unavailable("the database does not answer"),
    }
}

fn outcome_unknown() -> Problem {
    Problem::new(
        Code::OutcomeUnknown,
        "the connection to the database was lost while the change was committed: it is done as a whole or not at all. Look at what is there \
         before you ask for it again; the audit log says what was done",
    )
    .retry_after(API_RETRY_AFTER)
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Unknown(message) => Self::not_found(message),
            Refusal::Invalid { member, message } => {
                Self::new(Code::ValidationFailed, "a member of the body is not as expected")
                    .at(format!("/{member}"), message)
            }
            Refusal::Conflict(message) => Self::new(Code::Conflict, message),
            Refusal::Busy(message) => Self::new(Code::Conflict, message).retry_after(API_RETRY_AFTER),
            Refusal::Unavailable(message) => Self::unavailable(message),
            Refusal::ReadOnly(message) => Self::new(Code::ReadOnly, message).retry_after(API_RETRY_AFTER),
            Refusal::Database(error) => error.into(),
            Refusal::OutcomeUnknown(_) => outcome_unknown(),
            // Whoever asks over HTTP has no command.
            Refusal::WithCommand { refusal, .. } => (*refusal).into(),
            Refusal::Other(failure) => Self::internal("operate", &failure.message().unwrap_or_default()),
        }
    }
}

/// Whether something is done, and why.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Change)]
struct Change {
    /// Why, for the audit log: at most 1000 characters.
    #[schema(nullable = false, max_length = 1000, example = "the mail server is away")]
    reason: Option<String>,
    /// Say what would be done, and do nothing.
    #[serde(default)]
    dry_run: bool,
}

impl Change {
    fn mode(&self) -> Result<Mode<'_>, Problem> {
        mode(self.dry_run, self.reason.as_deref())
    }
}

/// The same for the library.
fn mode(dry_run: bool, reason: Option<&str>) -> Result<Mode<'_>, Problem> {
    let why = checked_reason(reason)?;
    Ok(if dry_run { Mode::Plan } else { Mode::Apply { why } })
}

/// What the database takes no text with.
fn checked_reason(reason: Option<&str>) -> Result<Option<&str>, Problem> {
    match reason {
        Some(text) if text.contains('\0') => Err(Refusal::Invalid {
            member: "reason",
            message: "a character with the code 0 cannot be stored".to_owned(),
        }
        .into()),
        reason => Ok(reason),
    }
}

/// A piece of a list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct PageParams {
    /// Where the page before ended: its `next`.
    #[param(nullable = false)]
    after: Option<String>,
    /// How many at most.
    #[param(nullable = false, minimum = 1, maximum = 1000, default = 100)]
    limit: Option<u32>,
}

const PAGE_USUAL: u32 = 100;

/// How many at most.
fn limit(asked: Option<u32>, most: u32) -> Result<u32, Problem> {
    match asked.unwrap_or(PAGE_USUAL) {
        limit if (1..=most).contains(&limit) => Ok(limit),
        _ => Err(wrong_param("limit", format!("expected 1 to {most}"))),
    }
}

/// Where the page before ended, if it is a number.
fn after(asked: Option<&str>) -> Result<Option<i64>, Problem> {
    asked.map(|text| text.parse().map_err(|_| other_after())).transpose()
}

fn other_after() -> Problem {
    wrong_param("after", "expected the next of a page of this list")
}

/// A parameter that cannot be in anything that is looked for.
fn checked_text(name: &str, text: Option<String>) -> Result<Option<String>, Problem> {
    match text {
        Some(text) if text.contains('\0') => Err(wrong_param(name, "has a character with the code 0")),
        text => Ok(text),
    }
}

fn invalid(detail: impl Into<std::borrow::Cow<'static, str>>) -> Problem {
    Problem::new(Code::ValidationFailed, detail)
}
