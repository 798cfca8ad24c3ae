//! Every bound of the command, with its reason.

use std::time::Duration;

/// How long a connection may take to be made: longer than a busy server needs, and short enough to wait for.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest name of an import in characters, as the table of imports has it.
pub(crate) const IMPORT_NAME_CHARS_MAX: usize = 512;

/// How much of an input is remembered to recognise it: enough to tell files with the same first lines apart, and read at
/// once.
pub(crate) const HEAD_BYTES: usize = 64 * 1024;

/// Chunks that wait for a writer: enough to keep it busy, few enough to bound memory.
pub(crate) const CHUNKS_WAITING_PER_WRITER: usize = 2;

/// How often a chunk is tried when the database is busy or away. Each attempt waits up to [`CONNECT_TIMEOUT`] for a
/// connection, which is longer than a server takes to restart.
pub(crate) const ATTEMPTS: u32 = 5;

/// Pause before the first retry of a chunk; it doubles.
pub(crate) const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// Largest file with settings: a hundred times more than all of them need.
pub(crate) const CONFIG_BYTES_MAX: u64 = 1024 * 1024;

/// How long a component that was dropped is waited for. One that yields is gone at once.
pub(crate) const DROP_TIMEOUT: Duration = Duration::from_secs(1);

/// How long the end of the process waits for a task that does not yield. Whatever had to be done is done by then.
pub(crate) const RUNTIME_END_TIMEOUT: Duration = Duration::from_secs(5);

/// Pause after the first failed attempt of a job: longer than a lock is held, short beside every interval.
pub(crate) const JOB_RETRY_PAUSE: Duration = Duration::from_secs(5);

/// How often a run of maintenance is tried: with its pauses for about ten minutes. After that something is wrong that time
/// does not mend, and the next run comes anyway.
pub(crate) const MAINTENANCE_ATTEMPTS: i32 = 8;

/// How long changing a consumer waits for a round of it: as a rule a round takes far less, and one that hangs is worth a look.
pub(crate) const ROUND_WAIT_MAX: Duration = Duration::from_secs(10);

/// How often a worker looks whether its jobs can be reached: often enough to be told within twenty seconds.
pub(crate) const JOBS_LOOK_INTERVAL: Duration = Duration::from_secs(10);

/// Longest pause between two fetches, when there is more to fetch.
pub(crate) const JOBS_FETCH_COOLDOWN: Duration = Duration::from_millis(100);

/// How often lost jobs are looked for, at least and at most: a tenth of the time after which one counts as lost is in
/// between.
pub(crate) const JOBS_RESCUE_INTERVAL: (Duration, Duration) =
    (Duration::from_secs(1), Duration::from_secs(30));

/// How often a periodic job is offered at least: how late it can be when it could not be inserted in time.
pub(crate) const JOBS_OFFER_INTERVAL_MAX: Duration = Duration::from_secs(60);

/// How long taking the lock of River's migration may take: another process is migrating then.
pub(crate) const JOBS_MIGRATE_LOCK_WAIT_MAX: Duration = Duration::from_secs(60);

/// Pause between two attempts at that lock.
pub(crate) const JOBS_MIGRATE_LOCK_RETRY: Duration = Duration::from_millis(200);

/// How much of an error is in a list of jobs: what fits beside the rest on a wide terminal.
pub(crate) const JOB_ERROR_CHARS_MAX: usize = 60;

/// Consumers that `status` names for keeping expired partitions: more would push what it says of the log off the screen.
pub(crate) const STATUS_KEEPERS_MAX: usize = 10;

/// Most jobs in one list.
pub(crate) const JOBS_LIST_MAX: u32 = 1000;

/// How many events of a resource are redacted by one request: about as many as a second is enough for, so that it is answered in time.
pub(crate) const API_REDACT_EVENTS_MAX: u32 = 10_000;

/// How long lanes wait for each other at most: those in front do nothing meanwhile.
pub(crate) const LANES_WAIT_MAX: Duration = Duration::from_secs(5 * 60);

/// Most parked events in one list.
pub(crate) const PARKED_LIST_MAX: u32 = 1000;

/// Most principals, tokens or grants in one list. Further ones are behind the last.
pub(crate) const ACCESS_LIST_MAX: u32 = 1000;

/// Tokens and grants that are shown with a principal.
pub(crate) const ACCESS_SHOWN_MAX: u32 = 20;
/// Most rows of the audit log in one list.
pub(crate) const AUDIT_LIST_MAX: u32 = 1000;

/// How much of a text of the audit log is in one line: what fits beside the rest on a wide terminal.
pub(crate) const AUDIT_CELL_CHARS_MAX: usize = 60;

/// How long `append` waits for the number of an event that is numbered after commit: far longer than a sequencer takes, also than
/// another one takes to step in, and short enough to wait for when none runs.
pub(crate) const NUMBER_WAIT_MAX: Duration = Duration::from_secs(1);

/// Pause between two looks whether it is there: about as long as a sequencer takes.
pub(crate) const NUMBER_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// How long a change of numbering waits for a sequencer to take up the work: twice what one takes that had none.
pub(crate) const SEQUENCER_START_WAIT: Duration = Duration::from_secs(2);

/// The largest setting `staged_transactions_max`, as the database has it.
pub(crate) const STAGED_TRANSACTIONS_MAX_MAX: i64 = 1_000_000_000;

/// Transactions that `settings` names for keeping a change from being complete: more are no more news.
pub(crate) const OPEN_TRANSACTIONS_MAX: usize = 10;

/// After which time `tail` says for what it waits: a flush takes milliseconds, and so does a standby that is there.
pub(crate) const DURABLE_SILENCE_MAX: Duration = Duration::from_secs(2);

/// How many intervals a look may be old: one that is late, and one that was missed.
pub(crate) const LOOKS_MISSED_MAX: u32 = 3;

/// The longest head of a request to the operators' address: a hundred times what a probe sends.
pub(crate) const OPS_REQUEST_BYTES_MAX: usize = 16 * 1024;

/// The longest answer that a health check reads.
pub(crate) const HEALTH_BYTES_MAX: usize = 64 * 1024;

/// Pause after a first attempt to reach the database at the start; it doubles up to the cap of listening.
pub(crate) const START_RETRY_PAUSE: Duration = Duration::from_millis(500);

/// How long sending figures or traces may take: what is not there by then is dropped, at the end of the process too.
pub(crate) const TELEMETRY_SEND_TIMEOUT: Duration = Duration::from_secs(3);

/// How long one statement of a check of the doctor may take: what it asks takes milliseconds.
pub(crate) const DOCTOR_STATEMENT_TIMEOUT: Duration = Duration::from_secs(4);

/// How long a whole check may take, with what the network adds.
pub(crate) const DOCTOR_CHECK_TIMEOUT: Duration = Duration::from_secs(10);

/// How long the doctor waits for its own notification: it takes milliseconds.
pub(crate) const DOCTOR_LISTEN_TIMEOUT: Duration = Duration::from_secs(3);

/// How often the doctor asks for the time: the answer that came fastest says most.
pub(crate) const DOCTOR_CLOCK_LOOKS: usize = 3;

/// Consumers, slots and the like that one finding of the doctor names: enough to begin with.
pub(crate) const DOCTOR_NAMES_MAX: usize = 10;

/// Connections of `up` beside those for the API: one for maintenance; the sequencer keeps one, and makes a partition with another when it
/// needs it at once.
pub(crate) const UP_CONNECTIONS: u32 = 3;

/// How long the batch of the sequencer that runs may take at the end of `up`, and what else does.
pub(crate) const UP_END_TIMEOUT: Duration = Duration::from_secs(5);

/// Pause after a connection of a prober or scraper could not be accepted: as a rule the process is out of file descriptors then, and trying
/// at once would only be busy.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The longest head of a request to the API: far more than a token and the headers of a browser.
pub(crate) const API_HEAD_BYTES_MAX: usize = 64 * 1024;

/// Requests at the same time on one connection of the API; more of them wait in the client.
pub(crate) const API_STREAMS_MAX: u32 = 200;

/// How much of an answer is given to a connection of HTTP/2 at a time: a frame. What was given and not sent is in memory for as long as its
/// client does not take it.
pub(crate) const API_PIECE_BYTES: usize = 16 * 1024;

/// How often a client is asked on a connection of HTTP/2 whether it is there: one that vanished without a word is noticed by this.
pub(crate) const API_PING_INTERVAL: Duration = Duration::from_secs(20);

/// The longest id that a client may give its request: what it is found by in logs.
pub(crate) const API_REQUEST_ID_BYTES_MAX: usize = 128;

/// When to come again if the server or its database cannot answer: about as long as a restart takes, and no burden meanwhile.
pub(crate) const API_RETRY_AFTER: Duration = Duration::from_secs(2);

/// Groups of appends that are under way at once: two of them commit, as many as the library lets into COMMIT, while another one is made ready.
pub(crate) const API_APPEND_GROUPS_MAX: usize = 3;

/// How long a group of appends waits for a lock, and how long those of its requests that are tried once more: one request that needs what
/// somebody else's transaction holds, an id for example, holds up a third of all appends for so long. Another server has what it holds for
/// milliseconds.
pub(crate) const API_APPEND_LOCK_WAIT: (Duration, Duration) =
    (Duration::from_millis(500), Duration::from_millis(50));

/// How many times a statement of them may take what it may wait for a lock: a large group takes tens of milliseconds.
pub(crate) const API_APPEND_STATEMENT_FACTOR: u32 = 10;

/// How often a group may wait in vain until all that is left of it is told to come again: often enough to find the one that waits among
/// thousands, or a few.
pub(crate) const API_APPEND_LOCK_WAITS_MAX: u32 = 24;

/// The longest `Idempotency-Key`: what the table has room for.
pub(crate) const API_IDEMPOTENCY_KEY_BYTES_MAX: usize = 255;

/// Keys of requests that are forgotten in one statement: a moment's work.
pub(crate) const API_KEYS_PRUNED_AT_ONCE: i64 = 1000;

/// How many requests of operators are in the database at the same time: people ask few, and everybody else needs connections too.
pub(crate) const API_OPERATORS_MAX: usize = 3;

/// How long one more of them waits: about as long as one takes that waits for a round.
pub(crate) const API_OPERATORS_WAIT: Duration = ROUND_WAIT_MAX;

/// How many requests ask the database at once whether an event is durable that the tail has not had: while a standby is away they hold
/// their connections as long, and the others of the pool are for everybody else.
pub(crate) const API_DURABLE_WAITS_MAX: usize = 2;

/// How long who asks for the head waits for what has just been committed to be durable: a flush takes milliseconds, and so does a standby
/// that is there.
pub(crate) const API_HEAD_WAIT_MAX: Duration = Duration::from_secs(1);

/// How long lanes wait for each other at most when that is asked for over HTTP, and when nothing is said: the request stays open for so long.
pub(crate) const API_LANES_WAIT: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(5));

/// Most partitions in one list.
pub(crate) const PARTITIONS_LIST_MAX: u32 = 1000;

/// Most consumers in one list.
pub(crate) const CONSUMERS_LIST_MAX: u32 = 1000;

/// Credentials that are remembered for a moment, those that give something and those that give nothing each: more than a process has
/// clients at once, and some megabytes of memory.
pub(crate) const PERMISSION_ENTRIES_MAX: usize = 20_000;

/// How long what a credential gives is kept for the case that nothing changes: longer than the pauses between heartbeats.
pub(crate) const PERMISSION_KEPT: Duration = Duration::from_secs(5 * 60);

/// What is kept that long has no more grants than this, each of which takes half a kilobyte, so that as many as may be kept stay below a
/// hundred megabytes. Principals with more are read anew whenever their answers have their age.
pub(crate) const PERMISSION_KEPT_GRANTS_MAX: usize = 8;

/// Questions about credentials that are on their way to the database at once: each takes a millisecond, and the connections of the pool
/// are for the others too.
pub(crate) const PERMISSION_LOADS_MAX: usize = 4;

/// Events that a reader asks the database for before it knows how large they are: few enough that the largest fit into memory, and enough
/// to know.
pub(crate) const API_FIRST_READ_EVENTS: usize = 100;

/// Events that one look into the hub goes through, while the tail has to wait: far below a millisecond.
pub(crate) const HUB_LOOK_EVENTS_MAX: usize = 1000;

/// Events in a page if nobody says how many.
pub(crate) const API_PAGE_EVENTS_USUAL: usize = 100;

/// How long a request looks for the first event for its reader before it is sent on with an empty page: short beside every timeout on its
/// way.
pub(crate) const API_LOOK_MAX: Duration = Duration::from_secs(2);

/// Events, and bytes of them, that a stream takes at once: what is in memory for a client that takes nothing.
pub(crate) const API_STREAM_PAGE_EVENTS: usize = 500;

/// See [`API_STREAM_PAGE_EVENTS`].
pub(crate) const API_STREAM_PAGE_BYTES: usize = 64 * 1024;

/// Pause of a stream before it asks a database again that was away.
pub(crate) const API_RETRY_PAUSE: Duration = Duration::from_millis(500);

/// How long clients wait before they come back, by chance between these: all those of a server that stopped come back at the same time
/// otherwise.
pub(crate) const API_STREAM_RETRY_MIN: Duration = Duration::from_secs(1);

/// See [`API_STREAM_RETRY_MIN`].
pub(crate) const API_STREAM_RETRY_MAX: Duration = Duration::from_secs(5);

/// Credentials that are remembered to have been good, 40 bytes each. More users at once are still let in, at the rate of those who are not known.
pub(crate) const API_KNOWN_MAX: usize = 10_000;

/// After how many requests the rates of those are forgotten who have not asked for a while.
pub(crate) const API_SWEEP_AFTER: usize = 4096;

/// Bodies of requests that are in memory at the same time, in all: more are told to come again. Each is there twice while it is read.
pub(crate) const API_BODIES_KIB_MAX: usize = 256 * 1024;

/// The part of it that a principal can have: one of so many. The largest body that can be allowed fits into it.
pub(crate) const API_BODIES_SHARES: usize = 4;

/// How much of a body that is too large is still taken, so that its sender reads the refusal and does not find a broken connection.
pub(crate) const API_DRAIN_BYTES_MAX: usize = 16 * 1024 * 1024;

/// How long that may take.
pub(crate) const API_DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// Largest answer of an identity provider with its keys. Those in use have some kilobytes.
pub(crate) const JWKS_BYTES_MAX: usize = 256 * 1024;

/// Keys of an identity provider that are looked at: it has a few, and two of each while it changes them.
pub(crate) const JWKS_KEYS_MAX: usize = 100;

/// How often keys are fetched at most: whoever makes up names of keys makes the provider work no harder than that.
pub(crate) const JWKS_PAUSE: Duration = Duration::from_secs(60);

/// The same while no key is known at all, because the provider was away from the start.
pub(crate) const JWKS_RETRY_PAUSE: Duration = Duration::from_secs(5);

/// How far the clock of an identity provider may be from ours for what it says of times.
pub(crate) const JWT_LEEWAY: Duration = Duration::from_secs(30);

/// How long a request of an agent whose window is full waits until it looks again. An acknowledgement may come to any process, and nothing
/// tells the others.
pub(crate) const AGENT_FULL_LOOK: Duration = Duration::from_millis(500);

/// After which time without a word a holder of a consumer counts as gone, for those who do not take it from somebody. Three times
/// [`AGENT_SEEN_INTERVAL`].
pub(crate) const AGENT_HOLDER_SEEN: Duration = Duration::from_secs(90);

/// How often it is written down of each holder that it lives, and found out which was replaced: one statement for all of a process.
pub(crate) const AGENT_SEEN_INTERVAL: Duration = Duration::from_secs(30);

/// Consumers of agents that have figures of their own, those furthest behind: there may be thousands, and each is two time series wherever
/// the figures go.
pub(crate) const AGENT_CONSUMERS_SHOWN: i64 = 100;

/// The version of the gateway's protocol.
pub(crate) const GATEWAY_PROTOCOL: u32 = 1;

/// What a connection reads and writes at once. Each has both, so ten thousand that are idle stay small.
pub(crate) const GATEWAY_BUFFER_BYTES: usize = 4 * 1024;

/// Frames up to so many times the bound are read to tell the client that they are too large.
pub(crate) const GATEWAY_FRAME_SLACK: usize = 4;

/// A page of a connection: small, so that others have their turn.
pub(crate) const GATEWAY_PAGE_EVENTS: usize = 250;

/// See [`GATEWAY_PAGE_EVENTS`]. What the first read of a page asks for, events of a kilobyte, has room in it and is not read twice.
pub(crate) const GATEWAY_PAGE_BYTES: usize = 128 * 1024;

/// Sessions that a process remembers. When there are more, the one that was lost first is forgotten: its client identifies anew.
pub(crate) const GATEWAY_SESSIONS_MAX: usize = 50_000;

/// How long a client has to say that it has heard why it was closed.
pub(crate) const GATEWAY_CLOSE_WAIT: Duration = Duration::from_secs(5);

/// Over which time clients are told to come again when a server stops.
pub(crate) const GATEWAY_SHUTDOWN_SPREAD: Duration = Duration::from_secs(5);

/// How long a heartbeat or an acknowledgement waits to learn whether its token is still good. Pages wait longer, and nothing is given out
/// meanwhile.
pub(crate) const GATEWAY_ACCESS_WAIT: Duration = Duration::from_secs(1);

/// How long the connection to a broker may take to end.
pub(crate) const BROKER_END_TIMEOUT: Duration = Duration::from_secs(1);

/// Connections of a walk: the transaction of an event, and what is asked beside it.
pub(crate) const WALK_CONNECTIONS: u32 = 4;

/// How long a walk waits for events that do not come.
pub(crate) const WALK_WAIT: Duration = Duration::from_secs(5);

/// How long one that goes on waits at least: what it had in hand when it died comes again after `stream_consumer.ack_wait`, 30 seconds.
pub(crate) const WALK_RESUME_WAIT: Duration = Duration::from_secs(45);

/// Rows of the ledger that are forgotten in one statement: a moment's work.
pub(crate) const LEDGER_FORGOTTEN_AT_ONCE: u32 = 5000;

/// How often the process that has the relay asks what waits for consumers of the stream. For figures alone, and as often as processes ask for
/// their own.
pub(crate) const STREAM_CONSUMERS_INTERVAL: Duration = Duration::from_secs(10);

/// Of how many consumers it asks then, each of which is a request to the broker and a value in metrics.
pub(crate) const STREAM_CONSUMERS_ASKED_MAX: i64 = 100;

/// How often it is looked whether a process waits for messages of a consumer that is to be forgotten.
pub(crate) const FORGET_LOOKS: u32 = 4;

/// The pause between two of these looks. All together they take longer than a process pauses that has nothing to do, 200 milliseconds.
pub(crate) const FORGET_LOOK_PAUSE: Duration = Duration::from_millis(150);

/// What the names of consumers of walks begin with.
pub(crate) const WALK_NAMES: &str = "walk-";

/// How much later than `stream_consumer.ack_wait` a walk that goes on asks for what it had in hand: the broker looks through it now and then, and
/// gives out what is new before that.
pub(crate) const WALK_REDELIVERY_MARGIN: Duration = Duration::from_secs(1);
