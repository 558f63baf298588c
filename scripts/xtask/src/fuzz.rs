//! Fuzz runs: builds the targets with coverage counters and lets libFuzzer choose inputs for them.
//!
//! The targets are in `dataplane/fuzz`, whose README says more. What a run finds goes below the target
//! directory: inputs that reached something new into `fuzz/corpus`, those that failed into
//! `fuzz/failures`, what libFuzzer said into `fuzz/logs`.

mod outcome;

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::metadata::Metadata;
use crate::process::{cargo, find};
use outcome::Ended;
pub(crate) use outcome::Outcome;

/// The package, below the root.
const PACKAGE: &str = "dataplane/fuzz";
/// The compiler that libFuzzer is built with, and the Debian package that brings it.
const COMPILER: (&str, &str) = ("c++", "g++");
/// How long one input may take, in seconds; all but the largest take less than a millisecond.
const INPUT_SECONDS_MAX: u32 = 30;
/// Most memory that a run may use, in MiB; a target that needs more holds what a stranger sent.
const MEMORY_MIB_MAX: u32 = 1024;
/// Largest number of files that a target's part of the corpus may have.
const CORPUS_FILES_MAX: usize = 200;

/// When a run of one target ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// After this number of executions.
    Runs(u64),
    /// After this time.
    Time(Duration),
}

/// How the targets are built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Build {
    /// As `cargo build` does, on top of what it has built already: seconds to build, slow to run.
    Quick,
    /// Optimised, with all assertions.
    Fast,
}

/// A target, as the program lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Target {
    name: String,
    /// Longest input to be tried, in bytes.
    input_bytes_max: u32,
}

/// What to run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Names of targets; none means all.
    pub targets: Vec<String>,
    /// When each ends.
    pub limit: Limit,
    /// How many run at a time.
    pub jobs: usize,
    /// Where the choices of libFuzzer start; `None` leaves that to it.
    pub seed: Option<u32>,
    /// How they are built.
    pub build: Build,
}

/// The program and the folders of one build.
struct Bench {
    program: PathBuf,
    package: PathBuf,
    output: PathBuf,
}

/// Whether this machine can build libFuzzer; why not, otherwise.
pub(crate) fn missing() -> Option<String> {
    let (compiler, package) = COMPILER;
    find(compiler).is_none().then(|| {
        format!("fuzzing: no {compiler} to build libFuzzer with (Debian package {package})")
    })
}

/// Runs the planned targets; an error if one of them failed.
pub(crate) fn run(root: &Path, plan: &Plan) -> Result<Vec<Outcome>> {
    let bench = Bench::build(root, plan.build)?;
    let targets = bench.targets(&plan.targets)?;
    let waiting = Mutex::new(VecDeque::from(targets));
    let done = Mutex::new(Vec::new());
    println!("  {}", Outcome::HEAD);
    thread::scope(|scope| {
        for _ in 0..plan.jobs.max(1) {
            scope.spawn(|| {
                while let Some(target) = locked(&waiting).pop_front() {
                    let outcome = bench.fuzz(&target, plan);
                    if let Ok(outcome) = &outcome {
                        println!("  {outcome}");
                    }
                    locked(&done).push(outcome);
                }
            });
        }
    });
    let done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    let outcomes = done.into_iter().collect::<Result<Vec<_>>>()?;
    let failed: Vec<_> = outcomes.iter().filter(|o| o.failure.is_some()).collect();
    for outcome in &failed {
        print!("{}", outcome.report());
    }
    ensure!(
        failed.is_empty(),
        "{} of {} targets failed",
        failed.len(),
        outcomes.len()
    );
    Ok(outcomes)
}

/// Runs inputs again, each once, and shows what libFuzzer and the target say.
pub(crate) fn replay(root: &Path, target: &str, inputs: &[PathBuf]) -> Result<()> {
    let bench = Bench::build(root, Build::Fast)?;
    bench.targets(&[target.to_owned()])?;
    let status = bench
        .command(
            target,
            &inputs.iter().map(OsString::from).collect::<Vec<_>>(),
        )
        .env("RUST_BACKTRACE", "1")
        .status()
        .with_context(|| format!("cannot start {}", bench.program.display()))?;
    ensure!(status.success(), "{target} failed: {status}");
    Ok(())
}

/// Makes the corpus of the repository anew from all that was found: a small set of inputs that reaches
/// every place which they reach together, and as many more as there is room for, the shortest first,
/// of those that reach one another number of times.
pub(crate) fn minimise(root: &Path, targets: &[String]) -> Result<()> {
    let bench = Bench::build(root, Build::Fast)?;
    for Target { name: target, .. } in bench.targets(targets)? {
        let places = bench.merge(&target, "places", &["-use_counters=0"])?;
        let counts = bench.merge(&target, "counts", &[])?;
        ensure!(
            places.len() <= CORPUS_FILES_MAX,
            "{target} needs {} files, more than {CORPUS_FILES_MAX}: make its inputs shorter",
            places.len()
        );
        let chosen = with_shortest(places, counts, CORPUS_FILES_MAX);
        let bytes: u64 = chosen.values().map(|file| file.bytes).sum();
        println!("  {target:<16} {:>5} files {bytes:>8} bytes", chosen.len());
        let kept = bench.package.join("corpus").join(&target);
        fs::remove_dir_all(&kept)?;
        fs::create_dir_all(&kept)?;
        for (name, file) in chosen {
            fs::copy(&file.path, kept.join(name))?;
        }
    }
    Ok(())
}

/// An input on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Input {
    path: PathBuf,
    bytes: u64,
}

/// All of `first`, and of `more` the shortest, up to `limit` in all. By the names of the files, which
/// libFuzzer makes of their contents.
fn with_shortest(
    first: BTreeMap<OsString, Input>,
    more: BTreeMap<OsString, Input>,
    limit: usize,
) -> BTreeMap<OsString, Input> {
    let mut chosen = first;
    let mut rest: Vec<_> = more.into_iter().collect();
    rest.sort_by_key(|(name, file)| (file.bytes, name.clone()));
    for (name, file) in rest {
        if chosen.len() >= limit {
            break;
        }
        chosen.insert(name, file);
    }
    chosen
}

impl Bench {
    /// Builds the program.
    fn build(root: &Path, build: Build) -> Result<Bench> {
        if let Some(reason) = missing() {
            bail!("{reason}");
        }
        let (profile, folder) = match build {
            Build::Quick => ("dev", "debug"),
            Build::Fast => ("fuzz", "fuzz"),
        };
        let arguments = [
            "build",
            "--locked",
            "--workspace",
            "--features",
            "pollux-fuzz/libfuzzer",
            "--bin",
            "pollux-fuzz",
            "--profile",
            profile,
        ];
        println!("  $ cargo {} (instrumented)", arguments.join(" "));
        let status = Command::new(cargo())
            .current_dir(root)
            .args(arguments)
            .env(
                "RUSTC_WORKSPACE_WRAPPER",
                root.join("scripts/instrument.sh"),
            )
            .stdin(Stdio::null())
            .status()
            .context("cannot start cargo")?;
        ensure!(status.success(), "the targets do not build: {status}");
        let target_directory = Metadata::read(root)?.target_directory;
        Ok(Bench {
            program: target_directory.join(folder).join("pollux-fuzz"),
            package: root.join(PACKAGE),
            output: target_directory.join("fuzzing"),
        })
    }

    /// The targets asked for, or all: the program knows them.
    fn targets(&self, asked: &[String]) -> Result<Vec<Target>> {
        let output = self
            .command("list", &[])
            .output()
            .with_context(|| format!("cannot start {}", self.program.display()))?;
        let known = listed(&String::from_utf8_lossy(&output.stdout));
        ensure!(
            !known.is_empty(),
            "{} lists no targets",
            self.program.display()
        );
        choose(known, asked)
    }

    /// The program with libFuzzer's arguments for a target.
    fn command(&self, target: &str, arguments: &[OsString]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(arguments)
            .args(["-ignore_remaining_args=1", target])
            .stdin(Stdio::null());
        command
    }

    /// The smallest set of the corpus and of what runs have found that reaches all that they reach, in
    /// the sense of `options`.
    fn merge(
        &self,
        target: &str,
        what: &str,
        options: &[&str],
    ) -> Result<BTreeMap<OsString, Input>> {
        let merged = self.output.join("merged").join(target).join(what);
        if merged.exists() {
            fs::remove_dir_all(&merged)?;
        }
        let found = self.output.join("corpus").join(target);
        for folder in [&merged, &found] {
            fs::create_dir_all(folder)
                .with_context(|| format!("cannot make {}", folder.display()))?;
        }
        let kept = self.package.join("corpus").join(target);
        let mut arguments: Vec<OsString> = vec!["-set_cover_merge=1".into()];
        arguments.extend(options.iter().map(OsString::from));
        arguments.extend([&merged, &kept, &found].map(OsString::from));
        let status = self
            .command(target, &arguments)
            .stdout(Stdio::null())
            .stderr(self.log(&format!("{target}.merge"))?)
            .status()
            .with_context(|| format!("cannot start {}", self.program.display()))?;
        ensure!(
            status.success(),
            "the corpus of {target} cannot be merged: {status}"
        );
        inputs(&merged)
    }

    /// A fresh file for what libFuzzer says.
    fn log(&self, name: &str) -> Result<File> {
        let folder = self.output.join("logs");
        fs::create_dir_all(&folder)?;
        let path = folder.join(format!("{name}.log"));
        File::create(&path).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Runs one target to its limit.
    fn fuzz(&self, target: &Target, plan: &Plan) -> Result<Outcome> {
        let Target {
            name: target,
            input_bytes_max,
        } = target;
        let found = match plan.build {
            Build::Fast => self.output.join("corpus").join(target),
            // From nothing but what the repository has, each time.
            Build::Quick => self.output.join("quick").join(target),
        };
        if plan.build == Build::Quick && found.exists() {
            fs::remove_dir_all(&found)?;
        }
        let failures = self.output.join("failures").join(target);
        for folder in [&found, &failures] {
            fs::create_dir_all(folder)
                .with_context(|| format!("cannot make {}", folder.display()))?;
        }
        let mut arguments: Vec<OsString> = vec![
            match plan.limit {
                Limit::Runs(runs) => format!("-runs={runs}"),
                Limit::Time(time) => format!("-max_total_time={}", time.as_secs().max(1)),
            }
            .into(),
            format!("-max_len={input_bytes_max}").into(),
            format!("-timeout={INPUT_SECONDS_MAX}").into(),
            format!("-rss_limit_mb={MEMORY_MIB_MAX}").into(),
            format!("-artifact_prefix={}/", failures.display()).into(),
            "-print_final_stats=1".into(),
            "-reload=0".into(),
        ];
        arguments.extend(plan.seed.map(|seed| format!("-seed={seed}").into()));
        let dictionary = self
            .package
            .join("dictionaries")
            .join(format!("{target}.dict"));
        if dictionary.exists() {
            arguments.push(format!("-dict={}", dictionary.display()).into());
        }
        arguments.push(found.into());
        for committed in ["corpus", "regressions"] {
            let folder = self.package.join(committed).join(target);
            if folder.exists() {
                arguments.push(folder.into());
            }
        }
        let begun = Instant::now();
        let status = self
            .command(target, &arguments)
            .env("RUST_BACKTRACE", "1")
            .stdout(Stdio::null())
            .stderr(self.log(target)?)
            .status()
            .with_context(|| format!("cannot start {}", self.program.display()))?;
        let time = begun.elapsed();
        let log = self.output.join("logs").join(format!("{target}.log"));
        let said = String::from_utf8_lossy(
            &fs::read(&log).with_context(|| format!("cannot read {}", log.display()))?,
        )
        .into_owned();
        let ended = if status.success() {
            Ended::Well
        } else {
            Ended::Badly
        };
        Ok(Outcome::read(target, &said, ended, time))
    }
}

/// The targets of a list: a name and a number on each line.
fn listed(text: &str) -> Vec<Target> {
    let target = |line: &str| {
        let (name, bytes) = line.split_once(' ')?;
        Some(Target {
            name: name.to_owned(),
            input_bytes_max: bytes.trim().parse().ok()?,
        })
    };
    text.lines().filter_map(target).collect()
}

/// Those of `known` that were asked for, in the order asked; all if none was.
fn choose(known: Vec<Target>, asked: &[String]) -> Result<Vec<Target>> {
    if asked.is_empty() {
        return Ok(known);
    }
    let find = |name: &String| {
        let found = known.iter().find(|target| target.name == *name).cloned();
        found.with_context(|| {
            let names: Vec<_> = known.iter().map(|target| target.name.as_str()).collect();
            format!(
                "no target is named `{name}`; there are {}",
                names.join(", ")
            )
        })
    };
    asked.iter().map(find).collect()
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The files of a folder by their names.
fn inputs(folder: &Path) -> Result<BTreeMap<OsString, Input>> {
    let mut inputs = BTreeMap::new();
    for entry in
        fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?
    {
        let entry = entry?;
        let (path, bytes) = (entry.path(), entry.metadata()?.len());
        inputs.insert(entry.file_name(), Input { path, bytes });
    }
    Ok(inputs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_corpus_holds_what_it_needs_and_the_shortest_of_the_rest() {
        let set = |files: &[(&str, u64)]| -> BTreeMap<OsString, Input> {
            let input = |(name, bytes): &(&str, u64)| {
                let path = PathBuf::from(name);
                (
                    (*name).into(),
                    Input {
                        path,
                        bytes: *bytes,
                    },
                )
            };
            files.iter().map(input).collect()
        };
        let needed = set(&[("a", 900), ("b", 1)]);
        let more = set(&[("b", 1), ("c", 7), ("d", 3), ("e", 5)]);
        let chosen = with_shortest(needed.clone(), more.clone(), 4);
        assert_eq!(chosen, set(&[("a", 900), ("b", 1), ("d", 3), ("e", 5)]));
        assert_eq!(with_shortest(needed.clone(), more, 1), needed);
    }

    #[test]
    fn targets_are_chosen_by_name_in_the_order_asked() {
        let known = || listed("wire-clc 1100\nllc 400\n\nnoise\n");
        let names = |targets: Vec<Target>| -> Vec<String> {
            targets.into_iter().map(|target| target.name).collect()
        };
        assert_eq!(names(choose(known(), &[]).unwrap()), ["wire-clc", "llc"]);
        let asked = ["llc".to_owned(), "wire-clc".to_owned()];
        assert_eq!(names(choose(known(), &asked).unwrap()), asked);
        let error = choose(known(), &["lcl".to_owned()])
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("`lcl`") && error.contains("wire-clc, llc"),
            "{error}"
        );
    }
}
