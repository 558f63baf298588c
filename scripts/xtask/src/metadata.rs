//! The parts of `cargo metadata` that the checks read.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::process::cargo;

/// The workspace and everything that it depends on, for every platform.
#[derive(Deserialize)]
pub(crate) struct Metadata {
    /// The workspace's own packages and, unless they were left out, the dependencies.
    pub packages: Vec<Package>,
    /// Where cargo puts what it builds.
    pub target_directory: PathBuf,
}

/// One package.
#[derive(Deserialize)]
pub(crate) struct Package {
    /// Name in its manifest.
    pub name: String,
    /// Version in its manifest.
    pub version: String,
    /// Licence expression, if it gives one.
    #[serde(default)]
    pub license: Option<String>,
    /// The registry or repository that it comes from; nothing for a package of the workspace.
    #[serde(default)]
    pub source: Option<String>,
    /// What it asks for, of every kind and for every platform.
    #[serde(default)]
    pub dependencies: Vec<Dependency>,
    /// Where its manifest is.
    pub manifest_path: PathBuf,
    /// What it builds.
    #[serde(default)]
    pub targets: Vec<Target>,
    /// The program that `cargo run` starts if none is named.
    #[serde(default)]
    pub default_run: Option<String>,
}

/// One line of a package's dependencies.
#[derive(Deserialize)]
pub(crate) struct Dependency {
    /// Name of the package asked for, whatever it is called inside.
    pub name: String,
}

/// One thing that a package builds.
#[derive(Deserialize)]
pub(crate) struct Target {
    /// Name of the library, program or test.
    pub name: String,
    /// `bin`, `lib`, `test` and so on.
    pub kind: Vec<String>,
}

impl Metadata {
    /// The packages of the workspace only. Needs no registry.
    pub(crate) fn read(root: &Path) -> Result<Metadata> {
        read(root, &["--no-deps"])
    }

    /// The packages of the workspace and all dependencies in the lock file.
    pub(crate) fn read_all(root: &Path) -> Result<Metadata> {
        read(root, &[])
    }
}

impl Package {
    /// Names of the programs that it builds.
    pub(crate) fn programs(&self) -> impl Iterator<Item = &str> {
        self.targets
            .iter()
            .filter(|target| target.kind.iter().any(|kind| kind == "bin"))
            .map(|target| target.name.as_str())
    }
}

fn read(root: &Path, more: &[&str]) -> Result<Metadata> {
    let output = Command::new(cargo())
        .args(["metadata", "--format-version", "1", "--locked"])
        .args(more)
        .current_dir(root)
        .output()
        .context("cannot start cargo")?;
    if !output.status.success() {
        bail!(
            "cargo metadata failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    serde_json::from_slice(&output.stdout).context("cannot read what cargo metadata printed")
}
