//! Every metric: its name, kind, unit, attributes, and what it says.
//!
//! The page of the guide, the alert rules and the dashboard are compared with this table by tests. A metric that is not in it cannot be made.

/// What a metric is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A value that goes up and down.
    Gauge,
    /// A sum that only rises.
    Counter,
    /// Values by size.
    Histogram,
}

/// A metric.
#[derive(Debug, Clone, Copy)]
pub struct Metric {
    /// Its name in OpenTelemetry.
    pub name: &'static str,
    /// Its kind.
    pub kind: Kind,
    /// Its unit, by the code of UCUM. One in braces is only a word.
    pub unit: &'static str,
    /// Its attributes. Each has few values, all of which are names.
    pub attributes: &'static [&'static str],
    /// Whether it is about the database, so that every process tells the same; else it is about this process.
    pub shared: bool,
    /// What it says.
    pub doc: &'static str,
}

/// The attribute that names a consumer.
pub const CONSUMER: &str = "seqline.consumer.name";
/// The attribute that says how a round ended: `progressed`, `idle`, `locked` or `failed`.
pub const OUTCOME: &str = "seqline.round.outcome";
/// The attribute that names a listening connection: `consumers` or `tail`.
pub const LISTENER: &str = "seqline.listener.name";
/// The attribute that says what a connection of the pool does: `idle` or `used`.
pub const POOL_STATE: &str = "seqline.pool.state";
/// The attribute that says in which state a job is.
pub const JOB_STATE: &str = "seqline.job.state";
/// The attribute that names what a request was for, with the names of its parameters and not their values; `none` for nothing that is
/// there.
pub const ROUTE: &str = "http.route";
/// The attribute that names the method of a request, `other` for one that nobody knows.
pub const METHOD: &str = "http.request.method";
/// The attribute with the status of an answer.
pub const STATUS: &str = "http.response.status_code";
/// The attribute that says what waits for events: `request` or `stream`.
pub const WAITING_KIND: &str = "seqline.api.waiting.kind";
/// The attribute with the id of an agent.
pub const AGENT: &str = "seqline.agent.id";
/// The attribute that names a consumer of an agent.
pub const AGENT_CONSUMER: &str = "seqline.agent.consumer.name";
/// The attribute that says whether somebody has a consumer of an agent: `held` or `free`.
pub const AGENT_CONSUMER_STATE: &str = "seqline.agent.consumer.state";
/// The attribute that says how an agent has its consumer: `gateway` or `rest`.
pub const HOLDER_KIND: &str = "seqline.agent.holder.kind";
/// The attribute that says whose a connection is: of a `user`, an `agent` or an `app`; `none` for those that have not identified yet.
pub const PRINCIPAL_KIND: &str = "seqline.principal.kind";
/// The attribute that says why a connection ended: the reason of a close code, `frame_too_large`, `left` when the client said so, or `gone`.
pub const CLOSE_REASON: &str = "seqline.gateway.close.reason";
/// The attribute that names a relay.
pub const RELAY: &str = "seqline.relay.name";
/// The attribute that says what keeps a relay from going on.
pub const RELAY_REASON: &str = "seqline.relay.reason";
/// The attribute that says what a relay met.
pub const INCIDENT_KIND: &str = "seqline.relay.incident.kind";
/// The attribute that says why a message was not published.
pub const FAILURE_KIND: &str = "seqline.relay.failure.kind";
/// The attribute that names a stream.
pub const STREAM: &str = "seqline.stream.name";
/// The attribute that names a consumer of the stream.
pub const STREAM_CONSUMER: &str = "seqline.stream.consumer.name";
/// The attribute that says what became of a message: `handled`, `duplicate`, `retried`, `terminated` or `skipped`.
pub const MESSAGE_OUTCOME: &str = "seqline.stream.message.outcome";
/// The attribute with the version of the program.
pub const VERSION: &str = "seqline.version";
/// The attribute with the role of the process.
pub const ROLE: &str = "seqline.role";

macro_rules! metrics {
    ($($constant:ident = $name:literal, $kind:ident, $unit:literal, [$($attribute:ident),*], $shared:literal, $doc:literal;)*) => {
        $(
            #[doc = $doc]
            pub const $constant: Metric = Metric {
                name: $name,
                kind: Kind::$kind,
                unit: $unit,
                attributes: &[$($attribute),*],
                shared: $shared,
                doc: $doc,
            };
        )*

        /// All metrics, in the order of the guide.
        pub const METRICS: &[Metric] = &[$($constant),*];
    };
}

metrics! {
    BUILD_INFO = "seqline.build.info", Gauge, "", [VERSION, ROLE], false, "Always 1: which version runs here, in which role.";
    DB_UP = "seqline.db.up", Gauge, "", [], false, "1 when the last look at the database succeeded, 0 when it failed or is late.";
    LOG_HEAD = "seqline.log.head", Gauge, "{event}", [], true, "The highest number in the log.";
    EVENTS_APPENDED = "seqline.event.appended", Counter, "{event}", [], true, "Events that got a number since the log began: the head. Its rate is that of all appends.";
    LOG_RETAINED = "seqline.log.retained", Gauge, "{event}", [], true, "Events that the log holds.";
    LOG_SIZE = "seqline.log.size", Gauge, "By", [], true, "What they take on disk, with indexes.";
    PARTITIONS = "seqline.log.partition.count", Gauge, "{partition}", [], true, "Partitions that exist.";
    HEADROOM = "seqline.log.partition.headroom", Gauge, "{event}", [], true, "How many more events fit into partitions that exist. At 0 every append fails.";
    IDENTITY_MATCHES = "seqline.log.identity.matches", Gauge, "", [], false, "1 while the database is the one to which the numbers belong, as far as this process has seen; 0 after a restore, until seqline restore finalize.";
    READ_ONLY = "seqline.log.read_only", Gauge, "", [], true, "1 while the log takes no events because somebody has set maintenance mode.";
    HELD_PARTITIONS = "seqline.retention.held_partitions", Gauge, "{partition}", [], true, "Expired partitions that stay because consumers have not passed them.";
    HOLD_REMAINING = "seqline.retention.hold_remaining", Gauge, "s", [], true, "How long it is until the oldest of these is dropped all the same, and its events are lost to whoever has not passed them. Absent when none is held.";
    CONSUMER_LAG = "seqline.event.consumer.lag", Gauge, "{event}", [CONSUMER], true, "Events that a consumer has still to handle: the head less its cursor, of the lane that is furthest behind.";
    CONSUMER_PENDING_AGE = "seqline.event.consumer.pending_age", Gauge, "s", [CONSUMER], true, "How long ago the transaction of the first event began that a consumer has still to handle; 0 at the head. An event of a long transaction is old when it appears.";
    CONSUMER_PAUSED = "seqline.event.consumer.paused", Gauge, "", [CONSUMER], true, "1 for a consumer that somebody has paused.";
    CONSUMER_PARKED = "seqline.event.consumer.parked", Gauge, "{event}", [CONSUMER], true, "Events that a consumer has put aside.";
    CONSUMER_LOST = "seqline.event.consumer.lost", Gauge, "{event}", [CONSUMER], true, "Events that retention took before a consumer had come to them, as far as nobody has acknowledged that.";
    CONSUMER_ABOVE_HEAD = "seqline.event.consumer.above_head", Gauge, "", [CONSUMER], true, "1 for a consumer whose cursor is above the head, as after a restore without seqline restore finalize.";
    AGENT_LAG = "seqline.agent.consumer.lag", Gauge, "{event}", [AGENT, AGENT_CONSUMER], true, "Events of the log that a consumer of an agent has not acknowledged, those that are not for the agent included: the head less the acknowledgement. While nobody has the consumer, the acknowledgement does not follow those either. Of the hundred consumers that are furthest behind, without those of agents that are disabled.";
    AGENT_PENDING_AGE = "seqline.agent.consumer.pending_age", Gauge, "s", [AGENT, AGENT_CONSUMER], true, "How long ago the transaction of the first of these events began; 0 at the head. Of the same consumers.";
    AGENT_CONSUMERS = "seqline.agent.consumer.count", Gauge, "{consumer}", [AGENT_CONSUMER_STATE], true, "Consumers of agents that are not disabled, by whether somebody has them. Who is gone has them until somebody else comes, unless it gave them up.";
    CONSUMER_ROUNDS = "seqline.consumer.rounds", Counter, "{round}", [CONSUMER, OUTCOME], false, "Rounds of a consumer in this process, by how they ended.";
    CONSUMER_EVENTS = "seqline.consumer.events", Counter, "{event}", [CONSUMER], false, "Events that a consumer has handled in this process, in rounds that committed.";
    TAIL_LAG = "seqline.tail.lag", Gauge, "{event}", [], false, "Events that the tail of this process has still to deliver.";
    FANOUT_LAG = "seqline.event.fanout.lag", Histogram, "s", [], false, "How long it took from the start of an event's transaction to its arrival at the tail of this process.";
    API_REQUESTS = "seqline.api.requests", Counter, "{request}", [METHOD, ROUTE, STATUS], false, "Requests to the API that were answered. A stream counts when it begins.";
    API_WAITING = "seqline.api.waiting", Gauge, "{request}", [WAITING_KIND], false, "Requests that wait for events, and streams that run.";
    GATEWAY_CONNECTIONS = "seqline.gateway.connections", Gauge, "{connection}", [PRINCIPAL_KIND], false, "Connections to the gateway, by whose they are.";
    GATEWAY_CLOSES = "seqline.gateway.closes", Counter, "{connection}", [CLOSE_REASON], false, "Connections to the gateway that have ended, by why.";
    AGENT_IN_FLIGHT = "seqline.agent.in_flight", Gauge, "{event}", [], false, "Events that agents were given over connections of this process and have not acknowledged.";
    AGENT_REDELIVERIES = "seqline.agent.redeliveries", Counter, "{event}", [HOLDER_KIND], false, "Events that agents did not acknowledge in time, so that they are given them again, by how they had got them.";
    AGENT_TAKEOVERS = "seqline.agent.takeovers", Counter, "{takeover}", [HOLDER_KIND], false, "Consumers of agents that were taken from somebody who had them, by how the new holder has come.";
    HUB_EVENTS = "seqline.hub.events", Gauge, "{event}", [], false, "Events that this process holds in memory for those who read over HTTP.";
    HUB_SIZE = "seqline.hub.size", Gauge, "By", [], false, "What they take there.";
    SEQUENCER_RUNNING = "seqline.sequencer.running", Gauge, "", [], true, "1 while any process has the lease to number events after commit. 0 is right when events are numbered at commit.";
    STAGED = "seqline.sequencer.staged", Gauge, "{transaction}", [], true, "Transactions that have committed and whose events have no number yet.";
    STAGED_AGE = "seqline.sequencer.staged_age", Gauge, "s", [], true, "How long the first of them has waited; 0 when none waits.";
    LOCK_WAITERS = "seqline.numbering.lock.waiters", Gauge, "{session}", [], true, "Sessions that wait for the right to number their events.";
    LOCK_WAIT = "seqline.numbering.lock.wait", Gauge, "s", [], true, "How long the one of them has waited that waits longest; 0 without any.";
    RELAY_BACKLOG = "seqline.relay.backlog", Gauge, "{event}", [RELAY], true, "Events of the log that a relay has still to copy into its stream. Known to every process, also while the relay is dead.";
    RELAY_BACKLOG_AGE = "seqline.relay.backlog_age", Gauge, "s", [RELAY], true, "How long ago the transaction of the first of these events began; 0 at the head.";
    RELAY_RUNNING = "seqline.relay.running", Gauge, "", [RELAY], true, "1 while any process has the lease of a relay.";
    RELAY_PAUSED = "seqline.relay.paused", Gauge, "", [RELAY], true, "1 for a relay that somebody has paused.";
    RELAY_STALLED = "seqline.relay.stalled", Gauge, "", [RELAY, RELAY_REASON], true, "1 for a relay that does not get on, by what keeps it from that. Absent while it gets on. One that has never reached its broker is known to the process alone that runs it.";
    RELAY_INCIDENTS = "seqline.relay.incidents", Gauge, "{event}", [RELAY, INCIDENT_KIND], true, "What a relay met and nobody has acknowledged, by kind: how many events or messages. Absent without any.";
    RELAY_PUBLISHED = "seqline.relay.published", Counter, "{message}", [RELAY], false, "Messages that a relay in this process has published and the broker has acknowledged.";
    RELAY_FAILURES = "seqline.relay.failures", Counter, "{failure}", [RELAY, FAILURE_KIND], false, "What a relay in this process had to look again after, by kind.";
    STREAM_MESSAGES = "seqline.stream.messages", Gauge, "{message}", [STREAM], false, "Messages that the stream holds, as the process knows that runs the relay.";
    STREAM_SIZE = "seqline.stream.size", Gauge, "By", [STREAM], false, "What they take.";
    STREAM_FILL = "seqline.stream.fill", Gauge, "1", [STREAM], false, "That as a part of what the stream may hold. At 1 messages go before their time.";
    STREAM_OLDEST_AGE = "seqline.stream.oldest_age", Gauge, "s", [STREAM], false, "How long ago the oldest message was stored: how far back the stream really reaches. Absent without messages.";
    STREAM_CONSUMER_RETRIES = "seqline.stream.consumer.retries", Gauge, "{event}", [STREAM_CONSUMER], true, "Events that a consumer of the stream has to try again.";
    STREAM_CONSUMER_DEAD = "seqline.stream.consumer.dead_letters", Gauge, "{event}", [STREAM_CONSUMER], true, "Events and messages that a consumer of the stream gave up, as far as nobody has settled them.";
    STREAM_CONSUMER_MESSAGES = "seqline.stream.consumer.messages", Counter, "{message}", [STREAM_CONSUMER, MESSAGE_OUTCOME], false, "Messages that a consumer of the stream has dealt with in this process, by what became of them.";
    STREAM_CONSUMER_REDELIVERED = "seqline.stream.consumer.redelivered", Counter, "{message}", [STREAM_CONSUMER], false, "Messages that the broker gave to a consumer in this process and had given before.";
    STREAM_CONSUMER_DROPPED = "seqline.stream.consumer.dropped", Counter, "{event}", [STREAM_CONSUMER], true, "Events that the broker had dropped for a consumer, and that were found by comparing the log with what was handled. They are handled all the same. Counted in the database, in whatever process the consumer runs.";
    STREAM_CONSUMER_PENDING = "seqline.stream.consumer.pending", Gauge, "{message}", [STREAM_CONSUMER], false, "Messages that the broker has still to give to a consumer. Known to the process that has the relay, for the first hundred consumers of the stream by name, whether they run or not; and to processes of the server for consumers of their own.";
    STREAM_CONSUMER_ACK_PENDING = "seqline.stream.consumer.ack_pending", Gauge, "{message}", [STREAM_CONSUMER], false, "Messages that all processes together have in hand for a consumer. Known to the same.";
    LISTENER_CONNECTED = "seqline.listener.connected", Gauge, "", [LISTENER], false, "1 while a listening connection of this process is up, 0 while it polls. Absent where it does not listen.";
    NOTIFICATION_QUEUE = "seqline.db.notification_queue.usage", Gauge, "1", [], true, "How full PostgreSQL's queue of notifications is. At 1 commits that notify fail.";
    OLDEST_TRANSACTION = "seqline.db.oldest_transaction_age", Gauge, "s", [], true, "Age of the oldest transaction that keeps vacuum from removing what is dead, prepared ones included. Those of other roles are seen by a role with pg_read_all_stats only.";
    POOL = "seqline.db.pool.connections", Gauge, "{connection}", [POOL_STATE], false, "Connections of this process's pool.";
    JOBS = "seqline.jobs.count", Gauge, "{job}", [JOB_STATE], true, "The server's own jobs, by state.";
    JOBS_OVERDUE = "seqline.jobs.overdue_age", Gauge, "s", [], true, "How long the job has been due that waits longest for somebody to take it; 0 without any.";
    MAINTENANCE_AGE = "seqline.partition.maintenance.age", Gauge, "s", [], true, "How long ago the last run of partition maintenance by a worker ended well; without one, how long ago the first was wanted. Absent when none is known.";
}

impl Metric {
    /// Its name in the text that Prometheus reads.
    #[must_use]
    pub fn prometheus_name(&self) -> String {
        let unit = match self.unit {
            "s" => "_seconds",
            "By" => "_bytes",
            "1" => "_ratio",
            _ => "",
        };
        let total = if self.kind == Kind::Counter { "_total" } else { "" };
        format!("{}{unit}{total}", label(self.name))
    }
}

/// An attribute as a label of Prometheus.
#[must_use]
pub fn label(attribute: &str) -> String {
    attribute.replace('.', "_")
}

/// The table of the guide.
#[must_use]
pub fn page() -> String {
    let mut page = String::from(
        "| metric | in Prometheus | kind | unit | attributes | of | what it says |\n|---|---|---|---|---|---|---|\n",
    );
    for metric in METRICS {
        let kind = match metric.kind {
            Kind::Gauge => "gauge",
            Kind::Counter => "counter",
            Kind::Histogram => "histogram",
        };
        let unit = if metric.unit.is_empty() { String::new() } else { format!("`{}`", metric.unit) };
        let attributes: Vec<String> = metric.attributes.iter().map(|name| format!("`{name}`")).collect();
        let of = if metric.shared { "database" } else { "process" };
        page.push_str(&format!(
            "| `{}` | `{}` | {kind} | {unit} | {} | {of} | {} |\n",
            metric.name,
            metric.prometheus_name(),
            attributes.join(", "),
            metric.doc
        ));
    }
    page
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_plain_and_differ() {
        let names: BTreeSet<&str> = METRICS.iter().map(|metric| metric.name).collect();
        assert_eq!(names.len(), METRICS.len());
        for metric in METRICS {
            let plain = |c: char| c.is_ascii_lowercase() || c == '.' || c == '_';
            assert!(metric.name.starts_with("seqline.") && metric.name.chars().all(plain), "{}", metric.name);
            assert!(metric.doc.ends_with('.'), "{}", metric.name);
        }
    }

    #[test]
    fn the_guide_has_exactly_this_table() {
        const PAGE: &str = "docs/guide/operate/metrics.md";
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(PAGE);
        let guide = std::fs::read_to_string(path).unwrap();
        let page = page();
        assert!(guide.contains(&page), "put this into {PAGE}:\n\n{page}");
        assert_eq!(guide.matches("\n| `seqline.").count(), METRICS.len(), "rows of {PAGE}");
    }
}
