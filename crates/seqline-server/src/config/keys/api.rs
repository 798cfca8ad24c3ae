//! Keys about the API.

use core::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::Duration;

use super::super::kinds::{address, days, duration, hours, integer, mins, ms, secs};
use super::super::schema::Key;

pub(super) const LISTEN: Key = address(
    "api.listen",
    SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 8090)),
    |config| &mut config.api.listen,
    "Where the process answers the API, in the roles api and all. It speaks HTTP without TLS, so by default it is this machine only; port 0 takes a free one, which the log names.",
);

pub(super) const CONNECTIONS_MAX: Key = integer(
    "api.connections_max",
    10_000,
    1..=1_000_000,
    |config| &mut config.api.connections_max,
    "How many connections it answers there at the same time; more of them wait. Each needs a file descriptor.",
);

pub(super) const REQUEST_TIMEOUT: Key = duration(
    "api.request_timeout",
    secs(10),
    ms(100)..=mins(10),
    |config| &mut config.api.request_timeout,
    "How long a client may take to say what it wants, head and body each, and a connection to be used again, so that one that says nothing keeps no place.",
);

pub(super) const REQUEST_BYTES_MAX: Key = integer(
    "api.request_bytes_max",
    1024 * 1024,
    1024..=64 * 1024 * 1024,
    |config| &mut config.api.request_bytes_max,
    "The largest body of a request in bytes, which is in memory while it is answered.",
);

pub(super) const APPEND_EVENTS_MAX: Key = integer(
    "api.append_events_max",
    1000,
    1..=100_000,
    |config| &mut config.api.append_events_max,
    "How many events one request may append; they are one transaction.",
);

pub(super) const APPEND_GROUP_EVENTS_MAX: Key = integer(
    "api.append_group_events_max",
    500,
    1..=10_000,
    |config| &mut config.api.append_group_events_max,
    "How many events of requests that wait at the same time are appended in one transaction. More of them cost less each; a request that has more by itself is alone in its transaction.",
);

pub(super) const APPEND_QUEUE_MAX: Key = integer(
    "api.append_queue_max",
    1024,
    1..=100_000,
    |config| &mut config.api.append_queue_max,
    "How many requests may wait to be appended, with their bodies in memory; more are told to come again.",
);

pub(super) const PAGE_EVENTS_MAX: Key = integer(
    "api.page_events_max",
    1000,
    1..=10_000,
    |config| &mut config.api.page_events_max,
    "How many events one answer may have.",
);

pub(super) const PAGE_BYTES_MAX: Key = integer(
    "api.page_bytes_max",
    4 * 1024 * 1024,
    1024..=256 * 1024 * 1024,
    |config| &mut config.api.page_bytes_max,
    "After how many bytes an answer ends although there is more, so that large payloads do not fill the memory; one event is in it however large it is.",
);

pub(super) const WAIT_MAX: Key = duration(
    "api.wait_max",
    secs(60),
    Duration::ZERO..=mins(10),
    |config| &mut config.api.wait_max,
    "How long a request may wait for the next event. What stands between the client and the server must not give up earlier.",
);

pub(super) const WRITE_TIMEOUT: Key = duration(
    "api.write_timeout",
    secs(30),
    ms(100)..=mins(10),
    |config| &mut config.api.write_timeout,
    "How long a client may take nothing of its answer before its connection is closed, so that one that never reads keeps no memory.",
);

pub(super) const REQUESTS_PER_SECOND: Key = integer(
    "api.requests_per_second",
    1000,
    1..=1_000_000,
    |config| &mut config.api.requests_per_second,
    "How many requests a second a principal may make in the long run in each process; tokens that are not known have this together, and those who show none that can be good as well.",
);

pub(super) const REQUESTS_BURST: Key = integer(
    "api.requests_burst",
    2000,
    1..=1_000_000,
    |config| &mut config.api.requests_burst,
    "How many it may make at once after a pause.",
);

pub(super) const WAITING_MAX: Key = integer(
    "api.waiting_max",
    2000,
    1..=100_000,
    |config| &mut config.api.waiting_max,
    "How many requests and streams of a principal may wait for events at the same time in each process.",
);

pub(super) const PERMISSIONS_MAX_AGE: Key = duration(
    "api.permissions_max_age",
    secs(1),
    Duration::ZERO..=mins(10),
    |config| &mut config.api.permissions_max_age,
    "How long what a principal may do is remembered without asking the database: how late a right that was taken away is noticed when nothing is appended.",
);

pub(super) const IDEMPOTENCY_RETENTION: Key = duration(
    "api.idempotency_retention",
    hours(24),
    secs(1)..=days(365),
    |config| &mut config.api.idempotency_retention,
    "How long the first answer to an Idempotency-Key is kept: a request that is repeated later is a new one.",
);

pub(super) const CATCH_UP_EVENTS_MAX: Key = integer(
    "api.catch_up_events_max",
    0,
    0..=4_000_000_000,
    |config| &mut config.api.catch_up_events_max,
    "From how many events behind the head a reader is told to start anew instead of catching up. At 0 it may be any number that retention has kept.",
);

pub(super) const CATCH_UP_SCAN_SIZE: Key = integer(
    "api.catch_up_scan_size",
    5000,
    1..=1_000_000,
    |config| &mut config.api.catch_up_scan_size,
    "How many events one read looks at for those that a reader may see; it keeps an answer short when few are.",
);

pub(super) const STREAM_HEARTBEAT_INTERVAL: Key = duration(
    "api.stream_heartbeat_interval",
    secs(15),
    ms(100)..=mins(10),
    |config| &mut config.api.stream_heartbeat_interval,
    "How often a stream without events says that it is alive. What stands between the client and the server must not give up earlier.",
);

pub(super) const HUB_EVENTS_MAX: Key = integer(
    "api.hub_events_max",
    20_000,
    1..=10_000_000,
    |config| &mut config.api.hub_events_max,
    "How many of the newest events are kept in memory, from which readers near the head are served without the database.",
);

pub(super) const HUB_BYTES_MAX: Key = integer(
    "api.hub_bytes_max",
    64 * 1024 * 1024,
    1024..=4_000_000_000,
    |config| &mut config.api.hub_bytes_max,
    "How many bytes of them.",
);

pub(super) const READERS_MAX: Key = integer(
    "api.readers_max",
    4,
    1..=1000,
    |config| &mut config.api.readers_max,
    "How many pages of the log are read at the same time, each with a connection of the pool; more of them wait, and appends find one.",
);
