//! The comparison as a value, as text and as JSON.

use std::io::{self, Write};

use pollux_control::rpc::InlineUse;
use serde::{Serialize, Serializer};

use super::statistics::{Against, Crossover, SLOWER_RATIO, Spread, crossover};
use crate::instructions::{self, CountsOrReason};
use crate::lat::Limit;
use crate::modes::{MODES, label};
use crate::table::{self, BounceOrReason, Setting};

/// One short run in one mode.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Batch {
    /// Its round, from 0; the batches of a round are compared with each other.
    pub round: u32,
    /// What went inline.
    pub mode: InlineUse,
    /// Its median, in microseconds one way.
    pub p50_us: f64,
    /// How many samples it is the median of.
    pub samples: u64,
}

/// One message size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Message size.
    pub bytes: u32,
    /// Nothing inline: the medians of the batches, in microseconds one way.
    pub by_reference: Spread,
    /// Messages inline, the bytes of the stream by reference.
    pub messages: Spread,
    /// Both inline.
    pub all: Spread,
    /// Messages inline against by reference.
    pub messages_to_by_reference: Against,
    /// All inline against by reference.
    pub all_to_by_reference: Against,
    /// All inline against messages inline.
    pub all_to_messages: Against,
    /// The bounce with one line each way, in microseconds: the mean of just before and just after
    /// this size. Nothing where it was not measured.
    pub bounce_us: Option<f64>,
    /// The medians as multiples of it, in the order of the columns.
    pub over_bounce: Option<OverBounce>,
    /// Every batch, in the order in which they ran.
    pub batches: Vec<Batch>,
}

/// Medians as multiples of the bounce.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct OverBounce {
    /// Nothing inline.
    pub by_reference: f64,
    /// Messages inline.
    pub messages: f64,
    /// Both inline.
    pub all: f64,
}

impl Row {
    /// Evaluates the batches of one size, beside the bounce of that time. `None` where a mode has
    /// no batch.
    #[must_use]
    pub fn of(bytes: u32, batches: Vec<Batch>, bounce_ns: Option<f64>) -> Option<Row> {
        let [by_reference, messages, all] = MODES.map(|mode| medians(&batches, mode));
        let bounce_us = bounce_ns.map(|ns| ns / 1000.0);
        let spreads = [
            Spread::of(&by_reference)?,
            Spread::of(&messages)?,
            Spread::of(&all)?,
        ];
        Some(Row {
            bytes,
            by_reference: spreads[0],
            messages: spreads[1],
            all: spreads[2],
            bounce_us,
            over_bounce: bounce_us.map(|bounce_us| OverBounce {
                by_reference: spreads[0].median / bounce_us,
                messages: spreads[1].median / bounce_us,
                all: spreads[2].median / bounce_us,
            }),
            messages_to_by_reference: Against::of(&messages, &by_reference)?,
            all_to_by_reference: Against::of(&all, &by_reference)?,
            all_to_messages: Against::of(&all, &messages)?,
            batches,
        })
    }

    /// The three modes in the order of the columns.
    #[must_use]
    pub fn modes(&self) -> [Spread; 3] {
        [self.by_reference, self.messages, self.all]
    }
}

/// The medians of one mode, by round.
fn medians(batches: &[Batch], mode: InlineUse) -> Vec<f64> {
    let of_mode = batches.iter().filter(|batch| batch.mode == mode);
    of_mode.map(|batch| batch.p50_us).collect()
}

/// What the adapters granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Granted {
    /// At this end, in bytes.
    pub this_end: u32,
    /// At the other one.
    pub other_end: u32,
}

/// What a comparison was made on and with.
#[derive(Clone, Debug, Serialize)]
pub struct Head {
    /// As for a table; `inline_bytes` is what this end's adapter granted.
    #[serde(flatten)]
    pub setting: Setting,
    /// The inline sizes that both adapters granted.
    pub granted: Granted,
    /// The longest inline WRITE that was asked for; nothing where none was.
    pub threshold_asked: Option<u32>,
    /// The longest WRITE that went inline in the mode in which all is inline, in bytes.
    pub threshold: u32,
    /// Rounds for each size.
    pub rounds: u32,
    /// How long a batch ran.
    #[serde(rename = "batch", serialize_with = "limit")]
    pub limit: Limit,
}

fn limit<S: Serializer>(limit: &Limit, to: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    #[serde(rename_all = "lowercase")]
    enum Shown {
        Seconds(f64),
        Samples(u64),
    }
    match limit {
        Limit::Time(time) => Shown::Seconds(time.as_secs_f64()),
        Limit::Iterations(samples) => Shown::Samples(*samples),
    }
    .serialize(to)
}

/// What the figures say.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// Sizes at which all inline was faster than by reference.
    pub faster: Vec<u32>,
    /// Sizes at which all inline was slower than by reference by more than three per cent.
    pub slower_by_more_than_3_percent: Vec<u32>,
    /// Up to which size it pays to send WRITEs inline.
    pub crossover: Crossover,
}

impl Verdict {
    fn of(rows: &[Row], threshold: u32) -> Verdict {
        let where_ratio = |holds: fn(f64) -> bool| {
            let rows = rows.iter();
            let holds = rows.filter(|row| holds(row.all_to_by_reference.ratio.median));
            holds.map(|row| row.bytes).collect()
        };
        let sizes = rows.iter().map(|row| (row.bytes, &row.all_to_messages));
        Verdict {
            faster: where_ratio(|ratio| ratio < 1.0),
            slower_by_more_than_3_percent: where_ratio(|ratio| ratio > SLOWER_RATIO),
            crossover: crossover(sizes, threshold),
        }
    }
}

/// A whole comparison.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// Format of this object; rises when the meaning of a member changes.
    pub version: u32,
    /// Always `us`: spreads, differences and medians of batches are in microseconds.
    pub unit: &'static str,
    /// Always `one-way`: every time is half of a round trip.
    pub way: &'static str,
    /// What it was made on and with.
    #[serde(flatten)]
    pub head: Head,
    /// The bounce just after the run; one that differs from the one before says that the machine
    /// changed underneath.
    pub bounce_after: BounceOrReason,
    /// What the figures say.
    pub verdict: Verdict,
    /// Instructions of the sending path.
    pub instructions: CountsOrReason,
    /// One element for each message size.
    pub rows: Vec<Row>,
}

impl Comparison {
    /// Puts a comparison together.
    #[must_use]
    pub fn new(
        head: Head,
        bounce_after: BounceOrReason,
        rows: Vec<Row>,
        instructions: CountsOrReason,
    ) -> Comparison {
        Comparison {
            version: 1,
            unit: "us",
            way: "one-way",
            verdict: Verdict::of(&rows, head.threshold),
            head,
            bounce_after,
            instructions,
            rows,
        }
    }
}

/// Writes the head and the names of the columns.
///
/// # Errors
///
/// What `out` says.
pub fn write_head(out: &mut impl Write, head: &Head) -> io::Result<()> {
    table::write_setting(out, &head.setting)?;
    let Granted {
        this_end,
        other_end,
    } = head.granted;
    write!(out, "# all inline WRITEs up to {} bytes", head.threshold)?;
    match head.threshold_asked {
        Some(asked) if asked > head.threshold => writeln!(
            out,
            " ({asked} asked for, but the adapters grant {this_end} here and {other_end} there)"
        )?,
        Some(_) | None => writeln!(out)?,
    }
    write!(
        out,
        "# rounds     {} for each size, each with a batch of ",
        head.rounds
    )?;
    match head.limit {
        Limit::Time(time) => write!(out, "{} s", time.as_secs_f64())?,
        Limit::Iterations(samples) => write!(out, "{samples} samples")?,
    }
    writeln!(out, " in each mode, in changing order")?;
    writeln!(
        out,
        "# times in usec, one way (half of round trip): median of the batches' medians, and their \
         quartiles;"
    )?;
    writeln!(
        out,
        "# differences against by reference: medians, and quartiles, of those within a round; bounce: \
         one line each way"
    )?;
    let [by_reference, messages, all] = MODES.map(label);
    writeln!(
        out,
        "#       {by_reference:^27}{messages:^27}{all:^27}{:^36}{messages:^9}",
        format!("{all} - {by_reference}")
    )?;
    write!(out, "{:>8}", "#bytes")?;
    for _ in MODES {
        write!(out, "{:>9}{:>9}{:>9}", "median", "p25", "p75")?;
    }
    let last = ["usec", "%", "p25", "p75", "%", "bounce"];
    writeln!(out, "{}", last.map(|name| format!("{name:>9}")).concat())
}

/// Writes one message size.
///
/// # Errors
///
/// What `out` says.
pub fn write_row(out: &mut impl Write, row: &Row) -> io::Result<()> {
    write!(out, "{:>8}", row.bytes)?;
    for Spread {
        median, p25, p75, ..
    } in row.modes()
    {
        write!(out, "{median:>9.3}{p25:>9.3}{p75:>9.3}")?;
    }
    let Against {
        ratio,
        difference_us,
    } = row.all_to_by_reference;
    let messages = row.messages_to_by_reference.ratio;
    write!(out, "{:>+9.3}", difference_us.median)?;
    for ratio in [ratio.median, ratio.p25, ratio.p75, messages.median] {
        write!(out, "{:>+9.1}", percent(ratio))?;
    }
    match row.bounce_us {
        Some(bounce_us) => writeln!(out, "{bounce_us:>9.3}"),
        None => writeln!(out, "{:>9}", "n/a"),
    }
}

/// What a ratio is above or below one.
fn percent(ratio: f64) -> f64 {
    (ratio - 1.0) * 100.0
}

/// Writes the bounce after the run, the multiples of it, the verdict, and the instructions.
///
/// # Errors
///
/// What `out` says.
pub fn write_foot(out: &mut impl Write, comparison: &Comparison) -> io::Result<()> {
    writeln!(
        out,
        "# bounce     {} (after the run)",
        comparison.bounce_after
    )?;
    let multiples = comparison.rows.iter().filter_map(|row| {
        let OverBounce {
            by_reference,
            messages,
            all,
        } = row.over_bounce?;
        let bytes = row.bytes;
        Some(format!(
            " {bytes} B {by_reference:.2}/{messages:.2}/{all:.2}"
        ))
    });
    let multiples: String = multiples.collect();
    if !multiples.is_empty() {
        let modes = MODES.map(label).join(" / ");
        writeln!(
            out,
            "# medians as multiples of the bounce (one line each way) of their size, {modes}:\
             {multiples}"
        )?;
    }
    write_verdict(out, comparison)?;
    instructions::write(out, "# ", &comparison.instructions)
}

fn write_verdict(out: &mut impl Write, comparison: &Comparison) -> io::Result<()> {
    let Verdict {
        faster,
        slower_by_more_than_3_percent,
        crossover,
    } = &comparison.verdict;
    let sizes = |sizes: &[u32]| match sizes {
        [] => "no size".to_owned(),
        sizes => {
            let with_percent = comparison
                .rows
                .iter()
                .filter(|row| sizes.contains(&row.bytes));
            let shown = with_percent.map(|row| {
                let percent = percent(row.all_to_by_reference.ratio.median);
                format!("{} B ({percent:+.1} %)", row.bytes)
            });
            shown.collect::<Vec<_>>().join(", ")
        }
    };
    writeln!(
        out,
        "# all inline is faster than by reference at: {}",
        sizes(faster)
    )?;
    writeln!(
        out,
        "# all inline is slower than by reference by more than 3 % at: {}",
        sizes(slower_by_more_than_3_percent)
    )?;
    let against = |bytes: u32| {
        let row = comparison.rows.iter().find(|row| row.bytes == bytes);
        row.map_or(String::new(), |row| {
            let Spread {
                median, p25, p75, ..
            } = row.all_to_messages.ratio;
            let [median, p25, p75] = [median, p25, p75].map(percent);
            format!("{bytes} B ({median:+.1} %, quartiles {p25:+.1} and {p75:+.1})")
        })
    };
    write!(
        out,
        "# crossover: against WRITEs by reference behind inline messages, inline WRITEs "
    )?;
    match *crossover {
        Crossover::NotMeasured => writeln!(out, "were not measured at any size"),
        Crossover::Never { slower_at } => {
            writeln!(
                out,
                "are slower at the smallest size, {}",
                against(slower_at)
            )
        }
        Crossover::Between { up_to, slower_at } => writeln!(
            out,
            "are not slower up to {} and slower at {}",
            against(up_to),
            against(slower_at)
        ),
        Crossover::Always { up_to } => writeln!(
            out,
            "are not slower up to {}, the largest size measured at which they go inline",
            against(up_to)
        ),
    }
}
