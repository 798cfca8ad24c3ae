//! Processes that are killed, and what the next one publishes.

use std::collections::BTreeSet;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::stream::DiscardPolicy;
use futures_util::StreamExt;
use seqline::Clock;
use seqline_nats::message::Outgoing;
use seqline_nats::relay::{Relay, RelayConfig};
use seqline_testkit::nats::NatsServer;
use seqline_testkit::{Role, eventually};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{Connection, PgConnection};
use tokio_util::sync::CancellationToken;

use super::support::{LONG, Stage, broker, config};

/// Set in the process that is going to be killed: the database, and the broker.
const VICTIM: &str = "SEQLINE_TEST_RELAY_VICTIM";
const VICTIM_BROKER: &str = "SEQLINE_TEST_RELAY_VICTIM_BROKER";

/// A relay that keeps its lease for as long as any test takes, so that it writes to its row when it has published everything and not before.
fn settings() -> RelayConfig {
    config(|config| {
        config.lease = Duration::from_secs(3600);
        config.save_interval = Duration::from_secs(3600);
    })
}

/// Not a test by itself: a process with a relay.
#[tokio::test]
async fn relaying_victim() {
    let Ok(url) = std::env::var(VICTIM) else { return };
    let options: PgConnectOptions = url.parse().unwrap();
    let pool = PgPoolOptions::new().max_connections(5).connect_lazy_with(options);
    let broker = broker(&std::env::var(VICTIM_BROKER).unwrap());
    Relay::new(pool, broker, settings(), Clock::system()).run(CancellationToken::new()).await;
}

fn victim(stage: &Stage) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "relay::deaths::relaying_victim"])
        .env(VICTIM, stage.db.url(Role::App))
        .env(VICTIM_BROKER, &stage.url)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn kills(mut victim: Child) {
    // SIGKILL.
    victim.kill().unwrap();
    victim.wait().unwrap();
}

/// Sessions of the database that wait for a lock.
async fn waiting(admin: &mut PgConnection) -> Vec<i32> {
    sqlx::query_scalar(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
    )
    .fetch_all(admin)
    .await
    .unwrap()
}

/// Its row is locked when it wants to save, and that is when it dies. Twice: the second one has found what the first one had published.
#[tokio::test]
async fn a_process_that_is_killed_between_publishing_and_saving_leaves_each_event_once_in_order() {
    let server = NatsServer::start().await;
    let stage = Stage::new(&server).await;
    stage.stream_with(|config| config.duplicate_window = Duration::from_millis(100)).await;
    for _ in 0..2 {
        let victim = victim(&stage);
        stage.append(1).await;
        stage.until_published().await;
        let saved = stage.position().await;
        let mut locking = stage.db.connect(Role::Admin).await;
        let mut lock = locking.begin().await.unwrap();
        sqlx::query("SELECT FROM seqline.relay_cursors FOR UPDATE").execute(&mut *lock).await.unwrap();
        stage.append(400).await;
        let head = stage.head().await.unsigned_abs();
        let mut admin = stage.db.connect(Role::Admin).await;
        eventually(LONG, "all is published", async || stage.info().await.state.last_sequence == head).await;
        eventually(LONG, "it wants to save", async || !waiting(&mut admin).await.is_empty()).await;
        kills(victim);
        // A statement that waits does not notice that nobody waits for it.
        for pid in waiting(&mut admin).await {
            sqlx::query("SELECT pg_terminate_backend($1)").bind(pid).execute(&mut admin).await.unwrap();
        }
        eventually(LONG, "its session is gone", async || waiting(&mut admin).await.is_empty()).await;
        lock.rollback().await.unwrap();
        assert_eq!(stage.position().await, saved, "it was saved");
        stage.until_forgotten().await;
        stage.end_lease().await;
    }
    let running = stage.run();
    stage.append(10).await;
    stage.until_published().await;
    assert_eq!(running.tally.published(), 10, "what was there was published again");
    running.stop().await;
    stage.assert_once_in_order().await;
    assert!(stage.incidents().await.is_empty());
}

/// All of them, in an order.
fn headers(headers: &HeaderMap) -> Vec<(String, String)> {
    let mut named: Vec<(String, String)> = headers
        .iter()
        .flat_map(|(name, values)| values.iter().map(|value| (name.to_string(), value.as_str().to_owned())))
        .collect();
    named.sort();
    named
}

/// The broker recognises what it has by the id, and readers may compare bytes.
#[tokio::test]
async fn an_event_is_the_same_message_each_time() {
    let server = NatsServer::start().await;
    let stage = Stage::new(&server).await;
    stage.append(3).await;
    let epoch = stage.epoch().await;
    let mut made = Vec::new();
    for _ in 0..2 {
        let mut connection = stage.db.connect(Role::App).await;
        let page = seqline::read::events_after(&mut connection, 0, 3).await.unwrap();
        let messages = page.iter().map(|event| Outgoing::new(event, epoch, 0).unwrap());
        made.push(messages.map(|it| (it.subject, headers(&it.headers), it.payload)).collect::<Vec<_>>());
    }
    assert_eq!(made[0], made[1]);
    for ((_, headers, _), event) in made[0].iter().zip(stage.log().await) {
        assert_eq!(headers[0], ("Nats-Msg-Id".to_owned(), format!("{epoch}:{}", event.1)));
    }
}

/// What the first process sends is not stored, because there is no room; whoever listens hears it nevertheless.
#[tokio::test]
async fn what_was_sent_and_not_stored_before_a_crash_is_sent_again_byte_for_byte() {
    let server = NatsServer::start().await;
    let stage = Stage::new(&server).await;
    let first = victim(&stage);
    stage.append(1).await;
    stage.until_published().await;
    let room = |most| {
        stage.stream_with(move |config| (config.discard, config.max_messages) = (DiscardPolicy::New, most))
    };
    room(1).await;
    let client = broker(&stage.url).client().await.unwrap();
    let mut heard = client.subscribe("events.>").await.unwrap();
    client.flush().await.unwrap();
    stage.append(3).await;
    let mut sent = BTreeSet::new();
    while sent.len() < 3 {
        let message = Clock::system().timeout(LONG, heard.next()).await.flatten().expect("the relay sends");
        sent.insert((message.subject.to_string(), headers(&message.headers.unwrap()), message.payload));
    }
    kills(first);
    assert_eq!(stage.info().await.state.last_sequence, 1, "it was stored");
    stage.end_lease().await;
    room(-1).await;
    let second = victim(&stage);
    stage.until_published().await;
    kills(second);
    stage.assert_once_in_order().await;
    let stored = stage.messages().await.into_iter().skip(1);
    let stored = stored.map(|it| (it.subject, headers(&it.headers), it.payload));
    assert_eq!(stored.collect::<BTreeSet<_>>(), sent);
}
