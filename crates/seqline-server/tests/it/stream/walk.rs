//! `seqline stream walk`: dies between commit and acknowledgement, and goes on.

use seqline::Clock;
use seqline_nats::broker::{Broker, BrokerConfig};
use seqline_nats::relay::{Relay, RelayConfig};
use seqline_testkit::nats::NatsServer;
use seqline_testkit::{Role, TestDb};

use crate::support::{Seqline, append, on};

/// A log of so many events, and all of them in a stream.
async fn copied(events: i64) -> (TestDb, NatsServer) {
    let (db, nats) = (TestDb::new().await, NatsServer::start().await);
    append(&db.app(), 1..=events).await;
    let broker = Broker::new(BrokerConfig::new(nats.url()));
    let mut relay = Relay::new(db.app(), broker.clone(), RelayConfig::default(), Clock::system());
    assert_eq!(relay.drain_once().await.expect("all are copied").published, events.unsigned_abs());
    broker.close().await;
    (db, nats)
}

fn walk(db: &TestDb, nats: &NatsServer) -> Seqline {
    on(db, Role::App, ["stream", "walk", "--pause", "1ms"]).env("SEQLINE_NATS_URL", nats.url()).args([
        "--set",
        "stream_consumer.ack_wait=1s",
        "--set",
        "stream_consumer.handler_timeout=900ms",
    ])
}

/// How many lines begin like this.
fn lines(text: &str, beginning: &str) -> usize {
    text.lines().filter(|line| line.starts_with(beginning)).count()
}

#[tokio::test]
async fn it_handles_so_many_events_and_says_how_it_goes_on() {
    let (db, nats) = copied(7).await;
    let text = walk(&db, &nats).ok().await;
    let name = text.lines().next().and_then(|line| line.split([' ', ':']).nth(1)).expect("it has a name");
    assert!(name.starts_with("walk-"), "{text}");
    assert_eq!(lines(&text, "handles "), 5, "{text}");
    assert!(text.ends_with("5 events handled, 0 recognised\n"), "{text}");
    let text = walk(&db, &nats).args(["--resume", name, "--limit", "2"]).ok().await;
    assert_eq!((lines(&text, "handles 6 "), lines(&text, "handles 7 ")), (1, 1), "{text}");
}

#[tokio::test]
async fn what_was_committed_when_it_died_is_recognised_and_not_handled_again() {
    let (db, nats) = copied(20).await;
    let outcome = walk(&db, &nats).args(["--kill-before-ack", "--limit", "3"]).run().await;
    assert_eq!(outcome.code(), None, "{outcome:?}");
    assert!(outcome.stdout.ends_with("MARKER kill-me-now\n"), "{outcome:?}");
    assert_eq!(lines(&outcome.stdout, "handles "), 3, "{outcome:?}");
    let name = outcome.stdout.split([' ', ':']).nth(1).expect("it has a name");
    let handled: i64 = sqlx::query_scalar("SELECT count(*) FROM seqline.consumed_events WHERE consumer = $1")
        .bind(name)
        .fetch_one(&db.admin())
        .await
        .unwrap();
    assert_eq!(handled, 3, "it died after the commit");
    let text = walk(&db, &nats).args(["--resume", name, "--limit", "2"]).ok().await;
    let expected = ["consumer ", "waits for what it had in hand, 1 event", "recognised 1 ", "handles 4 "];
    let said: Vec<&str> = text.lines().collect();
    assert!(said.iter().zip(expected).all(|(line, beginning)| line.starts_with(beginning)), "{text}");
    assert!(text.ends_with("1 event handled, 1 recognised\n") && said.len() == 5, "{text}");
}

#[tokio::test]
async fn a_walk_from_now_on_has_nothing_of_before() {
    let (db, nats) = copied(2).await;
    let text = walk(&db, &nats).args(["--from", "new", "--limit", "1"]).ok().await;
    assert!(text.ends_with("0 events handled, 0 recognised\n"), "{text}");
    let sentence = walk(&db, &nats).args(["--resume", "No Name"]).refused(2).await;
    assert!(!sentence.is_empty());
}
