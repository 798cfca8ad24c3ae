//! Requests that are repeated with the same key are answered the same and appended once.

use std::collections::BTreeSet;

use nix::sys::signal::Signal;
use seqline_testkit::{Role, TestDb, eventually};
use serde_json::json;

use super::append::held;
use super::{APPEND, Client, event, event_with, proxied, serving, token};
use crate::support::{DEADLINE, Sessions, WAITS_TO_NUMBER, as_admin, numbers, server_db, with_jobs};
use crate::worker::{Worker, server};

async fn keys(db: &TestDb) -> i64 {
    let count = sqlx::query_scalar("SELECT count(*) FROM seqline.idempotency_keys");
    count.fetch_one(&db.admin()).await.unwrap()
}

#[tokio::test]
async fn the_same_request_gets_the_first_answer_and_another_one_is_refused() {
    let db = server_db().await;
    let (server, client) = serving(&db).await;
    let keyed = client.clone().with("idempotency-key", "order 17, paid");
    let batch = json!({ "events": [event(1), event(2)] });
    let first = keyed.post("/v1/events/batch", &batch).await;
    let body = first.ok(201);
    assert_eq!(first.header("idempotent-replayed"), "");
    client.post("/v1/events", &event(3)).await.ok(201);
    for _ in 0..3 {
        let again = keyed.post("/v1/events/batch", &batch).await;
        assert_eq!(
            (again.ok(201)["events"].clone(), again.header("idempotent-replayed")),
            (body["events"].clone(), "true")
        );
        // The number may not have been known the first time.
        if let Some(position) = body.get("position") {
            assert_eq!(&again.json()["position"], position);
        }
    }
    for (path, other) in [("/v1/events/batch", json!({ "events": [event(1)] })), ("/v1/events", event(1))] {
        keyed.post(path, &other).await.problem(409, "idempotency_key_reused");
    }
    // Keys of others are others.
    let robin = Client::new(&client.address).token(&token(&db, "Robin", APPEND).await);
    let other = robin.with("idempotency-key", "order 17, paid").post("/v1/events", &event(4)).await;
    assert_eq!((other.status, other.header("idempotent-replayed")), (201, ""));
    assert_eq!(numbers(&db).await, [1, 2, 3, 4]);
    server.stop().await;
}

#[tokio::test]
async fn of_32_clients_with_one_key_one_appends_and_all_get_its_answer() {
    let db = server_db().await;
    let (server, client) = serving(&db).await;
    // A second server: what they share is the database.
    let second = Worker::start(crate::worker::server(&db, "api")).await;
    let mut elsewhere = client.clone();
    elsewhere.address = second.api().await;
    let asking: Vec<_> = (0..32)
        .map(|n| {
            let client = if n % 2 == 0 { client.clone() } else { elsewhere.clone() };
            let client = client.with("idempotency-key", "one");
            tokio::spawn(async move { client.post("/v1/events", &event(1)).await })
        })
        .collect();
    let (mut ids, mut first) = (BTreeSet::new(), 0);
    for asked in asking {
        let answer = asked.await.unwrap();
        ids.insert(answer.ok(201)["events"][0]["id"].as_str().unwrap().to_owned());
        first += usize::from(answer.header("idempotent-replayed").is_empty());
    }
    assert_eq!((ids.len(), first), (1, 1));
    assert_eq!(numbers(&db).await, [1]);
    second.stop().await;
    server.stop().await;
}

#[tokio::test]
async fn a_server_that_is_killed_between_the_commit_and_the_answer_has_appended_once() {
    let db = with_jobs(TestDb::at_commit().await).await;
    let (proxy, url) = proxied(&db).await;
    let token = token(&db, "shop", APPEND).await;
    let killed = Worker::start(server(&db, "api").args(["--database-url", &url])).await;
    let keyed = |address: String| Client::new(address).token(&token).with("idempotency-key", "one");
    let client = keyed(killed.api().await);
    client.get("/v1/log").await.ok(200);
    let lock = held(&db).await;
    let asking = tokio::spawn(async move {
        client.try_ask(hyper::Method::POST, "/v1/events", Some(event(1).to_string())).await
    });
    Sessions::of(&db, Role::App).reach(1, WAITS_TO_NUMBER).await;
    proxy.hold_answers();
    lock.rollback().await.unwrap();
    eventually(DEADLINE, "it is in the log", async || numbers(&db).await == [1]).await;
    killed.running.signal(Signal::SIGKILL);
    killed.end().await;
    assert!(asking.await.unwrap().is_none(), "nobody was there to answer");

    let server = Worker::start(server(&db, "api")).await;
    let again = keyed(server.api().await).post("/v1/events", &event(1)).await;
    assert_eq!(again.header("idempotent-replayed"), "true");
    let id = again.ok(201)["events"][0]["id"].as_str().unwrap().to_owned();
    let stored: String =
        sqlx::query_scalar("SELECT id::text FROM seqline.event_log").fetch_one(&db.admin()).await.unwrap();
    assert_eq!(id, stored);
    server.stop().await;
}

#[tokio::test]
async fn a_request_that_was_refused_leaves_its_key_free() {
    let db = server_db().await;
    as_admin(&db, "UPDATE seqline.settings SET event_payload_max_bytes = 2000").await;
    let (server, client) = serving(&db).await;
    let keyed = client.with("idempotency-key", "one");
    let large = event_with(1, &json!({ "payload": { "text": "x".repeat(3000) } }));
    keyed.post("/v1/events", &large).await.problem(422, "validation_failed");
    let first = keyed.post("/v1/events", &event(1)).await;
    assert_eq!((first.status, first.header("idempotent-replayed")), (201, ""));
    server.stop().await;
}

#[tokio::test]
async fn a_key_is_good_again_when_its_time_is_over_and_is_forgotten_by_maintenance() {
    let db = server_db().await;
    let (server, client) = serving(&db).await;
    let keyed = client.clone().with("idempotency-key", "one");
    keyed.post("/v1/events", &event(1)).await.ok(201);
    client.with("idempotency-key", "two").post("/v1/events", &event(2)).await.ok(201);
    as_admin(&db, "UPDATE seqline.idempotency_keys SET created_at = now() - interval '25 hours'").await;
    let other = keyed.post("/v1/events", &event(3)).await;
    assert_eq!((other.status, other.header("idempotent-replayed")), (201, ""));
    keyed.post("/v1/events", &event(1)).await.problem(409, "idempotency_key_reused");
    assert_eq!((numbers(&db).await, keys(&db).await), (vec![1, 2, 3], 2));
    let worker = Worker::start(crate::worker::worker(&db)).await;
    assert_eq!(worker.says("idempotency keys forgotten").await["keys"], 1);
    assert_eq!(keys(&db).await, 1);
    worker.stop().await;
    server.stop().await;
}

#[tokio::test]
async fn a_key_that_cannot_be_one_is_refused() {
    let db = server_db().await;
    let (server, client) = serving(&db).await;
    for key in [" ", "", &"k".repeat(256), "\u{e9}"] {
        let answer = client.clone().with("idempotency-key", key).post("/v1/events", &event(1)).await;
        answer.problem(400, "malformed_request");
    }
    let two = client.clone().with("idempotency-key", "a").with("idempotency-key", "b");
    two.post("/v1/events", &event(1)).await.problem(400, "malformed_request");
    let longest = client.with("idempotency-key", &"k".repeat(255));
    longest.post("/v1/events", &event(1)).await.ok(201);
    server.stop().await;
}
