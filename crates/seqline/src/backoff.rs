//! Exponential backoff with jitter: a pure value that is asked for the next pause and told of success.

use std::time::Duration;

/// Doubles from `start` to `cap`; `reset` begins anew.
#[derive(Debug, Clone)]
pub(crate) struct Backoff {
    start: Duration,
    cap: Duration,
    next: Duration,
}

impl Backoff {
    /// A start above the cap begins at the cap.
    pub(crate) fn new(start: Duration, cap: Duration) -> Self {
        let start = start.min(cap);
        Self { start, cap, next: start }
    }

    /// The next pause: between half and all of the present step, so that many clients do not return at once.
    /// `random` is uniform in `0.0..1.0`.
    pub(crate) fn next(&mut self, random: f64) -> Duration {
        let step = self.next;
        self.next = (step * 2).min(self.cap);
        step.mul_f64(0.5 + random / 2.0)
    }

    pub(crate) fn reset(&mut self) {
        self.next = self.start;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn it_doubles_up_to_the_cap_and_starts_anew_after_success() {
        let mut backoff = Backoff::new(MS(100), MS(350));
        let steps: Vec<Duration> = (0..4).map(|_| backoff.next(1.0)).collect();
        assert_eq!(steps, [MS(100), MS(200), MS(350), MS(350)]);
        backoff.reset();
        assert_eq!(backoff.next(1.0), MS(100));
    }

    #[test]
    fn jitter_stays_between_half_and_all_of_a_step() {
        assert_eq!(Backoff::new(MS(100), MS(1000)).next(0.0), MS(50));
        assert_eq!(Backoff::new(MS(100), MS(1000)).next(0.5), MS(75));
    }

    #[test]
    fn a_start_above_the_cap_begins_at_the_cap() {
        assert_eq!(Backoff::new(MS(5000), MS(1000)).next(1.0), MS(1000));
    }
}
