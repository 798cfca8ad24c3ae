//! What is said of many samples.

use std::time::Duration;

use serde::Serialize;

/// The middle of the values; of an even number the mean of the two in the middle. 0 when there are none.
#[must_use]
pub fn median(mut values: Vec<f64>) -> f64 {
    if values.is_empty() {
        return 0.0;
    }
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { f64::midpoint(values[middle - 1], values[middle]) }
}

/// The same measured several times.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// One more.
    pub fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// In the order in which they were measured.
    #[must_use]
    pub fn values(&self) -> &[f64] {
        &self.0
    }

    /// What is compared with thresholds.
    #[must_use]
    pub fn median(&self) -> f64 {
        median(self.0.clone())
    }

    /// The smallest; 0 when there are none.
    #[must_use]
    pub fn lowest(&self) -> f64 {
        self.0.iter().copied().min_by(f64::total_cmp).unwrap_or(0.0)
    }

    /// The largest; 0 when there are none.
    #[must_use]
    pub fn highest(&self) -> f64 {
        self.0.iter().copied().max_by(f64::total_cmp).unwrap_or(0.0)
    }

    /// The ratio of the medians. Two that are not comparable are not equal: without a divisor it is 0.
    #[must_use]
    pub fn to(&self, other: &Self) -> f64 {
        let divisor = other.median();
        if divisor > 0.0 { self.median() / divisor } else { 0.0 }
    }
}

impl From<Vec<f64>> for Samples {
    fn from(values: Vec<f64>) -> Self {
        Self(values)
    }
}

/// Durations of single operations, sorted, in milliseconds.
#[derive(Debug, Clone, PartialEq)]
pub struct Latencies(Vec<f64>);

impl Latencies {
    /// Sorts them.
    #[must_use]
    pub fn new(durations: impl IntoIterator<Item = Duration>) -> Self {
        let mut milliseconds: Vec<f64> =
            durations.into_iter().map(|duration| duration.as_secs_f64() * 1e3).collect();
        milliseconds.sort_by(f64::total_cmp);
        Self(milliseconds)
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The smallest that at least `percent` of all are not above. Infinite when there are none, so that nothing that was not
    /// measured is below a threshold.
    #[must_use]
    pub fn percentile(&self, percent: f64) -> f64 {
        let rank = (self.0.len() as f64 * percent / 100.0).ceil() as usize;
        self.0.get(rank.max(1) - 1).copied().unwrap_or(f64::INFINITY)
    }

    /// The longest; infinite when there are none.
    #[must_use]
    pub fn longest(&self) -> f64 {
        self.percentile(100.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(vec![]), 0.0);
    }

    #[test]
    fn the_spread_is_from_the_lowest_to_the_highest() {
        let samples = Samples::from(vec![5.0, 9.0, 7.0]);
        assert_eq!((samples.lowest(), samples.median(), samples.highest()), (5.0, 7.0, 9.0));
    }

    #[test]
    fn nothing_is_a_multiple_of_nothing() {
        assert_eq!(Samples::from(vec![6.0]).to(&Samples::from(vec![3.0])), 2.0);
        assert_eq!(Samples::from(vec![6.0]).to(&Samples::default()), 0.0);
    }

    #[test]
    fn a_percentile_is_one_of_the_samples() {
        let latencies = Latencies::new((1..=200).rev().map(Duration::from_millis));
        assert_eq!(latencies.percentile(50.0), 100.0);
        assert_eq!(latencies.percentile(99.0), 198.0);
        assert_eq!(latencies.longest(), 200.0);
        assert_eq!(Latencies::new([Duration::from_millis(7)]).percentile(99.0), 7.0);
    }

    #[test]
    fn what_was_not_measured_is_below_nothing() {
        assert_eq!(Latencies::new([]).percentile(99.0), f64::INFINITY);
    }
}
