//! Keys about the server's own jobs.

use super::super::kinds::{days, duration, hours, integer, mins, ms, secs};
use super::super::schema::{Key, Kind};

pub(super) const SCHEMA: Key = Key {
    name: "jobs.schema",
    doc: "The schema in which River keeps the server's own jobs. All processes on a database have to name the same.",
    kind: Kind::SchemaName { default: "seqline_jobs", field: |config| &mut config.jobs.schema },
};

pub(super) const POLL_INTERVAL: Key = duration(
    "jobs.poll_interval",
    secs(1),
    ms(10)..=hours(1),
    |config| &mut config.jobs.poll_interval,
    "How often each queue of a process is asked for jobs: the delay before a job begins.",
);

pub(super) const MAX_WORKERS: Key = integer(
    "jobs.max_workers",
    4,
    1..=1000,
    |config| &mut config.jobs.max_workers,
    "How many jobs of a queue a process runs at the same time; each may need a connection of the pool.",
);

pub(super) const TIMEOUT: Key = duration(
    "jobs.timeout",
    mins(4),
    ms(100)..=days(1),
    |config| &mut config.jobs.timeout,
    "How long an attempt of a job may take before it is asked to stop and fails, so that one that hangs is tried again.",
);

pub(super) const RESCUE_AFTER: Key = duration(
    "jobs.rescue_after",
    mins(5),
    secs(1)..=days(7),
    |config| &mut config.jobs.rescue_after,
    "After which time a running job counts as lost with its worker, and is given to another.",
);

pub(super) const RETRY_BACKOFF_CAP: Key = duration(
    "jobs.retry_backoff_cap",
    mins(10),
    ms(10)..=days(1),
    |config| &mut config.jobs.retry_backoff_cap,
    "The longest pause before the next attempt of a job that failed: how soon it goes on after its fault is mended.",
);

pub(super) const COMPLETED_RETENTION: Key = duration(
    "jobs.completed_retention",
    days(7),
    secs(1)..=days(36_500),
    |config| &mut config.jobs.completed_retention,
    "How long completed jobs are kept; as long as it is there, a run keeps its interval from getting another.",
);

pub(super) const DISCARDED_RETENTION: Key = duration(
    "jobs.discarded_retention",
    days(30),
    secs(1)..=days(36_500),
    |config| &mut config.jobs.discarded_retention,
    "How long discarded jobs are kept for you to look at.",
);
