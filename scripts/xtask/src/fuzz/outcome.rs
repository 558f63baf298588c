//! What a run of one target amounts to, read from what libFuzzer has said.

use std::fmt;
use std::time::Duration;

/// Lines of the log that a failure shows.
const SHOWN_LINES: usize = 40;

/// The figures of a run, and how it failed if it did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// Name of the target.
    pub target: String,
    /// Inputs tried.
    pub executions: u64,
    /// How long that took.
    pub time: Duration,
    /// Features reached: edges of the code, each counted once for each order of magnitude of its use.
    pub features: u64,
    /// Inputs that together reach them.
    pub inputs: u64,
    /// `None` if everything held.
    pub failure: Option<Failure>,
}

/// An input that did not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// Where libFuzzer has put it; empty if it did not come to that.
    pub input: String,
    /// The end of what was said.
    pub said: String,
}

/// How the program of the targets ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// At its limit.
    Well,
    /// Before it.
    Badly,
}

impl Outcome {
    /// The columns of an outcome.
    pub(crate) const HEAD: &'static str =
        "target            executions       time  exec/s  features  inputs";

    /// Reads the log of a run.
    pub(crate) fn read(target: &str, log: &str, ended: Ended, time: Duration) -> Outcome {
        let after = |line: &str, word: &str| -> Option<u64> {
            let (_, rest) = line.split_once(word)?;
            let end = rest
                .find(|c: char| !c.is_ascii_digit())
                .unwrap_or(rest.len());
            rest[..end].parse().ok()
        };
        let last = |word: &str| log.lines().rev().find_map(|line| after(line, word));
        let stat = last("stat::number_of_executed_units: ");
        let failure = (ended == Ended::Badly).then(|| {
            let lines: Vec<_> = log.lines().collect();
            let written = |line: &&str| line.contains("Test unit written to ");
            let input = lines.iter().rev().copied().find(written);
            let input = input.and_then(|line| line.split_once("written to "));
            Failure {
                input: input.map_or(String::new(), |(_, path)| path.trim().to_owned()),
                said: lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n"),
            }
        });
        Outcome {
            target: target.to_owned(),
            executions: stat.or_else(|| last("#")).unwrap_or(0),
            time,
            features: last(" ft: ").unwrap_or(0),
            inputs: last(" corp: ").unwrap_or(0),
            failure,
        }
    }

    /// What somebody who has to mend it needs.
    pub(crate) fn report(&self) -> String {
        let Some(failure) = &self.failure else {
            return String::new();
        };
        let target = &self.target;
        let mut text = format!("== {target} failed\n{}\n", failure.said);
        if !failure.input.is_empty() {
            let input = &failure.input;
            text.push_str(&format!(
                "== to see it again: cargo xtask fuzz {target} --replay {input}\n\
                 == to keep it: copy that file to dataplane/fuzz/regressions/{target}\n"
            ));
        }
        text
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.time.as_secs_f64();
        let rate = self.executions as f64 / seconds.max(0.001);
        write!(
            f,
            "{:<16} {:>11} {seconds:>8.1} s {rate:>7.0} {:>9} {:>7}",
            self.target, self.executions, self.features, self.inputs
        )?;
        match &self.failure {
            Some(_) => f.write_str("  FAILED"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "INFO: Loaded 1 modules\n#2\tINITED cov: 6 ft: 7 corp: 1/1b exec/s: 0\n\
        #100000\tDONE   cov: 14 ft: 15 corp: 5/29b lim: 985 exec/s: 0 rss: 27Mb\n\
        Done 100000 runs in 1 second(s)\nstat::number_of_executed_units: 100000\n";
    const BAD: &str = "#512\tNEW    cov: 9 ft: 11 corp: 3/9b\nthread panicked\n\
        artifact_prefix='x/'; Test unit written to x/crash-c4d4\nBase64: Zg==\n";

    #[test]
    fn the_figures_are_those_of_the_last_line_that_has_them() {
        let outcome = Outcome::read("wire", GOOD, Ended::Well, Duration::from_secs(4));
        assert_eq!(
            (outcome.executions, outcome.features, outcome.inputs),
            (100_000, 15, 5)
        );
        assert_eq!(outcome.failure, None);
        assert_eq!(outcome.report(), "");
        let line = outcome.to_string();
        assert!(line.contains("4.0 s   25000        15       5"), "{line}");
    }

    #[test]
    fn a_failure_names_its_input_and_how_to_see_it_again() {
        let outcome = Outcome::read("wire", BAD, Ended::Badly, Duration::from_secs(1));
        assert_eq!(outcome.executions, 512);
        let report = outcome.report();
        assert!(report.contains("thread panicked"), "{report}");
        let again = "cargo xtask fuzz wire --replay x/crash-c4d4\n";
        assert!(report.contains(again), "{report}");
    }

    #[test]
    fn a_program_that_did_not_even_start_is_a_failure_without_an_input() {
        let outcome = Outcome::read("wire", "", Ended::Badly, Duration::ZERO);
        assert_eq!(outcome.executions, 0);
        assert!(!outcome.report().contains("--replay"));
    }
}
