//! The measurement as a value, as text and as JSON.

use std::io::{self, Write};

use pollux_provider::rnr_timer_ns;
use serde::Serialize;

use super::{IncastPlan, Mode, UNDER_WAY_LINUX};
use crate::compare::statistics::{Against, Spread};
use crate::lat::Limit;
use crate::table::{BounceOrReason, Build};

/// Why the timer is what it is.
const TIMER_REASON: &str = "the code is what Linux sets on its SMC-R queue pairs and pollux on its \
    own; the time is what the code stands for and the least that a sender waits: an adapter may wait \
    longer, the soft device does not";

/// How often a receiver was not ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RnrNaks {
    /// Sent by the answering side.
    pub by_server: u64,
    /// Sent by the asking side.
    pub by_client: u64,
}

impl RnrNaks {
    fn sum(self) -> u64 {
        self.by_server + self.by_client
    }
}

/// One short run in one mode. Counts and credits include the warm-up, requests and times do not.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Batch {
    /// Its round, from 0; the batches of a round are compared with each other.
    pub round: u32,
    /// The mode.
    pub mode: Mode,
    /// Requests answered.
    pub requests: u64,
    /// The same for each second.
    pub requests_per_s: f64,
    /// Median of the round trips, in microseconds; nothing where there were too few.
    pub p50_us: Option<f64>,
    /// 99 of 100 round trips took no longer, in microseconds; nothing where there were too few.
    pub p99_us: Option<f64>,
    /// How often a receiver was not ready.
    pub rnr_naks: RnrNaks,
    /// Times a side ran out of credits.
    pub credit_waits: u64,
    /// Time both sides spent without credits although there was something to send, in microseconds.
    pub credit_waited_us: f64,
    /// ANNOUNCE CREDITS sent by both sides.
    pub announcements: u64,
    /// Credits that these returned.
    pub returned_by_announcement: u64,
    /// Credits returned on CDC messages.
    pub returned_by_cdc: u64,
    /// How often the receiver paused.
    pub pauses: u64,
    /// For how long in all, in microseconds.
    pub paused_us: f64,
}

/// All batches in one mode.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModeFigures {
    /// Requests for each second, by batch.
    pub requests_per_s: Spread,
    /// Medians of the batches, in microseconds.
    pub p50_us: Option<Spread>,
    /// 99th percentiles of the batches, in microseconds.
    pub p99_us: Option<Spread>,
    /// Requests answered, in all batches.
    pub requests: u64,
    /// How often a receiver was not ready, in all batches.
    pub rnr_naks: u64,
    /// Time without credits, in all batches, in milliseconds.
    pub credit_waited_ms: f64,
    /// Announcements, in all batches.
    pub announcements: u64,
    /// Credits returned on CDC messages, in all batches.
    pub returned_by_cdc: u64,
}

impl ModeFigures {
    fn of(batches: &[Batch], mode: Mode) -> Option<ModeFigures> {
        let batches = || batches.iter().filter(|batch| batch.mode == mode);
        let spread = |of: fn(&Batch) -> Option<f64>| {
            let values: Vec<f64> = batches().filter_map(of).collect();
            Spread::of(&values)
        };
        let sum = |of: fn(&Batch) -> u64| batches().map(of).sum();
        Some(ModeFigures {
            requests_per_s: spread(|batch| Some(batch.requests_per_s))?,
            p50_us: spread(|batch| batch.p50_us),
            p99_us: spread(|batch| batch.p99_us),
            requests: sum(|batch| batch.requests),
            rnr_naks: sum(|batch| batch.rnr_naks.sum()),
            credit_waited_ms: batches().map(|batch| batch.credit_waited_us).sum::<f64>() / 1000.0,
            announcements: sum(|batch| batch.announcements),
            returned_by_cdc: sum(|batch| batch.returned_by_cdc),
        })
    }
}

/// One number of connections.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Connections.
    pub conns: u16,
    /// Nothing keeps the sides from sending.
    pub off: ModeFigures,
    /// So many work requests under way at most as any Linux peer has receives.
    pub bounded: ModeFigures,
    /// Credits.
    pub on: ModeFigures,
    /// Requests for each second with credits, as a multiple of those without, by round.
    pub on_to_off: Spread,
    /// The same against the bounded mode.
    pub on_to_bounded: Spread,
    /// Medians of the round trips without credits, as multiples of those with, by round. Says the same
    /// on an idle machine and survives a busy one; nothing where there were too few.
    pub p50_off_to_on: Option<Spread>,
    /// Every batch, in the order in which they ran.
    pub batches: Vec<Batch>,
}

impl Row {
    /// Evaluates the batches of one number of connections. `None` where a mode has none.
    #[must_use]
    pub fn of(conns: u16, batches: Vec<Batch>) -> Option<Row> {
        let rates = |mode: Mode| -> Vec<f64> {
            let of_mode = batches.iter().filter(|batch| batch.mode == mode);
            of_mode.map(|batch| batch.requests_per_s).collect()
        };
        let [off, bounded, on] = Mode::ALL.map(rates);
        let medians = |mode: Mode| -> Vec<f64> {
            let of_mode = batches.iter().filter(|batch| batch.mode == mode);
            of_mode.filter_map(|batch| batch.p50_us).collect()
        };
        let (p50_off, p50_on) = (medians(Mode::Off), medians(Mode::On));
        let is_paired = p50_off.len() == off.len() && p50_on.len() == on.len();
        let p50_off_to_on = Against::of(&p50_off, &p50_on).filter(|_| is_paired);
        Some(Row {
            conns,
            off: ModeFigures::of(&batches, Mode::Off)?,
            bounded: ModeFigures::of(&batches, Mode::Bounded)?,
            on: ModeFigures::of(&batches, Mode::On)?,
            on_to_off: Against::of(&on, &off)?.ratio,
            on_to_bounded: Against::of(&on, &bounded)?.ratio,
            p50_off_to_on: p50_off_to_on.map(|against| against.ratio),
            batches,
        })
    }

    fn mode(&self, mode: Mode) -> &ModeFigures {
        match mode {
            Mode::Off => &self.off,
            Mode::Bounded => &self.bounded,
            Mode::On => &self.on,
        }
    }
}

/// How long a batch ran.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum BatchLength {
    /// This long, after the warm-up.
    Seconds(f64),
    /// Until this many requests were answered, after the warm-up.
    Requests(u64),
}

/// An RNR timer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RnrTimer {
    /// Its code, as queue pairs are given it.
    pub code: u8,
    /// What it stands for, in microseconds.
    pub us: f64,
    /// Why.
    pub reason: &'static str,
}

/// How the receiver paused.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PausesMs {
    /// The longest, in milliseconds; the shortest is none.
    pub max: f64,
    /// The mean time between two, in milliseconds.
    pub every: f64,
}

/// What it was measured on and with.
#[derive(Clone, Debug, Serialize)]
pub struct Head {
    /// The cores of the asking and of the answering side; nothing where the system chose.
    pub cores: Option<[usize; 2]>,
    /// How the program was built.
    pub build: Build,
    /// The bounce just before.
    pub bounce_before: BounceOrReason,
    /// Receives of each side.
    pub recv_depth: u8,
    /// Bytes of each request, and of each answer.
    pub bytes: u32,
    /// The timer of both sides.
    pub rnr_timer: RnrTimer,
    /// The receiver's pauses; nothing where it made none.
    pub pauses_ms: Option<PausesMs>,
    /// What the receiver did before each answer, in nanoseconds.
    pub work_ns: u64,
    /// Rounds for each number of connections.
    pub rounds: u32,
    /// How long a batch ran.
    pub batch: BatchLength,
}

impl Head {
    pub(super) fn new(
        plan: &IncastPlan,
        cores: Option<[usize; 2]>,
        bounce_before: BounceOrReason,
    ) -> Head {
        let code = plan.rnr_timer;
        Head {
            cores,
            build: Build::current(),
            bounce_before,
            recv_depth: plan.recv_depth,
            bytes: plan.bytes,
            rnr_timer: RnrTimer {
                code,
                us: rnr_timer_ns(code).unwrap_or(0) as f64 / 1000.0,
                reason: if code == crate::pair::RNR_TIMER {
                    TIMER_REASON
                } else {
                    "as asked for (--rnr-timer)"
                },
            },
            pauses_ms: plan.pauses.map(|pauses| PausesMs {
                max: pauses.max.as_secs_f64() * 1000.0,
                every: pauses.every.as_secs_f64() * 1000.0,
            }),
            work_ns: plan.work.as_nanos() as u64,
            rounds: plan.rounds,
            batch: match plan.limit {
                Limit::Time(time) => BatchLength::Seconds(time.as_secs_f64()),
                Limit::Iterations(requests) => BatchLength::Requests(requests),
            },
        }
    }
}

/// What the figures say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// How often a receiver was not ready although there were credits: must be 0.
    pub rnr_naks_with_credits: u64,
    /// How often without.
    pub rnr_naks_without: u64,
    /// Requests answered with credits.
    pub requests_with_credits: u64,
    /// Requests answered without.
    pub requests_without: u64,
}

/// The whole measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Incast {
    /// Format of this object; rises when the meaning of a member changes.
    pub version: u32,
    /// Always `round-trip`: every time of a request is that from the moment when it was due to its
    /// answer.
    pub way: &'static str,
    /// What it was made on and with.
    #[serde(flatten)]
    pub head: Head,
    /// The bounce just after the run; one that differs from the one before says that the machine
    /// changed underneath.
    pub bounce_after: BounceOrReason,
    /// What the figures say.
    pub verdict: Verdict,
    /// One element for each number of connections.
    pub rows: Vec<Row>,
}

impl Incast {
    /// Puts a measurement together.
    #[must_use]
    pub fn new(head: Head, bounce_after: BounceOrReason, rows: Vec<Row>) -> Incast {
        let sum = |of: fn(&Row) -> u64| rows.iter().map(of).sum();
        Incast {
            version: 1,
            way: "round-trip",
            head,
            bounce_after,
            verdict: Verdict {
                rnr_naks_with_credits: sum(|row| row.on.rnr_naks),
                rnr_naks_without: sum(|row| row.off.rnr_naks),
                requests_with_credits: sum(|row| row.on.requests),
                requests_without: sum(|row| row.off.requests),
            },
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
    match head.cores {
        Some([client, server]) => {
            writeln!(
                out,
                "# cores      asking side {client}, answering side {server}"
            )?;
        }
        None => writeln!(
            out,
            "# cores      one for both sides, as there is no second"
        )?,
    }
    if head.build == Build::Debug {
        writeln!(
            out,
            "# build      debug: not optimised, nothing to compare with"
        )?;
    }
    writeln!(out, "# bounce     {}", head.bounce_before)?;
    write_setting(out, head)?;
    write_columns(out)
}

/// Writes what was done.
fn write_setting(out: &mut impl Write, head: &Head) -> io::Result<()> {
    let Head {
        recv_depth, bytes, ..
    } = head;
    writeln!(
        out,
        "# receives   {recv_depth} at each side, which use one up for each message"
    )?;
    writeln!(
        out,
        "# requests   {bytes} bytes, answered by as many; each connection waits for its answer"
    )?;
    let RnrTimer { code, us, reason } = &head.rnr_timer;
    writeln!(out, "# RNR timer  code {code}, {us} us: {reason}")?;
    match head.pauses_ms {
        Some(PausesMs { max, every }) => write!(
            out,
            "# receiver   pauses at random, up to {max} ms, every {every} ms in the mean"
        )?,
        None => write!(out, "# receiver   does not pause")?,
    }
    writeln!(out, "; {} ns of work for each answer", head.work_ns)?;
    write!(
        out,
        "# rounds     {} for each number of connections, each with a batch of ",
        head.rounds
    )?;
    match head.batch {
        BatchLength::Seconds(seconds) => write!(out, "{seconds} s")?,
        BatchLength::Requests(requests) => write!(out, "{requests} requests")?,
    }
    writeln!(out, " in each mode, in changing order")
}

fn write_columns(out: &mut impl Write) -> io::Result<()> {
    writeln!(
        out,
        "# modes      off: nothing limits the messages under way; bounded: {UNDER_WAY_LINUX} work \
         requests do, as towards a Linux peer; credits: as agreed on"
    )?;
    writeln!(
        out,
        "# times in usec, round trip, medians of the batches; requests/s: median and quartiles of the \
         batches; the rest: sums of all batches"
    )?;
    writeln!(
        out,
        "{:>6} {:>8} {:>11} {:>11} {:>11} {:>9} {:>9} {:>9} {:>10} {:>10} {:>11} {:>10}",
        "#conns",
        "mode",
        "requests/s",
        "p25",
        "p75",
        "t_p50",
        "t_p99",
        "RNR_NAKs",
        "requests",
        "waited_ms",
        "announced",
        "by_CDC"
    )
}

/// Writes one number of connections.
///
/// # Errors
///
/// What `out` says.
pub fn write_row(out: &mut impl Write, row: &Row) -> io::Result<()> {
    let time = |spread: Option<Spread>| match spread {
        Some(spread) => format!("{:.2}", spread.median),
        None => "n/a".to_owned(),
    };
    for mode in Mode::ALL {
        let figures = row.mode(mode);
        let Spread {
            median, p25, p75, ..
        } = figures.requests_per_s;
        write!(
            out,
            "{:>6} {:>8} {median:>11.0} {p25:>11.0} {p75:>11.0} {:>9} {:>9} {:>9} {:>10}",
            row.conns,
            mode.label(),
            time(figures.p50_us),
            time(figures.p99_us),
            figures.rnr_naks,
            figures.requests,
        )?;
        match mode {
            Mode::On => writeln!(
                out,
                " {:>10.1} {:>11} {:>10}",
                figures.credit_waited_ms, figures.announcements, figures.returned_by_cdc
            )?,
            Mode::Off | Mode::Bounded => writeln!(out, " {:>10} {:>11} {:>10}", "-", "-", "-")?,
        }
    }
    Ok(())
}

/// Writes the bounce after the run and the verdict.
///
/// # Errors
///
/// What `out` says.
pub fn write_foot(out: &mut impl Write, incast: &Incast) -> io::Result<()> {
    writeln!(out, "# bounce     {} (after the run)", incast.bounce_after)?;
    let Verdict {
        rnr_naks_with_credits,
        rnr_naks_without,
        requests_with_credits,
        requests_without,
    } = incast.verdict;
    writeln!(
        out,
        "# receiver not ready: {rnr_naks_with_credits} times in {requests_with_credits} requests with \
         credits{}, {rnr_naks_without} times in {requests_without} requests without",
        match rnr_naks_with_credits {
            0 => ", as it must be",
            _ => ", which is a defect",
        }
    )?;
    for row in &incast.rows {
        let conns = match row.conns {
            1 => "1 connection".to_owned(),
            conns => format!("{conns} connections"),
        };
        writeln!(
            out,
            "# {conns}: requests/s with credits are those without times {}, those of bounded times {}",
            words(&row.on_to_off),
            words(&row.on_to_bounded)
        )?;
        if let Some(ratio) = &row.p50_off_to_on {
            writeln!(
                out,
                "# {conns}: median round trips without credits are those with times {}",
                words(ratio)
            )?;
        }
    }
    Ok(())
}

fn words(ratio: &Spread) -> String {
    let Spread {
        median, p25, p75, ..
    } = ratio;
    format!("{median:.3} (quartiles {p25:.3} and {p75:.3})")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(round: u32, mode: Mode, requests_per_s: f64, naks: u64) -> Batch {
        Batch {
            round,
            mode,
            requests: 100,
            requests_per_s,
            p50_us: Some(1.0),
            p99_us: None,
            rnr_naks: RnrNaks {
                by_server: naks,
                by_client: naks,
            },
            credit_waits: 0,
            credit_waited_us: 500.0,
            announcements: 3,
            returned_by_announcement: 9,
            returned_by_cdc: 50,
            pauses: 0,
            paused_us: 0.0,
        }
    }

    fn row() -> Row {
        // The machine is twice as fast in the second round; the ratio does not see it.
        let batches = [(0, 100.0), (1, 200.0)].map(|(round, rate)| {
            [
                batch(round, Mode::Off, rate, 2),
                batch(round, Mode::Bounded, 2.0 * rate, 1),
                batch(round, Mode::On, 3.0 * rate, 0),
            ]
        });
        Row::of(200, batches.concat()).unwrap()
    }

    #[test]
    fn modes_are_compared_within_rounds_and_counts_are_added_up() {
        let row = row();
        assert_eq!((row.on_to_off.min, row.on_to_off.max), (3.0, 3.0));
        assert_eq!(row.on_to_bounded.median, 1.5);
        assert_eq!(row.p50_off_to_on.unwrap().median, 1.0);
        assert_eq!(row.off.rnr_naks, 8);
        assert_eq!(row.on.rnr_naks, 0);
        assert_eq!((row.on.requests, row.on.announcements), (200, 6));
        assert_eq!(row.on.credit_waited_ms, 1.0);
        assert_eq!(row.on.p99_us, None);
        assert_eq!(Row::of(1, vec![batch(0, Mode::On, 1.0, 0)]), None);
    }

    #[test]
    fn the_foot_says_whether_the_receiver_was_ready_and_what_credits_are_worth() {
        let none = || BounceOrReason::NotMeasured {
            reason: "one core".to_owned(),
        };
        let head = Head {
            cores: None,
            build: Build::Release,
            bounce_before: none(),
            recv_depth: 16,
            bytes: 10,
            rnr_timer: RnrTimer {
                code: 5,
                us: 60.0,
                reason: TIMER_REASON,
            },
            pauses_ms: None,
            work_ns: 0,
            rounds: 2,
            batch: BatchLength::Requests(100),
        };
        let incast = Incast::new(head, none(), vec![row()]);
        let mut out = Vec::new();
        write_head(&mut out, &incast.head).unwrap();
        write_row(&mut out, &incast.rows[0]).unwrap();
        write_foot(&mut out, &incast).unwrap();
        let text = String::from_utf8(out).unwrap();
        for part in [
            "# RNR timer  code 5, 60 us: the code is what Linux sets",
            "# receiver   does not pause; 0 ns of work",
            "0 times in 200 requests with credits, as it must be, 8 times in 200 requests without",
            "# 200 connections: requests/s with credits are those without times 3.000",
            "# 200 connections: median round trips without credits are those with times 1.000",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let names = text.lines().find(|line| line.contains("#conns")).unwrap();
        let rows = text
            .lines()
            .filter(|line| !line.trim_start().starts_with('#'));
        for row in rows {
            let columns = |line: &str| line.split_whitespace().count();
            assert_eq!(columns(row), columns(names), "{row}");
        }
    }
}
