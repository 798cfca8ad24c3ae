//! Appends the events of several requests in one transaction, and tells each request what came of it.

use std::ops::Range;
use std::time::Duration;

use seqline::{AppendError, CommitError, DatabaseError, NewEvent, commit};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::stage::stage;
use super::{Appended, Asked, Idempotency, Place};
use crate::api::database::Database;
use crate::api::{Code, Problem};
use crate::failure;
use crate::limits::API_RETRY_AFTER;

/// Requests that are appended together.
pub(super) struct Group {
    requests: Vec<Request>,
    /// The events of all of them.
    events: Vec<NewEvent>,
}

/// A request of a group.
pub(super) struct Request {
    place: Place,
    pub(super) idempotency: Option<Idempotency>,
    /// Its events among those of the group.
    pub(super) events: Range<usize>,
    answer: oneshot::Sender<Result<Appended, Problem>>,
    _waiting: OwnedSemaphorePermit,
}

/// What came of each request.
type Outcomes = Vec<Result<Appended, Problem>>;

/// Why nothing is known to have been appended.
pub(super) enum Refused {
    /// Something is wrong with a request, and the others may be good.
    Request(AppendError),
    /// Something that has nothing to do with what was asked.
    Everything(Problem),
}

impl Group {
    pub(super) fn new(asked: Vec<Asked>) -> Self {
        let (mut requests, mut events) = (Vec::with_capacity(asked.len()), Vec::new());
        for Asked { events: of_request, place, idempotency, answer, _waiting } in asked {
            let begin = events.len();
            events.extend(of_request);
            requests.push(Request { place, idempotency, events: begin..events.len(), answer, _waiting });
        }
        Self { requests, events }
    }

    /// Appends all of them and tells each what came of it.
    pub(super) async fn append(self, database: &Database, retention: Duration) {
        if self.requests.is_empty() {
            return;
        }
        let all = Box::pin(attempt(database, &self.requests, &self.events, retention)).await;
        let outcomes = match all {
            Ok(outcomes) => outcomes,
            Err(Refused::Everything(problem)) => vec![Err(problem); self.requests.len()],
            Err(Refused::Request(error)) if self.requests.len() == 1 => {
                vec![Err(refusal(&error, self.requests[0].place, self.requests[0].events.len()))]
            }
            Err(Refused::Request(_)) => {
                let mut outcomes = Vec::with_capacity(self.requests.len());
                for request in &self.requests {
                    outcomes.push(self.append_alone(request, database, retention).await);
                }
                outcomes
            }
        };
        for (request, outcome) in self.requests.into_iter().zip(outcomes) {
            // Whoever has gone need not be told.
            let _ = request.answer.send(outcome);
        }
    }

    async fn append_alone(
        &self,
        request: &Request,
        database: &Database,
        retention: Duration,
    ) -> Result<Appended, Problem> {
        let requests = std::slice::from_ref(request);
        let alone = Box::pin(attempt(database, requests, &self.events, retention)).await;
        match alone {
            Ok(outcomes) => outcomes.into_iter().next().unwrap_or_else(|| {
                Err(Problem::internal("append", &"a request that was appended has no outcome"))
            }),
            Err(Refused::Everything(problem)) => Err(problem),
            Err(Refused::Request(error)) => Err(refusal(&error, request.place, request.events.len())),
        }
    }
}

/// Tries to append these requests, whose events are among `events`, in one transaction.
async fn attempt(
    database: &Database,
    requests: &[Request],
    events: &[NewEvent],
    retention: Duration,
) -> Result<Outcomes, Refused> {
    let mut lease = database.lease().await?;
    let begun = async {
        let mut tx = lease.begin().await?;
        let staged = stage(&mut tx, requests, events, retention).await?;
        Ok::<_, Refused>((tx, staged))
    };
    let (tx, staged) = database.in_time(begun).await?;
    if staged.ids.is_empty() {
        // Each was answered before, or has the key of another one.
        database.in_time(async { tx.rollback().await.map_err(DatabaseError::from) }).await?;
    } else {
        match database.in_time(async { Ok::<_, DatabaseError>(commit(tx).await) }).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(not_committed(error)),
            Err(error) => return Err(not_committed(CommitError::Unknown(error))),
        }
    }
    // What is committed stays: that its numbers cannot be read now is no reason to say anything else.
    let last_ids = staged.last_ids();
    let reading = lease.alone(async |connection| {
        let mut numbers: Vec<Option<i64>> = Vec::with_capacity(last_ids.len());
        for id in &last_ids {
            numbers.push(match id {
                Some(id) => seqline::read::seq_of(connection, *id).await?,
                None => None,
            });
        }
        Ok::<_, DatabaseError>(numbers)
    });
    let numbers = match database.in_time(reading).await {
        Ok(numbers) => {
            lease.done();
            numbers
        }
        Err(error) => {
            tracing::warn!(error = %error, "numbers of appended events could not be read");
            vec![None; requests.len()]
        }
    };
    Ok(staged.outcomes(&numbers))
}

/// What a transaction that did not commit means for its requests.
fn not_committed(error: CommitError) -> Refused {
    match error {
        CommitError::Unknown(error) | CommitError::NotKnownDurable(error) => {
            tracing::warn!(error = %error, "connection lost while events were committed");
            Refused::Everything(outcome_unknown())
        }
        CommitError::DuplicateId { id, message } => {
            Refused::Request(AppendError::DuplicateId { id, message })
        }
        CommitError::Database(error) if !error.is_retryable() => {
            Refused::Request(AppendError::Database(error))
        }
        error if error.is_retryable() => {
            tracing::warn!(error = %error, "events were not committed");
            Refused::Everything(Problem::unavailable("the events could not be committed now"))
        }
        error => Refused::Everything(Problem::internal("commit", &error)),
    }
}

/// The truth, and how to get along with it.
fn outcome_unknown() -> Problem {
    Problem::new(
        Code::OutcomeUnknown,
        "the connection to the database was lost while the events were committed: they are in the log or not at all. Repeat the request with \
         the same Idempotency-Key, or the same ids, and it is appended once; without either, look for the events first",
    )
    .retry_after(API_RETRY_AFTER)
}

/// Why a request that was tried alone is refused.
fn refusal(error: &AppendError, place: Place, events: usize) -> Problem {
    match error {
        AppendError::Invalid(invalid) => match invalid.position() {
            Some(index) => place.refusal(index, invalid),
            None if events == 1 => place.refusal(0, invalid),
            None => place.refusal_of_all(invalid.to_string()),
        },
        AppendError::DuplicateId { id, .. } => {
            let detail = match id {
                Some(id) => format!("an event with the id {id} is in the log already"),
                None => "an event with this id is in the log already".to_owned(),
            };
            Problem::new(Code::EventExists, detail)
        }
        AppendError::ReadOnly { .. } => {
            Problem::new(Code::ReadOnly, "the log is read only for maintenance").retry_after(API_RETRY_AFTER)
        }
        AppendError::Database(error) if error.is_retryable() => {
            Problem::unavailable("the events could not be appended now")
        }
        error => match failure::unstorable(error) {
            // It repeats what PostgreSQL says, which can be a part of the payload.
            Some(_) if events == 1 => place.unstorable(),
            Some(_) => place.refusal_of_all("the payload of an event cannot be stored".to_owned()),
            None => Problem::internal("append", error),
        },
    }
}

impl From<DatabaseError> for Refused {
    /// Before the commit: nothing happened.
    fn from(error: DatabaseError) -> Self {
        AppendError::Database(error).into()
    }
}

impl From<sqlx::Error> for Refused {
    fn from(error: sqlx::Error) -> Self {
        DatabaseError::from(error).into()
    }
}

impl From<AppendError> for Refused {
    fn from(error: AppendError) -> Self {
        /// Each would wait for what the other holds: one after the other they do not.
        const DEADLOCK: &str = "40P01";
        match error {
            AppendError::Database(error) if error.sqlstate() == Some(DEADLOCK) => {
                Self::Request(AppendError::Database(error))
            }
            AppendError::Database(error) if error.is_retryable() || error.sqlstate().is_none() => {
                Self::Everything(error.into())
            }
            AppendError::ReadOnly { .. } => Self::Everything(refusal(&error, Place::Body, 1)),
            error => Self::Request(error),
        }
    }
}
