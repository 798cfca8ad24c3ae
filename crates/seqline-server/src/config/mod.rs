//! What can be set, from where, and what is wrong with it.
//!
//! Whoever starts the program learns everything that is wrong at once, each with the key and its place, and never sees a
//! value again: what was typed into the wrong line may be a password. What passes is whole and within its bounds; nobody
//! checks it again.
//!
//! Defaults come first, then a file, then the environment, then the command line. URLs are no keys, because they hold passwords and files are
//! shared. A limit, window or threshold that can be set is a key of [`schema`](self::schema::KEYS), and nowhere else.

pub mod schema;

mod checks;
mod keys;
mod kinds;
mod load;
mod nats;
mod problem;
mod reference;
mod values;

#[cfg(test)]
mod tests;

use core::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use seqline::consumer::{ConsumerConfig, Filter};
use seqline::identity::OnChange;
use seqline::maintenance::MaintenanceConfig;
use seqline::sequencer::SequencerConfig;
use seqline::tail::{Start, TailConfig};

pub use self::load::{ConfigFile, Loaded, Source, load};
pub use self::nats::{Nats, Relay, Runs, Stream, StreamConsumer};
pub use self::problem::{Problem, Problems};
pub use self::reference::{commented_file, json_schema, reference};
pub(crate) use self::values::duration_text;

/// Everything that can be set. The names of the fields are those of the keys.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the schema has a sentence for each key")]
pub struct Config {
    pub database: Database,
    pub sync: Sync,
    pub sequencer: Sequencer,
    pub consumer: Consumer,
    pub recorder: Recorder,
    pub jobs: Jobs,
    pub api: Api,
    pub agent: Agent,
    pub gateway: Gateway,
    pub auth: Auth,
    pub nats: Nats,
    pub stream: Stream,
    pub relay: Relay,
    pub stream_consumer: StreamConsumer,
    pub ops: Ops,
    pub epoch: Epoch,
    pub telemetry: Telemetry,
    pub alert: Alert,
    pub shutdown: Shutdown,
}

/// How the database is used.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the schema has a sentence for each key")]
pub struct Database {
    pub max_connections: u32,
    pub lock_timeout: Duration,
    pub statement_timeout: Duration,
    pub idle_in_tx_timeout: Duration,
    pub listen: bool,
    pub listen_reconnect_backoff_cap: Duration,
    pub listen_heartbeat_interval: Duration,
    pub listen_heartbeat_timeout: Duration,
}

/// The log and its partitions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the schema has a sentence for each key")]
pub struct Sync {
    pub event_retention: Duration,
    pub event_retention_hold: Duration,
    pub event_log_partition_max_age: Duration,
    pub partition_maintenance_interval: Duration,
    pub detach_lock_timeout: Duration,
    pub detach_lock_timeout_max: Duration,
    pub detach_attempts: u32,
    pub detach_retry_pause: Duration,
    pub clock_skew_max: Duration,
    pub resume_window: Duration,
    pub log_poll_interval: Duration,
    pub tail_batch_size: u32,
}

/// What numbers events after commit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the schema has a sentence for each key")]
pub struct Sequencer {
    pub lease: Duration,
    pub poll_interval: Duration,
    pub idle_poll_interval: Duration,
    pub batch_size: u32,
}

/// Consumers in this process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the schema has a sentence for each key")]
pub struct Consumer {
    pub batch_size: u32,
    pub scan_size: u32,
    pub poll_interval: Duration,
    pub event_timeout: Duration,
    pub failure_backoff_cap: Duration,
    pub pending_alert_after: Duration,
}

/// Which events the recorder asks for. A list without values is everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the schema has a sentence for each key")]
pub struct Recorder {
    pub types: Vec<String>,
    pub spaces: Vec<String>,
    pub channels: Vec<String>,
    pub resource_kinds: Vec<String>,
}

/// The server's own jobs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the schema has a sentence for each key")]
pub struct Jobs {
    pub schema: String,
    pub poll_interval: Duration,
    pub max_workers: u32,
    pub timeout: Duration,
    pub rescue_after: Duration,
    pub retry_backoff_cap: Duration,
    pub completed_retention: Duration,
    pub discarded_retention: Duration,
}

/// HTTP for applications and their users.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the schema has a sentence for each key")]
pub struct Api {
    pub listen: SocketAddr,
    pub connections_max: u32,
    pub request_timeout: Duration,
    pub request_bytes_max: u32,
    pub append_events_max: u32,
    pub append_group_events_max: u32,
    pub append_queue_max: u32,
    pub page_events_max: u32,
    pub page_bytes_max: u32,
    pub wait_max: Duration,
    pub write_timeout: Duration,
    pub requests_per_second: u32,
    pub requests_burst: u32,
    pub waiting_max: u32,
    pub permissions_max_age: Duration,
    pub idempotency_retention: Duration,
    pub catch_up_events_max: u32,
    pub catch_up_scan_size: u32,
    pub stream_heartbeat_interval: Duration,
    pub hub_events_max: u32,
    pub hub_bytes_max: u32,
    pub readers_max: u32,
}

impl Default for Api {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            connections_max: 0,
            request_timeout: Duration::ZERO,
            request_bytes_max: 0,
            append_events_max: 0,
            append_group_events_max: 0,
            append_queue_max: 0,
            page_events_max: 0,
            page_bytes_max: 0,
            wait_max: Duration::ZERO,
            write_timeout: Duration::ZERO,
            requests_per_second: 0,
            requests_burst: 0,
            waiting_max: 0,
            permissions_max_age: Duration::ZERO,
            idempotency_retention: Duration::ZERO,
            catch_up_events_max: 0,
            catch_up_scan_size: 0,
            stream_heartbeat_interval: Duration::ZERO,
            hub_events_max: 0,
            hub_bytes_max: 0,
            readers_max: 0,
        }
    }
}

/// How events are given to the consumers of agents.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the schema has a sentence for each key")]
pub struct Agent {
    pub max_inflight_events: u32,
    pub inflight_bytes_max: u32,
    pub ack_timeout: Duration,
    pub ack_persist_interval: Duration,
    pub acks_per_second: u32,
    pub acks_burst: u32,
    pub consumers_max: u32,
    pub pending_alert_after: Duration,
}

/// Connections to the gateway.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the schema has a sentence for each key")]
pub struct Gateway {
    pub heartbeat_interval: Duration,
    pub identify_timeout: Duration,
    pub frame_bytes_max: u32,
    pub queue_bytes_max: u32,
}

/// Whose tokens count beside those of the database.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the schema has a sentence for each key")]
pub struct Auth {
    pub jwks_url: String,
    pub jwt_issuer: String,
    pub jwt_audience: String,
    pub jwt_principal_claim: String,
    pub jwks_refresh_interval: Duration,
    pub jwks_timeout: Duration,
}

/// What operators and their tools ask a process.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the schema has a sentence for each key")]
pub struct Ops {
    pub listen: SocketAddr,
    pub max_connections: u32,
    pub request_timeout: Duration,
    pub look_interval: Duration,
    pub ready_lag_max: Duration,
}

impl Default for Ops {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            max_connections: 0,
            request_timeout: Duration::ZERO,
            look_interval: Duration::ZERO,
            ready_lag_max: Duration::ZERO,
        }
    }
}

/// Which history numbers belong to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the schema has a sentence for each key")]
pub struct Epoch {
    pub on_change: OnChange,
}

/// What a process tells about itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the schema has a sentence for each key")]
pub struct Telemetry {
    pub refresh_interval: Duration,
    pub otlp_endpoint: String,
    pub trace_sample_percent: u32,
}

/// From where on something is worth a look: `seqline doctor` and the alert rules go by it, a process does nothing at it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the schema has a sentence for each key")]
pub struct Alert {
    pub partition_headroom: u32,
    pub staged_age: Duration,
    pub numbering_lock_wait: Duration,
    pub notification_queue_percent: u32,
    pub oldest_transaction_age: Duration,
    pub fanout_lag: Duration,
    pub jobs_overdue_after: Duration,
    pub maintenance_age: Duration,
    pub clock_skew: Duration,
    pub agent_takeovers: u32,
    pub relay_backlog_age: Duration,
    pub stream_fill_percent: u32,
    pub stream_consumer_pending: u32,
}

/// The end of the process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the schema has a sentence for each key")]
pub struct Shutdown {
    pub total_timeout: Duration,
}

impl Default for Config {
    /// What the schema says.
    fn default() -> Self {
        let mut config = Self {
            database: Database::default(),
            sync: Sync::default(),
            sequencer: Sequencer::default(),
            consumer: Consumer::default(),
            recorder: Recorder::default(),
            jobs: Jobs::default(),
            api: Api::default(),
            agent: Agent::default(),
            gateway: Gateway::default(),
            auth: Auth::default(),
            nats: Nats::default(),
            stream: Stream::default(),
            relay: Relay::default(),
            stream_consumer: StreamConsumer::default(),
            ops: Ops::default(),
            epoch: Epoch::default(),
            telemetry: Telemetry::default(),
            alert: Alert::default(),
            shutdown: Shutdown::default(),
        };
        for key in schema::KEYS {
            key.reset(&mut config);
        }
        config
    }
}

impl Config {
    /// The configuration of maintenance.
    #[must_use]
    pub fn maintenance(&self) -> MaintenanceConfig {
        MaintenanceConfig {
            retention: self.sync.event_retention,
            retention_hold: self.sync.event_retention_hold,
            partition_max_age: self.sync.event_log_partition_max_age,
            detach_lock_timeout: self.sync.detach_lock_timeout,
            detach_lock_timeout_max: self.sync.detach_lock_timeout_max,
            detach_attempts: self.sync.detach_attempts,
            detach_retry_pause: self.sync.detach_retry_pause,
            clock_skew_max: self.sync.clock_skew_max,
            statement_timeout: self.database.statement_timeout,
        }
    }

    /// The configuration of the tail, which starts at the head.
    #[must_use]
    pub fn tail(&self) -> TailConfig {
        TailConfig {
            start: Start::Head,
            poll_interval: self.sync.log_poll_interval,
            batch_size: self.sync.tail_batch_size,
            listen: self.database.listen,
            listen_reconnect_backoff_cap: self.database.listen_reconnect_backoff_cap,
            listen_heartbeat_interval: self.database.listen_heartbeat_interval,
            listen_heartbeat_timeout: self.database.listen_heartbeat_timeout,
            statement_timeout: self.database.statement_timeout,
        }
    }

    /// The configuration of the sequencer.
    #[must_use]
    pub fn sequencer(&self) -> SequencerConfig {
        SequencerConfig {
            lease: self.sequencer.lease,
            poll_interval: self.sequencer.poll_interval,
            idle_poll_interval: self.sequencer.idle_poll_interval,
            batch_size: self.sequencer.batch_size,
            reconnect_backoff_cap: self.database.listen_reconnect_backoff_cap,
            statement_timeout: self.database.statement_timeout,
        }
    }

    /// Which events the recorder asks for.
    #[must_use]
    pub fn recorder(&self) -> Filter {
        let Recorder { types, spaces, channels, resource_kinds } = self.recorder.clone();
        let lists: [(Vec<String>, schema::FilterBy); 4] = [
            (types, Filter::types),
            (spaces, Filter::spaces),
            (channels, Filter::channels),
            (resource_kinds, Filter::resource_kinds),
        ];
        let given = lists.into_iter().filter(|(list, _)| !list.is_empty());
        given.fold(Filter::everything(), |filter, (list, by)| by(filter, list))
    }

    /// The configuration of consumers. Their end is part of the end of the process and has no bound of its own.
    #[must_use]
    pub fn consumers(&self) -> ConsumerConfig {
        ConsumerConfig {
            batch_size: self.consumer.batch_size,
            scan_size: self.consumer.scan_size,
            poll_interval: self.consumer.poll_interval,
            event_timeout: self.consumer.event_timeout,
            failure_backoff_cap: self.consumer.failure_backoff_cap,
            stop_timeout: self.shutdown.total_timeout,
            statement_timeout: self.database.statement_timeout,
            lock_timeout: self.database.lock_timeout,
            idle_in_tx_timeout: self.database.idle_in_tx_timeout,
            listen: self.database.listen,
            listen_reconnect_backoff_cap: self.database.listen_reconnect_backoff_cap,
            listen_heartbeat_interval: self.database.listen_heartbeat_interval,
            listen_heartbeat_timeout: self.database.listen_heartbeat_timeout,
        }
    }
}
