//! What only a batch can get wrong.

use seqline::{AppendError, Rule};
use seqline_testkit::{Role, TestDb};
use serde_json::{Value, json};

use super::{Draft, Refusal, append_batch_sql, assert_nothing_appended};
use crate::support::{self, assert_nothing_staged};

/// Every batch is refused with its refusal and leaves nothing behind.
async fn assert_batches_refused(table: Vec<(String, Refusal)>) {
    let db = TestDb::new().await;
    let mut producer = db.connect(Role::Producer).await;
    for (events, refusal) in table {
        let error = append_batch_sql(&mut producer, &events).await.expect_err(&events);
        assert_eq!(Refusal::of_database(error), refusal, "{events}");
    }
    assert_nothing_appended(&db).await;
}

#[tokio::test]
async fn what_is_not_an_array_is_refused() {
    let refusal = Refusal::new("wrong_type", "events", "events must be a JSON array of objects");
    let events = ["{}", "null", "1", "\"[]\""];
    assert_batches_refused(events.map(|events| (events.to_owned(), refusal.clone())).into()).await;
}

#[tokio::test]
async fn a_missing_array_is_refused() {
    let db = TestDb::new().await;
    let error = sqlx::query("SELECT seqline.append_batch(NULL)").execute(&db.producer()).await.unwrap_err();
    let refusal = Refusal::new("wrong_type", "events", "events must be a JSON array of objects");
    assert_eq!(Refusal::of_database(error), refusal);
}

#[tokio::test]
async fn an_element_that_is_not_an_object_is_refused() {
    let valid = Draft::valid().element();
    let refusal = Refusal::new("wrong_type", "events", "event 2 must be a JSON object");
    let elements = ["null", "[]", "1", "\"{}\"", "true"];
    assert_batches_refused(
        elements.map(|element| (format!("[{valid},{element},{valid}]"), refusal.clone())).into(),
    )
    .await;
}

#[tokio::test]
async fn a_member_that_does_not_exist_is_refused() {
    let long = "x".repeat(100);
    let table =
        ["seq", "Type", "occurred_at", "permission_version", "payload ", "", long.as_str()].map(|member| {
            let events = format!("[{}]", Draft::valid().with(member, 1).element());
            let named = member.get(..60).unwrap_or(member);
            (events, Refusal::new("unknown_member", named, format!("event 1: member {named} is unknown")))
        });
    assert_batches_refused(table.into()).await;
}

#[tokio::test]
async fn a_member_of_the_wrong_json_type_is_refused() {
    let texts = [
        "type",
        "resource_kind",
        "receive_action",
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
    let mut cases: Vec<(&str, Value, &str)> = texts
        .iter()
        .flat_map(|member| {
            [json!(1), json!(true), json!({}), json!([]), json!(["a"]), json!([["a"]])]
                .map(|value| (*member, value, "a string"))
        })
        .collect();
    for member in ["schema_version", "resource_version"] {
        for value in [json!("1"), json!(1.5), json!(true), json!([1]), json!({})] {
            cases.push((member, value, "an integer"));
        }
    }
    cases.push(("schema_version", json!(i64::from(i32::MAX) + 1), "an integer"));
    cases.push(("schema_version", json!(1e30), "an integer"));
    cases.push(("resource_version", json!(u64::MAX), "an integer"));
    for value in [json!("true"), json!(1), json!({})] {
        cases.push(("truncated", value, "a boolean"));
    }
    for value in [json!("17"), json!(17), json!(""), json!("0af7651916cd43dd8448eb211c80319c"), json!({})] {
        cases.push(("id", value, "a UUID"));
    }
    let valid = Draft::valid().element();
    let table = cases.into_iter().map(|(member, value, expected)| {
        let events = format!("[{valid},{valid},{}]", Draft::valid().with(member, value).element());
        (events, Refusal::new("wrong_type", member, format!("event 3: member {member} must be {expected}")))
    });
    assert_batches_refused(table.collect()).await;
}

#[tokio::test]
async fn a_batch_of_more_events_than_the_setting_is_refused() {
    let db = TestDb::new().await;
    sqlx::query("UPDATE seqline.settings SET append_batch_max_events = 2")
        .execute(&db.admin())
        .await
        .unwrap();
    let mut producer = db.connect(Role::Producer).await;
    let valid = Draft::valid().element();
    let error = append_batch_sql(&mut producer, &format!("[{valid},{valid},{valid}]")).await.unwrap_err();
    let message = "the batch has 3 events, more than append_batch_max_events allows (2)";
    assert_eq!(Refusal::of_database(error), Refusal::new("batch_size", "events", message));
    assert_nothing_appended(&db).await;
    assert_eq!(append_batch_sql(&mut producer, &format!("[{valid},{valid}]")).await.unwrap().len(), 2);
}

#[tokio::test]
async fn a_batch_larger_than_the_setting_is_refused_in_rust_too() {
    let db = TestDb::new().await;
    sqlx::query("UPDATE seqline.settings SET append_batch_max_events = 2")
        .execute(&db.admin())
        .await
        .unwrap();
    let mut tx = seqline::begin(&db.producer()).await.unwrap();
    let events: Vec<_> = (0..3).map(support::event).collect();
    let error = seqline::append(&mut tx, &events).await.unwrap_err();
    assert!(matches!(&error, AppendError::Invalid(invalid) if invalid.rule() == Rule::BatchSize), "{error}");
}

#[tokio::test]
async fn an_empty_batch_gives_no_ids_and_stages_nothing() {
    let db = TestDb::new().await;
    let mut admin = db.connect(Role::Admin).await;
    let mut tx = seqline::begin(&db.admin()).await.unwrap();
    assert!(append_batch_sql(&mut tx, "[]").await.unwrap().is_empty());
    assert!(seqline::append(&mut tx, &[]).await.unwrap().is_empty());
    assert_nothing_staged(&mut tx).await;
    seqline::commit(tx).await.unwrap();
    assert_nothing_staged(&mut admin).await;
}

#[tokio::test]
async fn one_bad_event_refuses_the_whole_batch() {
    let db = TestDb::new().await;
    let mut producer = db.connect(Role::Producer).await;
    let (valid, bad) = (Draft::valid().element(), Draft::valid().with("space_id", "\n").element());
    append_batch_sql(&mut producer, &format!("[{valid},{bad},{valid}]")).await.unwrap_err();
    assert_nothing_appended(&db).await;
}

#[tokio::test]
async fn a_batch_has_its_ids_and_numbers_in_the_order_given() {
    let db = TestDb::new().await;
    let ids = support::append(&db.producer(), 1..=2_500).await;
    let mut reader = db.connect(Role::Reader).await;
    let numbered: Vec<(i64, _)> = (1..).zip(ids).collect();
    assert_eq!(support::log(&mut reader).await, numbered);
    assert_eq!(support::numbers(&mut reader).await, (1..=2_500).collect::<Vec<_>>());
}
