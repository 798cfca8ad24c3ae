//! Keys about when something of the stream is worth a look.

use super::super::kinds::{days, duration, integer, mins, ms};
use super::super::schema::Key;

pub(super) const RELAY_BACKLOG_AGE: Key = duration(
    "alert.relay_backlog_age",
    mins(5),
    ms(100)..=days(365),
    |config| &mut config.alert.relay_backlog_age,
    "How old an event may be that is not in the stream yet. A relay takes a fraction of a second, and another process takes over within relay.lease.",
);

pub(super) const STREAM_FILL_PERCENT: Key = integer(
    "alert.stream_fill_percent",
    80,
    1..=100,
    |config| &mut config.alert.stream_fill_percent,
    "How full the stream may be. At stream.max_bytes messages go before stream.max_age, and consumers that were away get them from the log one by one.",
);

pub(super) const STREAM_CONSUMER_PENDING: Key = integer(
    "alert.stream_consumer_pending",
    10_000,
    1..=4_000_000_000,
    |config| &mut config.alert.stream_consumer_pending,
    "How many messages of the stream may wait for a consumer, for long.",
);
