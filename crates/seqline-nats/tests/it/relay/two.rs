//! Two relays at once, although there should be one.

use std::net::SocketAddr;
use std::time::Duration;

use seqline_nats::relay::RelayConfig;
use seqline_testkit::nats::NatsServer;
use seqline_testkit::{FaultProxy, eventually};

use super::support::{LONG, Load, Running, Stage};

/// Of one that looks for its turn every eight seconds.
const LEASE: Duration = Duration::from_secs(32);

/// The lease is taken away all the time, so that each takes over from the other while that one publishes.
#[tokio::test]
async fn two_that_take_the_lease_from_each_other_do_not_interleave() {
    let server = NatsServer::start().await;
    let proxy = FaultProxy::start(server.addr()).await.unwrap();
    let stage = Stage::at(&format!("nats://{}", proxy.addr())).await;
    stage.stream_with(|config| config.duplicate_window = Duration::from_millis(100)).await;
    let load = Load::start(&stage.pool, 60, Duration::from_millis(4));
    let lease = |config: &mut RelayConfig| config.lease = Duration::from_millis(200);
    let (one, other) = (stage.run_with(lease), stage.run_with(lease));
    proxy.delay(Duration::from_millis(3));
    let statement = "UPDATE seqline.relay_cursors SET leased_until = now() - interval '1 second' WHERE holder IS NOT NULL";
    for _ in 0..25 {
        let both = || one.tally.published() + other.tally.published();
        let (published, generation) = (both(), generation(&stage).await);
        eventually(LONG, "somebody publishes", async || both() > published + 100).await;
        eventually(LONG, "the other takes over", async || {
            stage.sql(statement).await;
            self::generation(&stage).await > generation
        })
        .await;
    }
    assert!(one.tally.published() > 0 && other.tally.published() > 0, "both were at it");
    proxy.heal();
    load.stop().await;
    stage.until_published().await;
    one.stop().await;
    other.stop().await;
    stage.assert_once_in_order().await;
}

/// Two of different names have leases that do not know each other, and nothing but the stream keeps them apart. Now one is silent and now the other,
/// so long that the brokers have forgotten the ids of what was published meanwhile.
pub(super) async fn silent_by_turns(stage: &Stage, broker: SocketAddr, atomic_batches: Option<u32>) {
    stage
        .stream_with(|config| {
            config.duplicate_window = Duration::from_millis(100);
            config.allow_atomic_publish = atomic_batches.is_some();
        })
        .await;
    let (way, other_way) =
        (FaultProxy::start(broker).await.unwrap(), FaultProxy::start(broker).await.unwrap());
    let load = Load::start(&stage.pool, 40, Duration::from_millis(6));
    let one = stage.run_through(&way, |config| config.atomic_batches = atomic_batches);
    let other = stage.run_through(&other_way, |config| {
        "second".clone_into(&mut config.name);
        config.atomic_batches = atomic_batches;
    });
    for _ in 0..10 {
        for (silent, heard, relay) in [(&way, &other_way, &other), (&other_way, &way, &one)] {
            // What this one sends from now on arrives when the other has taken the places that it is for.
            silent.black_hole();
            heard.heal();
            let published = relay.tally.published();
            eventually(LONG, "the other publishes", async || relay.tally.published() > published + 400).await;
            stage.until_forgotten().await;
        }
    }
    way.heal();
    other_way.heal();
    let came_late = failures(&one).min(failures(&other));
    load.stop().await;
    stage.until_published().await;
    one.stop().await;
    other.stop().await;
    stage.assert_once_in_order().await;
    // Not each time: of one whose answers were under way when it fell silent, those alone can be enough when it is heard again.
    assert!(came_late >= 3, "{came_late} times, of ten that each was silent");
    assert!(stage.incidents().await.is_empty(), "{:?}", stage.incidents().await);
}

#[tokio::test]
async fn two_that_never_notice_each_other_do_not_interleave() {
    let server = NatsServer::start().await;
    silent_by_turns(&Stage::new(&server).await, server.addr(), None).await;
}

#[tokio::test]
async fn one_that_stands_by_takes_over_when_the_lease_runs_out_and_at_once_when_it_is_given_back() {
    let server = NatsServer::start().await;
    let stage = Stage::new(&server).await;
    let load = Load::start(&stage.pool, 10, Duration::from_millis(5));
    let first = stage.run();
    eventually(LONG, "the first is active", async || first.tally.active()).await;
    let second = stage.run_with(|config| config.lease = LEASE);
    first.crash().await;
    eventually(LONG, "the second is active", async || second.tally.active()).await;
    let third = stage.run();
    eventually(LONG, "the third stands by", async || third.tally.stands_by()).await;
    assert!(!second.tally.stands_by());
    second.stop().await;
    // It was prolonged when a third of it was over at the latest.
    eventually(LEASE / 2, "the third publishes", async || third.tally.published() > 0).await;
    eventually(LONG, "the third has it", async || !third.tally.stands_by()).await;
    load.stop().await;
    stage.until_published().await;
    third.stop().await;
    stage.assert_once_in_order().await;
}

async fn generation(stage: &Stage) -> i64 {
    let generation = sqlx::query_scalar("SELECT generation FROM seqline.relay_cursors");
    generation.fetch_optional(&stage.pool).await.unwrap().unwrap_or(0)
}

fn failures(relay: &Running) -> u64 {
    relay.tally.failures().iter().map(|(_, count)| count).sum()
}
