//! Three brokers that store together.

use std::net::SocketAddr;
use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::Context;
use seqline::Clock;
use seqline_nats::message::{EPOCH, EVENT_ID, POSITION};
use seqline_testkit::nats::NatsCluster;
use seqline_testkit::{FaultProxy, eventually};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::support::{FOREIGN, LONG, Load, Running, Stage};
use super::two::silent_by_turns;

/// More patience than with one broker: a cluster that chooses who leads is silent for a few seconds.
const ELECTION: Duration = Duration::from_secs(5);

/// How long a relay may store nothing before it counts as one that is not publishing just now.
const IDLE: Duration = Duration::from_secs(1);

async fn until_more(running: &Running, more: u64) {
    let before = running.tally.published();
    eventually(LONG, "it publishes", async || running.tally.published() >= before + more).await;
}

/// The name of the node that leads the stream, once there is one.
async fn leader(stage: &Stage) -> String {
    let mut leader = None;
    eventually(LONG, "somebody leads", async || {
        leader = stage.info().await.cluster.and_then(|cluster| cluster.leader);
        leader.is_some()
    })
    .await;
    leader.expect("somebody leads")
}

/// The address of a node that does not lead the stream.
async fn follower(cluster: &NatsCluster, stage: &Stage) -> SocketAddr {
    let leader = leader(stage).await;
    cluster.nodes().iter().find(|node| node.name() != leader).expect("somebody follows").addr()
}

/// Holds answers back until messages are stored of which the relay cannot have heard, so that a cut after it loses their answers. How many
/// messages that is at least; `None` where the relay stored nothing meanwhile, because it was finding out where the stream is.
async fn hold_answers(stage: &Stage, proxy: &FaultProxy) -> Option<u64> {
    proxy.hold_answers();
    // Not over the proxy: what is stored by now may be known, and what comes behind it is not.
    let known = stage.info().await.state.last_sequence;
    let mut lost = 0;
    let storing = eventually(LONG, "it stores", async || {
        lost = stage.info().await.state.last_sequence.saturating_sub(known);
        lost > 0
    });
    Clock::system().timeout(IDLE, storing).await;
    (lost > 0).then_some(lost)
}

#[tokio::test]
async fn a_leader_that_is_killed_again_and_again_leaves_each_event_once_in_order() {
    let mut cluster = NatsCluster::start(3).await;
    let stage = Stage::on(&cluster).await;
    let load = Load::start(&stage.pool, 50, Duration::from_millis(5));
    let running = stage.run_with(|config| config.ack_timeout = ELECTION);
    for _ in 0..4 {
        until_more(&running, 400).await;
        let leader = leader(&stage).await;
        cluster.named(&leader).expect("a node").kill().await;
        until_more(&running, 100).await;
        cluster.named(&leader).expect("a node").restart().await;
        cluster.until_ready().await;
    }
    load.stop().await;
    stage.until_published().await;
    running.stop().await;
    stage.assert_once_in_order().await;
    assert_eq!(stage.incidents().await.keys().collect::<Vec<_>>(), Vec::<&String>::new());
}

/// Each cut loses acknowledgements for certain, and the brokers have forgotten the ids by the time that the events could come again.
#[tokio::test]
async fn connections_that_are_cut_again_and_again_leave_each_event_once_in_order() {
    let cluster = NatsCluster::start(3).await;
    let stage = Stage::on(&cluster).await;
    stage.stream_with(|config| config.duplicate_window = Duration::from_millis(100)).await;
    // What the brokers say of where the others are would lead around the proxy.
    let proxy = FaultProxy::start(cluster.node(0).addr()).await.unwrap();
    let load = Load::start(&stage.pool, 50, Duration::from_millis(10));
    let running = stage.run_through(&proxy, |_| {});
    let (mut cuts, mut lost) = (0, 0);
    let cutting = async {
        while cuts < 6 {
            until_more(&running, 1 + (cuts % 3) * 60).await;
            if let Some(unheard) = hold_answers(&stage, &proxy).await {
                proxy.cut();
                cuts += 1;
                lost += unheard;
            }
            proxy.heal();
        }
    };
    Clock::system().timeout(LONG * 2, Box::pin(cutting)).await.expect("it is cut while it publishes");
    load.stop().await;
    stage.until_published().await;
    let (published, failures) = (running.tally.published(), running.tally.failures());
    running.stop().await;
    stage.assert_once_in_order().await;
    assert!(stage.incidents().await.is_empty());
    let stored = stage.info().await.state.last_sequence;
    assert!(published + lost <= stored, "of {stored} {published} were acknowledged, {lost} cannot have been");
    let noticed: u64 = failures.iter().map(|(_, count)| count).sum();
    assert!(noticed >= cuts, "{cuts} cuts, and {failures:?}");
}

#[tokio::test]
async fn two_relays_that_never_notice_each_other_leave_each_event_once_in_order() {
    let cluster = NatsCluster::start(3).await;
    silent_by_turns(&Stage::on(&cluster).await, cluster.node(0).addr(), None).await;
}

#[tokio::test]
async fn two_relays_that_never_notice_each_other_leave_each_event_once_in_order_in_batches() {
    let cluster = NatsCluster::start(3).await;
    // One who comes too late for a place has come too late for a whole batch.
    silent_by_turns(&Stage::on(&cluster).await, cluster.node(0).addr(), Some(50)).await;
}

/// Says of itself that it is an event of the log, of which only the id is wrong, and the history.
async fn publish_lookalike(context: &Context, position: u64) {
    let mut headers = HeaderMap::new();
    headers.insert(EPOCH, Uuid::new_v4().to_string());
    headers.insert(POSITION, position.to_string());
    headers.insert(EVENT_ID, Uuid::new_v4().to_string());
    let sent = context.publish_with_headers(FOREIGN, headers, "foreign".into()).await.unwrap();
    sent.await.unwrap();
}

/// Some of it looks like events that are about to be published. It is not taken for them.
#[tokio::test]
async fn what_somebody_else_publishes_loses_nothing_and_is_told() {
    let cluster = NatsCluster::start(3).await;
    let stage = Stage::on(&cluster).await;
    stage.stream_with(|_| {}).await;
    let load = Load::start(&stage.pool, 50, Duration::from_millis(40));
    let running = stage.run();
    until_more(&running, 1).await;
    let (context, stop, tally) = (stage.context().await, CancellationToken::new(), running.tally.clone());
    let stopped = stop.clone();
    let foreign = tokio::spawn(async move {
        let (clock, mut count) = (Clock::system(), 0);
        while !stopped.is_cancelled() {
            context.publish(FOREIGN, "foreign".into()).await.unwrap().await.unwrap();
            publish_lookalike(&context, tally.published() + fastrand::u64(1..50)).await;
            count += 1;
            clock.sleep(Duration::from_millis(fastrand::u64(0..60))).await;
        }
        count
    });
    until_more(&running, 1000).await;
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
    let told = ["foreign_messages", "orphaned_messages"].map(|kind| incidents.get(kind).copied());
    assert_eq!(told, [Some(count), Some(count)], "{incidents:?}");
    // What is not in its place is told too, and there is no other reason for it.
    let known = ["foreign_messages", "orphaned_messages", "hole_filled_late"];
    assert!(incidents.keys().all(|kind| known.contains(&kind.as_str())), "{incidents:?}");
}

/// All of a batch is stored or nothing, also when its answer is lost and who leads the stream is killed right then.
#[tokio::test]
async fn batches_leave_each_event_once_in_order_when_their_answers_and_a_leader_are_lost() {
    let mut cluster = NatsCluster::start(3).await;
    let stage = Stage::on(&cluster).await;
    stage
        .stream_with(|config| {
            config.duplicate_window = Duration::from_millis(100);
            config.allow_atomic_publish = true;
        })
        .await;
    let proxy = FaultProxy::start(follower(&cluster, &stage).await).await.unwrap();
    let load = Load::start(&stage.pool, 50, Duration::from_millis(20));
    let running = stage.run_through(&proxy, |config| {
        config.atomic_batches = Some(100);
        config.ack_timeout = ELECTION;
    });
    until_more(&running, 300).await;
    stage.publish_foreign().await;
    let mut held = false;
    let holding = async {
        while !held {
            until_more(&running, 300).await;
            proxy.hold_answers();
            let storing = eventually(LONG, "a batch is stored", async || {
                // What had got through by then is counted when the brokers have answered.
                stage.info().await;
                stage.info().await.state.last_sequence > running.tally.published() + 1
            });
            held = Clock::system().timeout(IDLE, storing).await.is_some();
            if !held {
                proxy.heal();
            }
        }
    };
    Clock::system().timeout(LONG, Box::pin(holding)).await.expect("the answer to a batch is held");
    let leader = leader(&stage).await;
    // Another one may lead by now than at the beginning.
    proxy.lead_to(follower(&cluster, &stage).await);
    cluster.named(&leader).expect("a node").kill().await;
    proxy.cut();
    proxy.heal();
    until_more(&running, 300).await;
    cluster.named(&leader).expect("a node").restart().await;
    cluster.until_ready().await;
    until_more(&running, 300).await;
    load.stop().await;
    stage.until_published().await;
    let published = running.tally.published();
    running.stop().await;
    stage.assert_once_in_order().await;
    let incidents = stage.incidents().await;
    assert_eq!(incidents.get("foreign_messages"), Some(&1), "{incidents:?}");
    assert_eq!(incidents.len(), 1, "{incidents:?}");
    let messages = stage.messages().await;
    let of_batches = messages.iter().filter(|message| message.headers.get("Nats-Batch-Id").is_some()).count();
    assert!(2 * of_batches > messages.len(), "{of_batches} of {} came in batches", messages.len());
    assert!(published < stage.head().await.unsigned_abs(), "no acknowledgement was lost");
}
