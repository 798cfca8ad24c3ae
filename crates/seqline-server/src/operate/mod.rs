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
use crate::sqlstate;

/// Why something was not done, or not answered. Nothing was changed, unless it says otherwise.
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
    /// The connection was lost in a COMMIT: it is done or not.
    OutcomeUnknown(CommitError),
    /// What somebody can do who has the command.
    WithCommand {
        refusal: Box<Self>,
        /// As it goes on behind the message.
        hint: String,
    },
    /// Anything else: a right of the login that is missing, or a bug.
    Other(Failure),
}

impl Refusal {
    /// What the database refused to do to a consumer, in its words.
    pub(crate) fn of(error: OperateError, consumer: &str) -> Self {
        match error {
            OperateError::Database(error) if error.sqlstate() == Some(sqlstate::LOCK_NOT_AVAILABLE) => {
                Self::Busy(format!(
                    "a round of consumer {consumer} has not ended for {}s: nothing was changed, try again",
                    ROUND_WAIT_MAX.as_secs()
                ))
            }
            OperateError::Database(error) => Self::Database(error),
            OperateError::Refused { rule, message, hint } => {
                let (message, of_command) = with_hint(message, hint.as_deref());
                let refusal = match rule.as_str() {
                    "consumer_unknown" | "parked_unknown" => Self::Unknown(message),
                    "audit_why" => Self::Invalid { member: "reason", message },
                    "consumer_name" => Self::Invalid { member: "into", message },
                    _ => Self::Conflict(message),
                };
                match of_command {
                    Some(hint) => refusal.with_command(hint),
                    None => refusal,
                }
            }
            error => Self::Conflict(error.to_string()),
        }
    }
}

impl Refusal {
    /// The same for whoever has the command: `hint` goes on behind the message.
    pub(crate) fn with_command(self, hint: impl Into<String>) -> Self {
        Self::WithCommand { refusal: Box::new(self), hint: hint.into() }
    }
}

/// A message with what to do about it, and what of that is for whoever has the command: from the sentence on that names one.
pub(crate) fn with_hint(message: String, hint: Option<&str>) -> (String, Option<String>) {
    const COMMAND: &str = "seqline ";
    let mut said = message;
    let mut of_command = None;
    for sentence in hint.unwrap_or_default().trim_end_matches('.').split(". ").filter(|text| !text.is_empty())
    {
        let end = match &mut of_command {
            Some(end) => end,
            None if sentence.contains(COMMAND) => of_command.insert(String::new()),
            None => &mut said,
        };
        end.push_str(". ");
        end.push_str(sentence);
    }
    (said, of_command)
}

/// Ends a transaction that may have appended events.
pub(crate) async fn commit(transaction: PgTransaction<'_>) -> Result<(), Refusal> {
    seqline::commit(transaction).await.map_err(|error| match error {
        CommitError::Database(error) => Refusal::Database(error),
        error @ (CommitError::Unknown(_) | CommitError::NotKnownDurable(_)) => Refusal::OutcomeUnknown(error),
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
            Refusal::OutcomeUnknown(error) => error.into(),
            Refusal::WithCommand { refusal, hint } => match Self::from(*refusal) {
                Self::Refused(message) => Self::Refused(message + &hint),
                Self::Unavailable(message) => Self::Unavailable(message + &hint),
                other => other,
            },
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

    #[test]
    fn what_the_command_can_do_is_said_by_the_command_only() {
        for (hint, said, by_the_command) in [
            (None, "x", None),
            (Some("Go back."), "x. Go back", None),
            (Some("seqline consumers list shows them."), "x", Some(". seqline consumers list shows them")),
            (
                Some("No round begins. seqline consumers resume brings it back."),
                "x. No round begins",
                Some(". seqline consumers resume brings it back"),
            ),
        ] {
            let expected = (said.to_owned(), by_the_command.map(str::to_owned));
            assert_eq!(with_hint("x".to_owned(), hint), expected);
        }
        let failure =
            Failure::from(refused("consumer_retired", Some("It rests. seqline consumers resume does.")));
        assert_eq!(failure.message().unwrap(), "it was not done. It rests. seqline consumers resume does");
    }
}
