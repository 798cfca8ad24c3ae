//! `seqline stream walk`: dies between commit and acknowledgement, and goes on.

use std::ops::RangeInclusive;
use std::time::Duration;

use nix::sys::signal::Signal;
use seqline::Clock;
use seqline_nats::broker::{Broker, BrokerConfig};
use seqline_nats::relay::{Relay, RelayConfig};
use seqline_testkit::nats::NatsServer;
use seqline_testkit::{Role, TestDb, eventually};

use super::stream_of;
use crate::support::{DEADLINE, Seqline, append, on};

/// A log of so many events, and all of them in a stream.
pub(super) async fn copied(events: i64) -> (TestDb, NatsServer) {
    let (db, nats) = (TestDb::new().await, NatsServer::start().await);
    publish(&db, &nats, 1..=events).await;
    (db, nats)
}

async fn publish(db: &TestDb, nats: &NatsServer, events: RangeInclusive<i64>) {
    let count = (events.end() - events.start() + 1).unsigned_abs();
    append(&db.app(), events).await;
    let broker = Broker::new(BrokerConfig::new(nats.url()));
    let mut relay = Relay::new(db.app(), broker.clone(), short_lease(), Clock::system());
    let mut published = 0;
    eventually(DEADLINE, "all are copied", async || {
        published += relay.drain_once().await.map_or(0, |drained| drained.published);
        published == count
    })
    .await;
    broker.close().await;
}

/// The next relay of the test takes over soon.
fn short_lease() -> RelayConfig {
    let mut config = RelayConfig::default();
    config.lease = Duration::from_secs(1);
    config
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

/// Consumers that are recorded, and events that are known to be handled.
async fn recorded(db: &TestDb) -> (i64, i64) {
    let counts = "SELECT (SELECT count(*) FROM seqline.stream_consumers), (SELECT count(*) FROM seqline.consumed_events)";
    sqlx::query_as(counts).fetch_one(&db.admin()).await.unwrap()
}

async fn at_broker(nats: &NatsServer) -> usize {
    stream_of(nats).await.expect("there is a stream").consumers.len()
}

fn name(text: &str) -> &str {
    text.split([' ', ':']).nth(1).expect("it has a name")
}

#[tokio::test]
async fn it_handles_so_many_events_and_leaves_nothing_at_its_end() {
    let (db, nats) = copied(7).await;
    let text = walk(&db, &nats).ok().await;
    assert!(name(&text).starts_with("walk-"), "{text}");
    assert_eq!(lines(&text, "handles "), 5, "{text}");
    assert!(text.ends_with("5 events handled, 0 recognised\n"), "{text}");
    assert_eq!((recorded(&db).await, at_broker(&nats).await), ((0, 0), 0));
    let sentence = walk(&db, &nats).args(["--resume", name(&text)]).refused(4).await;
    assert!(sentence.starts_with("there is no stream consumer of this name"), "{sentence}");
}

#[tokio::test]
async fn what_was_committed_when_it_died_is_recognised_and_not_handled_again() {
    let (db, nats) = copied(20).await;
    let outcome = walk(&db, &nats).args(["--kill-before-ack", "--limit", "3"]).run().await;
    assert_eq!(outcome.code(), None, "{outcome:?}");
    assert!(outcome.stdout.ends_with("MARKER kill-me-now\n"), "{outcome:?}");
    assert_eq!(lines(&outcome.stdout, "handles "), 3, "{outcome:?}");
    let name = name(&outcome.stdout);
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
    assert_eq!((recorded(&db).await, at_broker(&nats).await), ((0, 0), 0), "it came to its end");
}

#[tokio::test]
async fn a_walk_that_is_interrupted_goes_on_and_waits_for_nothing_that_is_not_owed() {
    let (db, nats) = copied(3).await;
    let clock = Clock::system();
    let running = walk(&db, &nats).args(["--limit", "1000"]).start();
    eventually(DEADLINE, "it has handled all", async || recorded(&db).await == (1, 3)).await;
    eventually(DEADLINE, "the broker knows", async || {
        stream_of(&nats).await.is_some_and(|stream| stream.consumers.iter().all(|it| it.ack_floor == 3))
    })
    .await;
    running.signal(Signal::SIGTERM);
    let outcome = running.end().await;
    assert_eq!(outcome.code(), Some(130), "{outcome:?}");
    publish(&db, &nats, 4..=4).await;
    let begun = clock.elapsed();
    let resumed = walk(&db, &nats).args(["--resume", name(&outcome.stdout), "--limit", "1"]).ok().await;
    assert!(clock.elapsed() - begun < Duration::from_secs(20));
    assert_eq!(lines(&resumed, "handles 4 "), 1, "{resumed}");
    assert!(resumed.ends_with("1 event handled, 0 recognised\n"), "{resumed}");
}

#[tokio::test]
async fn a_walk_from_now_on_has_what_comes_and_nothing_of_before() {
    let (db, nats) = copied(2).await;
    let text = walk(&db, &nats).args(["--from", "new", "--limit", "1"]).ok().await;
    assert!(text.ends_with("0 events handled, 0 recognised\n"), "{text}");
    let running = walk(&db, &nats).args(["--from", "new", "--limit", "1"]).start();
    eventually(DEADLINE, "it waits", async || at_broker(&nats).await == 1).await;
    publish(&db, &nats, 3..=3).await;
    let outcome = running.end().await;
    assert_eq!((outcome.code(), lines(&outcome.stdout, "handles 3 ")), (Some(0), 1), "{outcome:?}");
    assert!(outcome.stdout.ends_with("1 event handled, 0 recognised\n"), "{outcome:?}");
}

#[tokio::test]
async fn only_a_walk_is_gone_on_with() {
    let (db, nats) = copied(1).await;
    let sentence = walk(&db, &nats).args(["--resume", "mail"]).refused(2).await;
    assert_eq!(sentence, "--resume takes the name of an earlier walk: walk-...");
    let sentence = walk(&db, &nats).args(["--resume", "walk-away"]).refused(4).await;
    assert_eq!(
        sentence,
        "there is no stream consumer of this name. One is there once it has reached its broker"
    );
    assert_eq!((recorded(&db).await, at_broker(&nats).await), ((0, 0), 0));
}
