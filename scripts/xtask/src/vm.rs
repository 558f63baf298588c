//! Scenarios in virtual machines that have a real kernel's RDMA and SMC, on a machine that has
//! neither: one or two guests under QEMU's emulation, with a link between them.
//!
//! The scenarios are in `scripts/vm`, whose README says how to write one and how to look into one that
//! failed. What the guests are made of goes below the target directory into `vm/guest`, logs into
//! `vm/runs`.

mod bench;
mod built;
mod cpio;
mod debian;
mod elf;
mod image;
mod machine;
mod modules;
mod scenario;
mod traces;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::metadata::Metadata;
use crate::process::find;
use bench::{Bench, Order, Said, verdict};
use debian::{Guest, remove};
use machine::{Machine, News, PANIC, QEMU};
use scenario::{End, HOSTS, Scenario};
use traces::Before;

pub(crate) use traces::Temporary;

/// The scenarios, below the root.
const FOLDER: &str = "scripts/vm";
/// Programs without which there are no guests, and the Debian packages that bring them.
const TOOLS: &[(&str, &str)] = &[
    QEMU,
    ("apt-get", "apt"),
    ("dpkg-deb", "dpkg"),
    ("tar", "tar"),
    ("xz", "xz-utils"),
    ("setpriv", "util-linux"),
];
/// Time in which every guest is up. On an idle machine it takes about five seconds.
const BOOT: Duration = Duration::from_secs(120);
/// How often a scenario is run whose guests the emulator breaks, until that counts as a failure.
const RUNS: u32 = 4;
/// How many lines of each log are shown of a scenario that failed.
const LINES_SHOWN: usize = 30;

/// What to run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Names of scenarios; none means all.
    pub scenarios: Vec<String>,
    /// Instead of the limits that the scenarios have.
    pub limit: Option<Duration>,
    /// Cargo's profile for what it builds, instead of those that the scenarios have.
    pub profile: Option<String>,
    /// What becomes of the logs of scenarios that held.
    pub logs: Logs,
    /// Whether temporary files that were not there before count as a failure.
    pub temporary: Temporary,
}

/// What becomes of the logs of a scenario that held. Those of one that failed always stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Logs {
    /// They are removed.
    Remove,
    /// They stay until it runs again.
    Keep,
}

/// How many scenarios held and how many did not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    /// Held.
    pub passed: u64,
    /// Did not.
    pub failed: u64,
}

/// Whether this machine can run guests; why not, otherwise.
pub(crate) fn missing() -> Option<String> {
    shortage(std::env::consts::ARCH, |tool| find(tool).is_some())
}

fn shortage(architecture: &str, is_there: impl Fn(&str) -> bool) -> Option<String> {
    if architecture != "x86_64" {
        return Some(format!(
            "virtual machines: guests are x86_64, this machine is {architecture}"
        ));
    }
    let absent: Vec<_> = TOOLS.iter().filter(|(tool, _)| !is_there(tool)).collect();
    if absent.is_empty() {
        return None;
    }
    let tools: Vec<_> = absent.iter().map(|(tool, _)| *tool).collect();
    let packages: Vec<_> = absent.iter().map(|(_, package)| *package).collect();
    Some(format!(
        "virtual machines: no {} (Debian packages: {})",
        tools.join(", "),
        packages.join(" ")
    ))
}

/// Prints the scenarios with what they need.
pub(crate) fn print_list(root: &Path) -> Result<()> {
    for scenario in scenario::all(&root.join(FOLDER))? {
        let hosts = match scenario.ends.len() {
            1 => "1 host ",
            _ => "2 hosts",
        };
        println!("{:<16} {hosts} {}", scenario.name, scenario.about);
    }
    Ok(())
}

/// Runs the planned scenarios, one after the other, and prints how each went.
pub(crate) fn run(root: &Path, plan: &Plan) -> Result<Count> {
    if let Some(reason) = missing() {
        bail!("{reason}");
    }
    let folder = root.join(FOLDER);
    let mut scenarios = scenario::choose(scenario::all(&folder)?, &plan.scenarios)?;
    if let Some(profile) = &plan.profile {
        for scenario in &mut scenarios {
            scenario.profile.clone_from(profile);
        }
    }
    let before = Before::look(root, plan.temporary)?;
    let output = Metadata::read(root)?.target_directory.join("vm");
    let packages = packages(&folder.join("packages"))?;
    let runs = Runs {
        root,
        plan,
        guest: debian::guest(&output.join("guest"), &packages)?,
        output: output.join("runs"),
    };
    println!("  guests run Linux {}", runs.guest.version);
    let mut count = Count::default();
    for scenario in &scenarios {
        match runs.one(scenario) {
            Ok(()) => count.passed += 1,
            Err(error) => {
                count.failed += 1;
                println!("  FAILED: {}: {error:#}", scenario.name);
            }
        }
    }
    before.compare(&runs.output)?;
    Ok(count)
}

/// The names of packages in a file, without remarks.
fn packages(path: &Path) -> Result<Vec<String>> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let names = text.lines().map(str::trim);
    let names = names.filter(|line| !line.is_empty() && !line.starts_with('#'));
    Ok(names.map(str::to_owned).collect())
}

/// What all scenarios of a run have in common.
struct Runs<'a> {
    root: &'a Path,
    plan: &'a Plan,
    guest: Guest,
    /// A folder for each scenario's logs goes here.
    output: PathBuf,
}

/// How a scenario went.
struct Outcome {
    ends: Vec<End>,
    /// Until all guests were up; nothing if they never were.
    boot: Option<Duration>,
    whole: Duration,
}

impl Runs<'_> {
    fn one(&self, scenario: &Scenario) -> Result<()> {
        let logs = self.output.join(&scenario.name);
        remove(&logs)?;
        fs::create_dir_all(&logs).with_context(|| format!("cannot make {}", logs.display()))?;
        println!("  {}: {}", scenario.name, scenario.about);
        let built = built::build(self.root, scenario)?;
        let image = logs.join("image");
        let scripts = self.root.join(FOLDER).join("guest");
        image::write(&self.guest, scenario, &built, &scripts, &image)?;
        let mut outcome = self.boot(scenario, &logs, &image)?;
        for run in 2..=RUNS {
            let broken = |end: &End| matches!(end, End::Broken(_));
            let Some(host) = outcome.ends.iter().position(broken) else {
                break;
            };
            println!(
                "    host {}: {}; run {run} of at most {RUNS}",
                HOSTS[host], outcome.ends[host]
            );
            outcome = self.boot(scenario, &logs, &image)?;
        }
        remove(&image)?;
        unpack_files(&logs, &outcome.ends)?;
        let times = match outcome.boot {
            Some(boot) => format!("{:.1} s", boot.as_secs_f64()),
            None => "never".to_owned(),
        };
        let times = format!("{:.1} s, up after {times}", outcome.whole.as_secs_f64());
        match verdict(&scenario.ends, &outcome.ends) {
            Ok(()) => println!("  ok: {} ({times})", scenario.name),
            Err(wrong) => {
                show_logs(&logs, scenario.ends.len());
                bail!("{wrong} ({times}); logs in {}", logs.display());
            }
        }
        match self.plan.logs {
            Logs::Remove => remove(&logs),
            Logs::Keep => {
                println!("    logs in {}", logs.display());
                Ok(())
            }
        }
    }

    /// Starts the hosts and stays with them until each has ended or the time is over.
    fn boot(&self, scenario: &Scenario, logs: &Path, image: &Path) -> Result<Outcome> {
        let hosts = scenario.ends.len();
        let (sender, news) = mpsc::channel();
        // A host alone has a link as well, to nobody: what is on it needs no other case.
        let links = machine::link()?.into_iter().take(hosts);
        let started = Instant::now();
        let mut machines = Vec::new();
        for (index, link) in links.enumerate() {
            let plan = machine::Plan {
                index,
                kernel: &self.guest.kernel(),
                image,
                logs,
                memory_mib: scenario.memory_mib,
                capture: scenario.capture,
                link,
            };
            machines.push(Machine::start(plan, sender.clone())?);
        }
        let limit = self.plan.limit.unwrap_or(scenario.limit);
        Ok(attend(&mut machines, &news, started, limit))
    }
}

/// Takes the news of the machines to the bench, and does what it orders.
fn attend(
    machines: &mut [Machine],
    news: &Receiver<News>,
    started: Instant,
    limit: Duration,
) -> Outcome {
    let mut bench = Bench::new(machines.len());
    let mut boot = None;
    let mut deadline = started + BOOT;
    while !bench.is_over() {
        let left = deadline.saturating_duration_since(Instant::now());
        let orders = match news.recv_timeout(left) {
            Ok(News {
                host,
                line: Some(line),
            }) => bench.said(host, Said::parse(&line)),
            Ok(News { host, line: None }) => {
                machines[host].stop();
                bench.ended(host, machines[host].own_end())
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
        };
        if boot.is_none() && bench.is_ready() {
            boot = Some(started.elapsed());
            deadline = Instant::now() + limit;
        }
        for order in orders {
            match order {
                Order::Send(host, line) => machines[host].send(&line),
                Order::Stop(host) => machines[host].stop(),
                Order::Show(host, text) => println!("    {}: {text}", HOSTS[host]),
            }
        }
    }
    Outcome {
        ends: bench.ends(),
        boot,
        whole: started.elapsed(),
    }
}

/// What guests left in `/out`, as a folder for each host that left something. What is there of a guest
/// that did not reach its end may be cut off anywhere, so it is not looked at.
fn unpack_files(logs: &Path, ends: &[End]) -> Result<()> {
    for (host, end) in HOSTS.iter().zip(ends) {
        let archive = logs.join(format!("{host}.files"));
        let has_some = fs::metadata(&archive).is_ok_and(|archive| archive.len() > 0);
        if has_some && matches!(end, End::Exited(_)) {
            let to = logs.join(host);
            fs::create_dir_all(&to).with_context(|| format!("cannot make {}", to.display()))?;
            let status = Command::new("tar")
                .args(["--extract", "--no-same-owner", "--file"])
                .arg(&archive)
                .arg("--directory")
                .arg(&to)
                .status()
                .context("cannot start tar")?;
            ensure!(status.success(), "cannot unpack {}", archive.display());
        }
        remove(&archive)?;
    }
    Ok(())
}

/// Prints the end of every log of a scenario that failed.
fn show_logs(logs: &Path, hosts: usize) {
    for host in &HOSTS[..hosts] {
        for (ending, what) in [
            ("output", "its script printed"),
            ("console", "its kernel printed"),
            ("qemu", "QEMU complained"),
        ] {
            let bytes = fs::read(logs.join(format!("{host}.{ending}"))).unwrap_or_default();
            let text = String::from_utf8_lossy(&bytes);
            let lines = telling_lines(&text, LINES_SHOWN);
            if !lines.is_empty() {
                println!("    -- host {host}, {what}:");
                for line in lines {
                    println!("    {line}");
                }
            }
        }
    }
}

/// The last lines that have something in them; where the kernel gave up, those around that.
fn telling_lines(text: &str, count: usize) -> Vec<&str> {
    let lines = text.lines().map(str::trim_end);
    let lines: Vec<_> = lines.filter(|line| !line.is_empty()).collect();
    let end = match lines.iter().position(|line| line.contains(PANIC)) {
        Some(panic) => lines.len().min(panic + count.div_ceil(2)),
        None => lines.len(),
    };
    lines[end.saturating_sub(count)..end].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remarks_are_no_packages() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("packages");
        fs::write(&path, "# tools\nperftest\n\n  qperf \n").unwrap();
        assert_eq!(packages(&path).unwrap(), ["perftest", "qperf"]);
    }

    #[test]
    fn the_end_of_a_log_is_its_last_lines_that_are_not_empty() {
        assert_eq!(telling_lines("a\n\nb\r\nc\n", 2), ["b", "c"]);
        assert_eq!(telling_lines("a", 2), ["a"]);
        assert_eq!(telling_lines("\n", 2), [""; 0]);
    }

    #[test]
    fn what_is_shown_of_a_panic_is_what_led_to_it_and_its_beginning() {
        let text = format!("1\n2\n3\n{PANIC}: x\n4\n5\n6\n");
        let panic = format!("{PANIC}: x");
        assert_eq!(telling_lines(&text, 4), ["2", "3", &panic, "4"]);
        assert_eq!(telling_lines(&text, 2), ["3", &panic]);
    }

    #[test]
    fn all_that_is_missing_is_named_with_its_packages() {
        assert_eq!(shortage("x86_64", |_| true), None);
        let reason = shortage("x86_64", |tool| tool != "xz" && tool != QEMU.0).unwrap();
        assert!(reason.contains("no qemu-system-x86_64, xz"), "{reason}");
        assert!(reason.contains("qemu-system-x86 xz-utils"), "{reason}");
        let reason = shortage("riscv64", |_| true).unwrap();
        assert!(reason.contains("riscv64"), "{reason}");
    }

    #[test]
    fn files_of_a_guest_are_unpacked_if_it_reached_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let logs = folder.path();
        fs::create_dir(logs.join("there")).unwrap();
        fs::write(logs.join("there/trace"), "x").unwrap();
        let status = Command::new("tar")
            .arg("-cf")
            .arg(logs.join("a.files"))
            .arg("-C")
            .arg(logs.join("there"))
            .arg(".")
            .status()
            .unwrap();
        assert!(status.success());
        fs::write(logs.join("b.files"), "cut off").unwrap();
        unpack_files(logs, &[End::Exited(1), End::Hung]).unwrap();
        assert_eq!(fs::read_to_string(logs.join("a/trace")).unwrap(), "x");
        assert!(!logs.join("a.files").exists() && !logs.join("b").exists());
    }
}
