//! `pollux demo` as a newcomer meets it: what it prints, how it fails, and that nothing stays.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pollux_control::core_lock::CoreLock;
use pollux_control::cores;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// Demonstrations poll without a pause on all cores: one at a time.
static TURN: Mutex<()> = Mutex::new(());

/// A place with a temporary folder and a folder of core locks of its own.
struct Place {
    dir: TempDir,
    _turn: MutexGuard<'static, ()>,
}

impl Place {
    fn new() -> Place {
        let dir = tempfile::tempdir().unwrap();
        for name in ["tmp", "locks"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        Place { dir, _turn: turn }
    }

    fn locks(&self) -> std::path::PathBuf {
        self.dir.path().join("locks")
    }

    fn demo(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pollux"));
        command
            .arg("demo")
            .args(arguments)
            .arg("--lock-dir")
            .arg(self.locks())
            .env("TMPDIR", self.dir.path().join("tmp"))
            .stdin(Stdio::null());
        command
    }

    fn left_behind(&self) -> Vec<std::path::PathBuf> {
        entries(&self.dir.path().join("tmp"))
    }
}

fn entries(dir: &Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn fails_with(output: &Output, status: i32, reason: &str) {
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{error}");
    assert!(error.contains(reason), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
}

#[test]
fn a_quick_demonstration_streams_measures_and_leaves_nothing() {
    let place = Place::new();
    let output = place.demo(&["--quick"]).output().unwrap();
    let (out, error) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{out}{error}");
    for part in [
        "the connection is accelerated at both ends",
        "digests equal at both ends",
        "# inline off",
        "# inline on",
        "show links, appliance a:",
        "show links, appliance b:",
        "show memory, appliance a:",
        "cores used: ",
        "memory used: ",
    ] {
        assert!(out.contains(part), "{part} is missing in {out}");
    }
    for bytes in ["1", "32", "256", "2048"] {
        let lines = out.lines().map(|line| line.split_whitespace());
        let rows = lines.filter(|words| words.clone().next() == Some(bytes));
        let columns: Vec<usize> = rows.map(Iterator::count).collect();
        // With inline off, with inline on, and the comparison of both.
        let expected = [10, 10, 5];
        assert!(
            columns.starts_with(&expected),
            "{bytes}: {columns:?} in {out}"
        );
    }
    assert_eq!(place.left_behind(), [] as [&Path; 0]);
}

#[test]
fn an_interrupted_demonstration_says_so_and_leaves_nothing() {
    let place = Place::new();
    let mut command = place.demo(&["--quick", "--seconds", "600"]);
    let mut demo = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(demo.stdout.take().unwrap());
    let mut line = String::new();
    while !line.starts_with("digests equal") {
        line.clear();
        assert_ne!(out.read_line(&mut line).unwrap(), 0, "it ended early");
    }
    assert_eq!(place.left_behind().len(), 1);
    kill_process(Pid::from_child(&demo), Signal::INT).unwrap();
    let mut error = String::new();
    let mut pipe = demo.stderr.take().unwrap();
    pipe.read_to_string(&mut error).unwrap();
    assert_eq!(error, "pollux: demo: interrupted\n");
    assert_eq!(demo.wait().unwrap().code(), Some(1));
    assert_eq!(place.left_behind(), [] as [&Path; 0]);
}

#[test]
fn a_core_that_is_not_there_is_named_and_nothing_starts() {
    let place = Place::new();
    let output = place.demo(&["--cores", "8191"]).output().unwrap();
    fails_with(
        &output,
        78,
        "core 8191 is not in this process's allowed set",
    );
    assert_eq!(place.left_behind(), [] as [&Path; 0]);
}

#[test]
fn a_core_that_somebody_polls_is_refused_with_the_holder() {
    let allowed: Vec<u32> = cores::allowed().unwrap().iter().collect();
    let [first, second, ..] = allowed.as_slice() else {
        // On one core the two appliances cannot have it for themselves anyway.
        return;
    };
    let place = Place::new();
    let _lock = CoreLock::acquire(&place.locks(), *second, "holder").unwrap();
    let cores = format!("{first},{second}");
    let output = place
        .demo(&["--quick", "--cores", &cores])
        .output()
        .unwrap();
    fails_with(&output, 75, "holder");
    assert_eq!(place.left_behind(), [] as [&Path; 0]);
}
