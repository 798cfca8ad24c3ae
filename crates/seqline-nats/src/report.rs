//! The stream and its consumers as the broker sees them, for people.

use std::time::Duration;

use async_nats::jetstream::consumer;
use async_nats::jetstream::stream::{DiscardPolicy, Info, RawMessageErrorKind, RetentionPolicy, StorageType};
use bytes::Bytes;
use futures_util::TryStreamExt;
use time::OffsetDateTime;

use crate::broker::Broker;
use crate::consumer::durable;
use crate::limits::CONSUMERS_REPORTED_MAX;
use crate::stream::{StreamError, info};

/// What the broker says of a stream. A bound that is `None` is none.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct StreamReport {
    /// Its name.
    pub name: String,
    /// When it was made.
    pub created: OffsetDateTime,
    /// How many messages it holds.
    pub messages: u64,
    /// How many bytes they take.
    pub bytes: u64,
    /// The number of the oldest message, and of the newest.
    pub sequences: (u64, u64),
    /// When the oldest message was stored; `None` without any.
    pub first_at: Option<OffsetDateTime>,
    /// What it takes.
    pub subjects: Vec<String>,
    /// How many subjects its messages have.
    pub subjects_count: u64,
    /// When messages go: `limits`, `interest` or `workqueue`.
    pub retention: &'static str,
    /// Where messages are: `file` or `memory`.
    pub storage: &'static str,
    /// How many brokers hold each message.
    pub replicas: usize,
    /// How many of them the broker that leads the stream sees as current, itself included; `None` outside of a cluster.
    pub replicas_current: Option<usize>,
    /// How long it keeps a message.
    pub max_age: Option<Duration>,
    /// How many bytes it may hold.
    pub max_bytes: Option<u64>,
    /// How many messages it may hold.
    pub max_messages: Option<u64>,
    /// What happens at these bounds: the `old` go, or `new` ones are refused.
    pub discard: &'static str,
    /// For how long it remembers the ids of messages.
    pub duplicate_window: Duration,
    /// Its consumers, by name.
    pub consumers: Vec<ConsumerReport>,
    /// Whether there are more than these.
    pub more_consumers: bool,
}

/// What the broker says of a consumer of the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConsumerReport {
    /// Its name.
    pub name: String,
    /// Which messages it gets; none are all.
    pub filters: Vec<String>,
    /// How many messages have still to be given to it.
    pub pending: u64,
    /// How many it was given and has not acknowledged.
    pub ack_pending: usize,
    /// How many of these it was given more than once.
    pub redelivered: usize,
    /// How often it is given a message.
    pub max_deliver: Option<u64>,
    /// How many messages it may have in hand.
    pub max_ack_pending: Option<u64>,
    /// After what time a message is given again.
    pub ack_wait: Duration,
    /// The number in the stream up to which everything is acknowledged.
    pub ack_floor: u64,
    /// How many of those who have it wait for a message now.
    pub waiting: usize,
    /// When it was given a message last; `None` when it never was, or the broker has started since.
    pub delivered_at: Option<OffsetDateTime>,
}

/// Asks for a stream and its consumers, at most a thousand of them. `None` when there is no such stream. Cancel safe: nothing is changed.
///
/// # Errors
///
/// [`StreamError`] when the broker cannot be asked.
pub async fn report(broker: &Broker, name: &str) -> Result<Option<StreamReport>, StreamError> {
    let Some(info) = info(broker, name).await? else { return Ok(None) };
    let silent = || StreamError::Silent(name.to_owned());
    let stream = broker.jetstream().await?.get_stream_no_info(name).await.map_err(|_| silent())?;
    let mut consumers = Vec::new();
    let mut more_consumers = false;
    let mut pages = stream.consumers();
    while let Some(consumer) = pages.try_next().await.map_err(|_| silent())? {
        if consumers.len() == CONSUMERS_REPORTED_MAX {
            more_consumers = true;
            break;
        }
        consumers.push(ConsumerReport::of(consumer));
    }
    consumers.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(Some(StreamReport { consumers, more_consumers, ..StreamReport::of(info) }))
}

/// Asks for one consumer of a stream. `None` when there is no such consumer, or no such stream. Cancel safe: nothing is changed.
///
/// # Errors
///
/// [`StreamError`] when the broker cannot be asked.
pub async fn consumer_report(
    broker: &Broker,
    stream: &str,
    name: &str,
) -> Result<Option<ConsumerReport>, StreamError> {
    let silent = || StreamError::Silent(stream.to_owned());
    let stream = broker.jetstream().await?.get_stream_no_info(stream).await.map_err(|_| silent())?;
    let found = durable::info(&stream, name).await.map_err(|_| silent())?;
    Ok(found.map(ConsumerReport::of))
}

/// The payload of a message, if the stream is still the one that was made at this time, in nanoseconds since 1970, and has it. Asked of its leader.
///
/// # Errors
///
/// [`StreamError`] when the broker cannot be asked.
pub async fn stored_message(
    broker: &Broker,
    stream: &str,
    (created, sequence): (i64, i64),
) -> Result<Option<Bytes>, StreamError> {
    let Some(info) = info(broker, stream).await? else { return Ok(None) };
    let (true, Ok(sequence)) =
        (info.created.unix_timestamp_nanos() == i128::from(created), u64::try_from(sequence))
    else {
        return Ok(None);
    };
    let silent = || StreamError::Silent(stream.to_owned());
    let stored = broker.jetstream().await?.get_stream_no_info(stream).await.map_err(|_| silent())?;
    match stored.get_raw_message(sequence).await {
        Ok(message) => Ok(Some(message.payload)),
        Err(error) if error.kind() == RawMessageErrorKind::NoMessageFound => Ok(None),
        Err(_) => Err(silent()),
    }
}

impl StreamReport {
    fn of(info: Info) -> Self {
        let (config, state) = (info.config, info.state);
        Self {
            name: config.name,
            created: info.created,
            messages: state.messages,
            bytes: state.bytes,
            sequences: (state.first_sequence, state.last_sequence),
            first_at: (state.messages > 0).then_some(state.first_timestamp),
            subjects: config.subjects,
            subjects_count: state.subjects_count,
            retention: match config.retention {
                RetentionPolicy::Limits => "limits",
                RetentionPolicy::Interest => "interest",
                RetentionPolicy::WorkQueue => "workqueue",
            },
            storage: match config.storage {
                StorageType::File => "file",
                StorageType::Memory => "memory",
            },
            replicas: config.num_replicas,
            replicas_current: info.cluster.map(|cluster| {
                usize::from(cluster.leader.is_some())
                    + cluster.replicas.iter().filter(|peer| peer.current && !peer.offline).count()
            }),
            max_age: (!config.max_age.is_zero()).then_some(config.max_age),
            max_bytes: bound(config.max_bytes),
            max_messages: bound(config.max_messages),
            discard: match config.discard {
                DiscardPolicy::Old => "old",
                DiscardPolicy::New => "new",
            },
            duplicate_window: config.duplicate_window,
            consumers: Vec::new(),
            more_consumers: false,
        }
    }
}

impl ConsumerReport {
    fn of(info: consumer::Info) -> Self {
        let config = info.config;
        let one = Some(config.filter_subject).filter(|filter| !filter.is_empty());
        Self {
            name: info.name,
            filters: one.into_iter().chain(config.filter_subjects).collect(),
            pending: info.num_pending,
            ack_pending: info.num_ack_pending,
            redelivered: info.num_redelivered,
            max_deliver: bound(config.max_deliver),
            max_ack_pending: bound(config.max_ack_pending),
            ack_wait: config.ack_wait,
            ack_floor: info.ack_floor.stream_sequence,
            waiting: info.num_waiting,
            delivered_at: info.delivered.last_active,
        }
    }
}

/// The broker writes none as 0 or as -1, here the one and there the other.
fn bound(value: i64) -> Option<u64> {
    u64::try_from(value).ok().filter(|value| *value > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_bound_is_written_in_two_ways() {
        assert_eq!([-1, 0, 1, 5].map(bound), [None, None, Some(1), Some(5)]);
    }
}
