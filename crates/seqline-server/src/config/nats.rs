//! The log in a stream: how the broker is reached, what the stream is like, and who works it.

use std::path::PathBuf;
use std::time::Duration;

use seqline_nats::broker::BrokerConfig;
use seqline_nats::consumer::StreamConsumerConfig;
use seqline_nats::relay::{self, RelayConfig};
use seqline_nats::stream::StreamSettings;

use super::Config;

/// How the broker is reached. Its URL is no key, because it can hold a password.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the schema has a sentence for each key")]
pub struct Nats {
    pub credentials_file: String,
    pub nkey_seed_file: String,
    pub tls_required: bool,
    pub tls_ca_file: String,
    pub tls_cert_file: String,
    pub tls_key_file: String,
    pub request_timeout: Duration,
}

/// What the stream is like.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the schema has a sentence for each key")]
pub struct Stream {
    pub name: String,
    pub max_age: Duration,
    pub max_bytes: u64,
    pub replicas: u32,
}

/// Whether a part runs that needs a broker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Runs {
    /// Where the URL of a broker was given.
    #[default]
    Auto,
    /// Yes; without a URL the broker is looked for on this machine.
    On,
    /// No.
    Off,
}

impl Runs {
    pub(super) const ALL: [Self; 3] = [Self::Auto, Self::On, Self::Off];

    /// Whether it runs.
    #[must_use]
    pub fn is_on(self, url_is_given: bool) -> bool {
        match self {
            Self::Auto => url_is_given,
            Self::On => true,
            Self::Off => false,
        }
    }
}

/// What copies the log into the stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the schema has a sentence for each key")]
pub struct Relay {
    pub mode: Runs,
    pub name: String,
    pub start: relay::RelayStart,
    pub window: u32,
    pub window_bytes: u32,
    pub page: u32,
    pub poll_interval: Duration,
    pub lease: Duration,
    pub resync_backoff_cap: Duration,
    pub ack_timeout: Duration,
    pub atomic_batches: u32,
}

/// Consumers of the stream in this process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the schema has a sentence for each key")]
pub struct StreamConsumer {
    pub recorder: Runs,
    pub batch_size: u32,
    pub ack_wait: Duration,
    pub max_ack_pending: u32,
    pub attempts: u32,
    pub retry_backoff_cap: Duration,
    pub handler_timeout: Duration,
    pub reconcile_interval: Duration,
    pub ledger_margin: Duration,
}

impl Config {
    /// How the broker at a URL is reached.
    #[must_use]
    pub fn broker(&self, url: &str) -> BrokerConfig {
        let file = |path: &str| (!path.is_empty()).then(|| PathBuf::from(path));
        let nats = &self.nats;
        let mut broker = BrokerConfig::new(url);
        broker.credentials_file = file(&nats.credentials_file);
        broker.nkey_seed_file = file(&nats.nkey_seed_file);
        broker.tls_required = nats.tls_required;
        broker.tls_ca_file = file(&nats.tls_ca_file);
        broker.tls_client_files = file(&nats.tls_cert_file).zip(file(&nats.tls_key_file));
        broker.request_timeout = nats.request_timeout;
        broker
    }

    /// What the stream is to be like.
    #[must_use]
    pub fn stream(&self) -> StreamSettings {
        let mut stream = StreamSettings::default();
        stream.name.clone_from(&self.stream.name);
        stream.max_age = self.stream.max_age;
        stream.max_bytes = self.stream.max_bytes;
        stream.replicas = u8::try_from(self.stream.replicas).unwrap_or(u8::MAX);
        stream.atomic_batches = self.relay.atomic_batches > 0;
        stream
    }

    /// The configuration of the relay.
    #[must_use]
    pub fn relay(&self) -> RelayConfig {
        let Relay {
            mode: _,
            name,
            start,
            window,
            window_bytes,
            page,
            poll_interval,
            lease,
            resync_backoff_cap,
            ack_timeout,
            atomic_batches,
        } = &self.relay;
        let mut relay = RelayConfig::default();
        relay.name.clone_from(name);
        relay.stream = self.stream();
        relay.start = *start;
        relay.window = *window;
        relay.window_bytes = *window_bytes;
        relay.page = *page;
        relay.poll_interval = *poll_interval;
        relay.lease = *lease;
        relay.resync_backoff_cap = *resync_backoff_cap;
        relay.ack_timeout = *ack_timeout;
        relay.statement_timeout = self.database.statement_timeout;
        relay.atomic_batches = (*atomic_batches > 0).then_some(*atomic_batches);
        relay
    }

    /// The configuration of consumers of the stream.
    #[must_use]
    pub fn stream_consumers(&self) -> StreamConsumerConfig {
        let StreamConsumer {
            recorder: _,
            batch_size,
            ack_wait,
            max_ack_pending,
            attempts,
            retry_backoff_cap,
            handler_timeout,
            reconcile_interval,
            ledger_margin: _,
        } = &self.stream_consumer;
        let mut consumers = StreamConsumerConfig::default();
        consumers.batch = *batch_size;
        consumers.ack_wait = *ack_wait;
        consumers.max_ack_pending = *max_ack_pending;
        consumers.attempts = *attempts;
        consumers.retry_backoff_cap = *retry_backoff_cap;
        consumers.handler_timeout = *handler_timeout;
        consumers.reconcile_interval = *reconcile_interval;
        consumers.statement_timeout = self.database.statement_timeout;
        consumers
    }

    /// How long the ledger remembers that an event was handled: for as long as it can come again. That is as long as it may be in the log,
    /// from which a stream that is lost is filled anew, then as long as its message is in the stream, and a margin.
    #[must_use]
    pub fn ledger_retention(&self) -> Duration {
        let sync = &self.sync;
        let in_the_log = sync
            .event_retention
            .saturating_add(sync.event_retention_hold)
            .saturating_add(sync.event_log_partition_max_age);
        in_the_log.saturating_add(self.stream.max_age).saturating_add(self.stream_consumer.ledger_margin)
    }
}
