//! What is sent over a connection, in both directions: one object of `op` and `d` in each text message.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::close::{Close, CloseCode};
use crate::api::agents::{Holder, Resync, any_seq};
use crate::api::problem::{Fault, Reason};
use crate::api::{Code, Problem};

/// What a client sends.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(tag = "op", content = "d", rename_all = "snake_case")]
pub(super) enum ClientFrame {
    Identify(Identify),
    Resume(Resume),
    Ack(Ack),
    Heartbeat(Heartbeat),
}

/// The first frame of a client that begins.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Identify {
    /// A token of the API, or one of the identity provider's.
    pub(super) token: String,
    /// Of people and apps: the position up to which they have read, or `head`, or `oldest`.
    #[serde(default)]
    #[schema(nullable = false, default = "head")]
    pub(super) position: Option<String>,
    /// Of agents: the name of the consumer.
    #[serde(default)]
    #[schema(nullable = false, default = "default", pattern = "^[a-z0-9][a-z0-9_-]*$", max_length = 64)]
    pub(super) consumer: Option<String>,
    /// Of agents: whether to take the consumer from somebody who has it.
    #[serde(default)]
    #[schema(nullable = false, default = true)]
    pub(super) take_over: Option<bool>,
    /// Of agents that come again without their session: the `generation` that they were told last. If somebody else has taken the consumer
    /// since, it stays with that one.
    #[serde(default)]
    #[schema(nullable = false, minimum = 1)]
    pub(super) generation: Option<i64>,
}

/// The first frame of a client that goes on where a connection was lost.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Resume {
    /// A token of the same principal.
    pub(super) token: String,
    /// Of `ready`.
    pub(super) session_id: Uuid,
    /// Of people and apps: the position of the last event that they have.
    #[serde(default)]
    #[schema(nullable = false)]
    pub(super) position: Option<String>,
}

/// Up to where an agent has everything. One of both.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = GatewayAck)]
pub(super) struct Ack {
    /// The number of the last event that it is done with.
    #[serde(default, deserialize_with = "any_seq")]
    #[schema(nullable = false, minimum = 0)]
    pub(super) seq: Option<i64>,
    /// The same as a position.
    #[serde(default)]
    #[schema(nullable = false)]
    pub(super) position: Option<String>,
}

/// The client lives.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Heartbeat {
    /// How far it has come, for whoever looks. It acknowledges nothing.
    #[serde(default)]
    #[schema(nullable = false)]
    #[expect(dead_code, reason = "it may be said, and nothing follows from it")]
    pub(super) position: Option<String>,
}

/// Tokens are secrets.
impl std::fmt::Debug for Identify {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identify").field("consumer", &self.consumer).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Resume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resume").field("session_id", &self.session_id).finish_non_exhaustive()
    }
}

/// What the server sends, but for events, which are texts that are rendered already.
#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "op", content = "d")]
pub(super) enum ServerFrame<'a> {
    #[serde(rename = "hello")]
    Hello(Hello),
    #[serde(rename = "ready")]
    Ready(Ready<'a>),
    #[serde(rename = "resumed")]
    Resumed(Ready<'a>),
    #[serde(rename = "catchup.complete")]
    CatchupComplete { head: String, head_seq: i64 },
    #[serde(rename = "resync_required")]
    ResyncRequired(ResyncRequired),
    #[serde(rename = "heartbeat.ack")]
    HeartbeatAck { head: String },
    #[serde(rename = "error")]
    Error(Refusal<'a>),
    #[serde(rename = "reconnect")]
    Reconnect { after_ms: u64 },
}

/// Everything that a client has to keep to.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Hello {
    pub(super) protocol: u32,
    pub(super) epoch: Uuid,
    pub(super) heartbeat_interval_ms: u64,
    pub(super) identify_timeout_ms: u64,
    pub(super) frame_bytes_max: u32,
    pub(super) resume_window_ms: u64,
    pub(super) ack_timeout_ms: u64,
    pub(super) inflight_events_max: u32,
    pub(super) inflight_bytes_max: u32,
    pub(super) close_codes: Vec<CloseCode>,
}

/// The session begins, or goes on.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Ready<'a> {
    pub(super) session_id: Uuid,
    pub(super) principal: &'a str,
    /// `user`, `agent` or `app`.
    pub(super) kind: &'static str,
    /// The position of the newest event of the log.
    pub(super) head: String,
    /// Of people and apps: from where on they are given events.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(super) position: Option<String>,
    /// Of agents: the consumer.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(super) consumer: Option<&'a str>,
    /// Of agents: rises whenever somebody takes the consumer.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(super) generation: Option<i64>,
    /// Of agents: up to where they have acknowledged.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(super) acked: Option<String>,
    /// Of agents: events that they may never have got, until they acknowledge that they know.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(super) resync: Option<Resync>,
}

/// Events were lost for the client, which goes on at the head.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ResyncRequired {
    pub(super) reason: &'static str,
    pub(super) head: String,
    /// Of people and apps: the position before the oldest event that is there.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(super) oldest: Option<String>,
    /// Of agents: the last acknowledgement before that.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(super) after: Option<String>,
    /// Of agents: where they go on.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(super) position: Option<String>,
}

/// A frame was refused, and the connection goes on.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Refusal<'a> {
    code: Code,
    detail: &'a str,
    #[serde(skip_serializing_if = "<[Fault]>::is_empty")]
    errors: &'a [Fault],
    /// What a program may want to know beside the code.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    reason: Option<Reason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    retry_after_ms: Option<u64>,
    /// With `consumer_replaced`: who has the consumer.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    holder: Option<Holder>,
}

impl<'a> Refusal<'a> {
    pub(super) fn of(problem: &'a Problem) -> Self {
        let retry_after_ms =
            problem.comes_again_after().map(|after| u64::try_from(after.as_millis()).unwrap_or(u64::MAX));
        Self {
            code: problem.code(),
            detail: problem.detail(),
            errors: problem.faults(),
            reason: problem.reason(),
            retry_after_ms,
            holder: problem.holder(),
        }
    }
}

impl ServerFrame<'_> {
    /// Its text.
    pub(super) fn to_text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// The frame of an event.
pub(super) fn event(envelope: &[u8]) -> String {
    let mut text = String::with_capacity(envelope.len() + 24);
    text.push_str("{\"op\":\"event\",\"d\":");
    text.push_str(std::str::from_utf8(envelope).unwrap_or("null"));
    text.push('}');
    text
}

/// All close codes, for `hello`.
pub(super) fn close_codes() -> Vec<CloseCode> {
    Close::ALL.map(Close::code).to_vec()
}
