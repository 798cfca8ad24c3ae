//! What divides a consumer into lanes.

use std::fmt;

/// What events have in common that have to stay in order.
///
/// Of the events of one key all are in one lane, in the order of the log. Those without one are all in the first. When an event is
/// [parked](super::FailurePolicy::Park), the later ones of its key wait for it; one without a key holds nothing up.
///
/// The lane of a key is the first 32 bits of the SHA-256 of its UTF-8 bytes, as a number without sign, modulo the number of lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum LaneKey {
    /// The resource: its kind, a slash and its id.
    #[default]
    Resource,
    /// The channel.
    Channel,
    /// The thread.
    Thread,
    /// The space.
    Space,
}

impl LaneKey {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Resource, Self::Channel, Self::Thread, Self::Space];

    /// Its name in SQL and on the command line.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Resource => "resource",
            Self::Channel => "channel",
            Self::Thread => "thread",
            Self::Space => "space",
        }
    }
}

impl fmt::Display for LaneKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
