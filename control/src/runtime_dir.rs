//! Folders for things that live as long as an appliance: made with mode 0700, and trusted only
//! when nobody else could have put something there.

use std::fs::{self, DirBuilder, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A folder for the sockets of one appliance. Removed at the end when it was made by this value
/// and is empty.
#[derive(Debug)]
pub struct RuntimeDir {
    path: PathBuf,
    /// What was made, outermost first.
    made: Vec<PathBuf>,
}

/// A folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeDirError {
    /// Somebody else could change what is in it.
    #[error("folder {} is not safe for {key}: {what}; {cure}", path.display())]
    Unsafe {
        /// The folder, or one above it.
        path: PathBuf,
        /// The key that chooses it.
        key: &'static str,
        /// What is wrong.
        what: String,
        /// What to do.
        cure: &'static str,
    },
    /// A system call failed.
    #[error("cannot {action} {} for {key}: {error}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// The key that chooses the folder.
        key: &'static str,
        /// The kernel's answer.
        error: io::Error,
    },
}

impl RuntimeDir {
    /// Makes the folder, and those above it, where they are missing, and checks it. `key` is the
    /// configuration key that chooses it, for errors.
    ///
    /// # Errors
    /// It cannot be made, or others could change what is in it.
    pub fn open(path: &Path, key: &'static str) -> Result<RuntimeDir, RuntimeDirError> {
        let made = make(path, key)?;
        let dir = RuntimeDir {
            path: path.to_path_buf(),
            made,
        };
        check_own(path, key)?;
        if let Some(parent) = path.parent() {
            check_parent(parent, key)?;
        }
        Ok(dir)
    }

    /// What [`RuntimeDir::open`] would find, without making anything.
    ///
    /// # Errors
    /// As [`RuntimeDir::open`].
    pub fn look(path: &Path, key: &'static str) -> Result<Seen, RuntimeDirError> {
        let missing = missing(path);
        let Some(first) = missing.first() else {
            check_own(path, key)?;
            if let Some(parent) = path.parent() {
                check_parent(parent, key)?;
            }
            return Ok(Seen::There);
        };
        let above = first.parent().unwrap_or(Path::new("/"));
        may_write(above).map_err(|error| RuntimeDirError::Io {
            action: MAKE,
            path: first.to_path_buf(),
            key,
            error,
        })?;
        // What is made on the way belongs to this user; only what was there before can be unsafe.
        if missing.len() == 1 {
            check_parent(above, key)?;
        }
        Ok(Seen::Missing)
    }

    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Leaves the folder in place at the end, for folders that several appliances share.
    pub fn keep(mut self) {
        self.made.clear();
    }
}

/// Whether a folder that could be used is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// It is.
    There,
    /// It is not, and can be made.
    Missing,
}

/// Types of file systems that hold what the kernel makes up (linux/magic.h).
const PROC_MAGIC: rustix::fs::FsWord = 0x9fa0;
const SYSFS_MAGIC: rustix::fs::FsWord = 0x6265_6572;

/// What is tried on a folder that is missing.
const MAKE: &str = "make folder";

/// Whether this process may put something into a folder, as the kernel would answer.
pub(crate) fn may_write(folder: &Path) -> io::Result<()> {
    use rustix::fs::{Access, AtFlags, CWD, accessat};
    if folder.exists() && !folder.is_dir() {
        return Err(io::Error::from(rustix::io::Errno::NOTDIR));
    }
    let how = Access::WRITE_OK | Access::EXEC_OK;
    accessat(CWD, folder, how, AtFlags::EACCESS)?;
    // What the kernel makes up takes nothing, whatever its modes say.
    match rustix::fs::statfs(folder)?.f_type {
        PROC_MAGIC => Err(io::Error::from(rustix::io::Errno::NOENT)),
        SYSFS_MAGIC => Err(io::Error::from(rustix::io::Errno::PERM)),
        _ => Ok(()),
    }
}

impl Drop for RuntimeDir {
    fn drop(&mut self) {
        for dir in self.made.iter().rev() {
            // Fails when somebody else uses the folder, as it should.
            if fs::remove_dir(dir).is_err() {
                break;
            }
        }
    }
}

/// The folders that are missing, outermost first.
fn missing(path: &Path) -> Vec<&Path> {
    let mut missing: Vec<&Path> = path
        .ancestors()
        .take_while(|dir| !dir.as_os_str().is_empty() && fs::symlink_metadata(dir).is_err())
        .collect();
    missing.reverse();
    missing
}

/// Makes what is missing; gives what was made, outermost first.
fn make(path: &Path, key: &'static str) -> Result<Vec<PathBuf>, RuntimeDirError> {
    let mut made = Vec::new();
    for dir in missing(path) {
        match DirBuilder::new().mode(0o700).create(dir) {
            Ok(()) => made.push(dir.to_path_buf()),
            // Another appliance that starts at the same time.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => {
                let path = dir.to_path_buf();
                return Err(RuntimeDirError::Io {
                    action: MAKE,
                    path,
                    key,
                    error,
                });
            }
        }
    }
    Ok(made)
}

fn look(path: &Path, key: &'static str) -> Result<Metadata, RuntimeDirError> {
    fs::symlink_metadata(path).map_err(|error| RuntimeDirError::Io {
        action: "look at folder",
        path: path.to_path_buf(),
        key,
        error,
    })
}

/// The folder itself: a folder, ours, and writable by nobody else.
fn check_own(path: &Path, key: &'static str) -> Result<(), RuntimeDirError> {
    let meta = look(path, key)?;
    let uid = rustix::process::geteuid().as_raw();
    let mode = meta.mode() & 0o7777;
    let (what, cure) = if !meta.is_dir() {
        (
            "it is no folder".to_string(),
            "remove it or choose another path",
        )
    } else if meta.uid() != uid {
        (
            format!("it belongs to user {}, not {uid}", meta.uid()),
            "choose another path",
        )
    } else if mode & 0o022 != 0 {
        // Never chmod what was there before: it may be /tmp.
        (
            format!("others may write to it (mode {mode:04o})"),
            "choose one of its own, or chmod 700",
        )
    } else {
        return Ok(());
    };
    Err(RuntimeDirError::Unsafe {
        path: path.to_path_buf(),
        key,
        what,
        cure,
    })
}

/// The folder above: nobody else may rename what is in it.
fn check_parent(path: &Path, key: &'static str) -> Result<(), RuntimeDirError> {
    let meta = fs::metadata(path).map_err(|error| RuntimeDirError::Io {
        action: "look at folder",
        path: path.to_path_buf(),
        key,
        error,
    })?;
    let uid = rustix::process::geteuid().as_raw();
    let mode = meta.mode() & 0o7777;
    let what = if meta.uid() != uid && meta.uid() != 0 {
        format!("it belongs to user {}", meta.uid())
    } else if mode & 0o022 != 0 && mode & 0o1000 == 0 {
        format!("others may write to it and it has no sticky bit (mode {mode:04o})")
    } else {
        return Ok(());
    };
    let cure = "choose a path elsewhere";
    Err(RuntimeDirError::Unsafe {
        path: path.to_path_buf(),
        key,
        what,
        cure,
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    const KEY: &str = "appliance.runtime_dir";

    fn chmod(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("chmod");
    }

    #[test]
    fn a_look_refuses_what_the_start_refuses_in_the_same_words_and_makes_nothing() {
        let base = tempfile::tempdir().expect("temporary folder");
        let at = |name: &str| base.path().join(name);
        fs::write(at("file"), "text").expect("file");
        fs::create_dir(at("open")).expect("folder");
        chmod(&at("open"), 0o777);
        fs::create_dir(at("own")).expect("folder");
        chmod(&at("own"), 0o700);
        for (name, expected) in [
            ("file", None),
            ("file/below", None),
            ("open", None),
            ("open/below", None),
            ("own", Some(Seen::There)),
            ("own/below", Some(Seen::Missing)),
            ("open/below/both", Some(Seen::Missing)),
            ("/proc/nowhere", None),
            ("/sys/nowhere/below", None),
        ] {
            let seen = RuntimeDir::look(&at(name), KEY).map_err(|error| error.to_string());
            assert_eq!(seen.clone().ok(), expected, "{name}: {seen:?}");
            assert!(name != "open/below" || !at(name).exists());
            let opened = RuntimeDir::open(&at(name), KEY).map_err(|error| error.to_string());
            assert_eq!(seen.err(), opened.err(), "{name}");
        }
    }

    #[test]
    fn missing_folders_are_made_private_and_removed_at_the_end() {
        let base = tempfile::tempdir().expect("temporary folder");
        let path = base.path().join("a/b");
        let dir = RuntimeDir::open(&path, KEY).expect("a new folder");
        let mode = fs::metadata(dir.path()).expect("stat").mode() & 0o777;
        assert_eq!(mode, 0o700);
        drop(dir);
        assert!(!base.path().join("a").exists());
    }

    #[test]
    fn a_folder_that_was_there_or_is_in_use_stays() {
        let base = tempfile::tempdir().expect("temporary folder");
        drop(RuntimeDir::open(base.path(), KEY).expect("an old folder"));
        assert!(base.path().exists());
        let path = base.path().join("a");
        let dir = RuntimeDir::open(&path, KEY).expect("a new folder");
        fs::write(path.join("file"), "").expect("file");
        drop(dir);
        assert!(path.exists());
    }

    #[test]
    fn a_folder_that_others_may_change_is_refused_and_not_touched() {
        let base = tempfile::tempdir().expect("temporary folder");
        let path = base.path().join("open");
        fs::create_dir(&path).expect("folder");
        chmod(&path, 0o1777);
        let refused = RuntimeDir::open(&path, KEY)
            .expect_err("an open folder")
            .to_string();
        assert!(
            refused.contains("others may write to it (mode 1777)"),
            "{refused}"
        );
        assert_eq!(fs::metadata(&path).expect("stat").mode() & 0o7777, 0o1777);
        // Inside a sticky folder, one of our own is safe; inside one without, it is not.
        RuntimeDir::open(&path.join("own"), KEY).expect("a folder inside");
        chmod(&path, 0o777);
        let refused = RuntimeDir::open(&path.join("own"), KEY).expect_err("no sticky bit");
        assert!(refused.to_string().contains("no sticky bit"), "{refused}");
    }

    #[test]
    fn what_is_no_folder_is_told() {
        let base = tempfile::tempdir().expect("temporary folder");
        let file = base.path().join("file");
        fs::write(&file, "").expect("file");
        let refused = RuntimeDir::open(&file, KEY)
            .expect_err("a file")
            .to_string();
        assert!(refused.contains("it is no folder"), "{refused}");
        let link = base.path().join("link");
        symlink(base.path(), &link).expect("link");
        let refused = RuntimeDir::open(&link, KEY)
            .expect_err("a link")
            .to_string();
        assert!(refused.contains("it is no folder"), "{refused}");
        let below = RuntimeDir::open(&file.join("x"), KEY)
            .expect_err("below a file")
            .to_string();
        assert!(below.starts_with("cannot make folder"), "{below}");
    }
}
