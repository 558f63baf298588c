//! Prints a run: a head that says what was measured on what, then one row for each message size.
//!
//! Every line of the head begins with `#`, so that a plotting program skips it. The columns have
//! fixed widths and one unit, microseconds one way, so that a script needs to parse no unit.

use std::fmt;
use std::io::{self, Write};

use serde::{Serialize, Serializer};

use pollux_control::bounce::{self, Bounce, BounceSpec, CoreList};
use pollux_control::view::LatencyRow;

/// What a run was made on and with.
#[derive(Clone, Debug, Serialize)]
pub struct Setting {
    /// Where this end ran.
    pub this_core: Cores,
    /// Where the other end ran, if that is known.
    pub other_core: Option<usize>,
    /// How both ends waited.
    pub mode: Mode,
    /// What carried the bytes.
    pub transport: Transport,
    /// Largest message that the adapter takes from the work request itself, in bytes; 0 when
    /// inline is off, `None` where there is no adapter or nobody tells.
    pub inline_bytes: Option<u32>,
    /// How the program was built.
    pub build: Build,
    /// The bounce just before the run.
    pub bounce_before: BounceOrReason,
}

/// The cores that the measuring thread could run on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cores {
    /// Only this one.
    Pinned(usize),
    /// Any of these: the system moves the thread, and the figures with it.
    Free(CoreList),
}

/// How an end waits for its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Polls without a pause.
    Busy,
    /// Polls for a while, then sleeps.
    Adaptive,
    /// Sleeps at once.
    Interrupt,
}

/// What carried the bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Transport {
    /// SMC-R.
    SmcR,
    /// TCP, because the two ends did not agree on SMC-R.
    Fallback {
        /// Why.
        reason: String,
    },
    /// TCP, as asked for.
    Tcp,
}

/// How a run is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// For people, row by row.
    Text,
    /// As JSON, at the end.
    Json,
}

/// How the program was built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Build {
    /// Optimised.
    Release,
    /// Not optimised: the figures say nothing about the data plane.
    Debug,
}

impl Build {
    /// How this program was built.
    #[must_use]
    pub const fn current() -> Build {
        if cfg!(debug_assertions) {
            Build::Debug
        } else {
            Build::Release
        }
    }
}

/// A bounce, or why there is none.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum BounceOrReason {
    /// It was measured.
    Measured(Bounce),
    /// It was not.
    NotMeasured {
        /// Why not.
        reason: String,
    },
}

impl BounceOrReason {
    /// Measures between these two cores, or two of the allowed ones. That it cannot be measured does
    /// not end a run: the reason stands where the figure would.
    #[must_use]
    pub fn between(cores: Option<[u32; 2]>) -> BounceOrReason {
        match bounce::measure(&BounceSpec {
            cores: cores.map(|pair| pair.map(|core| core as usize)),
            ..BounceSpec::default()
        }) {
            Ok(bounce) => BounceOrReason::Measured(bounce),
            Err(error) => BounceOrReason::NotMeasured {
                reason: error.to_string(),
            },
        }
    }
}

/// A whole run, for JSON.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Format of this object; rises when the meaning of a member changes.
    pub version: u32,
    /// Always `us`: every time in `rows` is in microseconds.
    pub unit: &'static str,
    /// Always `one-way`: every time in `rows` is half of a round trip.
    pub way: &'static str,
    /// What it was made on and with.
    #[serde(flatten)]
    pub setting: Setting,
    /// The bounce just after the run; one that differs from the one before says that the machine
    /// changed underneath.
    pub bounce_after: BounceOrReason,
    /// The medians as multiples of the bounce with one line each way, each with its size. What stays
    /// the same on a machine that drifts.
    pub p50_over_bounce: Vec<(u32, f64)>,
    /// One element for each message size.
    pub rows: Vec<LatencyRow>,
}

impl Report {
    /// Puts a run together.
    #[must_use]
    pub fn new(setting: Setting, bounce_after: BounceOrReason, rows: Vec<LatencyRow>) -> Report {
        let each_way = each_way_ns(&setting.bounce_before, &bounce_after);
        Report {
            version: 2,
            unit: "us",
            way: "one-way",
            setting,
            p50_over_bounce: rows
                .iter()
                .filter_map(|row| Some((row.bytes, row.summary.p50? * 1000.0 / each_way?)))
                .collect(),
            bounce_after,
            rows,
        }
    }
}

/// Writes the head and the names of the columns.
///
/// # Errors
///
/// What `out` says.
pub fn write_head(out: &mut impl Write, setting: &Setting) -> io::Result<()> {
    write_setting(out, setting)?;
    writeln!(out, "# times in usec, one way (half of round trip)")?;
    writeln!(out, "{}", LatencyRow::heading())
}

/// Writes what a run was made on and with.
///
/// # Errors
///
/// What `out` says.
pub(crate) fn write_setting(out: &mut impl Write, setting: &Setting) -> io::Result<()> {
    write!(out, "# cores      this end {}", setting.this_core)?;
    match setting.other_core {
        Some(core) => writeln!(out, ", other end {core}")?,
        None => writeln!(out, ", other end not told (--cores)")?,
    }
    writeln!(out, "# mode       {}", setting.mode)?;
    writeln!(out, "# transport  {}", setting.transport)?;
    match setting.inline_bytes {
        Some(0) => writeln!(out, "# inline     off")?,
        Some(bytes) => writeln!(out, "# inline     up to {bytes} bytes")?,
        None if setting.transport == Transport::SmcR => writeln!(out, "# inline     not told")?,
        None => writeln!(out, "# inline     none: no adapter carried the bytes")?,
    }
    if setting.build == Build::Debug {
        writeln!(
            out,
            "# build      debug: not optimised, nothing to compare with"
        )?;
    }
    writeln!(out, "# bounce     {}", setting.bounce_before)
}

/// Writes the bounce after the run, and the medians as multiples of it.
///
/// # Errors
///
/// What `out` says.
pub fn write_foot(out: &mut impl Write, report: &Report) -> io::Result<()> {
    writeln!(out, "# bounce     {} (after the run)", report.bounce_after)?;
    if report.p50_over_bounce.is_empty() {
        return Ok(());
    }
    write!(
        out,
        "# t_p50 as a multiple of the bounce with one line each way (two lines):"
    )?;
    for (bytes, ratio) in &report.p50_over_bounce {
        write!(out, " {bytes} B {ratio:.2}")?;
    }
    writeln!(out)
}

/// Writes one run as an object, several as an array of objects, and a line end.
///
/// # Errors
///
/// What `out` says.
pub fn write_json(out: &mut impl Write, reports: &[Report]) -> io::Result<()> {
    match reports {
        [report] => serde_json::to_writer_pretty(&mut *out, report)?,
        reports => serde_json::to_writer_pretty(&mut *out, reports)?,
    }
    writeln!(out)
}

/// The bounce with one line each way, in nanoseconds: the mean of before and after. No stream in
/// shared memory can be quicker, since each direction has a line of its own.
pub(crate) fn each_way_ns(before: &BounceOrReason, after: &BounceOrReason) -> Option<f64> {
    match (before, after) {
        (BounceOrReason::Measured(before), BounceOrReason::Measured(after)) => Some(f64::midpoint(
            before.two_lines.median_ns,
            after.two_lines.median_ns,
        )),
        (BounceOrReason::NotMeasured { .. }, _) | (_, BounceOrReason::NotMeasured { .. }) => None,
    }
}

impl fmt::Display for Cores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cores::Pinned(core) => write!(f, "{core}"),
            Cores::Free(cores) => write!(f, "not pinned (any of {cores})"),
        }
    }
}

impl Serialize for Cores {
    /// The number of the core, or nothing where the thread was not pinned.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Cores::Pinned(core) => Some(core).serialize(serializer),
            Cores::Free(_) => None::<usize>.serialize(serializer),
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Busy => "busy",
            Mode::Adaptive => "adaptive",
            Mode::Interrupt => "interrupt",
        })
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Transport::SmcR => write!(f, "SMC-R"),
            Transport::Fallback { reason } => write!(f, "fallback to TCP: {reason}"),
            Transport::Tcp => write!(f, "TCP, as asked for"),
        }
    }
}

impl fmt::Display for BounceOrReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BounceOrReason::Measured(bounce) => write!(f, "{bounce}"),
            BounceOrReason::NotMeasured { reason } => write!(f, "n/a: {reason}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_control::bounce::{Siblings, Spread};

    fn bounce() -> BounceOrReason {
        let spread = |median_ns| Spread {
            min_ns: median_ns - 1.0,
            median_ns,
            max_ns: 99.5,
        };
        BounceOrReason::Measured(Bounce {
            cores: [0, 1],
            siblings: Siblings::No,
            lines: 24,
            batches: 5,
            round_trips: 400,
            one_line: spread(60.0),
            two_lines: spread(90.0),
        })
    }

    fn setting() -> Setting {
        Setting {
            this_core: Cores::Pinned(0),
            other_core: Some(1),
            mode: Mode::Busy,
            transport: Transport::SmcR,
            inline_bytes: Some(256),
            build: Build::Release,
            bounce_before: bounce(),
        }
    }

    fn row() -> LatencyRow {
        LatencyRow::of(2048, [2_000_u64; 1_000]).unwrap()
    }

    fn text(write: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) -> String {
        let mut out = Vec::new();
        write(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_head_names_everything_that_the_figures_depend_on() {
        let head = text(|out| write_head(out, &setting()));
        assert_eq!(
            head,
            "# cores      this end 0, other end 1\n\
             # mode       busy\n\
             # transport  SMC-R\n\
             # inline     up to 256 bytes\n\
             # bounce     cores 0,1: one line 60.0 ns (59.0 to 99.5), \
             two lines 90.0 ns (89.0 to 99.5)\n\
             # times in usec, one way (half of round trip)\n  \
             #bytes #iterations      t_min      t_p50      t_avg      t_p90      t_p99    \
             t_p99.9      t_max      stdev\n"
        );
    }

    #[test]
    fn the_head_says_what_is_not_known() {
        let setting = Setting {
            this_core: Cores::Free(CoreList(vec![0, 1])),
            other_core: None,
            mode: Mode::Interrupt,
            transport: Transport::Fallback {
                reason: "the peer declined".to_owned(),
            },
            inline_bytes: None,
            build: Build::Debug,
            bounce_before: BounceOrReason::NotMeasured {
                reason: "one core".to_owned(),
            },
        };
        let head = text(|out| write_head(out, &setting));
        for line in [
            "# cores      this end not pinned (any of 0-1), other end not told (--cores)\n",
            "# transport  fallback to TCP: the peer declined\n",
            "# inline     none: no adapter carried the bytes\n",
            "# build      debug: not optimised, nothing to compare with\n",
            "# bounce     n/a: one core\n",
        ] {
            assert!(head.contains(line), "{head}");
        }
    }

    #[test]
    fn json_has_nothing_where_the_table_has_no_figure() {
        let report = Report::new(setting(), bounce(), vec![row()]);
        let value: serde_json::Value =
            serde_json::from_str(&text(|out| write_json(out, std::slice::from_ref(&report))))
                .unwrap();
        assert_eq!(value["unit"], "us");
        assert_eq!(value["way"], "one-way");
        assert_eq!(value["this_core"], 0);
        assert_eq!(value["mode"], "busy");
        assert_eq!(value["transport"]["kind"], "smc-r");
        assert_eq!(value["inline_bytes"], 256);
        assert_eq!(value["bounce_before"]["two_lines"]["median_ns"], 90.0);
        assert_eq!(value["rows"][0]["bytes"], 2048);
        assert_eq!(value["rows"][0]["p99"], 1.0);
        assert!(value["rows"][0]["p99.9"].is_null());
    }

    #[test]
    fn the_foot_repeats_the_bounce_and_has_the_ratios() {
        let report = Report::new(setting(), bounce(), vec![row()]);
        let foot = text(|out| write_foot(out, &report));
        assert!(foot.starts_with("# bounce     cores 0,1: "), "{foot}");
        assert!(foot.contains("(after the run)\n"), "{foot}");
        // One microsecond over 90 nanoseconds.
        assert!(foot.ends_with(": 2048 B 11.11\n"), "{foot}");
    }
}
