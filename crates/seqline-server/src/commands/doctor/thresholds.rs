//! From where on the doctor warns.

use std::time::Duration;

use crate::config::Config;

/// From where on something is worth a warning: beyond it, as in the rules for alerts. Some of theirs are missing: `alert.fanout_lag`,
/// `alert.stream_fill_percent` and `alert.stream_consumer_pending` are about what processes have measured, and the doctor is none of them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Thresholds {
    /// Events that still fit into the partitions.
    pub(crate) partition_headroom: i64,
    /// How long events have waited for their numbers.
    pub(crate) staged_age: Duration,
    /// How full the queue of notifications is, in percent.
    pub(crate) notification_queue_percent: f64,
    /// Age of a transaction that keeps vacuum from removing rows.
    pub(crate) oldest_transaction_age: Duration,
    /// How long somebody has waited for the right to number.
    pub(crate) numbering_lock_wait: Duration,
    /// How long a job that is due has waited.
    pub(crate) jobs_overdue_after: Duration,
    /// How long ago the last run of maintenance was completed.
    pub(crate) maintenance_age: Duration,
    /// How long events have waited for a consumer.
    pub(crate) pending_age: Duration,
    /// How old an event may be that is not in the stream.
    pub(crate) relay_backlog_age: Duration,
    /// How far the clocks of this machine and of the database are apart.
    pub(crate) clock_skew: Duration,
}

impl Thresholds {
    /// What the configuration says.
    pub(crate) fn of(config: &Config) -> Self {
        let alert = &config.alert;
        Self {
            partition_headroom: alert.partition_headroom.into(),
            staged_age: alert.staged_age,
            notification_queue_percent: alert.notification_queue_percent.into(),
            oldest_transaction_age: alert.oldest_transaction_age,
            numbering_lock_wait: alert.numbering_lock_wait,
            jobs_overdue_after: alert.jobs_overdue_after,
            maintenance_age: alert.maintenance_age,
            pending_age: config.consumer.pending_alert_after,
            relay_backlog_age: alert.relay_backlog_age,
            clock_skew: alert.clock_skew,
        }
    }
}
