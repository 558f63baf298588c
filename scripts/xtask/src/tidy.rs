//! The house rules that a program can check, each broken one with its place.
//!
//! What the compiler and clippy enforce (unsafe code without permission, functions over 70 lines,
//! boolean parameters) is not repeated here, except for the list of modules that may hold unsafe
//! code at all.

mod layers;
mod readme;
mod reports;
mod rules;
mod source;

use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::metadata::Metadata;
use source::Source;

/// One broken rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    /// File below the root, with `/` between the parts.
    pub path: String,
    /// Line from 1, or 0 where the file as a whole is meant.
    pub line: usize,
    /// What is wrong and what to do.
    pub message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.message),
            line => write!(f, "{}:{line}: {}", self.path, self.message),
        }
    }
}

/// Checks the whole repository and prints each broken rule. `commands` are the names that may
/// follow `cargo xtask`.
pub(crate) fn check(root: &Path, commands: &[String]) -> Result<()> {
    let mut findings = Vec::new();
    let mut files = 0;
    for (path, text) in texts(root)? {
        files += 1;
        findings.extend(rules::check_text(&path, &text));
        if path.ends_with(".rs") {
            findings.extend(rules::check_source(&Source::new(&path, &text)));
        }
    }
    let metadata = Metadata::read(root)?;
    findings.extend(layers::check(root, &metadata));
    findings.extend(readme::check(root, &metadata, commands));
    findings.extend(reports::check(root));
    findings.sort();
    for finding in &findings {
        println!("{finding}");
    }
    match findings.len() {
        0 => {
            println!("  {files} files keep the house rules");
            Ok(())
        }
        count => bail!("{count} house rules broken in {files} files"),
    }
}

/// Every text file of the repository, by its path below the root. Left out are what git and cargo
/// keep for themselves, the lock file, which only cargo writes, and files that are no text.
fn texts(root: &Path) -> Result<Vec<(String, String)>> {
    let mut texts = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries =
            fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?;
        for entry in entries {
            let entry = entry.with_context(|| format!("cannot list {}", folder.display()))?;
            // A folder, or in a work tree beside the main one a file that says where that is.
            if entry.file_name() == ".git" {
                continue;
            }
            let path = entry.path();
            let kind = entry
                .file_type()
                .with_context(|| format!("lost {}", path.display()))?;
            if kind.is_dir() {
                let is_built = path.join("CACHEDIR.TAG").exists();
                if entry.file_name() != "target" && !is_built {
                    folders.push(path);
                }
            } else if kind.is_file() && entry.file_name() != "Cargo.lock" {
                let bytes =
                    fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
                if let Ok(text) = String::from_utf8(bytes) {
                    texts.push((below(root, &path), text));
                }
            }
        }
    }
    Ok(texts)
}

/// The path below the root, with `/` between the parts.
fn below(root: &Path, path: &Path) -> String {
    let path = path.strip_prefix(root).unwrap_or(path);
    let parts: Vec<_> = path
        .components()
        .map(|part| part.as_os_str().to_string_lossy())
        .collect();
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_point_at_a_line_or_at_a_file() {
        let mut finding = Finding {
            path: "a/b.rs".to_owned(),
            line: 7,
            message: "too long".to_owned(),
        };
        assert_eq!(finding.to_string(), "a/b.rs:7: too long");
        finding.line = 0;
        assert_eq!(finding.to_string(), "a/b.rs: too long");
    }

    #[test]
    fn the_walk_leaves_out_what_is_built_and_what_is_no_text() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        for folder in ["src/deep", "target/debug", ".git", "other-target"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        for (file, bytes) in [
            ("src/deep/a.rs", &b"fn a() {}"[..]),
            ("target/debug/b.rs", b""),
            (".git/c", b""),
            ("src/.git", b"gitdir: elsewhere"),
            ("other-target/CACHEDIR.TAG", b""),
            ("other-target/d.rs", b""),
            ("Cargo.lock", b""),
            ("picture", &[0xff, 0xfe, 0x00]),
        ] {
            fs::write(root.join(file), bytes).unwrap();
        }
        let found = texts(root).unwrap();
        assert_eq!(
            found,
            [("src/deep/a.rs".to_owned(), "fn a() {}".to_owned())]
        );
    }
}
