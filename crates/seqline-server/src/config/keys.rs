//! The table of all keys.
//!
//! The page of the guide and the defaults of the library are compared with it by tests.

use core::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::ops::RangeInclusive;
use std::time::Duration;

use seqline::consumer::Filter;
use seqline::identity::OnChange;

use super::Config;
use super::schema::{FilterBy, Key, Kind};

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
    switch(
        "database.listen",
        true,
        |config| &mut config.database.listen,
        "Whether the process listens for commits. With false it only polls and makes no connection that listens, for where nothing but a pooler in transaction mode can be reached.",
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
        "sync.clock_skew_max",
        mins(5),
        secs(1)..=days(1),
        |config| &mut config.sync.clock_skew_max,
        "How far the clock of the process may be from that of the database before maintenance neither closes nor drops anything: a clock that is wrong by months would drop the log.",
    ),
    duration(
        "sync.log_poll_interval",
        secs(1),
        ms(10)..=hours(1),
        |config| &mut config.sync.log_poll_interval,
        "Longest time between two looks of the tail at the log: the delay of live delivery when notifications are lost.",
    ),
    integer(
        "sync.tail_batch_size",
        500,
        1..=10_000,
        |config| &mut config.sync.tail_batch_size,
        "How many events the tail reads at once, which are in memory at most.",
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
    address(
        "ops.listen",
        SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 7465)),
        |config| &mut config.ops.listen,
        "Where the process answers /livez, /readyz and /metrics. Nobody is asked who they are there, so it is this machine only; port 0 takes a free one, which the log names.",
    ),
    integer(
        "ops.max_connections",
        64,
        1..=10_000,
        |config| &mut config.ops.max_connections,
        "How many connections it answers there at the same time; more of them wait. A scraper and a few probes need one each.",
    ),
    duration(
        "ops.request_timeout",
        secs(5),
        ms(100)..=mins(10),
        |config| &mut config.ops.request_timeout,
        "How long a client may take to say what it wants, and a connection to be used again, so that one that says nothing keeps no place.",
    ),
    duration(
        "ops.look_interval",
        secs(2),
        ms(100)..=mins(10),
        |config| &mut config.ops.look_interval,
        "How often the process looks whether the database answers, is the same and takes writes: how soon /readyz tells.",
    ),
    duration(
        "ops.ready_lag_max",
        secs(10),
        ms(100)..=hours(1),
        |config| &mut config.ops.ready_lag_max,
        "How long the tail may take to get to a number that the log has before /readyz says that it is stuck.",
    ),
    choice(
        "epoch.on_change",
        &["refuse", "new_epoch", "accept"],
        |config, index| config.epoch.on_change = OnChange::ALL[index],
        |config| config.epoch.on_change as usize,
        "What to do when the database is not the one to which the numbers belong, as after a restore: refuse waits for seqline restore finalize, new_epoch does that by itself and keeps cursors, accept takes a failover that lost nothing for the same history and waits otherwise.",
    ),
    duration(
        "telemetry.refresh_interval",
        secs(10),
        ms(100)..=mins(10),
        |config| &mut config.telemetry.refresh_interval,
        "How often the gauges that come from the database are read; a scrape shows what was read last, and nothing that is older than three of these.",
    ),
    Key {
        name: "telemetry.otlp_endpoint",
        doc: "Where metrics and traces are sent, such as http://127.0.0.1:4318. Without one nothing is sent; /metrics is there all the same.",
        kind: Kind::Endpoint { field: |config| &mut config.telemetry.otlp_endpoint },
    },
    integer(
        "telemetry.trace_sample_percent",
        10,
        0..=100,
        |config| &mut config.telemetry.trace_sample_percent,
        "Which part of the traces that begin here is recorded; one that began elsewhere is recorded when its beginning was.",
    ),
    integer(
        "alert.partition_headroom",
        500_000,
        1..=4_000_000_000,
        |config| &mut config.alert.partition_headroom,
        "For how many more events partitions have to exist. At none appends fail, and the next run of maintenance makes them.",
    ),
    duration(
        "alert.staged_age",
        secs(10),
        ms(100)..=days(1),
        |config| &mut config.alert.staged_age,
        "How long an event may wait for its number when it is numbered after commit; a sequencer takes milliseconds, another one steps in within a second.",
    ),
    duration(
        "alert.numbering_lock_wait",
        secs(2),
        ms(100)..=hours(1),
        |config| &mut config.alert.numbering_lock_wait,
        "How long a commit may wait for the numbering lock; it fails at the setting numbering_lock_timeout_ms of the database.",
    ),
    integer(
        "alert.notification_queue_percent",
        50,
        1..=100,
        |config| &mut config.alert.notification_queue_percent,
        "How full PostgreSQL's queue of notifications may be. When it is full commits that notify fail; a session that listens and stays in a transaction fills it.",
    ),
    duration(
        "alert.oldest_transaction_age",
        hours(1),
        secs(1)..=days(365),
        |config| &mut config.alert.oldest_transaction_age,
        "How old a transaction may be that keeps vacuum from removing what is dead, which slows all down in time.",
    ),
    duration(
        "alert.fanout_lag",
        secs(5),
        ms(10)..=hours(1),
        |config| &mut config.alert.fanout_lag,
        "How long an event may take from its transaction to the tail of a process.",
    ),
    duration(
        "alert.jobs_overdue_after",
        mins(5),
        secs(1)..=days(1),
        |config| &mut config.alert.jobs_overdue_after,
        "How long a job may be due before nobody seems to work it; polls and retries are far more frequent.",
    ),
    duration(
        "alert.maintenance_age",
        hours(3),
        secs(1)..=days(30),
        |config| &mut config.alert.maintenance_age,
        "How long ago the last run of partition maintenance may have ended: a few of its intervals.",
    ),
    duration(
        "alert.clock_skew",
        secs(2),
        ms(10)..=hours(1),
        |config| &mut config.alert.clock_skew,
        "How far the clock of this machine may be from that of the database before seqline doctor warns.",
    ),
    duration(
        "shutdown.total_timeout",
        secs(30),
        ms(100)..=hours(1),
        |config| &mut config.shutdown.total_timeout,
        "How long the whole end of the process may take; what still runs then is dropped, and its round rolls back.",
    ),
];

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

const fn switch(
    name: &'static str,
    default: bool,
    field: fn(&mut Config) -> &mut bool,
    doc: &'static str,
) -> Key {
    Key { name, doc, kind: Kind::Switch { default, field } }
}

const fn address(
    name: &'static str,
    default: SocketAddr,
    field: fn(&mut Config) -> &mut SocketAddr,
    doc: &'static str,
) -> Key {
    Key { name, doc, kind: Kind::Address { default, field } }
}

/// The first name is the default.
const fn choice(
    name: &'static str,
    names: &'static [&'static str],
    set: fn(&mut Config, usize),
    get: fn(&Config) -> usize,
    doc: &'static str,
) -> Key {
    Key { name, doc, kind: Kind::Choice { names, set, get } }
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
