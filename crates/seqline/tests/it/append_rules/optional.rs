//! What absent members become: no value, a default, a generated id, a trace.

use std::collections::HashSet;

use seqline::{NewEvent, StoredEvent};
use seqline_testkit::{Role, TestDb, settled_behind};
use serde_json::{Value, json};
use sqlx::PgConnection;
use uuid::Uuid;

use super::{Draft, append_batch_sql, append_sql};

async fn events(reader: &mut PgConnection) -> Vec<StoredEvent> {
    settled_behind(reader).await;
    seqline::read::events_after(reader, 0, 10_000).await.unwrap()
}

/// Every optional member, set to this.
fn all_optional(value: &Value) -> Draft {
    let texts = [
        "resource_id",
        "space_id",
        "channel_id",
        "thread_id",
        "actor_kind",
        "actor_principal_id",
        "audience_principal_id",
        "client_msg_id",
        "traceparent",
    ];
    texts.into_iter().fold(Draft::valid(), |draft, member| draft.with(member, value.clone()))
}

fn absent(event: &StoredEvent) -> bool {
    [
        &event.resource_id,
        &event.space_id,
        &event.channel_id,
        &event.thread_id,
        &event.actor_kind,
        &event.actor_principal_id,
        &event.audience_principal_id,
        &event.client_msg_id,
        &event.trace_context,
    ]
    .into_iter()
    .all(Option::is_none)
        && (event.resource_version, event.correlation_id) == (None, None)
        && (event.schema_version, event.truncated, event.redacted) == (1, false, false)
}

#[tokio::test]
async fn empty_and_null_mean_absent_every_way_in() {
    let db = TestDb::new().await;
    let mut producer = db.connect(Role::Producer).await;
    let nulls = ["resource_version", "schema_version", "truncated", "id"]
        .into_iter()
        .fold(all_optional(&Value::Null), |draft, member| draft.with(member, Value::Null));
    let nil = all_optional(&json!("")).with("id", Uuid::nil().to_string());
    for draft in [Draft::valid(), all_optional(&json!("")), nulls, nil] {
        append_sql(&mut producer, &draft).await.unwrap();
        append_batch_sql(&mut producer, &format!("[{}]", draft.element())).await.unwrap();
    }
    let stored = events(&mut db.connect(Role::Reader).await).await;
    assert_eq!(stored.len(), 8);
    for event in stored {
        assert!(absent(&event) && !event.id.is_nil(), "{event:?}");
    }
}

#[tokio::test]
async fn every_member_is_stored_as_given() {
    let db = TestDb::new().await;
    let mut producer = db.connect(Role::Producer).await;
    let given = json!({
        "resource_id": "17", "resource_version": 3, "space_id": "shop-1", "channel_id": "2", "thread_id": "t",
        "actor_kind": "user", "actor_principal_id": "alex", "audience_principal_id": "sam", "schema_version": 4,
        "client_msg_id": "m-1", "truncated": true, "id": Uuid::now_v7().to_string(),
        "receive_action": "self", "resource_kind": "order", "type": "order.created",
    });
    let mut draft = Draft::valid().payload(r#"{"a":1}"#);
    draft.members = given.as_object().unwrap().clone();
    append_sql(&mut producer, &draft).await.unwrap();
    let other = draft.clone().with("id", Uuid::now_v7().to_string());
    append_batch_sql(&mut producer, &format!("[{}]", other.element())).await.unwrap();
    db.settled().await;
    let stored: Vec<Value> = sqlx::query_scalar(
        "SELECT to_jsonb(e) - ARRAY['seq', 'occurred_at', 'permission_version', 'redacted_at', 'correlation_id',
            'trace_context'] FROM seqline.event_log e ORDER BY seq",
    )
    .fetch_all(&db.reader())
    .await
    .unwrap();
    let expected = [draft, other].map(|draft| Value::Object(draft.with("payload", json!({"a": 1})).members));
    assert_eq!(stored, expected);
}

#[tokio::test]
async fn generated_ids_are_of_version_7_and_unique() {
    let db = TestDb::new().await;
    let mut producer = db.connect(Role::Producer).await;
    let batch = format!("[{}]", vec![Draft::valid().element(); 500].join(","));
    let mut ids = append_batch_sql(&mut producer, &batch).await.unwrap();
    for _ in 0..20 {
        ids.push(append_sql(&mut producer, &Draft::valid()).await.unwrap());
    }
    assert!(ids.iter().all(|id| id.get_version_num() == 7 && id.get_variant() == uuid::Variant::RFC4122));
    assert_eq!(ids.iter().collect::<HashSet<_>>().len(), 520);
    let (seconds, _) = ids[519].get_timestamp().unwrap().to_unix();
    let now: i64 = sqlx::query_scalar("SELECT extract(epoch FROM clock_timestamp())::bigint")
        .fetch_one(&db.app())
        .await
        .unwrap();
    assert!(now.abs_diff(seconds.cast_signed()) <= 60, "an id of {seconds} at {now}");
}

#[tokio::test]
async fn a_caller_s_id_is_kept() {
    let db = TestDb::new().await;
    let mut producer = db.connect(Role::Producer).await;
    let ids: Vec<Uuid> = (0..4).map(|_| Uuid::now_v7()).collect();
    let draft = |id: Uuid| Draft::valid().with("id", id.to_string());
    assert_eq!(append_sql(&mut producer, &draft(ids[0])).await.unwrap(), ids[0]);
    let batch = format!("[{},{}]", draft(ids[1]).element(), draft(ids[2]).element());
    assert_eq!(append_batch_sql(&mut producer, &batch).await.unwrap(), ids[1..3]);
    let event = NewEvent::builder("order.created", "order", "any").id(ids[3]).build().unwrap();
    let mut tx = seqline::begin(&db.producer()).await.unwrap();
    assert_eq!(seqline::append(&mut tx, &[event]).await.unwrap(), ids[3..]);
    seqline::commit(tx).await.unwrap();
    let stored: Vec<Uuid> =
        events(&mut db.connect(Role::Reader).await).await.iter().map(|event| event.id).collect();
    assert_eq!(stored, ids);
}

#[tokio::test]
async fn a_traceparent_gives_its_trace_and_if_sampled_itself() {
    let (trace, span) = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331");
    let sampled = format!("00-{trace}-{span}-01");
    let unsampled = format!("00-{trace}-{span}-00");
    let correlation = Some(Uuid::parse_str(trace).unwrap());
    let malformed = [
        String::new(),
        trace.to_owned(),
        format!("00-{trace}-{span}"),
        format!("00-{trace}-{span}-01-extra"),
        format!("00-{trace}-{span}-01\n"),
        format!("00-{}-{span}-01", "0".repeat(32)),
        format!("00-{trace}-{}-01", "0".repeat(16)),
        format!("ff-{trace}-{span}-01"),
        format!("00-{}-{span}-01", trace.to_uppercase()),
        format!("00-{trace}-{span}-0x"),
        "x".repeat(10_000),
    ];
    let mut table = vec![
        (sampled.clone(), correlation, Some(sampled.clone())),
        (format!("00-{trace}-{span}-ff"), correlation, Some(format!("00-{trace}-{span}-ff"))),
        (unsampled, correlation, None),
        (format!("00-{trace}-{span}-fe"), correlation, None),
    ];
    table.extend(malformed.map(|traceparent| (traceparent, None, None)));

    let db = TestDb::new().await;
    let mut producer = db.connect(Role::Producer).await;
    let mut expected = Vec::new();
    for (traceparent, correlation, context) in table {
        let draft = Draft::valid().with("traceparent", traceparent.clone());
        append_sql(&mut producer, &draft).await.unwrap();
        append_batch_sql(&mut producer, &format!("[{}]", draft.element())).await.unwrap();
        let event =
            NewEvent::builder("order.created", "order", "any").traceparent(traceparent).build().unwrap();
        let mut tx = seqline::begin(&db.producer()).await.unwrap();
        seqline::append(&mut tx, &[event]).await.unwrap();
        seqline::commit(tx).await.unwrap();
        expected.extend(vec![(correlation, context); 3]);
    }
    let stored: Vec<_> = events(&mut db.connect(Role::Reader).await)
        .await
        .into_iter()
        .map(|event| (event.correlation_id, event.trace_context))
        .collect();
    assert_eq!(stored, expected);
}
