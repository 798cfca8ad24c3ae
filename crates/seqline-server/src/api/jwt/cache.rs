//! Keys that were fetched, and when they are fetched again.
//!
//! One fetch at a time, on a task of its own, so that it does not end with the request that wanted it. Whoever has a key that is known does
//! not wait for it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jsonwebtoken::{Algorithm, DecodingKey};
use seqline::Clock;

use super::JwtError;
use super::fetch::{FetchError, Source};
use super::keys::Keys;
use crate::limits::{JWKS_PAUSE, JWKS_RETRY_PAUSE};

/// The keys of an issuer. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct KeyCache(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    source: Source,
    interval: Duration,
    clock: Clock,
    state: Mutex<State>,
    fetching: tokio::sync::Mutex<()>,
}

#[derive(Debug, Clone, Default)]
struct State {
    keys: Arc<Keys>,
    /// When these were fetched.
    fetched: Option<Duration>,
    /// When they were last tried to be, and whether that went well.
    tried: Option<(Duration, bool)>,
}

impl State {
    /// Whether the provider may be asked again.
    fn may_ask(&self, now: Duration) -> bool {
        let pause = if self.fetched.is_some() { JWKS_PAUSE } else { JWKS_RETRY_PAUSE };
        self.tried.is_none_or(|(tried, _)| now.saturating_sub(tried) >= pause)
    }

    /// What is to be said of a key that is not known.
    fn unknown(&self) -> JwtError {
        match self.tried {
            Some((_, true)) => JwtError::UnknownKey,
            _ => JwtError::KeysUnavailable,
        }
    }
}

impl KeyCache {
    pub(super) fn new(source: Source, interval: Duration, clock: Clock) -> Self {
        let (state, fetching) = (Mutex::default(), tokio::sync::Mutex::new(()));
        Self(Arc::new(Shared { source, interval, clock, state, fetching }))
    }

    /// The key of this name for this algorithm.
    pub(super) async fn find(
        &self,
        name: Option<&str>,
        algorithm: Algorithm,
    ) -> Result<Arc<DecodingKey>, JwtError> {
        let (before, now) = (self.0.state(), self.0.clock.elapsed());
        match before.keys.find(name, algorithm) {
            Err(JwtError::UnknownKey) => {}
            found => {
                let is_due =
                    before.fetched.is_none_or(|fetched| now.saturating_sub(fetched) >= self.0.interval);
                if is_due && before.may_ask(now) {
                    // Nobody waits for it: the key is good until the issuer says otherwise.
                    let shared = self.0.clone();
                    tokio::spawn(async move { shared.refresh(now).await });
                }
                return found;
            }
        }
        let shared = self.0.clone();
        // A panic of it is told by the hook; there are no newer keys then.
        let _ = tokio::spawn(async move { shared.refresh(now).await }).await;
        let after = self.0.state();
        after.keys.find(name, algorithm).map_err(|error| match error {
            JwtError::UnknownKey => after.unknown(),
            other => other,
        })
    }
}

impl Shared {
    fn state(&self) -> State {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Fetches the keys, unless somebody has since `wanted`, or it is too soon.
    async fn refresh(&self, wanted: Duration) {
        let _alone = self.fetching.lock().await;
        let (before, now) = (self.state(), self.clock.elapsed());
        let since = before.fetched.is_some_and(|fetched| fetched > wanted);
        if since || !before.may_ask(now) {
            return;
        }
        self.state.lock().unwrap_or_else(PoisonError::into_inner).tried = Some((now, false));
        let keys = match self.source.fetch().await {
            Ok(answer) => Keys::parse(&answer).ok_or(FetchError::NoKeys),
            Err(error) => Err(error),
        };
        match keys {
            Ok(keys) => {
                tracing::debug!(keys = keys.len(), "keys of the identity provider fetched");
                let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                *state = State { keys: Arc::new(keys), fetched: Some(now), tried: Some((now, true)) };
            }
            Err(error) => {
                // From its end on, so that one that was late is not tried again at once.
                let ended = self.clock.elapsed();
                self.state.lock().unwrap_or_else(PoisonError::into_inner).tried = Some((ended, false));
                tracing::warn!(
                    error = error.name(),
                    status = error.status(),
                    known = before.keys.len(),
                    "keys of the identity provider not fetched"
                );
            }
        }
    }
}
