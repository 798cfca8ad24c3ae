//! An event before and after it has its number.
//!
//! A [`NewEvent`] exists only if the log would accept it, size of the payload aside: the rules are checked once, when it is
//! built, in the same words as the SQL functions use for every other language.

use std::fmt;

use serde_json::value::RawValue;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::limits::TEXT_CHARACTERS_MAX;
use crate::payload::Payload;

/// Who caused an event.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Actor {
    /// A person.
    User(String),
    /// An agent acting on its own or for somebody.
    Agent(String),
    /// An application.
    App(String),
    /// The system itself: an actor without a principal.
    System,
}

impl Actor {
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::User(_) => "user",
            Self::Agent(_) => "agent",
            Self::App(_) => "app",
            Self::System => "system",
        }
    }

    pub(crate) fn principal_id(&self) -> Option<&str> {
        match self {
            Self::User(id) | Self::Agent(id) | Self::App(id) => Some(id),
            Self::System => None,
        }
    }
}

/// An event that may be appended.
///
/// ```
/// use seqline::{Actor, NewEvent, Payload};
///
/// let event = NewEvent::builder("order.created", "order", "any")
///     .resource_id("17")
///     .space("shop-1")
///     .actor(Actor::User("alex".into()))
///     .payload(Payload::from_json(r#"{"total": 12.50}"#)?)
///     .build()?;
/// assert_eq!(event.event_type(), "order.created");
///
/// let refused = NewEvent::builder("Order", "order", "any").build().unwrap_err();
/// assert_eq!(refused.member(), "type");
/// # Ok::<(), seqline::InvalidEvent>(())
/// ```
#[derive(Debug, Clone)]
pub struct NewEvent(pub(crate) Draft);

/// The members of an event that is not checked yet. See [`NewEvent::builder`].
#[derive(Debug, Clone)]
#[must_use]
pub struct NewEventBuilder(Draft);

#[derive(Debug, Clone)]
pub(crate) struct Draft {
    pub(crate) id: Option<Uuid>,
    pub(crate) event_type: String,
    pub(crate) schema_version: i32,
    pub(crate) actor: Option<Actor>,
    pub(crate) space_id: Option<String>,
    pub(crate) channel_id: Option<String>,
    pub(crate) thread_id: Option<String>,
    pub(crate) resource_kind: String,
    pub(crate) resource_id: Option<String>,
    pub(crate) resource_version: Option<i64>,
    pub(crate) audience_principal_id: Option<String>,
    pub(crate) receive_action: String,
    pub(crate) payload: Payload,
    pub(crate) truncated: bool,
    pub(crate) client_msg_id: Option<String>,
    pub(crate) traceparent: Option<String>,
}

impl NewEvent {
    /// Starts an event. `event_type` is two or more lowercase words joined by dots; `receive_action` is the permission that
    /// its receivers need, `any` for none and `self` for one named principal.
    pub fn builder(
        event_type: impl Into<String>,
        resource_kind: impl Into<String>,
        receive_action: impl Into<String>,
    ) -> NewEventBuilder {
        NewEventBuilder(Draft {
            id: None,
            event_type: event_type.into(),
            schema_version: 1,
            actor: None,
            space_id: None,
            channel_id: None,
            thread_id: None,
            resource_kind: resource_kind.into(),
            resource_id: None,
            resource_version: None,
            audience_principal_id: None,
            receive_action: receive_action.into(),
            payload: Payload::empty(),
            truncated: false,
            client_msg_id: None,
            traceparent: None,
        })
    }

    /// The type.
    #[must_use]
    pub fn event_type(&self) -> &str {
        &self.0.event_type
    }

    /// The id, when the caller chose one.
    #[must_use]
    pub fn id(&self) -> Option<Uuid> {
        self.0.id
    }

    /// The payload.
    #[must_use]
    pub fn payload(&self) -> &Payload {
        &self.0.payload
    }
}

impl NewEventBuilder {
    /// Sets the three members that [`NewEvent::builder`] takes, for a template that many events begin with.
    pub fn with_names(
        mut self,
        event_type: impl Into<String>,
        resource_kind: impl Into<String>,
        receive_action: impl Into<String>,
    ) -> Self {
        self.0.event_type = event_type.into();
        self.0.resource_kind = resource_kind.into();
        self.0.receive_action = receive_action.into();
        self
    }

    /// An id of the caller's choice, a UUIDv7 at best. An id that is in the log already is refused, so the same id makes a
    /// retry safe. The nil UUID means none.
    pub fn id(mut self, id: Uuid) -> Self {
        self.0.id = (!id.is_nil()).then_some(id);
        self
    }

    /// The version of the payload's shape, 1 if not given. Raise it for a breaking change.
    pub fn schema_version(mut self, version: i32) -> Self {
        self.0.schema_version = version;
        self
    }

    /// Who caused it.
    pub fn actor(mut self, actor: Actor) -> Self {
        self.0.actor = Some(actor);
        self
    }

    /// The widest scope: a tenant or an environment.
    pub fn space(mut self, id: impl Into<String>) -> Self {
        self.0.space_id = present(id.into());
        self
    }

    /// The scope inside a space.
    pub fn channel(mut self, id: impl Into<String>) -> Self {
        self.0.channel_id = present(id.into());
        self
    }

    /// The scope inside a channel.
    pub fn thread(mut self, id: impl Into<String>) -> Self {
        self.0.thread_id = present(id.into());
        self
    }

    /// Which resource of its kind.
    pub fn resource_id(mut self, id: impl Into<String>) -> Self {
        self.0.resource_id = present(id.into());
        self
    }

    /// The resource's version after the event.
    pub fn resource_version(mut self, version: i64) -> Self {
        self.0.resource_version = Some(version);
        self
    }

    /// The one principal that may receive it.
    pub fn audience(mut self, principal_id: impl Into<String>) -> Self {
        self.0.audience_principal_id = present(principal_id.into());
        self
    }

    /// The payload, the empty object if not given.
    pub fn payload(mut self, payload: Payload) -> Self {
        self.0.payload = payload;
        self
    }

    /// Says that the payload is a reduced one: a receiver reads the resource again.
    pub fn truncated(mut self, truncated: bool) -> Self {
        self.0.truncated = truncated;
        self
    }

    /// The id that the sender of the triggering command gave it, so that the sender recognises the echo.
    pub fn client_msg_id(mut self, id: impl Into<String>) -> Self {
        self.0.client_msg_id = present(id.into());
        self
    }

    /// The W3C `traceparent` of the triggering request. A malformed one is ignored. Without it, and with the feature
    /// `opentelemetry`, the current span's is taken when the event is appended.
    pub fn traceparent(mut self, traceparent: impl Into<String>) -> Self {
        self.0.traceparent = present(traceparent.into());
        self
    }

    /// Checks the event.
    ///
    /// # Errors
    ///
    /// [`InvalidEvent`] with the first rule that is broken and the member that breaks it.
    pub fn build(self) -> Result<NewEvent, InvalidEvent> {
        check(&self.0)?;
        Ok(NewEvent(self.0))
    }
}

/// An empty text means absent, as in the SQL function.
fn present(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

fn check(draft: &Draft) -> Result<(), InvalidEvent> {
    required("type", &draft.event_type)?;
    if draft.event_type.chars().count() > TEXT_CHARACTERS_MAX {
        return Err(too_long("type"));
    }
    if !is_event_type(&draft.event_type) {
        return Err(InvalidEvent::new(
            Rule::TypeFormat,
            "type",
            "member type must be two or more lowercase words joined by dots, such as order.created"
                .to_owned(),
        ));
    }
    if draft.schema_version < 1 {
        return Err(InvalidEvent::new(
            Rule::SchemaVersion,
            "schema_version",
            "member schema_version must be at least 1".to_owned(),
        ));
    }
    required("resource_kind", &draft.resource_kind)?;
    required("receive_action", &draft.receive_action)?;
    let principal = draft.actor.as_ref().and_then(Actor::principal_id);
    for (member, text) in [
        ("resource_kind", Some(draft.resource_kind.as_str())),
        ("resource_id", draft.resource_id.as_deref()),
        ("receive_action", Some(draft.receive_action.as_str())),
        ("space_id", draft.space_id.as_deref()),
        ("channel_id", draft.channel_id.as_deref()),
        ("thread_id", draft.thread_id.as_deref()),
        ("actor_principal_id", principal),
        ("audience_principal_id", draft.audience_principal_id.as_deref()),
        ("client_msg_id", draft.client_msg_id.as_deref()),
    ] {
        check_text(member, text.unwrap_or_default())?;
    }
    if principal == Some("") {
        return Err(InvalidEvent::new(
            Rule::ActorPrincipalMissing,
            "actor_principal_id",
            "member actor_principal_id is missing: an actor of kind user, agent or app names its principal"
                .to_owned(),
        ));
    }
    if draft.receive_action == "self" && draft.audience_principal_id.is_none() {
        return Err(InvalidEvent::new(
            Rule::AudienceMissing,
            "audience_principal_id",
            "member audience_principal_id is missing: receive_action self needs it".to_owned(),
        ));
    }
    Ok(())
}

fn required(member: &str, text: &str) -> Result<(), InvalidEvent> {
    if text.is_empty() {
        return Err(InvalidEvent::new(Rule::Missing, member, format!("member {member} is missing")));
    }
    Ok(())
}

fn too_long(member: &str) -> InvalidEvent {
    InvalidEvent::new(
        Rule::TooLong,
        member,
        format!("member {member} is longer than {TEXT_CHARACTERS_MAX} characters"),
    )
}

fn check_text(member: &str, text: &str) -> Result<(), InvalidEvent> {
    if text.chars().count() > TEXT_CHARACTERS_MAX {
        return Err(too_long(member));
    }
    if text.chars().any(char::is_control) {
        return Err(InvalidEvent::new(
            Rule::ControlCharacter,
            member,
            format!("member {member} contains a control character"),
        ));
    }
    Ok(())
}

/// `^[a-z][a-z_]*(\.[a-z][a-z_]*)+$`
fn is_event_type(text: &str) -> bool {
    let is_word = |word: &str| {
        word.starts_with(|c: char| c.is_ascii_lowercase())
            && word.chars().all(|c| c.is_ascii_lowercase() || c == '_')
    };
    text.contains('.') && text.split('.').all(is_word)
}

/// A rule of the log that an event can break.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Rule {
    /// A member that every event has is absent or empty.
    Missing,
    /// The type is not lowercase words joined by dots.
    TypeFormat,
    /// A name or id is too long.
    TooLong,
    /// A name or id has a control character.
    ControlCharacter,
    /// The schema version is below 1.
    SchemaVersion,
    /// The actor kind is not in the set.
    ActorKind,
    /// An actor of this kind names its principal.
    ActorPrincipalMissing,
    /// Without an actor, or with the system as actor, there is no principal.
    ActorPrincipalUnexpected,
    /// `self` needs an audience.
    AudienceMissing,
    /// The payload is not JSON that PostgreSQL can store.
    PayloadSyntax,
    /// The payload is not an object.
    PayloadObject,
    /// The payload is larger than the database allows.
    PayloadSize,
    /// The payload has a null.
    PayloadNull,
    /// A member has the wrong JSON type.
    WrongType,
    /// A member does not exist.
    UnknownMember,
    /// A batch has too many events.
    BatchSize,
}

impl Rule {
    /// Every rule with the name it has in the error that the SQL functions raise (constraint `seqline_` + name).
    const NAMES: [(Self, &'static str); 16] = [
        (Self::Missing, "missing"),
        (Self::TypeFormat, "type_format"),
        (Self::TooLong, "too_long"),
        (Self::ControlCharacter, "control_character"),
        (Self::SchemaVersion, "schema_version"),
        (Self::ActorKind, "actor_kind"),
        (Self::ActorPrincipalMissing, "actor_principal_missing"),
        (Self::ActorPrincipalUnexpected, "actor_principal_unexpected"),
        (Self::AudienceMissing, "audience_missing"),
        (Self::PayloadSyntax, "payload_syntax"),
        (Self::PayloadObject, "payload_object"),
        (Self::PayloadSize, "payload_size"),
        (Self::PayloadNull, "payload_null"),
        (Self::WrongType, "wrong_type"),
        (Self::UnknownMember, "unknown_member"),
        (Self::BatchSize, "batch_size"),
    ];

    /// The name in errors of the SQL functions, logs and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(rule, _)| *rule == self).map_or("unknown", |(_, name)| name)
    }

    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(_, known)| *known == name).map(|(rule, _)| *rule)
    }
}

/// An event that the log refuses: the rule, the member and a message that names the member but not its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidEvent {
    rule: Rule,
    member: String,
    message: String,
    position: Option<usize>,
}

impl InvalidEvent {
    pub(crate) fn new(rule: Rule, member: &str, message: String) -> Self {
        Self { rule, member: member.to_owned(), message, position: None }
    }

    /// What the database refused of a batch, whose message names the event by its place among those of its statement. Before that one there
    /// were `earlier` events.
    pub(crate) fn of_batch(mut self, earlier: usize) -> Self {
        let named = self.message.strip_prefix("event ").and_then(|rest| rest.split_once(": "));
        let named =
            named.and_then(|(place, rest)| Some((place.parse::<usize>().ok()?.checked_sub(1)?, rest)));
        if let Some((place, rest)) = named {
            let position = earlier + place;
            self.message = format!("event {}: {rest}", position + 1);
            self.position = Some(position);
        }
        self
    }

    /// The broken rule.
    #[must_use]
    pub fn rule(&self) -> Rule {
        self.rule
    }

    /// The member that breaks it, by its name in SQL.
    #[must_use]
    pub fn member(&self) -> &str {
        &self.member
    }

    /// Which of the events that were appended together it is, from 0, where the database named one.
    #[must_use]
    pub fn position(&self) -> Option<usize> {
        self.position
    }

    /// The place of what is wrong in the event, as a JSON pointer: `/type`, or `/payload/customer/name` for a null there, whose path is cut
    /// off as it is in the message.
    #[must_use]
    pub fn pointer(&self) -> String {
        let of_null = || {
            let (_, path) = self.message.split_once("payload member ")?;
            path.strip_suffix(" is null")
        };
        match self.rule {
            Rule::PayloadNull => format!("/payload{}", of_null().unwrap_or_default()),
            _ => format!("/{}", self.member),
        }
    }
}

impl fmt::Display for InvalidEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for InvalidEvent {}

/// An event as the log holds it.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "the members are those of the table, described there")]
pub struct StoredEvent {
    pub seq: i64,
    pub id: Uuid,
    pub event_type: String,
    pub schema_version: i32,
    /// Start of the appending transaction. Not monotonic in `seq`: never order or page by it.
    pub occurred_at: OffsetDateTime,
    pub permission_version: i64,
    pub actor_kind: Option<String>,
    pub actor_principal_id: Option<String>,
    pub space_id: Option<String>,
    pub channel_id: Option<String>,
    pub thread_id: Option<String>,
    pub resource_kind: String,
    pub resource_id: Option<String>,
    pub resource_version: Option<i64>,
    pub audience_principal_id: Option<String>,
    pub receive_action: String,
    /// The JSON text that PostgreSQL gave out, always the same for the same event.
    pub payload: StoredPayload,
    pub truncated: bool,
    pub client_msg_id: Option<String>,
    pub correlation_id: Option<Uuid>,
    pub trace_context: Option<String>,
    pub redacted: bool,
}

/// The payload of a stored event. `Debug` shows its size only.
#[derive(Clone)]
pub struct StoredPayload(pub(crate) Box<RawValue>);

impl StoredPayload {
    /// The JSON text.
    #[must_use]
    pub fn as_json(&self) -> &str {
        self.0.get()
    }

    /// Reads the payload into a type.
    ///
    /// # Errors
    ///
    /// What serde says when the payload does not have that shape.
    pub fn deserialize<'a, T: serde::Deserialize<'a>>(&'a self) -> Result<T, serde_json::Error> {
        serde_json::from_str(self.0.get())
    }
}

/// For events that no log gave out, such as those of a test.
impl From<Payload> for StoredPayload {
    fn from(payload: Payload) -> Self {
        Self(payload.into_raw())
    }
}

impl fmt::Debug for StoredPayload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoredPayload({} bytes)", self.0.get().len())
    }
}

#[cfg(test)]
mod tests;
