//! The connection over which messages go, and how an event becomes one that the broker takes.

use std::sync::atomic::Ordering;

use async_nats::connection::State;
use async_nats::header::NATS_EXPECTED_STREAM;
use async_nats::jetstream::stream::Info;
use async_nats::{Client, Subscriber};
use seqline::StoredEvent;
use uuid::Uuid;

use super::recover::Place;
use super::source::Page;
use super::window::Window;
use super::{Relay, RelayError};
use crate::limits::STORED_OVERHEAD;
use crate::message::Outgoing;
use crate::store::relay::Incident;

/// More bytes than the headers have that are added when a message is sent, apart from the name of the stream.
const ADDED_HEADERS: usize = 256;

/// A connection over which messages go to the end of the stream, as long as nothing goes wrong with either.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) client: Client,
    pub(super) replies: Subscriber,
    pub(super) inbox: String,
    /// How often the client had connected: another number means that answers were lost.
    pub(super) connects: u64,
    pub(super) epoch: Uuid,
    /// The last place of the stream when the first message was sent.
    pub(super) origin: u64,
    pub(super) window: Window,
    /// Messages without an answer.
    pub(super) unanswered: usize,
    /// The longest message that the broker takes.
    pub(super) limit: usize,
    /// The last event that was read, and which it is.
    pub(super) last: Option<(i64, Uuid)>,
    /// What comes next, read already.
    pub(super) ahead: Option<Page>,
}

impl Link {
    pub(super) fn is_connected(&self) -> bool {
        self.client.connection_state() == State::Connected
            && self.client.statistics().connects.load(Ordering::Relaxed) == self.connects
    }

    /// The last place of the stream, once all that was sent is there.
    pub(super) fn end(&self) -> u64 {
        self.origin + self.window.next_place()
    }
}

/// A message that can be sent.
pub(super) struct Ready {
    pub(super) position: i64,
    pub(super) size: usize,
    pub(super) outgoing: Outgoing,
}

impl Relay {
    /// A connection to go on with behind the end of the stream.
    pub(super) async fn link(
        &self,
        client: Client,
        info: &Info,
        place: &Place,
        epoch: Uuid,
    ) -> Result<Link, RelayError> {
        let inbox = client.new_inbox();
        let connects = client.statistics().connects.load(Ordering::Relaxed);
        // The client takes nothing more while it is not connected and much waits in it.
        let subscribing =
            self.clock.timeout(self.config.ack_timeout, client.subscribe(format!("{inbox}.*"))).await;
        let Some(Ok(replies)) = subscribing else { return Err(RelayError::ConnectionLost) };
        let mut limit = client.server_info().max_payload;
        let of_the_stream = |size: i64| usize::try_from(size).ok().filter(|size| *size > 0);
        if let Some(size) = of_the_stream(i64::from(info.config.max_message_size)) {
            limit = limit.min(size);
        }
        // Where old messages go, one that is larger than the stream would be acknowledged and go with all others.
        if let Some(size) = of_the_stream(info.config.max_bytes) {
            limit = limit.min(size.saturating_sub(STORED_OVERHEAD));
        }
        Ok(Link {
            client,
            replies,
            inbox,
            connects,
            epoch,
            origin: place.last,
            window: Window::default(),
            unanswered: 0,
            limit,
            last: None,
            ahead: None,
        })
    }

    pub(super) async fn publish(
        &self,
        link: &Link,
        place: u64,
        mut outgoing: Outgoing,
    ) -> Result<(), RelayError> {
        outgoing.headers.insert(NATS_EXPECTED_STREAM, self.config.stream.name.as_str());
        let Outgoing { subject, headers, payload } = outgoing;
        let reply = format!("{}.{place}", link.inbox);
        let publishing = link.client.publish_with_reply_and_headers(subject, reply, headers, payload);
        match self.clock.timeout(self.config.ack_timeout, publishing).await {
            Some(Ok(())) => Ok(()),
            Some(Err(_)) => Err(RelayError::ConnectionLost),
            None => Err(RelayError::Unacknowledged),
        }
    }

    /// Makes the message of an event, without its payload where that does not fit.
    pub(super) async fn prepare(&mut self, link: &Link, event: &StoredEvent) -> Result<Ready, RelayError> {
        let (position, rewinds) = (event.seq, self.held()?.cursor.rewinds);
        let added = ADDED_HEADERS + self.config.stream.name.len();
        let size = |outgoing: &Outgoing| outgoing.size() + outgoing.subject.len() + added;
        // The log takes no event of whose type no subject can be made.
        let made =
            |made: Result<Outgoing, _>| made.map_err(|_| RelayError::LimitTooLow { position, limit: 0 });
        let outgoing = made(Outgoing::new(event, link.epoch, rewinds))?;
        if size(&outgoing) <= link.limit {
            return Ok(Ready { position, size: size(&outgoing), outgoing });
        }
        let outgoing = made(Outgoing::without_payload(event, link.epoch, rewinds))?;
        if size(&outgoing) > link.limit {
            return Err(RelayError::LimitTooLow { position, limit: link.limit });
        }
        if position > self.left_out_to {
            let positions = Some((position, position));
            self.note(Incident { kind: "payload_left_out", count: 1, positions, stream_seq: None }).await?;
            self.left_out_to = position;
        }
        Ok(Ready { position, size: size(&outgoing), outgoing })
    }
}
