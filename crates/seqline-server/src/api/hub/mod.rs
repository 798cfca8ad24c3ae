//! Hand the events of the tail to everybody who waits for them: from memory, each rendered once.
//!
//! The hub is the last sink of the tail. It holds the latest events in a bounded [`ring`] and tells its position to whoever waits, so a
//! thousand idle readers cost neither a thread nor a connection to the database. What the ring no longer has a [`reader`] gets from the
//! database, up to the position of the hub and no further: all of that is durable, and there is no hole between the two, since both are
//! asked for what comes right after the reader's position. A hub belongs to one epoch, and ends with it.

pub(crate) mod page;
pub(crate) mod reader;
pub(crate) mod rendered;
pub(crate) mod ring;
pub(crate) mod waiting;

use std::ops::ControlFlow;
use std::sync::{Arc, PoisonError, RwLock};

use futures_util::future::BoxFuture;
use seqline::StoredEvent;
use seqline::tail::{Sink, SinkError};
use tokio::sync::watch;
use uuid::Uuid;

use self::rendered::Rendered;
use self::ring::{Bounds, Looked, Ring};
use crate::config::Config;

/// See the [module](self). Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Hub(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    epoch: Uuid,
    ring: RwLock<Ring>,
    position: watch::Sender<i64>,
}

impl Hub {
    /// Empty, at the position where the tail starts.
    pub(crate) fn new(epoch: Uuid, position: i64, bounds: Bounds) -> Self {
        let ring = RwLock::new(Ring::new(position, bounds));
        Self(Arc::new(Shared { epoch, ring, position: watch::Sender::new(position) }))
    }

    /// The same with the bounds that are set.
    pub(crate) fn for_config(epoch: Uuid, position: i64, config: &Config) -> Self {
        let size = |key: u32| usize::try_from(key).unwrap_or(usize::MAX);
        let (events, bytes) = (size(config.api.hub_events_max), size(config.api.hub_bytes_max));
        Self::new(epoch, position, Bounds { events, bytes })
    }

    /// The epoch of all its numbers.
    pub(crate) fn epoch(&self) -> Uuid {
        self.0.epoch
    }

    /// The highest number that it has had. Everything up to there may be handed out.
    pub(crate) fn position(&self) -> i64 {
        *self.0.position.borrow()
    }

    /// Waits until it has had an event above this number. Cancel safe.
    pub(crate) async fn passes(&self, seq: i64) {
        // The sender is this, so it is there.
        let _ = self.0.position.subscribe().wait_for(|position| *position > seq).await;
    }

    /// Shows what the ring has: see [`Ring::look`].
    pub(crate) fn look(
        &self,
        after: i64,
        up_to: i64,
        most: usize,
        see: impl FnMut(&Arc<Rendered>) -> ControlFlow<()>,
    ) -> Looked {
        self.0.ring.read().unwrap_or_else(PoisonError::into_inner).look(after, up_to, most, see)
    }

    /// How many events it holds, and how many bytes they take.
    pub(crate) fn size(&self) -> (usize, usize) {
        let ring = self.0.ring.read().unwrap_or_else(PoisonError::into_inner);
        (ring.events(), ring.bytes())
    }

    fn take(&self, batch: &[StoredEvent]) -> Result<(), SinkError> {
        // Outside of the lock, since it takes longest.
        let rendered: Vec<_> = batch.iter().map(|event| Rendered::new(self.0.epoch, event.clone())).collect();
        let position = {
            let mut ring = self.0.ring.write().unwrap_or_else(PoisonError::into_inner);
            for event in rendered {
                ring.push(event)?;
            }
            ring.position()
        };
        self.0.position.send_replace(position);
        Ok(())
    }
}

/// The last sink of a tail.
impl Sink for Hub {
    fn accept<'a>(&'a mut self, batch: &'a [StoredEvent]) -> BoxFuture<'a, Result<(), SinkError>> {
        Box::pin(std::future::ready(self.take(batch)))
    }
}
