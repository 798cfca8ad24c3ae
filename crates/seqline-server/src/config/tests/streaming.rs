//! What relay, stream and consumers of it get of the configuration.

use super::*;

#[test]
fn the_defaults_of_the_stream_are_those_of_its_crate() {
    let config = Config::default();
    assert_eq!(config.stream(), seqline_nats::stream::StreamSettings::default());
    let broker = config.broker("nats://broker.example.com");
    let default = seqline_nats::broker::BrokerConfig::new("nats://broker.example.com");
    assert_eq!(broker.request_timeout, default.request_timeout);
    let relay = seqline_nats::relay::RelayConfig::default();
    assert_eq!(format!("{:#?}", config.relay()), format!("{relay:#?}"));
    let consumers = seqline_nats::consumer::StreamConsumerConfig::default();
    assert_eq!(format!("{:#?}", config.stream_consumers()), format!("{consumers:#?}"));
    assert!(broker.credentials_file.is_none() && broker.tls_client_files.is_none() && !broker.tls_required);
}

#[test]
fn what_is_set_about_the_broker_and_the_stream_is_what_they_get() {
    let text = "[nats]\ncredentials_file = \"u.creds\"\ntls_required = true\ntls_ca_file = \"ca.pem\"\n\
                tls_cert_file = \"c.pem\"\ntls_key_file = \"k.pem\"\nrequest_timeout = \"7s\"\n\
                [stream]\nname = \"LOG-1\"\nmax_age = \"2d\"\nmax_bytes = 8589934592\nreplicas = 3\n\
                [relay]\natomic_batches = 200\n";
    let config = loaded(text, &[]).unwrap();
    let broker = config.broker("nats://broker.example.com");
    assert_eq!(broker.credentials_file, Some("u.creds".into()));
    assert_eq!(broker.tls_ca_file, Some("ca.pem".into()));
    assert_eq!(broker.tls_client_files, Some(("c.pem".into(), "k.pem".into())));
    assert!(broker.tls_required && broker.nkey_seed_file.is_none());
    assert_eq!(broker.request_timeout, Duration::from_secs(7));
    let seed = loaded("nats.nkey_seed_file = \"u.nk\"", &[]).unwrap();
    assert_eq!(seed.broker("nats://broker.example.com").nkey_seed_file, Some("u.nk".into()));
    let stream = config.stream();
    assert_eq!((stream.name.as_str(), stream.max_bytes, stream.replicas), ("LOG-1", 8_589_934_592, 3));
    assert_eq!(stream.max_age, Duration::from_secs(2 * 86_400));
    assert!(stream.atomic_batches && stream.check().is_ok());
}

#[test]
fn what_is_set_about_the_relay_and_consumers_is_what_they_get() {
    let text = "[relay]\nname = \"copy\"\nstart = \"head\"\nwindow = 11\nwindow_bytes = 70000\npage = 12\n\
                poll_interval = \"13ms\"\nlease = \"14s\"\nresync_backoff_cap = \"15s\"\nack_timeout = \"16s\"\n\
                [stream_consumer]\nbatch_size = 17\nack_wait = \"18s\"\nmax_ack_pending = 19\nattempts = 20\n\
                retry_backoff_cap = \"21s\"\nhandler_timeout = \"1s\"\nreconcile_interval = \"23s\"\n\
                [database]\nstatement_timeout = \"24s\"\n[stream]\nname = \"LOG\"\n";
    let config = loaded(text, &[]).unwrap();
    let secs = Duration::from_secs;
    let relay = config.relay();
    assert_eq!((relay.name.as_str(), relay.stream.name.as_str()), ("copy", "LOG"));
    assert_eq!(relay.start, seqline_nats::relay::RelayStart::Head);
    assert_eq!((relay.window, relay.window_bytes, relay.page), (11, 70_000, 12));
    assert_eq!((relay.poll_interval, relay.lease), (Duration::from_millis(13), secs(14)));
    assert_eq!((relay.resync_backoff_cap, relay.ack_timeout), (secs(15), secs(16)));
    assert_eq!((relay.statement_timeout, relay.atomic_batches), (secs(24), None));
    let batches = loaded("relay.atomic_batches = 200", &[]).unwrap().relay();
    assert_eq!((batches.atomic_batches, batches.stream.atomic_batches), (Some(200), true));
    let consumers = config.stream_consumers();
    assert_eq!((consumers.batch, consumers.max_ack_pending, consumers.attempts), (17, 19, 20));
    assert_eq!((consumers.ack_wait, consumers.handler_timeout), (secs(18), secs(1)));
    assert_eq!((consumers.retry_backoff_cap, consumers.reconcile_interval), (secs(21), secs(23)));
    assert_eq!(consumers.statement_timeout, secs(24));
}

#[test]
fn the_ledger_outlives_the_log_and_the_stream() {
    let mut config = Config::default();
    let day = |days: u64| Duration::from_secs(days * 86_400);
    config.sync.event_retention = day(1);
    config.sync.event_retention_hold = day(2);
    config.sync.event_log_partition_max_age = day(4);
    config.stream.max_age = day(8);
    config.stream_consumer.ledger_margin = day(16);
    assert_eq!(config.ledger_retention(), day(31));
    config.stream_consumer.ledger_margin = Duration::MAX;
    assert_eq!(config.ledger_retention(), Duration::MAX);
}
