//! An event as a message of the stream: subject, headers and envelope, and back.
//!
//! | header | what it holds |
//! |---|---|
//! | `Nats-Msg-Id` | epoch and id of the event, by which the broker drops a second copy for as long as it remembers |
//! | `Seqline-Epoch` | the history that the position belongs to |
//! | `Seqline-Position` | the number of the event in the log |
//! | `Seqline-Event-Id` | the id of the event |
//! | `Seqline-Envelope` | the version of the form that the payload has: [`ENVELOPE_VERSION`] |
//!
//! The payload is the event's [`Envelope`] as JSON, the same that every other way out gives.

use async_nats::HeaderMap;
use async_nats::header::NATS_MESSAGE_ID;
use bytes::Bytes;
use seqline::StoredEvent;
use seqline::envelope::{Delivery, Envelope};
use uuid::Uuid;

use crate::subject::{SubjectError, subject_of};

/// The header with the epoch.
pub const EPOCH: &str = "Seqline-Epoch";
/// The header with the number of the event in the log.
pub const POSITION: &str = "Seqline-Position";
/// The header with the id of the event.
pub const EVENT_ID: &str = "Seqline-Event-Id";
/// The header with the version of the envelope.
pub const ENVELOPE: &str = "Seqline-Envelope";
/// The version of the envelope that is written here. It rises when a reader of the older form would get it wrong; a new member that can be
/// left unread does not raise it.
pub const ENVELOPE_VERSION: u32 = 1;

/// An event as it is published.
#[derive(Debug, Clone)]
pub struct Outgoing {
    /// Where it goes.
    pub subject: String,
    /// Which event of which history it is.
    pub headers: HeaderMap,
    /// The envelope.
    pub payload: Bytes,
}

/// What a message says of itself in its headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// The history that the position belongs to.
    pub epoch: Uuid,
    /// The number of the event in the log.
    pub position: i64,
    /// The id of the event.
    pub event_id: Uuid,
}

impl Outgoing {
    /// An event of the log as a message. `rewinds` is how often the relay was told to publish again: a part of the message's id, because the
    /// broker would drop what it remembers.
    ///
    /// # Errors
    ///
    /// [`SubjectError`], which no event of the log causes.
    pub fn new(event: &StoredEvent, epoch: Uuid, rewinds: u32) -> Result<Self, SubjectError> {
        let payload = Envelope::new(event, &Delivery::default()).to_json();
        Self::with_payload(event, epoch, rewinds, payload.into())
    }

    /// The same for an event that is larger than the broker allows: without what it says, marked as truncated. Readers find the rest in the log.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn without_payload(event: &StoredEvent, epoch: Uuid, rewinds: u32) -> Result<Self, SubjectError> {
        let envelope = Envelope::new(event, &Delivery::default()).without_payload();
        Self::with_payload(event, epoch, rewinds, envelope.to_json().into())
    }

    fn with_payload(
        event: &StoredEvent,
        epoch: Uuid,
        rewinds: u32,
        payload: Bytes,
    ) -> Result<Self, SubjectError> {
        let id = event.id;
        let mut headers = HeaderMap::new();
        let message_id =
            if rewinds == 0 { format!("{epoch}:{id}") } else { format!("{epoch}:{id}:{rewinds}") };
        headers.insert(NATS_MESSAGE_ID, message_id);
        headers.insert(EPOCH, epoch.to_string());
        headers.insert(POSITION, event.seq.to_string());
        headers.insert(EVENT_ID, id.to_string());
        headers.insert(ENVELOPE, ENVELOPE_VERSION.to_string());
        Ok(Self { subject: subject_of(&event.event_type, event.space_id.as_deref())?, headers, payload })
    }

    /// How many bytes the broker counts of it: headers as they are sent, and payload.
    #[must_use]
    pub fn size(&self) -> usize {
        // "NATS/1.0" and the empty line that ends the headers; each header is a line with ": ".
        let lines = self.headers.iter().flat_map(|(name, values)| {
            let name = AsRef::<[u8]>::as_ref(name).len();
            values.iter().map(move |value| name + value.as_str().len() + 4)
        });
        12 + lines.sum::<usize>() + self.payload.len()
    }
}

impl Identity {
    /// What the headers say; `None` for a message that no relay wrote.
    #[must_use]
    pub fn of(headers: Option<&HeaderMap>) -> Option<Self> {
        let headers = headers?;
        let text = |name: &str| headers.get(name).map(async_nats::HeaderValue::as_str);
        Some(Self {
            epoch: text(EPOCH)?.parse().ok()?,
            position: text(POSITION)?.parse().ok().filter(|position| *position > 0)?,
            event_id: text(EVENT_ID)?.parse().ok()?,
        })
    }
}

/// The version of the envelope that the headers name, if they name one.
#[must_use]
pub fn envelope_version(headers: Option<&HeaderMap>) -> Option<u32> {
    headers?.get(ENVELOPE)?.as_str().parse().ok()
}
