//! Somebody else publishes into the stream.

use std::time::Duration;

use seqline::Clock;
use seqline_testkit::eventually;
use seqline_testkit::nats::NatsServer;
use tokio_util::sync::CancellationToken;

use super::support::{FOREIGN, LONG, Load, Stage};

#[tokio::test]
async fn what_somebody_else_publishes_loses_nothing_and_is_told() {
    let server = NatsServer::start().await;
    let stage = Stage::new(&server).await;
    stage.stream_with(|_| {}).await;
    let load = Load::start(&stage.pool, 100, Duration::from_millis(20));
    let running = stage.run();
    eventually(LONG, "it has begun", async || running.tally.published() > 0).await;
    let (context, stop) = (stage.context().await, CancellationToken::new());
    let stopped = stop.clone();
    let foreign = tokio::spawn(async move {
        let (clock, mut count) = (Clock::system(), 0);
        while !stopped.is_cancelled() {
            let sent = context.publish(FOREIGN, "foreign".into()).await.unwrap();
            sent.await.unwrap();
            count += 1;
            clock.sleep(Duration::from_millis(fastrand::u64(0..12))).await;
        }
        count
    });
    eventually(LONG * 3, "much is published", async || running.tally.published() > 8000).await;
    stop.cancel();
    let count = foreign.await.unwrap();
    load.stop().await;
    // What comes last is met by the next event.
    stage.until_published().await;
    stage.append(1).await;
    stage.until_published().await;
    running.stop().await;
    stage.assert_once().await;
    let incidents = stage.incidents().await;
    assert_eq!(incidents.get("foreign_messages"), Some(&count), "{incidents:?}");
    assert!(incidents.contains_key("hole_filled_late"), "{incidents:?}");
}

/// One who publishes without a pause leaves little room, and still it goes on.
#[tokio::test]
async fn somebody_who_publishes_without_a_pause_does_not_stop_it() {
    let server = NatsServer::start().await;
    let stage = Stage::new(&server).await;
    stage.stream_with(|_| {}).await;
    stage.append(300).await;
    let (context, stop) = (stage.context().await, CancellationToken::new());
    let stopped = stop.clone();
    let foreign = tokio::spawn(async move {
        while !stopped.is_cancelled() {
            let sent = context.publish(FOREIGN, "foreign".into()).await.unwrap();
            sent.await.unwrap();
        }
    });
    let running = stage.run();
    stage.until_published().await;
    stop.cancel();
    foreign.await.unwrap();
    running.stop().await;
    stage.assert_once().await;
}
