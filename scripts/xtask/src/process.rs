//! Runs other programs so that a reader of the log sees which, and can run them again.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{Context, Result, bail};

use crate::tally::Tally;

/// The cargo that runs this program, or the one on the path.
pub(crate) fn cargo() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned())
}

/// Runs `program` in `folder` with its output going straight to ours. A status other than 0 is an
/// error that names the command.
pub(crate) fn run(folder: &Path, program: &str, arguments: &[&str]) -> Result<()> {
    let line = shown(program, arguments);
    println!("  $ {line}");
    let status = Command::new(program)
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("cannot start `{line}`: is {program} installed?"))?;
    if !status.success() {
        bail!("`{line}` ended with {status}");
    }
    Ok(())
}

/// Runs a test runner, passes its output on line by line, and adds up the results that it prints.
/// The result of the run itself comes back beside the tally: a failed run has one as well.
pub(crate) fn run_tests(
    folder: &Path,
    program: &str,
    arguments: &[&str],
) -> Result<(Tally, Result<()>)> {
    let line = shown(program, arguments);
    println!("  $ {line}");
    let mut child = Command::new(program)
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start `{line}`: is {program} installed?"))?;
    let stdout = child
        .stdout
        .take()
        .context("the child has no standard output")?;
    let stderr = child
        .stderr
        .take()
        .context("the child has no standard error")?;
    let other = thread::spawn(move || pass_on(stderr, |line| eprint!("{line}")));
    let from_stdout = pass_on(stdout, |line| print!("{line}"));
    let from_stderr = match other.join() {
        Ok(tally) => tally,
        Err(_) => bail!("the thread that reads the errors of `{line}` panicked"),
    };
    let status = child
        .wait()
        .with_context(|| format!("cannot wait for `{line}`"))?;
    let tally = from_stdout.and(from_stderr);
    let verdict = if status.success() {
        Ok(())
    } else {
        Err(anyhow::anyhow!("`{line}` ended with {status}"))
    };
    Ok((tally, verdict))
}

/// Shows lines until the end and counts the tests that they report.
fn pass_on(from: impl Read, show: fn(&str)) -> Tally {
    let mut reader = BufReader::new(from);
    let mut tally = Tally::default();
    let mut bytes = Vec::new();
    while reader
        .read_until(b'\n', &mut bytes)
        .is_ok_and(|count| count > 0)
    {
        let line = String::from_utf8_lossy(&bytes);
        show(&line);
        tally = Tally::from_line(&line).map_or(tally, |more| tally.and(more));
        bytes.clear();
    }
    tally
}

/// Where an executable of this name is, looked for on the path and in the two folders of system
/// programs that an ordinary user's path lacks.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
}

/// Whether this run is the continuous integration's, where nothing may be skipped.
pub(crate) fn in_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| !value.is_empty() && value != "false" && value != "0")
}

/// A command as one would type it: cargo by its name, not by the path of the toolchain.
fn shown(program: &str, arguments: &[&str]) -> String {
    let name = Path::new(program)
        .file_name()
        .map_or(program.into(), |name| name.to_string_lossy());
    let mut line = name.into_owned();
    for argument in arguments {
        let plain = !argument.is_empty()
            && argument
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "-_./=:,+*@".contains(c));
        line.push(' ');
        if plain {
            line.push_str(argument);
        } else {
            line.push_str(&format!("'{}'", argument.replace('\'', "'\\''")));
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shown_command_can_be_typed_again() {
        assert_eq!(
            shown("/usr/bin/cargo", &["test", "-p", "xtask"]),
            "cargo test -p xtask"
        );
        assert_eq!(
            shown("sh", &["-c", "echo 'a b'"]),
            "sh -c 'echo '\\''a b'\\'''"
        );
    }

    #[test]
    fn a_failing_program_is_named_in_the_error() {
        let error = run(Path::new("/"), "false", &[]).unwrap_err();
        assert!(error.to_string().contains("`false`"), "{error}");
    }

    #[test]
    fn a_program_that_is_missing_is_named_in_the_error() {
        let error = run(Path::new("/"), "no-such-program-anywhere", &[]).unwrap_err();
        assert!(
            error.to_string().contains("no-such-program-anywhere"),
            "{error}"
        );
    }

    #[test]
    fn results_are_counted_on_both_streams() {
        let script = "echo 'test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; \
                      0 filtered out'; echo '  Summary [ 0.1s] 3 tests run: 3 passed' >&2";
        let (tally, verdict) = run_tests(Path::new("/"), "sh", &["-c", script]).unwrap();
        assert!(verdict.is_ok());
        assert_eq!(
            tally,
            Tally {
                passed: 5,
                failed: 0,
                skipped: 0
            }
        );
    }

    #[test]
    fn a_failed_run_keeps_its_tally() {
        let script = "echo 'test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; \
                      4 filtered out'; exit 101";
        let (tally, verdict) = run_tests(Path::new("/"), "sh", &["-c", script]).unwrap();
        assert!(verdict.is_err());
        assert_eq!(
            tally,
            Tally {
                passed: 2,
                failed: 1,
                skipped: 4
            }
        );
    }

    #[test]
    fn programs_are_found_by_name() {
        assert!(find("sh").is_some());
        assert_eq!(find("no-such-program-anywhere"), None);
    }
}
