//! The consumer as the broker has it: made where there is none, adjusted where there is one.

use std::time::Duration;

use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::consumer::pull::Config;
use async_nats::jetstream::consumer::{AckPolicy, Consumer, DeliverPolicy, Info};
use async_nats::jetstream::context::ConsumerInfoErrorKind;
use async_nats::jetstream::stream::{
    ConsumerCreateStrictErrorKind, ConsumerErrorKind, ConsumerUpdateErrorKind, RawMessageErrorKind, Stream,
};

use super::config::StreamConsumerConfig;
use super::definition::StreamConsumer;
use super::error::PassError;
use crate::message::Identity;
use crate::subject::ALL;

/// The broker delivers as often as it takes: failures of handlers are counted in the database, and a process that dies is none.
const DELIVERIES_UNLIMITED: i64 = -1;

pub(super) type Durable = Consumer<Config>;

/// What the broker is to hold.
pub(super) fn wanted(
    consumer: &StreamConsumer,
    config: &StreamConsumerConfig,
    deliver_policy: DeliverPolicy,
) -> Config {
    let mut wanted = Config {
        durable_name: Some(consumer.name.clone()),
        deliver_policy,
        ack_policy: AckPolicy::Explicit,
        ..Config::default()
    };
    adjust(&mut wanted, consumer, config);
    wanted
}

/// What may be changed of one that is there.
fn adjust(existing: &mut Config, consumer: &StreamConsumer, config: &StreamConsumerConfig) {
    existing.ack_wait = config.ack_wait;
    existing.max_deliver = DELIVERIES_UNLIMITED;
    existing.max_ack_pending = i64::from(config.max_ack_pending);
    let mut subjects = consumer.subjects();
    // A server that knows no more than one filter knows this one.
    if subjects.len() == 1 {
        existing.filter_subject = subjects.remove(0);
        existing.filter_subjects = Vec::new();
    } else {
        existing.filter_subject = String::new();
        existing.filter_subjects = subjects;
    }
}

/// What has to be done to a consumer that the broker has: nothing, or to make it this. What is left out of it stays as it is.
///
/// # Errors
///
/// [`PassError::Mismatch`] for one that is used in another way, and so is somebody else's.
pub(super) fn plan(
    existing: &Info,
    consumer: &StreamConsumer,
    config: &StreamConsumerConfig,
) -> Result<Option<Config>, PassError> {
    let there = &existing.config;
    if there.deliver_subject.is_some() {
        return Err(PassError::Mismatch("delivery"));
    }
    if there.ack_policy != AckPolicy::Explicit {
        return Err(PassError::Mismatch("acknowledgement"));
    }
    let before = Config {
        durable_name: there.durable_name.clone(),
        name: there.name.clone(),
        description: there.description.clone(),
        deliver_policy: there.deliver_policy,
        ack_policy: there.ack_policy,
        ack_wait: there.ack_wait,
        max_deliver: there.max_deliver,
        filter_subject: there.filter_subject.clone(),
        filter_subjects: there.filter_subjects.clone(),
        replay_policy: there.replay_policy,
        rate_limit: there.rate_limit,
        sample_frequency: there.sample_frequency,
        max_waiting: there.max_waiting,
        max_ack_pending: there.max_ack_pending,
        headers_only: there.headers_only,
        max_batch: there.max_batch,
        max_bytes: there.max_bytes,
        max_expires: there.max_expires,
        inactive_threshold: there.inactive_threshold,
        num_replicas: there.num_replicas,
        memory_storage: there.memory_storage,
        metadata: there.metadata.clone(),
        backoff: there.backoff.clone(),
        ..Config::default()
    };
    if before.headers_only {
        return Err(PassError::Mismatch("delivery of payloads"));
    }
    let mut after = before.clone();
    adjust(&mut after, consumer, config);
    // A back-off of the broker replaces the wait, and is bound to a number of deliveries.
    after.backoff = Vec::new();
    Ok((after != before).then_some(after))
}

/// What the broker says of a consumer; none when there is none.
pub(crate) async fn info<I>(stream: &Stream<I>, name: &str) -> Result<Option<Info>, PassError> {
    match stream.consumer_info(name).await {
        Ok(info) => Ok(Some(info)),
        Err(error) => match error.kind() {
            ConsumerInfoErrorKind::NotFound | ConsumerInfoErrorKind::StreamNotFound => Ok(None),
            ConsumerInfoErrorKind::JetStream(error)
                if matches!(
                    error.error_code(),
                    ErrorCode::CONSUMER_NOT_FOUND | ErrorCode::STREAM_NOT_FOUND
                ) =>
            {
                Ok(None)
            }
            ConsumerInfoErrorKind::JetStream(error) => Err(PassError::Refused(error.error_code().0)),
            _ => Err(PassError::Silent),
        },
    }
}

/// Makes a consumer. None when somebody else was faster.
pub(super) async fn create(stream: &Stream, config: Config) -> Result<Option<Durable>, PassError> {
    match stream.create_consumer_strict(config).await {
        Ok(made) => Ok(Some(made)),
        Err(error) => match error.kind() {
            ConsumerCreateStrictErrorKind::AlreadyExists => Ok(None),
            ConsumerCreateStrictErrorKind::JetStream(error)
                if matches!(
                    error.error_code(),
                    ErrorCode::CONSUMER_NAME_EXIST | ErrorCode::CONSUMER_ALREADY_EXISTS
                ) =>
            {
                Ok(None)
            }
            ConsumerCreateStrictErrorKind::JetStream(error) => Err(PassError::Refused(error.error_code().0)),
            _ => Err(PassError::Silent),
        },
    }
}

/// Removes a consumer. Whether it is gone; who may not is not answered.
pub(super) async fn delete(stream: &Stream, name: &str) -> bool {
    match stream.delete_consumer(name).await {
        Ok(_) => true,
        Err(error) => match error.kind() {
            ConsumerErrorKind::JetStream(error) => error.error_code() == ErrorCode::CONSUMER_NOT_FOUND,
            _ => false,
        },
    }
}

/// Changes a consumer. Whether the broker took it.
pub(super) async fn update(stream: &Stream, config: Config) -> Result<bool, PassError> {
    match stream.update_consumer(config).await {
        Ok(_) => Ok(true),
        Err(error) => match error.kind() {
            ConsumerUpdateErrorKind::JetStream(_) => Ok(false),
            _ => Err(PassError::Silent),
        },
    }
}

/// A message of the stream, read from its leader.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) stream_seq: i64,
    pub(super) identity: Option<Identity>,
    pub(super) message: async_nats::jetstream::message::StreamMessage,
}

/// The message with this number; none when it is not there, or no longer.
pub(super) async fn message_at(stream: &Stream, seq: u64) -> Result<Option<Stored>, PassError> {
    stored(stream.get_raw_message(seq).await)
}

/// The first message of the log's subjects with this number or a higher one.
pub(super) async fn message_from(stream: &Stream, seq: u64) -> Result<Option<Stored>, PassError> {
    stored(stream.raw_message_builder().sequence(seq).next_by_subject(ALL).send().await)
}

fn stored(
    read: Result<
        async_nats::jetstream::message::StreamMessage,
        async_nats::jetstream::stream::RawMessageError,
    >,
) -> Result<Option<Stored>, PassError> {
    match read {
        Ok(message) => Ok(Some(Stored {
            stream_seq: i64::try_from(message.sequence).unwrap_or(i64::MAX),
            identity: Identity::of(Some(&message.headers)),
            message,
        })),
        Err(error) => match error.kind() {
            RawMessageErrorKind::NoMessageFound => Ok(None),
            RawMessageErrorKind::JetStream(error) if error.error_code() == ErrorCode::NO_MESSAGE_FOUND => {
                Ok(None)
            }
            RawMessageErrorKind::JetStream(error) => Err(PassError::Refused(error.error_code().0)),
            _ => Err(PassError::Silent),
        },
    }
}

/// How often word of a message in hand is sent.
pub(super) fn progress_interval(ack_wait: Duration) -> Duration {
    (ack_wait / 3).max(Duration::from_millis(10))
}
