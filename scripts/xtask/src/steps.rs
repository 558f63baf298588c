//! The steps of the continuous integration, in order, with their times.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::metadata::Metadata;
use crate::process::{self, cargo, find, in_ci, run_tests};
use crate::programs::{self, Skips};
use crate::tally::Tally;
use crate::{command_names, fuzz, licences, tidy, vm};

/// One step: a name for the command line and the log, and what it does.
pub(crate) struct Step {
    name: &'static str,
    about: &'static str,
    part: Part,
    run: fn(&mut Run) -> Result<()>,
}

/// Which of the two kinds of steps one is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Looks at the sources only.
    Check,
    /// Runs what was built.
    Test,
}

/// The whole list. The cheap checks come first, so that a slip shows up within seconds; the tests
/// come last, so that their count is the last thing that is printed.
const STEPS: &[Step] = &[
    Step {
        name: "setup",
        about: "programs that tests start (installed if root)",
        part: Part::Test,
        run: setup,
    },
    Step {
        name: "fmt",
        about: "formatting",
        part: Part::Check,
        run: fmt,
    },
    Step {
        name: "tidy",
        about: "house rules",
        part: Part::Check,
        run: tidy_step,
    },
    Step {
        name: "licences",
        about: "licences of dependencies",
        part: Part::Check,
        run: licences,
    },
    Step {
        name: "clippy",
        about: "lints, warnings are errors",
        part: Part::Check,
        run: clippy,
    },
    Step {
        name: "build",
        about: "programs and tests",
        part: Part::Test,
        run: build,
    },
    Step {
        name: "fuzz",
        about: "every fuzz target for a short time",
        part: Part::Test,
        run: fuzz_step,
    },
    Step {
        name: "end-to-end",
        about: "the programs, as an operator starts them",
        part: Part::Test,
        run: end_to_end,
    },
    Step {
        name: "sim",
        about: "20,000 simulated worlds; planted faults are found",
        part: Part::Test,
        run: sim,
    },
    Step {
        name: "vm",
        about: "scenarios in virtual machines with RDMA and SMC",
        part: Part::Test,
        run: vm_step,
    },
    Step {
        name: "doctests",
        about: "examples in the documentation",
        part: Part::Test,
        run: docs,
    },
    Step {
        name: "tests",
        about: "every other test",
        part: Part::Test,
        run: tests_step,
    },
];

/// A program run as an operator would start it. It holds when its exit status is `status`.
struct EndToEnd {
    name: &'static str,
    /// Name of the executable in the folder of built programs.
    program: &'static str,
    arguments: &'static [&'static str],
    status: i32,
}

/// What the end-to-end step runs, in order. A new program adds its lines here.
const END_TO_END: &[EndToEnd] = &[
    EndToEnd {
        name: "pollux-perf measures the bounce of a line",
        program: "pollux-perf",
        arguments: &["bounce", "--lines", "4", "--json"],
        status: 0,
    },
    EndToEnd {
        name: "pollux-perf refuses to bounce a line within one core",
        program: "pollux-perf",
        arguments: &["bounce", "--cores", "0,0"],
        status: 1,
    },
];

/// What one run knows and has counted so far.
struct Run {
    root: PathBuf,
    skips: Skips,
    tally: Tally,
}

impl Run {
    /// Leaves out a step, which the continuous integration may not.
    fn skip(&mut self, reason: String) -> Result<()> {
        if in_ci() {
            bail!("CI is set, so nothing may be skipped, but: {reason}");
        }
        println!("  skipped: {reason}");
        self.skips.reasons.push(reason);
        Ok(())
    }
}

/// Every step.
pub(crate) fn all() -> Vec<&'static Step> {
    STEPS.iter().collect()
}

/// The steps that run something, without the checks of the sources.
pub(crate) fn tests() -> Vec<&'static Step> {
    STEPS
        .iter()
        .filter(|step| step.part == Part::Test)
        .collect()
}

/// The steps with these names, in the order of the list. An unknown name is an error.
pub(crate) fn named(names: &[String]) -> Result<Vec<&'static Step>> {
    for name in names {
        if !STEPS.iter().any(|step| step.name == name) {
            let known: Vec<_> = STEPS.iter().map(|step| step.name).collect();
            bail!("no step is named `{name}`; there are {}", known.join(", "));
        }
    }
    Ok(STEPS
        .iter()
        .filter(|step| names.iter().any(|name| name == step.name))
        .collect())
}

/// Prints the names and what each step does.
pub(crate) fn print_list() {
    for step in STEPS {
        println!("{:<12} {}", step.name, step.about);
    }
}

/// Runs the steps until one fails; prints the time of each, and at the very end the count of the
/// tests that ran.
pub(crate) fn run(root: &Path, steps: &[&Step]) -> Result<()> {
    let mut run = Run {
        root: root.to_owned(),
        skips: Skips::default(),
        tally: Tally::default(),
    };
    let started = Instant::now();
    let mut times = Vec::new();
    let mut verdict = Ok(());
    for step in steps {
        println!("== {}: {}", step.name, step.about);
        let begun = Instant::now();
        verdict = (step.run)(&mut run);
        times.push((step.name, begun.elapsed()));
        if let Err(error) = verdict {
            verdict = Err(error.context(format!(
                "step {0} failed; to repeat it alone: cargo xtask ci {0}",
                step.name
            )));
            break;
        }
    }
    if verdict.is_ok() && in_ci() && run.tally.skipped > 0 {
        verdict = Err(anyhow::anyhow!(
            "CI is set, but {} tests were skipped",
            run.tally.skipped
        ));
    }
    println!("== times");
    for (name, time) in &times {
        println!("  {name:<12} {}", seconds(*time));
    }
    println!("  {:<12} {}", "all", seconds(started.elapsed()));
    for reason in &run.skips.reasons {
        println!("  skipped: {reason}");
    }
    if let Err(error) = &verdict {
        println!("  failed: {error:#}");
    }
    if steps.iter().any(|step| step.name == "tests") {
        println!("{}", run.tally);
    }
    verdict
}

fn seconds(time: Duration) -> String {
    format!("{:7.1} s", time.as_secs_f64())
}

fn setup(run: &mut Run) -> Result<()> {
    run.skips = programs::setup()?;
    Ok(())
}

fn fmt(here: &mut Run) -> Result<()> {
    run_cargo(here, &["fmt", "--all", "--", "--check", "-l"])
}

fn tidy_step(run: &mut Run) -> Result<()> {
    tidy::check(&run.root, &command_names())
}

fn licences(run: &mut Run) -> Result<()> {
    licences::check(&run.root)
}

fn clippy(here: &mut Run) -> Result<()> {
    let what = [
        "clippy",
        "--workspace",
        "--all-targets",
        "--locked",
        "--",
        "-D",
        "warnings",
    ];
    run_cargo(here, &what)
}

fn build(here: &mut Run) -> Result<()> {
    run_cargo(here, &["build", "--workspace", "--all-targets", "--locked"])
}

fn run_cargo(here: &Run, arguments: &[&str]) -> Result<()> {
    process::run(&here.root, &cargo(), arguments)
}

/// Runs the built programs; each counts as one test.
fn end_to_end(run: &mut Run) -> Result<()> {
    let folder = Metadata::read(&run.root)?.target_directory.join("debug");
    let mut failures = Vec::new();
    for test in END_TO_END {
        match end_to_end_one(&folder, test) {
            Ok(()) => {
                println!("  ok: {}", test.name);
                run.tally.passed += 1;
            }
            Err(error) => {
                println!("  FAILED: {}: {error:#}", test.name);
                run.tally.failed += 1;
                failures.push(test.name);
            }
        }
    }
    if failures.is_empty() {
        Ok(())
    } else {
        bail!("{}", failures.join("; "))
    }
}

fn end_to_end_one(folder: &Path, test: &EndToEnd) -> Result<()> {
    let program = folder.join(test.program);
    let output = std::process::Command::new(&program)
        .args(test.arguments)
        .stdin(std::process::Stdio::null())
        .output()
        .with_context(|| format!("cannot start {}: run step build first", program.display()))?;
    if output.status.code() != Some(test.status) {
        bail!(
            "{} {} ended with {} instead of {}\n{}{}",
            test.program,
            test.arguments.join(" "),
            output.status,
            test.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
    }
    Ok(())
}

/// A swarm of simulated worlds, then every planted fault in as many worlds as it takes; each counts
/// as one test.
fn sim(run: &mut Run) -> Result<()> {
    let parts: [&[&str]; 2] = [&["--worlds", "20000"], &["--mutations"]];
    let mut verdict = Ok(());
    for arguments in parts {
        match swarm(&run.root, arguments) {
            Ok(()) => run.tally.passed += 1,
            Err(error) => {
                run.tally.failed += 1;
                verdict = Err(error);
            }
        }
    }
    verdict
}

/// Runs the simulator with these arguments. Built with its own profile: as fast as a release and
/// with every assertion on. One build does for the swarm and for planted faults, which only add a
/// question to the places where they can be planted.
pub(crate) fn swarm(root: &Path, arguments: &[&str]) -> Result<()> {
    let mut line = vec![
        "run",
        "--quiet",
        "--locked",
        "--profile",
        "sim",
        "--package",
        "pollux-sim",
        "--features",
        "planted",
        "--",
    ];
    line.extend(arguments);
    process::run(root, &cargo(), &line)
}

/// How long each fuzz target runs; libFuzzer ends in the second after.
const FUZZ_SECONDS: u64 = 1;
/// Where libFuzzer's choices start, so that this step tries the same inputs on every machine, as far as
/// it gets; to search is the business of long runs.
const FUZZ_SEED: u32 = 1;

/// Each target counts as one test. Where libFuzzer cannot be built they all count as skipped.
fn fuzz_step(run: &mut Run) -> Result<()> {
    if let Some(reason) = fuzz::missing() {
        return run.skip(reason);
    }
    let plan = fuzz::Plan {
        targets: Vec::new(),
        limit: fuzz::Limit::Time(Duration::from_secs(FUZZ_SECONDS)),
        jobs: std::thread::available_parallelism().map_or(1, usize::from),
        seed: Some(FUZZ_SEED),
        build: fuzz::Build::Quick,
    };
    let outcomes = fuzz::run(&run.root, &plan);
    match &outcomes {
        Ok(outcomes) => run.tally.passed += outcomes.len() as u64,
        Err(_) => run.tally.failed += 1,
    }
    outcomes.map(|_| ())
}

/// Each scenario counts as one test. Where there can be no virtual machines they count as skipped.
fn vm_step(run: &mut Run) -> Result<()> {
    if let Some(reason) = vm::missing() {
        return run.skip(reason);
    }
    let plan = vm::Plan {
        scenarios: Vec::new(),
        limit: None,
        profile: None,
        logs: vm::Logs::Remove,
        temporary: vm::Temporary::Ignore,
    };
    let count = match vm::run(&run.root, &plan) {
        Ok(count) => count,
        Err(error) => {
            run.tally.failed += 1;
            return Err(error);
        }
    };
    run.tally.passed += count.passed;
    run.tally.failed += count.failed;
    if count.failed > 0 {
        bail!("{} scenarios failed", count.failed);
    }
    Ok(())
}

fn docs(run: &mut Run) -> Result<()> {
    count(run, &["test", "--workspace", "--doc", "--locked"])
}

/// With nextest where it is installed (a process for each test, and one that hangs is ended),
/// with plain cargo otherwise.
fn tests_step(run: &mut Run) -> Result<()> {
    let marks = run.skips.marks.clone();
    let arguments = if find("cargo-nextest").is_some() {
        nextest_arguments(&marks)
    } else {
        cargo_test_arguments(&marks)
    };
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    count(run, &arguments)
}

fn nextest_arguments(marks: &[&str]) -> Vec<String> {
    let mut arguments: Vec<String> = [
        "nextest",
        "run",
        "--workspace",
        "--locked",
        "--no-fail-fast",
        "--config-file",
        "scripts/nextest.toml",
    ]
    .map(String::from)
    .to_vec();
    if !marks.is_empty() {
        let left_out: Vec<_> = marks.iter().map(|mark| format!("test({mark})")).collect();
        arguments.push("-E".to_owned());
        arguments.push(format!("not ({})", left_out.join(" + ")));
    }
    arguments
}

fn cargo_test_arguments(marks: &[&str]) -> Vec<String> {
    let mut arguments: Vec<String> = [
        "test",
        "--workspace",
        "--all-targets",
        "--locked",
        "--no-fail-fast",
        "--",
    ]
    .map(String::from)
    .to_vec();
    for mark in marks {
        arguments.extend(["--skip".to_owned(), (*mark).to_owned()]);
    }
    arguments
}

fn count(run: &mut Run, arguments: &[&str]) -> Result<()> {
    let (tally, verdict) = run_tests(&run.root, &cargo(), arguments)?;
    run.tally = run.tally.and(tally);
    verdict
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tests_come_last() {
        assert_eq!(STEPS.last().unwrap().name, "tests");
    }

    #[test]
    fn chosen_steps_keep_the_order_of_the_list() {
        let chosen = named(&["tests".to_owned(), "fmt".to_owned()]).unwrap();
        assert_eq!(
            chosen.iter().map(|step| step.name).collect::<Vec<_>>(),
            ["fmt", "tests"]
        );
    }

    #[test]
    fn an_unknown_step_is_refused_with_the_known_ones() {
        let error = named(&["format".to_owned()]).err().unwrap().to_string();
        assert!(
            error.contains("`format`") && error.contains("fmt, tidy"),
            "{error}"
        );
    }

    #[test]
    fn marks_become_filters_of_both_runners() {
        let nextest = nextest_arguments(&["needs_redis", "needs_root"]);
        assert_eq!(
            nextest.last().unwrap(),
            "not (test(needs_redis) + test(needs_root))"
        );
        let plain = cargo_test_arguments(&["needs_redis"]);
        assert_eq!(plain[plain.len() - 2..], ["--skip", "needs_redis"]);
    }

    #[test]
    fn nothing_is_filtered_when_nothing_is_missing() {
        assert!(!nextest_arguments(&[]).contains(&"-E".to_owned()));
        assert_eq!(cargo_test_arguments(&[]).last().unwrap(), "--");
    }
}
