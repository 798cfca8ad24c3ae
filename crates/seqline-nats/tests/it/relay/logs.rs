//! What the log of the process says: a line when it stands still, one when it goes on, and nothing of what events say.

use seqline_testkit::eventually;
use seqline_testkit::nats::NatsServer;

use super::support::{LONG, Stage};
use crate::logged::capture;

#[tokio::test]
async fn an_outage_is_one_line_at_its_beginning_and_one_at_its_end() {
    let mut server = NatsServer::start().await;
    let stage = Stage::new(&server).await;
    stage.append(10).await;
    let mut relay = stage.relay();
    relay.drain_once().await.unwrap();
    let (lines, _guard) = capture();
    server.stop().await;
    stage.append(10).await;
    for _ in 0..6 {
        relay.drain_once().await.unwrap_err();
    }
    assert_eq!(lines.count("the relay stands still, trying again"), 1, "{}", lines.text());
    server.restart().await;
    eventually(LONG, "it is back", async || relay.drain_once().await.is_ok()).await;
    relay.drain_once().await.unwrap();
    assert_eq!(lines.count("the relay goes on"), 1, "{}", lines.text());
    let said = lines.text();
    let ours: Vec<&str> = said.lines().filter(|line| line.contains("seqline_nats::relay")).collect();
    assert!(ours.iter().any(|line| line.contains("broker_unreachable")), "{ours:?}");
    assert!(ours.iter().all(|line| !line.contains("nats://") && !line.contains("shop")), "{ours:?}");
}

#[tokio::test]
async fn what_is_met_again_and_again_is_said_once_and_counted_each_time() {
    let server = NatsServer::start().await;
    let stage = Stage::new(&server).await;
    stage.append(1).await;
    let mut relay = stage.relay();
    relay.drain_once().await.unwrap();
    let (lines, _guard) = capture();
    for _ in 0..5 {
        stage.publish_foreign().await;
        stage.append(1).await;
        // The first pass meets it.
        let _ = relay.drain_once().await;
        relay.drain_once().await.unwrap();
    }
    assert_eq!(lines.count("the relay met something that should not be"), 1, "{}", lines.text());
    assert_eq!(stage.incidents().await.get("foreign_messages"), Some(&5));
    stage.assert_once_in_order().await;
}
