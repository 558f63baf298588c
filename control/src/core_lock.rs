//! One lock file per worker core, so that two appliances never spin on one core unnoticed.
//!
//! The file `pollux_core_NNN.lock` lies in a folder that all appliances of the host share. Who
//! holds its `flock` owns the core; the text inside, `PID NAME`, is only there to be quoted to
//! the next one who asks. The kernel lets go of a lock when its holder dies, so a left-over file
//! means nothing. A holder that ends in order removes the file; whoever locks checks that the
//! file it locked is still the one in the folder.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

use crate::host::Root;
use crate::runtime_dir::may_write;

/// The core is held while this value lives.
#[derive(Debug)]
pub struct CoreLock {
    core: u32,
    path: PathBuf,
    /// Open for as long as the lock is wanted: closing the file lets go of it.
    _file: File,
}

/// A core could not be locked.
#[derive(Debug, thiserror::Error)]
pub enum CoreLockError {
    /// Another appliance holds it.
    #[error("core {core} is already owned by {holder}; choose another with workers.cores")]
    Owned {
        /// The core.
        core: u32,
        /// Who holds it, as the lock file says.
        holder: Holder,
    },
    /// The folder could be changed by anybody.
    #[error(
        "lock folder {} is writable by everybody and has no sticky bit (mode {mode:04o}); \
         chmod +t it, or choose another with workers.lock_dir",
        path.display()
    )]
    OpenFolder {
        /// The folder.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The path of a lock file is taken by something that is not ours.
    #[error(
        "{} is not a lock file of user {uid}: {what}; remove it, or choose another folder with \
         workers.lock_dir",
        path.display()
    )]
    Foreign {
        /// The path.
        path: PathBuf,
        /// The user who asked.
        uid: u32,
        /// What is there.
        what: String,
    },
    /// A system call failed.
    #[error("cannot {action} {}: {error}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// The kernel's answer.
        error: io::Error,
    },
}

/// Who holds a core, as far as its lock file tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// The appliance wrote its name and process id.
    Known {
        /// `appliance.name` of the holder.
        name: String,
        /// Its process id.
        pid: u32,
    },
    /// The holder has not written anything readable into the named file.
    Unknown(PathBuf),
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Holder::Known { name, pid } => write!(f, "polluxd {name:?} (pid {pid})"),
            Holder::Unknown(path) => {
                write!(
                    f,
                    "another process, which has not put its name into {}",
                    path.display()
                )
            }
        }
    }
}

/// Longest text that is read from somebody else's lock file, in bytes.
const HOLDER_BYTES_MAX: u64 = 256;

/// How often a lock is tried again when its file is removed by a holder that ends meanwhile.
const ATTEMPTS_MAX: u32 = 16;

impl CoreLock {
    /// Takes `core` in `folder` for the appliance called `name`. Never waits.
    ///
    /// # Errors
    /// Somebody holds it, the folder or the file is not to be trusted, or a system call failed.
    pub fn acquire(folder: &Path, core: u32, name: &str) -> Result<CoreLock, CoreLockError> {
        check_folder(folder)?;
        let path = lock_path(folder, core);
        for _ in 0..ATTEMPTS_MAX {
            let mut file = open(&path)?;
            check_file(&path, &file)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => {
                    return Err(CoreLockError::Owned {
                        core,
                        holder: holder(&path, &mut file),
                    });
                }
                Err(error) => return Err(failed("lock", &path)(error.into())),
            }
            // The last holder may have removed the file between our open and our lock; then the
            // lock is on a file that nobody else will ever open.
            if !is_in_place(&path, &file) {
                continue;
            }
            file.set_len(0).map_err(failed("empty", &path))?;
            writeln!(file, "{} {name}", std::process::id()).map_err(failed("write", &path))?;
            return Ok(CoreLock {
                core,
                path,
                _file: file,
            });
        }
        Err(CoreLockError::Owned {
            core,
            holder: Holder::Unknown(path),
        })
    }

    /// What [`CoreLock::acquire`] would find, without taking the lock for even a moment: who holds
    /// which lock is read in the kernel's table of locks below `root`.
    ///
    /// # Errors
    /// As [`CoreLock::acquire`]. A folder that is not there is no error: the start makes it.
    pub fn look(folder: &Path, core: u32, root: &Root) -> Result<(), CoreLockError> {
        if fs::symlink_metadata(folder).is_err_and(|e| e.kind() == io::ErrorKind::NotFound) {
            return Ok(());
        }
        check_folder(folder)?;
        let path = lock_path(folder, core);
        let flags = i32::try_from((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits()).unwrap_or_default();
        let mut file = match OpenOptions::new()
            .read(true)
            .custom_flags(flags)
            .open(&path)
        {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return may_write(folder).map_err(failed("open lock file", &path));
            }
            Err(error) => return Err(failed("open lock file", &path)(error)),
        };
        check_file(&path, &file)?;
        let meta = file.metadata().map_err(failed("look at", &path))?;
        if !is_locked(root, meta.dev(), meta.ino()) {
            return Ok(());
        }
        let holder = holder(&path, &mut file);
        Err(CoreLockError::Owned { core, holder })
    }

    /// The core that is held.
    #[must_use]
    pub fn core(&self) -> u32 {
        self.core
    }

    /// The lock file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for CoreLock {
    fn drop(&mut self) {
        // Removed while still locked, so nobody else can have made it theirs. A failure leaves a
        // file behind, which does no harm.
        let _ = fs::remove_file(&self.path);
    }
}

/// Refuses a folder in which anybody could replace our files.
fn check_folder(folder: &Path) -> Result<(), CoreLockError> {
    let meta = fs::metadata(folder).map_err(failed("use lock folder", folder))?;
    if !meta.is_dir() {
        let error = io::Error::from(io::ErrorKind::NotADirectory);
        return Err(failed("use lock folder", folder)(error));
    }
    let mode = meta.mode() & 0o7777;
    if mode & 0o002 != 0 && mode & 0o1000 == 0 {
        return Err(CoreLockError::OpenFolder {
            path: folder.to_path_buf(),
            mode,
        });
    }
    Ok(())
}

fn lock_path(folder: &Path, core: u32) -> PathBuf {
    folder.join(format!("pollux_core_{core:03}.lock"))
}

/// Whether somebody holds the `flock` of a file, by the kernel's table of locks: `1: FLOCK ADVISORY
/// WRITE PID MAJOR:MINOR:INODE 0 EOF`, major and minor in hexadecimal.
fn is_locked(root: &Root, device: u64, inode: u64) -> bool {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let place = format!("{major:02x}:{minor:02x}:{inode}");
    let table = root.text("/proc/locks").unwrap_or_default();
    table.lines().any(|line| {
        // One that waits has an arrow in front: `1: -> FLOCK ...`.
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        fields.get(1) == Some(&"FLOCK") && fields.get(5) == Some(&place.as_str())
    })
}

fn open(path: &Path) -> Result<File, CoreLockError> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let flags = i32::try_from(flags.bits()).unwrap_or_default();
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .custom_flags(flags)
        .mode(0o644);
    match options.clone().create(true).truncate(false).open(path) {
        // In a sticky folder the kernel refuses O_CREAT on a file of another user, even for root;
        // without it the file opens and its owner can be named.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            OpenOptions::new().read(true).custom_flags(flags).open(path)
        }
        result => result,
    }
    .map_err(failed("open lock file", path))
}

/// Refuses a file that could be somebody's trap: another owner, another kind, a second name.
fn check_file(path: &Path, file: &File) -> Result<(), CoreLockError> {
    let meta = file.metadata().map_err(failed("look at", path))?;
    let uid = rustix::process::geteuid().as_raw();
    let what = if !meta.is_file() {
        "it is no ordinary file".to_string()
    } else if meta.uid() != uid {
        format!("it belongs to user {}", meta.uid())
    } else if meta.nlink() > 1 {
        format!("it has {} names", meta.nlink())
    } else {
        return Ok(());
    };
    Err(CoreLockError::Foreign {
        path: path.to_path_buf(),
        uid,
        what,
    })
}

fn is_in_place(path: &Path, file: &File) -> bool {
    match (fs::symlink_metadata(path), file.metadata()) {
        (Ok(named), Ok(locked)) => (named.dev(), named.ino()) == (locked.dev(), locked.ino()),
        _ => false,
    }
}

fn holder(path: &Path, file: &mut File) -> Holder {
    let mut text = String::new();
    let readable = file
        .take(HOLDER_BYTES_MAX)
        .read_to_string(&mut text)
        .is_ok();
    match text
        .trim_end()
        .split_once(' ')
        .and_then(|(pid, name)| Some((pid.parse().ok()?, name)))
    {
        Some((pid, name)) if readable => Holder::Known {
            name: name.to_string(),
            pid,
        },
        _ => Holder::Unknown(path.to_path_buf()),
    }
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> CoreLockError {
    let path = path.to_path_buf();
    move |error| CoreLockError::Io {
        action,
        path,
        error,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn the_second_asker_is_told_who_holds_the_core() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let lock = CoreLock::acquire(dir.path(), 1, "first").expect("a free core");
        assert!(lock.path().ends_with("pollux_core_001.lock"));
        let refused = CoreLock::acquire(dir.path(), 1, "second").expect_err("a taken core");
        assert_eq!(
            refused.to_string(),
            format!(
                "core 1 is already owned by polluxd \"first\" (pid {}); choose another with \
                 workers.cores",
                std::process::id()
            )
        );
        CoreLock::acquire(dir.path(), 2, "second").expect("another core is free");
    }

    #[test]
    fn a_look_says_what_the_asker_would_be_told_and_takes_nothing() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let look = |core| CoreLock::look(dir.path(), core, &Root::system());
        look(1).expect("a free core");
        assert_eq!(fs::read_dir(dir.path()).expect("folder").count(), 0);
        let lock = CoreLock::acquire(dir.path(), 1, "first").expect("a free core");
        let refused = CoreLock::acquire(dir.path(), 1, "second").expect_err("a taken core");
        let seen = look(1).expect_err("a taken core");
        assert_eq!(seen.to_string(), refused.to_string());
        look(2).expect("another core");
        drop(lock);
        look(1).expect("free again");
        fs::write(dir.path().join("pollux_core_003.lock"), "1 dead\n").expect("file");
        look(3).expect("nobody locks it");
        let set = |mode| fs::set_permissions(dir.path(), fs::Permissions::from_mode(mode));
        set(0o777).expect("chmod");
        let refused = look(0).expect_err("an open folder");
        assert!(
            matches!(refused, CoreLockError::OpenFolder { .. }),
            "{refused}"
        );
    }

    #[test]
    fn a_core_let_go_leaves_nothing_behind_and_can_be_taken_again() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let path = CoreLock::acquire(dir.path(), 7, "a")
            .expect("a free core")
            .path()
            .to_path_buf();
        assert!(!path.exists());
        CoreLock::acquire(dir.path(), 7, "b").expect("free again");
    }

    #[test]
    fn the_file_of_a_dead_holder_does_not_lock_the_core() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let path = dir.path().join("pollux_core_003.lock");
        fs::write(&path, "1 dead, with a much longer text than ours\n").expect("file");
        let lock = CoreLock::acquire(dir.path(), 3, "alive").expect("nobody locks it");
        let text = fs::read_to_string(lock.path()).expect("file");
        assert_eq!(text, format!("{} alive\n", std::process::id()));
    }

    #[test]
    fn a_holder_that_wrote_nothing_is_told_as_such() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let path = dir.path().join("pollux_core_000.lock");
        let file = File::create(&path).expect("file");
        flock(&file, FlockOperation::NonBlockingLockExclusive).expect("lock");
        let refused = CoreLock::acquire(dir.path(), 0, "b").expect_err("a taken core");
        assert!(
            refused.to_string().contains("has not put its name into"),
            "{refused}"
        );
    }

    #[test]
    fn a_folder_that_everybody_may_change_is_refused_unless_sticky() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let set = |mode| fs::set_permissions(dir.path(), fs::Permissions::from_mode(mode));
        set(0o777).expect("chmod");
        let refused = CoreLock::acquire(dir.path(), 0, "a").expect_err("an open folder");
        assert!(
            refused.to_string().contains("no sticky bit (mode 0777)"),
            "{refused}"
        );
        set(0o1777).expect("chmod");
        CoreLock::acquire(dir.path(), 0, "a").expect("a sticky folder");
    }

    #[test]
    fn links_and_second_names_are_no_lock_files() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let precious = dir.path().join("precious");
        fs::write(&precious, "text").expect("file");
        symlink(&precious, dir.path().join("pollux_core_000.lock")).expect("link");
        fs::hard_link(&precious, dir.path().join("pollux_core_001.lock")).expect("link");
        let by_link = CoreLock::acquire(dir.path(), 0, "a").expect_err("a symbolic link");
        assert!(matches!(by_link, CoreLockError::Io { .. }), "{by_link}");
        let by_name = CoreLock::acquire(dir.path(), 1, "a").expect_err("a hard link");
        assert!(by_name.to_string().contains("it has 2 names"), "{by_name}");
        assert_eq!(fs::read_to_string(&precious).expect("file"), "text");
    }

    #[test]
    fn a_missing_folder_is_named() {
        let refused = CoreLock::acquire(Path::new("/no/such/folder"), 0, "a").expect_err("missing");
        assert!(refused.to_string().contains("/no/such/folder"), "{refused}");
    }
}
