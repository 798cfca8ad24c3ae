//! What waits at the broker for each consumer of the stream, also for those of other programs, and for those that do not run.
//!
//! Asked by the process that has the relay. A consumer that does not run tells nobody how far it is behind.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use seqline::{Clock, DatabaseError};
use seqline_nats::broker::Broker;
use seqline_nats::relay::RelayTally;
use seqline_nats::report::consumer_report;
use tokio_util::sync::CancellationToken;

use crate::api::Database;
use crate::limits::{STREAM_CONSUMERS_ASKED_MAX, STREAM_CONSUMERS_INTERVAL};
use crate::store;

/// What the broker said of a consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Waits {
    /// Messages that it has still to be given.
    pub(crate) pending: u64,
    /// Messages that are in hand.
    pub(crate) ack_pending: u64,
}

/// What waits for each consumer by name, as of the last look. Clones are the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct Waiting(Arc<Mutex<BTreeMap<String, Waits>>>);

impl Waiting {
    /// All that are known. None in a process that does not have the relay, and none when the last look failed.
    pub(crate) fn all(&self) -> BTreeMap<String, Waits> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, all: BTreeMap<String, Waits>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = all;
    }
}

/// Whom to ask, and of what.
pub(super) struct Asking {
    pub(super) database: Database,
    pub(super) broker: Broker,
    pub(super) stream: String,
    pub(super) relay: Arc<RelayTally>,
    pub(super) clock: Clock,
}

impl Asking {
    /// Asks until `stop` is cancelled, while the relay is run by this process. Nothing depends on it.
    pub(super) async fn run(self, waiting: Waiting, stop: CancellationToken) {
        loop {
            let look = async {
                match self.relay.active() {
                    true => self.look().await,
                    false => BTreeMap::new(),
                }
            };
            tokio::select! {
                all = look => waiting.set(all),
                () = stop.cancelled() => return,
            }
            tokio::select! {
                () = self.clock.sleep(STREAM_CONSUMERS_INTERVAL) => {}
                () = stop.cancelled() => return,
            }
        }
    }

    /// One look at all of them. Whatever does not answer is said by those who work with it.
    async fn look(&self) -> BTreeMap<String, Waits> {
        let names = self.database.ask(async |connection| {
            let most = STREAM_CONSUMERS_ASKED_MAX;
            Ok::<_, DatabaseError>(store::metrics::stream_consumers(connection, &self.stream, most).await?)
        });
        let mut all = BTreeMap::new();
        for name in names.await.unwrap_or_default() {
            match consumer_report(&self.broker, &self.stream, &name).await {
                Ok(Some(it)) => {
                    let waits = Waits { pending: it.pending, ack_pending: it.ack_pending as u64 };
                    all.insert(name, waits);
                }
                Ok(None) => {}
                Err(_) => return BTreeMap::new(),
            }
        }
        all
    }
}
