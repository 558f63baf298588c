//! Which crate may use which: arrows point down only.

use std::path::Path;

use super::{Finding, below};
use crate::metadata::{Metadata, Package};

/// Each crate of the workspace with those of its siblings that it may use, in its tests as well.
const LAYERS: &[(&str, &[&str])] = &[
    ("pollux-wire", &[]),
    ("pollux-ring", &[]),
    ("pollux-proto", &["pollux-wire"]),
    ("rdma-core-sys", &[]),
    ("pollux-provider", &["pollux-ring", "rdma-core-sys"]),
    ("pollux-attach", &["pollux-ring"]),
    (
        "pollux-worker",
        &[
            "pollux-wire",
            "pollux-proto",
            "pollux-ring",
            "pollux-provider",
            "pollux-attach",
        ],
    ),
    ("pollux-sockops", &[]),
    (
        "pollux-control",
        &[
            "pollux-sockops",
            "pollux-wire",
            "pollux-proto",
            "pollux-ring",
            "pollux-provider",
            "pollux-attach",
            "pollux-worker",
        ],
    ),
    (
        "pollux-fuzz",
        &[
            "pollux-wire",
            "pollux-proto",
            "pollux-ring",
            "pollux-provider",
            "pollux-attach",
            "pollux-worker",
            "pollux-control",
        ],
    ),
    (
        "pollux-perf",
        &[
            "pollux-wire",
            "pollux-proto",
            "pollux-ring",
            "pollux-provider",
            "pollux-attach",
            "pollux-worker",
            "pollux-control",
        ],
    ),
    (
        "pollux-sim",
        &[
            "pollux-wire",
            "pollux-proto",
            "pollux-ring",
            "pollux-provider",
            "pollux-attach",
            "pollux-worker",
            "pollux-control",
        ],
    ),
    ("kernel-smc", &[]),
    ("xtask", &[]),
];

/// Checks every package of the workspace.
pub(crate) fn check(root: &Path, metadata: &Metadata) -> Vec<Finding> {
    let siblings: Vec<&str> = metadata.packages.iter().map(|p| p.name.as_str()).collect();
    metadata
        .packages
        .iter()
        .flat_map(|package| {
            let manifest = std::fs::read_to_string(&package.manifest_path).unwrap_or_default();
            check_package(
                package,
                &siblings,
                &below(root, &package.manifest_path),
                &manifest,
            )
        })
        .collect()
}

fn check_package(package: &Package, siblings: &[&str], path: &str, manifest: &str) -> Vec<Finding> {
    let Some((_, may_use)) = LAYERS.iter().find(|(name, _)| *name == package.name) else {
        return vec![Finding {
            path: path.to_owned(),
            line: 0,
            message: format!(
                "{} has no place in the layers: give it one in scripts/xtask/src/tidy/layers.rs",
                package.name
            ),
        }];
    };
    let mut findings = Vec::new();
    for dependency in &package.dependencies {
        let name = dependency.name.as_str();
        let is_itself = name == package.name;
        if siblings.contains(&name) && !is_itself && !may_use.contains(&name) {
            let line = manifest.lines().position(|line| line.contains(name));
            findings.push(Finding {
                path: path.to_owned(),
                line: line.map_or(0, |index| index + 1),
                message: format!(
                    "{} must not use {name}: arrows point down only",
                    package.name
                ),
            });
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::Dependency;

    fn findings(name: &str, dependencies: &[&str], manifest: &str) -> Vec<Finding> {
        let package = Package {
            name: name.to_owned(),
            version: "0.1.0".to_owned(),
            license: None,
            source: None,
            dependencies: dependencies
                .iter()
                .map(|d| Dependency { name: (*d).into() })
                .collect(),
            manifest_path: "x/Cargo.toml".into(),
            targets: Vec::new(),
            default_run: None,
        };
        let siblings = [
            "pollux-wire",
            "pollux-proto",
            "pollux-ring",
            "pollux-provider",
            "xtask",
        ];
        check_package(&package, &siblings, "x/Cargo.toml", manifest)
    }

    #[test]
    fn arrows_down_are_fine_and_so_are_strangers() {
        assert_eq!(
            findings("pollux-proto", &["pollux-wire", "arrayvec"], ""),
            []
        );
    }

    #[test]
    fn an_arrow_up_is_found_with_its_line() {
        let manifest = "[dependencies]\npollux-wire.workspace = true\n\
                        pollux-provider.workspace = true\n";
        let found = findings(
            "pollux-proto",
            &["pollux-wire", "pollux-provider"],
            manifest,
        );
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].line, 3);
        assert!(
            found[0]
                .message
                .contains("pollux-proto must not use pollux-provider")
        );
    }

    #[test]
    fn wire_ring_and_this_program_know_nobody() {
        for name in ["pollux-wire", "pollux-ring", "xtask"] {
            assert_eq!(findings(name, &["pollux-proto"], "").len(), 1, "{name}");
        }
    }

    #[test]
    fn a_new_crate_has_to_be_given_its_place() {
        assert!(
            findings("pollux-new", &[], "")[0]
                .message
                .contains("no place in the layers")
        );
    }
}
