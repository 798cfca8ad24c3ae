//! Fetching messages: requests to the broker, and what comes of them.
//!
//! All answers come to one subscription, which stays. So what comes late, after its request was given up, is not lost: it is the beginning of the
//! next fetch.

use std::time::Duration;

use async_nats::connection::State;
use async_nats::jetstream::consumer::pull::BatchConfig;
use async_nats::{Client, Message, StatusCode, Subject, Subscriber};
use futures_util::{FutureExt, StreamExt};
use seqline::Clock;
use tokio_util::sync::CancellationToken;

use super::durable::Durable;

/// Why a fetch came to nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PullError {
    /// There is no such consumer any more, or nobody who knows of it.
    Gone,
    /// There is no connection.
    Disconnected,
    /// No answer came.
    Silent,
    /// The broker does not want to.
    Refused(u64),
}

/// How a request ended.
enum End {
    /// There is no more, or not in time.
    Nothing,
    Error(PullError),
}

/// Asks one consumer of the broker for messages.
pub(super) struct Puller {
    client: Client,
    durable: Durable,
    inbox: String,
    subscriber: Subscriber,
    requests: u64,
}

impl Puller {
    pub(super) async fn new(client: Client, durable: Durable) -> Result<Self, PullError> {
        let inbox = client.new_inbox();
        let subscribed = client.subscribe(format!("{inbox}.*")).await;
        let subscriber = subscribed.map_err(|_| PullError::Disconnected)?;
        Ok(Self { client, durable, inbox, subscriber, requests: 0 })
    }

    /// Up to `batch` messages: those that are there, else the first that comes within `expiry`, if it may wait. None is no error. `margin` is how long the
    /// broker may take to answer. Each message is given to `take` as it comes.
    ///
    /// Cancel safe: what was taken is taken.
    pub(super) async fn fetch(
        &mut self,
        batch: u32,
        expiry: Option<Duration>,
        margin: Duration,
        clock: &Clock,
        stop: &CancellationToken,
        take: &mut impl FnMut(Message),
    ) -> Result<(), PullError> {
        if self.take_late(batch, take)? > 0 {
            return Ok(());
        }
        if self.client.connection_state() != State::Connected {
            return Err(PullError::Disconnected);
        }
        let now = BatchConfig { batch: batch as usize, no_wait: true, ..BatchConfig::default() };
        let taken = self.request(now, margin, clock, stop, take).await?;
        let Some(expiry) = expiry.filter(|_| taken == 0 && !stop.is_cancelled()) else { return Ok(()) };
        let later = BatchConfig { batch: 1, expires: Some(expiry), ..BatchConfig::default() };
        self.request(later, expiry.saturating_add(margin), clock, stop, take).await.map(drop)
    }

    /// What came since the last fetch.
    pub(super) fn take_late(&mut self, batch: u32, take: &mut impl FnMut(Message)) -> Result<u32, PullError> {
        let mut taken = 0;
        while taken < batch {
            match self.subscriber.next().now_or_never() {
                Some(Some(message)) if message.status.is_none() => {
                    take(message);
                    taken += 1;
                }
                // The end of a request that was given up.
                Some(Some(_)) => {}
                Some(None) => return Err(PullError::Disconnected),
                None => break,
            }
        }
        Ok(taken)
    }

    async fn request(
        &mut self,
        request: BatchConfig,
        limit: Duration,
        clock: &Clock,
        stop: &CancellationToken,
        take: &mut impl FnMut(Message),
    ) -> Result<u32, PullError> {
        self.requests += 1;
        let reply = Subject::from(format!("{}.{}", self.inbox, self.requests));
        let batch = request.batch;
        let asked = self.durable.request_batch(request, reply.clone());
        match clock.timeout(limit, asked).await {
            Some(Ok(())) => {}
            Some(Err(_)) => return Err(PullError::Disconnected),
            None => return Err(PullError::Silent),
        }
        let mut taken = 0;
        let subscriber = &mut self.subscriber;
        let ended = clock.timeout(limit, async {
            while (taken as usize) < batch {
                let message = tokio::select! {
                    biased;
                    message = subscriber.next() => message,
                    () = stop.cancelled() => return End::Nothing,
                };
                let Some(message) = message else { return End::Error(PullError::Disconnected) };
                if message.status.is_none() {
                    take(message);
                    taken += 1;
                } else if message.subject == reply
                    && let Some(end) = end_of(&message)
                {
                    return end;
                }
            }
            End::Nothing
        });
        match ended.await {
            Some(End::Nothing) => Ok(taken),
            // What was taken comes first.
            _ if taken > 0 => Ok(taken),
            Some(End::Error(error)) => Err(error),
            None if self.client.connection_state() != State::Connected => Err(PullError::Disconnected),
            None => Err(PullError::Silent),
        }
    }
}

/// What a message without an event says about its request; none when it goes on.
fn end_of(message: &Message) -> Option<End> {
    let says = |words: &str| message.description.as_deref().is_some_and(|text| text.contains(words));
    match message.status? {
        StatusCode::IDLE_HEARTBEAT => None,
        StatusCode::NOT_FOUND | StatusCode::TIMEOUT => Some(End::Nothing),
        StatusCode::NO_RESPONDERS => Some(End::Error(PullError::Gone)),
        status if status.as_u16() == 409 && says("Consumer Deleted") => Some(End::Error(PullError::Gone)),
        // Too many messages or requests are under way, or the leader has changed: not now.
        status if status.as_u16() == 409 => Some(End::Nothing),
        status => Some(End::Error(PullError::Refused(u64::from(status.as_u16())))),
    }
}
