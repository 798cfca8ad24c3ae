//! Time that a test can set.
//!
//! Components take a [`Clock`] and ask it for the time and for waiting. In production it is the system's; in
//! tests it stands still until it is moved, so retention is tested without rewriting rows and waiting without
//! sleeping.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use time::OffsetDateTime;
use tokio::sync::watch;

/// A source of time and of waiting. Cheap to clone; clones of a manual clock move together.
///
/// ```
/// # use std::time::Duration;
/// let (clock, hand) = seqline::Clock::manual(time::OffsetDateTime::UNIX_EPOCH);
/// hand.advance(Duration::from_secs(60));
/// assert_eq!(clock.now().unix_timestamp(), 60);
/// ```
#[derive(Debug, Clone)]
pub struct Clock(Source);

#[derive(Debug, Clone)]
enum Source {
    /// With the moment when the clock was made.
    System(tokio::time::Instant),
    /// With the time at which it began.
    Manual(watch::Receiver<OffsetDateTime>, OffsetDateTime),
}

/// Moves a manual clock.
#[derive(Debug, Clone)]
pub struct ClockHand(Arc<watch::Sender<OffsetDateTime>>);

impl Clock {
    /// The system's time.
    #[must_use]
    pub fn system() -> Self {
        #[expect(clippy::disallowed_methods, reason = "this is the one place that asks the system")]
        Self(Source::System(tokio::time::Instant::now()))
    }

    /// A clock that shows `start` until its hand is moved.
    #[must_use]
    pub fn manual(start: OffsetDateTime) -> (Self, ClockHand) {
        let (sender, receiver) = watch::channel(start);
        (Self(Source::Manual(receiver, start)), ClockHand(Arc::new(sender)))
    }

    /// The present time.
    #[must_use]
    pub fn now(&self) -> OffsetDateTime {
        match &self.0 {
            #[expect(clippy::disallowed_methods, reason = "this is the one place that asks the system")]
            Source::System(_) => OffsetDateTime::now_utc(),
            Source::Manual(receiver, _) => *receiver.borrow(),
        }
    }

    /// The time since the clock was made, which goes on at its pace when somebody sets the system's time. For measuring how long something
    /// takes.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        match &self.0 {
            Source::System(start) => start.elapsed(),
            Source::Manual(receiver, start) => (*receiver.borrow() - *start).try_into().unwrap_or_default(),
        }
    }

    /// Waits until `duration` has passed. Cancel safe.
    pub async fn sleep(&self, duration: Duration) {
        match &self.0 {
            #[expect(clippy::disallowed_methods, reason = "this is the one place that waits")]
            Source::System(_) => tokio::time::sleep(duration).await,
            Source::Manual(receiver, _) => {
                let mut receiver = receiver.clone();
                let due = receiver
                    .borrow()
                    .saturating_add(time::Duration::try_from(duration).unwrap_or(time::Duration::MAX));
                // The hand can be gone: then time stands still for ever, as it did before.
                if receiver.wait_for(|now| *now >= due).await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        }
    }

    /// Runs `future` for at most `limit`; `None` when the time is up. Cancel safe if `future` is.
    pub async fn timeout<F: Future>(&self, limit: Duration, future: F) -> Option<F::Output> {
        tokio::select! {
            output = future => Some(output),
            () = self.sleep(limit) => None,
        }
    }
}

impl ClockHand {
    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        let by = time::Duration::try_from(by).unwrap_or(time::Duration::MAX);
        self.0.send_modify(|now| *now = now.saturating_add(by));
    }

    /// Sets the clock.
    pub fn set(&self, to: OffsetDateTime) {
        self.0.send_replace(to);
    }

    /// How many waits are pending on this clock and its clones, at least; a test waits for it before it moves
    /// the hand.
    #[must_use]
    pub fn receivers(&self) -> usize {
        self.0.receiver_count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_elapsed_does_not_become_less_than_nothing() {
        let (clock, hand) = Clock::manual(OffsetDateTime::UNIX_EPOCH);
        hand.advance(Duration::from_secs(3));
        assert_eq!(clock.elapsed(), Duration::from_secs(3));
        hand.set(OffsetDateTime::UNIX_EPOCH - Duration::from_secs(5));
        assert_eq!(clock.elapsed(), Duration::ZERO);
    }

    #[tokio::test]
    async fn a_manual_sleep_ends_when_the_hand_has_passed_it() {
        let (clock, hand) = Clock::manual(OffsetDateTime::UNIX_EPOCH);
        let mut sleep = std::pin::pin!(clock.sleep(Duration::from_secs(10)));
        assert!(futures_util::poll!(&mut sleep).is_pending());
        hand.advance(Duration::from_secs(9));
        assert!(futures_util::poll!(&mut sleep).is_pending());
        hand.advance(Duration::from_secs(1));
        sleep.await;
    }

    #[tokio::test]
    async fn a_timeout_gives_what_finished_in_time() {
        let (clock, hand) = Clock::manual(OffsetDateTime::UNIX_EPOCH);
        assert_eq!(clock.timeout(Duration::from_secs(1), async { 7 }).await, Some(7));
        let mut late = std::pin::pin!(clock.timeout(Duration::from_secs(1), std::future::pending::<()>()));
        assert!(futures_util::poll!(&mut late).is_pending());
        hand.advance(Duration::from_secs(1));
        assert_eq!(late.await, None);
    }
}
