//! The result of a latency measurement.

use std::borrow::Borrow;

use serde::{Deserialize, Serialize};

use super::text::View;
use crate::hist::{Samples, Summary};
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
    /// Longest message (CDC, LLC) that went inline; 0 when none did.
    pub inline_message_bytes: u32,
    /// Longest WRITE that went inline; 0 when none did.
    pub inline_write_bytes: u32,
    /// Nanoseconds that a cache line takes from core to core and back, measured just before; the
    /// floor of any round trip between these cores.
    pub bounce_ns: Option<f64>,
    /// One row for each message size.
    pub rows: Vec<LatencyRow>,
}

/// Latency of one message size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LatencyRow {
    /// Message size.
    pub bytes: u32,
    /// What came out, in microseconds one way.
    #[serde(flatten)]
    pub summary: Summary,
}

/// Names of the columns, in order. All but the first two are in microseconds, one way.
pub const LATENCY_COLUMNS: [&str; 10] = [
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

const BYTES_WIDTH: usize = 8;
const ITERATIONS_WIDTH: usize = 12;
const TIME_WIDTH: usize = 11;

impl LatencyRow {
    /// Evaluates round trips, given in nanoseconds. `None` without samples.
    #[must_use]
    pub fn of(
        bytes: u32,
        round_trips_ns: impl IntoIterator<Item = impl Borrow<u64>>,
    ) -> Option<LatencyRow> {
        let mut samples = Samples::new();
        for round_trip_ns in round_trips_ns {
            samples.record(*round_trip_ns.borrow());
        }
        (samples.count() > 0).then(|| LatencyRow {
            bytes,
            summary: samples.summary(),
        })
    }

    /// The names of the columns, over [`LatencyRow::line`], without a line end.
    #[must_use]
    pub fn heading() -> String {
        let [bytes, iterations, times @ ..] = LATENCY_COLUMNS;
        let mut line = format!("{bytes:>BYTES_WIDTH$}{iterations:>ITERATIONS_WIDTH$}");
        for name in times {
            line.push_str(&format!("{name:>TIME_WIDTH$}"));
        }
        line
    }

    /// The row as text. Its columns have fixed widths, so that it can be printed as soon as it is
    /// there; without a line end.
    #[must_use]
    pub fn line(&self) -> String {
        let Summary {
            iterations,
            min,
            p50,
            avg,
            p90,
            p99,
            p99_9,
            max,
            stdev,
        } = self.summary;
        let bytes = self.bytes;
        let mut line = format!("{bytes:>BYTES_WIDTH$}{iterations:>ITERATIONS_WIDTH$}");
        for time in [min, p50, avg, p90, p99, p99_9, max, stdev] {
            line.push_str(&match time {
                Some(time) => format!("{time:>TIME_WIDTH$.3}"),
                None => format!("{:>TIME_WIDTH$}", "n/a"),
            });
        }
        line
    }
}

impl View for LatencyTable {
    fn text(&self) -> String {
        let core = |core: Option<u32>| core.map_or("?".to_string(), |core| core.to_string());
        let transport = match self.transport {
            Transport::SmcR => format!(
                "smc-r, inline: messages up to {} bytes, writes up to {}",
                self.inline_message_bytes, self.inline_write_bytes
            ),
            Transport::Tcp => format!("tcp, because of a fallback: {}", self.fallback),
        };
        let bounce = self.bounce_ns.map_or(String::new(), |ns| {
            format!("; a cache line there and back takes {ns:.0} ns")
        });
        let mut text = format!(
            "# latency to {}, one way (half of the round trip), in microseconds\n\
             # transport: {transport}\n\
             # cores: local {}, peer {}; poll mode {}{bounce}\n\
             {}\n",
            self.connect,
            core(self.local_core),
            core(self.peer_core),
            self.mode,
            LatencyRow::heading(),
        );
        for row in &self.rows {
            text.push_str(&row.line());
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_made_of_round_trips_and_none_gives_no_row() {
        let row = LatencyRow::of(8, (1..=100).map(|us| us * 2000_u64)).expect("samples");
        assert_eq!((row.bytes, row.summary.iterations), (8, 100));
        assert_eq!((row.summary.min, row.summary.max), (Some(1.0), Some(100.0)));
        assert_eq!(LatencyRow::of(1, [0_u64; 0]), None);
    }

    #[test]
    fn the_table_has_the_columns_of_the_trade_and_tells_its_circumstances() {
        let table = LatencyTable {
            connect: "127.0.0.1:7001".into(),
            transport: Transport::SmcR,
            fallback: String::new(),
            mode: "busy".into(),
            local_core: Some(1),
            peer_core: None,
            inline_message_bytes: 256,
            inline_write_bytes: 200,
            bounce_ns: Some(63.2),
            rows: LatencyRow::of(64, [2000_u64; 100]).into_iter().collect(),
        };
        assert_eq!(
            table.text(),
            "# latency to 127.0.0.1:7001, one way (half of the round trip), in microseconds\n\
             # transport: smc-r, inline: messages up to 256 bytes, writes up to 200\n\
             # cores: local 1, peer ?; poll mode busy; a cache line there and back takes 63 ns\n  \
             #bytes #iterations      t_min      t_p50      t_avg      t_p90      t_p99    \
             t_p99.9      t_max      stdev\n      \
             64         100      1.000      1.000      1.000      1.000        n/a        \
             n/a      1.000      0.000\n"
        );
    }
}
