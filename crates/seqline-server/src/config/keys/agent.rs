//! Keys about the consumers of agents.

use super::super::kinds::{days, duration, integer, mins, ms, secs};
use super::super::schema::Key;
use super::hours;

pub(super) const MAX_INFLIGHT_EVENTS: Key = integer(
    "agent.max_inflight_events",
    100,
    1..=1000,
    |config| &mut config.agent.max_inflight_events,
    "How many events a consumer of an agent may have been given that it has not acknowledged. At the bound nothing is delivered until it acknowledges.",
);

pub(super) const INFLIGHT_BYTES_MAX: Key = integer(
    "agent.inflight_bytes_max",
    1024 * 1024,
    4096..=67_108_864,
    |config| &mut config.agent.inflight_bytes_max,
    "How many bytes these may have together, so that an agent with large events has fewer of them. One event is given in any case.",
);

pub(super) const ACK_TIMEOUT: Key = duration(
    "agent.ack_timeout",
    secs(60),
    ms(100)..=hours(1),
    |config| &mut config.agent.ack_timeout,
    "How long an agent has to acknowledge an event. After that everything that it has not acknowledged is given again, in order.",
);

pub(super) const ACK_PERSIST_INTERVAL: Key = duration(
    "agent.ack_persist_interval",
    secs(2),
    ms(10)..=mins(1),
    |config| &mut config.agent.ack_persist_interval,
    "How often what agents acknowledged over connections is saved, all of a process together. What was not saved when a process ends without a word is given again.",
);

pub(super) const ACKS_PER_SECOND: Key = integer(
    "agent.acks_per_second",
    50,
    1..=1_000_000,
    |config| &mut config.agent.acks_per_second,
    "How often an agent may acknowledge over connections, on average. One acknowledgement covers all events before it.",
);

pub(super) const ACKS_BURST: Key = integer(
    "agent.acks_burst",
    100,
    1..=1_000_000,
    |config| &mut config.agent.acks_burst,
    "How often it may at once.",
);

pub(super) const CONSUMERS_MAX: Key = integer(
    "agent.consumers_max",
    100,
    1..=10_000,
    |config| &mut config.agent.consumers_max,
    "How many consumers one agent may have. Each is a row that stays until it or the agent is deleted.",
);

pub(super) const PENDING_ALERT_AFTER: Key = duration(
    "agent.pending_alert_after",
    mins(30),
    secs(1)..=days(36_500),
    |config| &mut config.agent.pending_alert_after,
    "The age of the oldest event that a consumer of an agent has not acknowledged from which your alert rule is to fire; a process does nothing at it. Agents that come only now and then need more than the time between.",
);
