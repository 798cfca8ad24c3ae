//! Broken connections, brokers and databases.

use std::time::Duration;

use seqline::Clock;
use seqline_nats::relay::{Drained, Relay};
use seqline_testkit::nats::NatsServer;
use seqline_testkit::{FaultProxy, Role, eventually};
use sqlx::postgres::PgPoolOptions;

use super::support::{LONG, Load, Running, Stage, broker, config, cut_again_and_again, run};
use crate::older::older_broker;

fn failures(running: &Running) -> u64 {
    running.tally.failures().iter().map(|(_, count)| count).sum()
}

/// Cuts the connection again and again while events come in, with little and with much under way.
async fn cut_under_load(stage: &Stage, proxy: &FaultProxy, cuts: u64) {
    let load = Load::start(&stage.pool, 50, Duration::from_millis(3));
    let running = stage.run();
    cut_again_and_again(&running, proxy, cuts).await;
    load.stop().await;
    stage.until_published().await;
    assert!(failures(&running) > 0, "no message was under way when the connection ended");
    running.stop().await;
}

#[tokio::test]
async fn a_connection_that_is_cut_again_and_again_leaves_each_event_once_in_order() {
    let server = NatsServer::start().await;
    let proxy = FaultProxy::start(server.addr()).await.unwrap();
    let stage = Stage::at(&format!("nats://{}", proxy.addr())).await;
    cut_under_load(&stage, &proxy, 40).await;
    stage.assert_once_in_order().await;
    assert!(stage.incidents().await.is_empty());
}

/// With answers that come late, much is under way when the connection ends, and a backlog makes it more.
#[tokio::test]
async fn answers_that_are_lost_with_a_full_window_are_found_again() {
    let server = NatsServer::start().await;
    let proxy = FaultProxy::start(server.addr()).await.unwrap();
    let stage = Stage::at(&format!("nats://{}", proxy.addr())).await;
    stage.stream_with(|config| config.duplicate_window = Duration::from_millis(100)).await;
    // More than two windows for each cut, so that it is never through before the last.
    stage.append(20_000).await;
    proxy.delay(Duration::from_millis(30));
    let running = stage.run();
    for _ in 0..8 {
        let before = running.tally.published();
        eventually(LONG, "it publishes", async || running.tally.published() > before).await;
        proxy.cut();
    }
    proxy.heal();
    stage.until_published().await;
    let acknowledged = running.tally.published();
    running.stop().await;
    stage.assert_once_in_order().await;
    assert!(acknowledged < stage.info().await.state.last_sequence, "no acknowledgement was lost");
}

#[tokio::test]
async fn a_broker_that_is_silent_is_given_up_and_found_again() {
    let server = NatsServer::start().await;
    let proxy = FaultProxy::start(server.addr()).await.unwrap();
    let stage = Stage::at(&format!("nats://{}", proxy.addr())).await;
    let load = Load::start(&stage.pool, 20, Duration::from_millis(2));
    let running = stage.run();
    eventually(LONG, "it publishes", async || running.tally.published() > 50).await;
    proxy.black_hole();
    eventually(LONG, "it says so", async || running.tally.stalled_by() == Some("broker_unreachable")).await;
    proxy.heal();
    eventually(LONG, "it goes on", async || running.tally.stalled_by().is_none()).await;
    load.stop().await;
    stage.until_published().await;
    assert_eq!(stage.stalled_by().await, None);
    running.stop().await;
    stage.assert_once_in_order().await;
}

/// The pass fails by name, nothing is marked, the backlog is kept, and is drained without anybody's help.
#[tokio::test]
async fn a_broker_that_is_away_fails_the_pass_and_the_backlog_drains_when_it_is_back() {
    let mut server = NatsServer::start().await;
    let stage = Stage::new(&server).await;
    stage.append(100).await;
    let mut relay = stage.relay();
    relay.drain_once().await.unwrap();
    server.stop().await;
    stage.append(700).await;
    let error = relay.drain_once().await.unwrap_err();
    assert!(matches!(error.kind(), "broker_unreachable" | "connection_lost"), "{error}");
    let error = relay.drain_once().await.unwrap_err();
    assert_eq!(error.kind(), "broker_unreachable", "{error}");
    assert_eq!(
        (stage.position().await, stage.stalled_by().await.as_deref()),
        (100, Some("broker_unreachable"))
    );
    assert_eq!(relay.tally().stalled_by(), Some("broker_unreachable"));
    server.restart().await;
    let running = run(relay);
    stage.until_published().await;
    eventually(LONG, "it goes on", async || stage.stalled_by().await.is_none()).await;
    eventually(LONG, "nothing is left", async || running.tally.behind() == 0).await;
    running.stop().await;
    stage.assert_once_in_order().await;
}

#[tokio::test]
async fn a_relay_that_never_reached_its_broker_has_no_row_and_begins_when_it_does() {
    let mut server = NatsServer::start().await;
    server.stop().await;
    let stage = Stage::new(&server).await;
    stage.append(10).await;
    let error = stage.relay().drain_once().await.unwrap_err();
    assert_eq!(error.kind(), "broker_unreachable", "{error}");
    assert_eq!(stage.position().await, -1);
    let running = stage.run();
    server.restart().await;
    eventually(LONG, "it has begun", async || stage.position().await >= 10).await;
    running.stop().await;
    stage.assert_once_in_order().await;
}

#[tokio::test]
async fn a_broker_that_is_killed_again_and_again_has_each_event_once_in_order() {
    let mut server = NatsServer::start().await;
    let stage = Stage::new(&server).await;
    let load = Load::start(&stage.pool, 50, Duration::from_millis(3));
    let running = stage.run();
    for _ in 0..6 {
        let before = running.tally.published();
        eventually(LONG, "it publishes", async || running.tally.published() > before + 500).await;
        server.kill().await;
        server.restart().await;
    }
    load.stop().await;
    stage.until_published().await;
    running.stop().await;
    stage.assert_once_in_order().await;
}

#[tokio::test]
async fn a_database_that_is_away_is_waited_for() {
    let server = NatsServer::start().await;
    let stage = Stage::new(&server).await;
    let options = stage.db.options(Role::App);
    let place = format!("127.0.0.1:{}", options.get_port());
    let proxy = FaultProxy::start(place.parse().unwrap()).await.unwrap();
    let through = options.host("127.0.0.1").port(proxy.addr().port());
    let pool = PgPoolOptions::new()
        .acquire_timeout(Duration::from_secs(2))
        .max_connections(4)
        .connect_lazy_with(through);
    let load = Load::start(&stage.pool, 50, Duration::from_millis(3));
    let change = config(|config| config.statement_timeout = Duration::from_secs(2));
    let running: Running = run(Relay::new(pool, broker(&stage.url), change, Clock::system()));
    for round in 0..6 {
        let before = running.tally.published();
        eventually(LONG, "it publishes", async || running.tally.published() > before + 300).await;
        match round % 3 {
            0 => proxy.cut(),
            1 => {
                proxy.refuse();
                proxy.cut();
                let before = failures(&running);
                eventually(LONG, "it fails", async || failures(&running) > before + 2).await;
                proxy.heal();
            }
            _ => {
                proxy.black_hole();
                let failed = running.tally.failures();
                eventually(LONG, "it fails", async || running.tally.failures() != failed).await;
                proxy.heal();
            }
        }
    }
    load.stop().await;
    stage.until_published().await;
    assert!(running.tally.failures().iter().any(|(kind, _)| *kind == "database"));
    running.stop().await;
    stage.assert_once_in_order().await;
    assert!(stage.incidents().await.is_empty());
}

/// A broker older than what is supported, where there is one: a single node of it works.
#[tokio::test]
async fn an_old_broker_works_alone() {
    let Some(server) = older_broker().await else { return };
    let proxy = FaultProxy::start(server.addr()).await.unwrap();
    let stage = Stage::at(&format!("nats://{}", proxy.addr())).await;
    cut_under_load(&stage, &proxy, 15).await;
    stage.assert_once_in_order().await;
    let mut relay = stage.relay();
    assert_eq!(
        relay.drain_once().await.unwrap(),
        Drained { published: 0, position: stage.head().await, behind: 0 }
    );
}
