//! Which cgroup this process is in.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Why the cgroup of this process is not known.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// A file of the kernel cannot be read.
    #[error("cannot read {path:?}: {error}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// There is no cgroup2 file system here.
    #[error(
        "no cgroup2 file system is mounted; mount one (`mount -t cgroup2 none FOLDER`), and name its \
         folder"
    )]
    NotMounted,
}

/// The folder of the cgroup (version 2) that this process is in.
///
/// # Errors
/// [`CgroupError`].
pub fn own_cgroup() -> Result<PathBuf, CgroupError> {
    let read = |path: &str| {
        fs::read_to_string(path).map_err(|error| CgroupError::Read {
            path: path.into(),
            error,
        })
    };
    let (mounts, own) = (read("/proc/self/mountinfo")?, read("/proc/self/cgroup")?);
    find(&mounts, &own).ok_or(CgroupError::NotMounted)
}

/// The folder, from the mounts of this process and the cgroups that it is in.
fn find(mounts: &str, own: &str) -> Option<PathBuf> {
    let own = own.lines().find_map(|line| line.strip_prefix("0::"))?;
    let mounts = mounts.lines().filter_map(|line| {
        // ID, parent, device, root, mount point, options and more; behind a dash the kind.
        let (place, kind) = line.split_once(" - ")?;
        let mut place = place.split(' ').skip(3);
        let (root, point) = (place.next()?, place.next()?);
        kind.starts_with("cgroup2 ").then_some((root, point))
    });
    // A mount may show a part of the hierarchy only.
    let mut folders = mounts.filter_map(|(root, point)| {
        let below = Path::new(own).strip_prefix(root).ok()?;
        Some(Path::new(&unescape(point)).join(below))
    });
    folders.next()
}

/// The kernel writes blanks and the like in octal.
fn unescape(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, others)) = rest.split_first() {
        let octal = others.get(..3).filter(|_| *first == b'\\');
        let octal = octal.and_then(|octal| str::from_utf8(octal).ok());
        match octal.and_then(|octal| u8::from_str_radix(octal, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &others[3..];
            }
            None => {
                bytes.push(*first);
                rest = others;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONLY: &str = "25 30 0:23 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n";
    const HYBRID: &str = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
        32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
        33 31 0:31 / /sys/fs/cgroup/uni\\040fied rw - cgroup2 none rw\n";

    #[test]
    fn the_own_folder_is_below_the_mount() {
        let own = "0::/system.slice/polluxd.service\n";
        let found = find(ONLY, own).expect("a folder");
        assert_eq!(
            found,
            Path::new("/sys/fs/cgroup/system.slice/polluxd.service")
        );
        let own = "12:cpu:/a\n0::/\n";
        assert_eq!(
            find(HYBRID, own).expect("a folder"),
            Path::new("/sys/fs/cgroup/uni fied/")
        );
    }

    #[test]
    fn a_mount_that_shows_only_a_part_counts_from_there() {
        let part = "25 30 0:23 /box /cg rw - cgroup2 cgroup2 rw\n";
        let inside = find(part, "0::/box/a\n").expect("a folder");
        assert_eq!(inside, Path::new("/cg/a"));
        assert_eq!(find(part, "0::/other\n"), None);
    }

    #[test]
    fn without_version_two_there_is_none() {
        let old = HYBRID.replace("cgroup2", "cgroup");
        assert_eq!(find(&old, "0::/\n"), None);
        assert_eq!(find(ONLY, "3:cpu:/\n"), None);
        assert_eq!(find("", ""), None);
    }
}
