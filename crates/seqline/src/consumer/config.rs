//! What a process may choose about its consumers.

use std::time::Duration;

use sqlx::PgPool;

use crate::limits::{NETWORK_MARGIN, STATEMENT_DEADLINE};
use crate::{pool, store};

/// What a process may choose about its consumers.
#[derive(Debug, Clone)]
pub struct ConsumerConfig {
    /// Events in one round (`consumer.batch_size`): what is rolled back and done again when a round fails, what is in
    /// memory at most, and how long retention has to wait for the round. At least 1, at most
    /// [`READ_EVENTS_MAX`](crate::limits::READ_EVENTS_MAX).
    pub batch_size: u32,
    /// Events that a round of a consumer with a filter looks at (`consumer.scan_size`) for those that it handles: what keeps it short
    /// when few match. At least 1, at most [`SCAN_EVENTS_MAX`](crate::limits::SCAN_EVENTS_MAX).
    pub scan_size: u32,
    /// Longest time between two looks at the log (`consumer.poll_interval`): the delay when notifications are lost.
    pub poll_interval: Duration,
    /// How long a handler may take for one event (`consumer.event_timeout`), by the injected clock. A handler that hangs stalls
    /// its consumer on all workers, because its round holds the cursor.
    pub event_timeout: Duration,
    /// Longest pause after a failed round (`consumer.failure_backoff_cap`). The pause begins with the poll interval and
    /// doubles, so that an event that cannot be handled does not keep a processor busy.
    pub failure_backoff_cap: Duration,
    /// How long rounds that run may take to end after the stop was asked for (`shutdown.total_timeout`). What has not
    /// ended then is dropped and rolls back.
    pub stop_timeout: Duration,
    /// Longest statement of a round (`database.statement_timeout`).
    pub statement_timeout: Duration,
    /// Longest wait for a lock in a round (`database.lock_timeout`).
    pub lock_timeout: Duration,
    /// Longest pause between two statements of a round (`database.idle_in_tx_timeout`), and the longest for which the server
    /// waits for a worker to take what it sends (over TCP, on Linux): when the host of a worker is gone, its cursor is free
    /// again after that. A round whose handlers send no statements is kept alive between events; the closer this is to
    /// `event_timeout`, the more statements that takes, and below it an event can be ended early.
    pub idle_in_tx_timeout: Duration,
    /// Whether a connection listens for commits (`database.listen`). Without it consumers look every `poll_interval` and nothing else
    /// wakes them: for where LISTEN is not to be had, such as behind a pooler in transaction mode.
    pub listen: bool,
    /// Longest pause between two attempts to listen (`database.listen_reconnect_backoff_cap`).
    pub listen_reconnect_backoff_cap: Duration,
    /// How often a silent listening connection is asked whether it is alive (`database.listen_heartbeat_interval`).
    pub listen_heartbeat_interval: Duration,
    /// How long it may take to answer (`database.listen_heartbeat_timeout`).
    pub listen_heartbeat_timeout: Duration,
}

impl ConsumerConfig {
    /// How a transaction begins, with timeouts that the server keeps: what a client has given up would else go on there.
    pub(super) fn beginning(&self, pool: &PgPool) -> String {
        let beginning =
            store::consumers::beginning(self.statement_timeout, self.lock_timeout, self.idle_in_tx_timeout);
        if pool::is_pooled(pool) { store::connection::begin_pooled(&beginning) } else { beginning }
    }

    /// When a statement is given up here. The server ends it first, if it can.
    pub(super) fn deadline(&self) -> Duration {
        self.statement_timeout.saturating_add(NETWORK_MARGIN)
    }
}

impl Default for ConsumerConfig {
    fn default() -> Self {
        Self {
            batch_size: 200,
            scan_size: 10_000,
            poll_interval: Duration::from_secs(2),
            event_timeout: Duration::from_secs(30),
            failure_backoff_cap: Duration::from_secs(30),
            stop_timeout: Duration::from_secs(30),
            statement_timeout: STATEMENT_DEADLINE,
            lock_timeout: Duration::from_secs(5),
            idle_in_tx_timeout: Duration::from_secs(60),
            listen: true,
            listen_reconnect_backoff_cap: Duration::from_secs(30),
            listen_heartbeat_interval: Duration::from_secs(10),
            listen_heartbeat_timeout: Duration::from_secs(5),
        }
    }
}
