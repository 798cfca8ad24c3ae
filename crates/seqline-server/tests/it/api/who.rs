//! Who asks: tokens that are good, and all others, who are told nothing.

use seqline::access::{Rights, disable_principal};
use seqline_testkit::Role;
use serde_json::json;

use super::{Client, another_token, event, serving, token};
use crate::support::{as_admin, server_db};

const OPERATE: Rights = Rights { append: false, operate: true };

#[tokio::test]
async fn whoever_asks_learns_who_they_are_to_the_server() {
    let db = server_db().await;
    let (server, client) = serving(&db).await;
    let me = client.get("/v1/me").await.ok(200);
    assert_eq!(me, json!({ "principal": "shop", "kind": "app", "rights": ["append"] }));
    let sam = Client::new(&client.address).token(&token(&db, "Sam", OPERATE).await);
    assert_eq!(sam.get("/v1/me").await.ok(200)["rights"], json!(["operate"]));
    sam.post("/v1/events", &event(1)).await.problem(403, "forbidden");
    server.stop().await;
}

#[tokio::test]
async fn whoever_is_nobody_gets_one_answer_whatever_the_reason() {
    let db = server_db().await;
    let (server, client) = serving(&db).await;
    let nobody = Client::new(&client.address);
    let [expired, revoked, disabled] =
        [token(&db, "a", OPERATE).await, token(&db, "b", OPERATE).await, token(&db, "c", OPERATE).await];
    as_admin(
        &db,
        "UPDATE seqline.api_tokens SET expires_at = now() - interval '1 second' WHERE principal_id = 'a'",
    )
    .await;
    as_admin(&db, "UPDATE seqline.api_tokens SET revoked_at = now() WHERE principal_id = 'b'").await;
    disable_principal(&mut db.connect(Role::App).await, "c", None).await.unwrap();
    let good = another_token(&db, "shop").await;
    // One that is well formed and was never made.
    let unknown = seqline::access::Token::generate().reveal().to_owned();
    let mut details = std::collections::BTreeSet::new();
    for token in [&expired, &revoked, &disabled, &unknown] {
        let answer = nobody.clone().token(token).get("/v1/me").await;
        let problem = answer.problem(401, "unauthenticated");
        assert_eq!(answer.header("www-authenticate"), "Bearer");
        assert!(!answer.text.contains(token.as_str()), "{problem}");
        details.insert(problem["detail"].as_str().unwrap().to_owned());
    }
    assert_eq!(details.len(), 1, "{details:?}");
    for value in [
        "",
        "Bearer",
        "Bearer ",
        &format!("Basic {good}"),
        &good,
        &format!("Bearer {}x", good),
        &format!("Bearer {}", &good[1..]),
    ] {
        nobody.clone().with("authorization", value).get("/v1/me").await.problem(401, "unauthenticated");
    }
    let twice = nobody.clone().token(&good).token(&good);
    twice.get("/v1/me").await.problem(401, "unauthenticated");
    nobody.get("/v1/log").await.problem(401, "unauthenticated");
    nobody.clone().with("authorization", &format!("bearer {good}")).get("/v1/me").await.ok(200);
    server.stop().await;
}

#[tokio::test]
async fn what_is_not_there_is_a_problem_too_and_every_answer_has_an_id() {
    let db = server_db().await;
    let (server, client) = serving(&db).await;
    for path in ["/", "/v1", "/v1/nothing", "/v2/events"] {
        client.get(path).await.problem(404, "not_found");
    }
    client.ask(hyper::Method::DELETE, "/v1/log", None).await.problem(405, "method_not_allowed");
    let answer = client.get("/v1/me").await;
    assert!(uuid::Uuid::try_parse(answer.header("x-request-id")).is_ok(), "{answer:?}");
    let named = client.clone().with("x-request-id", "mine-17").get("/v1/me").await;
    assert_eq!(named.header("x-request-id"), "mine-17");
    // What would break a line of the log is not taken over.
    let odd = client.with("x-request-id", "mine {17}").get("/v1/me").await;
    assert!(uuid::Uuid::try_parse(odd.header("x-request-id")).is_ok(), "{odd:?}");
    server.stop().await;
}
