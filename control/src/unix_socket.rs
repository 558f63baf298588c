//! Listening Unix sockets at paths that outlive processes.
//!
//! A socket file tells nothing about who serves it, so a new appliance asks: a connection that is
//! refused means that the last owner has died, and its file is taken over; one that is accepted
//! means that the path is in use. The new socket is bound under another name, made private,
//! and only when it listens is it renamed to its place: nobody sees it half done. A short lock on
//! the folder keeps two appliances that start at the same moment apart.

use std::fs::{self, File, FileType};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};

use crate::runtime_dir::may_write;

/// How a socket keeps messages apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketKind {
    /// A stream of bytes.
    Stream,
    /// Messages with boundaries.
    SeqPacket,
}

impl SocketKind {
    fn raw(self) -> SocketType {
        match self {
            SocketKind::Stream => SocketType::STREAM,
            SocketKind::SeqPacket => SocketType::SEQPACKET,
        }
    }
}

/// A socket that listens, non-blocking, mode 0600.
#[derive(Debug)]
pub struct BoundSocket {
    /// The socket.
    pub listener: OwnedFd,
    /// Its place in the file system.
    pub path: SocketPath,
    /// Whether the file of a dead appliance was replaced.
    pub place: Place,
}

/// What was at the path before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Nothing.
    Empty,
    /// A socket that nobody served.
    Stale,
}

/// The file of a listening socket, removed when the value is dropped, unless somebody else has
/// put another there.
#[derive(Debug)]
pub struct SocketPath {
    path: PathBuf,
    device: u64,
    inode: u64,
}

/// A path cannot be listened on.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Somebody serves it.
    #[error(
        "another instance{} answers on {}; use another appliance.name or runtime_dir",
        by(*pid),
        path.display()
    )]
    InUse {
        /// The path.
        path: PathBuf,
        /// Process id of the owner, when the kernel tells.
        pid: Option<u32>,
    },
    /// Something else is at the path.
    #[error("{} is {what}, not a socket; remove it, or choose another path with {key}", path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
        /// What is there.
        what: &'static str,
        /// The key that chooses the path.
        key: &'static str,
    },
    /// Other appliances are starting in the same folder and do not come to an end.
    #[error("folder {} is locked by a process that starts and does not get on", path.display())]
    Busy {
        /// The folder.
        path: PathBuf,
    },
    /// A system call failed.
    #[error("cannot {action} {} for {key}: {error}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// The key that chooses the path.
        key: &'static str,
        /// The kernel's answer.
        error: io::Error,
    },
}

/// A process id in brackets for a message, when it is known.
pub(crate) fn by(pid: Option<u32>) -> String {
    pid.map_or(String::new(), |pid| format!(" (pid {pid})"))
}

/// What is tried on a socket that another start has left half done.
const REMOVE: &str = "remove the left-over";

/// What is tried on the folder of a socket first.
const OPEN_FOLDER: &str = "open folder";

/// How long another start in the same folder may hold the lock.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);

/// How often the lock is tried.
const LOCK_RETRY: Duration = Duration::from_millis(10);

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;

/// Name of a socket that is not yet in its place. The lock makes sure there is only one.
const NEW_NAME: &str = ".new";

/// Makes the error of an action from that of the kernel.
fn failed(
    action: &'static str,
    path: &Path,
    key: &'static str,
) -> impl FnOnce(io::Error) -> SocketError + use<> {
    let path = path.to_path_buf();
    move |error| SocketError::Io {
        action,
        path,
        key,
        error,
    }
}

/// Listens on `path`. `key` is the configuration key that chooses it, for errors.
///
/// # Errors
/// The path is in use, holds something else, or a system call failed.
pub fn listen_on(
    path: &Path,
    kind: SocketKind,
    key: &'static str,
) -> Result<BoundSocket, SocketError> {
    let _lock = lock_folder(path, key)?;
    let place = probe(path, kind, key)?;
    if place == Place::Stale {
        tracing::info!("taking over {}, whose appliance has died", path.display());
    }
    let new = path.with_file_name(NEW_NAME);
    let failed = |action, at: &Path| failed(action, at, key);
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(failed(REMOVE, &new)(error));
        }
        _ => {}
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let listener = socket_with(AddressFamily::UNIX, kind.raw(), flags, None)
        .map_err(|error| failed("make a socket for", path)(error.into()))?;
    let address =
        SocketAddrUnix::new(&new).map_err(|error| failed("use as a socket", &new)(error.into()))?;
    bind(&listener, &address).map_err(|error| failed("bind", &new)(error.into()))?;
    let ready = fs::set_permissions(&new, fs::Permissions::from_mode(0o600))
        .map_err(failed("set the mode of", &new))
        .and_then(|()| {
            listen(&listener, BACKLOG).map_err(|error| failed("listen on", path)(error.into()))
        })
        .and_then(|()| fs::rename(&new, path).map_err(failed("put in place", path)))
        .and_then(|()| fs::symlink_metadata(path).map_err(failed("look at", path)));
    match ready {
        Ok(meta) => {
            let path = path.to_path_buf();
            let path = SocketPath {
                path,
                device: meta.dev(),
                inode: meta.ino(),
            };
            Ok(BoundSocket {
                listener,
                path,
                place,
            })
        }
        Err(error) => {
            let _ = fs::remove_file(&new);
            Err(error)
        }
    }
}

/// What [`listen_on`] would find, without making anything: whether the path is free, and whether this
/// process may put a socket into its folder. `made` are folders that will have been made before.
///
/// # Errors
/// As [`listen_on`].
pub fn look(
    path: &Path,
    kind: SocketKind,
    key: &'static str,
    made: &[&Path],
) -> Result<Place, SocketError> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    let failed = |action, at: &Path| failed(action, at, key);
    let is_made = made.iter().any(|made| made.starts_with(folder));
    if !is_made || folder.exists() {
        File::open(folder).map_err(failed(OPEN_FOLDER, folder))?;
    }
    let place = probe(path, kind, key)?;
    if !is_made || folder.exists() {
        let new = path.with_file_name(NEW_NAME);
        // Removing comes first, and fails where there is something to remove, or no folder.
        let first = match fs::symlink_metadata(&new) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => "bind",
            Ok(_) | Err(_) => REMOVE,
        };
        may_write(folder).map_err(failed(first, &new))?;
    }
    Ok(place)
}

/// Finds out whether `path` is free for a socket of this kind.
///
/// # Errors
/// It is in use, holds something else, or a system call failed.
pub fn probe(path: &Path, kind: SocketKind, key: &'static str) -> Result<Place, SocketError> {
    let io = |error| failed("look at", path, key)(error);
    match fs::symlink_metadata(path) {
        // Whoever makes the folder tells what is wrong with it.
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            return Ok(Place::Empty);
        }
        Err(error) => return Err(io(error)),
        Ok(meta) if !meta.file_type().is_socket() => {
            let what = kind_of_file(meta.file_type());
            return Err(SocketError::NotASocket {
                path: path.to_path_buf(),
                what,
                key,
            });
        }
        Ok(_) => {}
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let client = socket_with(AddressFamily::UNIX, kind.raw(), flags, None)
        .map_err(|error| io(error.into()))?;
    let address = SocketAddrUnix::new(path).map_err(|error| io(error.into()))?;
    let in_use = |pid| SocketError::InUse {
        path: path.to_path_buf(),
        pid,
    };
    match connect(&client, &address) {
        Ok(()) => Err(in_use(peer_pid(&client))),
        Err(Errno::CONNREFUSED) => Ok(Place::Stale),
        // Its owner may have removed it just now.
        Err(Errno::NOENT) => Ok(Place::Empty),
        // A full queue, or a socket of another kind: somebody listens.
        Err(Errno::AGAIN | Errno::PROTOTYPE) => Err(in_use(None)),
        Err(error) => Err(io(error.into())),
    }
}

/// Process id of whoever serves a connected socket, as the kernel tells it.
pub(crate) fn peer_pid(socket: impl AsFd) -> Option<u32> {
    pollux_ring::neighbour::pid_of(socket)
}

fn kind_of_file(kind: FileType) -> &'static str {
    if kind.is_dir() {
        "a folder"
    } else if kind.is_symlink() {
        "a symbolic link"
    } else if kind.is_file() {
        "an ordinary file"
    } else if kind.is_fifo() {
        "a pipe"
    } else {
        "a device"
    }
}

/// Holds the folder of `path` against other starts.
fn lock_folder(path: &Path, key: &'static str) -> Result<File, SocketError> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    let failed = |action| failed(action, folder, key);
    let file = File::open(folder).map_err(failed(OPEN_FOLDER))?;
    let deadline = Instant::now() + LOCK_TIMEOUT;
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) if Instant::now() < deadline => std::thread::sleep(LOCK_RETRY),
            Err(Errno::WOULDBLOCK) => {
                return Err(SocketError::Busy {
                    path: folder.to_path_buf(),
                });
            }
            Err(error) => return Err(failed("lock folder")(error.into())),
        }
    }
}

impl SocketPath {
    /// The path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketPath {
    fn drop(&mut self) {
        // Without the lock the file could be replaced between the look and the removal; when the
        // lock is not to be had, a left-over socket does less harm than a lost one.
        let Ok(_lock) = lock_folder(&self.path, "") else {
            return;
        };
        let ours = |meta: &fs::Metadata| (meta.dev(), meta.ino()) == (self.device, self.inode);
        if fs::symlink_metadata(&self.path).is_ok_and(|meta| ours(&meta)) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    const KEY: &str = "control.socket";

    fn folder() -> tempfile::TempDir {
        tempfile::tempdir().expect("temporary folder")
    }

    fn bound(path: &Path) -> Result<BoundSocket, SocketError> {
        listen_on(path, SocketKind::Stream, KEY)
    }

    #[test]
    fn a_socket_is_private_and_goes_with_its_owner() {
        let dir = folder();
        let path = dir.path().join("s");
        let socket = bound(&path).expect("a free path");
        assert_eq!(socket.place, Place::Empty);
        assert_eq!(fs::metadata(&path).expect("stat").mode() & 0o777, 0o600);
        UnixStream::connect(&path).expect("it listens");
        drop(socket);
        assert_eq!(fs::read_dir(dir.path()).expect("folder").count(), 0);
    }

    #[test]
    fn a_live_socket_is_refused_with_the_pid_of_its_owner() {
        let dir = folder();
        let path = dir.path().join("s");
        let _first = bound(&path).expect("a free path");
        let refused = bound(&path).expect_err("a live socket").to_string();
        assert_eq!(
            refused,
            format!(
                "another instance (pid {}) answers on {}; use another appliance.name or \
                 runtime_dir",
                std::process::id(),
                path.display()
            )
        );
        let other_kind = listen_on(&path, SocketKind::SeqPacket, KEY).expect_err("a live socket");
        assert!(
            matches!(other_kind, SocketError::InUse { pid: None, .. }),
            "{other_kind}"
        );
        UnixStream::connect(&path).expect("the first is unharmed");
    }

    #[test]
    fn a_stale_socket_is_taken_over() {
        let dir = folder();
        let path = dir.path().join("s");
        drop(UnixListener::bind(&path).expect("bind"));
        let socket = bound(&path).expect("a stale socket");
        assert_eq!(socket.place, Place::Stale);
        UnixStream::connect(&path).expect("it listens");
    }

    #[test]
    fn what_is_no_socket_is_refused_by_name_and_stays() {
        let dir = folder();
        let file = dir.path().join("file");
        fs::write(&file, "text").expect("file");
        let refused = bound(&file).expect_err("a file").to_string();
        assert_eq!(
            refused,
            format!(
                "{} is an ordinary file, not a socket; remove it, or choose another path with \
                 control.socket",
                file.display()
            )
        );
        assert!(
            bound(dir.path())
                .expect_err("a folder")
                .to_string()
                .contains("is a folder")
        );
        assert_eq!(fs::read_to_string(&file).expect("file"), "text");
    }

    #[test]
    fn a_left_over_of_a_killed_start_is_no_obstacle() {
        let dir = folder();
        drop(UnixListener::bind(dir.path().join(NEW_NAME)).expect("bind"));
        bound(&dir.path().join("s")).expect("a free path");
    }

    #[test]
    fn the_socket_of_a_successor_is_not_removed() {
        let dir = folder();
        let path = dir.path().join("s");
        let first = bound(&path).expect("a free path");
        fs::remove_file(&path).expect("somebody removes it");
        let second = bound(&path).expect("a free path");
        drop(first);
        UnixStream::connect(&path).expect("the second is unharmed");
        drop(second);
        assert!(!path.exists());
    }

    #[test]
    fn two_starts_at_the_same_moment_give_one_owner() {
        let dir = folder();
        let path = dir.path().join("s");
        drop(UnixListener::bind(&path).expect("bind"));
        let owners: Vec<BoundSocket> = std::thread::scope(|scope| {
            let starts: Vec<_> = (0..8).map(|_| scope.spawn(|| bound(&path).ok())).collect();
            starts
                .into_iter()
                .filter_map(|start| start.join().expect("no panic"))
                .collect()
        });
        assert_eq!(owners.len(), 1);
        UnixStream::connect(&path).expect("it listens");
    }

    #[test]
    fn a_missing_folder_is_named() {
        let refused = bound(Path::new("/no/such/s"))
            .expect_err("missing")
            .to_string();
        assert!(
            refused.starts_with("cannot open folder /no/such for control.socket"),
            "{refused}"
        );
    }
}
