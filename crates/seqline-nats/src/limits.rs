//! Every bound that is not a setting, with its reason.

use std::time::Duration;

/// How long a connection may take. A broker on the same continent answers within a second; a firewall that drops packets never does.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

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

/// How much later than the server a statement is given up here: the way there and back, so that as a rule the server says why it ended.
pub(crate) const NETWORK_MARGIN: Duration = Duration::from_secs(2);

/// How often a session of the database looks whether its client is still there while it works. So an effect that was given up holds no event
/// for longer.
pub(crate) const CLIENT_CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// How many retries are looked for at once, at most. Each can be a read of the log of its own.
pub(crate) const RETRIES_BATCH_MAX: u32 = 100;

/// How often the broker is asked how much waits for a consumer. For figures alone.
pub(crate) const CONSUMER_FACTS_INTERVAL: Duration = Duration::from_secs(10);

/// How long what was said last may take to get to the broker when a consumer ends.
pub(crate) const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);
