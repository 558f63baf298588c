//! Collects round trips and sums them up one way.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Longest round trip that is told apart, in nanoseconds: a minute. A longer one counts as this.
const ROUND_TRIP_NS_MAX: u64 = 60_000_000_000;

/// Decimal digits that are told apart: a percentile is right to one part in a thousand.
const DIGITS: u8 = 3;

/// Fewest samples that must lie above a percentile for it to be worth printing.
const SAMPLES_ABOVE_MIN: u64 = 10;

/// Round trips, as a histogram of fixed size: recording never allocates.
pub struct Samples {
    round_trips: Histogram<u64>,
    min_ns: u64,
    max_ns: u64,
    sum_ns: u128,
}

/// One way, that is half of the round trip, in microseconds. What cannot be said is `None`: all but
/// the count where there is no sample, a percentile where fewer than ten samples lie above it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Number of samples.
    pub iterations: u64,
    /// Quickest.
    pub min: Option<f64>,
    /// Median.
    pub p50: Option<f64>,
    /// Mean.
    pub avg: Option<f64>,
    /// 90 of 100 are not slower.
    pub p90: Option<f64>,
    /// 99 of 100 are not slower.
    pub p99: Option<f64>,
    /// 999 of 1000 are not slower.
    #[serde(rename = "p99.9")]
    pub p99_9: Option<f64>,
    /// Slowest.
    pub max: Option<f64>,
    /// Standard deviation of the samples.
    pub stdev: Option<f64>,
}

impl Samples {
    /// An empty collection.
    #[must_use]
    pub fn new() -> Samples {
        let round_trips = Histogram::new_with_bounds(1, ROUND_TRIP_NS_MAX, DIGITS)
            .expect("the bounds are constants that the histogram takes");
        Samples {
            round_trips,
            min_ns: u64::MAX,
            max_ns: 0,
            sum_ns: 0,
        }
    }

    /// Adds one round trip, in nanoseconds.
    #[inline]
    pub fn record(&mut self, round_trip_ns: u64) {
        self.round_trips.saturating_record(round_trip_ns);
        self.min_ns = self.min_ns.min(round_trip_ns);
        self.max_ns = self.max_ns.max(round_trip_ns);
        self.sum_ns += u128::from(round_trip_ns);
    }

    /// Number of round trips so far.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.round_trips.len()
    }

    /// The sum-up. Least, largest and mean are exact, the rest to three digits.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let count = self.count();
        if count == 0 {
            return Summary::default();
        }
        Summary {
            iterations: count,
            min: Some(one_way_us(self.min_ns as f64)),
            p50: self.percentile(500),
            avg: Some(one_way_us(self.sum_ns as f64 / count as f64)),
            p90: self.percentile(900),
            p99: self.percentile(990),
            p99_9: self.percentile(999),
            max: Some(one_way_us(self.max_ns as f64)),
            stdev: Some(one_way_us(self.round_trips.stdev())),
        }
    }

    /// The value that `permille` of 1000 samples do not exceed, if enough samples do. The histogram
    /// answers with the upper end of a class; the slowest sample bounds it.
    fn percentile(&self, permille: u32) -> Option<f64> {
        let count = u128::from(self.count());
        let above = count * u128::from(1000 - permille) / 1000;
        if above < u128::from(SAMPLES_ABOVE_MIN) {
            return None;
        }
        let value = self
            .round_trips
            .value_at_quantile(f64::from(permille) / 1000.0);
        Some(one_way_us(value.clamp(self.min_ns, self.max_ns) as f64))
    }
}

impl Default for Samples {
    fn default() -> Samples {
        Samples::new()
    }
}

fn one_way_us(round_trip_ns: f64) -> f64 {
    round_trip_ns / 2000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(round_trips: impl IntoIterator<Item = u64>) -> Summary {
        let mut samples = Samples::new();
        round_trips.into_iter().for_each(|ns| samples.record(ns));
        samples.summary()
    }

    fn is_near(value: Option<f64>, expected: f64) {
        let value = value.unwrap();
        assert!(
            (value - expected).abs() <= expected / 500.0,
            "{value} is not near {expected}"
        );
    }

    #[test]
    fn figures_are_one_way_in_microseconds() {
        let summary = of((1..=10_000).map(|i| i * 2_000));
        assert_eq!(summary.iterations, 10_000);
        assert_eq!(summary.min, Some(1.0));
        assert_eq!(summary.max, Some(10_000.0));
        assert_eq!(summary.avg, Some(5_000.5));
        is_near(summary.p50, 5_000.0);
        is_near(summary.p90, 9_000.0);
        is_near(summary.p99, 9_900.0);
        is_near(summary.p99_9, 9_990.0);
        is_near(summary.stdev, 2_886.75);
    }

    #[test]
    fn no_sample_gives_no_figure() {
        assert_eq!(of([]), Summary::default());
    }

    #[test]
    fn a_percentile_needs_ten_samples_above_it() {
        let known = |count: u64| {
            let summary = of((1..=count).map(|i| i * 100));
            [summary.p50, summary.p90, summary.p99, summary.p99_9].map(|p| p.is_some())
        };
        assert_eq!(known(19), [false, false, false, false]);
        assert_eq!(known(20), [true, false, false, false]);
        assert_eq!(known(99), [true, false, false, false]);
        assert_eq!(known(100), [true, true, false, false]);
        assert_eq!(known(999), [true, true, false, false]);
        assert_eq!(known(1_000), [true, true, true, false]);
        assert_eq!(known(9_999), [true, true, true, false]);
        assert_eq!(known(10_000), [true, true, true, true]);
    }

    #[test]
    fn a_percentile_never_exceeds_the_slowest_sample() {
        let summary = of(std::iter::repeat_n(1_000_003, 1_000));
        assert_eq!(summary.p99, summary.max);
        assert_eq!(summary.p50, summary.min);
    }

    #[test]
    fn a_round_trip_beyond_the_range_counts_and_keeps_its_length() {
        let summary = of([u64::MAX, 0]);
        assert_eq!(summary.iterations, 2);
        assert_eq!(summary.min, Some(0.0));
        assert_eq!(summary.max, Some(u64::MAX as f64 / 2000.0));
    }
}
