//! Who may receive what, remembered for a moment, and never beyond a change that the log has passed.
//!
//! Every change of principals, tokens and grants raises the version of the permissions, and each event has the version of the moment at
//! which it got its number. The cache is the first sink of the tail: when a batch has a higher version than any before, whatever was read
//! before that is unusable from then on, and only afterwards do later sinks see the batch. So somebody whose grant was taken back does not get
//! an event that was committed after that, and whoever looks here with an event in hand is told what holds for it.
//!
//! A change without a later event takes effect within `api.permissions_max_age`. When the database is away, whatever is older than that is an
//! error and not a guess. For one credential one question at a time is on its way to the database, whoever else wants to know it waits for that
//! answer, and for its failure as well: nobody waits longer than one question may take, however many there are.

mod cache;

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use seqline::access::{self, Access};
use seqline::tail::{Sink, SinkError};
use seqline::{Clock, DatabaseError, StoredEvent};

use self::cache::{AsOf, Bounds, Cache};
use super::Credential;
use super::database::{Database, late};
use super::jwt::Vouched;
use crate::limits::{PERMISSION_ENTRIES_MAX, PERMISSION_LOADS_MAX};

/// Asks the database for what a credential gives; none when it gives nothing.
pub(crate) type Load =
    dyn Fn(Credential) -> BoxFuture<'static, Result<Option<Access>, DatabaseError>> + Send + Sync;

/// The cache. Clones share it. See the [module](self).
#[derive(Clone)]
pub(crate) struct Permissions(Arc<Shared>);

struct Shared {
    load: Box<Load>,
    /// How long whoever asks waits for the answer, with whatever is in front of it.
    patience: Duration,
    clock: Clock,
    /// The version of the permissions that the log has reached.
    reached: AtomicI64,
    known: Mutex<Known>,
    /// One load at a time for each credential, and so many for all: each belongs to one of these.
    loads: [LoadPlace; PERMISSION_LOADS_MAX],
    hasher: RandomState,
}

/// Where one question at a time is asked.
#[derive(Default)]
struct LoadPlace {
    alone: tokio::sync::Mutex<()>,
    /// How many questions the database did not answer.
    unanswered: AtomicU64,
}

/// Those that give nothing have a place of their own, so that guessing does not push out the others.
struct Known {
    given: Cache<Credential, Arc<Access>>,
    refused: Cache<Credential, ()>,
}

impl Permissions {
    /// Those that this database has.
    pub(crate) fn of_database(database: Database, max_age: Duration, clock: Clock) -> Self {
        let (now, patience) = (clock.clone(), database.limit());
        let load = move |credential| -> BoxFuture<'static, _> {
            let (database, now) = (database.clone(), now.now());
            Box::pin(async move {
                let asked = database.ask(async |connection| match &credential {
                    Credential::Token(hash) => access::of_token(connection, hash).await,
                    // The database does not know for how long somebody vouches.
                    Credential::Principal(vouched) if vouched.until <= now => Ok(None),
                    Credential::Principal(Vouched { principal, until }) => {
                        let access = access::of_principal(connection, principal).await?;
                        Ok(access.map(|access| Access { expires_at: Some(*until), ..access }))
                    }
                });
                asked.await
            })
        };
        Self::new(Box::new(load), max_age, patience, clock)
    }

    pub(crate) fn new(load: Box<Load>, max_age: Duration, patience: Duration, clock: Clock) -> Self {
        let bounds = Bounds { max_age, entries: PERMISSION_ENTRIES_MAX };
        let known = Known { given: Cache::new(bounds), refused: Cache::new(bounds) };
        Self(Arc::new(Shared {
            load,
            patience,
            clock,
            reached: AtomicI64::new(i64::MIN),
            known: Mutex::new(known),
            loads: std::array::from_fn(|_| LoadPlace::default()),
            hasher: RandomState::new(),
        }))
    }

    /// What a credential gives now; none when it gives nothing: it is unknown, was revoked, has expired, or its principal may do nothing.
    ///
    /// It is as new as the log at the time of the call: whoever holds an event that this process got from the tail gets the permissions
    /// with which that was numbered, or later ones.
    pub(crate) async fn of(&self, credential: &Credential) -> Result<Option<Arc<Access>>, DatabaseError> {
        let reached = self.0.reached.load(Ordering::Acquire);
        if let Some(known) = self.known(credential, reached) {
            return Ok(known);
        }
        let place = self.0.place_of(credential);
        let (begun, unanswered) = (self.0.clock.elapsed(), place.unanswered.load(Ordering::Acquire));
        let alone = self.0.clock.timeout(self.0.patience, place.alone.lock()).await;
        let _alone = alone.ok_or_else(late)?;
        if let Some(known) = self.known(credential, reached) {
            return Ok(known);
        }
        // Somebody asked meanwhile, and the database was silent: to ask it again, one after the other, would take each as long.
        if place.unanswered.load(Ordering::Acquire) != unanswered {
            return Err(late());
        }
        // Both before the question: the answer is as new as they are, at least.
        let as_of = AsOf { time: self.0.clock.elapsed(), version: self.0.reached.load(Ordering::Acquire) };
        let left = (begun + self.0.patience).saturating_sub(as_of.time);
        let asked = self.0.clock.timeout(left, (self.0.load)(credential.clone())).await;
        let answer = asked.unwrap_or_else(|| Err(late()));
        if answer.as_ref().is_err_and(DatabaseError::is_retryable) {
            place.unanswered.fetch_add(1, Ordering::AcqRel);
        }
        Ok(self.remember(credential, answer?, as_of))
    }

    /// How many credentials are remembered.
    pub(crate) fn entries(&self) -> usize {
        let known = self.0.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.given.entries() + known.refused.entries()
    }

    /// What is remembered and may be used.
    fn known(&self, credential: &Credential, reached: i64) -> Option<Option<Arc<Access>>> {
        let now = self.0.clock.elapsed();
        let known = self.0.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(access) = known.given.get(credential, now, reached) {
            let valid = access.expires_at.is_none_or(|expires_at| self.0.clock.now() < expires_at);
            return Some(valid.then(|| access.clone()));
        }
        known.refused.get(credential, now, reached).map(|()| None)
    }

    fn remember(&self, credential: &Credential, answer: Option<Access>, as_of: AsOf) -> Option<Arc<Access>> {
        let now = self.0.clock.elapsed();
        let mut known = self.0.known.lock().unwrap_or_else(PoisonError::into_inner);
        match answer {
            Some(access) => {
                known.refused.remove(credential);
                let version = as_of.version.max(access.permission_version);
                let access = Arc::new(access);
                known.given.put(credential.clone(), access.clone(), AsOf { version, ..as_of }, now);
                Some(access)
            }
            None => {
                known.given.remove(credential);
                known.refused.put(credential.clone(), (), as_of, now);
                None
            }
        }
    }

    fn raise(&self, version: i64) {
        self.0.reached.fetch_max(version, Ordering::AcqRel);
    }
}

impl Shared {
    fn place_of(&self, credential: &Credential) -> &LoadPlace {
        let hash = self.hasher.hash_one(credential);
        &self.loads[usize::try_from(hash % PERMISSION_LOADS_MAX as u64).unwrap_or_default()]
    }
}

/// The first sink of a tail.
impl Sink for Permissions {
    fn accept<'a>(&'a mut self, batch: &'a [StoredEvent]) -> BoxFuture<'a, Result<(), SinkError>> {
        // Not only the last: nothing here depends on their order.
        if let Some(version) = batch.iter().map(|event| event.permission_version).max() {
            self.raise(version);
        }
        Box::pin(std::future::ready(Ok(())))
    }
}

#[cfg(test)]
mod tests;
