//! Every bound of the library that is not a setting, with its reason.
//!
//! What SQL enforces for every language is in `seqline.settings`; what a process may choose is in the
//! configuration struct of the component.

use std::time::Duration;

/// Longest name or id, in characters. Integer keys, UUIDs and prefixed ids fit with room to spare, and an
/// index entry stays far below what PostgreSQL can hold.
pub const TEXT_CHARACTERS_MAX: usize = 128;

/// Longest text that is looked at as a payload: the most that the setting `event_payload_max_bytes` can allow, so
/// that no input costs more than that to refuse.
pub const PAYLOAD_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Deepest payload, counted in nested objects and arrays. The usual bound of JSON parsers, so that every
/// reader of the log can parse what was appended.
pub const PAYLOAD_DEPTH_MAX: usize = 127;

/// Longest path in a message, in characters: enough to find the place, too short to carry a document.
pub const MESSAGE_PATH_CHARACTERS_MAX: usize = 200;

/// Events in one statement of [`append`](fn@crate::append); larger calls are split. Past this size a statement
/// gains nothing and its text only costs memory.
pub const APPEND_STATEMENT_EVENTS_MAX: usize = 1_000;

/// Bytes of payload after which a statement of [`append`](fn@crate::append) takes no further event.
pub const APPEND_STATEMENT_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Largest page of the log, in events.
pub const READ_EVENTS_MAX: u32 = 10_000;

/// Most events that a round of a consumer with a filter looks at.
pub const SCAN_EVENTS_MAX: u32 = 1_000_000;

/// Most events of one resource that are looked at for a page of its history, so that a call is short also for somebody who may see none of
/// them.
pub const HISTORY_SCAN_EVENTS_MAX: u32 = 20_000;

/// How long one statement of a background component may take before its connection is given up. There is no
/// TCP keepalive in the driver, so a read from a vanished server would wait for ever.
pub const STATEMENT_DEADLINE: Duration = Duration::from_secs(30);

/// How long taking the migration lock may take: another process is migrating then.
pub const MIGRATE_LOCK_WAIT_MAX: Duration = Duration::from_secs(60);

/// Pause between two attempts at the migration lock.
pub const MIGRATE_LOCK_RETRY: Duration = Duration::from_millis(200);

/// How much later than the server a client gives a statement up: the way there and back, so that as a rule the server says
/// why it ended.
pub const NETWORK_MARGIN: Duration = Duration::from_secs(2);

/// Lanes of a consumer. Each looks at the whole log.
pub const LANES_MAX: u32 = 64;

/// Pause between two looks whether all lanes are at the same place.
pub const LANES_GATHER_PAUSE: Duration = Duration::from_millis(20);

/// The longest that lanes wait for each other, because nothing else is handled by those in front.
pub const LANES_GATHER_MAX: Duration = Duration::from_secs(10 * 60);

/// How much longer lanes wait for each other than whoever asked for it, so that they are still there when they are divided.
pub const LANES_GATHER_MARGIN: Duration = Duration::from_secs(10);

/// Consumers that are named as those who keep a partition. Enough to know whom to ask, and a line of the log stays short.
pub const HOLDERS_NAMED_MAX: usize = 10;

/// Values of one list of a filter: each event is compared with them.
pub const FILTER_VALUES_MAX: usize = 100;

/// How often a round of a consumer is tried that loses against another transaction. Such a conflict is over at once, as a
/// rule; what keeps losing waits like any other failure.
pub const ROUND_ATTEMPTS_MAX: u32 = 3;

/// Jobs that a handler may insert for one event. A round waits in memory until it is written; whoever fans out further does so in a job.
pub const EVENT_JOBS_MAX: usize = 1_000;

/// Jobs after which a round writes those that it has, and in one statement of River's sink. Rounds of the usual size stay far
/// below.
pub const JOBS_STATEMENT_MAX: usize = 10_000;

/// Bytes of jobs after which a round writes those that it has.
pub const JOBS_STATEMENT_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Longest name of River's schema, in bytes: River's notification channels are named after it.
pub const RIVER_SCHEMA_BYTES_MAX: usize = 46;

/// Arguments of a job. Ids and numbers: what needs more of them reads it when it runs.
pub const JOB_ARGUMENTS_MAX: usize = 32;

/// Longest name of an argument, in characters.
pub const JOB_ARGUMENT_NAME_CHARACTERS_MAX: usize = 64;

/// Tags of a job. Each is an entry of an array that is read with every row.
pub const JOB_TAGS_MAX: usize = 32;

/// Paused queues that are named. Enough to see what is going on.
pub const PAUSED_QUEUES_MAX: usize = 100;

/// How long a run of a periodic task counts as going on. After that whoever ran it is taken for dead.
pub const TASK_LEASE: Duration = Duration::from_secs(5 * 60);

/// How far the clock of a process may be from the database's for it to decide what is old enough to be dropped. Far more than clocks that are
/// kept in step differ, and far less than any retention that people choose: a clock that jumps by hours or years shall not take the log with it.
pub const CLOCK_SKEW_MAX: Duration = Duration::from_secs(5 * 60);

/// Rows of each kind in the details of a consumer: what somebody reads. How many there are is told too.
pub const DETAILS_ROWS_MAX: i64 = 20;

/// Rows of the audit log in the details of a consumer.
pub const DETAILS_AUDIT_MAX: i64 = 5;

/// How much of what was before and after a change is in the details of a consumer: all of it, but for the list of many parked events.
pub const AUDIT_CHARACTERS_MAX: i32 = 500;

/// Transactions of a process that may be inside COMMIT at once in one database. They queue for one lock there, and waiting here costs
/// less than waiting in the database; more than one keeps the lock in use while the one that had it is answered.
pub const COMMITS_AT_ONCE: usize = 2;

/// How long a transaction waits for its place in COMMIT before it goes in without: those inside can be waiting for a row that it holds.
pub const COMMIT_GATE_WAIT: Duration = Duration::from_millis(100);

/// How long it is waited for others to flush the write-ahead log before a commit is made only for that. As a rule others flush all the time.
pub const DURABLE_PATIENCE: Duration = Duration::from_millis(5);

/// Pause between two looks how far the write-ahead log is flushed.
pub const DURABLE_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// How long a connection of a pool [for writes](crate::pool::only_for_writes) may be unused before it is asked whether its server still takes
/// them: so busy connections are not asked each time, and an attempt that failed a moment ago is not made on the same one again.
pub const READ_ONLY_CHECK_AFTER: Duration = Duration::from_millis(100);

/// Pause between two looks whether a commit that waits for a synchronous standby has ended.
pub const FLUSH_RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// How often a sequencer writes down how far it has come: what a new one looks at again, and what of a backlog is counted twice.
pub const SEQUENCER_HOUSEKEEPING_INTERVAL: Duration = Duration::from_secs(1);

/// How long a change to numbering inside COMMIT waits for open transactions before it leaves the rest to the sequencer.
pub const STAGING_CLOSE_WAIT: Duration = Duration::from_secs(2);

/// How long making the log read only waits for transactions that have appended, before it says that some are still open.
pub const READ_ONLY_WAIT: Duration = Duration::from_secs(10);

/// Pause between two looks whether they have ended.
pub const STAGING_CLOSE_PAUSE: Duration = Duration::from_millis(20);

/// Waiting transactions that a status counts. Past that, more is no more news.
pub const STAGED_COUNT_MAX: i64 = 1_000_000;

/// Most partitions that are made at once, as the database has it.
pub(crate) const PARTITIONS_AHEAD_MAX: i32 = 300;
