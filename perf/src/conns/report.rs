//! What came out, as text or JSON.

use std::io::{self, Write};
use std::time::Duration;

use anyhow::Result;
use pollux_control::hist::Samples;
use serde::Serialize;

use super::appliance::Resources;
use crate::table::Format;

/// One batch.
#[derive(Clone, Debug, Serialize)]
pub struct Batch {
    /// Requests answered per second, over all active connections.
    pub requests_per_second: f64,
    /// Time from a request to its answer in microseconds, as the median.
    pub p50_us: f64,
    /// The same, exceeded by one request in a hundred; NaN for too few requests.
    pub p99_us: f64,
}

impl Batch {
    /// Of requests that took `time` in all.
    pub(super) fn of(samples: &Samples, time: Duration) -> Batch {
        let summary = samples.summary();
        // The summary is one way.
        let round_trip = |one_way: Option<f64>| one_way.map_or(f64::NAN, |one_way| 2.0 * one_way);
        Batch {
            requests_per_second: samples.count() as f64 / time.as_secs_f64(),
            p50_us: round_trip(summary.p50),
            p99_us: round_trip(summary.p99),
        }
    }
}

/// Two batches of one round.
#[derive(Clone, Debug, Serialize)]
pub struct Round {
    /// Only the active connections open.
    pub without: Batch,
    /// The idle ones open as well.
    pub with: Batch,
}

/// What idle connections cost.
#[derive(Clone, Debug, Serialize)]
pub struct Open {
    /// Connections open at once.
    pub open: u32,
    /// The active ones among them.
    pub active: u32,
    /// Round by round.
    pub rounds: Vec<Round>,
    /// What the appliances used with all open.
    pub resources: Vec<Resources>,
}

impl Open {
    /// The median over the rounds of what `of` says about the batch with idle connections, divided
    /// by what it says about the one without.
    fn ratio(&self, of: fn(&Batch) -> f64) -> f64 {
        let ratios = self.rounds.iter();
        let mut ratios: Vec<f64> = ratios
            .map(|round| of(&round.with) / of(&round.without))
            .collect();
        ratios.sort_by(f64::total_cmp);
        ratios.get(ratios.len() / 2).copied().unwrap_or(f64::NAN)
    }
}

/// Connections opened and closed.
#[derive(Clone, Debug, Serialize)]
pub struct Cycle {
    /// How many.
    pub count: u32,
    /// How long it took until all were open, or had been opened, used and closed, in seconds.
    pub seconds: f64,
    /// What the appliances used before.
    pub before: Vec<Resources>,
    /// What they used afterwards.
    pub after: Vec<Resources>,
}

impl Cycle {
    pub(super) fn new(
        count: u32,
        took: Duration,
        before: Vec<Resources>,
        after: Vec<Resources>,
    ) -> Cycle {
        Cycle {
            count,
            seconds: took.as_secs_f64(),
            before,
            after,
        }
    }
}

/// Everything.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Bytes of a request and of its answer.
    pub size: usize,
    /// What the appliances used with no connection open.
    pub idle: Vec<Resources>,
    /// What idle connections cost, if it was asked for.
    pub open: Option<Open>,
    /// Connections one after the other, if they were asked for.
    pub cycle: Option<Cycle>,
    /// Connections at once, if they were asked for.
    pub burst: Option<Cycle>,
    /// What the appliances used at the end, everything closed.
    pub end: Vec<Resources>,
    /// Link groups at the end.
    pub groups: usize,
}

impl Report {
    /// Prints it.
    ///
    /// # Errors
    ///
    /// Standard output cannot be written to.
    pub fn print(&self, format: Format) -> Result<()> {
        let mut out = io::stdout().lock();
        match format {
            Format::Text => self.write(&mut out)?,
            Format::Json => {
                serde_json::to_writer_pretty(&mut out, self)?;
                writeln!(out)?;
            }
        }
        Ok(out.flush()?)
    }

    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        if let Some(open) = &self.open {
            writeln!(
                out,
                "{} of {} connections active, one request of {} bytes at a time on each:",
                open.active, open.open, self.size
            )?;
            let [w, m, s] = ["", "median", "p99"];
            writeln!(
                out,
                "{:>6}{w:4}{:>14}{m:>11}{s:>11}{w:4}{:>14}{m:>11}{s:>11}",
                "round", "alone req/s", "all open req/s"
            )?;
            for (number, round) in (1..).zip(&open.rounds) {
                write!(out, "{number:>6}")?;
                for batch in [&round.without, &round.with] {
                    write!(
                        out,
                        "{w:4}{:>14.0}{:>8.1} us{:>8.1} us",
                        batch.requests_per_second, batch.p50_us, batch.p99_us
                    )?;
                }
                writeln!(out)?;
            }
            writeln!(
                out,
                "all open against alone, medians of the rounds: requests/s x{:.3}, median x{:.3}, p99 \
                 x{:.3}",
                open.ratio(|batch| batch.requests_per_second),
                open.ratio(|batch| batch.p50_us),
                open.ratio(|batch| batch.p99_us)
            )?;
            write_resources(out, "all open", &open.resources)?;
        }
        if let Some(cycle) = &self.cycle {
            let rate = f64::from(cycle.count) / cycle.seconds;
            writeln!(
                out,
                "{} connections one after the other, each opened, used and closed: all well, {:.1} s, \
                 {rate:.0} a second",
                cycle.count, cycle.seconds
            )?;
            write_resources(out, "before", &cycle.before)?;
            write_resources(out, "after", &cycle.after)?;
        }
        if let Some(burst) = &self.burst {
            writeln!(
                out,
                "{} connections at once: all well, open after {:.2} s",
                burst.count, burst.seconds
            )?;
            write_resources(out, "before", &burst.before)?;
            write_resources(out, "after", &burst.after)?;
        }
        writeln!(out, "link groups at the end: {}", self.groups)?;
        write_resources(out, "at first", &self.idle)?;
        write_resources(out, "at the end", &self.end)
    }
}

fn write_resources(out: &mut impl Write, when: &str, of: &[Resources]) -> io::Result<()> {
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    for Resources {
        name,
        resident_bytes,
        own_bytes,
        descriptors,
    } in of
    {
        writeln!(
            out,
            "  {when:<10} {name:<7} {:>8.1} MiB resident, {:>7.1} MiB its own, {descriptors} descriptors",
            mib(*resident_bytes),
            mib(*own_bytes)
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_tells_round_trips() {
        let mut samples = Samples::new();
        for _ in 0..2000 {
            samples.record(30_000);
        }
        let batch = Batch::of(&samples, Duration::from_secs(2));
        assert_eq!(batch.requests_per_second, 1000.0);
        assert_eq!((batch.p50_us, batch.p99_us), (30.0, 30.0));
    }

    #[test]
    fn ratios_are_taken_within_rounds() {
        let batch = |requests_per_second| Batch {
            requests_per_second,
            p50_us: 1.0,
            p99_us: 1.0,
        };
        let round = |without, with| Round {
            without: batch(without),
            with: batch(with),
        };
        let open = Open {
            open: 10,
            active: 1,
            rounds: vec![round(10.0, 9.0), round(100.0, 100.0), round(5.0, 10.0)],
            resources: Vec::new(),
        };
        assert_eq!(open.ratio(|batch| batch.requests_per_second), 1.0);
    }
}
