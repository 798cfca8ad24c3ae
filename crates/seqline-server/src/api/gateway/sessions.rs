//! The sessions of this process: who is connected, which consumers of agents they hold, and what can be resumed.
//!
//! A session outlives its connection for a while. The truth about a consumer is its row in the database; what is here makes a takeover inside
//! of one process quick and in order, lets acknowledgements be saved together, and lets a client that comes back go on. A connection has its
//! session by an [`Attached`]: when that goes, whatever the reason, the session has no connection any more.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use seqline::Clock;
use seqline::agent::{AgentConsumer, Save};
use tokio::sync::{OwnedMutexGuard, watch};
use uuid::Uuid;

use super::close::Close;

/// See the [module](self). Clones share them.
#[derive(Clone)]
pub(crate) struct Sessions(Arc<Shared>);

struct Shared {
    known: Mutex<Known>,
    /// Takeovers of one consumer come one after the other. Those of others wait for none of them.
    turns: Mutex<HashMap<AgentConsumer, Weak<tokio::sync::Mutex<()>>>>,
    clock: Clock,
    most: usize,
}

#[derive(Default)]
struct Known {
    by_id: HashMap<Uuid, Entry>,
    by_consumer: HashMap<AgentConsumer, Uuid>,
}

struct Entry {
    session: Session,
    /// Tells the connection something; none while there is no connection.
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
pub(crate) struct Held {
    pub(super) consumer: AgentConsumer,
    pub(super) generation: i64,
    pub(super) state: Arc<State>,
    /// Its writes come one after the other, so that none stores what was so before the other.
    pub(crate) writing: Arc<tokio::sync::Mutex<()>>,
}

/// How far the holder is.
pub(crate) struct State {
    acked: AtomicI64,
    /// At least that: what lies between is not for the agent.
    settled: AtomicI64,
    saved: AtomicI64,
    /// It lost events, and is not known to know that.
    owes: AtomicBool,
    /// What is stored says otherwise.
    owes_saved: AtomicBool,
    /// Its client was heard of since it was let in, so it knows that it was.
    heard: AtomicBool,
}

impl State {
    /// As it is stored.
    pub(super) fn new(acked: i64, owes: bool) -> Self {
        let at = || AtomicI64::new(acked);
        let (owes, owes_saved) = (AtomicBool::new(owes), AtomicBool::new(owes));
        Self { acked: at(), settled: at(), saved: at(), owes, owes_saved, heard: AtomicBool::new(false) }
    }

    /// Its client was heard of.
    pub(super) fn hears(&self) {
        self.heard.store(true, Ordering::Relaxed);
    }

    /// Up to where it goes on from.
    pub(super) fn settled(&self) -> i64 {
        self.settled.load(Ordering::Acquire)
    }

    /// What the window says now.
    pub(super) fn set(&self, acked: i64, settled: i64, owes: bool) {
        self.acked.store(acked, Ordering::Release);
        self.settled.store(settled, Ordering::Release);
        self.owes.store(owes, Ordering::Release);
    }

    /// Progress that was acknowledged, or news about what was lost. That of the log alone is not worth a write of its own.
    fn is_saved(&self) -> bool {
        self.acked.load(Ordering::Acquire) <= self.saved.load(Ordering::Acquire)
            && self.owes.load(Ordering::Acquire) == self.owes_saved.load(Ordering::Acquire)
    }
}

/// A holder that writes, and for which nobody else does meanwhile.
pub(super) struct Writing {
    pub(super) session: Uuid,
    pub(super) held: Held,
    pub(super) save: Save,
    _alone: OwnedMutexGuard<()>,
}

impl Held {
    /// Unless somebody writes for it at this moment.
    fn writes(self, session: Uuid) -> Option<Writing> {
        let alone = self.writing.clone().try_lock_owned().ok()?;
        Some(Writing { session, save: self.save(session), held: self, _alone: alone })
    }

    /// Of a consumer that was just taken.
    pub(super) fn new(consumer: AgentConsumer, generation: i64, state: State) -> Self {
        Self { consumer, generation, state: Arc::new(state), writing: Arc::default() }
    }

    /// What has to be saved before somebody else takes it.
    pub(crate) fn unsaved(&self, session: Uuid) -> Option<Save> {
        (!self.state.is_saved()).then(|| self.save(session))
    }

    /// What is to be saved of it.
    pub(crate) fn save(&self, session: Uuid) -> Save {
        let knows_lost = !self.state.owes.load(Ordering::Acquire);
        Save { consumer: self.consumer.clone(), session, acked_seq: self.state.settled(), knows_lost }
    }

    /// That was saved.
    pub(super) fn saved(&self, save: &Save) {
        self.state.saved.store(save.acked_seq, Ordering::Release);
        self.state.owes_saved.store(!save.knows_lost, Ordering::Release);
    }
}

/// A session with its connection, as long as this lives.
pub(super) struct Attached {
    sessions: Sessions,
    pub(super) session: Session,
    /// Says what the connection is to do.
    pub(super) told: watch::Receiver<Told>,
}

impl Attached {
    /// Whether no other connection has come for the session.
    pub(super) fn is_current(&self) -> bool {
        self.sessions.known().current(self).is_some()
    }

    /// The session is over: nobody can resume it.
    pub(super) fn end(self) {
        let mut known = self.sessions.known();
        if known.current(&self).is_some() {
            known.forget(self.session.id);
        }
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let now = self.sessions.0.clock.elapsed();
        let mut known = self.sessions.known();
        if let Some(entry) = known.current(self) {
            entry.connection = None;
            entry.detached_at = now;
        }
    }
}

impl Sessions {
    /// With so many at most.
    pub(crate) fn new(most: usize, clock: Clock) -> Self {
        Self(Arc::new(Shared { known: Mutex::default(), turns: Mutex::default(), clock, most }))
    }

    /// The turn of whoever takes this consumer in this process.
    pub(crate) async fn turn(&self, consumer: &AgentConsumer) -> OwnedMutexGuard<()> {
        let turn = {
            let mut turns = self.0.turns.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(turn) = turns.get(consumer).and_then(Weak::upgrade) {
                turn
            } else {
                // Before it grows, without those whose turn is over.
                if turns.len() == turns.capacity() {
                    turns.retain(|_, turn| turn.strong_count() > 0);
                }
                let turn = Arc::default();
                turns.insert(consumer.clone(), Arc::downgrade(&turn));
                turn
            }
        };
        turn.lock_owned().await
    }

    /// Whether this session has lost its connection and its client was never heard of: so it may not know that it was let in.
    pub(super) fn is_unheard(&self, id: Uuid) -> bool {
        let known = self.known();
        let entry = known.by_id.get(&id).filter(|entry| entry.connection.is_none());
        let held = entry.and_then(|entry| entry.session.held.as_ref());
        held.is_some_and(|held| !held.state.heard.load(Ordering::Relaxed))
    }

    /// Who holds this consumer in this process, and may have something to save before somebody else takes it.
    pub(crate) fn holder(&self, consumer: &AgentConsumer) -> Option<(Uuid, Held)> {
        let known = self.known();
        let id = known.by_consumer.get(consumer)?;
        let held = known.by_id.get(id)?.session.held.clone()?;
        Some((*id, held))
    }

    /// Somebody else has taken this consumer: whoever held it in this process holds it no longer, and a connection is told to end.
    pub(crate) fn retire(&self, consumer: &AgentConsumer) {
        let mut known = self.known();
        if let Some(id) = known.by_consumer.get(consumer).copied() {
            known.lost(id, Close::ConsumerReplaced);
        }
    }

    /// A holder was found to be none any more, for this reason.
    pub(super) fn lost(&self, id: Uuid, why: Close) {
        self.known().lost(id, why);
    }

    /// So much of a consumer was acknowledged over REST: whoever holds it in this process hears of it.
    pub(crate) fn acknowledged(&self, consumer: &AgentConsumer, seq: i64) {
        let known = self.known();
        let entry = known.by_consumer.get(consumer).and_then(|id| known.by_id.get(id));
        if let Some(connection) = entry.and_then(|entry| entry.connection.as_ref()) {
            connection.send_modify(|told| told.acked = told.acked.max(seq));
        }
    }

    /// A session begins.
    pub(super) fn begin(&self, session: Session) -> Attached {
        let (connection, told) = watch::channel(Told::default());
        let mut known = self.known();
        if let Some(held) = &session.held {
            known.by_consumer.insert(held.consumer.clone(), session.id);
        }
        if known.by_id.len() >= self.0.most {
            known.forget_the_oldest();
        }
        let entry =
            Entry { session: session.clone(), connection: Some(connection), detached_at: Duration::ZERO };
        known.by_id.insert(session.id, entry);
        drop(known);
        Attached { sessions: self.clone(), session, told }
    }

    /// A session of this principal, which can be [resumed](Self::resume).
    pub(super) fn find(&self, id: Uuid, principal: &str) -> Option<Session> {
        let known = self.known();
        let session = &known.by_id.get(&id)?.session;
        (session.principal == principal).then(|| session.clone())
    }

    /// A client has come back for a session. A connection that is still there is told to end: to an agent it was replaced. None if
    /// somebody has taken the consumer meanwhile.
    pub(super) fn resume(&self, id: Uuid) -> Option<Attached> {
        let mut known = self.known();
        let entry = known.by_id.get_mut(&id)?;
        let (connection, told) = watch::channel(Told::default());
        let close =
            if entry.session.held.is_some() { Close::ConsumerReplaced } else { Close::SessionReplaced };
        if let Some(before) = entry.connection.replace(connection) {
            before.send_modify(|told| told.close = Some(close));
        }
        let session = entry.session.clone();
        drop(known);
        Some(Attached { sessions: self.clone(), session, told })
    }

    /// A session that was found to hold its consumer no longer.
    pub(super) fn forget(&self, id: Uuid) {
        self.known().forget(id);
    }

    /// Forgets what nobody came back for. Returns those that hold something, which is to be given up before they are forgotten: they do not
    /// write or come back meanwhile.
    pub(super) fn sweep(&self, resume_window: Duration) -> Vec<Writing> {
        let now = self.0.clock.elapsed();
        let mut known = self.known();
        let gone = |entry: &Entry| entry.connection.is_none() && entry.detached_at + resume_window <= now;
        let ids: Vec<Uuid> = known.by_id.iter().filter(|(_, entry)| gone(entry)).map(|(id, _)| *id).collect();
        let mut holders = Vec::new();
        for id in ids {
            match known.held_by(id).cloned() {
                Some(held) => holders.extend(held.writes(id)),
                None => known.forget(id),
            }
        }
        holders
    }

    /// The holders whose acknowledgements are not saved yet; or all that have a connection.
    /// One that writes itself at this moment has its turn the next time.
    pub(super) fn holders(&self, all: bool) -> Vec<Writing> {
        let known = self.known();
        let holders = known.by_consumer.values().filter_map(|id| {
            let entry = known.by_id.get(id)?;
            let held = entry.session.held.as_ref()?;
            let is_due = all && entry.connection.is_some() || !held.state.is_saved();
            is_due.then(|| held.clone().writes(*id)).flatten()
        });
        holders.collect()
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    /// The entry of a connection, if it still is that of the session.
    fn current(&mut self, attached: &Attached) -> Option<&mut Entry> {
        let entry = self.by_id.get_mut(&attached.session.id)?;
        let is_its_own = entry.connection.as_ref()?.subscribe().same_channel(&attached.told);
        is_its_own.then_some(entry)
    }

    /// One without a connection is kept: whoever comes back for it finds out.
    fn lost(&mut self, id: Uuid, why: Close) {
        let Some(entry) = self.by_id.get(&id) else { return };
        if let Some(held) = &entry.session.held
            && self.by_consumer.get(&held.consumer) == Some(&id)
        {
            self.by_consumer.remove(&held.consumer);
        }
        if let Some(connection) = &entry.connection {
            connection.send_modify(|told| told.close = Some(why));
            self.by_id.remove(&id);
        }
    }

    /// What it holds, if it still holds something.
    fn held_by(&self, id: Uuid) -> Option<&Held> {
        let held = self.by_id.get(&id)?.session.held.as_ref()?;
        (self.by_consumer.get(&held.consumer) == Some(&id)).then_some(held)
    }

    fn forget(&mut self, id: Uuid) {
        if let Some(consumer) = self.held_by(id).map(|held| held.consumer.clone()) {
            self.by_consumer.remove(&consumer);
        }
        self.by_id.remove(&id);
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
