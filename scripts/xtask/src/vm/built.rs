//! Programs and tests of the workspace for guests: builds them and finds the files.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::scenario::{Built, Scenario};
use crate::metadata::Metadata;
use crate::process::cargo;

/// A line of `cargo build --message-format=json`, as far as it is about something built.
#[derive(Deserialize)]
struct Artifact {
    manifest_path: PathBuf,
    target: Target,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
}

/// Builds what a scenario asks for; the name that each has in the guest, and its file.
pub(crate) fn build(root: &Path, scenario: &Scenario) -> Result<Vec<(String, PathBuf)>> {
    let mut files = Vec::new();
    // The whole workspace is named, so that what the other steps have built is used again.
    for (wanted, kind, command) in [
        (&scenario.built, "--bin", &["build"][..]),
        (&scenario.tests, "--test", &["test", "--no-run"]),
    ] {
        if wanted.is_empty() {
            continue;
        }
        let mut arguments = command.to_vec();
        arguments.extend(["--workspace", "--locked", "--profile", &scenario.profile]);
        for feature in &scenario.features {
            arguments.extend(["--features", feature]);
        }
        for one in wanted {
            arguments.extend([kind, &one.target]);
        }
        let said = messages(root, &arguments)?;
        let packages = Metadata::read(root)?.packages;
        for one in wanted {
            let package = packages.iter().find(|package| package.name == one.package);
            let manifest = package.map(|package| package.manifest_path.as_path());
            let file = manifest.and_then(|manifest| executable(&said, manifest, one));
            let file = file.with_context(|| {
                format!("cargo builds no {kind} {} in {}", one.target, one.package)
            })?;
            files.push((one.target.clone(), file));
        }
    }
    Ok(files)
}

fn messages(root: &Path, arguments: &[&str]) -> Result<String> {
    println!("  $ cargo {}", arguments.join(" "));
    let output = Command::new(cargo())
        .args(arguments)
        .args(["--quiet", "--message-format=json-render-diagnostics"])
        .current_dir(root)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start cargo")?;
    ensure!(
        output.status.success(),
        "cargo {} ended with {}",
        arguments.join(" "),
        output.status
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The executable of a target, if it is among the messages.
fn executable(messages: &str, manifest: &Path, wanted: &Built) -> Option<PathBuf> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Artifact>(line).ok())
        .filter(|artifact| artifact.manifest_path == manifest)
        .filter(|artifact| artifact.target.name == wanted.target)
        .find_map(|artifact| artifact.executable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_that_of_the_target_in_its_package() {
        let line = |manifest: &str, name: &str, file: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"{manifest}",
                "target":{{"name":"{name}","kind":["test"]}},"executable":{file}}}"#
            )
            .replace('\n', "")
        };
        let messages = [
            r#"{"reason":"build-script-executed"}"#.to_owned(),
            line("/p/Cargo.toml", "conformance", "null"),
            line("/q/Cargo.toml", "conformance", r#""/q/other""#),
            line("/p/Cargo.toml", "conformance", r#""/p/one""#),
        ]
        .join("\n");
        let find = |manifest: &str, target: &str| {
            let wanted = Built {
                package: "p".to_owned(),
                target: target.to_owned(),
            };
            executable(&messages, Path::new(manifest), &wanted)
        };
        assert_eq!(
            find("/p/Cargo.toml", "conformance"),
            Some(PathBuf::from("/p/one"))
        );
        assert_eq!(find("/p/Cargo.toml", "other"), None);
        assert_eq!(find("/r/Cargo.toml", "conformance"), None);
    }
}
