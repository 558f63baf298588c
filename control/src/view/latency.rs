//! The result of a latency measurement.

use serde::{Deserialize, Serialize};

use super::text::{Column, View, table};
use crate::words::words;

words! {
    /// What carried the messages of a measurement.
    pub enum Transport {
        /// RDMA.
        SmcR = "smc-r",
        /// The TCP connection, after a fallback.
        Tcp = "tcp",
    }
}

/// Latency by message size, one way: half of each round trip.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LatencyTable {
    /// Address of the echo service.
    pub connect: String,
    /// What carried the messages.
    pub transport: Transport,
    /// Why it is not `smc-r`; empty otherwise.
    pub fallback: String,
    /// Poll mode of the local worker.
    pub mode: String,
    /// Core of the local worker.
    pub local_core: Option<u32>,
    /// Core of the peer's worker, when the peer is on this host and tells.
    pub peer_core: Option<u32>,
    /// Bytes that a send may carry inline on the link; 0 when inline was off.
    pub inline_granted_bytes: u32,
    /// Nanoseconds that a cache line takes from core to core and back, measured just before; the
    /// floor of any round trip between these cores.
    pub bounce_ns: Option<f64>,
    /// One row for each message size.
    pub rows: Vec<LatencyRow>,
}

/// Latency of one message size. Times are in microseconds, one way. A percentile is `None` when
/// fewer than 10 samples lie above it, because then it is noise.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LatencyRow {
    /// Message size.
    pub bytes: u32,
    /// Round trips measured.
    pub iterations: u64,
    /// Least.
    pub t_min: f64,
    /// Median.
    pub p50: Option<f64>,
    /// Mean.
    pub avg: f64,
    /// 90th percentile.
    pub p90: Option<f64>,
    /// 99th percentile.
    pub p99: Option<f64>,
    /// 99.9th percentile.
    pub p99_9: Option<f64>,
    /// Greatest.
    pub max: f64,
    /// Standard deviation.
    pub stdev: f64,
}

/// Samples that must lie above a percentile for it to mean something.
const SAMPLES_ABOVE_MIN: u64 = 10;

impl LatencyRow {
    /// Evaluates round trips, given in nanoseconds. Sorts the samples. `None` without samples.
    #[must_use]
    pub fn of(bytes: u32, round_trips_ns: &mut [u64]) -> Option<LatencyRow> {
        round_trips_ns.sort_unstable();
        let samples: &[u64] = round_trips_ns;
        let (first, last) = (*samples.first()?, *samples.last()?);
        let count = samples.len() as f64;
        // One way, in microseconds.
        let time = |ns: f64| ns / 2000.0;
        let mean = samples.iter().map(|ns| *ns as f64).sum::<f64>() / count;
        let variance = samples
            .iter()
            .map(|ns| (*ns as f64 - mean).powi(2))
            .sum::<f64>()
            / count;
        let percentile = |per_mille: u64| {
            let index = percentile_index(samples.len() as u64, per_mille)?;
            samples
                .get(usize::try_from(index).ok()?)
                .map(|ns| time(*ns as f64))
        };
        Some(LatencyRow {
            bytes,
            iterations: samples.len() as u64,
            t_min: time(first as f64),
            p50: percentile(500),
            avg: time(mean),
            p90: percentile(900),
            p99: percentile(990),
            p99_9: percentile(999),
            max: time(last as f64),
            stdev: time(variance.sqrt()),
        })
    }
}

/// Where the percentile lies among `count` sorted samples, or `None` when too few lie above it.
fn percentile_index(count: u64, per_mille: u64) -> Option<u64> {
    let rank = u64::try_from((u128::from(count) * u128::from(per_mille)).div_ceil(1000)).ok()?;
    let index = rank.max(1) - 1;
    (count.checked_sub(index + 1)? >= SAMPLES_ABOVE_MIN).then_some(index)
}

impl View for LatencyTable {
    fn text(&self) -> String {
        let core = |core: Option<u32>| core.map_or("?".to_string(), |core| core.to_string());
        let transport = match self.transport {
            Transport::SmcR => format!("smc-r, inline up to {} bytes", self.inline_granted_bytes),
            Transport::Tcp => format!("tcp, because of a fallback: {}", self.fallback),
        };
        let bounce = self.bounce_ns.map_or(String::new(), |ns| {
            format!("; a cache line there and back takes {ns:.0} ns")
        });
        let mut text = format!(
            "# latency to {}, one way (half of the round trip), in microseconds\n\
             # transport: {transport}\n\
             # cores: local {}, peer {}; poll mode {}{bounce}\n",
            self.connect,
            core(self.local_core),
            core(self.peer_core),
            self.mode,
        );
        let columns = [
            "#bytes",
            "#iterations",
            "t_min",
            "t_p50",
            "t_avg",
            "t_p90",
            "t_p99",
            "t_p99.9",
            "t_max",
            "stdev",
        ];
        let time = |us: f64| format!("{us:.3}");
        let maybe = |us: Option<f64>| us.map_or("n/a".to_string(), time);
        let rows = self.rows.iter().map(|row| {
            vec![
                row.bytes.to_string(),
                row.iterations.to_string(),
                time(row.t_min),
                maybe(row.p50),
                time(row.avg),
                maybe(row.p90),
                maybe(row.p99),
                maybe(row.p99_9),
                time(row.max),
                time(row.stdev),
            ]
        });
        text.push_str(&table(&columns.map(Column::Number), rows));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_one_way_and_percentiles_need_ten_samples_above() {
        // Round trips of 2, 4, ... 200 microseconds: one way 1 to 100.
        let mut samples: Vec<u64> = (1..=100).rev().map(|us| us * 2000).collect();
        let row = LatencyRow::of(8, &mut samples).expect("samples");
        assert_eq!((row.t_min, row.max, row.avg), (1.0, 100.0, 50.5));
        assert_eq!(
            (row.p50, row.p90, row.p99, row.p99_9),
            (Some(50.0), Some(90.0), None, None)
        );
        assert!((row.stdev - 28.866).abs() < 0.001);
    }

    #[test]
    fn a_percentile_with_nine_samples_above_is_left_out() {
        assert_eq!(percentile_index(100, 900), Some(89));
        assert_eq!(percentile_index(99, 900), None);
        assert_eq!(percentile_index(10_000, 999), Some(9_989));
        assert_eq!(percentile_index(9_999, 999), None);
        assert_eq!(percentile_index(0, 500), None);
    }

    #[test]
    fn few_samples_give_few_numbers_and_none_gives_no_row() {
        let row = LatencyRow::of(1, &mut [3000, 1000, 2000]).expect("samples");
        assert_eq!(
            (row.p50, row.p90, row.p99, row.p99_9),
            (None, None, None, None)
        );
        assert_eq!(LatencyRow::of(1, &mut []), None);
    }

    #[test]
    fn the_table_has_the_columns_of_the_trade_and_tells_its_circumstances() {
        let mut samples: Vec<u64> = (1..=100).map(|us| us * 2000).collect();
        let table = LatencyTable {
            connect: "127.0.0.1:7001".into(),
            transport: Transport::SmcR,
            fallback: String::new(),
            mode: "busy".into(),
            local_core: Some(1),
            peer_core: None,
            inline_granted_bytes: 256,
            bounce_ns: Some(63.2),
            rows: LatencyRow::of(64, &mut samples).into_iter().collect(),
        };
        assert_eq!(
            table.text(),
            "# latency to 127.0.0.1:7001, one way (half of the round trip), in microseconds\n\
             # transport: smc-r, inline up to 256 bytes\n\
             # cores: local 1, peer ?; poll mode busy; a cache line there and back takes 63 ns\n\
             #bytes  #iterations  t_min   t_p50   t_avg   t_p90  t_p99  t_p99.9    t_max   stdev\n\
             \x20   64          100  1.000  50.000  50.500  90.000    n/a      n/a  100.000  28.866\n"
        );
    }
}
