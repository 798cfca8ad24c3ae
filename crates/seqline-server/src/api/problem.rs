//! The one form in which a request is refused: `application/problem+json` (RFC 9457) with a code that stays the same.
//!
//! A client decides by `code`, a person reads `detail`. Neither holds what an event says or who asked with which token. What is the
//! server's own fault is logged here, once, and the client learns only that it was. That the database is away is not: whoever follows
//! the log says that, once for each outage.

use std::borrow::Cow;
use std::time::Duration;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use seqline::DatabaseError;
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::Position;
use super::agents::Holder;
use crate::limits::API_RETRY_AFTER;

/// Why a request was refused. Codes are for programs and never change their meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Code {
    /// The request does not say who asks, or with something that is not valid (any more).
    Unauthenticated,
    /// Who asks may not do this.
    Forbidden,
    /// There is nothing here, or nothing that who asks may see.
    NotFound,
    /// The resource does not know this method.
    MethodNotAllowed,
    /// The body is not of the type that is taken here.
    UnsupportedMediaType,
    /// The request cannot be read: its JSON, a parameter, a header.
    MalformedRequest,
    /// The request can be read and breaks a rule.
    ValidationFailed,
    /// The body is larger than the server takes.
    RequestTooLarge,
    /// The body did not come in time.
    RequestTimeout,
    /// Too many requests: come again after `Retry-After`.
    RateLimited,
    /// The key was used for another request.
    IdempotencyKeyReused,
    /// An event with this id is in the log already.
    EventExists,
    /// What is there does not allow it now.
    Conflict,
    /// Somebody else has the consumer, or has had it since.
    ConsumerReplaced,
    /// The position cannot be read from: start anew.
    ResyncRequired,
    /// The log takes no events for now.
    ReadOnly,
    /// The server or its database cannot answer now: come again after `Retry-After`.
    Unavailable,
    /// The connection to the database was lost at a moment at which the events may or may not have been appended.
    OutcomeUnknown,
    /// The database was restored or replaced, and nobody has said yet how its history goes on.
    EpochUndecided,
    /// A fault of the server. Its log has more.
    Internal,
}

impl Code {
    #[cfg(test)]
    pub(crate) const ALL: [Self; 20] = [
        Self::Unauthenticated,
        Self::Forbidden,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::UnsupportedMediaType,
        Self::MalformedRequest,
        Self::ValidationFailed,
        Self::RequestTooLarge,
        Self::RequestTimeout,
        Self::RateLimited,
        Self::IdempotencyKeyReused,
        Self::EventExists,
        Self::Conflict,
        Self::ConsumerReplaced,
        Self::ResyncRequired,
        Self::ReadOnly,
        Self::Unavailable,
        Self::OutcomeUnknown,
        Self::EpochUndecided,
        Self::Internal,
    ];

    /// As it is in an answer.
    pub(crate) fn as_str(self) -> &'static str {
        self.parts().1
    }

    pub(crate) fn status(self) -> StatusCode {
        self.parts().0
    }

    /// The same for all answers with this code.
    pub(crate) fn title(self) -> &'static str {
        self.parts().2
    }

    fn parts(self) -> (StatusCode, &'static str, &'static str) {
        match self {
            Self::Unauthenticated => (StatusCode::UNAUTHORIZED, "unauthenticated", "not authenticated"),
            Self::Forbidden => (StatusCode::FORBIDDEN, "forbidden", "a right is missing"),
            Self::NotFound => (StatusCode::NOT_FOUND, "not_found", "not found"),
            Self::MethodNotAllowed => {
                (StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "method not allowed")
            }
            Self::UnsupportedMediaType => {
                (StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", "unsupported media type")
            }
            Self::MalformedRequest => {
                (StatusCode::BAD_REQUEST, "malformed_request", "the request cannot be read")
            }
            Self::ValidationFailed => {
                (StatusCode::UNPROCESSABLE_ENTITY, "validation_failed", "the request breaks a rule")
            }
            Self::RequestTooLarge => {
                (StatusCode::PAYLOAD_TOO_LARGE, "request_too_large", "the body is too large")
            }
            Self::RequestTimeout => {
                (StatusCode::REQUEST_TIMEOUT, "request_timeout", "the body did not come in time")
            }
            Self::RateLimited => (StatusCode::TOO_MANY_REQUESTS, "rate_limited", "too many requests"),
            Self::IdempotencyKeyReused => {
                (StatusCode::CONFLICT, "idempotency_key_reused", "the key belongs to another request")
            }
            Self::EventExists => (StatusCode::CONFLICT, "event_exists", "the event is in the log already"),
            Self::Conflict => (StatusCode::CONFLICT, "conflict", "not possible now"),
            Self::ConsumerReplaced => {
                (StatusCode::CONFLICT, "consumer_replaced", "somebody else has the consumer")
            }
            Self::ResyncRequired => (StatusCode::GONE, "resync_required", "the position cannot be read from"),
            Self::ReadOnly => (StatusCode::SERVICE_UNAVAILABLE, "read_only", "the log is read only"),
            Self::Unavailable => (StatusCode::SERVICE_UNAVAILABLE, "unavailable", "not available now"),
            Self::OutcomeUnknown => {
                (StatusCode::SERVICE_UNAVAILABLE, "outcome_unknown", "the outcome is not known")
            }
            Self::EpochUndecided => (
                StatusCode::SERVICE_UNAVAILABLE,
                "epoch_undecided",
                "the history of the database is not decided",
            ),
            Self::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "internal", "internal error"),
        }
    }
}

/// A refusal: what was not done, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    code: Code,
    detail: Cow<'static, str>,
    errors: Vec<Fault>,
    retry_after: Option<Duration>,
    reason: Option<Reason>,
    // Few have one of these, and all are passed around.
    resync: Option<Box<Resync>>,
    holder: Option<Box<Holder>>,
}

/// A member of the request that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct Fault {
    /// Where it is, as a JSON pointer (RFC 6901); empty for the whole body.
    #[schema(example = "/events/3/payload/total")]
    pub(crate) pointer: String,
    /// What is wrong with it.
    pub(crate) message: String,
}

/// Why a position cannot be read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResyncReason {
    /// Events after it have expired.
    Retention,
    /// It is beyond the head of the log.
    CursorAhead,
    /// It is further behind than the server reads for anybody.
    TooFarBehind,
    /// It belongs to a history that ended with a restore.
    EpochChanged,
}

/// What a program may want to know beside the code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reason {
    /// Events after the position have expired.
    Retention,
    /// The position is beyond the head of the log.
    CursorAhead,
    /// The position is further behind than the server reads for anybody.
    TooFarBehind,
    /// The position belongs to a history that ended with a restore.
    EpochChanged,
    /// It is not for principals of this kind.
    SubjectKindNotAllowed,
}

impl From<ResyncReason> for Reason {
    fn from(reason: ResyncReason) -> Self {
        match reason {
            ResyncReason::Retention => Self::Retention,
            ResyncReason::CursorAhead => Self::CursorAhead,
            ResyncReason::TooFarBehind => Self::TooFarBehind,
            ResyncReason::EpochChanged => Self::EpochChanged,
        }
    }
}

/// Where a reader can start anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Resync {
    pub(crate) reason: ResyncReason,
    pub(crate) epoch: Uuid,
    /// The number before the oldest event that is there; none where that cannot be read from either.
    pub(crate) oldest: Option<i64>,
    pub(crate) head: i64,
}

/// A refusal as it is sent. Members that are not there do not apply.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Problem)]
pub(crate) struct Document<'a> {
    /// `urn:seqline:problem:` and the code.
    #[serde(rename = "type")]
    #[schema(example = "urn:seqline:problem:not_found")]
    kind: String,
    /// The same for all refusals with this code.
    title: &'static str,
    /// The status of the answer.
    status: u16,
    /// By which a program decides.
    code: Code,
    /// What it is this time, for people.
    detail: &'a str,
    /// Which members of the request are wrong.
    #[serde(skip_serializing_if = "<[Fault]>::is_empty")]
    #[schema(required = false)]
    errors: &'a [Fault],
    /// With `resync_required`: why. With `forbidden`: `subject_kind_not_allowed` if nobody of your kind may.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    reason: Option<Reason>,
    /// With `resync_required`: the epoch of the log.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    epoch: Option<Uuid>,
    /// With `resync_required`: the position before the oldest event that is there. Not with `too_far_behind`: that is farther still.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    oldest: Option<String>,
    /// With `resync_required`: the position of the newest event.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    head: Option<String>,
    /// With `consumer_replaced`: who has the consumer, if somebody has.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    holder: Option<Holder>,
}

impl Problem {
    pub(crate) const CONTENT_TYPE: &'static str = "application/problem+json";

    pub(crate) fn new(code: Code, detail: impl Into<Cow<'static, str>>) -> Self {
        Self {
            code,
            detail: detail.into(),
            errors: Vec::new(),
            retry_after: None,
            resync: None,
            reason: None,
            holder: None,
        }
    }

    pub(crate) fn not_found(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Code::NotFound, detail)
    }

    pub(crate) fn malformed(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Code::MalformedRequest, detail)
    }

    /// Nothing is wrong with the request: the same may be answered in a while.
    pub(crate) fn unavailable(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Code::Unavailable, detail).retry_after(API_RETRY_AFTER)
    }

    /// A fault of the server, which is logged here. `error` holds no payload and no token.
    pub(crate) fn internal(what: &'static str, error: &dyn std::fmt::Display) -> Self {
        tracing::error!(error = %error, what, "request failed");
        Self::new(Code::Internal, "the server could not answer; its log says why")
    }

    pub(crate) fn resync(resync: Resync) -> Self {
        let detail = match resync.reason {
            ResyncReason::Retention => "events after this position have expired",
            ResyncReason::CursorAhead => "this position is beyond the head of the log",
            ResyncReason::TooFarBehind => "this position is too far behind the head of the log",
            ResyncReason::EpochChanged => "this position belongs to a history that ended with a restore",
        };
        let or_else = if resync.oldest.is_some() { ", or at oldest" } else { "" };
        let detail = format!("{detail}: load what you need anew and go on at head{or_else}");
        Self {
            reason: Some(resync.reason.into()),
            resync: Some(Box::new(resync)),
            ..Self::new(Code::ResyncRequired, detail)
        }
    }

    /// Names a member of the request.
    pub(crate) fn at(mut self, pointer: impl Into<String>, message: impl Into<String>) -> Self {
        self.errors.push(Fault { pointer: pointer.into(), message: message.into() });
        self
    }

    pub(crate) fn retry_after(mut self, after: Duration) -> Self {
        self.retry_after = Some(after);
        self
    }

    /// Says what a program may want to know beside the code.
    pub(crate) fn because(mut self, reason: Reason) -> Self {
        self.reason = Some(reason);
        self
    }

    /// Says who has the consumer.
    pub(crate) fn held_by(mut self, holder: Option<Holder>) -> Self {
        self.holder = holder.map(Box::new);
        self
    }

    pub(crate) fn code(&self) -> Code {
        self.code
    }

    pub(crate) fn detail(&self) -> &str {
        &self.detail
    }

    pub(crate) fn faults(&self) -> &[Fault] {
        &self.errors
    }

    /// What a program may want to know beside the code.
    pub(crate) fn reason(&self) -> Option<Reason> {
        self.reason
    }

    /// Who has the consumer, if that is why.
    pub(crate) fn holder(&self) -> Option<Holder> {
        self.holder.as_deref().copied()
    }

    /// After which time the same may be answered.
    pub(crate) fn comes_again_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// Where a reader can start anew, if that is what it was told.
    pub(crate) fn to_resync(&self) -> Option<Resync> {
        self.resync.as_deref().copied()
    }

    pub(crate) fn document(&self) -> Document<'_> {
        let position = |seq: i64, resync: &Resync| Position { epoch: resync.epoch, seq }.to_string();
        let resync = self.resync.as_deref();
        Document {
            kind: format!("urn:seqline:problem:{}", self.code.as_str()),
            title: self.code.title(),
            status: self.code.status().as_u16(),
            code: self.code,
            detail: &self.detail,
            errors: &self.errors,
            reason: self.reason,
            epoch: resync.map(|resync| resync.epoch),
            oldest: resync.and_then(|resync| Some(position(resync.oldest?, resync))),
            head: resync.map(|resync| position(resync.head, resync)),
            holder: self.holder(),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = serde_json::to_vec(&self.document()).unwrap_or_default();
        let mut response =
            (self.code.status(), [(header::CONTENT_TYPE, Self::CONTENT_TYPE)], body).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(after) = self.retry_after {
            // Whole seconds, and never none.
            headers.insert(header::RETRY_AFTER, after.as_secs().max(1).into());
        }
        if self.code == Code::Unauthenticated {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl From<DatabaseError> for Problem {
    fn from(error: DatabaseError) -> Self {
        if error.is_retryable() {
            // Whoever follows the log says once that the database is away. Here it would be said for each request.
            tracing::debug!(error = %error, "request not answered, the database is not available");
            return Self::unavailable("the database is not available");
        }
        Self::internal("database", &error)
    }
}

impl From<sqlx::Error> for Problem {
    fn from(error: sqlx::Error) -> Self {
        DatabaseError::from(error).into()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;

    #[test]
    fn every_code_is_written_as_it_is_named_and_once() {
        let names: BTreeSet<&str> = Code::ALL.iter().map(|code| code.as_str()).collect();
        assert_eq!(names.len(), Code::ALL.len());
        for code in Code::ALL {
            assert_eq!(serde_json::to_value(code).unwrap(), json!(code.as_str()));
            assert!(code.status().is_client_error() || code.status().is_server_error());
        }
    }

    #[test]
    fn a_refusal_has_a_type_a_code_and_what_is_wrong() {
        let problem = Problem::new(Code::ValidationFailed, "an event breaks a rule").at("/type", "too long");
        assert_eq!(
            serde_json::to_value(problem.document()).unwrap(),
            json!({
                "type": "urn:seqline:problem:validation_failed",
                "title": "the request breaks a rule",
                "status": 422,
                "code": "validation_failed",
                "detail": "an event breaks a rule",
                "errors": [{ "pointer": "/type", "message": "too long" }],
            })
        );
    }

    #[test]
    fn a_reader_that_has_to_start_anew_learns_where() {
        let epoch = Uuid::from_u128(7);
        let resync = Resync { reason: ResyncReason::Retention, epoch, oldest: Some(10), head: 20 };
        let document = serde_json::to_value(Problem::resync(resync).document()).unwrap();
        assert_eq!(document["reason"], "retention");
        assert_eq!(document["oldest"], format!("{epoch}:10"));
        assert_eq!(document["head"], format!("{epoch}:20"));
        assert_eq!(document["epoch"], epoch.to_string());
        assert!(document["detail"].as_str().unwrap().ends_with("go on at head, or at oldest"), "{document}");
        // Nobody is sent to where the same refusal waits.
        let resync = Resync { reason: ResyncReason::TooFarBehind, epoch, oldest: None, head: 20 };
        let document = serde_json::to_value(Problem::resync(resync).document()).unwrap();
        assert_eq!((&document["oldest"], &document["head"]), (&json!(null), &json!(format!("{epoch}:20"))));
        assert!(document["detail"].as_str().unwrap().ends_with("go on at head"), "{document}");
    }

    #[test]
    fn headers_say_when_to_come_again_and_how_to_say_who_one_is() {
        let response = Problem::unavailable("x").retry_after(Duration::from_millis(10)).into_response();
        assert_eq!(response.headers()[header::RETRY_AFTER], "1");
        assert_eq!(response.headers()[header::CONTENT_TYPE], "application/problem+json");
        let response = Problem::new(Code::Unauthenticated, "x").into_response();
        assert_eq!(
            (response.status().as_u16(), &response.headers()[header::WWW_AUTHENTICATE]),
            (401, &HeaderValue::from_static("Bearer"))
        );
    }
}
