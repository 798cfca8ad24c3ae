//! From where on the doctor warns.

use std::time::Duration;

use crate::config::Alert;

/// From where on something is worth a warning. The rules for alerts have the same.
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
    /// How far the clocks of this machine and of the database are apart.
    pub(crate) clock_skew: Duration,
}

impl Thresholds {
    /// What the configuration says.
    pub(crate) fn of(alert: &Alert) -> Self {
        Self {
            partition_headroom: alert.partition_headroom.into(),
            staged_age: alert.staged_age,
            notification_queue_percent: alert.notification_queue_percent.into(),
            oldest_transaction_age: alert.oldest_transaction_age,
            numbering_lock_wait: alert.numbering_lock_wait,
            jobs_overdue_after: alert.jobs_overdue_after,
            clock_skew: alert.clock_skew,
        }
    }
}
