//! When a job that failed is tried again.

use std::time::Duration;

use riverqueue::jiff::Timestamp;
use riverqueue::{JobRow, RetryPolicy, WorkError};
use uuid::Uuid;

use crate::limits::JOB_RETRY_PAUSE;

/// Doubles from attempt to attempt, up to a cap.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Backoff {
    pub(crate) cap: Duration,
}

impl RetryPolicy for Backoff {
    fn next_retry(&self, job: &JobRow, _error: &WorkError, _now: Timestamp) -> Duration {
        let bits = Uuid::new_v4().as_u128() >> 64;
        #[expect(clippy::cast_precision_loss, reason = "a random number needs no more digits")]
        let random = bits as f64 / u64::MAX as f64;
        pause(job.attempt, self.cap, random)
    }
}

/// The pause after this attempt, from 1: between half and all of its step, so that what failed together is not tried
/// together. `random` is in `0.0..=1.0`.
#[must_use]
pub fn pause(attempt: i32, cap: Duration, random: f64) -> Duration {
    let doublings = u32::try_from(attempt.saturating_sub(1)).unwrap_or(0);
    let step = JOB_RETRY_PAUSE.saturating_mul(2_u32.saturating_pow(doublings)).min(cap);
    step.mul_f64(0.5 + random.clamp(0.0, 1.0) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAP: Duration = Duration::from_secs(600);

    #[test]
    fn pauses_double_up_to_the_cap() {
        let pauses: Vec<u64> = (1..=9).map(|attempt| pause(attempt, CAP, 1.0).as_secs()).collect();
        assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 320, 600, 600]);
        assert_eq!(pause(i32::MAX, CAP, 1.0), CAP);
        assert_eq!(pause(1, Duration::from_millis(10), 1.0), Duration::from_millis(10));
    }

    #[test]
    fn an_attempt_that_was_never_counted_is_as_the_first() {
        for attempt in [0, -1, i32::MIN] {
            assert_eq!(pause(attempt, CAP, 1.0), pause(1, CAP, 1.0));
        }
    }

    #[test]
    fn what_failed_together_is_spread_over_half_of_the_step() {
        assert_eq!(pause(3, CAP, 0.0), Duration::from_secs(10));
        assert_eq!(pause(3, CAP, 0.5), Duration::from_secs(15));
        for random in [-1.0, f64::INFINITY] {
            assert!((10..=20).contains(&pause(3, CAP, random).as_secs()));
        }
        let policy = Backoff { cap: CAP };
        let args = riverqueue::encoding::encode_args(&()).unwrap();
        let job = JobRow::new(1, "a.job", args, Timestamp::UNIX_EPOCH);
        let error = WorkError::new("why");
        let pauses: std::collections::BTreeSet<Duration> =
            (0..20).map(|_| policy.next_retry(&job, &error, Timestamp::UNIX_EPOCH)).collect();
        assert!(pauses.len() > 10, "{pauses:?}");
    }
}
