//! Calls of the SQL functions that append.

use sqlx::PgConnection;
use uuid::Uuid;

use crate::event::{Actor, Draft};

pub(crate) async fn append(
    connection: &mut PgConnection,
    draft: &Draft,
    traceparent: Option<&str>,
) -> Result<Uuid, sqlx::Error> {
    sqlx::query_scalar(
        "SELECT seqline.append(
            type => $1, payload => $2::jsonb, resource_kind => $3, receive_action => $4, resource_id => $5,
            resource_version => $6, space_id => $7, channel_id => $8, thread_id => $9, actor_kind => $10,
            actor_principal_id => $11, audience_principal_id => $12, schema_version => $13,
            client_msg_id => $14, id => $15, truncated => $16, traceparent => $17)",
    )
    .bind(&draft.event_type)
    .bind(draft.payload.as_json())
    .bind(&draft.resource_kind)
    .bind(&draft.receive_action)
    .bind(&draft.resource_id)
    .bind(draft.resource_version)
    .bind(&draft.space_id)
    .bind(&draft.channel_id)
    .bind(&draft.thread_id)
    .bind(draft.actor.as_ref().map(Actor::kind))
    .bind(draft.actor.as_ref().and_then(Actor::principal_id))
    .bind(&draft.audience_principal_id)
    .bind(draft.schema_version)
    .bind(&draft.client_msg_id)
    .bind(draft.id)
    .bind(draft.truncated)
    .bind(traceparent)
    .fetch_one(connection)
    .await
}

/// `events` is a JSON array of event objects.
pub(crate) async fn append_batch(
    connection: &mut PgConnection,
    events: &str,
) -> Result<Vec<Uuid>, sqlx::Error> {
    sqlx::query_scalar("SELECT seqline.append_batch($1::jsonb)").bind(events).fetch_one(connection).await
}
