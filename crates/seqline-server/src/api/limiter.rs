//! How often somebody may ask.
//!
//! Each principal has a rate of its own, so one that floods the server slows itself down and nobody else. Tokens that were not known a
//! moment before have one together: it bounds how often the database is asked for those that do not exist. Somebody whose token was
//! good already does not notice them, and neither does somebody for whom an identity provider vouches: nobody makes that up. Those who
//! show nothing that can be good have another one together, since the database is not asked for them.

use std::collections::HashSet;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use governor::clock::Clock as _;
use governor::middleware::NoOpMiddleware;
use governor::state::keyed::DashMapStateStore;
use governor::state::{InMemoryState, NotKeyed};
use governor::{NotUntil, Quota, RateLimiter};
use seqline::Clock;

use super::{Code, Credential, Problem};
use crate::config;
use crate::limits::{API_KNOWN_MAX, API_SWEEP_AFTER};

/// The time since the clock was made.
#[derive(Debug, Clone)]
struct Elapsed(Clock);

impl governor::clock::Clock for Elapsed {
    type Instant = Duration;

    fn now(&self) -> Duration {
        self.0.elapsed()
    }
}

type Limit<K, S> = RateLimiter<K, S, Elapsed, NoOpMiddleware<Duration>>;

/// Rates of all who ask a process.
pub(crate) struct Limiter {
    clock: Elapsed,
    principals: Limit<String, DashMapStateStore<String>>,
    /// Of tokens that have to be looked up to know whether they are any.
    unknown: Limit<NotKeyed, InMemoryState>,
    /// Of those who show nothing that is worth a look.
    nobody: Limit<NotKeyed, InMemoryState>,
    /// Of agents that acknowledge over connections.
    acks: Limit<String, DashMapStateStore<String>>,
    /// What was good when it was looked at last.
    known: Mutex<HashSet<Credential>>,
    admitted: AtomicUsize,
}

impl Limiter {
    pub(crate) fn new(keys: &config::Api, agent: &config::Agent, clock: &Clock) -> Self {
        let at_least_one = |key: u32| NonZeroU32::new(key).unwrap_or(NonZeroU32::MIN);
        let quota = Quota::per_second(at_least_one(keys.requests_per_second));
        let quota = quota.allow_burst(at_least_one(keys.requests_burst));
        let acks = Quota::per_second(at_least_one(agent.acks_per_second))
            .allow_burst(at_least_one(agent.acks_burst));
        let clock = Elapsed(clock.clone());
        Self {
            acks: RateLimiter::new(acks, DashMapStateStore::default(), clock.clone()),
            principals: RateLimiter::new(quota, DashMapStateStore::default(), clock.clone()),
            unknown: RateLimiter::direct_with_clock(quota, clock.clone()),
            nobody: RateLimiter::direct_with_clock(quota, clock.clone()),
            clock,
            known: Mutex::default(),
            admitted: AtomicUsize::new(0),
        }
    }

    /// Whether to look who shows this. Before that a token can be anybody's; with a JWT it is known already who vouches for whom.
    pub(crate) fn may_show(&self, credential: &Credential) -> Result<(), Problem> {
        let is_vouched = matches!(credential, Credential::Principal(_));
        if is_vouched || self.known.lock().unwrap_or_else(PoisonError::into_inner).contains(credential) {
            return Ok(());
        }
        self.unknown.check().map_err(|until| self.refusal_of_nobody(&until))
    }

    /// Whether somebody who shows nothing that can be good is told so.
    pub(crate) fn may_be_nobody(&self) -> Result<(), Problem> {
        self.nobody.check().map_err(|until| self.refusal_of_nobody(&until))
    }

    fn refusal_of_nobody(&self, until: &NotUntil<Duration>) -> Problem {
        self.refusal(until, "too many requests without a valid token")
    }

    /// It was good, and belongs to this principal: whether that may ask once more.
    pub(crate) fn may_ask(&self, credential: &Credential, principal: &str) -> Result<(), Problem> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if !known.contains(credential) {
            // Whoever is forgotten is known again after one request.
            if known.len() >= API_KNOWN_MAX {
                known.clear();
            }
            known.insert(credential.clone());
        }
        drop(known);
        if self.admitted.fetch_add(1, Ordering::Relaxed) % API_SWEEP_AFTER == API_SWEEP_AFTER - 1 {
            // Those who have not asked for a while are as if they never had.
            self.principals.retain_recent();
            self.principals.shrink_to_fit();
            self.acks.retain_recent();
            self.acks.shrink_to_fit();
        }
        self.principals
            .check_key(&principal.to_owned())
            .map_err(|until| self.refusal(&until, "this principal makes too many requests"))
    }

    /// Whether this agent may acknowledge once more.
    pub(crate) fn may_acknowledge(&self, agent: &str) -> Result<(), Problem> {
        self.acks.check_key(&agent.to_owned()).map_err(|until| {
            self.refusal(&until, "this agent acknowledges too often: one covers all before it")
        })
    }

    /// It is not good any more.
    pub(crate) fn forget(&self, credential: &Credential) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).remove(credential);
    }

    fn refusal(&self, until: &NotUntil<Duration>, detail: &'static str) -> Problem {
        let wait = until.wait_time_from(self.clock.now());
        // Rounded up: whoever comes back as told is let in.
        Problem::new(Code::RateLimited, detail).retry_after(wait + Duration::from_millis(999))
    }
}

#[cfg(test)]
mod tests {
    use seqline::clock::ClockHand;
    use time::OffsetDateTime;

    use super::super::jwt::Vouched;
    use super::*;
    use crate::config::Config;

    fn limiter(per_second: u32, burst: u32) -> (Limiter, ClockHand) {
        let mut keys = Config::default().api;
        (keys.requests_per_second, keys.requests_burst) = (per_second, burst);
        let (clock, hand) = Clock::manual(OffsetDateTime::UNIX_EPOCH);
        (Limiter::new(&keys, &Config::default().agent, &clock), hand)
    }

    fn of(id: &str) -> Credential {
        Credential::Principal(Vouched::always(id))
    }

    #[test]
    fn each_principal_has_a_burst_and_then_its_rate() {
        let (limiter, hand) = limiter(2, 3);
        let may = |id: &str| limiter.may_ask(&of(id), id).is_ok();
        assert_eq!([may("Alex"), may("Alex"), may("Alex"), may("Alex")], [true, true, true, false]);
        // Nobody else notices.
        assert!(may("Sam"));
        hand.advance(Duration::from_millis(499));
        assert!(!may("Alex"));
        hand.advance(Duration::from_millis(1));
        assert_eq!([may("Alex"), may("Alex")], [true, false]);
    }

    #[test]
    fn whoever_was_known_does_not_notice_those_who_guess() {
        let (limiter, _hand) = limiter(1, 2);
        let [alex, guess] = [1, 2].map(|n| Credential::Token([n; 32]));
        assert!(limiter.may_show(&alex).is_ok());
        limiter.may_ask(&alex, "Alex").unwrap();
        assert!(limiter.may_show(&guess).is_ok());
        let refused = limiter.may_show(&guess).unwrap_err();
        assert_eq!(refused.code(), Code::RateLimited);
        assert!(limiter.may_show(&alex).is_ok());
        // Until it turns out to be no longer good.
        limiter.forget(&alex);
        assert!(limiter.may_show(&alex).is_err());
    }

    #[test]
    fn whoever_shows_nothing_takes_no_look_from_somebody_who_does() {
        let (limiter, _hand) = limiter(1, 2);
        while limiter.may_be_nobody().is_ok() {}
        let token = Credential::Token([1; 32]);
        assert!(limiter.may_show(&token).is_ok() && limiter.may_show(&token).is_ok());
        assert!(limiter.may_show(&token).is_err());
        // Somebody vouches for it: nobody can have guessed it.
        assert!(limiter.may_show(&of("Alex")).is_ok());
    }

    #[test]
    fn those_who_have_not_asked_for_a_while_are_forgotten() {
        let (limiter, hand) = limiter(1000, 1000);
        for number in 0..API_SWEEP_AFTER {
            hand.advance(Duration::from_secs(10));
            limiter.may_ask(&of("one"), &number.to_string()).unwrap();
        }
        assert!(limiter.principals.len() <= 1, "{}", limiter.principals.len());
        for number in 0..=API_KNOWN_MAX {
            hand.advance(Duration::from_millis(1));
            limiter.may_ask(&of(&number.to_string()), "one").unwrap();
        }
        assert!(limiter.known.lock().unwrap().len() <= API_KNOWN_MAX);
    }
}
