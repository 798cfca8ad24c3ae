//! The stream: made, adjusted, never harmed.

use std::time::Duration;

use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy, StorageType};
use seqline_nats::broker::{Broker, BrokerConfig};
use seqline_nats::stream::{Left, StreamError, StreamSettings, ensure_stream, info};
use seqline_testkit::nats::{NatsCluster, NatsServer};

use crate::older::older_broker;

fn broker(server: &NatsServer) -> Broker {
    Broker::new(BrokerConfig::new(server.url()))
}

fn settings(change: impl FnOnce(&mut StreamSettings)) -> StreamSettings {
    let mut settings = StreamSettings::default();
    change(&mut settings);
    settings
}

/// What differs from the defaults of a broker is what was decided.
#[tokio::test]
async fn its_settings_read_back_as_configured() {
    let server = NatsServer::start().await;
    let broker = broker(&server);
    ensure_stream(&broker, &StreamSettings::default()).await.unwrap();
    let config = info(&broker, "EVENTS").await.unwrap().expect("it was made").config;
    assert_eq!(config.subjects, ["events.>"]);
    assert_eq!((config.retention, config.storage), (RetentionPolicy::Limits, StorageType::File));
    assert_eq!((config.max_age, config.max_bytes), (Duration::from_secs(604_800), 1_073_741_824));
    assert_eq!((config.discard, config.num_replicas), (DiscardPolicy::Old, 1));
    // The broker's own, since none was asked for.
    assert_eq!(config.duplicate_window, Duration::from_secs(120));
    assert!(config.max_messages <= 0 && config.max_messages_per_subject <= 0 && !config.allow_atomic_publish);
}

#[tokio::test]
async fn twice_is_once_and_a_change_loses_no_message() {
    let server = NatsServer::start().await;
    let broker = broker(&server);
    let (made, _) = ensure_stream(&broker, &StreamSettings::default()).await.unwrap();
    let context = broker.jetstream().await.unwrap();
    for number in 0..10_u8 {
        context.publish("events.order.created._", vec![number].into()).await.unwrap().await.unwrap();
    }
    let (again, _) = ensure_stream(&broker, &StreamSettings::default()).await.unwrap();
    assert_eq!((again.state.messages, again.created), (10, made.created));
    let shorter = settings(|it| it.max_age = Duration::from_secs(2 * 86_400));
    ensure_stream(&broker, &shorter).await.unwrap();
    let changed = info(&broker, "EVENTS").await.unwrap().unwrap();
    assert_eq!((changed.state.messages, changed.created), (10, made.created));
    assert_eq!(changed.config.max_age, Duration::from_secs(2 * 86_400));
}

#[tokio::test]
async fn processes_that_make_it_at_the_same_time_all_succeed() {
    let server = NatsServer::start().await;
    let making = (1..=8).map(|days| {
        let broker = broker(&server);
        let settings = settings(|it| it.max_age = Duration::from_secs(days * 86_400));
        async move { ensure_stream(&broker, &settings).await.map(|_| ()) }
    });
    for made in futures_util::future::join_all(making).await {
        made.unwrap();
    }
    assert!(info(&broker(&server), "EVENTS").await.unwrap().is_some());
}

#[tokio::test]
async fn what_somebody_else_set_is_carried_through() {
    let server = NatsServer::start().await;
    let broker = broker(&server);
    let config = Config {
        name: "EVENTS".to_owned(),
        subjects: vec!["events.order.>".to_owned()],
        duplicate_window: Duration::from_secs(2),
        description: Some("of the shop".to_owned()),
        deny_delete: true,
        discard: DiscardPolicy::New,
        ..Config::default()
    };
    broker.jetstream().await.unwrap().create_stream(config).await.unwrap();
    ensure_stream(&broker, &StreamSettings::default()).await.unwrap();
    let config = info(&broker, "EVENTS").await.unwrap().unwrap().config;
    assert_eq!(config.duplicate_window, Duration::from_secs(2));
    assert_eq!(config.description.as_deref(), Some("of the shop"));
    assert!(config.deny_delete);
    assert_eq!((config.subjects, config.discard), (vec!["events.>".to_owned()], DiscardPolicy::Old));
}

#[tokio::test]
async fn another_kind_of_stream_is_refused_and_left_as_it_was() {
    let server = NatsServer::start().await;
    let broker = broker(&server);
    let config = Config {
        name: "EVENTS".to_owned(),
        subjects: vec!["events.>".to_owned()],
        retention: RetentionPolicy::WorkQueue,
        ..Config::default()
    };
    let context = broker.jetstream().await.unwrap();
    let before = context.create_stream(config).await.unwrap().cached_info().clone();
    let error = ensure_stream(&broker, &StreamSettings::default()).await.unwrap_err();
    assert!(matches!(error, StreamError::Mismatch { setting: "retention", .. }), "{error}");
    let after = info(&broker, "EVENTS").await.unwrap().unwrap();
    assert_eq!((after.created, after.config), (before.created, before.config));
}

#[tokio::test]
async fn another_stream_that_has_its_subjects_is_told_by_the_code_of_the_broker() {
    let server = NatsServer::start().await;
    let broker = broker(&server);
    let config =
        Config { name: "OTHER".to_owned(), subjects: vec!["events.order.>".to_owned()], ..Config::default() };
    broker.jetstream().await.unwrap().create_stream(config).await.unwrap();
    let error = ensure_stream(&broker, &StreamSettings::default()).await.unwrap_err();
    assert!(matches!(error, StreamError::Refused { code: 10065, .. }), "{error}");
}

#[tokio::test]
async fn a_broker_that_is_away_is_no_stream_that_is_absent() {
    let mut server = NatsServer::start().await;
    let mut config = BrokerConfig::new(server.url());
    config.request_timeout = Duration::from_secs(1);
    let broker = Broker::new(config);
    server.kill().await;
    let error = ensure_stream(&broker, &StreamSettings::default()).await.unwrap_err();
    assert!(matches!(error, StreamError::Broker(_)), "{error}");
    server.restart().await;
    ensure_stream(&broker, &StreamSettings::default()).await.unwrap();
    server.kill().await;
    // Now there is a connection, which is being opened again.
    assert!(matches!(info(&broker, "EVENTS").await, Err(StreamError::Silent(_))));
}

#[tokio::test]
async fn a_cluster_keeps_the_replicas_that_it_has() {
    let cluster = NatsCluster::start(3).await;
    let broker = Broker::new(BrokerConfig::new(cluster.urls().join(",")));
    let three = settings(|it| it.replicas = 3);
    let (made, left) = ensure_stream(&broker, &three).await.unwrap();
    assert_eq!((made.config.num_replicas, left), (3, vec![]));
    // A process that was not told how many.
    let (kept, left) = ensure_stream(&broker, &StreamSettings::default()).await.unwrap();
    assert_eq!(kept.config.num_replicas, 3);
    assert_eq!(left, [Left::MoreReplicas { existing: 3, wanted: 1 }]);
}

/// The oldest server that is tried.
#[tokio::test]
async fn an_older_broker_has_the_same_stream() {
    let Some(server) = older_broker().await else { return };
    let broker = broker(&server);
    ensure_stream(&broker, &StreamSettings::default()).await.unwrap();
    let (info, _) = ensure_stream(&broker, &StreamSettings::default()).await.unwrap();
    assert_eq!(info.config.subjects, ["events.>"]);
    assert_eq!(info.config.max_bytes, 1 << 30);
}
