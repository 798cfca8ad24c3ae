//! SQL and Rust see the same document: duplicates, nulls, paths.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use seqline::Payload;
use seqline_testkit::{Role, TestDb};
use serde_json::Value;

use super::{Draft, Refusal, append_sql};

/// Random documents, the same in every run: objects mostly, with nulls, odd keys and texts that look like nulls.
fn documents(count: usize) -> Vec<String> {
    let text = prop_oneof![
        Just("null".to_owned()),
        Just(String::new()),
        Just("a/b".to_owned()),
        Just("~".to_owned()),
        Just("\u{e4}".to_owned()),
        Just("\u{1f600}".to_owned()),
        "[a-c]{1,2}",
        "[^\0]{0,4}",
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        text.clone().prop_map(Value::from),
    ];
    let value = leaf.prop_recursive(5, 48, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec((text.clone(), inner), 0..5)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    });
    let object = prop::collection::vec(("[a-c/~]{0,2}", value), 0..5)
        .prop_map(|members| Value::Object(members.into_iter().collect()));
    let mut runner = TestRunner::deterministic();
    (0..count).map(|_| object.new_tree(&mut runner).unwrap().current().to_string()).collect()
}

#[tokio::test]
async fn without_nulls_is_the_same_in_sql_and_rust() {
    let db = TestDb::new().await;
    let mut texts = documents(1_000);
    texts.extend(
        [
            r#"{"a":null}"#,
            r#"{"a":[null,[null],{"b":null}],"c":{"d":null}}"#,
            r#"{"a":1,"a":null}"#,
            r#"{"a":null,"a":1}"#,
            r#"{"a":{"x":null},"a":[{"x":null},null]}"#,
            r#"{ "a" : [ ] , "b" : { } }"#,
            r#"{"n":0.10000000000000000555,"m":1e5,"o":-0,"p":1E-7}"#,
            r#"{"s":"\u00e4\n\"\\\/"}"#,
        ]
        .map(str::to_owned),
    );
    let stripped: Vec<String> =
        texts.iter().map(|text| Payload::without_nulls(text).unwrap().as_json().to_owned()).collect();
    let differing: Vec<(String, String)> = sqlx::query_as(
        "SELECT t.document, seqline.without_nulls(t.document::jsonb)::text
         FROM unnest($1::text[], $2::text[]) t (document, stripped)
         WHERE seqline.without_nulls(t.document::jsonb) IS DISTINCT FROM t.stripped::jsonb",
    )
    .bind(&texts)
    .bind(&stripped)
    .fetch_all(&db.producer())
    .await
    .unwrap();
    assert_eq!(differing, []);
}

#[tokio::test]
async fn a_random_document_is_judged_the_same_in_sql_and_rust() {
    let db = TestDb::new().await;
    let mut producer = db.connect(Role::Producer).await;
    for text in documents(300) {
        let draft = Draft::valid().payload(&text);
        let in_sql = append_sql(&mut producer, &draft).await.map(drop).map_err(Refusal::of_database);
        let in_rust = draft.in_rust().unwrap().map(drop).map_err(|error| Refusal::of_rust(&error));
        assert_eq!(in_sql, in_rust, "{text}");
    }
}

#[tokio::test]
async fn what_without_nulls_leaves_is_always_accepted() {
    let db = TestDb::new().await;
    let mut producer = db.connect(Role::Producer).await;
    for text in documents(300) {
        let payload = Payload::without_nulls(&text).unwrap();
        append_sql(&mut producer, &Draft::valid().payload(payload.as_json())).await.unwrap();
    }
}

#[tokio::test]
async fn of_duplicate_keys_the_last_one_counts() {
    let db = TestDb::new().await;
    let mut producer = db.connect(Role::Producer).await;
    for (payload, stored) in [
        (r#"{"a":1,"a":2}"#, Some(r#"{"a": 2}"#)),
        (r#"{"a":null,"a":2}"#, Some(r#"{"a": 2}"#)),
        (r#"{"a":{"b":null},"\u0061":[1]}"#, Some(r#"{"a": [1]}"#)),
        (r#"{"a":2,"a":null}"#, None),
    ] {
        let draft = Draft::valid().payload(payload);
        assert_eq!(draft.in_rust().unwrap().is_ok(), stored.is_some(), "{payload}");
        let id = append_sql(&mut producer, &draft).await;
        assert_eq!(id.is_ok(), stored.is_some(), "{payload}");
        let (Ok(id), Some(stored)) = (id, stored) else { continue };
        db.settled().await;
        let found: String = sqlx::query_scalar("SELECT payload::text FROM seqline.event_log WHERE id = $1")
            .bind(id)
            .fetch_one(&db.reader())
            .await
            .unwrap();
        assert_eq!(found, stored, "{payload}");
    }
}

#[tokio::test]
async fn the_rules_hold_whatever_the_session_does_with_backslashes() {
    let db = TestDb::new().await;
    let mut producer = db.connect(Role::Producer).await;
    sqlx::raw_sql(
        "SET standard_conforming_strings = off; SET escape_string_warning = off; SET backslash_quote = off",
    )
    .execute(&mut producer)
    .await
    .unwrap();
    let error = append_sql(&mut producer, &Draft::valid().with("type", "orderXcreated")).await.unwrap_err();
    assert_eq!(Refusal::of_database(error).rule, "type_format");
    let error = append_sql(&mut producer, &Draft::valid().with("space_id", "a\u{85}b")).await.unwrap_err();
    assert_eq!(Refusal::of_database(error).rule, "control_character");
}
