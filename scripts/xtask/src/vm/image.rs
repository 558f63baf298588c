//! The first file system of a guest: busybox, the modules and programs that a scenario asks for with
//! their libraries, and the scripts that run it.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::cpio::Tree;
use super::debian::Guest;
use super::elf::Elf;
use super::modules::{Modules, alias_table, dependency_table};
use super::scenario::Scenario;

/// Where Debian has the libraries of this processor.
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
/// Where programs are looked for in packages.
const PROGRAMS: [&str; 2] = ["usr/bin", "usr/sbin"];
/// The library of verbs. It opens the drivers of devices by a list of names.
const VERBS: &str = "libibverbs.so.1";
/// The list entry and the beginning of the file's name of the driver for soft-RoCE.
const RXE: (&str, &str) = ("etc/libibverbs.d/rxe.driver", "librxe-");
/// What every guest has loaded before anything else: the link.
const MODULES: [&str; 2] = ["virtio_pci", "virtio_net"];

/// A tree that is being filled.
struct Image<'a> {
    guest: &'a Guest,
    tree: Tree,
    /// Names of the libraries that are in it.
    libraries: BTreeSet<String>,
}

/// Writes the archive for a scenario. `built` are the programs and tests of the workspace that it asks
/// for; `scripts` is the folder with the guest's own scripts.
pub(crate) fn write(
    guest: &Guest,
    scenario: &Scenario,
    built: &[(String, PathBuf)],
    scripts: &Path,
    to: &Path,
) -> Result<()> {
    let mut image = Image {
        guest,
        tree: Tree::default(),
        libraries: BTreeSet::new(),
    };
    image.base(scripts)?;
    image
        .tree
        .copy("scenario.sh", scenario.path.clone(), 0o644)?;
    image.modules(&scenario.modules)?;
    for name in &scenario.programs {
        let file = image.packaged(name)?;
        image.program(name, &file)?;
    }
    for (name, file) in built {
        image.program(name, file)?;
    }
    for name in &scenario.libraries {
        image.library(name)?;
    }
    image.drivers()?;
    image.applets()?;
    let file = File::create(to).with_context(|| format!("cannot write {}", to.display()))?;
    image
        .tree
        .write(&mut BufWriter::new(file))
        .with_context(|| format!("cannot write {}", to.display()))
}

impl Image<'_> {
    /// What every guest has.
    fn base(&mut self, scripts: &Path) -> Result<()> {
        for folder in ["bin", "sbin", "lib", "lib64"] {
            self.tree.link(folder, &format!("usr/{folder}"))?;
            self.tree.directory(&format!("usr/{folder}"))?;
        }
        for folder in ["dev", "proc", "sys", "tmp", "run", "out"] {
            self.tree.directory(folder)?;
        }
        self.tree.device("dev/console", 5, 1)?;
        self.tree.device("dev/null", 1, 3)?;
        self.tree.copy("init", scripts.join("init"), 0o755)?;
        self.tree
            .copy("usr/lib/vm/lib.sh", scripts.join("lib.sh"), 0o644)?;
        for (path, text) in [
            ("etc/passwd", "root:x:0:0:root:/tmp:/bin/sh\n"),
            ("etc/group", "root:x:0:\n"),
            (
                "etc/hosts",
                "127.0.0.1 localhost\n192.0.2.1 a\n192.0.2.2 b\n",
            ),
        ] {
            self.tree.bytes(path, text.into(), 0o644)?;
        }
        let busybox = self.packaged("busybox")?;
        self.program("busybox", &busybox)
    }

    /// The modules asked for, the tables for modprobe, and the list of what is to be loaded.
    fn modules(&mut self, asked: &[String]) -> Result<()> {
        let mut wanted: Vec<String> = MODULES.iter().map(|name| (*name).to_owned()).collect();
        wanted.extend_from_slice(asked);
        let modules = Modules::list(&self.guest.modules())?.closure(&wanted)?;
        let folder = format!("usr/lib/modules/{}", self.guest.version);
        let tables = [
            ("modules.dep", dependency_table(&modules)),
            ("modules.alias", alias_table(&modules)),
            ("modules.symbols", String::new()),
        ];
        for (name, table) in tables {
            let path = format!("{folder}/{name}");
            self.tree.bytes(&path, table.into_bytes(), 0o644)?;
        }
        let load: String = wanted
            .iter()
            .map(|name| name.replace('-', "_"))
            .filter(|name| modules.contains_key(name))
            .map(|name| name + "\n")
            .collect();
        self.tree.bytes("etc/vm/modules", load.into(), 0o644)?;
        for module in modules.into_values() {
            let path = format!("{folder}/{}", module.path);
            self.tree.bytes(&path, module.bytes, 0o644)?;
        }
        Ok(())
    }

    /// The file of a program that a package brings.
    fn packaged(&self, name: &str) -> Result<PathBuf> {
        let places = PROGRAMS.iter().map(|folder| self.guest.root.join(folder));
        let mut files = places.map(|folder| folder.join(name));
        files
            .find(|file| file.is_file())
            .with_context(|| format!("no package in scripts/vm/packages brings a program `{name}`"))
    }

    /// A program with its libraries, as `/usr/bin/NAME`.
    fn program(&mut self, name: &str, file: &Path) -> Result<()> {
        let path = format!("usr/bin/{name}");
        self.tree.copy(&path, file.to_owned(), 0o755)?;
        let bytes = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
        if bytes.starts_with(b"#!") {
            return Ok(());
        }
        let elf = Elf::read(&bytes).with_context(|| format!("cannot pack {}", file.display()))?;
        if let Some(loader) = elf.loader() {
            let name = loader.rsplit('/').next().unwrap_or(loader);
            let from = self.guest.root.join(LIBRARIES).join(name);
            let path = format!("usr/{}", loader.trim_start_matches('/'));
            let path = path.replacen("usr/usr/", "usr/", 1);
            self.tree.copy(&path, from, 0o755)?;
        }
        self.needed_by(&elf, file)
    }

    fn needed_by(&mut self, elf: &Elf<'_>, file: &Path) -> Result<()> {
        for library in elf.libraries()? {
            self.library(library)
                .with_context(|| format!("which {} needs", file.display()))?;
        }
        Ok(())
    }

    /// A library of a package, with those that it needs itself.
    fn library(&mut self, name: &str) -> Result<()> {
        if !self.libraries.insert(name.to_owned()) {
            return Ok(());
        }
        let file = self.guest.root.join(LIBRARIES).join(name);
        ensure!(
            file.is_file(),
            "no package in scripts/vm/packages brings the library {name}"
        );
        self.library_file(&format!("{LIBRARIES}/{name}"), &file)
    }

    fn library_file(&mut self, path: &str, file: &Path) -> Result<()> {
        if self.tree.has(path) {
            return Ok(());
        }
        let bytes = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
        let elf = Elf::read(&bytes).with_context(|| format!("cannot pack {}", file.display()))?;
        self.tree.copy(path, file.to_owned(), 0o644)?;
        self.needed_by(&elf, file)
    }

    /// Where there is the library of verbs, the driver for soft-RoCE.
    fn drivers(&mut self) -> Result<()> {
        if !self.libraries.contains(VERBS) {
            return Ok(());
        }
        let (list, beginning) = RXE;
        let root = self.guest.root.clone();
        self.tree.copy(list, root.join(list), 0o644)?;
        let folder = format!("{LIBRARIES}/libibverbs");
        let found = root.join(&folder);
        for entry in
            fs::read_dir(&found).with_context(|| format!("cannot list {}", found.display()))?
        {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if name.starts_with(beginning) {
                self.library_file(&format!("{folder}/{name}"), &found.join(&name))?;
            }
        }
        Ok(())
    }

    /// Links for what busybox can do, except where there is a program of that name.
    fn applets(&mut self) -> Result<()> {
        let busybox = self.packaged("busybox")?;
        let output = Command::new(&busybox).arg("--list").output();
        let output = output.with_context(|| format!("cannot start {}", busybox.display()))?;
        for applet in String::from_utf8_lossy(&output.stdout).lines() {
            let path = format!("usr/bin/{applet}");
            if !self.tree.has(&path) {
                self.tree.link(&path, "busybox")?;
            }
        }
        // The path by which the kernel asks for modules.
        self.tree.link("usr/sbin/modprobe", "../bin/busybox")
    }
}
