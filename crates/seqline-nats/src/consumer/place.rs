//! Where a consumer is: at the broker, and in the database.
//!
//! It is recorded in the database before the broker knows of it. So a consumer that is recorded, and that the broker does not know, was deleted
//! there: it is made again from the oldest message on, and what was handled is recognised.

use std::sync::atomic::Ordering;

use async_nats::Client;
use async_nats::connection::State as Connection;
use async_nats::jetstream::consumer::{DeliverPolicy, Info};
use async_nats::jetstream::stream::{Info as StreamInfo, Stream};
use seqline::pool::Lease;

use super::decide::Content;
use super::definition::StartAt;
use super::durable::{self, Durable};
use super::error::PassError;
use super::hand::Keeper;
use super::pull::{PullError, Puller};
use super::runtime::{Runtime, State};
use super::shared::Shared;
use crate::store;
use crate::store::consumers::{Asking, Registration};
use crate::stream::{StreamError, require_stream};

/// How many messages are looked at for the first one of a relay.
const FIRST_LOOKS_MAX: usize = 20;

/// What connects a consumer with the broker.
pub(super) struct Link {
    client: Client,
    pub(super) stream: Stream,
    /// When the stream was made, in nanoseconds since 1970.
    pub(super) stream_created: i64,
    pub(super) puller: Puller,
}

impl Shared {
    pub(super) fn asking(&self) -> Asking<'_> {
        Asking {
            name: &self.consumer.name,
            stream: &self.stream.name,
            types: self.consumer.types.as_deref(),
            spaces: self.consumer.spaces.as_deref(),
        }
    }

    async fn registration(&self) -> Result<Option<Registration>, PassError> {
        let mut lease = self.lease().await?;
        let asking = self.asking();
        let found = lease.alone(async |connection| store::consumers::registration(connection, &asking).await);
        let found = self.ask(found).await?;
        lease.done();
        Ok(found)
    }

    /// Records the consumer. Where it stands if it was there already.
    async fn register(&self, start_position: i64) -> Result<Registration, PassError> {
        let mut lease = self.lease().await?;
        let asking = self.asking();
        let registered = lease.alone(async |connection| {
            let log = store::consumers::bounds(connection).await?;
            // A message of another history can be further.
            let start_position = start_position.clamp(0, log.head);
            // What retention has taken already cannot be compared.
            let reconciled_to = start_position.max(log.min_retained - 1);
            store::consumers::register(connection, &asking, start_position, reconciled_to).await
        });
        let registered = self.ask(registered).await?;
        lease.done();
        self.has_said.store(true, Ordering::Relaxed);
        Ok(registered)
    }

    async fn relayed_to(&self, stream: &StreamInfo) -> Result<Option<i64>, PassError> {
        let mut lease = self.lease().await?;
        let found = relayed_to(&mut lease, self, created(stream), stream.state.last_sequence);
        let found = self.ask(found).await?;
        lease.done();
        Ok(found)
    }
}

async fn relayed_to(
    lease: &mut Lease,
    shared: &Shared,
    created: i64,
    last: u64,
) -> Result<Option<i64>, sqlx::Error> {
    let last = i64::try_from(last).unwrap_or(i64::MAX);
    let name = shared.stream.name.as_str();
    lease.alone(async |connection| store::consumers::relayed_to(connection, name, created, last).await).await
}

/// When a stream was made.
pub(super) fn created(stream: &StreamInfo) -> i64 {
    i64::try_from(stream.created.unix_timestamp_nanos()).unwrap_or(i64::MAX)
}

impl Runtime {
    /// Connects the consumer, if it is not. Fails while there is no connection to the broker.
    pub(super) async fn link(&self, state: &mut State) -> Result<(), PassError> {
        let shared = &*self.shared;
        let client = shared.broker.client().await?;
        if client.connection_state() != Connection::Connected {
            // Each question would be waited for in vain.
            return Err(self.pull_error(PullError::Disconnected));
        }
        // While this one is connected, one that is not is another one, in whose place this one was opened.
        if state.link.as_ref().is_some_and(|link| link.client.connection_state() == Connection::Connected) {
            return Ok(());
        }
        state.link = None;
        let info = require_stream(&shared.broker, &shared.stream).await?;
        let stream = self.stream().await?;
        if state.registration.is_none() {
            state.registration = shared.registration().await?;
        }
        let was_known = state.registration.is_some();
        state.registration = match state.registration {
            // Once said is enough: meanwhile a newer process may have said something else.
            Some(known) if shared.has_said.load(Ordering::Relaxed) => Some(known),
            // What it asks for can be something else than before.
            Some(known) => Some(shared.register(known.start_position).await?),
            None => match self.start_position(&stream, &info).await? {
                Some(start_position) => Some(shared.register(start_position).await?),
                None => None,
            },
        };
        let durable = self.durable(state, &stream, &info, was_known).await?;
        let puller = Puller::new(client.clone(), durable).await.map_err(|error| self.pull_error(error))?;
        let interval = durable::progress_interval(shared.config.ack_wait);
        let keeper = Keeper::start(client.clone(), shared.clock.clone(), interval, state.replies());
        state.keeper = Some(keeper);
        state.link = Some(Link { client, stream, stream_created: created(&info), puller });
        Ok(())
    }

    async fn stream(&self) -> Result<Stream, PassError> {
        let name = &self.shared.stream.name;
        let found = self.shared.broker.jetstream().await?.get_stream(name).await;
        found.map_err(|_| StreamError::Silent(name.clone()).into())
    }

    pub(super) fn pull_error(&self, error: PullError) -> PassError {
        match error {
            PullError::Gone | PullError::Silent => PassError::Silent,
            PullError::Refused(code) => PassError::Refused(code),
            PullError::Disconnected => {
                crate::broker::BrokerError::Unreachable { place: self.shared.broker.place() }.into()
            }
        }
    }

    /// The position before the first event that is expected; none when nobody can say yet, because there is no event in the stream.
    async fn start_position(&self, stream: &Stream, info: &StreamInfo) -> Result<Option<i64>, PassError> {
        let state = &info.state;
        if self.shared.consumer.start_at == StartAt::New
            && let Some(start) = durable::info(stream, self.shared.name()).await?.as_ref().and_then(start_of)
        {
            // A process made it and ended before anybody knew a position. What came since is expected.
            let first = durable::message_from(stream, start).await?;
            return match first.and_then(|message| message.identity) {
                Some(identity) => Ok(Some(identity.position - 1)),
                None => self.shared.relayed_to(info).await,
            };
        }
        if state.messages > 0 {
            match self.shared.consumer.start_at {
                StartAt::Everything => {
                    let mut next = state.first_sequence;
                    for _ in 0..FIRST_LOOKS_MAX {
                        let Some(message) = durable::message_from(stream, next).await? else { break };
                        if let Some(identity) = message.identity {
                            return Ok(Some(identity.position - 1));
                        }
                        next = message.stream_seq.unsigned_abs() + 1;
                    }
                }
                StartAt::New => {
                    let last = durable::message_at(stream, state.last_sequence).await?;
                    if let Some(identity) = last.and_then(|message| message.identity) {
                        return Ok(Some(identity.position));
                    }
                }
            }
        }
        self.shared.relayed_to(info).await
    }

    /// Records a consumer whose start nobody could say, now that there are messages in hand.
    pub(super) async fn register_late(&self, state: &mut State) -> Result<Registration, PassError> {
        if let Some(known) = state.registration {
            return Ok(known);
        }
        let positions = state.fetched.iter().filter_map(|message| match &message.content {
            Content::Event(identity, _) => Some(identity.position),
            _ => None,
        });
        // Without any event it begins with those that are not there yet: the head is as high as it gets.
        let start_position = positions.min().map_or(i64::MAX, |position| position - 1);
        let registered = self.shared.register(start_position).await?;
        state.registration = Some(registered);
        Ok(registered)
    }

    /// The consumer at the broker, made or adjusted.
    async fn durable(
        &self,
        state: &mut State,
        stream: &Stream,
        info: &StreamInfo,
        was_known: bool,
    ) -> Result<Durable, PassError> {
        let shared = &*self.shared;
        let (consumer, name) = (&shared.consumer, shared.name());
        let mut found = durable::info(stream, name).await?;
        if let Some(existing) = &found
            && is_beyond(existing, stream).await?
        {
            if durable::delete(stream, name).await {
                state.said_stuck = false;
                tracing::error!(
                    consumer = name,
                    "stream has lost messages that were delivered, stream consumer begins anew"
                );
                found = None;
            } else {
                // It is the same each time until somebody gives it the right, or the stream has come as far again.
                state.reconcile_at = shared.clock.elapsed().saturating_add(shared.config.reconcile_interval);
                if !std::mem::replace(&mut state.said_stuck, true) {
                    tracing::error!(
                        consumer = name,
                        "stream has lost messages that were delivered, and the broker does not let the stream consumer begin anew"
                    );
                }
            }
        } else if found.is_none() && was_known {
            tracing::warn!(consumer = name, "stream consumer was gone at the broker, its place is lost");
        }
        match found {
            Some(existing) => {
                if let Some(changed) = durable::plan(&existing, consumer, &shared.config)?
                    && !durable::update(stream, changed).await?
                    && !std::mem::replace(&mut state.said_unchanged, true)
                {
                    tracing::warn!(
                        consumer = name,
                        "broker does not take the settings of the stream consumer"
                    );
                }
            }
            None => {
                let policy = match consumer.start_at {
                    StartAt::New if !was_known => {
                        DeliverPolicy::ByStartSequence { start_sequence: info.state.last_sequence + 1 }
                    }
                    _ => DeliverPolicy::All,
                };
                let wanted = durable::wanted(consumer, &shared.config, policy);
                if let Some(made) = durable::create(stream, wanted).await? {
                    return Ok(made);
                }
            }
        }
        // Somebody's, or our own of before.
        stream.get_consumer(name).await.map_err(|_| PassError::Silent)
    }
}

/// With which message a consumer begins, if it says so.
fn start_of(existing: &Info) -> Option<u64> {
    match existing.config.deliver_policy {
        DeliverPolicy::ByStartSequence { start_sequence } => Some(start_sequence),
        _ => None,
    }
}

/// Whether a consumer was delivered more than the stream holds: it lost its end. The stream is asked later than the consumer, so more can have
/// come to it in between, and not less.
pub(super) async fn is_beyond(consumer: &Info, stream: &Stream) -> Result<bool, PassError> {
    let now = stream.get_info().await.map_err(|_| PassError::Silent)?;
    Ok(consumer.delivered.stream_sequence > now.state.last_sequence)
}
