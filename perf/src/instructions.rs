//! Instructions of the sending path, counted by valgrind.
//!
//! Times depend on the machine and its moods; the number of instructions does not: two runs of one
//! program give the same number. The program runs itself under callgrind with a workload of
//! [`post_path`](crate::post_path), once with N messages and once with 3N; the difference
//! divided by 2N is the cost of one message, without anything that happens once.
//!
//! Cache hints (CLDEMOTE, PREFETCHW) count as one instruction each. An instruction is no time: a
//! store into a line that another core polls costs more than a hundred in a cache of its own.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use pollux_control::rpc::InlineUse;
use serde::Serialize;
use thiserror::Error;

use crate::modes::{MODES, label};
use crate::own::OwnFolder;
use crate::post_path::{Level, MESSAGE_BYTES, Workload};
use crate::table::Build;

/// Messages of the shorter run: a whole number of turns of every ring on the way, so that work
/// that is due once in a turn is counted in full.
pub const MESSAGES: u64 = 256;

/// Instructions for one message at one level.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LevelCounts {
    /// What was counted.
    pub level: Level,
    /// Nothing inline.
    pub by_reference: f64,
    /// Messages inline, the bytes of the stream by reference.
    pub messages: f64,
    /// Both inline.
    pub all: f64,
}

/// Instructions for one message.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Counts {
    /// What counted, with its version.
    pub tool: String,
    /// How the counted program was built.
    pub build: Build,
    /// Bytes of the stream in each message.
    pub message_bytes: usize,
    /// Messages of the two runs whose difference was taken.
    pub runs: [u64; 2],
    /// From the inside out.
    pub levels: Vec<LevelCounts>,
}

/// Counts, or why there are none.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum CountsOrReason {
    /// They were counted.
    Counted(Counts),
    /// They were not.
    NotCounted {
        /// Why not.
        reason: String,
    },
}

/// Why nothing was counted.
#[derive(Debug, Error)]
pub enum CountError {
    /// The tool is missing.
    #[error("cannot start valgrind ({0}): install it, as root: apt-get install valgrind")]
    NoValgrind(io::Error),
    /// The program does not know its own file.
    #[error("cannot find this program's own file: {0}")]
    NoProgram(io::Error),
    /// No folder for what valgrind writes.
    #[error("no place for what valgrind writes: {0}")]
    Folder(String),
    /// The run failed.
    #[error("valgrind failed ({status}): {output}")]
    Failed {
        /// Its exit status.
        status: std::process::ExitStatus,
        /// The last lines of what it said.
        output: String,
    },
    /// What valgrind wrote cannot be read.
    #[error("cannot read {}: {error}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// What valgrind wrote has no total.
    #[error("valgrind wrote no number of instructions; this version is unknown: {0}")]
    NoTotal(String),
    /// Nothing was counted.
    #[error(
        "valgrind saw no function named {0}: the program's symbols were removed; build it without \
         stripping"
    )]
    NoFunction(&'static str),
}

/// Counts this program's instructions in every mode at both levels.
#[must_use]
pub fn of_this_program() -> CountsOrReason {
    let program = std::env::current_exe().map_err(CountError::NoProgram);
    match program.and_then(|program| counts(&program)) {
        Ok(counts) => CountsOrReason::Counted(counts),
        Err(error) => CountsOrReason::NotCounted {
            reason: error.to_string(),
        },
    }
}

/// Counts the instructions of `program`, a `pollux-perf`, in every mode at both levels.
///
/// # Errors
///
/// [`CountError`].
pub fn counts(program: &Path) -> Result<Counts, CountError> {
    let tool = version()?;
    let mut levels = Vec::with_capacity(Level::ALL.len());
    for level in Level::ALL {
        let mut figures = [0.0; MODES.len()];
        for (figure, mode) in figures.iter_mut().zip(MODES) {
            *figure = per_message(program, (level, mode), MESSAGES, 0)?;
        }
        let [by_reference, messages, all] = figures;
        levels.push(LevelCounts {
            level,
            by_reference,
            messages,
            all,
        });
    }
    Ok(Counts {
        tool,
        build: Build::current(),
        message_bytes: MESSAGE_BYTES,
        runs: [MESSAGES, 3 * MESSAGES],
        levels,
    })
}

/// Instructions for one message: from a run with `messages` and one with three times as many.
/// `idle` connections lie on the worker besides.
///
/// # Errors
///
/// [`CountError`].
pub fn per_message(
    program: &Path,
    (level, mode): (Level, InlineUse),
    messages: u64,
    idle: u16,
) -> Result<f64, CountError> {
    let count = |messages| {
        let workload = Workload {
            level,
            mode,
            messages,
            idle,
        };
        total(program, &workload)
    };
    let (few, many) = (count(messages)?, count(3 * messages)?);
    Ok((many as f64 - few as f64) / (2 * messages) as f64)
}

/// All instructions of the sending path in one run of `program` with `workload`.
///
/// # Errors
///
/// [`CountError`].
pub fn total(program: &Path, workload: &Workload) -> Result<u64, CountError> {
    let folder = OwnFolder::new().map_err(|error| CountError::Folder(format!("{error:#}")))?;
    let path = folder.path().join("callgrind.out");
    let function = workload.level.counted_function();
    let Workload {
        level,
        mode,
        messages,
        idle,
    } = workload;
    let output = Command::new("valgrind")
        .arg("--tool=callgrind")
        .arg(format!("--callgrind-out-file={}", path.display()))
        .arg(format!("--toggle-collect=*{function}*"))
        .arg(program)
        .args(["post-path", &level.to_string(), mode.as_str()])
        .args([&messages.to_string(), "--idle", &idle.to_string()])
        .stdin(Stdio::null())
        .output()
        .map_err(CountError::NoValgrind)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let lines: Vec<&str> = said.lines().rev().take(6).collect();
        return Err(CountError::Failed {
            status: output.status,
            output: lines.into_iter().rev().collect::<Vec<_>>().join("; "),
        });
    }
    let text =
        std::fs::read_to_string(&path).map_err(|error| CountError::Unreadable { path, error })?;
    match parse_total(&text)? {
        0 => Err(CountError::NoFunction(function)),
        total => Ok(total),
    }
}

/// The number of instructions in a file of callgrind's: its first event, `Ir`, in its last line of
/// totals.
fn parse_total(text: &str) -> Result<u64, CountError> {
    let value = |key: &str| text.lines().rev().find_map(|line| line.strip_prefix(key));
    let events = value("events:").unwrap_or_default();
    let totals = value("totals:").or_else(|| value("summary:"));
    let total = totals.and_then(|totals| totals.split_whitespace().next()?.parse().ok());
    match (events.split_whitespace().next(), total) {
        (Some("Ir"), Some(total)) => Ok(total),
        _ => Err(CountError::NoTotal(format!(
            "events `{events}`, totals {totals:?}"
        ))),
    }
}

fn version() -> Result<String, CountError> {
    let mut command = Command::new("valgrind");
    let output = command.arg("--version").stdin(Stdio::null()).output();
    let output = output.map_err(CountError::NoValgrind)?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Writes the counts, each line after `mark`.
///
/// # Errors
///
/// What `out` says.
pub fn write(out: &mut impl Write, mark: &str, counts: &CountsOrReason) -> io::Result<()> {
    let counts = match counts {
        CountsOrReason::Counted(counts) => counts,
        CountsOrReason::NotCounted { reason } => {
            return writeln!(out, "{mark}instructions: n/a: {reason}");
        }
    };
    let build = match counts.build {
        Build::Release => "",
        Build::Debug => "; debug build: not optimised, nothing to compare with",
    };
    writeln!(
        out,
        "{mark}instructions on the sending path for each {}-byte message ({}, callgrind{build}):",
        counts.message_bytes, counts.tool
    )?;
    let [by_reference, messages, all] = MODES.map(label);
    writeln!(
        out,
        "{mark}{:>9}{by_reference:>16}{messages:>16}{all:>16}{:>12}{:>9}",
        "level", "difference", "%"
    )?;
    for LevelCounts {
        level,
        by_reference,
        messages,
        all,
    } in &counts.levels
    {
        let difference = all - by_reference;
        let percent = difference / by_reference * 100.0;
        writeln!(
            out,
            "{mark}{level:>9}{by_reference:>16.1}{messages:>16.1}{all:>16.1}{difference:>+12.1}\
             {percent:>+9.1}"
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_is_read_from_callgrinds_file() {
        let text = "version: 1\nevents: Ir\nsummary: 12\n\nfn=(1) a\n1 12\n\ntotals: 123\n";
        assert_eq!(parse_total(text).unwrap(), 123);
        let only_summary = "events: Ir Dr\nsummary: 12 3\n";
        assert_eq!(parse_total(only_summary).unwrap(), 12);
    }

    #[test]
    fn a_file_without_instructions_is_refused() {
        for text in [
            "",
            "events: Ir\n",
            "events: Dr\ntotals: 5\n",
            "events: Ir\ntotals: x\n",
        ] {
            let error = parse_total(text).unwrap_err();
            assert!(matches!(error, CountError::NoTotal(_)), "{text}");
        }
    }

    #[test]
    fn counts_are_written_with_their_difference_and_a_reason_without() {
        let counts = Counts {
            tool: "valgrind-0".to_owned(),
            build: Build::Release,
            message_bytes: 64,
            runs: [1, 3],
            levels: vec![LevelCounts {
                level: Level::Worker,
                by_reference: 1000.0,
                messages: 950.0,
                all: 900.0,
            }],
        };
        let text = |counts: &CountsOrReason| {
            let mut out = Vec::new();
            write(&mut out, "# ", counts).unwrap();
            String::from_utf8(out).unwrap()
        };
        let written = text(&CountsOrReason::Counted(counts));
        assert!(
            written.lines().all(|line| line.starts_with("# ")),
            "{written}"
        );
        let last: Vec<&str> = written.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(
            last[1..],
            ["worker", "1000.0", "950.0", "900.0", "-100.0", "-10.0"]
        );
        let reason = "no valgrind".to_owned();
        let written = text(&CountsOrReason::NotCounted { reason });
        assert_eq!(written, "# instructions: n/a: no valgrind\n");
    }
}
