//! What operators look at and do: once, for the command and for the API.
//!
//! Each function answers with data, of which both make the same JSON and the command makes sentences. What changes something is planned or
//! done as [`Mode`](seqline::consumer::Mode) says, and leaves its row in the audit log when it is done. Nothing here prints, and nothing
//! begins a transaction but what has to be one: whoever calls decides for whom it is done, and how long a round is waited for.

pub(crate) mod audit;
pub(crate) mod consumers;
pub(crate) mod jobs;
pub(crate) mod parked;
pub(crate) mod partitions;
pub(crate) mod redact;

use seqline::consumer::OperateError;
use seqline::{CommitError, DatabaseError};
use sqlx::PgTransaction;

use crate::failure::Failure;
use crate::limits::ROUND_WAIT_MAX;

/// Why something was not done, or not answered. Nothing was changed.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// There is no such consumer, parked event or job.
    Unknown(String),
    /// What was asked for is wrong in itself.
    Invalid {
        /// The name of what is wrong: that of a member of a request.
        member: &'static str,
        message: String,
    },
    /// How things are does not allow it.
    Conflict(String),
    /// What is there takes too long, and may not at another time.
    Busy(String),
    /// Something that is needed is not there now.
    Unavailable(String),
    /// The log takes nothing for a while.
    ReadOnly(String),
    Database(DatabaseError),
    /// Anything else: a right of the login that is missing, or a bug.
    Other(Failure),
}

impl Refusal {
    /// What the database refused to do to a consumer, in its words.
    pub(crate) fn of(error: OperateError, consumer: &str) -> Self {
        const LOCK_NOT_AVAILABLE: &str = "55P03";
        match error {
            OperateError::Database(error) if error.sqlstate() == Some(LOCK_NOT_AVAILABLE) => {
                Self::Busy(format!(
                    "a round of consumer {consumer} has not ended for {}s: nothing was changed, try again",
                    ROUND_WAIT_MAX.as_secs()
                ))
            }
            OperateError::Database(error) => Self::Database(error),
            OperateError::Refused { rule, message, hint } => {
                let message = match hint {
                    Some(hint) => format!("{message}. {}", hint.trim_end_matches('.')),
                    None => message,
                };
                match rule.as_str() {
                    "consumer_unknown" | "parked_unknown" => Self::Unknown(message),
                    "audit_why" => Self::Invalid { member: "reason", message },
                    "consumer_name" => Self::Invalid { member: "into", message },
                    _ => Self::Conflict(message),
                }
            }
            error => Self::Conflict(error.to_string()),
        }
    }
}

/// Ends a transaction that may have appended events.
pub(crate) async fn commit(transaction: PgTransaction<'_>) -> Result<(), Refusal> {
    seqline::commit(transaction).await.map_err(|error| match error {
        CommitError::Unknown(error) | CommitError::NotKnownDurable(error) | CommitError::Database(error) => {
            Refusal::Database(error)
        }
        error => Failure::from(error).into(),
    })
}

impl From<DatabaseError> for Refusal {
    fn from(error: DatabaseError) -> Self {
        Self::Database(error)
    }
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Refused(message) => Self::Conflict(message),
            Failure::Unavailable(message) => Self::Unavailable(message),
            other => Self::Other(other),
        }
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Unknown(message) | Refusal::Invalid { message, .. } | Refusal::Conflict(message) => {
                Self::Refused(message)
            }
            Refusal::Busy(message) | Refusal::Unavailable(message) | Refusal::ReadOnly(message) => {
                Self::Unavailable(message)
            }
            Refusal::Database(error) => error.into(),
            Refusal::Other(failure) => failure,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(rule: &str, hint: Option<&str>) -> Refusal {
        let (rule, message, hint) = (rule.to_owned(), "it was not done".to_owned(), hint.map(str::to_owned));
        Refusal::of(OperateError::Refused { rule, message, hint }, "recorder")
    }

    #[test]
    fn what_is_unknown_wrong_and_in_the_way_are_told_apart() {
        assert!(matches!(refused("consumer_unknown", None), Refusal::Unknown(_)));
        assert!(matches!(refused("parked_unknown", None), Refusal::Unknown(_)));
        assert!(matches!(refused("audit_why", None), Refusal::Invalid { member: "reason", .. }));
        assert!(matches!(refused("consumer_retired", None), Refusal::Conflict(_)));
        assert!(matches!(Refusal::of(OperateError::NothingSince, "recorder"), Refusal::Conflict(_)));
    }

    #[test]
    fn what_to_do_is_said_with_the_reason_and_without_a_full_stop() {
        let failure = Failure::from(refused("consumer_lanes", Some("Wait a little.")));
        assert_eq!(
            (failure.exit_code(), failure.message().unwrap()),
            (4, "it was not done. Wait a little".into())
        );
    }
}
