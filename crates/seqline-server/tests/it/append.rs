//! `seqline append`

use seqline::envelope::Envelope;
use seqline_testkit::{Role, TestDb};
use serde_json::{Value, json};
use sqlx::Row;
use uuid::Uuid;

use crate::support::{Sessions, WAITS_TO_NUMBER, as_admin, on, run_sql, small_partitions};

const ID: &str = "0190b1a0-0000-7000-8000-000000000017";

/// The newest event as `tail --json` gives it.
async fn newest(db: &TestDb) -> Value {
    let line = on(db, Role::Reader, ["tail", "--last", "1", "--json"]).ok().await;
    serde_json::from_str::<Envelope>(&line).expect("the line is an envelope");
    serde_json::from_str(&line).expect("the line is JSON")
}

#[tokio::test]
async fn number_and_id_of_the_event_are_printed() {
    let db = TestDb::new().await;
    for seq in 1..=2 {
        let line = on(&db, Role::App, ["append", "order.created", "--resource-kind", "order"]).ok().await;
        let (number, id) = line.trim_end().split_once(' ').unwrap();
        assert_eq!(number, seq.to_string());
        assert_eq!(newest(&db).await["id"], id);
        assert_eq!(newest(&db).await["payload"], json!({}));
    }
}

#[tokio::test]
async fn number_and_id_can_be_had_as_json() {
    let db = TestDb::new().await;
    let line = on(&db, Role::App, ["append", "a.b", "--resource-kind", "x", "--id", ID, "--json"]).ok().await;
    assert_eq!(line, format!("{{\"seq\":1,\"id\":\"{ID}\"}}\n"));
}

#[tokio::test]
async fn every_option_ends_up_in_its_member() {
    let db = TestDb::new().await;
    let options = [
        ("--payload", r#"{"total": 12.50}"#),
        ("--resource-kind", "order"),
        ("--resource-id", "17"),
        ("--resource-version", "3"),
        ("--receive-action", "self"),
        ("--audience", "robin"),
        ("--schema-version", "2"),
        ("--space", "shop"),
        ("--channel", "sales"),
        ("--thread", "t1"),
        ("--actor-kind", "user"),
        ("--actor-id", "alex"),
        ("--client-msg-id", "m1"),
        ("--traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("--id", ID),
    ];
    let options = options.into_iter().flat_map(|(name, value)| [name, value]);
    on(&db, Role::App, ["append", "order.created", "--truncated"]).args(options).ok().await;
    let mut envelope = newest(&db).await;
    assert!(envelope.as_object_mut().unwrap().remove("occurred_at").is_some());
    assert_eq!(
        envelope,
        json!({
            "id": ID,
            "type": "order.created",
            "schema_version": 2,
            "seq": 1,
            "permission_version": 0,
            "actor": {"kind": "user", "id": "alex"},
            "scope": {"space_id": "shop", "channel_id": "sales", "thread_id": "t1"},
            "resource": {"kind": "order", "id": "17", "version": 3},
            "audience": "self",
            "client_msg_id": "m1",
            "correlation_id": "0af76519-16cd-43dd-8448-eb211c80319c",
            "truncated": true,
            "payload": {"total": 12.50},
        })
    );
    let hidden =
        sqlx::query("SELECT receive_action, audience_principal_id, trace_context FROM seqline.event_log")
            .fetch_one(&db.admin())
            .await
            .unwrap();
    let hidden = [0, 1, 2].map(|column| hidden.get::<String, _>(column));
    assert_eq!(hidden, ["self", "robin", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"]);
}

#[tokio::test]
async fn each_kind_of_actor_can_be_named() {
    let db = TestDb::new().await;
    for (kind, id) in
        [("user", Some("alex")), ("agent", Some("sam")), ("app", Some("shop")), ("system", None)]
    {
        let id_option = id.map(|id| ["--actor-id", id]);
        on(&db, Role::App, ["append", "a.b", "--resource-kind", "x", "--actor-kind", kind])
            .args(id_option.into_iter().flatten())
            .ok()
            .await;
        let mut expected = json!({ "kind": kind });
        if let Some(id) = id {
            expected["id"] = id.into();
        }
        assert_eq!(newest(&db).await["actor"], expected);
    }
}

#[tokio::test]
async fn a_payload_comes_from_standard_input_and_loses_its_nulls_on_request() {
    let db = TestDb::new().await;
    let append = ["append", "a.b", "--resource-kind", "x", "--payload", "-"];
    on(&db, Role::App, append).stdin("{\"a\":\n [1, 2]}\n").ok().await;
    assert_eq!(newest(&db).await["payload"], json!({"a": [1, 2]}));
    let with_nulls = r#"{"a": null, "b": [null, {"c": null, "d": 1}]}"#;
    on(&db, Role::App, append).arg("--strip-nulls").stdin(with_nulls).ok().await;
    assert_eq!(newest(&db).await["payload"], json!({"b": [{"d": 1}]}));
    let sentence = on(&db, Role::App, append).stdin(with_nulls).refused(4).await;
    assert_eq!(sentence, "payload member /a is null; leave it out, or use --strip-nulls");
}

#[tokio::test]
async fn a_payload_on_standard_input_that_is_not_text_is_refused() {
    let db = TestDb::new().await;
    let append = ["append", "a.b", "--resource-kind", "x", "--payload", "-"];
    let sentence = on(&db, Role::App, append).stdin([b'{', 0xff, b'}']).refused(4).await;
    assert!(sentence.contains("UTF-8"), "{sentence}");
}

#[tokio::test]
async fn digits_and_large_numbers_are_kept() {
    let db = TestDb::new().await;
    let payload = r#"{"n": 1.000000000000000000001, "m": 1e400}"#;
    on(&db, Role::App, ["append", "a.b", "--resource-kind", "x", "--payload", payload]).ok().await;
    let kept: bool = sqlx::query_scalar("SELECT payload = $1::jsonb FROM seqline.event_log")
        .bind(payload)
        .fetch_one(&db.admin())
        .await
        .unwrap();
    assert!(kept);
}

/// The message of the SQL function for the same event.
async fn sql_refusal(db: &TestDb, members: &str) -> String {
    let sql = format!("SELECT seqline.append({members})");
    let error = sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&db.app()).await.unwrap_err();
    error.into_database_error().unwrap().message().to_owned()
}

#[tokio::test]
async fn what_the_sql_function_refuses_is_refused_in_the_same_words() {
    let db = TestDb::new().await;
    as_admin(&db, "UPDATE seqline.settings SET event_payload_max_bytes = 100").await;
    let long = "x".repeat(129);
    let large = format!("{{\"a\": \"{}\"}}", "x".repeat(100));
    let large_sql = format!("'a.b', '{large}', 'x', 'any'");
    let long_sql = format!("'a.b', '{{}}', 'x', 'any', resource_id => '{long}'");
    let table: [(&[&str], &str); 13] = [
        (&["Order", "--resource-kind", "x"], "'Order', '{}', 'x', 'any'"),
        (&["", "--resource-kind", "x"], "'', '{}', 'x', 'any'"),
        (&["a.b"], "'a.b', '{}', NULL, 'any'"),
        (&["a.b", "--resource-kind", "x", "--receive-action", ""], "'a.b', '{}', 'x', ''"),
        (
            &["a.b", "--resource-kind", "x", "--schema-version", "0"],
            "'a.b', '{}', 'x', 'any', schema_version => 0",
        ),
        (
            &["a.b", "--resource-kind", "x", "--space", "a\nb"],
            "'a.b', '{}', 'x', 'any', space_id => E'a\\nb'",
        ),
        (&["a.b", "--resource-kind", "x", "--resource-id", &long], &long_sql),
        (
            &["a.b", "--resource-kind", "x", "--actor-kind", "bot"],
            "'a.b', '{}', 'x', 'any', actor_kind => 'bot'",
        ),
        (
            &["a.b", "--resource-kind", "x", "--actor-kind", "user"],
            "'a.b', '{}', 'x', 'any', actor_kind => 'user'",
        ),
        (
            &["a.b", "--resource-kind", "x", "--actor-kind", "system", "--actor-id", "alex"],
            "'a.b', '{}', 'x', 'any', actor_kind => 'system', actor_principal_id => 'alex'",
        ),
        (&["a.b", "--resource-kind", "x", "--receive-action", "self"], "'a.b', '{}', 'x', 'self'"),
        (&["a.b", "--resource-kind", "x", "--payload", "[]"], "'a.b', '[]', 'x', 'any'"),
        (&["a.b", "--resource-kind", "x", "--payload", &large], &large_sql),
    ];
    for (args, members) in table {
        let sentence = on(&db, Role::App, ["append"]).args(args).refused(4).await;
        assert_eq!(sentence, sql_refusal(&db, members).await, "{args:?}");
    }
    let nulls =
        on(&db, Role::App, ["append", "a.b", "--resource-kind", "x", "--payload", r#"{"a":[{"b":null}]}"#]);
    assert_eq!(nulls.refused(4).await, "payload member /a/0/b is null; leave it out, or use --strip-nulls");
    assert_eq!(on(&db, Role::Reader, ["tail"]).ok().await, "");
}

#[tokio::test]
async fn a_number_that_the_database_cannot_store_is_refused() {
    let db = TestDb::new().await;
    let append = ["append", "a.b", "--resource-kind", "x", "--payload", r#"{"n": 1e999999}"#];
    let sentence = on(&db, Role::App, append).refused(4).await;
    let expected = "member payload cannot be stored: value overflows numeric format";
    assert!(sentence.starts_with(expected), "{sentence}");
}

#[tokio::test]
async fn an_id_that_is_in_the_log_is_refused() {
    let db = TestDb::new().await;
    let append = || on(&db, Role::App, ["append", "a.b", "--resource-kind", "x", "--id", ID]);
    assert_eq!(append().ok().await, format!("1 {ID}\n"));
    assert_eq!(append().refused(4).await, format!("event id {ID} is already in the log"));
}

#[tokio::test]
async fn a_producer_that_may_not_read_gets_the_id_alone() {
    let db = TestDb::new().await;
    let append = || on(&db, Role::Producer, ["append", "a.b", "--resource-kind", "x"]);
    let id = append().ok().await;
    assert_eq!(newest(&db).await["id"], Uuid::try_parse(id.trim_end()).unwrap().to_string());
    let object: Value = serde_json::from_str(&append().arg("--json").ok().await).unwrap();
    assert_eq!(object, json!({"id": newest(&db).await["id"]}));
}

#[tokio::test]
async fn a_log_without_partitions_says_how_to_get_one() {
    let db = TestDb::new().await;
    small_partitions(&db, 1, 1).await;
    let append = || on(&db, Role::App, ["append", "a.b", "--resource-kind", "x"]);
    append().ok().await;
    let sentence = append().refused(3).await;
    assert!(sentence.contains("no partition of the event log for seq 2 to 2"), "{sentence}");
    assert!(sentence.contains("seqline partitions ensure"), "{sentence}");
}

#[tokio::test]
async fn who_holds_the_numbering_lock_too_long_is_named() {
    let db = TestDb::new().await;
    as_admin(&db, "UPDATE seqline.settings SET numbering_lock_timeout_ms = 50").await;
    let mut admin = db.connect(Role::Admin).await;
    run_sql(
        &mut admin,
        "SET application_name = 'report'; BEGIN; LOCK TABLE seqline.numbering IN EXCLUSIVE MODE",
    )
    .await;
    let sentence = on(&db, Role::App, ["append", "a.b", "--resource-kind", "x"]).refused(3).await;
    assert!(sentence.contains("report"), "{sentence}");
    run_sql(&mut admin, "ROLLBACK").await;
}

#[tokio::test]
async fn a_connection_that_is_lost_in_the_commit_leaves_the_outcome_open_and_says_so() {
    let db = TestDb::new().await;
    let mut admin = db.connect(Role::Admin).await;
    run_sql(&mut admin, "BEGIN; LOCK TABLE seqline.numbering IN EXCLUSIVE MODE").await;
    let running = on(&db, Role::App, ["append", "a.b", "--resource-kind", "x", "--id", ID]).start();
    let sessions = Sessions::of(&db, Role::App);
    sessions.reach(1, WAITS_TO_NUMBER).await;
    sessions.terminate().await;
    let sentence = running.end().await.sentence(3);
    assert!(sentence.contains("outcome is unknown"), "{sentence}");
    run_sql(&mut admin, "ROLLBACK").await;
}
