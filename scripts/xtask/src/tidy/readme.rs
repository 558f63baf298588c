//! The commands that README.md shows exist, and the continuous integration runs one of them.

use std::path::Path;

use super::Finding;
use crate::metadata::Metadata;

/// What a command line may name.
struct Known<'a> {
    /// Packages with their programs.
    programs: Vec<(&'a str, Vec<&'a str>)>,
    /// Programs that `cargo run` starts without being told which.
    default_runs: Vec<&'a str>,
    /// What may follow `cargo xtask`.
    commands: &'a [String],
}

/// Checks README.md and `.ci/run` of the repository.
pub(crate) fn check(root: &Path, metadata: &Metadata, commands: &[String]) -> Vec<Finding> {
    let known = Known {
        programs: metadata
            .packages
            .iter()
            .map(|package| (package.name.as_str(), package.programs().collect()))
            .collect(),
        default_runs: metadata
            .packages
            .iter()
            .filter_map(|p| p.default_run.as_deref())
            .collect(),
        commands,
    };
    let Ok(readme) = std::fs::read_to_string(root.join("README.md")) else {
        return vec![finding(
            "README.md",
            0,
            "cannot be read: it is the front door".to_owned(),
        )];
    };
    let Ok(ci) = std::fs::read_to_string(root.join(".ci/run")) else {
        return vec![finding(
            ".ci/run",
            0,
            "cannot be read: it starts the checks".to_owned(),
        )];
    };
    check_texts(&readme, &ci, &known)
}

fn check_texts(readme: &str, ci: &str, known: &Known) -> Vec<Finding> {
    let shown = commands(readme);
    let mut findings: Vec<Finding> = shown
        .iter()
        .filter_map(|(line, command)| {
            let objection = objection(command, known)?;
            Some(finding(
                "README.md",
                *line,
                format!("`{command}`: {objection}"),
            ))
        })
        .collect();
    if !shown
        .iter()
        .any(|(_, command)| command.starts_with("cargo run "))
    {
        let message = "shows no `cargo run ...` by which to see the appliance work";
        findings.push(finding("README.md", 0, message.to_owned()));
    }
    let ci_command = ci
        .lines()
        .map(str::trim)
        .rfind(|line| line.starts_with("cargo "));
    match ci_command {
        Some(command) if shown.iter().any(|(_, shown)| shown == command) => {}
        Some(command) => findings.push(finding(
            "README.md",
            0,
            format!("does not show `{command}`, which the continuous integration runs"),
        )),
        None => findings.push(finding(".ci/run", 0, "runs no cargo command".to_owned())),
    }
    findings
}

/// The lines of fenced blocks that begin with `cargo`, with their numbers and without prompts and
/// remarks.
fn commands(readme: &str) -> Vec<(usize, String)> {
    let mut commands = Vec::new();
    let mut is_in_block = false;
    for (index, line) in readme.lines().enumerate() {
        let line = line.trim();
        if line.starts_with("```") {
            is_in_block = !is_in_block;
            continue;
        }
        let line = line.strip_prefix("$ ").unwrap_or(line);
        let line = line.split(" #").next().unwrap_or(line).trim();
        if is_in_block && line.starts_with("cargo ") {
            commands.push((index + 1, line.to_owned()));
        }
    }
    commands
}

/// What is wrong with a command, if anything can be seen.
fn objection(command: &str, known: &Known) -> Option<String> {
    let words: Vec<&str> = command.split_whitespace().collect();
    match words.get(1..)? {
        ["xtask", name, ..] => {
            let is_known = known.commands.iter().any(|command| command == name);
            (!is_known).then(|| format!("xtask has no command `{name}`"))
        }
        ["run", rest @ ..] => run_objection(rest, known),
        _ => None,
    }
}

/// Checks `--package` and `--bin` of a `cargo run`, in all their spellings.
fn run_objection(words: &[&str], known: &Known) -> Option<String> {
    let own: Vec<&str> = words
        .iter()
        .copied()
        .take_while(|&word| word != "--")
        .collect();
    let package = option(&own, &["-p", "--package"]);
    let bin = option(&own, &["--bin"]);
    let mut programs = known
        .programs
        .iter()
        .filter(|(name, _)| package.is_none_or(|p| p == *name));
    match (package, bin) {
        (Some(package), _) if programs.clone().next().is_none() => {
            Some(format!("the workspace has no package `{package}`"))
        }
        (_, Some(bin)) => {
            let is_there = programs.any(|(_, bins)| bins.contains(&bin));
            (!is_there).then(|| format!("no program `{bin}` is built"))
        }
        (Some(_), None) => {
            let (_, bins) = programs.next()?;
            let is_clear =
                bins.len() == 1 || bins.iter().any(|bin| known.default_runs.contains(bin));
            (!is_clear).then(|| "does not say which program to run (--bin)".to_owned())
        }
        (None, None) => known
            .default_runs
            .is_empty()
            .then(|| "does not say which program to run (--bin)".to_owned()),
    }
}

/// The value of an option, written `--name value` or `--name=value`.
fn option<'a>(words: &[&'a str], names: &[&str]) -> Option<&'a str> {
    words.iter().enumerate().find_map(|(index, word)| {
        names.iter().find_map(|name| {
            if word == name {
                return words.get(index + 1).copied();
            }
            word.strip_prefix(name)?.strip_prefix('=')
        })
    })
}

fn finding(path: &str, line: usize, message: String) -> Finding {
    Finding {
        path: path.to_owned(),
        line,
        message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CI: &str = "#!/bin/sh\nset -eu\ncargo xtask ci\n";

    fn messages(readme: &str, ci: &str) -> Vec<String> {
        let commands = ["ci".to_owned(), "test".to_owned()];
        let known = Known {
            programs: vec![
                ("pollux-control", vec!["polluxd", "pollux"]),
                ("one", vec!["one"]),
            ],
            default_runs: vec![],
            commands: &commands,
        };
        check_texts(readme, ci, &known)
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    fn readme(run: &str) -> String {
        format!(
            "# Pollux\n```sh\n{run}\ncargo xtask ci    # all tests\n```\ncargo not in a block\n"
        )
    }

    #[test]
    fn commands_that_exist_pass() {
        for run in [
            "cargo run --bin pollux -- demo",
            "cargo run --release -p pollux-control --bin=pollux -- demo --bin x",
            "$ cargo run --package one",
        ] {
            assert_eq!(messages(&readme(run), CI), Vec::<String>::new(), "{run}");
        }
    }

    #[test]
    fn a_program_that_is_not_built_is_found_with_its_line() {
        let found = messages(&readme("cargo run --bin castor"), CI);
        assert_eq!(found.len(), 1);
        assert!(
            found[0].starts_with("README.md:3: ") && found[0].contains("castor"),
            "{found:?}"
        );
    }

    #[test]
    fn an_unclear_or_unknown_package_is_found() {
        assert_eq!(
            messages(&readme("cargo run -p pollux-control"), CI).len(),
            1
        );
        assert_eq!(messages(&readme("cargo run -p two"), CI).len(), 1);
        assert_eq!(messages(&readme("cargo run --release"), CI).len(), 1);
    }

    #[test]
    fn an_unknown_task_is_found() {
        let found = messages(&readme("cargo xtask fly"), CI);
        assert!(
            found
                .iter()
                .any(|message| message.contains("no command `fly`")),
            "{found:?}"
        );
    }

    #[test]
    fn what_the_continuous_integration_runs_is_shown() {
        let ci = "cargo xtask test\n";
        let found = messages(&readme("cargo run --bin pollux"), ci);
        assert!(
            found[0].contains("does not show `cargo xtask test`"),
            "{found:?}"
        );
        let found = messages(&readme("cargo run --bin pollux"), "true\n");
        assert!(found[0].contains("runs no cargo command"), "{found:?}");
    }
}
