//! What has to hold between keys.

use super::Config;

/// A rule over several keys. Its sentence holds names and no values.
pub(super) struct Check {
    pub(super) name: &'static str,
    pub(super) keys: &'static [&'static str],
    pub(super) rule: &'static str,
    pub(super) holds: fn(&Config) -> bool,
}

pub(super) const CHECKS: &[Check] = &[
    Check {
        name: "consumer_alert_below_retention",
        keys: &["consumer.pending_alert_after", "sync.event_retention"],
        rule: "has to be less than",
        holds: |config| config.consumer.pending_alert_after < config.sync.event_retention,
    },
    Check {
        name: "poll_within_backoff_cap",
        keys: &["consumer.poll_interval", "consumer.failure_backoff_cap"],
        rule: "must not be more than",
        holds: |config| config.consumer.poll_interval <= config.consumer.failure_backoff_cap,
    },
    Check {
        name: "lock_below_statement",
        keys: &["database.lock_timeout", "database.statement_timeout"],
        rule: "has to be less than",
        holds: |config| config.database.lock_timeout < config.database.statement_timeout,
    },
    Check {
        name: "maintenance_below_retention",
        keys: &["sync.partition_maintenance_interval", "sync.event_retention"],
        rule: "has to be less than",
        holds: |config| config.sync.partition_maintenance_interval < config.sync.event_retention,
    },
    Check {
        name: "detach_within_its_max",
        keys: &["sync.detach_lock_timeout", "sync.detach_lock_timeout_max"],
        rule: "must not be more than",
        holds: |config| config.sync.detach_lock_timeout <= config.sync.detach_lock_timeout_max,
    },
    Check {
        name: "detach_below_statement",
        keys: &["sync.detach_lock_timeout_max", "database.statement_timeout"],
        rule: "has to be less than",
        holds: |config| config.sync.detach_lock_timeout_max < config.database.statement_timeout,
    },
    Check {
        name: "sequencer_poll_within_idle_poll",
        keys: &["sequencer.poll_interval", "sequencer.idle_poll_interval"],
        rule: "must not be more than",
        holds: |config| config.sequencer.poll_interval <= config.sequencer.idle_poll_interval,
    },
    Check {
        // It renews its lease between two looks.
        name: "sequencer_idle_poll_below_lease",
        keys: &["sequencer.idle_poll_interval", "sequencer.lease"],
        rule: "has to be less than",
        holds: |config| config.sequencer.idle_poll_interval < config.sequencer.lease,
    },
    Check {
        name: "job_timeout_below_rescue",
        keys: &["jobs.timeout", "jobs.rescue_after"],
        rule: "has to be less than",
        holds: |config| config.jobs.timeout < config.jobs.rescue_after,
    },
    Check {
        // A run that was forgotten within its interval would be done again.
        name: "maintenance_within_job_retention",
        keys: &["sync.partition_maintenance_interval", "jobs.completed_retention"],
        rule: "must not be more than",
        holds: |config| config.sync.partition_maintenance_interval <= config.jobs.completed_retention,
    },
    Check {
        // Between two statements of a handler the transaction is idle.
        name: "event_within_idle_in_tx",
        keys: &["consumer.event_timeout", "database.idle_in_tx_timeout"],
        rule: "must not be more than",
        holds: |config| config.consumer.event_timeout <= config.database.idle_in_tx_timeout,
    },
];
