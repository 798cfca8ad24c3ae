//! Appends the events of several requests in one transaction, and tells each request what came of it.

use std::ops::Range;
use std::time::Duration;

use seqline::{AppendError, CommitError, DatabaseError, NewEvent, commit};
use tokio::sync::oneshot;

use super::stage::stage;
use super::{Appended, EventPlace, Held, Idempotency, QueuedAppend};
use crate::api::database::Database;
use crate::api::{Code, Problem};
use crate::limits::{
    API_APPEND_LOCK_WAIT, API_APPEND_LOCK_WAITS_MAX, API_APPEND_STATEMENT_FACTOR, API_RETRY_AFTER,
};
use crate::{failure, sqlstate, store};

/// Requests that are appended together.
pub(super) struct Group {
    requests: Vec<Request>,
    /// The events of all of them.
    events: Vec<NewEvent>,
}

/// A request of a group.
pub(super) struct Request {
    place: EventPlace,
    pub(super) idempotency: Option<Idempotency>,
    /// Its events among those of the group.
    pub(super) events: Range<usize>,
    answer: oneshot::Sender<Result<Appended, Problem>>,
    _held: Held,
}

impl Request {
    fn refuse(self, error: &AppendError, event: Option<usize>) {
        let refusal = refusal(error, self.place, self.events.len(), event);
        self.answer(Err(refusal));
    }

    fn answer(self, outcome: Result<Appended, Problem>) {
        // Whoever has gone need not be told.
        let _ = self.answer.send(outcome);
    }
}

/// What came of each request.
type Outcomes = Vec<Result<Appended, Problem>>;

/// Why nothing is known to have been appended.
pub(super) enum GroupRefused {
    /// Something is wrong with a request, and the others may be good.
    Request(AppendError),
    /// The same, and it is known with which, by its place among them.
    This { request: usize, because: Because },
    /// Something that has nothing to do with what was asked.
    Everything(Problem),
}

/// What is wrong with a request.
pub(super) enum Because {
    /// One of its events breaks a rule.
    Event { index: usize, error: AppendError },
    /// Another may be to blame: it is tried alone.
    Unclear,
}

impl Group {
    pub(super) fn new(asked: Vec<QueuedAppend>) -> Self {
        let (mut requests, mut events) = (Vec::with_capacity(asked.len()), Vec::new());
        for QueuedAppend { events: of_request, place, idempotency, answer, _held } in asked {
            let begin = events.len();
            events.extend(of_request);
            requests.push(Request { place, idempotency, events: begin..events.len(), answer, _held });
        }
        Self { requests, events }
    }

    /// Appends all of them and tells each what came of it, as soon as that is known.
    ///
    /// When one of them is wrong the others are tried again: without it if it is known which one it is, and in two halves if not. Whatever
    /// concerns all of them ends it.
    pub(super) async fn append(self, database: &Database, retention: Duration) {
        let Self { requests, events } = self;
        let mut to_try = vec![requests];
        let mut waits = Waits::default();
        while let Some(mut requests) = to_try.pop() {
            if requests.is_empty() {
                continue;
            }
            let tried = Box::pin(attempt(database, &requests, &events, retention, waits.limit())).await;
            match tried {
                Ok(outcomes) => {
                    for (request, outcome) in requests.into_iter().zip(outcomes) {
                        request.answer(outcome);
                    }
                }
                Err(GroupRefused::This { request, because }) if request < requests.len() => {
                    let wrong = requests.remove(request);
                    match because {
                        Because::Event { index, error } => wrong.refuse(&error, Some(index)),
                        Because::Unclear => to_try.push(vec![wrong]),
                    }
                    to_try.push(requests);
                }
                Err(GroupRefused::Request(error)) => {
                    waits.note(&error);
                    if waits.are_too_many() {
                        let problem = Problem::unavailable(WAITS);
                        to_try.push(requests);
                        return give_up(to_try, &problem);
                    }
                    let behind = requests.split_off(requests.len() / 2);
                    if requests.is_empty() {
                        behind.into_iter().for_each(|request| request.refuse(&error, None));
                    } else {
                        to_try.extend([behind, requests]);
                    }
                }
                Err(GroupRefused::This { .. }) => {
                    let problem = Problem::internal("append", &"a request that is wrong is not there");
                    give_up(vec![requests], &problem);
                }
                Err(GroupRefused::Everything(problem)) => {
                    give_up(vec![requests], &problem);
                    // Those that were not tried are not in doubt.
                    let problem = match problem.code() {
                        Code::OutcomeUnknown => Problem::unavailable("the events could not be appended now"),
                        _ => problem,
                    };
                    return give_up(to_try, &problem);
                }
            }
        }
    }
}

fn give_up(requests: Vec<Vec<Request>>, problem: &Problem) {
    for request in requests.into_iter().flatten() {
        request.answer(Err(problem.clone()));
    }
}

/// Said to a request that waited for somebody else's transaction.
const WAITS: &str =
    "another transaction holds what these events need, an id or a key of a request for example";

/// How often a group waited in vain for a lock.
#[derive(Debug, Default)]
struct Waits(u32);

impl Waits {
    fn note(&mut self, error: &AppendError) {
        if let AppendError::Database(error) = error
            && has_waited(error)
        {
            self.0 += 1;
        }
    }

    /// Whoever is tried once more has waited before.
    fn limit(&self) -> Duration {
        let (first, again) = API_APPEND_LOCK_WAIT;
        if self.0 == 0 { first } else { again }
    }

    fn are_too_many(&self) -> bool {
        self.0 > API_APPEND_LOCK_WAITS_MAX
    }
}

/// Whether it ended because it took too long.
fn has_waited(error: &DatabaseError) -> bool {
    matches!(error.sqlstate(), Some(sqlstate::LOCK_NOT_AVAILABLE | sqlstate::QUERY_CANCELED))
}

/// Tries to append these requests, whose events are among `events`, in one transaction that waits for a lock only so long.
async fn attempt(
    database: &Database,
    requests: &[Request],
    events: &[NewEvent],
    retention: Duration,
    lock_wait: Duration,
) -> Result<Outcomes, GroupRefused> {
    let mut lease = database.lease().await?;
    let begun = async {
        let mut tx = lease.begin().await?;
        // Numbering is waited for by its own setting, and no statement runs in COMMIT.
        store::operate::bound(&mut tx, lock_wait, lock_wait * API_APPEND_STATEMENT_FACTOR).await?;
        let staged = stage(&mut tx, requests, events, retention).await?;
        Ok::<_, GroupRefused>((tx, staged))
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
fn not_committed(error: CommitError) -> GroupRefused {
    match error {
        CommitError::Unknown(error) | CommitError::NotKnownDurable(error) => {
            tracing::warn!(error = %error, "connection lost while events were committed");
            GroupRefused::Everything(outcome_unknown())
        }
        CommitError::DuplicateId { id, message } => {
            GroupRefused::Request(AppendError::DuplicateId { id, message })
        }
        CommitError::Database(error) if !error.is_retryable() => {
            GroupRefused::Request(AppendError::Database(error))
        }
        error if error.is_retryable() => {
            tracing::warn!(error = %error, "events were not committed");
            GroupRefused::Everything(Problem::unavailable("the events could not be committed now"))
        }
        error => GroupRefused::Everything(Problem::internal("commit", &error)),
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

/// Why a request is refused. `event` is which of its events is wrong, if that is known and not in the error.
fn refusal(error: &AppendError, place: EventPlace, events: usize, event: Option<usize>) -> Problem {
    match error {
        AppendError::Invalid(invalid) => match event.or_else(|| invalid.position()) {
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
        AppendError::Database(error) if has_waited(error) => Problem::unavailable(WAITS),
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

impl From<DatabaseError> for GroupRefused {
    /// Before the commit: nothing happened.
    fn from(error: DatabaseError) -> Self {
        AppendError::Database(error).into()
    }
}

impl From<sqlx::Error> for GroupRefused {
    fn from(error: sqlx::Error) -> Self {
        DatabaseError::from(error).into()
    }
}

impl From<AppendError> for GroupRefused {
    fn from(error: AppendError) -> Self {
        match error {
            // Each would wait for what the other holds, or one of them for somebody else: the others do not.
            AppendError::Database(error)
                if error.sqlstate() == Some(sqlstate::DEADLOCK_DETECTED) || has_waited(&error) =>
            {
                Self::Request(AppendError::Database(error))
            }
            AppendError::Database(error) if error.is_retryable() || error.sqlstate().is_none() => {
                Self::Everything(error.into())
            }
            AppendError::ReadOnly { .. } => Self::Everything(refusal(&error, EventPlace::Body, 1, None)),
            error => Self::Request(error),
        }
    }
}
