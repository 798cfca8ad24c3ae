//! Atomic batches.

use std::time::Duration;

use seqline_testkit::nats::NatsServer;
use seqline_testkit::{FaultProxy, eventually};

use super::support::{LONG, Load, Stage, cut_again_and_again};
use crate::logged::capture;
use crate::older::older_broker;

#[tokio::test]
async fn batches_bring_each_event_once_in_order() {
    let server = NatsServer::start().await;
    let stage = Stage::new(&server).await;
    stage.append(2345).await;
    let mut relay = stage.relay_with(|config| config.atomic_batches = Some(200));
    assert_eq!(relay.drain_once().await.unwrap().published, 2345);
    stage.append(1).await;
    assert_eq!(relay.drain_once().await.unwrap().published, 1);
    stage.assert_once_in_order().await;
    let messages = stage.messages().await;
    let batched = messages.iter().filter(|message| message.headers.get("Nats-Batch-Id").is_some()).count();
    assert_eq!(batched, 2345);
}

#[tokio::test]
async fn batches_over_a_connection_that_is_cut_bring_each_event_once_in_order() {
    let server = NatsServer::start().await;
    let proxy = FaultProxy::start(server.addr()).await.unwrap();
    let stage = Stage::at(&format!("nats://{}", proxy.addr())).await;
    let load = Load::start(&stage.pool, 50, Duration::from_millis(3));
    let running = stage.run_with(|config| config.atomic_batches = Some(100));
    cut_again_and_again(&running, &proxy, 25).await;
    load.stop().await;
    stage.until_published().await;
    running.stop().await;
    stage.assert_once_in_order().await;
    assert!(stage.incidents().await.is_empty());
}

/// One batch is under way at a time, and all of it is stored or nothing: there is no hole that would have to be filled late.
#[tokio::test]
async fn somebody_else_opens_no_hole_between_batches() {
    let server = NatsServer::start().await;
    let stage = Stage::new(&server).await;
    stage.stream_with(|_| {}).await;
    let load = Load::start(&stage.pool, 50, Duration::from_millis(2));
    let running = stage.run_with(|config| config.atomic_batches = Some(100));
    eventually(LONG, "it has begun", async || running.tally.published() > 0).await;
    for _ in 0..100 {
        let before = running.tally.published();
        stage.publish_foreign().await;
        eventually(LONG, "it publishes", async || running.tally.published() > before).await;
    }
    load.stop().await;
    // What comes last is met by the next event.
    stage.until_published().await;
    stage.append(1).await;
    stage.until_published().await;
    running.stop().await;
    stage.assert_once_in_order().await;
    let incidents = stage.incidents().await;
    assert_eq!(incidents.get("foreign_messages"), Some(&100), "{incidents:?}");
    assert_eq!(incidents.len(), 1, "{incidents:?}");
}

/// The broker refuses a batch of which it has a part: then each event is asked about by itself.
#[tokio::test]
async fn a_batch_with_an_event_that_the_broker_remembers_is_published_singly() {
    let server = NatsServer::start().await;
    let stage = Stage::new(&server).await;
    stage.append(20).await;
    stage.relay().drain_once().await.unwrap();
    stage.set_cursor(17, 17, 17).await;
    stage.delete_message(20).await;
    stage.append(30).await;
    let mut relay = stage.relay_with(|config| config.atomic_batches = Some(10));
    eventually(LONG, "all are there", async || {
        relay.drain_once().await.is_ok_and(|done| done.position == 50)
    })
    .await;
    assert_eq!(stage.positions().await, (1..=50).filter(|position| *position != 20).collect::<Vec<i64>>());
}

#[tokio::test]
async fn a_server_that_is_too_old_for_batches_is_refused_by_name() {
    let Some(server) = older_broker().await else { return };
    let stage = Stage::new(&server).await;
    stage.append(1).await;
    let mut relay = stage.relay_with(|config| config.atomic_batches = Some(100));
    assert_eq!(relay.drain_once().await.unwrap_err().kind(), "atomic_batches_unsupported");
    assert_eq!(relay.tally().stalled_by(), Some("atomic_batches_unsupported"));
}

/// A batch is larger than half a page, or than a page, or is cut by its bytes: it is read until there is enough for the next one.
#[tokio::test]
async fn batches_of_any_size_are_filled_from_pages_of_any_size() {
    let uncut = 8 * 1024 * 1024;
    for (count, window_bytes) in [(400, uncut), (1000, uncut), (500, 100_000)] {
        let server = NatsServer::start().await;
        let stage = Stage::new(&server).await;
        stage.append(3000).await;
        let mut relay = stage.relay_with(|config| {
            config.atomic_batches = Some(count);
            config.window_bytes = window_bytes;
        });
        let done = seqline::Clock::system().timeout(LONG, relay.drain_once()).await;
        let done =
            done.unwrap_or_else(|| panic!("it hangs with batches of {count} and {window_bytes} bytes"));
        assert_eq!(done.unwrap().published, 3000);
        stage.assert_once_in_order().await;
    }
}

/// An event that is larger than a batch may be goes alone, and the broker says of it what it says of any single one.
#[tokio::test]
async fn a_batch_of_one_that_the_broker_remembers_counts_as_there() {
    let server = NatsServer::start().await;
    let stage = Stage::new(&server).await;
    stage.append(20).await;
    stage.relay().drain_once().await.unwrap();
    stage.set_cursor(17, 17, 17).await;
    stage.delete_message(20).await;
    stage.append(10).await;
    let mut relay = stage.relay_with(|config| {
        config.atomic_batches = Some(10);
        config.window_bytes = 1;
    });
    assert_eq!(relay.drain_once().await.unwrap().position, 30);
    assert_eq!(stage.positions().await, (1..=30).filter(|position| *position != 20).collect::<Vec<i64>>());
}

/// What the next pass mends by itself is nothing that somebody has to look at.
#[tokio::test]
async fn a_batch_that_is_refused_for_an_event_in_it_stalls_nothing() {
    let server = NatsServer::start().await;
    let stage = Stage::new(&server).await;
    stage.append(20).await;
    stage.relay().drain_once().await.unwrap();
    stage.set_cursor(17, 17, 17).await;
    stage.delete_message(20).await;
    stage.append(30).await;
    let (lines, _guard) = capture();
    let mut relay = stage.relay_with(|config| config.atomic_batches = Some(10));
    assert_eq!(relay.drain_once().await.unwrap_err().kind(), "batch_refused");
    assert_eq!((relay.tally().stalled_by(), stage.stalled_by().await), (None, None));
    relay.drain_once().await.unwrap();
    assert_eq!(lines.count("stands still"), 0, "{}", lines.text());
}
