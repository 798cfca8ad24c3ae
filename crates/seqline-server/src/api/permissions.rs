//! Who may receive what, remembered for a moment, and never beyond a change that the log has passed.
//!
//! Every change of principals, tokens and grants raises the version of the permissions, and each event has the version of the moment at
//! which it got its number. The cache is the first sink of the tail: when a batch has a higher version than any before, whatever was read
//! before that is unusable from then on, and only afterwards do later sinks see the batch. So somebody whose grant was taken back does not get
//! an event that was committed after that, and whoever looks here with an event in hand is told what holds for it.
//!
//! A change without a later event takes effect within `api.permissions_max_age`. When the database is away, whatever is older than that is an
//! error and not a guess. Whatever is older is not read anew as long as nothing has changed: one question for the version of the permissions
//! says for all credentials that what was read with that version still holds, so ten thousand connections that show themselves cost the
//! database no more than one.
//!
//! For one credential one question at a time is on its way to the database, and so is one for the version. Whoever else wants to know it
//! waits for that answer, and for its failure as well: nobody waits longer than one question may take, however many there are.

mod cache;

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use seqline::access::{self, Access};
use seqline::tail::{Sink, SinkError};
use seqline::{Clock, DatabaseError, StoredEvent};

use self::cache::{AsOf, Bounds, Cache};
use super::Credential;
use super::database::{Database, late};
use super::jwt::Vouched;
use crate::limits::{
    PERMISSION_ENTRIES_MAX, PERMISSION_KEPT, PERMISSION_KEPT_GRANTS_MAX, PERMISSION_LOADS_MAX,
};

/// What the database is asked.
pub(crate) struct Questions {
    /// For what a credential gives; none when it gives nothing.
    pub(crate) access: Box<dyn Fn(Credential) -> Answer<Option<Access>> + Send + Sync>,
    /// For the version of the permissions.
    pub(crate) version: Box<dyn Fn() -> Answer<i64> + Send + Sync>,
}

/// What it says.
pub(crate) type Answer<T> = BoxFuture<'static, Result<T, DatabaseError>>;

/// The cache. Clones share it. See the [module](self).
#[derive(Clone)]
pub(crate) struct Permissions(Arc<Shared>);

struct Shared {
    questions: Questions,
    /// For how long an answer is used without another question.
    max_age: Duration,
    /// How long whoever asks waits for the answer, with whatever is in front of it.
    patience: Duration,
    clock: Clock,
    /// The version of the permissions that the log has reached.
    reached: AtomicI64,
    known: Mutex<Known>,
    /// One load at a time for each credential, and so many for all: each belongs to one of these.
    loads: [LoadPlace; PERMISSION_LOADS_MAX],
    versions: LoadPlace,
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
    /// What was given before, which holds while the version of the permissions is the same. Small ones only, since they stay long.
    kept: Cache<Credential, Arc<Access>>,
    /// The version that the database was found to have.
    version: Option<AsOf>,
}

impl Permissions {
    /// Those that this database has.
    pub(crate) fn of_database(database: Database, max_age: Duration, clock: Clock) -> Self {
        let (now, patience, versions) = (clock.clone(), database.limit(), database.clone());
        let access = move |credential| -> Answer<_> {
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
        let version = move || -> Answer<_> {
            let database = versions.clone();
            Box::pin(async move {
                database.ask(async |connection| access::permission_version(connection).await).await
            })
        };
        let questions = Questions { access: Box::new(access), version: Box::new(version) };
        Self::new(questions, max_age, patience, clock)
    }

    pub(crate) fn new(questions: Questions, max_age: Duration, patience: Duration, clock: Clock) -> Self {
        let bounds = Bounds { max_age, entries: PERMISSION_ENTRIES_MAX };
        let kept = Bounds { max_age: PERMISSION_KEPT, ..bounds };
        let known = Known {
            given: Cache::new(bounds),
            refused: Cache::new(bounds),
            kept: Cache::new(kept),
            version: None,
        };
        Self(Arc::new(Shared {
            questions,
            max_age,
            patience,
            clock,
            reached: AtomicI64::new(i64::MIN),
            known: Mutex::new(known),
            loads: std::array::from_fn(|_| LoadPlace::default()),
            versions: LoadPlace::default(),
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
        let begun = self.0.clock.elapsed();
        if let Some(kept) = self.kept(credential, reached)
            && self.version(begun).await? == kept.permission_version
        {
            return Ok(self.in_time(&kept).then_some(kept));
        }
        let found = || self.known(credential, reached);
        let load = async |as_of| {
            let answer = (self.0.questions.access)(credential.clone()).await?;
            Ok(self.remember(credential, answer, as_of))
        };
        self.in_turn(self.0.place_of(credential), begun, found, load).await
    }

    /// How many credentials are remembered.
    pub(crate) fn entries(&self) -> usize {
        let known = self.known_now();
        known.given.entries().max(known.kept.entries()) + known.refused.entries()
    }

    /// What is remembered and may be used.
    fn known(&self, credential: &Credential, reached: i64) -> Option<Option<Arc<Access>>> {
        let now = self.0.clock.elapsed();
        let known = self.known_now();
        if let Some(access) = known.given.get(credential, now, reached) {
            return Some(self.in_time(access).then(|| access.clone()));
        }
        known.refused.get(credential, now, reached).map(|()| None)
    }

    /// What is remembered and may be used if nothing has changed since.
    fn kept(&self, credential: &Credential, reached: i64) -> Option<Arc<Access>> {
        let now = self.0.clock.elapsed();
        self.known_now().kept.get(credential, now, reached).cloned()
    }

    /// The version of the permissions, as new as an answer may be for somebody who began to ask then.
    async fn version(&self, begun: Duration) -> Result<i64, DatabaseError> {
        let found = || {
            let version = self.known_now().version?;
            let age = self.0.clock.elapsed().saturating_sub(version.time);
            (version.time >= begun || age < self.0.max_age).then_some(version.version)
        };
        if let Some(version) = found() {
            return Ok(version);
        }
        let ask = async |as_of: AsOf| {
            let version = (self.0.questions.version)().await?;
            self.known_now().found(AsOf { version, ..as_of });
            Ok(version)
        };
        self.in_turn(&self.0.versions, begun, found, ask).await
    }

    /// Asks, one at a time at each place: whoever waited behind somebody finds what that one was told, or fails like that one.
    async fn in_turn<T>(
        &self,
        place: &LoadPlace,
        begun: Duration,
        found: impl Fn() -> Option<T>,
        ask: impl AsyncFnOnce(AsOf) -> Result<T, DatabaseError>,
    ) -> Result<T, DatabaseError> {
        let left = || (begun + self.0.patience).saturating_sub(self.0.clock.elapsed());
        let unanswered = place.unanswered.load(Ordering::Acquire);
        let alone = self.0.clock.timeout(left(), place.alone.lock()).await;
        let _alone = alone.ok_or_else(late)?;
        if let Some(found) = found() {
            return Ok(found);
        }
        // Somebody asked meanwhile, and the database was silent: to ask it again, one after the other, would take each as long.
        if place.unanswered.load(Ordering::Acquire) != unanswered {
            return Err(late());
        }
        // Both before the question: the answer is as new as they are, at least.
        let as_of = AsOf { time: self.0.clock.elapsed(), version: self.0.reached.load(Ordering::Acquire) };
        let asked = self.0.clock.timeout(left(), ask(as_of)).await;
        let answer = asked.unwrap_or_else(|| Err(late()));
        if answer.as_ref().is_err_and(DatabaseError::is_retryable) {
            place.unanswered.fetch_add(1, Ordering::AcqRel);
            // A server that was away may come back without the last it had committed, and give the same version to another change.
            self.known_now().kept.clear();
        }
        answer
    }

    fn in_time(&self, access: &Access) -> bool {
        access.expires_at.is_none_or(|expires_at| self.0.clock.now() < expires_at)
    }

    fn known_now(&self) -> MutexGuard<'_, Known> {
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remember(&self, credential: &Credential, answer: Option<Access>, as_of: AsOf) -> Option<Arc<Access>> {
        let now = self.0.clock.elapsed();
        let mut known = self.known_now();
        match answer {
            Some(access) => {
                known.refused.remove(credential);
                known.found(AsOf { version: access.permission_version, ..as_of });
                let as_of = AsOf { version: as_of.version.max(access.permission_version), ..as_of };
                let access = Arc::new(access);
                known.given.put(credential.clone(), access.clone(), as_of, now);
                if access.viewer.grants() <= PERMISSION_KEPT_GRANTS_MAX {
                    known.kept.put(credential.clone(), access.clone(), as_of, now);
                } else {
                    known.kept.remove(credential);
                }
                Some(access)
            }
            None => {
                known.given.remove(credential);
                known.kept.remove(credential);
                known.refused.put(credential.clone(), (), as_of, now);
                None
            }
        }
    }

    fn raise(&self, version: i64) {
        self.0.reached.fetch_max(version, Ordering::AcqRel);
    }
}

impl Known {
    /// The database has this version, or had it a moment ago.
    fn found(&mut self, version: AsOf) {
        if self.version.is_none_or(|before| before.time <= version.time) {
            self.version = Some(version);
        }
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
