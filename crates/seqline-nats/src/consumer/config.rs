//! What a process may choose about a consumer of the stream.

use std::time::Duration;

/// What a process may choose about a consumer of the stream.
///
/// ```
/// use std::time::Duration;
/// use seqline_nats::consumer::StreamConsumerConfig;
///
/// let mut config = StreamConsumerConfig::default();
/// config.handler_timeout = Duration::from_secs(3);
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct StreamConsumerConfig {
    /// Messages that are fetched, claimed and committed together, at most 500. 25.
    pub batch: u32,
    /// How long a fetch waits for a message when there is none. 1 second.
    pub fetch_expiry: Duration,
    /// How long the broker waits for word of a message before it gives it to somebody else. Word is sent three times as often, for every
    /// message in hand and for as long as it takes. 30 seconds.
    pub ack_wait: Duration,
    /// How many messages may be in hand, over all processes of a consumer. 100.
    pub max_ack_pending: u32,
    /// How often a handler may fail with an event. 5.
    pub attempts: u32,
    /// How long an event waits after its first failure; doubles with each. 1 second.
    pub retry_backoff: Duration,
    /// The longest that it waits. 5 minutes.
    pub retry_backoff_cap: Duration,
    /// How long a handler may take for one event. 10 seconds.
    pub handler_timeout: Duration,
    /// How long a pass without work pauses before the next. 200 milliseconds.
    pub idle_pause: Duration,
    /// The longest pause while broker or database are away; begins with the idle pause and doubles. 5 seconds.
    pub failure_backoff_cap: Duration,
    /// How often the log is compared with what was handled. 60 seconds.
    pub reconcile_interval: Duration,
    /// Positions that are compared at once. 1,000.
    pub reconcile_batch: u32,
    /// Longest statement of the consumer itself. Those of a handler end with its time. 30 seconds.
    pub statement_timeout: Duration,
}

impl Default for StreamConsumerConfig {
    fn default() -> Self {
        Self {
            batch: 25,
            fetch_expiry: Duration::from_secs(1),
            ack_wait: Duration::from_secs(30),
            max_ack_pending: 100,
            attempts: 5,
            retry_backoff: Duration::from_secs(1),
            retry_backoff_cap: Duration::from_secs(5 * 60),
            handler_timeout: Duration::from_secs(10),
            idle_pause: Duration::from_millis(200),
            failure_backoff_cap: Duration::from_secs(5),
            reconcile_interval: Duration::from_secs(60),
            reconcile_batch: 1_000,
            statement_timeout: Duration::from_secs(30),
        }
    }
}
