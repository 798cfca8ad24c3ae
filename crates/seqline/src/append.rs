//! The one way into the log.
//!
//! [`append`] stages events in the caller's transaction; they get their numbers inside its COMMIT and are gone with its
//! rollback, savepoints included. It calls the same SQL functions that every other language calls.
//! [`commit`](crate::commit()) ends the transaction.

use serde::Serialize;
use serde_json::value::RawValue;
use sqlx::{PgPool, PgTransaction};
use uuid::Uuid;

use crate::error::{AppendError, DatabaseError};
use crate::event::{Draft, NewEvent};
use crate::limits::{APPEND_STATEMENT_BYTES_MAX, APPEND_STATEMENT_EVENTS_MAX};
use crate::{pool, store, trace};

/// Begins a transaction.
///
/// Use it instead of [`PgPool::begin`]: a `begin()` future that is dropped at the wrong moment puts a connection with an
/// open transaction back into the pool. This one is cancel safe.
///
/// # Errors
///
/// [`DatabaseError`] when no connection can be had or the server refuses it.
pub async fn begin(pool: &PgPool) -> Result<PgTransaction<'static>, DatabaseError> {
    let pool = pool.clone();
    let task = tokio::spawn(async move {
        // On a task of its own it is always driven to its end.
        match pool::is_pooled(&pool) {
            true => pool.begin_with(store::connection::BEGIN_POOLED).await,
            #[expect(clippy::disallowed_methods, reason = "this is the one place")]
            false => pool.begin().await,
        }
    });
    match task.await {
        Ok(begun) => Ok(begun?),
        // Only a runtime that is shutting down cancels the task, and sqlx does not panic here by contract.
        Err(_) => Err(DatabaseError::from(sqlx::Error::WorkerCrashed)),
    }
}

/// Appends events in the order given and returns their ids. Any number of them: they are sent in statements of at most
/// [`APPEND_STATEMENT_EVENTS_MAX`], which a database whose setting `append_batch_max_events` is lower refuses.
///
/// All or nothing: after an error PostgreSQL refuses everything but a rollback, to a savepoint or of the whole
/// transaction. The transaction must be READ COMMITTED, PostgreSQL's default, unless events are numbered after commit and have no ids of
/// your own. One with an id of your own waits for an open transaction that has the same.
///
/// When the server takes no writes, because it is a standby, the session ends with the transaction: the pool makes a new connection.
///
/// Not cancel safe in the sense of any statement: a dropped future leaves it open whether the events are in the
/// transaction, so roll it back.
///
/// # Errors
///
/// [`AppendError::Invalid`] for what only the database can judge (the payload's size), [`AppendError::DuplicateId`],
/// [`AppendError::Isolation`], [`AppendError::ReadOnly`] during maintenance, or what the database reported.
pub async fn append(tx: &mut PgTransaction<'_>, events: &[NewEvent]) -> Result<Vec<Uuid>, AppendError> {
    let appended = append_all(tx, events).await;
    if matches!(&appended, Err(AppendError::Database(error)) if error.is_read_only_server()) {
        // The pool would hand it out again and again, although its address may lead to another server by now.
        pool::end_session(tx).await;
    }
    appended
}

async fn append_all(tx: &mut PgTransaction<'_>, events: &[NewEvent]) -> Result<Vec<Uuid>, AppendError> {
    let current = trace::current_traceparent();
    if let [event] = events {
        let draft = &event.0;
        let traceparent = draft.traceparent.as_deref().or(current.as_deref());
        return Ok(vec![store::append::append(tx, draft, traceparent).await?]);
    }
    let mut ids = Vec::with_capacity(events.len());
    let mut rest = events;
    while !rest.is_empty() {
        let (statement, later) = rest.split_at(statement_length(rest));
        let members: Vec<Members<'_>> =
            statement.iter().map(|event| Members::of(&event.0, current.as_deref())).collect();
        let json = serde_json::to_string(&members).map_err(|error| sqlx::Error::Encode(Box::new(error)))?;
        let appended = store::append::append_batch(tx, &json).await.map_err(|error| match error.into() {
            AppendError::Invalid(error) => AppendError::Invalid(error.of_batch(ids.len())),
            error => error,
        });
        ids.extend(appended?);
        rest = later;
    }
    Ok(ids)
}

/// How many of the next events go into one statement: at least one.
fn statement_length(events: &[NewEvent]) -> usize {
    let mut bytes = 0;
    events
        .iter()
        .take(APPEND_STATEMENT_EVENTS_MAX)
        .take_while(|event| {
            let fits = bytes < APPEND_STATEMENT_BYTES_MAX;
            bytes += event.0.payload.as_json().len();
            fits
        })
        .count()
}

/// An event as `seqline.append_batch` takes it.
#[derive(Serialize)]
struct Members<'a> {
    r#type: &'a str,
    payload: &'a RawValue,
    resource_kind: &'a str,
    receive_action: &'a str,
    schema_version: i32,
    truncated: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<Uuid>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resource_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resource_version: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    space_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    channel_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    thread_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    actor_kind: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    actor_principal_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    audience_principal_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    client_msg_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    traceparent: Option<&'a str>,
}

impl<'a> Members<'a> {
    fn of(draft: &'a Draft, current_traceparent: Option<&'a str>) -> Self {
        Self {
            r#type: &draft.event_type,
            payload: draft.payload.raw(),
            resource_kind: &draft.resource_kind,
            receive_action: &draft.receive_action,
            schema_version: draft.schema_version,
            truncated: draft.truncated,
            id: draft.id,
            resource_id: draft.resource_id.as_deref(),
            resource_version: draft.resource_version,
            space_id: draft.space_id.as_deref(),
            channel_id: draft.channel_id.as_deref(),
            thread_id: draft.thread_id.as_deref(),
            actor_kind: draft.actor.as_ref().map(|actor| actor.kind()),
            actor_principal_id: draft.actor.as_ref().and_then(|actor| actor.principal_id()),
            audience_principal_id: draft.audience_principal_id.as_deref(),
            client_msg_id: draft.client_msg_id.as_deref(),
            traceparent: draft.traceparent.as_deref().or(current_traceparent),
        }
    }
}
