//! Programs of the system that some tests drive, and the Debian packages that bring them.
//!
//! A test that needs one of them carries its *mark* somewhere in its full name, best as a module:
//! `mod needs_tshark { #[test] fn reads_our_captures() { .. } }`. Where a program is missing, the
//! tests with its mark are filtered out by the runner, which counts them as skipped; nothing ever
//! passes without having run. In the continuous integration a missing program is a failure.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::process::{find, in_ci};

/// A program that tests start.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Program {
    /// Name of the executable.
    pub name: &'static str,
    /// Debian package that contains it.
    pub package: &'static str,
    /// Part of the full name of every test that starts it.
    pub mark: &'static str,
}

/// Everything that tests may start. A program that no test uses any more leaves this list.
pub(crate) const PROGRAMS: &[Program] = &[
    Program {
        name: "tshark",
        package: "tshark",
        mark: "needs_tshark",
    },
    Program {
        name: "redis-server",
        package: "redis-server",
        mark: "needs_redis",
    },
    Program {
        name: "redis-cli",
        package: "redis-tools",
        mark: "needs_redis",
    },
    Program {
        name: "redis-benchmark",
        package: "redis-tools",
        mark: "needs_redis",
    },
    Program {
        name: "socat",
        package: "socat",
        mark: "needs_socat",
    },
    Program {
        name: "haproxy",
        package: "haproxy",
        mark: "needs_haproxy",
    },
    // No program: the header that the structs of rdma-core-sys are compared with.
    Program {
        name: "/usr/include/infiniband/verbs.h",
        package: "libibverbs-dev",
        mark: "needs_verbs_header",
    },
    Program {
        name: "valgrind",
        package: "valgrind",
        mark: "needs_valgrind",
    },
    Program {
        name: "strace",
        package: "strace",
        mark: "needs_strace",
    },
    // No test starts it: step `fuzz` builds libFuzzer with it.
    Program {
        name: "c++",
        package: "g++",
        mark: "needs_cxx",
    },
    // No test starts them: step `vm` runs guests with the first and unpacks their kernel's modules
    // with the second.
    Program {
        name: "qemu-system-x86_64",
        package: "qemu-system-x86",
        mark: "needs_vm",
    },
    Program {
        name: "xz",
        package: "xz-utils",
        mark: "needs_vm",
    },
];

/// Mark of tests that only root can run.
const ROOT_MARK: &str = "needs_root";

/// What a run has to leave out, and why.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Skips {
    /// Marks whose tests are filtered out; each once.
    pub marks: Vec<&'static str>,
    /// One line for each reason.
    pub reasons: Vec<String>,
}

impl Skips {
    fn add(&mut self, mark: &'static str, reason: String) {
        if !self.marks.contains(&mark) {
            self.marks.push(mark);
        }
        self.reasons.push(reason);
    }

    fn of(missing: &[&Program], is_root: Root) -> Skips {
        let mut skips = Skips::default();
        for program in missing {
            skips.add(
                program.mark,
                format!(
                    "tests named {}: no {} (Debian package {})",
                    program.mark, program.name, program.package
                ),
            );
        }
        if is_root == Root::No {
            skips.add(
                ROOT_MARK,
                format!("tests named {ROOT_MARK}: not run as root"),
            );
        }
        skips
    }
}

/// Whether this process may install packages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Root {
    Yes,
    No,
}

/// Makes the programs available as far as this user can, and says what stays missing. As root it
/// installs the missing packages; as anybody else it installs nothing. In the continuous
/// integration anything that would be skipped is an error.
pub(crate) fn setup() -> Result<Skips> {
    let is_root = if rustix::process::geteuid().is_root() {
        Root::Yes
    } else {
        Root::No
    };
    let absent = missing();
    if !absent.is_empty() && is_root == Root::Yes {
        match install(&packages(&absent)) {
            Ok(()) => {}
            Err(error) if in_ci() => return Err(error),
            Err(error) => println!("  {error:#}"),
        }
    }
    let absent = missing();
    let skips = Skips::of(&absent, is_root);
    if in_ci() && !skips.reasons.is_empty() {
        bail!(
            "CI is set, so nothing may be skipped, but: {}",
            skips.reasons.join("; ")
        );
    }
    if absent.is_empty() {
        println!("  all programs that tests start are here");
    } else {
        println!("  as root: apt-get install {}", packages(&absent).join(" "));
    }
    for reason in &skips.reasons {
        println!("  will be skipped: {reason}");
    }
    Ok(skips)
}

fn missing() -> Vec<&'static Program> {
    PROGRAMS
        .iter()
        .filter(|program| find(program.name).is_none())
        .collect()
}

fn packages(programs: &[&Program]) -> Vec<&'static str> {
    let mut packages: Vec<_> = programs.iter().map(|program| program.package).collect();
    packages.dedup();
    packages
}

fn install(packages: &[&str]) -> Result<()> {
    if find("apt-get").is_none() {
        bail!(
            "no apt-get here: install {} in this system's own way",
            packages.join(", ")
        );
    }
    apt_get(&["update"])?;
    let options = ["install", "--yes", "--no-install-recommends"];
    apt_get(&[&options, packages].concat())
}

/// Runs apt-get without questions. The packages of servers would start them; tests start their
/// own, so the packages are told that the system is in its rescue run level.
fn apt_get(arguments: &[&str]) -> Result<()> {
    let line = format!("apt-get {}", arguments.join(" "));
    println!("  $ {line}");
    let output = Command::new("apt-get")
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .env("RUNLEVEL", "1")
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start `{line}`"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("`{line}` ended with {}: {}", output.status, said.trim());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_skips_its_tests_and_says_why() {
        let skips = Skips::of(&[&PROGRAMS[1], &PROGRAMS[2]], Root::Yes);
        assert_eq!(skips.marks, ["needs_redis"]);
        assert_eq!(skips.reasons.len(), 2);
        assert!(
            skips.reasons[0].contains("redis-server"),
            "{:?}",
            skips.reasons
        );
    }

    #[test]
    fn an_ordinary_user_skips_the_tests_that_need_root() {
        assert_eq!(Skips::of(&[], Root::No).marks, [ROOT_MARK]);
        assert_eq!(Skips::of(&[], Root::Yes), Skips::default());
    }

    #[test]
    fn a_package_that_brings_two_programs_is_named_once() {
        let redis: Vec<_> = PROGRAMS
            .iter()
            .filter(|p| p.mark == "needs_redis")
            .collect();
        assert_eq!(packages(&redis), ["redis-server", "redis-tools"]);
    }
}
