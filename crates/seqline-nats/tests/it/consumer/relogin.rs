//! A login that is taken away, and another one that is put into its place.

use nkeys::KeyPair;
use seqline::Clock;
use seqline_nats::broker::{Broker, BrokerConfig, BrokerError};
use seqline_nats::consumer::{PassError, Runtime, StreamConsumer};
use seqline_nats::relay::{Relay, RelayConfig};
use seqline_testkit::eventually;
use seqline_testkit::nats::{NatsOptions, NatsServer};

use super::support::*;

fn of(key: &KeyPair) -> NatsOptions {
    let user = key.public_key();
    NatsOptions::default().lines(&format!("authorization {{ users: [ {{ nkey: {user} }} ] }}"))
}

#[tokio::test]
async fn the_files_of_the_login_are_read_again_when_it_is_refused() {
    let (before, after) = (KeyPair::new_user(), KeyPair::new_user());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("user.nk");
    std::fs::write(&path, before.seed().unwrap()).unwrap();
    let nats = NatsServer::with(of(&before)).await;
    let login = |nats: &NatsServer| {
        let mut config = BrokerConfig::new(nats.url());
        config.nkey_seed_file = Some(path.clone());
        Broker::new(config)
    };
    let mut site = Site { broker: login(&nats), nats, ..Site::new().await };
    let consumer = StreamConsumer::new(PROBE, Probe::plain()).unwrap();
    let (pool, broker) = (site.db.app_pool(2), login(&site.nats));
    let runtime = Runtime::new(pool, broker, site.settings.clone(), consumer, quick(), Clock::system());
    let mut relay =
        Relay::new(site.db.app_pool(2), login(&site.nats), RelayConfig::default(), Clock::system());
    let mut ids = site.append(1..=2).await;
    relay.drain_once().await.unwrap();
    assert_eq!(runtime.poll_once().await.unwrap().handled, 2);

    site.nats.stop().await;
    site.nats.set_options(of(&after));
    site.nats.restart().await;
    eventually(DEADLINE, "it is told why", async || {
        matches!(runtime.poll_once().await, Err(PassError::Broker(BrokerError::LoginRefused { .. })))
    })
    .await;
    let tally = relay.tally();
    let refused = async {
        while tally.stalled_by() != Some("login_refused") {
            let _ = relay.drain_once().await;
        }
    };
    Clock::system().timeout(DEADLINE, refused).await.expect("the relay says so too");

    std::fs::write(&path, after.seed().unwrap()).unwrap();
    ids.extend(site.append(3..=4).await);
    relay.drain_once().await.unwrap();
    let running = Running::start(runtime);
    site.handles(PROBE, &ids).await;
    running.stops().await;
}
