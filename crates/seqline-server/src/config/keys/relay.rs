//! Keys about what copies the log into a stream, and about consumers of it.

use std::time::Duration;

use seqline_nats::relay::RelayStart;

use super::super::kinds::{choice, days, duration, hours, integer, mins, ms, secs};
use super::super::nats::Runs;
use super::super::schema::{Key, Kind};
use super::super::values::RELAY_NAME;

/// The names of [`Runs`], in their order.
const RUNS: &[&str] = &["auto", "on", "off"];

/// In the order of their names.
const STARTS: [RelayStart; 2] = [RelayStart::Oldest, RelayStart::Head];

pub(super) const MODE: Key = choice(
    "relay.mode",
    RUNS,
    |config, index| config.relay.mode = Runs::ALL[index],
    |config| config.relay.mode as usize,
    "Whether the roles worker and all copy the log into the stream. auto does where the URL of a broker was given, because most databases have no broker beside them; on without a URL looks for one at nats://localhost:4222. The role relay always does, unless this is off.",
);

pub(super) const NAME: Key = Key {
    name: "relay.name",
    doc: "Which relay it is. Processes that name the same take turns; a relay of another name is another copy of the log, and needs a stream of its own.",
    kind: Kind::Name { default: "jetstream", form: &RELAY_NAME, field: |config| &mut config.relay.name },
};

pub(super) const START: Key = choice(
    "relay.start",
    &["oldest", "head"],
    |config, index| config.relay.start = STARTS[index],
    |config| config.relay.start as usize,
    "Where a relay begins that is new: with the oldest event that the log holds, or with what is appended from then on.",
);

pub(super) const WINDOW: Key = integer(
    "relay.window",
    1000,
    1..=4096,
    |config| &mut config.relay.window,
    "How many messages may be on their way that the broker has not acknowledged. More are faster, and a longer walk after an error.",
);

pub(super) const WINDOW_BYTES: Key = integer(
    "relay.window_bytes",
    8 * 1024 * 1024,
    64 * 1024..=256 * 1024 * 1024,
    |config| &mut config.relay.window_bytes,
    "How many bytes they may have together, which are in memory meanwhile. One message is sent in any case.",
);

pub(super) const PAGE: Key = integer(
    "relay.page",
    500,
    1..=10_000,
    |config| &mut config.relay.page,
    "How many events it reads from the log at once.",
);

pub(super) const POLL_INTERVAL: Key = duration(
    "relay.poll_interval",
    ms(200),
    ms(10)..=mins(1),
    |config| &mut config.relay.poll_interval,
    "How often it looks for events when it has come to the end of the log: how late they are in the stream.",
);

pub(super) const LEASE: Key = duration(
    "relay.lease",
    secs(10),
    secs(1)..=mins(10),
    |config| &mut config.relay.lease,
    "After what time without a word from the process that runs it another one takes it over. Two at once would be in each other's way, and the stream takes each message once all the same.",
);

pub(super) const RESYNC_BACKOFF_CAP: Key = duration(
    "relay.resync_backoff_cap",
    secs(5),
    ms(20)..=mins(5),
    |config| &mut config.relay.resync_backoff_cap,
    "The longest pause before it tries again after an error: how soon it goes on when the broker is back.",
);

pub(super) const ACK_TIMEOUT: Key = duration(
    "relay.ack_timeout",
    secs(5),
    ms(100)..=mins(2),
    |config| &mut config.relay.ack_timeout,
    "How long the broker may take to acknowledge a message before the relay looks whether it is there.",
);

pub(super) const ATOMIC_BATCHES: Key = integer(
    "relay.atomic_batches",
    0,
    0..=1000,
    |config| &mut config.relay.atomic_batches,
    "How many messages it publishes at once, all or none, with nats-server 2.12.1 and newer. At 0 each is on its own, which works everywhere. With three replicas batches of 100 to 500 are faster.",
);

pub(super) const RECORDER: Key = choice(
    "stream_consumer.recorder",
    RUNS,
    |config, index| config.stream_consumer.recorder = Runs::ALL[index],
    |config| config.stream_consumer.recorder as usize,
    "Whether the process has the built-in consumer of the stream, which logs a line for each event: it shows that everything arrives. auto does where the URL of a broker was given, and in the role relay.",
);

pub(super) const BATCH_SIZE: Key = integer(
    "stream_consumer.batch_size",
    25,
    1..=500,
    |config| &mut config.stream_consumer.batch_size,
    "How many messages a consumer of the stream fetches at once, which are one transaction.",
);

pub(super) const ACK_WAIT: Key = duration(
    "stream_consumer.ack_wait",
    secs(30),
    secs(1)..=hours(1),
    |config| &mut config.stream_consumer.ack_wait,
    "After what time without a word the broker gives a message to somebody else: how long what a process had in hand waits when it was killed. What is in work says so three times in that time.",
);

pub(super) const MAX_ACK_PENDING: Key = integer(
    "stream_consumer.max_ack_pending",
    100,
    1..=10_000,
    |config| &mut config.stream_consumer.max_ack_pending,
    "How many messages all processes together may have in hand.",
);

pub(super) const ATTEMPTS: Key = integer(
    "stream_consumer.attempts",
    5,
    1..=100,
    |config| &mut config.stream_consumer.attempts,
    "How often a handler may fail with an event before it is given up and becomes a dead letter. Failures are counted in the database; what the broker delivers again for other reasons is none.",
);

pub(super) const RETRY_BACKOFF_CAP: Key = duration(
    "stream_consumer.retry_backoff_cap",
    mins(5),
    secs(1)..=days(1),
    |config| &mut config.stream_consumer.retry_backoff_cap,
    "The longest pause between two attempts; pauses begin with a second and double.",
);

pub(super) const HANDLER_TIMEOUT: Key = duration(
    "stream_consumer.handler_timeout",
    secs(10),
    ms(10)..=hours(1),
    |config| &mut config.stream_consumer.handler_timeout,
    "How long a handler may take for one event before that is a failure.",
);

pub(super) const RECONCILE_INTERVAL: Key = duration(
    "stream_consumer.reconcile_interval",
    secs(60),
    secs(1)..=days(1),
    |config| &mut config.stream_consumer.reconcile_interval,
    "How often a consumer compares the log with what it has handled, so that what the broker has dropped is handled all the same.",
);

pub(super) const LEDGER_MARGIN: Key = duration(
    "stream_consumer.ledger_margin",
    days(7),
    Duration::ZERO..=days(36_500),
    |config| &mut config.stream_consumer.ledger_margin,
    "How much longer it is remembered that an event was handled than it can be in the log (`sync.event_retention`, `sync.event_retention_hold` and `sync.event_log_partition_max_age`) and then in the stream (`stream.max_age`).",
);
