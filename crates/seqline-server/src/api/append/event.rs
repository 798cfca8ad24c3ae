//! From what a client sent to an event: the rules of the log, and the place of whatever breaks one.

use seqline::access::PrincipalKind;
use seqline::{Actor, InvalidEvent, NewEvent, Payload};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

use super::schema::PayloadSchema;
use crate::api::{Code, Problem};

/// An event as it is appended. A member that is null or empty is as one that is not there.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = NewEvent)]
#[serde(deny_unknown_fields)]
pub(crate) struct EventBody {
    /// Two or more lowercase words joined by dots.
    #[schema(
        required,
        nullable = false,
        example = "order.created",
        max_length = 128,
        pattern = r"^[a-z][a-z_]*(\.[a-z][a-z_]*)+$"
    )]
    r#type: Option<String>,
    /// An object without any null in it. Its size is bounded by the setting `event_payload_max_bytes` of the database.
    #[schema(required, nullable = false, value_type = PayloadSchema, example = json!({ "total": 12.5 }))]
    #[serde(default, deserialize_with = "raw")]
    payload: Option<Box<RawValue>>,
    /// What kind of resource it is about.
    #[schema(
        required,
        nullable = false,
        example = "order",
        max_length = 128,
        pattern = r"^[^\x00-\x1f\x7f-\x9f]*$"
    )]
    resource_kind: Option<String>,
    /// The permission that its receivers need: `any` for none, `self` for the one principal of `audience_principal_id`.
    #[schema(
        required,
        nullable = false,
        example = "any",
        max_length = 128,
        pattern = r"^[^\x00-\x1f\x7f-\x9f]*$"
    )]
    receive_action: Option<String>,
    /// Which resource of its kind.
    #[schema(nullable = false, example = "17", max_length = 128, pattern = r"^[^\x00-\x1f\x7f-\x9f]*$")]
    resource_id: Option<String>,
    /// The version of the resource after the event.
    #[schema(nullable = false)]
    resource_version: Option<i64>,
    /// The widest scope: a tenant or an environment.
    #[schema(nullable = false, max_length = 128, pattern = r"^[^\x00-\x1f\x7f-\x9f]*$")]
    space_id: Option<String>,
    /// The scope inside a space.
    #[schema(nullable = false, max_length = 128, pattern = r"^[^\x00-\x1f\x7f-\x9f]*$")]
    channel_id: Option<String>,
    /// The scope inside a channel.
    #[schema(nullable = false, max_length = 128, pattern = r"^[^\x00-\x1f\x7f-\x9f]*$")]
    thread_id: Option<String>,
    /// What caused it: `user`, `agent`, `app` or `system`. Without it the principal of the token did.
    #[schema(nullable = false, pattern = "^(user|agent|app|system)$")]
    actor_kind: Option<String>,
    /// Who caused it, unless that was the system.
    #[schema(nullable = false, max_length = 128, pattern = r"^[^\x00-\x1f\x7f-\x9f]*$")]
    actor_principal_id: Option<String>,
    /// The one principal that may receive it.
    #[schema(nullable = false, max_length = 128, pattern = r"^[^\x00-\x1f\x7f-\x9f]*$")]
    audience_principal_id: Option<String>,
    /// The version of the payload's shape, 1 if not given.
    #[schema(nullable = false, minimum = 1)]
    schema_version: Option<i32>,
    /// The id that the sender of the command gave it, so that it recognises the echo.
    #[schema(nullable = false, max_length = 128, pattern = r"^[^\x00-\x1f\x7f-\x9f]*$")]
    client_msg_id: Option<String>,
    /// An id of your own, a UUIDv7 at best. One that is in the log already is refused.
    #[schema(nullable = false)]
    #[serde(default, deserialize_with = "uuid")]
    id: Option<Uuid>,
    /// Whether the payload is a reduced one: a receiver reads the resource again.
    #[schema(nullable = false)]
    truncated: Option<bool>,
    /// The W3C `traceparent` of what caused it. Without it that of the request is taken. A malformed one is ignored.
    #[schema(nullable = false)]
    traceparent: Option<String>,
}

/// What is there is kept as it is, a null too, which then is no object.
fn raw<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::deserialize(deserializer).map(Some)
}

/// Only as it is written everywhere else.
fn uuid<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Uuid>, D::Error> {
    use serde::de::Error;

    let Some(text) = Option::<String>::deserialize(deserializer)? else { return Ok(None) };
    let id = Uuid::try_parse(&text).ok().filter(|_| text.len() == 36);
    id.map(Some).ok_or_else(|| D::Error::custom("expected a UUID with its hyphens"))
}

/// Who sends events, for what they do not say themselves.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sender<'a> {
    pub(crate) kind: PrincipalKind,
    pub(crate) principal: &'a str,
    /// The header `traceparent` of the request.
    pub(crate) traceparent: Option<&'a str>,
}

/// Where the events of a request are in its body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EventPlace {
    /// The body is the event.
    Body,
    /// They are the elements of the member `events`.
    Events,
}

impl EventPlace {
    /// The JSON pointer of an event.
    pub(crate) fn of(self, index: usize) -> String {
        match self {
            Self::Body => String::new(),
            Self::Events => format!("/events/{index}"),
        }
    }

    /// What the log refuses of an event, in the words of the client's request.
    pub(crate) fn refusal(self, index: usize, error: &InvalidEvent) -> Problem {
        invalid(format!("{}{}", self.of(index), error.pointer()), error.to_string())
    }

    /// The same of the only event, whose payload PostgreSQL cannot store: a number with too many digits, for example.
    pub(crate) fn unstorable(self) -> Problem {
        invalid(format!("{}/payload", self.of(0)), "member payload cannot be stored".to_owned())
    }

    /// The same when it is not known which of the events it is.
    pub(crate) fn refusal_of_all(self, message: String) -> Problem {
        match self {
            Self::Body => invalid(String::new(), message),
            Self::Events => invalid("/events".to_owned(), message),
        }
    }
}

fn invalid(pointer: String, message: String) -> Problem {
    Problem::new(Code::ValidationFailed, "an event breaks a rule of the log").at(pointer, message)
}

impl EventBody {
    /// The event, if the log would accept it.
    pub(crate) fn into_event(
        self,
        sender: Sender<'_>,
        place: EventPlace,
        index: usize,
    ) -> Result<NewEvent, Problem> {
        let at = |member: &str, message: &str| {
            invalid(format!("{}/{member}", place.of(index)), message.to_owned())
        };
        let refused = |error: InvalidEvent| place.refusal(index, &error);
        let Some(payload) = &self.payload else { return Err(at("payload", "member payload is missing")) };
        let payload = Payload::from_json(payload.get()).map_err(refused)?;
        let actor = self.actor(sender).map_err(|(member, message)| at(member, message))?;
        let mut builder = NewEvent::builder(
            self.r#type.unwrap_or_default(),
            self.resource_kind.unwrap_or_default(),
            self.receive_action.unwrap_or_default(),
        )
        .payload(payload)
        .actor(actor)
        .resource_id(self.resource_id.unwrap_or_default())
        .space(self.space_id.unwrap_or_default())
        .channel(self.channel_id.unwrap_or_default())
        .thread(self.thread_id.unwrap_or_default())
        .audience(self.audience_principal_id.unwrap_or_default())
        .schema_version(self.schema_version.unwrap_or(1))
        .client_msg_id(self.client_msg_id.unwrap_or_default())
        .id(self.id.unwrap_or_default())
        .truncated(self.truncated.unwrap_or_default());
        if let Some(version) = self.resource_version {
            builder = builder.resource_version(version);
        }
        let traceparent = self.traceparent.filter(|text| !text.is_empty());
        if let Some(traceparent) = traceparent.as_deref().or(sender.traceparent) {
            builder = builder.traceparent(traceparent);
        }
        builder.build().map_err(refused)
    }

    fn actor(&self, sender: Sender<'_>) -> Result<Actor, (&'static str, &'static str)> {
        let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        let (kind, principal) = (given(&self.actor_kind), given(&self.actor_principal_id));
        let Some(kind) = kind else {
            return match principal {
                None => Ok(of_kind(sender.kind, sender.principal.to_owned())),
                Some(_) => Err((
                    "actor_principal_id",
                    "member actor_principal_id needs an actor_kind of user, agent or app",
                )),
            };
        };
        if kind == "system" {
            return match principal {
                None => Ok(Actor::System),
                Some(_) => Err((
                    "actor_principal_id",
                    "member actor_principal_id needs an actor_kind of user, agent or app",
                )),
            };
        }
        let kind: PrincipalKind = kind
            .parse()
            .map_err(|_| ("actor_kind", "member actor_kind must be user, agent, app or system"))?;
        // Without one the log says what is missing.
        Ok(of_kind(kind, principal.unwrap_or_default()))
    }
}

fn of_kind(kind: PrincipalKind, principal: String) -> Actor {
    match kind {
        PrincipalKind::User => Actor::User(principal),
        PrincipalKind::Agent => Actor::Agent(principal),
        PrincipalKind::App => Actor::App(principal),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::body::from_json;

    const SENDER: Sender<'_> =
        Sender { kind: PrincipalKind::App, principal: "shop", traceparent: Some("of-the-request") };

    const LEAST: &str =
        r#""type":"order.created","payload":{},"resource_kind":"order","receive_action":"any""#;

    fn event(more: &str) -> Result<NewEvent, Problem> {
        let body = format!("{{{LEAST}{more}}}");
        from_json::<EventBody>(body.as_bytes())?.into_event(SENDER, EventPlace::Events, 3)
    }

    /// The place and the message of what is wrong.
    fn refused(body: &str) -> (String, String) {
        let event = from_json::<EventBody>(body.as_bytes());
        let problem = event.and_then(|event| event.into_event(SENDER, EventPlace::Events, 3)).unwrap_err();
        assert_eq!(problem.code(), Code::ValidationFailed, "{problem:?}");
        let document = serde_json::to_value(problem.document()).unwrap();
        let text = |member: &str| document["errors"][0][member].as_str().unwrap().to_owned();
        (text("pointer"), text("message"))
    }

    #[test]
    fn what_an_event_does_not_say_comes_from_whoever_sends_it() {
        let text = format!("{:?}", event("").unwrap());
        assert!(text.contains(r#"App("shop")"#) && text.contains("of-the-request"), "{text}");
        let text = format!(
            "{:?}",
            event(r#","actor_kind":"user","actor_principal_id":"Alex","traceparent":"own""#).unwrap()
        );
        assert!(text.contains(r#"User("Alex")"#) && text.contains(r#"Some("own")"#), "{text}");
        let text = format!("{:?}", event(r#","actor_kind":"system""#).unwrap());
        assert!(text.contains("System"), "{text}");
    }

    #[test]
    fn null_is_as_good_as_nothing_but_for_the_payload() {
        assert!(event(r#","space_id":null,"id":null,"truncated":null,"schema_version":null"#).is_ok());
        let body = r#"{"type":"a.b","payload":null,"resource_kind":"x","receive_action":"any"}"#;
        assert_eq!(
            refused(body),
            ("/events/3/payload".to_owned(), "member payload must be a JSON object".to_owned())
        );
    }

    #[test]
    fn numbers_of_a_payload_keep_every_digit() {
        let body = r#"{"type":"a.b","payload":{"n":1.000000000000000000001,"big":1e400},"resource_kind":"x","receive_action":"any"}"#;
        let event =
            from_json::<EventBody>(body.as_bytes()).unwrap().into_event(SENDER, EventPlace::Body, 0).unwrap();
        assert_eq!(event.payload().as_json(), r#"{"n":1.000000000000000000001,"big":1e400}"#);
    }

    #[test]
    fn what_is_wrong_is_named_by_its_place_in_the_request_and_without_its_value() {
        let with = |more: &str| format!("{{{LEAST}{more}}}");
        for (body, pointer, message) in [
            ("{}".to_owned(), "/events/3/payload", "member payload is missing"),
            (r#"{"payload":{}}"#.to_owned(), "/events/3/type", "member type is missing"),
            (
                with(r#","actor_kind":"secret""#),
                "/events/3/actor_kind",
                "member actor_kind must be user, agent, app or system",
            ),
            (
                with(r#","actor_kind":"user""#),
                "/events/3/actor_principal_id",
                "member actor_principal_id is missing: an actor of kind user, agent or app names its principal",
            ),
            (
                with(r#","actor_principal_id":"secret""#),
                "/events/3/actor_principal_id",
                "member actor_principal_id needs an actor_kind of user, agent or app",
            ),
            (
                with(r#","schema_version":0"#),
                "/events/3/schema_version",
                "member schema_version must be at least 1",
            ),
            (
                r#"{"type":"a.b","payload":{"a":[{"b/c":null}]},"resource_kind":"x","receive_action":"any"}"#
                    .to_owned(),
                "/events/3/payload/a/0/b~1c",
                "payload member /a/0/b~1c is null",
            ),
            // What is found when it is read has no event around it yet.
            (with(r#","schema_version":"secret""#), "/schema_version", "expected i32"),
            (with(r#","id":"secret""#), "/id", "expected a UUID with its hyphens"),
            (with(r#","secret":1"#), "/secret", "unknown member"),
        ] {
            let (found, why) = refused(&body);
            assert_eq!((found.as_str(), why.as_str()), (pointer, message), "{body}");
        }
    }
}
