use seqline::{NewEvent, Payload};
use seqline_testkit::{Role, TestDb};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{Desk, done_for, for_sam};
use crate::sequencing::{after_commit, sequencer_of_the_test};
use crate::support::{PLANTED, on, server_db};

/// Appends so many events about an order, and returns their ids.
async fn append(db: &TestDb, order: &str, events: usize) -> Vec<Uuid> {
    let payload = Payload::from_json(&format!("{{\"card\": \"{PLANTED}\"}}")).unwrap();
    let event =
        NewEvent::builder("order.paid", "order", "any").resource_id(order).payload(payload).build().unwrap();
    let mut tx = seqline::begin(&db.producer()).await.unwrap();
    let ids = seqline::append(&mut tx, &vec![event; events]).await.unwrap();
    seqline::commit(tx).await.unwrap();
    ids
}

async fn command(db: &TestDb, args: &str) -> Value {
    let text = on(db, Role::App, ["redact"]).args(args.split(' ')).arg("--json").ok().await;
    serde_json::from_str(&text).expect("it is JSON")
}

/// Numbers of the events that are redacted.
async fn redacted(db: &TestDb) -> Vec<i64> {
    let sql =
        "SELECT seq FROM seqline.event_log WHERE redacted_at IS NOT NULL AND payload = '{}' ORDER BY seq";
    sqlx::query_scalar(sql).fetch_all(&db.admin()).await.unwrap()
}

#[tokio::test]
async fn events_are_redacted_as_by_the_command() {
    let (typed, asked) = (server_db().await, server_db().await);
    for db in [&typed, &asked] {
        append(db, "17", 3).await;
        append(db, "18", 1).await;
    }
    let desk = Desk::at(&asked).await;
    let mut body = json!({"resource_kind": "order", "resource_id": "17", "reason": "NOTE", "dry_run": true});
    let args = "resource order 17 --reason NOTE";
    assert_eq!(desk.does("redactions", body.clone()).await, command(&typed, args).await);
    assert_eq!(redacted(&asked).await, [0; 0]);
    body["dry_run"] = false.into();
    for already in [0, 3] {
        let answer = desk.does("redactions", body.clone()).await;
        assert_eq!(answer, command(&typed, &format!("{args} --yes")).await);
        assert_eq!((&answer["done"], &answer["already"]), (&json!(true), &json!(already)));
    }
    assert_eq!((redacted(&asked).await, redacted(&typed).await), (vec![1, 2, 3], vec![1, 2, 3]));

    let id: Uuid = sqlx::query_scalar("SELECT id FROM seqline.event_log WHERE seq = 4")
        .fetch_one(&asked.admin())
        .await
        .unwrap();
    let answer = desk.does("redactions", json!({"event_id": id})).await;
    let expected = json!({
        "event_id": id, "done": true, "events": 1, "already": 0, "remaining": 0, "waiting": 0,
        "partitions": ["event_log_from_0000000000000000001"],
    });
    assert_eq!(answer, expected);
    assert_eq!(redacted(&asked).await, [1, 2, 3, 4]);
    let rows =
        [for_sam("log.redact", "order/17", Some("NOTE")), for_sam("log.redact", &id.to_string(), None)];
    assert_eq!(done_for(&asked).await, rows);
    let shown = desk.sam.get(&format!("/v1/events/{id}")).await;
    assert_eq!((&shown.ok(200)["redacted"], &shown.json()["payload"]), (&json!(true), &json!({})));
    desk.server.stop().await;
}

#[tokio::test]
async fn what_cannot_be_redacted_is_refused() {
    let db = server_db().await;
    let ids = append(&db, "17", 1).await;
    let desk = Desk::at(&db).await;
    desk.does("redactions", json!({"event_id": ids[0]})).await;
    let notice: Uuid = sqlx::query_scalar("SELECT id FROM seqline.event_log WHERE seq = 2")
        .fetch_one(&db.admin())
        .await
        .unwrap();
    let long = "x".repeat(1001);
    for (body, status, code, pointer) in [
        (json!({}), 422, "validation_failed", Some("")),
        (json!({"resource_kind": "order"}), 422, "validation_failed", Some("")),
        (json!({"resource_id": "17"}), 422, "validation_failed", Some("")),
        (
            json!({"event_id": ids[0], "resource_kind": "order", "resource_id": "17"}),
            422,
            "validation_failed",
            Some(""),
        ),
        (json!({"event_id": "17"}), 422, "validation_failed", Some("/event_id")),
        (json!({"event_id": ids[0], "why": "x"}), 422, "validation_failed", Some("/why")),
        (json!({"resource_kind": "", "resource_id": "17"}), 422, "validation_failed", Some("/resource_kind")),
        (
            json!({"resource_kind": "order", "resource_id": "a\u{0}b"}),
            422,
            "validation_failed",
            Some("/resource_id"),
        ),
        (json!({"event_id": ids[0], "reason": "a\u{0}b"}), 422, "validation_failed", Some("/reason")),
        (json!({"event_id": ids[0], "reason": long}), 422, "validation_failed", Some("/reason")),
        (json!({"event_id": Uuid::now_v7()}), 404, "not_found", None),
        (json!({"event_id": notice}), 409, "conflict", None),
    ] {
        let problem = desk.sam.post("/v1/redactions", &body).await.problem(status, code);
        assert_eq!(problem["errors"][0]["pointer"].as_str(), pointer, "{body}: {problem}");
    }
    let none = desk.does("redactions", json!({"resource_kind": "order", "resource_id": "19"})).await;
    assert_eq!((&none["events"], &none["already"]), (&json!(0), &json!(0)));
    append(&db, "17", 1).await;
    on(&db, Role::App, ["settings", "maintenance", "read_only", "--yes", "--reason", "NOTE"]).ok().await;
    let refused =
        desk.sam.post("/v1/redactions", &json!({"resource_kind": "order", "resource_id": "17"})).await;
    refused.problem(503, "read_only");
    assert!(refused.headers.contains_key("retry-after"), "{refused:?}");
    assert_eq!(redacted(&db).await, [1]);
    desk.server.stop().await;
}

/// A request takes a second, however many there are.
#[tokio::test]
async fn of_many_events_a_part_is_redacted_at_a_time() {
    let db = server_db().await;
    append(&db, "17", 10_001).await;
    let desk = Desk::at(&db).await;
    let body = json!({"resource_kind": "order", "resource_id": "17"});
    for expected in [(10_000, 0, 1), (1, 10_000, 0), (0, 10_001, 0)] {
        let answer = desk.does("redactions", body.clone()).await;
        let counts = ["events", "already", "remaining"].map(|name| answer[name].as_i64().unwrap());
        assert_eq!(counts, <[i64; 3]>::from(expected), "{answer}");
    }
    desk.server.stop().await;
}

#[tokio::test]
async fn what_has_no_number_yet_is_told() {
    let db = server_db().await;
    after_commit(&db).await;
    let desk = Desk::at(&db).await;
    let ids = append(&db, "17", 2).await;
    for body in [json!({"resource_kind": "order", "resource_id": "17"}), json!({"event_id": ids[0]})] {
        let answer = desk.does("redactions", body.clone()).await;
        assert!(answer["waiting"].as_i64() > Some(0) && answer["events"] == 0, "{answer}");
    }
    let sequencer = sequencer_of_the_test(&db).await;
    seqline_testkit::eventually(crate::support::DEADLINE, "all are redacted", async || {
        desk.does("redactions", json!({"resource_kind": "order", "resource_id": "17"})).await["already"] == 2
    })
    .await;
    sequencer.stop().await;
    desk.server.stop().await;
}
