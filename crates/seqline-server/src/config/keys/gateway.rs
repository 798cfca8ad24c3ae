//! Keys about connections to the gateway.

use super::super::kinds::{duration, integer, mins, ms, secs};
use super::super::schema::Key;

pub(super) const HEARTBEAT_INTERVAL: Key = duration(
    "gateway.heartbeat_interval",
    secs(30),
    ms(100)..=mins(10),
    |config| &mut config.gateway.heartbeat_interval,
    "How often a client of the gateway says that it lives. One of which nothing is heard for twice as long is closed.",
);

pub(super) const IDENTIFY_TIMEOUT: Key = duration(
    "gateway.identify_timeout",
    secs(10),
    ms(100)..=mins(1),
    |config| &mut config.gateway.identify_timeout,
    "How long a new connection may take to say who it is.",
);

pub(super) const FRAME_BYTES_MAX: Key = integer(
    "gateway.frame_bytes_max",
    16 * 1024,
    1024..=1_048_576,
    |config| &mut config.gateway.frame_bytes_max,
    "The largest frame that a client may send. All that it has to say is short.",
);

pub(super) const QUEUE_BYTES_MAX: Key = integer(
    "gateway.queue_bytes_max",
    256 * 1024,
    4096..=67_108_864,
    |config| &mut config.gateway.queue_bytes_max,
    "How many bytes may wait for one client. At the bound nothing more is read for it, and one that takes nothing for `api.write_timeout` is closed and comes back to where it was.",
);
