//! What a consumer finds at the broker and leaves as it is.

use std::time::Duration;

use seqline_nats::broker::{Broker, BrokerConfig};
use seqline_nats::consumer::{Runtime, StreamConsumer};
use seqline_nats::stream::{StreamSettings, ensure_stream};
use seqline_nats::{Clock, consumer::PassError};
use seqline_testkit::TestDb;
use seqline_testkit::nats::{NatsOptions, NatsServer};

use super::support::*;

/// What the guide says that each needs.
const RIGHTS: &str = include_str!("../../../../../docs/guide/jetstream.md");

/// A broker with the accounts that the guide shows, and its URL for one of them.
async fn with_rights() -> (NatsServer, impl Fn(&NatsServer, &str) -> String) {
    let (_, rest) = RIGHTS.split_once("```conf\n").expect("the guide shows the rights");
    let options = NatsOptions::default().lines(rest.split_once("```").expect("and ends").0);
    let url =
        |server: &NatsServer, user: &str| server.url().replace("nats://", &format!("nats://{user}:secret@"));
    (NatsServer::with(options).await, url)
}

fn large() -> StreamSettings {
    let mut settings = StreamSettings::default();
    settings.max_bytes = 3 << 30;
    settings.max_age = Duration::from_secs(30 * 24 * 60 * 60);
    settings
}

#[tokio::test]
async fn the_limits_of_the_stream_are_those_of_the_relay() {
    let site = Site::new().await;
    let (wanted, _) = ensure_stream(&site.broker, &large()).await.unwrap();
    let ids = site.feed(1..=3).await;
    assert_ne!(site.settings, large());
    let running = site.start(PROBE, Probe::plain());
    site.handles(PROBE, &ids).await;
    running.stops().await;
    assert_eq!(site.stream().await.cached_info().config, wanted.config);
}

#[tokio::test]
async fn who_may_not_change_the_stream_consumes_it_whatever_its_limits_are() {
    let ((nats, url), db) = tokio::join!(with_rights(), TestDb::new());
    let relay = Broker::new(BrokerConfig::new(url(&nats, "relay")));
    ensure_stream(&relay, &large()).await.unwrap();
    let mut config = BrokerConfig::new(url(&nats, "consumer"));
    // What is not allowed is not answered.
    config.request_timeout = Duration::from_millis(500);
    let consumer = StreamConsumer::new(PROBE, Probe::plain()).unwrap();
    let settings = StreamSettings::default();
    let runtime =
        Runtime::new(db.app_pool(2), Broker::new(config), settings, consumer, quick(), Clock::system());
    runtime.poll_once().await.unwrap();
}

#[tokio::test]
async fn a_stream_of_another_kind_is_refused() {
    let site = Site::new().await;
    let jetstream = site.broker.jetstream().await.unwrap();
    let mut config = site.stream().await.cached_info().config.clone();
    jetstream.delete_stream(&config.name).await.unwrap();
    config.retention = async_nats::jetstream::stream::RetentionPolicy::WorkQueue;
    jetstream.create_stream(config).await.unwrap();
    let error = site.runtime(PROBE, Probe::plain(), quick()).poll_once().await.unwrap_err();
    assert!(matches!(error, PassError::Stream(_)) && error.to_string().contains("workqueue"), "{error}");
}
