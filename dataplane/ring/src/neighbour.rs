//! Who is at the other end of a Unix socket.
//!
//! The kernel tells user and process of the other end; but a process of another PID namespace (the
//! program in a container, the operator outside of it) has the number 0 here, which the system
//! interface does not take for a process, so that nothing is told at all. What then decides is what the
//! kernel has decided already: a socket of ours that is open to nobody else (mode 0600, or 0700 of its
//! folder) is reached by our own user and root only.

use rustix::net::sockopt::socket_peercred;
use rustix::net::{SocketAddrAny, SocketAddrUnix, getpeername, getsockname};
use rustix::process::geteuid;
use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why the process at the other end is not to be trusted.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Stranger {
    /// It belongs to somebody else.
    #[error("process {pid} belongs to user {uid}; only user {own} and root may come in")]
    User {
        /// The process.
        pid: u32,
        /// Its user.
        uid: u32,
        /// Who may: this process's user.
        own: u32,
    },
    /// The kernel does not say whose it is, and others may have reached the socket.
    #[error(
        "its credentials are not known, as of a process of another PID namespace, and the socket is \
         open to others; give it the mode 0600, or its folder 0700"
    )]
    Hidden,
}

/// Process id of the other end, if the kernel tells it: not for a process of another PID namespace.
pub fn pid_of(socket: impl AsFd) -> Option<u32> {
    let peer = socket_peercred(socket).ok()?;
    let pid = peer.pid.as_raw_nonzero().get();
    u32::try_from(pid).ok().filter(|pid| *pid != 0)
}

/// Lets in who belongs to our own user or to root; gives the process id, if the kernel tells it.
///
/// # Errors
///
/// [`Stranger`].
pub fn trusted(socket: impl AsFd) -> Result<Option<u32>, Stranger> {
    let pid = pid_of(&socket);
    let own = geteuid().as_raw();
    match (socket_peercred(&socket), pid) {
        (Ok(peer), Some(pid)) => {
            let uid = peer.uid.as_raw();
            let is_trusted = uid == own || uid == 0;
            if is_trusted {
                Ok(Some(pid))
            } else {
                Err(Stranger::User { pid, uid, own })
            }
        }
        (Ok(_) | Err(_), _) if is_private(&socket) => Ok(None),
        (Ok(_) | Err(_), _) => Err(Stranger::Hidden),
    }
}

/// Whether the socket was reached by a path that only its owner can use, who is our user or root: by
/// its own mode, or by that of its folder. (A socket that was renamed after it was bound still tells
/// its first name, which then is not there.)
fn is_private(socket: impl AsFd) -> bool {
    let own = getsockname(&socket).ok().and_then(path_of);
    let bound = own.or_else(|| getpeername(&socket).ok().flatten().and_then(path_of));
    bound.is_some_and(|path| is_private_path(&path) || path.parent().is_some_and(is_private_path))
}

fn path_of(address: SocketAddrAny) -> Option<PathBuf> {
    let address = SocketAddrUnix::try_from(address).ok()?;
    let path = address.path_bytes()?.to_vec();
    (!path.is_empty()).then(|| PathBuf::from(OsStr::from_bytes(&path)))
}

fn is_private_path(path: &Path) -> bool {
    let Ok(stat) = rustix::fs::lstat(path) else {
        return false;
    };
    let is_ours = stat.st_uid == geteuid().as_raw() || stat.st_uid == 0;
    is_ours && stat.st_mode & 0o077 == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::{UnixListener, UnixStream};

    #[test]
    fn our_own_process_is_trusted_and_named_on_both_sides() {
        let (here, there) = UnixStream::pair().unwrap();
        for socket in [here, there] {
            assert_eq!(trusted(&socket), Ok(Some(std::process::id())));
            assert_eq!(pid_of(&socket), Some(std::process::id()));
        }
    }

    #[test]
    fn a_socket_is_private_by_the_mode_of_its_path_or_of_its_folder() {
        let name = format!("pollux-neighbour-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let client = UnixStream::connect(&path).unwrap();
        let (server, _) = listener.accept().unwrap();
        for (mode, expected) in [(0o600, true), (0o660, false), (0o666, false)] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(
                (is_private(&client), is_private(&server)),
                (expected, expected)
            );
        }
        std::fs::remove_file(&path).unwrap();
        assert!(!is_private(&client));
        let (unnamed, _other) = UnixStream::pair().unwrap();
        assert!(!is_private(&unnamed));
    }
}
