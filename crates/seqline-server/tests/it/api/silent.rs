//! A database that says nothing: how long requests wait for it, and what the log of the server has of that.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::Value;

use super::{APPEND, Client, another_token, event, proxied, token};
use crate::support::{append, server_db};
use crate::worker::{Worker, server};

/// `database.statement_timeout` of these servers, and within which time everything is answered.
const TIMEOUT: &str = "3s";
const IN_TIME: Duration = Duration::from_secs(6);

/// A server whose database is behind a proxy.
async fn serving(db: &seqline_testkit::TestDb, url: &str) -> Worker {
    let keys = [
        ("SEQLINE_DATABASE__STATEMENT_TIMEOUT", TIMEOUT),
        ("SEQLINE_DATABASE__LOCK_TIMEOUT", "1s"),
        ("SEQLINE_SYNC__DETACH_LOCK_TIMEOUT_MAX", "1s"),
        // Nothing is answered from memory but who asks.
        ("SEQLINE_API__PERMISSIONS_MAX_AGE", "10m"),
        ("SEQLINE_API__HUB_EVENTS_MAX", "1"),
        ("SEQLINE_API__READERS_MAX", "1"),
    ];
    let command = server(db, "api").args(["--database-url", url]);
    Worker::start(keys.into_iter().fold(command, |server, (key, value)| server.env(key, value))).await
}

/// All of them at once are told in time to come again.
async fn all_are_told(client: &Client, requests: usize, path: &str) {
    let asked = join_all((0..requests).map(|_| client.get(path)));
    let answers = tokio::time::timeout(IN_TIME, asked).await.expect("nobody waits for the others");
    for answer in answers {
        answer.problem(503, "unavailable");
        assert_ne!(answer.header("retry-after"), "");
    }
}

#[tokio::test]
async fn those_who_ask_with_one_token_do_not_wait_one_after_the_other() {
    let db = server_db().await;
    let (proxy, url) = proxied(&db).await;
    let known = token(&db, "shop", APPEND).await;
    let unknown = another_token(&db, "shop").await;
    let server = serving(&db, &url).await;
    let address = server.api().await;
    Client::new(&address).token(&known).get("/v1/me").await.ok(200);
    proxy.black_hole();
    all_are_told(&Client::new(&address).token(&unknown), 20, "/v1/me").await;
    proxy.heal();
    proxy.cut();
    server.stop().await;
}

#[tokio::test]
async fn those_who_read_do_not_wait_one_after_the_other_for_the_one_place() {
    let db = server_db().await;
    let (proxy, url) = proxied(&db).await;
    let token = token(&db, "shop", APPEND).await;
    let server = serving(&db, &url).await;
    let client = Client::new(server.api().await).token(&token);
    append(&db.app(), 1..=3).await;
    client.get("/v1/events?after=oldest").await.ok(200);
    proxy.black_hole();
    all_are_told(&client, 10, "/v1/events?after=oldest").await;
    proxy.heal();
    proxy.cut();
    server.stop().await;
}

#[tokio::test]
async fn the_log_says_once_that_the_database_is_away_and_not_for_each_request() {
    let db = server_db().await;
    let (proxy, url) = proxied(&db).await;
    let token = token(&db, "shop", APPEND).await;
    let server = serving(&db, &url).await;
    let client = Client::new(server.api().await).token(&token);
    client.post("/v1/events", &event(1)).await.ok(201);
    proxy.refuse();
    proxy.cut();
    for n in 0..20 {
        let answer = match n % 3 {
            0 => client.post("/v1/events", &event(n)).await,
            1 => client.get("/v1/log").await,
            _ => client.get("/v1/events?after=oldest").await,
        };
        answer.problem(503, "unavailable");
    }
    // Those who follow the log notice it by themselves.
    server.says("event tail cannot read, trying again").await;
    let about_it = |log: Vec<Value>| -> Vec<Value> {
        log.into_iter().filter(|line| line["level"] == "WARN" || line["level"] == "ERROR").collect()
    };
    let said = about_it(server.log());
    assert!(said.len() <= 2, "{said:#?}");
    proxy.heal();
    server.stop().await;
}
