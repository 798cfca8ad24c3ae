//! How a consumer stands, and acknowledgements. Neither takes it from anybody.

use std::fmt;

use axum::Json;
use seqline::agent::{self, Cursor, Lost};
use seqline::read;
use serde::de::{self, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use time::OffsetDateTime;
use utoipa::{IntoParams, ToSchema};

use super::caller::consumer;
use super::holding::{gone, replaced};
use crate::api::{Api, Caller, Code, JsonBody, PathParams, Position, Problem};

/// Which consumer of which agent.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct ConsumerPath {
    /// The principal's id of the agent: you.
    pub(super) agent: String,
    /// The name of the consumer.
    #[param(pattern = "^[a-z0-9][a-z0-9_-]*$", max_length = 64, example = "default")]
    pub(super) consumer: String,
}

/// A consumer of an agent.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AgentConsumer)]
pub(super) struct Consumer {
    /// The principal's id of its agent.
    #[schema(example = "billing")]
    agent: String,
    /// Its name.
    #[schema(example = "default")]
    consumer: String,
    /// Up to where it has acknowledged.
    #[schema(example = "0198c8f2-7a4b-7000-8000-00000000abcd:1042")]
    acked: String,
    /// The position of the newest event of the log.
    head: String,
    /// How many numbers lie between the two, those of events for others too.
    #[schema(minimum = 0)]
    lag: i64,
    /// Rises whenever somebody takes the consumer.
    #[schema(minimum = 1)]
    generation: i64,
    /// Who has it. Nobody after it was released.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    holder: Option<Holder>,
    /// Events that the agent may never have got, until it acknowledges that it knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    resync: Option<Resync>,
    /// When it was created.
    #[serde(with = "time::serde::rfc3339")]
    created_at: OffsetDateTime,
    /// When it was taken or acknowledged something last.
    #[serde(with = "time::serde::rfc3339")]
    updated_at: OffsetDateTime,
}

/// Who has a consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = AgentConsumerHolder)]
pub(crate) struct Holder {
    /// `gateway` or `rest`.
    #[schema(example = "rest")]
    over: &'static str,
    /// Since when.
    #[serde(with = "time::serde::rfc3339")]
    since: OffsetDateTime,
}

/// What a consumer lost.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AgentConsumerResync)]
pub(in crate::api) struct Resync {
    /// `retention`, `cursor_ahead` or `epoch_changed`.
    #[schema(example = "retention")]
    reason: &'static str,
    /// The last acknowledgement before that.
    after: String,
    /// Where it goes on. Acknowledge this, or a later position, when you have loaded what you need anew.
    position: String,
}

impl From<agent::Holder> for Holder {
    fn from(holder: agent::Holder) -> Self {
        Self { over: holder.kind.as_str(), since: holder.since }
    }
}

impl Resync {
    pub(in crate::api) fn of(api: &Api, lost: &Lost) -> Self {
        Self {
            reason: lost.reason.as_str(),
            after: api.position(lost.after).to_string(),
            position: api.position(lost.position).to_string(),
        }
    }
}

impl Consumer {
    fn of(api: &Api, cursor: &Cursor) -> Self {
        // Another process may have seen more of the log.
        let head = api.reader.hub.position().max(cursor.acked_seq);
        Self {
            agent: cursor.consumer.agent().to_owned(),
            consumer: cursor.consumer.name().to_owned(),
            acked: api.position(cursor.acked_seq).to_string(),
            head: api.position(head).to_string(),
            lag: head - cursor.acked_seq,
            generation: cursor.generation,
            holder: cursor.holder.map(Holder::from),
            resync: cursor.lost.map(|lost| Resync::of(api, &lost)),
            created_at: cursor.created_at,
            updated_at: cursor.updated_at,
        }
    }
}

/// How a consumer stands
///
/// A consumer of yours, without taking it from whoever has it.
#[utoipa::path(
    get,
    path = "/v1/agents/{agent}/consumers/{consumer}",
    operation_id = "get_consumer_of_agent",
    tag = "agents",
    security(("token" = [])),
    params(ConsumerPath),
    responses(
        (status = 200, description = "The consumer.", body = Consumer),
        (status = 403, description = "You are not this agent.", body = crate::api::problem::Document<'_>, content_type = "application/problem+json"),
        (status = 422, description = "The name is none.", body = crate::api::problem::Document<'_>, content_type = "application/problem+json"),
    )
)]
pub(super) async fn show(
    api: Api,
    caller: Caller,
    PathParams(path): PathParams<ConsumerPath>,
) -> Result<Json<Consumer>, Problem> {
    let consumer = consumer(&api, &caller, &path.agent, &path.consumer).await?;
    let cursor = api.database.ask(async |connection| agent::cursor(connection, &consumer).await).await?;
    let cursor = cursor.ok_or_else(gone)?;
    Ok(Json(Consumer::of(&api, &cursor)))
}

/// Up to where you have everything. One of both.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = AgentAcknowledgement)]
pub(super) struct Acknowledgement {
    /// The number of the last event that you are done with. It covers all before it.
    #[serde(default, deserialize_with = "any_seq")]
    #[schema(nullable = false, minimum = 0, example = 1042)]
    seq: Option<i64>,
    /// The same as a position, such as `next`: one of a history that a restore ended is refused.
    #[schema(nullable = false, example = "0198c8f2-7a4b-7000-8000-00000000abcd:1042")]
    position: Option<String>,
    /// The `generation` of your answer: refused if somebody else has had the consumer since.
    #[schema(nullable = false, minimum = 1)]
    generation: Option<i64>,
}

/// A whole number of any size: one that is too large for the log is above its head, and refused as that.
pub(in crate::api) fn any_seq<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i64>, D::Error> {
    struct AnySeq;
    impl Visitor<'_> for AnySeq {
        type Value = Option<i64>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a whole number")
        }

        fn visit_unit<E>(self) -> Result<Option<i64>, E> {
            Ok(None)
        }

        fn visit_i64<E>(self, seq: i64) -> Result<Option<i64>, E> {
            Ok(Some(seq))
        }

        fn visit_u64<E>(self, seq: u64) -> Result<Option<i64>, E> {
            Ok(Some(i64::try_from(seq).unwrap_or(i64::MAX)))
        }

        // This is how whole numbers come that do not fit into 64 bits.
        fn visit_f64<E: de::Error>(self, seq: f64) -> Result<Option<i64>, E> {
            match seq {
                _ if seq >= TWO_TO_63 => Ok(Some(i64::MAX)),
                _ if seq <= -TWO_TO_63 => Ok(Some(i64::MIN)),
                _ => Err(E::invalid_type(Unexpected::Float(seq), &self)),
            }
        }
    }
    const TWO_TO_63: f64 = 9_223_372_036_854_775_808.0;
    deserializer.deserialize_any(AnySeq)
}

/// The number that is acknowledged, by itself or as a position.
pub(in crate::api) fn acknowledged_seq(
    api: &Api,
    seq: Option<i64>,
    position: Option<&str>,
) -> Result<i64, Problem> {
    let wrong = |pointer: &str, message: &str| {
        Problem::new(Code::ValidationFailed, "the acknowledgement is not as expected").at(pointer, message)
    };
    match (seq, position) {
        (Some(seq), None) if seq >= 0 => Ok(seq),
        (Some(_), None) => Err(wrong("/seq", "expected 0 or more")),
        (None, Some(position)) => {
            let position: Position = position
                .parse()
                .map_err(|_| wrong("/position", "expected a position as the server gave it"))?;
            if position.epoch != api.epoch {
                return Err(Problem::new(
                    Code::Conflict,
                    "the position belongs to a history that ended with a restore: ask for events, and acknowledge those",
                ));
            }
            Ok(position.seq)
        }
        (None, None) => Err(wrong("/seq", "expected seq or position")),
        (Some(_), Some(_)) => Err(wrong("/position", "expected either seq or position")),
    }
}

/// Acknowledge
///
/// Says that you are done with all events up to a number: they are not given to you again. One that is not higher than the one before changes
/// nothing. Who has the consumer keeps it.
#[utoipa::path(
    post,
    path = "/v1/agents/{agent}/consumers/{consumer}/ack",
    operation_id = "acknowledge_consumer_events",
    tag = "agents",
    security(("token" = [])),
    params(ConsumerPath),
    request_body = Acknowledgement,
    responses(
        (status = 200, description = "The consumer, as it is now.", body = Consumer),
        (status = 409, description = "Somebody else has had the consumer, or the position is of another history.", body = crate::api::problem::Document<'_>, content_type = "application/problem+json"),
    )
)]
pub(super) async fn acknowledge(
    api: Api,
    caller: Caller,
    PathParams(path): PathParams<ConsumerPath>,
    JsonBody(acknowledgement): JsonBody<Acknowledgement>,
) -> Result<Json<Consumer>, Problem> {
    let consumer = consumer(&api, &caller, &path.agent, &path.consumer).await?;
    let seq = acknowledged_seq(&api, acknowledgement.seq, acknowledgement.position.as_deref())?;
    // Another process may have delivered what this one has not seen yet.
    if seq > api.reader.hub.position() {
        let head = api.database.ask(async |connection| read::head(connection).await).await?;
        if seq > head {
            return Err(Problem::new(Code::ValidationFailed, "the log has not come that far")
                .at("/seq", "it is above the head of the log"));
        }
    }
    let acknowledged = api.database.ask(async |connection| {
        agent::acknowledge(connection, &consumer, seq, acknowledgement.generation, api.epoch).await
    });
    match acknowledged.await? {
        Some((cursor, true)) => {
            api.sessions.acknowledged(&consumer, seq);
            Ok(Json(Consumer::of(&api, &cursor)))
        }
        Some((cursor, false)) => Err(replaced(&cursor)),
        None => Err(gone()),
    }
}
