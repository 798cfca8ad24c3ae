//! What a consumer finds at the broker and leaves as it is.

use std::time::Duration;

use seqline_nats::broker::{Broker, BrokerConfig};
use seqline_nats::consumer::{Runtime, StreamConsumer};
use seqline_nats::stream::{StreamSettings, ensure_stream};
use seqline_nats::{Clock, consumer::PassError};
use seqline_testkit::nats::{NatsOptions, NatsServer};
use seqline_testkit::{TestDb, eventually};

use super::support::*;
use crate::logged::{Lines, capture};

/// What the guide says that each needs.
const RIGHTS: &str = include_str!("../../../../../docs/guide/jetstream.md");

/// The accounts as the guide shows them.
fn conf() -> &'static str {
    let (_, rest) = RIGHTS.split_once("```conf\n").expect("the guide shows the rights");
    rest.split_once("```").expect("and ends").0
}

/// A broker with the accounts that the guide shows, and its URL for one of them.
async fn with_rights() -> (NatsServer, impl Fn(&NatsServer, &str) -> String) {
    let options = NatsOptions::default().lines(conf());
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
    config.request_timeout = Duration::from_secs(3);
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

/// The stream comes back with an older copy of its messages, and the consumer at the broker knows more. Newer brokers find that out themselves.
/// With the rights that the guide shows, or without the one to remove a consumer.
async fn ahead_of_its_stream(may_delete: bool) -> Option<(Vec<uuid::Uuid>, Vec<uuid::Uuid>, Lines)> {
    let old = NatsOptions::old()?;
    let conf = conf().replacen("users: [", "users: [\n { user: all, password: secret }", 1);
    let conf = match may_delete {
        true => conf,
        false => conf.replace("\"$JS.API.CONSUMER.DELETE.EVENTS.>\",", ""),
    };
    let server = NatsServer::with(old.lines(&conf)).await;
    let url = |site: &Site, user: &str| site.nats.url().replace("nats://", &format!("nats://{user}:secret@"));
    let mut site = Site { nats: server, ..Site::new().await };
    let all = |site: &Site| Broker::new(BrokerConfig::new(url(site, "all")));
    site.broker = all(&site);
    ensure_stream(&site.broker, &site.settings).await.unwrap();
    let runtime = |site: &Site| {
        let mut config = BrokerConfig::new(url(site, "consumer"));
        config.request_timeout = Duration::from_millis(500);
        let consumer = StreamConsumer::new(PROBE, Probe::plain()).unwrap();
        let settings = site.settings.clone();
        Runtime::new(site.db.app_pool(2), Broker::new(config), settings, consumer, quick(), Clock::system())
    };
    let mut ids = site.feed(1..=4).await;
    let running = Running::start(runtime(&site));
    site.handles(PROBE, &ids).await;
    site.settled_info(PROBE).await;
    running.stops().await;
    site.nats.stop().await;
    let copy = site.nats.copy_store();
    site.nats.restart().await;
    site.broker = all(&site);
    ids.extend(site.feed(5..=9).await);
    let running = Running::start(runtime(&site));
    site.handles(PROBE, &ids).await;
    site.settled_info(PROBE).await;
    running.stops().await;
    site.nats.stop().await;
    let delivered = site.nats.store_dir().join("jetstream/$G/streams/EVENTS/obs");
    let kept = tempfile::tempdir().unwrap();
    std::fs::rename(&delivered, kept.path().join("obs")).unwrap();
    site.nats.restore_store(&copy);
    std::fs::remove_dir_all(&delivered).unwrap();
    std::fs::rename(kept.path().join("obs"), &delivered).unwrap();
    site.nats.restart().await;
    site.broker = all(&site);
    ids.extend(site.feed(10..=11).await);
    let (lines, _guard) = capture();
    let running = Running::start(runtime(&site));
    let clock = Clock::system();
    eventually(DEADLINE, "several comparisons were due, and all that comes is handled", async || {
        let begun_anew = !may_delete || site.effects(PROBE).await.len() >= ids.len();
        clock.elapsed() > Duration::from_secs(3) && begun_anew
    })
    .await;
    running.stops().await;
    Some((site.effects(PROBE).await, ids, lines))
}

#[tokio::test]
async fn with_the_rights_of_the_guide_a_consumer_begins_anew_where_its_stream_lost_messages() {
    let Some((effects, ids, lines)) = ahead_of_its_stream(true).await else { return };
    assert_eq!((effects, lines.count("begins anew")), (ids, 1));
}

#[tokio::test]
async fn a_consumer_that_may_not_begin_anew_says_so_once() {
    let Some((_, _, lines)) = ahead_of_its_stream(false).await else { return };
    assert_eq!(lines.count("stream has lost messages that were delivered"), 1, "{}", lines.text());
}
