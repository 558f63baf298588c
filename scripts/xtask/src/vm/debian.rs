//! The guests' kernel and user land: Debian packages of the machine's own release, downloaded by apt
//! from the machine's own sources, checked by it, and unpacked below the target folder. Nothing is
//! installed, and nothing of the machine's own apt state is used or changed.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

/// Goes up when what is unpacked changes, so that an older download is not taken for a new one.
const LAYOUT: u32 = 1;
/// The kernel: soft-RoCE and AF_SMC both work in it. In 6.1 SMC does not work over soft-RoCE, and 7.0
/// is built without SMC in Debian.
const KERNEL: &str = "6.12";
/// The name of Debian's packages for this processor, which is the only one that guests have.
const ARCHITECTURE: &str = "amd64";
/// Room for what is downloaded and what is unpacked, in MiB; about 500 are used.
const FREE_MIB_MIN: u64 = 1024;
/// Signatures of the release files are checked with it, where it is.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// Folders that are links into `usr`, as on any Debian system.
const MERGED: [&str; 4] = ["bin", "sbin", "lib", "lib64"];

/// An unpacked kernel and user land.
pub(crate) struct Guest {
    /// The folder with everything.
    pub root: PathBuf,
    /// Version of the kernel, as in the names of its files.
    pub version: String,
}

impl Guest {
    /// The kernel that QEMU starts.
    pub(crate) fn kernel(&self) -> PathBuf {
        self.root.join(format!("boot/vmlinuz-{}", self.version))
    }

    /// Its modules.
    pub(crate) fn modules(&self) -> PathBuf {
        self.root.join("usr/lib/modules").join(&self.version)
    }
}

/// The guest with these packages and all that they depend on, from the last time if that was the same.
pub(crate) fn guest(folder: &Path, packages: &[String]) -> Result<Guest> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let lock = File::create(folder.join("lock"))?;
    lock.lock().context("cannot lock the guest's packages")?;
    let release = release(&fs::read_to_string("/etc/os-release").unwrap_or_default())?;
    let wanted = format!("{LAYOUT} {release} {KERNEL} {}\n", packages.join(" "));
    let (root, stamp) = (folder.join("root"), folder.join("stamp"));
    if fs::read_to_string(&stamp).is_ok_and(|stamp| stamp == wanted) {
        return opened(&root);
    }
    for old in [&stamp, &root] {
        remove(old)?;
    }
    check_space(folder)?;
    let fetch = Fetch::new(folder.join("fetch"), &release)?;
    let archives = fetch.archives(packages)?;
    println!("  unpacking {} packages", archives.len());
    unpack(&archives, &root)?;
    let guest = opened(&root)?;
    remove(&fetch.folder)?;
    // Written last, so that a download that was cut short is done again.
    fs::write(&stamp, wanted).with_context(|| format!("cannot write {}", stamp.display()))?;
    Ok(guest)
}

fn opened(root: &Path) -> Result<Guest> {
    let boot = root.join("boot");
    for entry in fs::read_dir(&boot).with_context(|| format!("cannot list {}", boot.display()))? {
        let name = entry?.file_name();
        if let Some(version) = name.to_string_lossy().strip_prefix("vmlinuz-") {
            return Ok(Guest {
                root: root.to_owned(),
                version: version.to_owned(),
            });
        }
    }
    bail!(
        "no kernel in {}: remove the folder above it",
        boot.display()
    )
}

/// The name of the Debian release that a machine runs.
fn release(os_release: &str) -> Result<String> {
    let value = |key: &str| {
        let mut values = os_release.lines().filter_map(|line| line.strip_prefix(key));
        values
            .next()
            .map(|value| value.trim_matches('"').to_owned())
    };
    match (value("ID="), value("VERSION_CODENAME=")) {
        (Some(id), Some(codename)) if id == "debian" => Ok(codename),
        (id, _) => bail!(
            "guests are made of Debian packages by a Debian system; this one is {}",
            id.as_deref().unwrap_or("unknown")
        ),
    }
}

fn check_space(folder: &Path) -> Result<()> {
    let disk = rustix::fs::statvfs(folder)
        .with_context(|| format!("cannot ask for the free space at {}", folder.display()))?;
    let free_mib = disk.f_bavail.saturating_mul(disk.f_frsize) >> 20;
    ensure!(
        free_mib >= FREE_MIB_MIN,
        "{free_mib} MiB are free at {}, and the guests' packages need {FREE_MIB_MIN}",
        folder.display()
    );
    Ok(())
}

/// A private state of apt.
struct Fetch {
    folder: PathBuf,
    release: String,
}

impl Fetch {
    fn new(folder: PathBuf, release: &str) -> Result<Fetch> {
        remove(&folder)?;
        for below in ["lists/partial", "cache/archives/partial"] {
            let path = folder.join(below);
            fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        }
        // No package is installed, so every dependency is downloaded.
        File::create(folder.join("status"))?;
        Ok(Fetch {
            folder,
            release: release.to_owned(),
        })
    }

    /// Downloads packages with what they depend on, and the newest kernel.
    fn archives(&self, packages: &[String]) -> Result<Vec<PathBuf>> {
        let sources = self.machine_sources()?;
        println!("  fetching lists of packages");
        self.update(&sources)?;
        let kernel = match self.kernel()? {
            Some(kernel) => kernel,
            None => {
                let more = backports(&sources, &self.release)?;
                self.update(&[sources, vec![more]].concat())?;
                self.kernel()?.with_context(|| {
                    format!(
                        "no kernel {KERNEL} in {0} and {0}-backports of the machine's apt sources",
                        self.release
                    )
                })?
            }
        };
        println!("  fetching {kernel}, {}", packages.join(", "));
        let mut line = vec!["install", "--yes", "--download-only"];
        line.extend(packages.iter().map(String::as_str));
        self.apt("apt-get", &line)?;
        let archives = self.folder.join("cache/archives");
        // The kernel alone: what it depends on is for machines that start from a disk.
        let output = self
            .command("apt-get", &["download", &kernel])
            .current_dir(&archives)
            .output();
        said("apt-get download", output)?;
        let mut found = Vec::new();
        for entry in fs::read_dir(&archives)? {
            let path = entry?.path();
            if path.extension().is_some_and(|ending| ending == "deb") {
                found.push(path);
            }
        }
        found.sort();
        Ok(found)
    }

    /// The sources of this release that the machine itself has, as lines for apt. It is asked what it
    /// would fetch, which it knows even where it has never fetched anything.
    fn machine_sources(&self) -> Result<Vec<String>> {
        let lists = format!("Dir::State::lists={}/lists", self.folder.display());
        let output = Command::new("apt-get")
            .args(["-o", &lists, "update", "--print-uris"])
            .output();
        let sources = sources(&said("apt-get update --print-uris", output)?, &self.release);
        ensure!(
            !sources.is_empty(),
            "apt has no source for {}: `apt-get update --print-uris` names none",
            self.release
        );
        Ok(sources)
    }

    fn update(&self, sources: &[String]) -> Result<()> {
        fs::write(self.folder.join("sources.list"), sources.join("\n") + "\n")?;
        self.apt("apt-get", &["update"]).map(|_| ())
    }

    /// The newest package of the kernel, if the lists have one.
    fn kernel(&self) -> Result<Option<String>> {
        let name = format!("^linux-image-{KERNEL}");
        Ok(newest_kernel(
            &self.apt("apt-cache", &["search", "--names-only", &name])?,
        ))
    }

    fn apt(&self, program: &str, arguments: &[&str]) -> Result<String> {
        let line = format!("{program} {}", arguments.join(" "));
        said(&line, self.command(program, arguments).output())
    }

    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let folder = self.folder.display();
        let mut command = Command::new(program);
        for option in [
            format!("Dir::State={folder}"),
            format!("Dir::State::lists={folder}/lists"),
            format!("Dir::State::status={folder}/status"),
            format!("Dir::Cache={folder}/cache"),
            format!("Dir::Etc::sourcelist={folder}/sources.list"),
            "Dir::Etc::sourceparts=/dev/null".to_owned(),
            "Dir::Etc::preferences=/dev/null".to_owned(),
            "Dir::Etc::preferencesparts=/dev/null".to_owned(),
            format!("APT::Architecture={ARCHITECTURE}"),
            "APT::Install-Recommends=false".to_owned(),
            // The folder may be one that the user which apt would change to cannot enter.
            "APT::Sandbox::User=root".to_owned(),
            "Acquire::Languages=none".to_owned(),
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".to_owned(),
            "Acquire::Retries=3".to_owned(),
            // Without it, lists that cannot be fetched are only warned of.
            "APT::Update::Error-Mode=any".to_owned(),
        ] {
            command.args(["-o", &option]);
        }
        command
            .args(arguments)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .stdin(Stdio::null());
        command
    }
}

/// What a program printed; what it complained of is the error if it failed.
fn said(line: &str, output: std::io::Result<std::process::Output>) -> Result<String> {
    let output = output.with_context(|| format!("cannot start `{line}`"))?;
    ensure!(
        output.status.success(),
        "`{line}` ended with {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// From the addresses that apt would fetch the lines of a sources list that belong to this release: its
/// own, its updates and its security updates.
fn sources(addresses: &str, release: &str) -> Vec<String> {
    let options = if Path::new(KEYRING).exists() {
        format!("[signed-by={KEYRING}] ")
    } else {
        String::new()
    };
    let mut sources: Vec<String> = Vec::new();
    for line in addresses.lines() {
        // 'ADDRESS/dists/SUITE/InRelease' FILE SIZE
        let address = line
            .strip_prefix('\'')
            .and_then(|line| line.split_once('\''));
        let suite = address
            .and_then(|(address, _)| address.strip_suffix("/InRelease"))
            .and_then(|address| address.split_once("/dists/"));
        let Some((address, suite)) = suite else {
            continue;
        };
        let rest = suite.strip_prefix(release);
        if rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-')) {
            let line = format!("deb {options}{address} {suite} main");
            if !sources.contains(&line) {
                sources.push(line);
            }
        }
    }
    sources
}

/// The line for the backports of a release, which are beside the release itself.
fn backports(sources: &[String], release: &str) -> Result<String> {
    let end = format!(" {release} main");
    let own = sources.iter().find_map(|line| line.strip_suffix(&end));
    let own = own.with_context(|| format!("apt has no source for {release} itself"))?;
    Ok(format!("{own} {release}-backports main"))
}

/// The newest plain kernel in the output of a search: not the variants for clouds or real time, not
/// the unsigned ones, not the package that only depends on the newest.
fn newest_kernel(found: &str) -> Option<String> {
    let ending = format!("-{ARCHITECTURE}");
    let version = |name: &str| -> Option<Vec<u32>> {
        let version = name.strip_prefix("linux-image-")?.strip_suffix(&ending)?;
        let (numbers, build) = version.split_once('+').unwrap_or((version, ""));
        if build.contains('-') {
            return None;
        }
        let numbers: Option<Vec<u32>> = numbers.split('.').map(|part| part.parse().ok()).collect();
        numbers.filter(|numbers| numbers.len() > 2)
    };
    let names = found.lines().filter_map(|line| line.split(' ').next());
    let newest = names
        .filter_map(|name| Some((version(name)?, name)))
        .max()?;
    Some(newest.1.to_owned())
}

/// Unpacks what guests can use of packages: documentation stays behind.
fn unpack(archives: &[PathBuf], root: &Path) -> Result<()> {
    for folder in MERGED {
        let inside = format!("usr/{folder}");
        fs::create_dir_all(root.join(&inside))?;
        std::os::unix::fs::symlink(&inside, root.join(folder))?;
    }
    for archive in archives {
        let what = || format!("cannot unpack {}", archive.display());
        let mut reader = Command::new("dpkg-deb")
            .arg("--fsys-tarfile")
            .arg(archive)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(what)?;
        let tar = reader.stdout.take().with_context(what)?;
        let status = Command::new("tar")
            .args(["--extract", "--keep-directory-symlink", "--no-same-owner"])
            .args(["--exclude=./usr/share", "--directory"])
            .arg(root)
            .stdin(tar)
            .status()
            .with_context(what)?;
        let read = reader.wait().with_context(what)?;
        ensure!(status.success() && read.success(), what());
    }
    let mut list = File::create(root.join("packages"))?;
    for archive in archives {
        let name = archive.file_name().unwrap_or_default().to_string_lossy();
        writeln!(list, "{name}")?;
    }
    Ok(())
}

/// Removes a file or a folder with all that is in it, if it is there.
pub(crate) fn remove(path: &Path) -> Result<()> {
    let removed = match path.symlink_metadata() {
        Ok(what) if what.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    };
    removed.with_context(|| format!("cannot remove {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_is_debians_or_an_error_that_says_what_it_is() {
        let text = "PRETTY_NAME=\"x\"\nID=debian\nVERSION_CODENAME=\"bookworm\"\n";
        assert_eq!(release(text).unwrap(), "bookworm");
        let error = release("ID=fedora\n").unwrap_err().to_string();
        assert!(error.ends_with("this one is fedora"), "{error}");
        assert!(release("").unwrap_err().to_string().ends_with("unknown"));
    }

    #[test]
    fn only_sources_of_the_release_are_taken_and_each_once() {
        let address = |address: &str| format!("'http://{address}' file 0 \n");
        let said = [
            address("x/debian/dists/bookworm/InRelease"),
            address("x/debian/dists/bookworm/InRelease"),
            address("x/debian/dists/bookworm/main/binary-amd64/Packages.xz"),
            address("x/sec/dists/bookworm-security/InRelease"),
            address("y/dists/nodistro/InRelease"),
            address("z/dists/bookwormish/InRelease"),
            address("z/flat/InRelease"),
            "strange\n".to_owned(),
        ];
        let taken = sources(&said.concat(), "bookworm");
        assert_eq!(taken.len(), 2, "{taken:?}");
        assert!(taken[0].ends_with("http://x/debian bookworm main"));
        assert!(taken[1].ends_with("http://x/sec bookworm-security main"));
        let more = backports(&taken, "bookworm").unwrap();
        assert!(more.ends_with("http://x/debian bookworm-backports main"));
        assert!(backports(&taken[1..], "bookworm").is_err());
    }

    #[test]
    fn the_newest_kernel_is_the_one_with_the_largest_numbers() {
        let found = "linux-image-6.12-amd64 - newest\n\
                     linux-image-6.12.9+deb12-amd64 - old\n\
                     linux-image-6.12.117+deb12-amd64 - Linux\n\
                     linux-image-6.12.118+deb12-cloud-amd64 - Linux\n\
                     linux-image-6.12.118+deb12-amd64-unsigned - Linux\n\
                     linux-image-6.12.118+deb12-amd64-dbg - Linux\n";
        assert_eq!(
            newest_kernel(found).as_deref(),
            Some("linux-image-6.12.117+deb12-amd64")
        );
        assert_eq!(newest_kernel("linux-image-6.12-amd64 - x\n"), None);
    }
}
