//! Redaction: what it is asked of, and what it did or would do.

use seqline::consumer::Mode;
use seqline::redact::{self, RedactError, Redaction};
use serde::Serialize;
use sqlx::PgTransaction;
use utoipa::ToSchema;
use uuid::Uuid;

use super::consumers::done;
use super::{Refusal, with_hint};
use crate::limits::ROUND_WAIT_MAX;
use crate::sqlstate;

/// What is taken out of the log: what these events say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum What {
    Event(Uuid),
    /// All about a resource that are in the log now.
    Resource {
        kind: String,
        id: String,
    },
}

/// What was redacted, or would be.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Redaction)]
pub(crate) struct Report {
    /// The event, if one was meant.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    event_id: Option<Uuid>,
    /// Kind of the resource, if one was meant.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    resource_kind: Option<String>,
    /// Its id.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    resource_id: Option<String>,
    /// Whether it was done, or only planned.
    pub(crate) done: bool,
    /// How many events.
    pub(crate) events: i64,
    /// How many of those that are meant were redacted before.
    pub(crate) already: i64,
    /// How many are left for the next call, because one takes no more at a time.
    pub(crate) remaining: i64,
    /// How many have no number yet and were not touched: ask again in a moment.
    pub(crate) waiting: i64,
    /// The partitions they are in. What they said is in the files of these until they are vacuumed.
    pub(crate) partitions: Vec<String>,
}

impl Report {
    /// Whether any event was meant.
    pub(crate) fn is_about_any(&self) -> bool {
        self.events + self.already + self.remaining + self.waiting > 0
    }
}

/// Redacts them, or says what that would do. For a resource at most so many at a time.
pub(crate) async fn redact(
    transaction: &mut PgTransaction<'_>,
    what: &What,
    at_most: Option<u32>,
    mode: Mode<'_>,
) -> Result<Report, Refusal> {
    let redaction = match what {
        What::Event(id) => redact::event(transaction, *id, mode).await,
        What::Resource { kind, id } => redact::resource(transaction, kind, id, at_most, mode).await,
    };
    let redaction = redaction.map_err(refusal)?;
    match what {
        What::Event(id) if !redaction.is_about_any() => Err(Refusal::Unknown(format!(
            "the log has no event {id}: retention has dropped it, or its transaction has not committed"
        ))),
        _ => Ok(report(what, redaction, done(mode))),
    }
}

fn report(what: &What, redaction: Redaction, done: bool) -> Report {
    let (event_id, resource_kind, resource_id) = match what.clone() {
        What::Event(id) => (Some(id), None, None),
        What::Resource { kind, id } => (None, Some(kind), Some(id)),
    };
    Report {
        event_id,
        resource_kind,
        resource_id,
        done,
        events: redaction.events,
        already: redaction.already,
        remaining: redaction.remaining,
        waiting: redaction.waiting,
        partitions: redaction.partitions,
    }
}

fn refusal(error: RedactError) -> Refusal {
    match error {
        RedactError::Refused { rule, message, hint } => {
            let (message, of_command) = with_hint(message, hint.as_deref());
            let refusal = match rule.as_str() {
                "audit_why" => Refusal::Invalid { member: "reason", message },
                "redact_resource" => Refusal::Invalid { member: "resource_id", message },
                _ => Refusal::Conflict(message),
            };
            match of_command {
                Some(hint) => refusal.with_command(hint),
                None => refusal,
            }
        }
        RedactError::ReadOnly { message } => Refusal::ReadOnly(message),
        RedactError::Database(error) if error.sqlstate() == Some(sqlstate::LOCK_NOT_AVAILABLE) => {
            Refusal::Busy(format!(
                "somebody else redacts the same for {}s: nothing was changed, try again",
                ROUND_WAIT_MAX.as_secs()
            ))
        }
        RedactError::Database(error) => Refusal::Database(error),
        error => Refusal::Conflict(error.to_string()),
    }
}
