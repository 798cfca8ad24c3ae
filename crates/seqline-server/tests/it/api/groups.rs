//! Requests that share a transaction, and one among them that cannot be appended.

use seqline::{NewEvent, Payload};
use seqline_testkit::TestDb;
use serde_json::json;
use uuid::Uuid;

use super::append::together;
use super::{event, event_with, serving};
use crate::support::{as_admin, numbers, with_jobs};

#[tokio::test]
async fn one_that_waits_for_the_transaction_of_somebody_else_holds_up_no_other() {
    let db = with_jobs(TestDb::at_commit().await).await;
    let (server, client) = serving(&db).await;
    let id = Uuid::now_v7();
    let payload = Payload::from_json("{}").unwrap();
    let held = NewEvent::builder("test.happened", "test", "any").payload(payload).id(id).build().unwrap();
    // An application has appended the event and not committed.
    let mut tx = seqline::begin(&db.producer()).await.unwrap();
    seqline::append(&mut tx, &[held]).await.unwrap();
    let id_of = |n: i64| if n == 10 { id } else { Uuid::now_v7() };
    let bodies = (1..=30).map(|n| event_with(n, &json!({ "id": id_of(n) })));
    for (answer, n) in together(&db, &client, bodies.collect()).await.iter().zip(1..) {
        if n == 10 {
            answer.problem(503, "unavailable");
            assert_ne!(answer.header("retry-after"), "");
        } else {
            answer.ok(201);
        }
    }
    assert_eq!(numbers(&db).await.len(), 30);
    // Whoever comes again as told learns what became of it.
    seqline::commit(tx).await.unwrap();
    client.post("/v1/events", &event_with(10, &json!({ "id": id }))).await.problem(409, "event_exists");
    server.stop().await;
}

#[tokio::test]
async fn those_that_are_wrong_are_left_out_and_all_others_still_go_together() {
    let db = with_jobs(TestDb::at_commit().await).await;
    as_admin(&db, "UPDATE seqline.settings SET event_payload_max_bytes = 2000").await;
    let (server, client) = serving(&db).await;
    let bad = |n: i64| n % 10 == 5;
    let text = "x".repeat(3000);
    let body = |n: i64| match bad(n) {
        true => event_with(n, &json!({ "payload": { "n": n, "text": text } })),
        false => event(n),
    };
    for (answer, n) in together(&db, &client, (1..=100).map(body).collect()).await.iter().zip(1..) {
        match bad(n) {
            true => drop(answer.problem(422, "validation_failed")),
            false => drop(answer.ok(201)),
        }
    }
    let transactions: i64 = sqlx::query_scalar("SELECT count(DISTINCT occurred_at) FROM seqline.event_log")
        .fetch_one(&db.admin())
        .await
        .unwrap();
    assert!(transactions < 40, "91 requests were {transactions} transactions");
    server.stop().await;
}

#[tokio::test]
async fn of_two_with_the_same_id_one_is_appended() {
    let db = with_jobs(TestDb::at_commit().await).await;
    let (server, client) = serving(&db).await;
    let known = event_with(0, &json!({ "id": Uuid::now_v7() }));
    client.post("/v1/events", &known).await.ok(201);
    let twice = event_with(1, &json!({ "id": Uuid::now_v7() }));
    let mut bodies: Vec<_> = (2..=20).map(|n| event_with(n, &json!({ "id": Uuid::now_v7() }))).collect();
    bodies.extend([known, twice.clone(), twice]);
    let answers = together(&db, &client, bodies).await;
    let (refused, appended): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer.status == 409);
    refused.iter().for_each(|answer| drop(answer.problem(409, "event_exists")));
    appended.iter().for_each(|answer| drop(answer.ok(201)));
    assert_eq!((refused.len(), appended.len()), (2, 20));
    // The first ones of this test and of those that come together are there as well.
    assert_eq!(numbers(&db).await.len(), 22);
    server.stop().await;
}
