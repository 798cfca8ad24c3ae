//! Three brokers that store together.

use std::time::Duration;

use seqline_testkit::nats::NatsCluster;
use seqline_testkit::{FaultProxy, eventually};

use super::support::{LONG, Load, Stage};

/// More patience than with one broker: a cluster that chooses who leads is silent for a few seconds.
const ELECTION: Duration = Duration::from_secs(5);

#[tokio::test]
async fn a_leader_that_is_killed_again_and_again_leaves_each_event_once_in_order() {
    let mut cluster = NatsCluster::start(3).await;
    let stage = Stage::at(&cluster.urls().join(",")).await;
    let load = Load::start(&stage.pool, 50, Duration::from_millis(5));
    let running = stage.run_with(|config| {
        config.stream.replicas = 3;
        config.ack_timeout = ELECTION;
    });
    for _ in 0..4 {
        let before = running.tally.published();
        eventually(LONG, "it publishes", async || running.tally.published() > before + 400).await;
        let leader = stage.info().await.cluster.and_then(|cluster| cluster.leader).expect("somebody leads");
        let node = cluster.named(&leader).expect("a node");
        node.kill().await;
        let before = running.tally.published();
        eventually(LONG, "it publishes without it", async || running.tally.published() > before + 100).await;
        cluster.named(&leader).expect("a node").restart().await;
        cluster.until_ready().await;
    }
    load.stop().await;
    stage.until_published().await;
    running.stop().await;
    stage.assert_once_in_order().await;
    assert_eq!(stage.incidents().await.keys().collect::<Vec<_>>(), Vec::<&String>::new());
}

#[tokio::test]
async fn connections_that_are_cut_again_and_again_leave_each_event_once_in_order() {
    let cluster = NatsCluster::start(3).await;
    // What the brokers say of where the others are would lead around the proxy.
    let proxy = FaultProxy::start(cluster.node(0).addr()).await.unwrap();
    let stage = Stage::at(&format!("nats://{}", proxy.addr())).await;
    let load = Load::start(&stage.pool, 50, Duration::from_millis(5));
    let running = stage.run_with(|config| config.stream.replicas = 3);
    eventually(LONG, "it publishes", async || running.tally.published() > 0).await;
    for cut in 0..25 {
        let before = running.tally.published();
        eventually(LONG, "it publishes", async || running.tally.published() > before + (cut % 5) * 60).await;
        proxy.cut();
    }
    load.stop().await;
    stage.until_published().await;
    let failures = running.tally.failures();
    running.stop().await;
    stage.assert_once_in_order().await;
    assert!(stage.incidents().await.is_empty());
    assert!(failures.iter().any(|(_, count)| *count > 0), "no cut was noticed");
}
