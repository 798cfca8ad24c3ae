//! Every key: its name, default, bounds and reason, and the field that it sets.
//!
//! The page of the guide and the defaults of the library are compared with this table by tests.

use std::ops::RangeInclusive;
use std::time::Duration;

use seqline::consumer::Filter;
use seqline::limits::{FILTER_VALUES_MAX, TEXT_CHARACTERS_MAX};

use super::Config;
use super::values::{self, Given, SCHEMA_NAME_BYTES_MAX};

/// A setting.
#[derive(Debug, Clone)]
pub struct Key {
    /// `section.key`
    pub name: &'static str,
    /// What it does and why it is there, in a sentence.
    pub doc: &'static str,
    kind: Kind,
}

/// What a value has to be, and where it goes.
#[derive(Debug, Clone)]
enum Kind {
    Duration {
        default: Duration,
        range: RangeInclusive<Duration>,
        field: fn(&mut Config) -> &mut Duration,
    },
    Integer {
        default: u32,
        range: RangeInclusive<u32>,
        field: fn(&mut Config) -> &mut u32,
    },
    SchemaName {
        default: &'static str,
        field: fn(&mut Config) -> &mut String,
    },
    /// Values of a filter by something. None are everything.
    Filter {
        by: FilterBy,
        field: fn(&mut Config) -> &mut Vec<String>,
    },
}

/// Narrows a filter to some values.
pub(super) type FilterBy = fn(Filter, Vec<String>) -> Filter;

/// Why a value is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refusal {
    /// It is not what is expected.
    Unexpected,
    /// It breaks a rule, whose sentence holds no value.
    Rule(String),
}

/// All keys, in the order of the guide.
pub const KEYS: &[Key] = &[
    integer(
        "database.max_connections",
        10,
        3..=1000,
        |config| &mut config.database.max_connections,
        "How many connections the process may have in its pool; the one that listens comes on top. The sequencer keeps one. More consumers need more, the server has a bound of its own.",
    ),
    duration(
        "database.lock_timeout",
        secs(5),
        ms(1)..=hours(1),
        |config| &mut config.database.lock_timeout,
        "How long a statement of a consumer waits for a lock, so that somebody who holds one for long delays a round and does not stop it.",
    ),
    duration(
        "database.statement_timeout",
        secs(30),
        ms(1)..=hours(1),
        |config| &mut config.database.statement_timeout,
        "How long a statement may take before its connection is given up; a server that vanished without a word is noticed by this.",
    ),
    duration(
        "database.idle_in_tx_timeout",
        secs(60),
        ms(1)..=days(1),
        |config| &mut config.database.idle_in_tx_timeout,
        "After which time without a statement the server ends a transaction, so that a stuck process gives up its locks.",
    ),
    duration(
        "database.listen_reconnect_backoff_cap",
        secs(30),
        ms(100)..=hours(1),
        |config| &mut config.database.listen_reconnect_backoff_cap,
        "The longest pause between two attempts to listen; polling goes on meanwhile.",
    ),
    duration(
        "database.listen_heartbeat_interval",
        secs(10),
        ms(100)..=hours(1),
        |config| &mut config.database.listen_heartbeat_interval,
        "How often a silent listening connection is asked whether it is alive; a half-open one is found out by this.",
    ),
    duration(
        "database.listen_heartbeat_timeout",
        secs(5),
        ms(100)..=hours(1),
        |config| &mut config.database.listen_heartbeat_timeout,
        "How long a listening connection may take to be made, and to answer, before it counts as lost.",
    ),
    duration(
        "sync.event_retention",
        days(30),
        secs(1)..=days(36_500),
        |config| &mut config.sync.event_retention,
        "How long events stay in the log.",
    ),
    duration(
        "sync.event_retention_hold",
        days(30),
        Duration::ZERO..=days(36_500),
        |config| &mut config.sync.event_retention_hold,
        "How much longer expired events stay because a consumer has not passed them: whoever is further behind has lost some. With 0s retention waits for nobody.",
    ),
    duration(
        "sync.event_log_partition_max_age",
        days(7),
        secs(1)..=days(36_500),
        |config| &mut config.sync.event_log_partition_max_age,
        "After which time a partition is closed although it is not full, because only whole partitions expire.",
    ),
    duration(
        "sync.partition_maintenance_interval",
        hours(1),
        secs(1)..=days(7),
        |config| &mut config.sync.partition_maintenance_interval,
        "How often partitions are created, closed and dropped; appends need one that exists in time.",
    ),
    duration(
        "sync.detach_lock_timeout",
        ms(50),
        ms(1)..=hours(1),
        |config| &mut config.sync.detach_lock_timeout,
        "How long the first attempt to drop a partition waits for its lock, and appends behind it; each further attempt waits twice as long.",
    ),
    duration(
        "sync.detach_lock_timeout_max",
        secs(1),
        ms(1)..=hours(1),
        |config| &mut config.sync.detach_lock_timeout_max,
        "The longest that an attempt to drop a partition waits, and so appends behind it.",
    ),
    integer(
        "sync.detach_attempts",
        5,
        1..=100,
        |config| &mut config.sync.detach_attempts,
        "How often a drop is tried before it is left to the next run, so that no run goes on for ever.",
    ),
    duration(
        "sync.detach_retry_pause",
        ms(500),
        ms(1)..=hours(1),
        |config| &mut config.sync.detach_retry_pause,
        "Pause between two attempts, in which appends that queued behind the first go on.",
    ),
    duration(
        "sequencer.lease",
        ms(600),
        ms(100)..=secs(30),
        |config| &mut config.sequencer.lease,
        "How long the sequencer of another process waits for the one that numbers and has stopped without a word: for so long events have no number then. A pause of the process that is longer hands its work over.",
    ),
    duration(
        "sequencer.poll_interval",
        ms(4),
        ms(1)..=secs(10),
        |config| &mut config.sequencer.poll_interval,
        "Pause between two batches while events come: how long they wait for their numbers. A longer one makes larger batches, which cost less each.",
    ),
    duration(
        "sequencer.idle_poll_interval",
        ms(20),
        ms(1)..=secs(10),
        |config| &mut config.sequencer.idle_poll_interval,
        "Pause between two looks when none have come for a second: how long the next event waits for its number, and how often an idle database is asked.",
    ),
    integer(
        "sequencer.batch_size",
        1000,
        1..=10_000,
        |config| &mut config.sequencer.batch_size,
        "How many transactions are numbered at once at most; more of them hold the numbering lock for longer.",
    ),
    integer(
        "consumer.batch_size",
        200,
        1..=10_000,
        |config| &mut config.consumer.batch_size,
        "How many events a round handles in one transaction; more of them cost less each, and a failure repeats more.",
    ),
    integer(
        "consumer.scan_size",
        10_000,
        1..=1_000_000,
        |config| &mut config.consumer.scan_size,
        "How many events a round of a consumer with a filter looks at for those that it handles; it keeps a round short when few match.",
    ),
    duration(
        "consumer.poll_interval",
        secs(2),
        ms(10)..=hours(1),
        |config| &mut config.consumer.poll_interval,
        "Longest time between two looks at the log: the delay when notifications are lost.",
    ),
    duration(
        "consumer.event_timeout",
        secs(30),
        ms(1)..=days(1),
        |config| &mut config.consumer.event_timeout,
        "How long a handler may take for one event before its round fails, so that one that hangs does not hold its transaction for ever.",
    ),
    duration(
        "consumer.failure_backoff_cap",
        secs(30),
        ms(10)..=hours(1),
        |config| &mut config.consumer.failure_backoff_cap,
        "The longest pause after failed rounds: how soon a consumer goes on after its fault is mended.",
    ),
    duration(
        "consumer.pending_alert_after",
        mins(10),
        secs(1)..=days(36_500),
        |config| &mut config.consumer.pending_alert_after,
        "The age of the oldest pending event from which your alert rule is to fire; a worker itself does nothing at it. A restart, which takes no longer than the shutdown and a few polls, stays far below the default.",
    ),
    filter(
        "recorder.types",
        Filter::types,
        |config| &mut config.recorder.types,
        "Which types of events the recorder logs, such as order.created, or order.* for all that begin with order. Without any it logs all types.",
    ),
    filter(
        "recorder.spaces",
        Filter::spaces,
        |config| &mut config.recorder.spaces,
        "Of which spaces it logs events. Without any it logs those of all, and those of none.",
    ),
    filter(
        "recorder.channels",
        Filter::channels,
        |config| &mut config.recorder.channels,
        "Of which channels it logs events. Without any it logs those of all, and those of none.",
    ),
    filter(
        "recorder.resource_kinds",
        Filter::resource_kinds,
        |config| &mut config.recorder.resource_kinds,
        "About resources of which kinds it logs events. Without any it logs those about all kinds.",
    ),
    Key {
        name: "jobs.schema",
        doc: "The schema in which River keeps the server's own jobs. All processes on a database have to name the same.",
        kind: Kind::SchemaName { default: "seqline_jobs", field: |config| &mut config.jobs.schema },
    },
    duration(
        "jobs.poll_interval",
        secs(1),
        ms(10)..=hours(1),
        |config| &mut config.jobs.poll_interval,
        "How often each queue of a process is asked for jobs: the delay before a job begins.",
    ),
    integer(
        "jobs.max_workers",
        4,
        1..=1000,
        |config| &mut config.jobs.max_workers,
        "How many jobs of a queue a process runs at the same time; each may need a connection of the pool.",
    ),
    duration(
        "jobs.timeout",
        mins(4),
        ms(100)..=days(1),
        |config| &mut config.jobs.timeout,
        "How long an attempt of a job may take before it is asked to stop and fails, so that one that hangs is tried again.",
    ),
    duration(
        "jobs.rescue_after",
        mins(5),
        secs(1)..=days(7),
        |config| &mut config.jobs.rescue_after,
        "After which time a running job counts as lost with its worker, and is given to another.",
    ),
    duration(
        "jobs.retry_backoff_cap",
        mins(10),
        ms(10)..=days(1),
        |config| &mut config.jobs.retry_backoff_cap,
        "The longest pause before the next attempt of a job that failed: how soon it goes on after its fault is mended.",
    ),
    duration(
        "jobs.completed_retention",
        days(7),
        secs(1)..=days(36_500),
        |config| &mut config.jobs.completed_retention,
        "How long completed jobs are kept; as long as it is there, a run keeps its interval from getting another.",
    ),
    duration(
        "jobs.discarded_retention",
        days(30),
        secs(1)..=days(36_500),
        |config| &mut config.jobs.discarded_retention,
        "How long discarded jobs are kept for you to look at.",
    ),
    duration(
        "shutdown.total_timeout",
        secs(30),
        ms(100)..=hours(1),
        |config| &mut config.shutdown.total_timeout,
        "How long the whole end of the process may take; what still runs then is dropped, and its round rolls back.",
    ),
];

impl Key {
    /// The key with this name.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Key> {
        KEYS.iter().find(|key| key.name == name)
    }

    /// The variable that sets it.
    #[must_use]
    pub fn variable(&self) -> String {
        format!("SEQLINE_{}", self.name.replace('.', "__").to_uppercase())
    }

    /// The default as one would type it.
    #[must_use]
    pub fn default_text(&self) -> String {
        match &self.kind {
            Kind::Duration { default, .. } => values::duration_text(*default),
            Kind::Integer { default, .. } => default.to_string(),
            Kind::SchemaName { default, .. } => (*default).to_owned(),
            Kind::Filter { .. } => String::new(),
        }
    }

    /// The smallest and the largest value, as words.
    #[must_use]
    pub fn bounds(&self) -> String {
        match &self.kind {
            Kind::Duration { range, .. } => {
                format!(
                    "{} to {}",
                    values::duration_text(*range.start()),
                    values::duration_text(*range.end())
                )
            }
            Kind::Integer { range, .. } => format!("{} to {}", range.start(), range.end()),
            Kind::SchemaName { .. } => format!("1 to {SCHEMA_NAME_BYTES_MAX} bytes"),
            Kind::Filter { .. } => {
                format!("up to {FILTER_VALUES_MAX} values of 1 to {TEXT_CHARACTERS_MAX} characters")
            }
        }
    }

    /// What a value has to be.
    #[must_use]
    pub fn expected(&self) -> String {
        let bounds = self.bounds();
        match self.kind {
            Kind::Duration { .. } => format!("a duration with its unit, such as \"1s\", from {bounds}"),
            Kind::Integer { .. } => format!("a whole number from {bounds}"),
            Kind::Filter { .. } => format!("a list of texts, {bounds}"),
            Kind::SchemaName { .. } => format!(
                "the name of a schema of {bounds}: a-z, 0-9 and _, no digit first, not seqline and not pg_..."
            ),
        }
    }

    /// Sets the default.
    pub(super) fn reset(&self, config: &mut Config) {
        match &self.kind {
            Kind::Duration { default, field, .. } => *field(config) = *default,
            Kind::Integer { default, field, .. } => *field(config) = *default,
            Kind::SchemaName { default, field } => *field(config) = (*default).to_owned(),
            Kind::Filter { field, .. } => field(config).clear(),
        }
    }

    /// Sets the value if it is as expected.
    pub(super) fn set(&self, config: &mut Config, given: Given<'_>) -> Result<(), Refusal> {
        match &self.kind {
            Kind::Duration { range, field, .. } => assign(field(config), values::duration(given, range)),
            Kind::Integer { range, field, .. } => assign(field(config), values::integer(given, range)),
            Kind::SchemaName { field, .. } => assign(field(config), values::schema_name(given)),
            Kind::Filter { by, field } => {
                let list = values::texts(given).ok_or(Refusal::Unexpected)?;
                if !list.is_empty() {
                    let rule = by(Filter::everything(), list.clone()).check();
                    rule.map_err(|rule| Refusal::Rule(rule.to_string()))?;
                }
                *field(config) = list;
                Ok(())
            }
        }
    }

    /// The same for a variable, in which everything is text.
    pub(super) fn set_text(&self, config: &mut Config, text: &str) -> Result<(), Refusal> {
        match &self.kind {
            Kind::Duration { .. } | Kind::SchemaName { .. } => self.set(config, Given::Text(text)),
            Kind::Integer { .. } => {
                self.set(config, text.trim().parse().map_or(Given::Other, Given::Integer))
            }
            Kind::Filter { .. } => {
                let list: Vec<&str> = text.split(',').map(str::trim).collect();
                self.set(config, Given::Texts(if text.trim().is_empty() { &[] } else { &list }))
            }
        }
    }
}

fn assign<T>(field: &mut T, value: Option<T>) -> Result<(), Refusal> {
    *field = value.ok_or(Refusal::Unexpected)?;
    Ok(())
}

const fn duration(
    name: &'static str,
    default: Duration,
    range: RangeInclusive<Duration>,
    field: fn(&mut Config) -> &mut Duration,
    doc: &'static str,
) -> Key {
    Key { name, doc, kind: Kind::Duration { default, range, field } }
}

const fn integer(
    name: &'static str,
    default: u32,
    range: RangeInclusive<u32>,
    field: fn(&mut Config) -> &mut u32,
    doc: &'static str,
) -> Key {
    Key { name, doc, kind: Kind::Integer { default, range, field } }
}

const fn filter(
    name: &'static str,
    by: FilterBy,
    field: fn(&mut Config) -> &mut Vec<String>,
    doc: &'static str,
) -> Key {
    Key { name, doc, kind: Kind::Filter { by, field } }
}

const fn ms(number: u64) -> Duration {
    Duration::from_millis(number)
}

const fn secs(number: u64) -> Duration {
    Duration::from_secs(number)
}

const fn mins(number: u64) -> Duration {
    secs(60 * number)
}

const fn hours(number: u64) -> Duration {
    mins(60 * number)
}

const fn days(number: u64) -> Duration {
    hours(24 * number)
}
