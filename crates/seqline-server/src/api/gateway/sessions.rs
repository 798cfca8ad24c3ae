//! The sessions of this process: who is connected, which consumers of agents they hold, and what can be resumed.
//!
//! A session outlives its connection for a while. The truth about a consumer is its row in the database; what is here makes a takeover inside
//! of one process quick and in order, lets acknowledgements be saved together, and lets a client that comes back go on.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use seqline::agent::{AgentConsumer, Save};
use tokio::sync::watch;
use uuid::Uuid;

use super::close::Close;
use crate::limits::GATEWAY_TURNS;

/// See the [module](self). Clones share them.
#[derive(Clone)]
pub(crate) struct Sessions(Arc<Shared>);

struct Shared {
    known: Mutex<Known>,
    /// Takeovers of one consumer come one after the other.
    turns: [tokio::sync::Mutex<()>; GATEWAY_TURNS],
    hasher: RandomState,
    most: usize,
}

#[derive(Default)]
struct Known {
    by_id: HashMap<Uuid, Entry>,
    by_consumer: HashMap<AgentConsumer, Uuid>,
}

struct Entry {
    session: Session,
    /// Tells the connection to end; none while there is no connection.
    connection: Option<watch::Sender<Told>>,
    /// Since when there is none, by the clock's elapsed time.
    detached_at: Duration,
}

/// What a connection is told from elsewhere.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Told {
    /// To end.
    pub(super) close: Option<Close>,
    /// That so much was acknowledged over REST.
    pub(super) acked: i64,
}

/// What is known of a session wherever it is.
#[derive(Clone)]
pub(crate) struct Session {
    pub(super) id: Uuid,
    pub(super) principal: String,
    /// Of an agent.
    pub(super) held: Option<Held>,
}

/// A consumer that a session holds.
#[derive(Clone)]
pub(super) struct Held {
    pub(super) consumer: AgentConsumer,
    pub(super) generation: i64,
    pub(super) state: Arc<State>,
}

/// How far the holder is.
#[derive(Default)]
pub(super) struct State {
    acked: AtomicI64,
    saved: AtomicI64,
    /// It lost events, and is not known to know that.
    owes: AtomicBool,
    /// What is stored says otherwise.
    owes_saved: AtomicBool,
}

impl State {
    /// As it is stored.
    pub(super) fn new(acked: i64, owes: bool) -> Self {
        let (acked, saved) = (AtomicI64::new(acked), AtomicI64::new(acked));
        Self { acked, saved, owes: AtomicBool::new(owes), owes_saved: AtomicBool::new(owes) }
    }

    pub(super) fn acked(&self) -> i64 {
        self.acked.load(Ordering::Acquire)
    }

    /// What the window says now.
    pub(super) fn set(&self, acked: i64, owes: bool) {
        self.acked.store(acked, Ordering::Release);
        self.owes.store(owes, Ordering::Release);
    }

    fn is_saved(&self) -> bool {
        self.acked() <= self.saved.load(Ordering::Acquire)
            && self.owes.load(Ordering::Acquire) == self.owes_saved.load(Ordering::Acquire)
    }
}

impl Held {
    /// What is to be saved of it.
    pub(super) fn save(&self, session: Uuid) -> Save {
        let knows_lost = !self.state.owes.load(Ordering::Acquire);
        Save { consumer: self.consumer.clone(), session, acked_seq: self.state.acked(), knows_lost }
    }

    /// That was saved.
    pub(super) fn saved(&self, save: &Save) {
        self.state.saved.store(save.acked_seq, Ordering::Release);
        self.state.owes_saved.store(!save.knows_lost, Ordering::Release);
    }
}

/// A session that was asked for again.
pub(super) enum Resumed {
    Session(Session, watch::Receiver<Told>),
    Unknown,
}

impl Sessions {
    /// With so many at most.
    pub(crate) fn new(most: usize) -> Self {
        Self(Arc::new(Shared {
            known: Mutex::default(),
            turns: std::array::from_fn(|_| tokio::sync::Mutex::default()),
            hasher: RandomState::new(),
            most,
        }))
    }

    /// The turn of whoever takes this consumer in this process.
    pub(crate) fn turn(&self, consumer: &AgentConsumer) -> &tokio::sync::Mutex<()> {
        let hash = self.0.hasher.hash_one(consumer);
        let at = usize::try_from(hash % GATEWAY_TURNS as u64).unwrap_or_default();
        &self.0.turns[at]
    }

    /// Whoever holds this consumer in this process holds it no longer: its connection is told to end, and its session to be forgotten. What
    /// it has acknowledged comes back, to be saved before somebody else takes the row.
    pub(crate) fn retire(&self, consumer: &AgentConsumer) -> Option<Save> {
        let mut known = self.known();
        let id = known.by_consumer.remove(consumer)?;
        let entry = known.by_id.remove(&id)?;
        if let Some(connection) = &entry.connection {
            connection.send_modify(|told| told.close = Some(Close::ConsumerReplaced));
        }
        entry.session.held.map(|held| held.save(id))
    }

    /// So much of a consumer was acknowledged over REST: whoever holds it in this process hears of it.
    pub(crate) fn acknowledged(&self, consumer: &AgentConsumer, seq: i64) {
        let known = self.known();
        let entry = known.by_consumer.get(consumer).and_then(|id| known.by_id.get(id));
        if let Some(connection) = entry.and_then(|entry| entry.connection.as_ref()) {
            connection.send_modify(|told| told.acked = told.acked.max(seq));
        }
    }

    /// A session begins. What is returned says when its connection is to end.
    pub(super) fn begin(&self, session: Session, now: Duration) -> watch::Receiver<Told> {
        let (connection, told) = watch::channel(Told::default());
        let mut known = self.known();
        if let Some(held) = &session.held {
            known.by_consumer.insert(held.consumer.clone(), session.id);
        }
        if known.by_id.len() >= self.0.most {
            known.forget_the_oldest();
        }
        let id = session.id;
        known.by_id.insert(id, Entry { session, connection: Some(connection), detached_at: now });
        told
    }

    /// A client comes back for a session of its own. A connection that is still there is told to end: to the agent it was replaced.
    pub(super) fn resume(&self, id: Uuid, principal: &str) -> Resumed {
        let mut known = self.known();
        let Some(entry) = known.by_id.get_mut(&id).filter(|entry| entry.session.principal == principal)
        else {
            return Resumed::Unknown;
        };
        let (connection, told) = watch::channel(Told::default());
        let close =
            if entry.session.held.is_some() { Close::ConsumerReplaced } else { Close::SessionReplaced };
        if let Some(before) = entry.connection.replace(connection) {
            before.send_modify(|told| told.close = Some(close));
        }
        Resumed::Session(entry.session.clone(), told)
    }

    /// The connection of a session is lost, and may come back. Not if another one has come for it already.
    pub(super) fn detach(&self, id: Uuid, told: &watch::Receiver<Told>, now: Duration) {
        let mut known = self.known();
        if let Some(entry) = known.by_id.get_mut(&id)
            && entry.connection.as_ref().is_some_and(|connection| connection.subscribe().same_channel(told))
        {
            entry.connection = None;
            entry.detached_at = now;
        }
    }

    /// The session is over.
    pub(super) fn end(&self, id: Uuid) {
        let mut known = self.known();
        known.forget(id);
    }

    /// Forgets what nobody came back for.
    pub(super) fn sweep(&self, now: Duration, resume_window: Duration) {
        let mut known = self.known();
        let gone = |entry: &Entry| entry.connection.is_none() && entry.detached_at + resume_window <= now;
        let ids: Vec<Uuid> = known.by_id.iter().filter(|(_, entry)| gone(entry)).map(|(id, _)| *id).collect();
        for id in ids {
            known.forget(id);
        }
    }

    /// The holders whose acknowledgements are not saved yet, or all.
    pub(super) fn holders(&self, all: bool) -> Vec<(Uuid, Held)> {
        let known = self.known();
        let holders = known.by_consumer.values().filter_map(|id| {
            let held = known.by_id.get(id)?.session.held.clone()?;
            (all || !held.state.is_saved()).then_some((*id, held))
        });
        holders.collect()
    }

    /// A holder was found to be none any more.
    pub(super) fn replaced(&self, id: Uuid) {
        let mut known = self.known();
        if let Some(connection) = known.by_id.get(&id).and_then(|entry| entry.connection.as_ref()) {
            connection.send_modify(|told| told.close = Some(Close::ConsumerReplaced));
        }
        known.forget(id);
    }

    /// How many connections there are, and how many of them hold a consumer.
    pub(crate) fn connected(&self) -> (usize, usize) {
        let known = self.known();
        let connected = known.by_id.values().filter(|entry| entry.connection.is_some());
        connected.fold((0, 0), |(all, agents), entry| {
            (all + 1, agents + usize::from(entry.session.held.is_some()))
        })
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn forget(&mut self, id: Uuid) {
        let Some(entry) = self.by_id.remove(&id) else { return };
        if let Some(held) = &entry.session.held
            && self.by_consumer.get(&held.consumer) == Some(&id)
        {
            self.by_consumer.remove(&held.consumer);
        }
    }

    /// Of those that have no connection.
    fn forget_the_oldest(&mut self) {
        let detached = self.by_id.iter().filter(|(_, entry)| entry.connection.is_none());
        let oldest = detached.min_by_key(|(_, entry)| entry.detached_at).map(|(id, _)| *id);
        if let Some(oldest) = oldest {
            self.forget(oldest);
        }
    }
}
