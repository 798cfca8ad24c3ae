//! Keys about when something is worth a look.

use super::super::kinds::{days, duration, hours, integer, mins, ms, secs};
use super::super::schema::Key;

pub(super) const PARTITION_HEADROOM: Key = integer(
    "alert.partition_headroom",
    500_000,
    1..=4_000_000_000,
    |config| &mut config.alert.partition_headroom,
    "For how many more events partitions have to exist. At none appends fail, and the next run of maintenance makes them.",
);

pub(super) const STAGED_AGE: Key = duration(
    "alert.staged_age",
    secs(10),
    ms(100)..=days(1),
    |config| &mut config.alert.staged_age,
    "How long an event may wait for its number when it is numbered after commit; a sequencer takes milliseconds, another one steps in within a second.",
);

pub(super) const NUMBERING_LOCK_WAIT: Key = duration(
    "alert.numbering_lock_wait",
    secs(2),
    ms(100)..=hours(1),
    |config| &mut config.alert.numbering_lock_wait,
    "How long a commit may wait for the numbering lock; it fails at the setting numbering_lock_timeout_ms of the database.",
);

pub(super) const NOTIFICATION_QUEUE_PERCENT: Key = integer(
    "alert.notification_queue_percent",
    50,
    1..=100,
    |config| &mut config.alert.notification_queue_percent,
    "How full PostgreSQL's queue of notifications may be. When it is full commits that notify fail; a session that listens and stays in a transaction fills it.",
);

pub(super) const OLDEST_TRANSACTION_AGE: Key = duration(
    "alert.oldest_transaction_age",
    hours(1),
    secs(1)..=days(365),
    |config| &mut config.alert.oldest_transaction_age,
    "How old a transaction may be that keeps vacuum from removing what is dead, which slows all down in time.",
);

pub(super) const FANOUT_LAG: Key = duration(
    "alert.fanout_lag",
    secs(5),
    ms(10)..=hours(1),
    |config| &mut config.alert.fanout_lag,
    "How long an event may take from its transaction to the tail of a process.",
);

pub(super) const JOBS_OVERDUE_AFTER: Key = duration(
    "alert.jobs_overdue_after",
    mins(5),
    secs(1)..=days(1),
    |config| &mut config.alert.jobs_overdue_after,
    "How long a job may be due before nobody seems to work it; polls and retries are far more frequent.",
);

pub(super) const MAINTENANCE_AGE: Key = duration(
    "alert.maintenance_age",
    hours(3),
    secs(1)..=days(30),
    |config| &mut config.alert.maintenance_age,
    "How long ago the last run of partition maintenance may have ended: a few of its intervals.",
);

pub(super) const CLOCK_SKEW: Key = duration(
    "alert.clock_skew",
    secs(2),
    ms(10)..=hours(1),
    |config| &mut config.alert.clock_skew,
    "How far the clock of this machine may be from that of the database before seqline doctor warns.",
);

pub(super) const AGENT_TAKEOVERS: Key = integer(
    "alert.agent_takeovers",
    5,
    1..=1_000_000,
    |config| &mut config.alert.agent_takeovers,
    "How often consumers of agents may be taken from whoever has them within five minutes, for long. Two instances that take one from each other do it for ever.",
);

pub(super) const RELAY_BACKLOG_AGE: Key = duration(
    "alert.relay_backlog_age",
    mins(5),
    ms(100)..=days(365),
    |config| &mut config.alert.relay_backlog_age,
    "How old an event may be that is not in the stream yet. A relay takes a fraction of a second, and another process takes over within relay.lease.",
);

pub(super) const STREAM_FILL_PERCENT: Key = integer(
    "alert.stream_fill_percent",
    80,
    1..=100,
    |config| &mut config.alert.stream_fill_percent,
    "How full the stream may be. At stream.max_bytes messages go before stream.max_age, and consumers that were away get them from the log one by one.",
);

pub(super) const STREAM_CONSUMER_PENDING: Key = integer(
    "alert.stream_consumer_pending",
    10_000,
    1..=4_000_000_000,
    |config| &mut config.alert.stream_consumer_pending,
    "How many messages of the stream may wait for a consumer, for long.",
);
