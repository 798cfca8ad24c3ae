//! How far a relay is, as its row in the database holds it.

use uuid::Uuid;

/// When the stream of a relay was made that has not looked at it yet.
pub(crate) const NOT_LOOKED_AT: i64 = 0;

/// How far a relay is in the log and in the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cursor {
    /// The history that the position belongs to.
    pub(crate) epoch: Uuid,
    /// Every event up to here is in the stream.
    pub(crate) position: i64,
    /// When the stream was made, in nanoseconds since 1970, or [`NOT_LOOKED_AT`].
    pub(crate) stream_created: i64,
    /// The stream up to here is known.
    pub(crate) stream_seq: u64,
    /// The position of the event that lies there; `None` where none of the log's does.
    pub(crate) position_at_seq: Option<i64>,
    /// Where the relay began in this stream, or was last rewound to.
    pub(crate) base_stream_seq: u64,
    /// The position there.
    pub(crate) base_position: i64,
    /// How often it was rewound.
    pub(crate) rewinds: u32,
}

/// The row of a relay, as far as whoever runs it needs it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RelayRow {
    pub(crate) cursor: Cursor,
    /// Which of all holders this one is.
    pub(crate) generation: i64,
    pub(crate) paused: bool,
    pub(crate) rewind_to: Option<i64>,
    /// The row says that something keeps it from going on.
    pub(crate) stalled: bool,
}

/// What a relay hears when it says how far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) paused: bool,
    pub(crate) rewind_to: Option<i64>,
}
