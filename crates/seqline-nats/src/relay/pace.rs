//! How much is under way at once, and how long to wait after a failure: both follow what the broker bears.

use std::time::Duration;

/// The size of the window. Halved when the broker had too much, or somebody else writes into the stream; grows back while all goes well.
#[derive(Debug, Clone)]
pub(super) struct Adaptation {
    most: u32,
    now: u32,
    /// Acknowledged since the last change.
    credit: u32,
}

impl Adaptation {
    pub(super) fn new(most: u32) -> Self {
        let most = most.max(1);
        Self { most, now: most, credit: 0 }
    }

    /// How many messages may be under way.
    pub(super) fn window(&self) -> u32 {
        self.now
    }

    /// It was too much.
    pub(super) fn halve(&mut self) {
        self.now = (self.now / 2).max(1);
        self.credit = 0;
    }

    /// So many were acknowledged without trouble. It doubles after four whole windows.
    pub(super) fn acknowledged(&mut self, count: u32) {
        self.credit = self.credit.saturating_add(count);
        if self.now < self.most && self.credit >= self.now.saturating_mul(4) {
            self.now = self.now.saturating_mul(2).min(self.most);
            self.credit = 0;
        }
    }
}

/// Pauses after failures: doubled from one to the next, up to a cap, and short again once something succeeded.
#[derive(Debug, Clone)]
pub(super) struct Backoff {
    start: Duration,
    cap: Duration,
    next: Duration,
}

impl Backoff {
    pub(super) fn new(start: Duration, cap: Duration) -> Self {
        let start = start.min(cap);
        Self { start, cap, next: start }
    }

    /// The next pause, between half and all of the present step. `random` is uniform in `0.0..1.0`.
    pub(super) fn next(&mut self, random: f64) -> Duration {
        let step = self.next;
        self.next = (step * 2).min(self.cap);
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
    fn the_window_is_halved_down_to_one_and_grows_back_to_what_it_was() {
        let mut adaptation = Adaptation::new(1000);
        assert_eq!(adaptation.window(), 1000);
        adaptation.halve();
        assert_eq!(adaptation.window(), 500);
        for _ in 0..20 {
            adaptation.halve();
        }
        assert_eq!(adaptation.window(), 1);
        adaptation.acknowledged(3);
        assert_eq!(adaptation.window(), 1);
        adaptation.acknowledged(1);
        assert_eq!(adaptation.window(), 2);
        for _ in 0..100_000 {
            adaptation.acknowledged(1);
        }
        assert_eq!(adaptation.window(), 1000);
    }

    #[test]
    fn trouble_takes_away_what_was_earned() {
        let mut adaptation = Adaptation::new(8);
        adaptation.halve();
        adaptation.acknowledged(15);
        adaptation.halve();
        adaptation.acknowledged(7);
        assert_eq!(adaptation.window(), 2);
    }

    #[test]
    fn pauses_double_up_to_the_cap_and_are_short_again_after_success() {
        let ms = Duration::from_millis;
        let mut backoff = Backoff::new(ms(20), ms(70));
        let steps: Vec<Duration> = (0..4).map(|_| backoff.next(1.0)).collect();
        assert_eq!(steps, [ms(20), ms(40), ms(70), ms(70)]);
        backoff.reset();
        assert_eq!(backoff.next(0.0), ms(10));
    }
}
