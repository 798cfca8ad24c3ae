//! Appending over HTTP: requests that come at the same time share a transaction.
//!
//! A transaction costs about the same for one event and for a hundred, so what waits is appended together, up to a bound, by a few groups
//! at once. Nobody waits for a group to become full. What is promised of a single request is kept: its events follow each other in the
//! log, all of them or none, and what is wrong with one request is no other's affair: the others are tried again without it. One that
//! waits for somebody else's transaction holds the others up for a moment, and is told to come again.
//!
//! Whoever goes away before the answer changes nothing: a request that was handed over is appended or not as a whole, and one with an
//! `Idempotency-Key` is answered the same when it comes again.
//!
//! `event` makes events of what was sent, `queue` decides who goes next, both without I/O; `group` has the transaction, and `stage` what is done in
//! it.

mod batch;
mod event;
mod group;
mod idempotency;
mod queue;
mod schema;
mod stage;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use seqline::{DatabaseError, NewEvent};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

pub(super) use self::batch::BatchSeed;
pub(super) use self::event::{EventBody, EventPlace, Sender};
use self::group::Group;
pub(super) use self::idempotency::{Idempotency, KeyHeader};
use self::queue::{Queue, Waiting};
use super::Problem;
use super::body::Room;
use super::database::Database;
use crate::limits::{API_APPEND_GROUPS_MAX, API_KEYS_PRUNED_AT_ONCE};
use crate::{config, store};

/// Events of one request, and whom to tell.
pub(super) struct QueuedAppend {
    events: Vec<NewEvent>,
    /// Where they were in the request.
    place: EventPlace,
    idempotency: Option<Idempotency>,
    answer: oneshot::Sender<Result<Appended, Problem>>,
    _held: Held,
}

/// What a request takes until it is answered, whether anybody still waits for that or not: a place in the queue, and the room of its body.
struct Held {
    _waiting: OwnedSemaphorePermit,
    _room: Option<Room>,
}

/// What was appended for a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Appended {
    pub(super) ids: Vec<Uuid>,
    /// The number of the last of them, unless that comes later.
    pub(super) last_seq: Option<i64>,
    /// Whether that was by an earlier request with the same key.
    pub(super) replayed: bool,
}

/// Takes events and appends them. Cheap to clone; what it runs ends with the last clone.
#[derive(Debug, Clone)]
pub(crate) struct Appender {
    asked: mpsc::UnboundedSender<QueuedAppend>,
    places: Arc<Semaphore>,
}

impl Appender {
    pub(crate) fn start(database: Database, keys: &config::Api) -> Self {
        let most = usize::try_from(keys.append_queue_max).unwrap_or(usize::MAX);
        // Bounded by the places.
        let (asked, received) = mpsc::unbounded_channel();
        let queue = Queue::new(API_APPEND_GROUPS_MAX, count(keys.append_group_events_max));
        tokio::spawn(run(received, queue, database, keys.idempotency_retention));
        Self { asked, places: Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS))) }
    }

    /// Appends the events of one request, in their order. A dropped future leaves it open whether they are appended. `room` is what they
    /// take.
    pub(super) async fn append(
        &self,
        events: Vec<NewEvent>,
        place: EventPlace,
        idempotency: Option<Idempotency>,
        room: Option<Room>,
    ) -> Result<Appended, Problem> {
        let busy =
            || Problem::unavailable("more requests wait to be appended than api.append_queue_max allows");
        let waiting = self.places.clone().try_acquire_owned().map_err(|_| busy())?;
        let (answer, answered) = oneshot::channel();
        let held = Held { _waiting: waiting, _room: room };
        let asked = QueuedAppend { events, place, idempotency, answer, _held: held };
        let gone = || Problem::internal("append", &"what appends has ended");
        self.asked.send(asked).map_err(|_| gone())?;
        answered.await.unwrap_or_else(|_| Err(gone()))
    }
}

/// Forgets keys that are older than `retention`, some at a time, and returns how many.
pub(crate) async fn prune(
    database: &Database,
    retention: Duration,
    stop: &CancellationToken,
) -> Result<u64, DatabaseError> {
    let mut pruned = 0;
    while !stop.is_cancelled() {
        let some = database.ask(async |connection| {
            Ok::<_, DatabaseError>(
                store::idempotency::prune(connection, retention, API_KEYS_PRUNED_AT_ONCE).await?,
            )
        });
        let some = some.await?;
        pruned += some;
        if some < API_KEYS_PRUNED_AT_ONCE.unsigned_abs() {
            break;
        }
    }
    Ok(pruned)
}

/// Hands out groups until nobody can ask any more and all were answered.
async fn run(
    mut received: mpsc::UnboundedReceiver<QueuedAppend>,
    mut queue: Queue<QueuedAppend>,
    database: Database,
    retention: Duration,
) {
    let mut groups = JoinSet::new();
    let mut may_come = true;
    while may_come || !groups.is_empty() {
        tokio::select! {
            asked = received.recv(), if may_come => match asked {
                Some(asked) => queue.push(waiting(asked)),
                None => may_come = false,
            },
            Some(ended) = groups.join_next(), if !groups.is_empty() => match ended {
                Ok(keys) => queue.ended(keys),
                // Only a runtime that is shutting down ends one: panics are caught.
                Err(_) => return,
            },
        }
        while let Ok(asked) = received.try_recv() {
            queue.push(waiting(asked));
        }
        while let Some((group, keys)) = queue.next() {
            // Whoever has gone need not be appended.
            let group = Group::new(group.into_iter().filter(|asked| !asked.answer.is_closed()).collect());
            let database = database.clone();
            groups.spawn(async move {
                let appended = AssertUnwindSafe(Box::pin(group.append(&database, retention)));
                if appended.catch_unwind().await.is_err() {
                    tracing::error!("a group of appends panicked");
                }
                keys
            });
        }
    }
}

fn waiting(asked: QueuedAppend) -> Waiting<QueuedAppend> {
    Waiting {
        events: asked.events.len(),
        has_ids: asked.events.iter().any(|event| event.id().is_some()),
        key: asked.idempotency.as_ref().map(Idempotency::key),
        what: asked,
    }
}

fn count(key: u32) -> usize {
    usize::try_from(key).unwrap_or(usize::MAX)
}
