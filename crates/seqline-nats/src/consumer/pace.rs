//! How long a consumer pauses that cannot go on.

use std::time::Duration;

/// Doubles from a start to a cap.
#[derive(Debug, Clone)]
pub(super) struct Pace {
    start: Duration,
    cap: Duration,
    next: Duration,
}

impl Pace {
    pub(super) fn new(start: Duration, cap: Duration) -> Self {
        let start = start.min(cap);
        Self { start, cap, next: start }
    }

    /// The next pause: between half and all of the present step. `random` is uniform in `0.0..1.0`.
    pub(super) fn next(&mut self, random: f64) -> Duration {
        let step = self.next;
        self.next = step.saturating_mul(2).min(self.cap);
        step.mul_f64(0.5 + random / 2.0)
    }

    pub(super) fn reset(&mut self) {
        self.next = self.start;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_doubles_up_to_the_cap_and_starts_anew() {
        let mut pace = Pace::new(Duration::from_millis(100), Duration::from_millis(350));
        let pauses: Vec<u128> = (0..4).map(|_| pace.next(1.0).as_millis()).collect();
        assert_eq!(pauses, [100, 200, 350, 350]);
        pace.reset();
        assert_eq!(pace.next(0.0), Duration::from_millis(50));
    }
}
