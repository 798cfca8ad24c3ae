//! Every bound that is not a setting, with its reason.

use std::time::Duration;

/// How long a connection may take. A broker on the same continent answers within a second; a firewall that drops packets never does.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a connection may be away before another one is opened in its place, for which files are read again. A broker that is restarted is back
/// before that.
pub(crate) const CONNECT_ANEW_AFTER: Duration = Duration::from_secs(30);

/// How long the broker may take to answer a request of its API. A cluster that elects a leader is silent for a few seconds, and is asked again.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// How many consumers of a stream are reported. Each has tables in the database, and nobody reads a longer list.
pub(crate) const CONSUMERS_REPORTED_MAX: usize = 1000;

/// When a message comes again whose event another process has in hand. That one is about to end, or to be found out.
pub(crate) const BUSY_DELAY: Duration = Duration::from_secs(1);

/// Filters of a consumer. More than that cost the broker more for each message than it saves; the consumer is sent everything then and leaves
/// out the rest itself.
pub(crate) const FILTER_SUBJECTS_MAX: usize = 256;

/// How often an event may lose a conflict in the database, such as a deadlock, before that counts as its failure. The first ones are bad luck.
pub(crate) const CONFLICTS_MAX: u32 = 3;

/// How long a failure waits for the transaction that it ended to be gone from the server, which then lets go of the event.
pub(crate) const FAILED_LOCK_WAIT: Duration = Duration::from_secs(10);

/// How long it waits each time that it is tried again. The pass goes on without it.
pub(crate) const OWED_LOCK_WAIT: Duration = Duration::from_millis(50);

/// How many failures of a consumer may wait to be recorded. Each is of an event that another process has had in hand for longer than that.
pub(crate) const OWED_MAX: usize = 100;

/// How much later than the server a statement is given up here: the way there and back, so that as a rule the server says why it ended.
pub(crate) const NETWORK_MARGIN: Duration = Duration::from_secs(2);

/// How often a session of the database looks whether its client is still there while it works. So an effect that was given up holds no event
/// for longer.
pub(crate) const CLIENT_CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Most events of a consumer in one transaction. Each takes a lock that is kept in the memory that all sessions of the server share, which by
/// default has room for 6,400 of them.
pub(crate) const CONSUMER_BATCH_MAX: u32 = 500;

/// Of how many events it is known how many conflicts they have lost. As many as can be in hand, as a rule.
pub(crate) const BAD_LUCK_MAX: usize = 1000;

/// How many dead letters are settled in one transaction where all are meant, as `seqline.settle_dead_letters` has it.
pub(crate) const SETTLED_AT_ONCE: i64 = 1000;

/// How many retries are looked for at once, at most. Each can be a read of the log of its own.
pub(crate) const RETRIES_BATCH_MAX: u32 = 100;

/// How often the broker is asked how much waits for a consumer. For figures alone.
pub(crate) const CONSUMER_FACTS_INTERVAL: Duration = Duration::from_secs(10);

/// How long what was said last may take to get to the broker when a consumer ends.
pub(crate) const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// Most messages that a relay has under way at once. What it looks through after a loss grows with it, and more than this is no faster.
pub(crate) const RELAY_WINDOW_MAX: u32 = 4096;

/// Most bytes that a relay has under way at once, whatever its settings say: they are in memory twice, here and at the broker.
pub(crate) const RELAY_WINDOW_BYTES_MAX: u32 = 256 * 1024 * 1024;

/// Messages that are read from the stream and compared with the log at once. Also how many requests for them are under way.
pub(crate) const WALK_CHUNK: u64 = 256;

/// How far back a relay looks in a stream for a message of its log. Who keeps more than that of somebody else's messages behind the last one
/// of ours has the log published again.
pub(crate) const LOOK_BACK_MAX: u64 = 1_000_000;

/// The first pause after a failure of a relay. As a rule a connection that was cut is back within that.
pub(crate) const RESYNC_PAUSE: Duration = Duration::from_millis(20);

/// How often a relay that has messages under way looks whether its connection is still the same and its answers are in time.
pub(crate) const WATCH_INTERVAL: Duration = Duration::from_millis(20);

/// How long a relay that is to stop waits for what is under way. It is found again when somebody goes on.
pub(crate) const STOP_PATIENCE: Duration = Duration::from_secs(2);

/// How often the facts about the stream are asked for again.
pub(crate) const STREAM_FACTS_INTERVAL: Duration = Duration::from_secs(10);

/// How often a relay looks whether the history of the log is settled, beside each time that it begins anew.
pub(crate) const HISTORY_LOOK_INTERVAL: Duration = Duration::from_secs(10);

/// Most events of an atomic batch: what brokers take.
pub(crate) const BATCH_MAX: u32 = 1000;

/// What the broker adds to a message in its store, at most. Only where a stream is so small that one message fills it does that matter.
pub(crate) const STORED_OVERHEAD: usize = 64;

/// Fewer events than this between two messages of somebody else, and nothing is gained by having many under way.
pub(crate) const CROWDED_BELOW: u64 = 32;

/// How often in a row it has to be so before events are published for no place.
pub(crate) const CROWDED_AFTER: u32 = 3;

/// How many are published so before the usual way is tried again.
pub(crate) const SINGLY_AT_ONCE: usize = 100;

/// After how many passes in a row without progress a relay says what they ended with, where one alone means nothing. With the pauses in between
/// that is ten seconds at least: a cluster has elected a leader by then, and a connection that was cut is back.
pub(crate) const STALLED_AFTER: u32 = 10;

/// How often a relay says in the log of the process that it met something of a kind. The row counts all of it.
pub(crate) const INCIDENT_LOG_INTERVAL: Duration = Duration::from_secs(60);
