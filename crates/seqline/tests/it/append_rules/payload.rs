//! The rules about the payload, and what every route makes of its JSON.

use seqline::{AppendError, CommitError, ErrorKind, NewEvent, Payload, Rule};
use seqline_testkit::{Role, TestDb};

use super::{
    Draft, Refusal, append_second_of_a_batch, append_sql, assert_accepted, assert_nothing_appended,
    assert_refused, pg_error,
};

#[tokio::test]
async fn a_payload_that_is_not_an_object_is_refused() {
    let refusal = Refusal::new("payload_object", "payload", "member payload must be a JSON object");
    assert_refused(
        ["[]", "[{}]", "\"{}\"", "1", "true"]
            .into_iter()
            .map(|payload| (Draft::valid().payload(payload), refusal.clone()))
            .collect(),
    )
    .await;
}

#[tokio::test]
async fn a_payload_that_is_null_is_not_an_object_and_in_a_batch_an_absent_member() {
    let db = TestDb::new().await;
    let mut producer = db.connect(Role::Producer).await;
    let draft = Draft::valid().payload("null");
    let not_an_object = Refusal::new("payload_object", "payload", "member payload must be a JSON object");
    assert_eq!(Refusal::of_database(append_sql(&mut producer, &draft).await.unwrap_err()), not_an_object);
    assert_eq!(Refusal::of_rust(&draft.in_rust().unwrap().unwrap_err()), not_an_object);
    let absent = Refusal::new("missing", "payload", "event 2: member payload is missing");
    assert_eq!(
        Refusal::of_database(append_second_of_a_batch(&mut producer, &draft).await.unwrap_err()),
        absent
    );
}

#[tokio::test]
async fn a_null_at_any_depth_is_refused_with_its_path() {
    let deep = format!("{{\"a\":{}null{}}}", "[".repeat(100), "]".repeat(100));
    let deep_path = format!("/a{}", "/0".repeat(99));
    let long_key = format!("{{\"{}\":null}}", "\u{fc}".repeat(300));
    let long_path = format!("/{}", "\u{fc}".repeat(199));
    let table = [
        (r#"{"a":null}"#, "/a"),
        (r#"{"a":{"b":{"c":null}}}"#, "/a/b/c"),
        (r#"{"a":[1,null]}"#, "/a/1"),
        (r#"{"a":[[],[{"b":[null]}]]}"#, "/a/1/0/b/0"),
        (r#"{"":null}"#, "/"),
        (r#"{"":{"":null}}"#, "//"),
        (r#"{"a/b":{"c~d":null}}"#, "/a~1b/c~0d"),
        (r#"{"~1":null}"#, "/~01"),
        (r#"{"z":null,"\u00e4":null}"#, "/z"),
        // In byte order of the paths, not of the document and not of the numbers.
        (r#"{"b":null,"a":null}"#, "/a"),
        (r#"{"a":[1,1,null,1,1,1,1,1,1,1,null]}"#, "/a/10"),
        (r#"{"a":{"c":null},"a.b":null}"#, "/a.b"),
        (r#"{"null":"null","a":null}"#, "/a"),
        (&deep, &deep_path),
        (&long_key, &long_path),
    ]
    .map(|(payload, path)| {
        let refusal = Refusal::new("payload_null", "payload", format!("payload member {path} is null"));
        (Draft::valid().payload(payload), refusal)
    });
    assert_refused(table.into_iter().collect()).await;
}

#[tokio::test]
async fn the_text_null_in_keys_and_strings_is_no_null() {
    assert_accepted(
        [r#"{"null":"null"}"#, r#"{"a":"null","b":["null",{"nullable":false}]}"#, r#"{"a":" null , null "}"#]
            .into_iter()
            .map(|payload| Draft::valid().payload(payload))
            .collect(),
    )
    .await;
}

#[tokio::test]
async fn a_refused_null_comes_with_the_way_out() {
    let db = TestDb::new().await;
    let mut producer = db.connect(Role::Producer).await;
    let error = append_sql(&mut producer, &Draft::valid().payload(r#"{"a":null}"#)).await.unwrap_err();
    let hint = "Leave the member out, or pass seqline.without_nulls(payload).";
    assert_eq!(pg_error(&error).hint(), Some(hint));
}

#[tokio::test]
async fn a_payload_nested_deeper_than_readers_can_parse_is_refused_every_way_in() {
    let nested = |levels: usize| format!("{{\"a\":{}1{}}}", "[".repeat(levels - 1), "]".repeat(levels - 1));
    assert_accepted(vec![Draft::valid().payload(nested(127))]).await;
    let message = "member payload is nested deeper than 127 levels";
    assert_refused(vec![(
        Draft::valid().payload(nested(128)),
        Refusal::new("payload_syntax", "payload", message),
    )])
    .await;
}

/// A payload of exactly so many bytes in its stored form, which is not the form it is sent in.
fn stored_bytes(bytes: usize) -> Payload {
    let frame = r#"{"a": 1, "b": ""}"#;
    let filling = bytes - frame.len();
    let text = format!("{}x", "\u{fc}".repeat((filling - 1) / 2));
    let text = if text.len() < filling { format!("{text}x") } else { text };
    Payload::from_json(&format!("{{ \"b\"  :\"{text}\"  ,\"a\":1 }}")).unwrap()
}

async fn db_with_payload_maximum(bytes: i32) -> TestDb {
    let db = TestDb::new().await;
    sqlx::query("UPDATE seqline.settings SET event_payload_max_bytes = $1")
        .bind(bytes)
        .execute(&db.admin())
        .await
        .unwrap();
    db
}

#[tokio::test]
async fn a_payload_of_the_maximum_as_stored_is_accepted() {
    let db = db_with_payload_maximum(100).await;
    let mut producer = db.connect(Role::Producer).await;
    let draft = Draft::valid().payload(stored_bytes(100).as_json());
    append_sql(&mut producer, &draft).await.unwrap();
    append_second_of_a_batch(&mut producer, &draft).await.unwrap();
    db.settled().await;
    let stored: Vec<i32> =
        sqlx::query_scalar("SELECT DISTINCT octet_length(payload::text) FROM seqline.event_log ORDER BY 1")
            .fetch_all(&db.reader())
            .await
            .unwrap();
    assert_eq!(stored, [2, 100]);
}

#[tokio::test]
async fn a_payload_one_byte_above_the_maximum_is_refused() {
    let db = db_with_payload_maximum(100).await;
    let mut producer = db.connect(Role::Producer).await;
    let payload = stored_bytes(101);
    let message = "member payload has 101 bytes as stored, more than event_payload_max_bytes allows (100)";
    let refusal = Refusal::new("payload_size", "payload", message);
    let draft = Draft::valid().payload(payload.as_json());
    assert_eq!(Refusal::of_database(append_sql(&mut producer, &draft).await.unwrap_err()), refusal);
    let error = append_second_of_a_batch(&mut producer, &draft).await.unwrap_err();
    assert_eq!(Refusal::of_database(error), refusal.second_of_a_batch());

    let event = NewEvent::builder("order.created", "order", "any").payload(payload).build().unwrap();
    let mut tx = seqline::begin(&db.producer()).await.unwrap();
    let error = seqline::append(&mut tx, &[event]).await.unwrap_err();
    drop(tx);
    assert!(
        matches!(&error, AppendError::Invalid(invalid) if invalid.rule() == Rule::PayloadSize),
        "{error}"
    );
    assert_eq!((error.to_string(), error.kind()), (message.to_owned(), ErrorKind::ValidationFailed));
    assert_nothing_appended(&db).await;
}

#[tokio::test]
async fn json_that_postgresql_refuses_keeps_its_message() {
    let db = TestDb::new().await;
    let mut producer = db.connect(Role::Producer).await;
    let invalid = "invalid input syntax for type json";
    for (payload, code, message) in [
        (r#"{"card":"4111\u0000"}"#, "22P05", "unsupported Unicode escape sequence"),
        (r#"{"4111\u0000":1}"#, "22P05", "unsupported Unicode escape sequence"),
        (r#"{"card":"4111\ud800"}"#, "22P02", invalid),
        (r#"{"card":"4111\ud800\ud800"}"#, "22P02", invalid),
        (r#"{"card":"4111\udc00"}"#, "22P02", invalid),
        (r#"{"card":"4111""#, "22P02", invalid),
        (r#"{"card":4111,}"#, "22P02", invalid),
        (r#"{"card":04111}"#, "22P02", invalid),
        (r#"{card:"4111"}"#, "22P02", invalid),
        (r#"{"card":"4111"} 4111"#, "22P02", invalid),
        ("{\"card\":\"4111\n\"}", "22P02", invalid),
        ("", "22P02", invalid),
    ] {
        let draft = Draft::valid().payload(payload);
        let error = append_sql(&mut producer, &draft).await.unwrap_err();
        assert_eq!((pg_error(&error).code(), pg_error(&error).message()), (code, message), "{payload}");
        let error = AppendError::from(error);
        assert!(matches!(error, AppendError::Database(_)) && !error.is_retryable(), "{payload}: {error}");
        assert!(!format!("{error} {error:?}").contains("4111"), "{error:?}");

        let refused = Payload::from_json(payload).unwrap_err();
        assert_eq!((refused.rule(), refused.member()), (Rule::PayloadSyntax, "payload"), "{payload}");
        assert!(!format!("{refused} {refused:?}").contains("4111"), "{refused:?}");
        assert!(Payload::without_nulls(payload).is_err(), "{payload}");
    }
    assert_nothing_appended(&db).await;
}

#[tokio::test]
async fn an_error_at_commit_never_quotes_a_payload() {
    let db = TestDb::at_commit().await;
    sqlx::query("ALTER TABLE seqline.event_log ADD CONSTRAINT no_cards CHECK (NOT payload ? 'card')")
        .execute(&db.admin())
        .await
        .unwrap();
    let payload = Payload::from_json(r#"{"card":"4111"}"#).unwrap();
    let event = NewEvent::builder("order.created", "order", "any").payload(payload).build().unwrap();
    let mut tx = seqline::begin(&db.producer()).await.unwrap();
    seqline::append(&mut tx, &[event]).await.unwrap();
    let error = seqline::commit(tx).await.unwrap_err();
    assert!(!format!("{error} {error:?}").contains("4111"), "{error:?}");
    // And it is not mistaken for a missing partition, which has the same SQLSTATE and could be retried.
    assert!(
        matches!(&error, CommitError::Database(database) if database.sqlstate() == Some("23514")),
        "{error}"
    );
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Internal, false));
    assert_nothing_appended(&db).await;
}
