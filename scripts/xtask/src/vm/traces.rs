//! What a run of scenarios leaves behind, beside the target folder: nothing.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Whether the folder of temporary files is looked at. Other programs use it as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Temporary {
    Ignore,
    Compare,
}

/// What is there before a run.
#[derive(Debug)]
pub(crate) struct Before {
    /// The repository, and what git says of it: a line for each file that is new or has changed.
    root: PathBuf,
    changed: BTreeSet<String>,
    /// A folder of temporary files with its entries; nothing if it is not looked at.
    temporary: Option<(PathBuf, BTreeSet<OsString>)>,
}

impl Before {
    /// Looks around.
    pub(crate) fn look(root: &Path, temporary: Temporary) -> Result<Before> {
        let temporary = match temporary {
            Temporary::Ignore => None,
            Temporary::Compare => {
                let folder = std::env::temp_dir();
                let entries = entries(&folder)?;
                Some((folder, entries))
            }
        };
        Ok(Before {
            root: root.to_owned(),
            changed: changed(root)?,
            temporary,
        })
    }

    /// Looks again after the run, whose machines work in folders below `runs`.
    ///
    /// # Errors
    /// Whatever has come since, each with what it is.
    pub(crate) fn compare(&self, runs: &Path) -> Result<()> {
        // As the kernel names it. If it is not there, nobody is in it.
        let mut left = match runs.canonicalize() {
            Ok(runs) => at_work_below(Path::new("/proc"), &runs)?,
            Err(_) => Vec::new(),
        };
        for line in changed(&self.root)?.difference(&self.changed) {
            left.push(format!("in the repository: {line}"));
        }
        if let Some((folder, before)) = &self.temporary {
            for entry in entries(folder)?.difference(before) {
                left.push(folder.join(entry).display().to_string());
            }
        }
        ensure!(left.is_empty(), "left behind: {}", left.join(", "));
        Ok(())
    }
}

fn entries(folder: &Path) -> Result<BTreeSet<OsString>> {
    let listed = || -> std::io::Result<BTreeSet<OsString>> {
        fs::read_dir(folder)?
            .map(|entry| Ok(entry?.file_name()))
            .collect()
    };
    listed().with_context(|| format!("cannot list {}", folder.display()))
}

/// What git tells of files that it does not ignore. Where there is no git, or the sources came without
/// a repository, nobody can tell, and nothing is told.
fn changed(root: &Path) -> Result<BTreeSet<String>> {
    if !root.join(".git").exists() || crate::process::find("git").is_none() {
        return Ok(BTreeSet::new());
    }
    let output = Command::new("git")
        .args([
            "--no-optional-locks",
            "status",
            "--porcelain",
            "--untracked-files=all",
        ])
        .current_dir(root)
        .output()
        .context("cannot start git")?;
    ensure!(
        output.status.success(),
        "git status ended with {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().map(str::to_owned).collect())
}

/// Processes whose working folder is below `folder`, as that of every machine is.
fn at_work_below(processes: &Path, folder: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in entries(processes)? {
        let process = processes.join(&entry);
        // Those of other users, and those that have ended meanwhile, are none of ours.
        if let Ok(at) = fs::read_link(process.join("cwd"))
            && at.starts_with(folder)
        {
            let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
            let (name, number) = (name.trim_end(), entry.to_string_lossy());
            found.push(format!("process {number} ({name}) in {}", at.display()));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Stdio;

    fn git(root: &Path, arguments: &[&str]) {
        let status = Command::new("git")
            .args(arguments)
            .current_dir(root)
            .stdout(Stdio::null())
            .status()
            .unwrap();
        assert!(status.success());
    }

    #[test]
    fn a_process_that_still_works_below_the_runs_is_told_and_others_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let runs = folder.path().canonicalize().unwrap();
        let at = runs.join("one");
        fs::create_dir(&at).unwrap();
        let mut child = Command::new("cat")
            .current_dir(&at)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let found = at_work_below(Path::new("/proc"), &runs).unwrap();
        let elsewhere = at_work_below(Path::new("/proc"), &runs.join("two")).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let told = format!("process {} (", child.id());
        assert!(
            matches!(&found[..], [one] if one.starts_with(&told)),
            "{found:?}"
        );
        assert_eq!(elsewhere, [""; 0]);
        assert_eq!(
            at_work_below(Path::new("/proc"), &runs).unwrap(),
            [""; 0],
            "it has ended"
        );
    }

    #[test]
    fn a_file_that_was_not_there_before_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        let temporary = folder.path().join("temporary");
        fs::create_dir(&root).unwrap();
        fs::create_dir(&temporary).unwrap();
        git(&root, &["init", "--quiet"]);
        fs::write(root.join("old"), "").unwrap();
        fs::write(temporary.join("old"), "").unwrap();
        let before = Before {
            root: root.clone(),
            changed: changed(&root).unwrap(),
            temporary: Some((temporary.clone(), entries(&temporary).unwrap())),
        };
        let runs = folder.path().join("runs");
        before.compare(&runs).unwrap();
        fs::write(root.join("new"), "").unwrap();
        fs::write(temporary.join("newer"), "").unwrap();
        let error = before.compare(&runs).unwrap_err().to_string();
        assert!(error.contains("in the repository: ?? new, "), "{error}");
        assert!(error.ends_with("temporary/newer"), "{error}");
        assert!(!error.contains("old"), "{error}");
    }
}
