//! Kernel modules with everything that they need, and the tables by which the guest's modprobe finds
//! them. Debian's kernel packages come without those tables (the installation makes them) and with
//! compressed modules.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use super::elf::Elf;

/// Modules that the kernel asks for by another name only while the first one runs, so that the first
/// one's own description says nothing of them.
const ASKED_FOR_LATER: &[(&str, &[&str])] = &[("rdma_rxe", &["crc32_generic"])];

/// A module, ready to be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Module {
    /// Path below `/lib/modules/VERSION`, without the ending of a compressed file.
    pub path: String,
    /// The module itself.
    pub bytes: Vec<u8>,
    /// Names of the modules that must be loaded before it.
    depends: Vec<String>,
    /// Other names that it answers to.
    aliases: Vec<String>,
}

/// The modules of one kernel package.
pub(crate) struct Modules {
    /// `lib/modules/VERSION` of the unpacked package.
    folder: PathBuf,
    /// Where the file of each module is, below the folder.
    files: BTreeMap<String, String>,
    /// Names of what is part of the kernel itself.
    built_in: BTreeSet<String>,
}

impl Modules {
    /// Looks through the folder `lib/modules/VERSION` of an unpacked kernel package.
    pub(crate) fn list(folder: &Path) -> Result<Modules> {
        let mut files = BTreeMap::new();
        collect(folder, "kernel", &mut files)?;
        let path = folder.join("modules.builtin");
        let built_in =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(Modules {
            folder: folder.to_owned(),
            files,
            built_in: built_in.lines().filter_map(module_name).collect(),
        })
    }

    /// These modules and all that they need, by name. Those that are built in are left out; one that
    /// the kernel does not have is an error.
    pub(crate) fn closure(&self, wanted: &[String]) -> Result<BTreeMap<String, Module>> {
        closure(wanted, |name| {
            if let Some(path) = self.files.get(name) {
                return Ok(Source::Module(self.read(path)?));
            }
            if self.built_in.contains(name) {
                return Ok(Source::BuiltIn);
            }
            Ok(Source::Missing)
        })
    }

    fn read(&self, path: &str) -> Result<Module> {
        let file = self.folder.join(path);
        let (path, bytes) = match path.strip_suffix(".xz") {
            Some(path) => (path, decompressed(&file)?),
            None => {
                let bytes = fs::read(&file);
                (
                    path,
                    bytes.with_context(|| format!("cannot read {}", file.display()))?,
                )
            }
        };
        Module::new(path.to_owned(), bytes)
            .with_context(|| format!("cannot use the module {}", file.display()))
    }
}

impl Module {
    fn new(path: String, bytes: Vec<u8>) -> Result<Module> {
        let elf = Elf::read(&bytes)?;
        let mut depends = Vec::new();
        for list in elf.module_facts("depends") {
            depends.extend(list.split(',').filter(|name| !name.is_empty()).map(plain));
        }
        let aliases = elf.module_facts("alias");
        let aliases = aliases.into_iter().map(str::to_owned).collect();
        Ok(Module {
            path,
            depends,
            aliases,
            bytes,
        })
    }
}

/// What a name stands for.
#[derive(Debug)]
enum Source {
    Module(Module),
    BuiltIn,
    Missing,
}

/// Walks from the wanted modules to all that they need.
fn closure(
    wanted: &[String],
    find: impl Fn(&str) -> Result<Source>,
) -> Result<BTreeMap<String, Module>> {
    let mut found = BTreeMap::new();
    let mut seen = BTreeSet::new();
    let mut waiting: Vec<(String, String)> = wanted
        .iter()
        .map(|name| (plain(name), "the scenario".to_owned()))
        .collect();
    while let Some((name, asked_by)) = waiting.pop() {
        if !seen.insert(name.clone()) {
            continue;
        }
        match find(&name)? {
            Source::BuiltIn => {}
            Source::Missing => bail!("this kernel has no module {name}, which {asked_by} needs"),
            Source::Module(module) => {
                let later = ASKED_FOR_LATER.iter().filter(|(first, _)| *first == name);
                let later = later.flat_map(|(_, names)| names.iter().map(|name| plain(name)));
                let needed = module.depends.iter().cloned().chain(later);
                waiting.extend(needed.map(|needed| (needed, name.clone())));
                found.insert(name, module);
            }
        }
    }
    Ok(found)
}

/// The table of what must be loaded before what, as modprobe reads it: for each module all that it
/// needs, directly or not, and what has to be loaded first comes last.
pub(crate) fn dependency_table(modules: &BTreeMap<String, Module>) -> String {
    let mut table = String::new();
    for (name, module) in modules {
        let mut order = Vec::new();
        load_order(modules, name, &mut BTreeSet::new(), &mut order);
        let needed: Vec<_> = order
            .iter()
            .rev()
            .filter(|needed| needed.path != module.path)
            .map(|needed| needed.path.as_str())
            .collect();
        table.push_str(&format!("{}: {}\n", module.path, needed.join(" ")));
    }
    table
}

/// Adds a module behind all that it needs.
fn load_order<'a>(
    modules: &'a BTreeMap<String, Module>,
    name: &'a str,
    seen: &mut BTreeSet<&'a str>,
    order: &mut Vec<&'a Module>,
) {
    let Some(module) = modules.get(name).filter(|_| seen.insert(name)) else {
        return;
    };
    for needed in &module.depends {
        load_order(modules, needed, seen, order);
    }
    order.push(module);
}

/// The table of other names, as modprobe reads it.
pub(crate) fn alias_table(modules: &BTreeMap<String, Module>) -> String {
    let mut table = String::new();
    for (name, module) in modules {
        for alias in &module.aliases {
            table.push_str(&format!("alias {alias} {name}\n"));
        }
    }
    table
}

/// Adds the files of modules below `folder/below`.
fn collect(folder: &Path, below: &str, files: &mut BTreeMap<String, String>) -> Result<()> {
    let here = folder.join(below);
    let entries = fs::read_dir(&here).with_context(|| format!("cannot list {}", here.display()))?;
    for entry in entries {
        let entry = entry?;
        let path = format!("{below}/{}", entry.file_name().to_string_lossy());
        if entry.file_type()?.is_dir() {
            collect(folder, &path, files)?;
        } else if let Some(name) = module_name(&path) {
            files.insert(name, path);
        }
    }
    Ok(())
}

/// The name of the module in a file of this path; nothing if the file is no module.
fn module_name(path: &str) -> Option<String> {
    let file = path.rsplit('/').next()?;
    let (name, ending) = file.split_once(".ko")?;
    matches!(ending, "" | ".xz").then(|| plain(name))
}

/// Names are the same whether they are written with `-` or with `_`.
fn plain(name: &str) -> String {
    name.replace('-', "_")
}

fn decompressed(file: &Path) -> Result<Vec<u8>> {
    let output = Command::new("xz")
        .args(["--decompress", "--stdout"])
        .arg(file)
        .stdin(Stdio::null())
        .output()
        .context("cannot start xz (Debian package xz-utils)")?;
    ensure!(
        output.status.success(),
        "cannot decompress {}: {}",
        file.display(),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(output.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::elf::testing::elf;

    /// A kernel with the module `x` built in and these others.
    fn kernel(modules: &[(&str, &str)]) -> impl Fn(&str) -> Result<Source> {
        let modules: BTreeMap<String, Module> = modules
            .iter()
            .map(|(name, facts)| {
                let facts = facts.replace(' ', "\0");
                let bytes = elf(&[(".modinfo", facts.as_bytes())]);
                let path = format!("kernel/{name}.ko");
                (plain(name), Module::new(path, bytes).unwrap())
            })
            .collect();
        move |name| {
            Ok(match modules.get(name) {
                Some(module) => Source::Module(module.clone()),
                None if name == "x" => Source::BuiltIn,
                None => Source::Missing,
            })
        }
    }

    fn wanted(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn all_that_is_needed_comes_along_and_nothing_else() {
        let find = kernel(&[
            ("a", "depends=b-1,c"),
            ("b-1", "depends=d"),
            ("c", "depends="),
            ("d", "depends=x"),
            ("e", "depends=a"),
        ]);
        let found = closure(&wanted(&["a", "x"]), find).unwrap();
        let names: Vec<_> = found.keys().map(String::as_str).collect();
        assert_eq!(names, ["a", "b_1", "c", "d"]);
    }

    #[test]
    fn a_ring_of_needs_ends() {
        let find = kernel(&[("a", "depends=b"), ("b", "depends=a")]);
        assert_eq!(closure(&wanted(&["a"]), find).unwrap().len(), 2);
    }

    #[test]
    fn a_missing_module_is_named_with_the_one_that_needs_it() {
        let error = closure(&wanted(&["a"]), kernel(&[("a", "depends=z")])).unwrap_err();
        assert_eq!(
            error.to_string(),
            "this kernel has no module z, which a needs"
        );
        assert!(closure(&wanted(&["z"]), kernel(&[])).is_err());
    }

    #[test]
    fn what_rxe_asks_for_while_it_runs_comes_along() {
        let find = kernel(&[("rdma_rxe", "depends="), ("crc32_generic", "depends=")]);
        let found = closure(&wanted(&["rdma_rxe"]), find).unwrap();
        assert!(found.contains_key("crc32_generic"));
    }

    #[test]
    fn the_table_names_the_deepest_need_last() {
        let find = kernel(&[
            ("a", "depends=d,b"),
            ("b", "depends=c"),
            ("c", "depends=d"),
            ("d", "depends="),
        ]);
        let found = closure(&wanted(&["a"]), find).unwrap();
        let table = dependency_table(&found);
        assert_eq!(
            table.lines().next(),
            Some("kernel/a.ko: kernel/b.ko kernel/c.ko kernel/d.ko")
        );
        assert_eq!(table.lines().last(), Some("kernel/d.ko: "));
    }

    #[test]
    fn other_names_lead_to_the_module() {
        let found = closure(&wanted(&["a-1"]), kernel(&[("a-1", "alias=crypto-a")])).unwrap();
        assert_eq!(alias_table(&found), "alias crypto-a a_1\n");
    }

    #[test]
    fn files_of_modules_are_known_by_their_ending() {
        assert_eq!(
            module_name("kernel/net/smc-diag.ko.xz").as_deref(),
            Some("smc_diag")
        );
        assert_eq!(module_name("a.ko").as_deref(), Some("a"));
        assert_eq!(module_name("modules.order"), None);
        assert_eq!(module_name("a.ko.gz"), None);
    }
}
