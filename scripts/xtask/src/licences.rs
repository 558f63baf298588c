//! Every dependency's licence against the list of licences that may be part of the programs.
//!
//! Looked at is the whole lock file, for every platform and for tests too: what is not linked
//! today may be tomorrow.

mod spdx;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Result, bail};

use crate::metadata::{Metadata, Package};

/// Licences that ask for no more than their text and the authors' names being passed on.
const ALLOWED: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "CC0-1.0",
    "ISC",
    "MIT",
    // libFuzzer's old licence, beside Apache-2.0: in no program but that of the fuzz targets.
    "NCSA",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Reads the lock file and fails if any package's licence cannot be met; prints what was found.
pub(crate) fn check(root: &Path) -> Result<()> {
    let metadata = Metadata::read_all(root)?;
    let mut found: BTreeMap<&str, usize> = BTreeMap::new();
    let mut objections = Vec::new();
    for package in &metadata.packages {
        match judge(package) {
            Ok(()) => {}
            Err(objection) => objections.push(objection),
        }
        if package.source.is_some() {
            *found
                .entry(package.license.as_deref().unwrap_or("none"))
                .or_default() += 1;
        }
    }
    for (expression, count) in &found {
        println!("  {count:4}  {expression}");
    }
    if objections.is_empty() {
        return Ok(());
    }
    for objection in &objections {
        println!("  {objection}");
    }
    bail!(
        "{} of {} packages may not be used; allowed are {}",
        objections.len(),
        metadata.packages.len(),
        ALLOWED.join(", ")
    )
}

fn judge(package: &Package) -> Result<(), String> {
    let who = format!("{} {}", package.name, package.version);
    let Some(text) = &package.license else {
        return Err(format!("{who}: its manifest names no licence"));
    };
    match spdx::parse(text) {
        Err(error) => Err(format!("{who}: `{text}`: {error}")),
        Ok(expression) if expression.is_met_by(&|licence| ALLOWED.contains(&licence)) => Ok(()),
        Ok(_) => Err(format!(
            "{who}: `{text}` is not met by the allowed licences"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(license: Option<&str>) -> Package {
        Package {
            name: "thing".to_owned(),
            version: "1.2.3".to_owned(),
            license: license.map(str::to_owned),
            source: None,
            dependencies: Vec::new(),
            manifest_path: "thing/Cargo.toml".into(),
            targets: Vec::new(),
            default_run: None,
        }
    }

    #[test]
    fn usual_expressions_pass() {
        for text in [
            "MIT",
            "MIT/Apache-2.0",
            "Apache-2.0 WITH LLVM-exception OR Apache-2.0 OR MIT",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "MIT OR Apache-2.0 OR LGPL-2.1-or-later",
        ] {
            assert_eq!(judge(&package(Some(text))), Ok(()), "{text}");
        }
    }

    #[test]
    fn a_licence_off_the_list_names_the_package() {
        let objection = judge(&package(Some("MIT AND GPL-2.0-only"))).unwrap_err();
        assert!(objection.contains("thing 1.2.3") && objection.contains("GPL-2.0-only"));
    }

    #[test]
    fn an_exception_off_the_list_is_refused() {
        assert!(judge(&package(Some("MIT WITH Classpath-exception-2.0"))).is_err());
    }

    #[test]
    fn no_licence_or_a_broken_expression_is_refused() {
        assert!(
            judge(&package(None))
                .unwrap_err()
                .contains("names no licence")
        );
        assert!(judge(&package(Some("MIT OR"))).is_err());
    }
}
