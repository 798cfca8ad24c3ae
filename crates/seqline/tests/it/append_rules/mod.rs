//! What the log refuses, and that it refuses it in the same words whichever way an event comes in: the SQL function,
//! the batch function, or the Rust types.

mod batch;
mod json;
mod members;
mod optional;
mod payload;
mod plain;
mod webhooks;

use seqline::{Actor, AppendError, InvalidEvent, NewEvent, Payload};
use seqline_testkit::{Role, TestDb};
use serde_json::{Map, Value, json};
use sqlx::postgres::PgDatabaseError;
use sqlx::{Connection, PgConnection};
use uuid::Uuid;

use crate::support::assert_nothing_staged;

/// An event as a caller of any language may state it, valid until a member is changed.
#[derive(Debug, Clone)]
struct Draft {
    members: Map<String, Value>,
    /// JSON text, so that it can be what no JSON value is.
    payload: Option<String>,
}

impl Draft {
    fn valid() -> Self {
        let members = json!({"type": "order.created", "resource_kind": "order", "receive_action": "any"});
        Self { members: members.as_object().unwrap().clone(), payload: Some("{}".to_owned()) }
    }

    fn with(mut self, member: &str, value: impl Into<Value>) -> Self {
        self.members.insert(member.to_owned(), value.into());
        self
    }

    fn without(mut self, member: &str) -> Self {
        self.members.remove(member);
        self
    }

    fn payload(mut self, json: impl Into<String>) -> Self {
        self.payload = Some(json.into());
        self
    }

    fn without_payload(mut self) -> Self {
        self.payload = None;
        self
    }

    fn members_json(&self) -> String {
        serde_json::to_string(&self.members).unwrap()
    }

    /// The element of a batch.
    fn element(&self) -> String {
        let members = self.members_json();
        match &self.payload {
            Some(payload) => format!("{},\"payload\":{payload}}}", members.strip_suffix('}').unwrap()),
            None => members,
        }
    }

    /// The same in Rust, unless its types cannot even say it.
    fn in_rust(&self) -> Option<Result<NewEvent, InvalidEvent>> {
        let text = |member: &str| self.members.get(member).and_then(Value::as_str).unwrap_or_default();
        let payload = match Payload::from_json(self.payload.as_deref()?) {
            Ok(payload) => payload,
            Err(error) => return Some(Err(error)),
        };
        let principal = text("actor_principal_id");
        let mut builder = NewEvent::builder(text("type"), text("resource_kind"), text("receive_action"))
            .payload(payload)
            .resource_id(text("resource_id"))
            .space(text("space_id"))
            .channel(text("channel_id"))
            .thread(text("thread_id"))
            .audience(text("audience_principal_id"))
            .client_msg_id(text("client_msg_id"));
        builder = match text("actor_kind") {
            "user" => builder.actor(Actor::User(principal.to_owned())),
            "agent" => builder.actor(Actor::Agent(principal.to_owned())),
            "app" => builder.actor(Actor::App(principal.to_owned())),
            "system" if principal.is_empty() => builder.actor(Actor::System),
            "" if principal.is_empty() => builder,
            _ => return None,
        };
        if let Some(version) = self.members.get("schema_version").and_then(Value::as_i64) {
            builder = builder.schema_version(i32::try_from(version).ok()?);
        }
        Some(builder.build())
    }
}

/// What a refusal has to say.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Refusal {
    rule: String,
    member: String,
    message: String,
}

impl Refusal {
    fn new(rule: &str, member: &str, message: impl Into<String>) -> Self {
        Self { rule: rule.to_owned(), member: member.to_owned(), message: message.into() }
    }

    fn of_rust(error: &InvalidEvent) -> Self {
        Self::new(error.rule().name(), error.member(), error.to_string())
    }

    /// What the database said, which must be complete for programs, and what the library makes of it.
    #[track_caller]
    fn of_database(error: sqlx::Error) -> Self {
        let pg = pg_error(&error);
        assert_eq!(
            (pg.code(), pg.schema(), pg.table()),
            ("22023", Some("seqline"), Some("event_log")),
            "{error}"
        );
        assert!(pg.hint().is_some_and(|hint| !hint.is_empty()), "{error} comes with a hint");
        let rule = pg.constraint().and_then(|name| name.strip_prefix("seqline_")).unwrap_or_default();
        let refusal = Self::new(rule, pg.column().unwrap_or_default(), pg.message());
        match AppendError::from(error) {
            AppendError::Invalid(invalid) => assert_eq!(Self::of_rust(&invalid), refusal, "mapped"),
            other => panic!("{refusal:?} became {other:?}"),
        }
        refusal
    }

    /// The same, of the second event of a batch.
    fn second_of_a_batch(&self) -> Self {
        Self { message: format!("event 2: {}", self.message), ..self.clone() }
    }
}

fn pg_error(error: &sqlx::Error) -> &PgDatabaseError {
    error.as_database_error().unwrap_or_else(|| panic!("not from the database: {error}")).downcast_ref()
}

async fn append_sql(connection: &mut PgConnection, draft: &Draft) -> Result<Uuid, sqlx::Error> {
    sqlx::query_scalar(
        "SELECT seqline.append(
            type => d.type, payload => $2::jsonb, resource_kind => d.resource_kind,
            receive_action => d.receive_action, resource_id => d.resource_id, resource_version => d.resource_version,
            space_id => d.space_id, channel_id => d.channel_id, thread_id => d.thread_id, actor_kind => d.actor_kind,
            actor_principal_id => d.actor_principal_id, audience_principal_id => d.audience_principal_id,
            schema_version => d.schema_version, client_msg_id => d.client_msg_id, id => d.id,
            truncated => d.truncated, traceparent => d.traceparent)
         FROM jsonb_to_record($1::jsonb) AS d (
            type text, resource_kind text, receive_action text, resource_id text, resource_version bigint,
            space_id text, channel_id text, thread_id text, actor_kind text, actor_principal_id text,
            audience_principal_id text, schema_version integer, client_msg_id text, id uuid, truncated boolean,
            traceparent text)",
    )
    .bind(draft.members_json())
    .bind(&draft.payload)
    .fetch_one(connection)
    .await
}

async fn append_batch_sql(connection: &mut PgConnection, events: &str) -> Result<Vec<Uuid>, sqlx::Error> {
    sqlx::query_scalar("SELECT seqline.append_batch($1::jsonb)").bind(events).fetch_one(connection).await
}

async fn append_second_of_a_batch(
    connection: &mut PgConnection,
    draft: &Draft,
) -> Result<Vec<Uuid>, sqlx::Error> {
    let events = format!("[{},{}]", Draft::valid().element(), draft.element());
    append_batch_sql(connection, &events).await
}

/// Every draft is refused with its refusal, every way in, and leaves nothing behind.
async fn assert_refused(table: Vec<(Draft, Refusal)>) {
    let db = TestDb::new().await;
    let mut producer = db.connect(Role::Producer).await;
    for (draft, refusal) in table {
        let error = append_sql(&mut producer, &draft).await.expect_err(&format!("{draft:?} is refused"));
        assert_eq!(Refusal::of_database(error), refusal, "append of {draft:?}");
        let error = append_second_of_a_batch(&mut producer, &draft).await.expect_err("refused in a batch");
        assert_eq!(Refusal::of_database(error), refusal.second_of_a_batch(), "append_batch of {draft:?}");
        if let Some(built) = draft.in_rust() {
            assert_eq!(Refusal::of_rust(&built.unwrap_err()), refusal, "in Rust: {draft:?}");
        }
    }
    producer.close().await.unwrap();
    assert_nothing_appended(&db).await;
}

/// Every draft is accepted, every way in.
async fn assert_accepted(drafts: Vec<Draft>) {
    let db = TestDb::new().await;
    let mut producer = db.connect(Role::Producer).await;
    for draft in drafts {
        append_sql(&mut producer, &draft)
            .await
            .unwrap_or_else(|error| panic!("append of {draft:?}: {error}"));
        let ids = append_second_of_a_batch(&mut producer, &draft).await;
        assert_eq!(ids.unwrap_or_else(|error| panic!("append_batch of {draft:?}: {error}")).len(), 2);
        if let Some(built) = draft.in_rust() {
            built.unwrap_or_else(|error| panic!("in Rust: {draft:?}: {error}"));
        }
    }
}

async fn assert_nothing_appended(db: &TestDb) {
    let mut admin = db.connect(Role::Admin).await;
    assert_nothing_staged(&mut admin).await;
    assert_eq!(seqline::read::head(&mut admin).await.unwrap(), 0);
}
