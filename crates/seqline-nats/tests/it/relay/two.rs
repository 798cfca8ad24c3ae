//! Two relays at once, although there should be one.

use std::time::Duration;

use seqline_testkit::nats::NatsServer;
use seqline_testkit::{FaultProxy, eventually};

use super::support::{LONG, Load, Stage};

/// The lease is taken away every few milliseconds, so both publish most of the time.
#[tokio::test]
async fn two_that_both_believe_to_be_the_one_do_not_interleave() {
    let server = NatsServer::start().await;
    let proxy = FaultProxy::start(server.addr()).await.unwrap();
    let stage = Stage::at(&format!("nats://{}", proxy.addr())).await;
    stage.stream_with(|config| config.duplicate_window = Duration::from_millis(100)).await;
    let load = Load::start(&stage.pool, 60, Duration::from_millis(2));
    // Neither notices soon that the other has taken over: nothing but the stream keeps them apart.
    let late = Duration::from_millis(400);
    let one = stage.run_with(|config| (config.save_interval, config.lease) = (late, late * 8));
    let other = stage.run_with(|config| (config.save_interval, config.lease) = (late, late * 8));
    proxy.delay(Duration::from_millis(3));
    for _ in 0..60 {
        let before = one.tally.published() + other.tally.published();
        let both = || one.tally.published() + other.tally.published();
        eventually(LONG, "they publish", async || both() > before + 50).await;
        stage
            .sql("UPDATE seqline.relay_cursors SET leased_until = now() - interval '1 second' WHERE holder IS NOT NULL")
            .await;
    }
    proxy.heal();
    load.stop().await;
    assert!(one.tally.published() > 0 && other.tally.published() > 0, "both were at it");
    stage.until_published().await;
    one.stop().await;
    other.stop().await;
    stage.assert_once_in_order().await;
}

#[tokio::test]
async fn one_that_stands_by_takes_over_when_the_lease_runs_out_and_at_once_when_it_is_given_back() {
    let server = NatsServer::start().await;
    let stage = Stage::new(&server).await;
    let load = Load::start(&stage.pool, 10, Duration::from_millis(5));
    let first = stage.run();
    eventually(LONG, "the first is active", async || first.tally.active()).await;
    let second = stage.run();
    first.crash().await;
    eventually(LONG, "the second is active", async || second.tally.active()).await;
    let third = stage.run_with(|config| config.lease = Duration::from_secs(60));
    second.stop().await;
    let before = third.tally.published();
    eventually(Duration::from_secs(30), "the third publishes", async || third.tally.published() > before)
        .await;
    load.stop().await;
    stage.until_published().await;
    third.stop().await;
    stage.assert_once_in_order().await;
}
