//! What is set for all consumers of agents.

use super::window::Bounds;
use crate::config::Config;

/// How much of a consumer may be in flight.
pub(in crate::api) fn bounds(config: &Config) -> Bounds {
    let size = |key: u32| usize::try_from(key).unwrap_or(usize::MAX);
    Bounds {
        events: size(config.agent.max_inflight_events),
        bytes: size(config.agent.inflight_bytes_max),
        ack_timeout: config.agent.ack_timeout,
    }
}
