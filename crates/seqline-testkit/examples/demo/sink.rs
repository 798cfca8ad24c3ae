//! What the tail delivered.

use std::sync::{Arc, Mutex, PoisonError};

use futures_util::future::BoxFuture;
use seqline::StoredEvent;
use seqline::tail::{Sink, SinkError};
use uuid::Uuid;

/// Number and id of each delivered event, in the order of delivery. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Delivered(Arc<Mutex<Vec<(i64, Uuid)>>>);

impl Delivered {
    pub(crate) fn take(&self) -> Vec<(i64, Uuid)> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Sink for Delivered {
    fn accept<'a>(&'a mut self, batch: &'a [StoredEvent]) -> BoxFuture<'a, Result<(), SinkError>> {
        let events = batch.iter().map(|event| (event.seq, event.id));
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(events);
        Box::pin(async { Ok(()) })
    }
}
