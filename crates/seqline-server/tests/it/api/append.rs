//! Appending: what is taken, what is refused and how that is said, and that requests which share a transaction do not share a fate.

use std::collections::BTreeSet;

use seqline_testkit::{Role, TestDb, eventually};
use serde_json::{Value, json};
use sqlx::Row;
use uuid::Uuid;

use super::{APPEND, Client, event, event_with, proxied, serving, token};
use crate::sequencing::after_commit;
use crate::support::{
    DEADLINE, PLANTED, Sessions, WAITS_TO_NUMBER, as_admin, numbers, on, server_db, with_jobs,
};
use crate::worker::{Worker, server};

/// The number of a position.
fn seq(position: &Value) -> i64 {
    let (_, seq) = position.as_str().expect("a position is text").split_once(':').expect("it has two parts");
    seq.parse().expect("its second part is a number")
}

#[tokio::test]
async fn an_event_is_in_the_log_with_all_its_members_and_its_position_when_that_is_answered() {
    let db = with_jobs(TestDb::at_commit().await).await;
    let (server, client) = serving(&db).await;
    let id = Uuid::now_v7();
    let members = json!({
        "id": id, "resource_id": "17", "resource_version": 3, "space_id": "shop-1", "channel_id": "c", "thread_id": "t",
        "audience_principal_id": "Alex", "schema_version": 2, "client_msg_id": "m", "truncated": true,
        "actor_kind": "user", "actor_principal_id": "Sam",
    });
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let answer = client.clone().with("traceparent", trace).post("/v1/events", &event_with(1, &members)).await;
    let answer = answer.ok(201);
    let epoch: Uuid =
        sqlx::query_scalar("SELECT epoch FROM seqline.log_identity").fetch_one(&db.admin()).await.unwrap();
    assert_eq!(answer, json!({ "events": [{ "id": id }], "position": format!("{epoch}:1") }));
    assert_eq!(client.get("/v1/log").await.ok(200)["head"], answer["position"]);

    let stored: Value = sqlx::query_scalar("SELECT to_jsonb(e) FROM seqline.event_log e")
        .fetch_one(&db.admin())
        .await
        .unwrap();
    for (name, value) in members.as_object().unwrap() {
        assert_eq!(&stored[name], value, "{name}");
    }
    assert_eq!(stored["payload"], json!({ "n": 1, "planted": PLANTED }));
    assert_eq!(stored["correlation_id"], "0af76519-16cd-43dd-8448-eb211c80319c");

    // Without an actor it was the one who asked.
    client.post("/v1/events", &event(2)).await.ok(201);
    let actor = sqlx::query("SELECT actor_kind, actor_principal_id FROM seqline.event_log WHERE seq = 2");
    let actor = actor.fetch_one(&db.admin()).await.unwrap();
    assert_eq!((actor.get::<&str, _>(0), actor.get::<&str, _>(1)), ("app", "shop"));
    server.stop().await;
}

#[tokio::test]
async fn one_event_is_read_by_its_id_by_whoever_may_see_it() {
    let db = server_db().await;
    let (server, client) = serving(&db).await;
    let [open, own, others] = [
        event(1),
        event_with(2, &json!({ "receive_action": "self", "audience_principal_id": "shop" })),
        event_with(3, &json!({ "receive_action": "order.read" })),
    ];
    let ids = client.post("/v1/events/batch", &json!({ "events": [open, own, others] })).await.ok(201);
    let id = |index: usize| ids["events"][index]["id"].as_str().unwrap().to_owned();
    eventually(DEADLINE, "they have their numbers", async || numbers(&db).await.len() == 3).await;
    for (index, audience) in [(0, None), (1, Some("self"))] {
        let event = client.get(&format!("/v1/events/{}", id(index))).await.ok(200);
        assert_eq!(event["id"], id(index));
        assert_eq!(event.get("audience").and_then(Value::as_str), audience);
        assert_eq!(event["payload"]["planted"], PLANTED);
    }
    let unknown = Uuid::now_v7().to_string();
    for id in [id(2), unknown, "17".to_owned(), id(0).replace('-', "")] {
        client.get(&format!("/v1/events/{id}")).await.problem(404, "not_found");
    }
    let robin = Client::new(&client.address).token(&token(&db, "Robin", APPEND).await);
    robin.get(&format!("/v1/events/{}", id(1))).await.problem(404, "not_found");
    server.stop().await;
}

#[tokio::test]
async fn a_batch_is_in_the_log_as_a_whole_in_its_order_or_not_at_all() {
    let db = with_jobs(TestDb::at_commit().await).await;
    let (server, client) = serving(&db).await;
    let answer =
        client.post("/v1/events/batch", &json!({ "events": (1..=20).map(event).collect::<Vec<_>>() })).await;
    let answer = answer.ok(201);
    assert_eq!(seq(&answer["position"]), 20);
    assert_eq!(numbers(&db).await, (1..=20).collect::<Vec<_>>());
    let stored: Vec<Uuid> = sqlx::query_scalar("SELECT id FROM seqline.event_log ORDER BY seq")
        .fetch_all(&db.admin())
        .await
        .unwrap();
    let ids: Vec<Uuid> = answer["events"]
        .as_array()
        .unwrap()
        .iter()
        .map(|event| event["id"].as_str().unwrap().parse().unwrap())
        .collect();
    assert_eq!(ids, stored);

    let mut events: Vec<Value> = (21..=40).map(event).collect();
    events[7]["resource_kind"] = json!("");
    let refused =
        client.post("/v1/events/batch", &json!({ "events": events })).await.problem(422, "validation_failed");
    assert_eq!(
        refused["errors"],
        json!([{ "pointer": "/events/7/resource_kind", "message": "member resource_kind is missing" }])
    );
    assert_eq!(numbers(&db).await.len(), 20);
    server.stop().await;
}

#[tokio::test]
async fn where_numbers_come_after_commit_there_is_no_position_and_the_event_is_kept() {
    let db = with_jobs(TestDb::at_commit().await).await;
    after_commit(&db).await;
    // In the role api, so that nobody gives numbers.
    let (server, client) = serving(&db).await;
    let answer = client.post("/v1/events", &event(1)).await.ok(201);
    assert!(answer.get("position").is_none(), "{answer}");
    let waits: i64 = sqlx::query_scalar("SELECT count(*) FROM seqline.staged_transactions")
        .fetch_one(&db.admin())
        .await
        .unwrap();
    assert_eq!(waits, 1);
    server.stop().await;
}

#[tokio::test]
async fn what_is_wrong_with_a_request_is_said_with_its_place_and_without_its_value() {
    let db = server_db().await;
    as_admin(&db, "UPDATE seqline.settings SET event_payload_max_bytes = 2000").await;
    let (server, client) = serving(&db).await;
    let large = json!({ "payload": { "text": "x".repeat(3000) } });
    let unstorable = event(1).to_string().replace("\"n\":1", &format!("\"n\":1e{}", "9".repeat(9)));
    for (path, body, status, code, pointer) in [
        (
            "/v1/events",
            event_with(1, &json!({ "type": "secret" })).to_string(),
            422,
            "validation_failed",
            "/type",
        ),
        (
            "/v1/events",
            event_with(1, &json!({ "payload": { "a": [{ "b": null }] } })).to_string(),
            422,
            "validation_failed",
            "/payload/a/0/b",
        ),
        ("/v1/events", event_with(1, &json!({ "other": 1 })).to_string(), 422, "validation_failed", "/other"),
        (
            "/v1/events",
            event_with(1, &json!({ "resource_version": "secret" })).to_string(),
            422,
            "validation_failed",
            "/resource_version",
        ),
        ("/v1/events", event_with(1, &large).to_string(), 422, "validation_failed", "/payload"),
        ("/v1/events", unstorable, 422, "validation_failed", "/payload"),
        ("/v1/events", "{\"type\": secret}".to_owned(), 400, "malformed_request", "/type"),
        ("/v1/events", String::new(), 400, "malformed_request", ""),
        ("/v1/events", "[]".to_owned(), 422, "validation_failed", ""),
        ("/v1/events/batch", json!({ "events": [] }).to_string(), 422, "validation_failed", "/events"),
        (
            "/v1/events/batch",
            json!({ "events": vec![event(1); 1001] }).to_string(),
            422,
            "validation_failed",
            "/events",
        ),
        (
            "/v1/events/batch",
            json!({ "events": [event(1), 5] }).to_string(),
            422,
            "validation_failed",
            "/events/1",
        ),
        (
            "/v1/events/batch",
            json!({ "events": [event(1), event(2), event_with(3, &large)] }).to_string(),
            422,
            "validation_failed",
            "/events/2/payload",
        ),
    ] {
        let answer = client.post_text(path, &body).await;
        let shown: String = body.chars().take(200).collect();
        let problem = answer.problem(status, code);
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{shown}: {problem}");
        assert!(!answer.text.contains("secret") && !answer.text.contains(PLANTED), "{problem}");
    }
    assert_eq!(numbers(&db).await, [0; 0]);
    server.stop().await;
}

#[tokio::test]
async fn an_id_that_is_in_the_log_is_refused_and_named() {
    let db = server_db().await;
    let (server, client) = serving(&db).await;
    let known = event_with(1, &json!({ "id": Uuid::now_v7() }));
    client.post("/v1/events", &known).await.ok(201);
    let problem = client.post("/v1/events", &known).await.problem(409, "event_exists");
    let id = known["id"].as_str().unwrap();
    assert!(problem["detail"].as_str().unwrap().contains(id), "{problem}");
    let batch = json!({ "events": [event(2), known] });
    client.post("/v1/events/batch", &batch).await.problem(409, "event_exists");
    server.stop().await;
}

#[tokio::test]
async fn a_log_that_is_read_only_says_so_and_takes_events_again_afterwards() {
    let db = server_db().await;
    let (server, client) = serving(&db).await;
    on(&db, Role::App, ["settings", "maintenance", "read_only", "--yes"]).ok().await;
    let answer = client.post("/v1/events", &event(1)).await;
    answer.problem(503, "read_only");
    assert_ne!(answer.header("retry-after"), "");
    on(&db, Role::App, ["settings", "maintenance", "off", "--yes"]).ok().await;
    client.post("/v1/events", &event(1)).await.ok(201);
    server.stop().await;
}

/// Lets requests wait for the numbering lock, so that they come together, until the guard is dropped.
pub(super) async fn held(db: &TestDb) -> sqlx::PgTransaction<'static> {
    // However long that takes.
    as_admin(db, "UPDATE seqline.settings SET numbering_lock_timeout_ms = 600000").await;
    let mut tx = seqline::begin(&db.admin()).await.unwrap();
    sqlx::query("LOCK TABLE seqline.numbering").execute(&mut *tx).await.unwrap();
    tx
}

/// Requests of these bodies at the same time, all of them in groups that were formed while nothing could be committed.
pub(super) async fn together(db: &TestDb, client: &Client, bodies: Vec<Value>) -> Vec<super::Answer> {
    let lock = held(db).await;
    let first = tokio::spawn({
        let client = client.clone();
        async move { client.post("/v1/events", &event(0)).await }
    });
    // The first ones wait in their COMMIT, and all that come now wait for them.
    Sessions::of(db, Role::App).reach(1, WAITS_TO_NUMBER).await;
    let asking: Vec<_> = bodies
        .into_iter()
        .map(|body| {
            let client = client.clone();
            tokio::spawn(async move { client.post("/v1/events", &body).await })
        })
        .collect();
    lock.rollback().await.unwrap();
    first.await.unwrap().ok(201);
    let mut answers = Vec::new();
    for asked in asking {
        answers.push(asked.await.unwrap());
    }
    answers
}

#[tokio::test]
async fn one_bad_event_among_many_that_share_a_transaction_fails_no_other() {
    let db = with_jobs(TestDb::at_commit().await).await;
    as_admin(&db, "UPDATE seqline.settings SET event_payload_max_bytes = 2000").await;
    let (server, client) = serving(&db).await;
    let bad = |n: i64| n % 10 == 5;
    let body = |n: i64| match bad(n) {
        true => event_with(n, &json!({ "payload": { "n": n, "text": "x".repeat(3000) } })),
        false => event(n),
    };
    let answers = together(&db, &client, (1..=60).map(body).collect()).await;
    let mut positions = BTreeSet::new();
    for (answer, n) in answers.iter().zip(1..) {
        if bad(n) {
            assert_eq!(answer.problem(422, "validation_failed")["errors"][0]["pointer"], "/payload");
        } else {
            assert!(positions.insert(seq(&answer.ok(201)["position"])));
        }
    }
    let stored: Vec<(i64, i64)> =
        sqlx::query_as("SELECT seq, (payload ->> 'n')::bigint FROM seqline.event_log ORDER BY seq")
            .fetch_all(&db.admin())
            .await
            .unwrap();
    assert_eq!(stored.len(), 55);
    // Each was told its own number.
    for (answer, n) in answers.iter().zip(1..).filter(|(_, n)| !bad(*n)) {
        assert!(stored.contains(&(seq(&answer.json()["position"]), n)), "{n}");
    }
    server.stop().await;
}

#[tokio::test]
async fn requests_that_come_at_the_same_time_share_transactions() {
    let db = with_jobs(TestDb::at_commit().await).await;
    let (server, client) = serving(&db).await;
    for answer in together(&db, &client, (1..=100).map(event).collect()).await {
        answer.ok(201);
    }
    let transactions: i64 = sqlx::query_scalar("SELECT count(DISTINCT occurred_at) FROM seqline.event_log")
        .fetch_one(&db.admin())
        .await
        .unwrap();
    assert!(transactions < 40, "101 requests were {transactions} transactions");
    server.stop().await;
}

#[tokio::test]
async fn a_client_that_goes_away_takes_nothing_with_it() {
    let db = with_jobs(TestDb::at_commit().await).await;
    let (server, client) = serving(&db).await;
    let lock = held(&db).await;
    let asking: Vec<_> = (1..=8)
        .map(|n| {
            let client = client.clone();
            tokio::spawn(async move { client.post("/v1/events", &event(n)).await })
        })
        .collect();
    Sessions::of(&db, Role::App).reach(1, WAITS_TO_NUMBER).await;
    // Each is in a group that commits, or still waits, and goes away.
    asking.iter().for_each(tokio::task::JoinHandle::abort);
    lock.rollback().await.unwrap();
    client.post("/v1/events", &event(100)).await.ok(201);
    let all = numbers(&db).await;
    assert!(all.contains(&100));
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len(), "one of them is there twice: {all:?}");
    server.stop().await;
}

#[tokio::test]
async fn more_requests_than_may_wait_are_told_to_come_again() {
    let db = server_db().await;
    let token = token(&db, "shop", APPEND).await;
    let server = Worker::start(server(&db, "api").env("SEQLINE_API__APPEND_QUEUE_MAX", "4")).await;
    let client = Client::new(server.api().await).token(&token);
    let lock = held(&db).await;
    let asking: Vec<_> = (1..=12)
        .map(|n| {
            let client = client.clone();
            tokio::spawn(async move { client.post("/v1/events", &event(n)).await })
        })
        .collect();
    eventually(DEADLINE, "those that find no place are answered", async || {
        asking.iter().filter(|asked| asked.is_finished()).count() == 8
    })
    .await;
    lock.rollback().await.unwrap();
    let mut appended = 0;
    for asked in asking {
        let answer = asked.await.unwrap();
        if answer.status == 201 {
            appended += 1;
        } else {
            answer.problem(503, "unavailable");
            assert_ne!(answer.header("retry-after"), "");
        }
    }
    assert_eq!((appended, numbers(&db).await.len()), (4, 4));
    server.stop().await;
}

#[tokio::test]
async fn a_connection_that_is_lost_in_the_commit_leaves_the_outcome_open_and_says_so() {
    let db = with_jobs(TestDb::at_commit().await).await;
    let (proxy, url) = proxied(&db).await;
    let token = token(&db, "shop", APPEND).await;
    let server = Worker::start(server(&db, "api").args(["--database-url", &url])).await;
    let client = Client::new(server.api().await).token(&token).with("idempotency-key", "one");
    client.get("/v1/log").await.ok(200);
    let lock = held(&db).await;
    let asking = tokio::spawn({
        let client = client.clone();
        async move { client.post("/v1/events", &event(1)).await }
    });
    Sessions::of(&db, Role::App).reach(1, WAITS_TO_NUMBER).await;
    // The database commits, and its answer does not arrive.
    proxy.hold_answers();
    lock.rollback().await.unwrap();
    eventually(DEADLINE, "it is in the log", async || numbers(&db).await == [1]).await;
    proxy.cut();
    proxy.heal();
    let answer = asking.await.unwrap();
    let problem = answer.problem(503, "outcome_unknown");
    assert!(problem["detail"].as_str().unwrap().contains("Idempotency-Key"), "{problem}");
    // What it says to do is what helps.
    let mut again = None;
    eventually(DEADLINE, "the server has its database again", async || {
        let answer = client.post("/v1/events", &event(1)).await;
        let is_there = answer.status == 201;
        again = is_there.then_some(answer);
        is_there
    })
    .await;
    assert_eq!(again.unwrap().header("idempotent-replayed"), "true");
    assert_eq!(numbers(&db).await, [1]);
    server.stop().await;
}
