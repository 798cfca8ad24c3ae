//! The database goes away while somebody reads.

use std::time::Duration;

use seqline_testkit::{FaultProxy, Role, TestDb, TestServer, eventually};

use super::client::{number, seq};
use super::{Site, address, user};
use crate::support::{DEADLINE, append, seqline};
use crate::worker::Worker;

#[tokio::test]
async fn a_stream_lives_through_a_restart_of_the_database_and_misses_nothing() {
    let mut postgres = TestServer::durable().await;
    let db = TestDb::on(&postgres).await;
    let site = Site::on(
        db,
        &[
            ("api.stream_heartbeat_interval", "300ms"),
            ("api.permissions_max_age", "200ms"),
            ("ops.look_interval", "200ms"),
            ("sync.log_poll_interval", "100ms"),
            ("consumer.poll_interval", "100ms"),
            ("database.listen_reconnect_backoff_cap", "300ms"),
        ],
    )
    .await;
    let alex = site.user("alex", &[]).await;
    append(&site.db.app(), 1..=5).await;
    let mut stream = alex.stream("after=oldest").await;
    for expected in 1..=5 {
        assert_eq!(stream.event().await["seq"], expected);
    }
    postgres.kill().await;
    // Longer than anything is remembered: nothing is handed out, and the client is told that the stream lives.
    for _ in 0..5 {
        assert_eq!(number(&stream.heartbeat().await), 5);
    }
    eventually(DEADLINE, "requests are told to come again", async || {
        let answer = alex.get("/v1/events?after=oldest").await;
        assert!([200, 503].contains(&answer.status), "{answer:?}");
        answer.status == 503 && answer.retry_after.is_some()
    })
    .await;
    postgres.start_again().await;
    append(&site.db.pool(Role::App, 1), 6..=8).await;
    for expected in 6..=8 {
        assert_eq!(stream.event().await["seq"], expected);
    }
    site.stop().await;
}

/// A database behind a proxy that can swallow everything, and a server with these keys that reaches it through that.
async fn behind_a_proxy(db: &TestDb, keys: &[&str]) -> (FaultProxy, Worker) {
    let options = db.options(Role::App);
    let proxy = FaultProxy::start(([127, 0, 0, 1], options.get_port()).into()).await.unwrap();
    let url =
        db.url(Role::App).replace(&format!(":{}", options.get_port()), &format!(":{}", proxy.addr().port()));
    let keys = keys.iter().flat_map(|key| ["--set", key]);
    let command = ["serve", "--role", "api"].into_iter().chain(keys);
    let server = Worker::start(seqline(command).env("SEQLINE_DATABASE_URL", url)).await;
    (proxy, server)
}

/// How long the database is waited for does not matter to those who look whether the stream lives.
#[tokio::test]
async fn a_stream_beats_while_the_database_says_nothing() {
    let db = TestDb::new().await;
    let keys = ["api.stream_heartbeat_interval=300ms", "api.permissions_max_age=100ms"];
    let (proxy, server) = behind_a_proxy(&db, &keys).await;
    let (token, _) = user(&db, "alex", &[]).await;
    let alex = super::Client::new(&address(&server).await, &token);
    let mut stream = alex.stream("after=head").await;
    stream.heartbeat().await;
    proxy.black_hole();
    let beats = async {
        for _ in 0..10 {
            stream.heartbeat().await;
        }
    };
    // Far less than `database.statement_timeout`, which is 30 seconds.
    tokio::time::timeout(Duration::from_secs(20), beats).await.expect("it goes on beating");
    proxy.heal();
    proxy.cut();
    append(&db.app(), [1]).await;
    while stream.next().await.expect("the stream goes on").data.is_none() {}
    server.stop().await;
}

/// Behind a proxy that can swallow everything.
#[tokio::test]
async fn a_database_that_does_not_answer_is_given_up_and_asked_again() {
    let postgres = TestServer::fast().await;
    let db = TestDb::on(&postgres).await;
    let keys = [
        "database.statement_timeout=1s",
        "database.lock_timeout=500ms",
        "sync.detach_lock_timeout_max=500ms",
        "consumer.poll_interval=100ms",
        "database.listen_reconnect_backoff_cap=300ms",
        "sync.log_poll_interval=100ms",
        "api.hub_events_max=1",
        "api.stream_heartbeat_interval=300ms",
        "api.permissions_max_age=10m",
        "api.readers_max=1",
    ];
    let (proxy, server) = behind_a_proxy(&db, &keys).await;
    let (token, _) = user(&db, "alex", &[]).await;
    let alex = super::Client::new(&address(&server).await, &token);
    append(&db.app(), 1..=5).await;
    // What the server has not seen by then it does not know to be there.
    eventually(DEADLINE, "it has all", async || number(&alex.page("after=head").await.head) == 5).await;
    let mut stream = alex.stream("after=head").await;
    let first = alex.page("after=oldest&limit=2").await;
    proxy.black_hole();
    // What is not in memory has to be asked for, and the one place of readers is given back each time.
    for _ in 0..3 {
        let answer = alex.get(&format!("/v1/events?after={}", first.next)).await;
        let (status, document) = answer.refusal();
        assert_eq!((status, document["code"].as_str()), (503, Some("unavailable")), "{document}");
    }
    while let position = stream.heartbeat().await
        && number(&position) < 5
    {}
    proxy.heal();
    let mut seqs = Vec::new();
    eventually(DEADLINE, "it answers again", async || {
        let answer = alex.get(&format!("/v1/events?after={}", first.next)).await;
        if answer.status == 200 {
            seqs = answer.page().events.iter().map(seq).collect();
        }
        !seqs.is_empty()
    })
    .await;
    assert_eq!(seqs, [3, 4, 5]);
    append(&db.app(), [6]).await;
    assert_eq!(tokio::time::timeout(Duration::from_secs(30), stream.event()).await.unwrap()["seq"], 6);
    server.stop().await;
}
