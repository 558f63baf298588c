//! The paths of one appliance, with every `"auto"` filled in.

use std::path::PathBuf;

use super::Config;
use crate::host::{Host, SOCKET_PATH_MAX};

/// Where one appliance keeps what. All paths are absolute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    /// Folder of the sockets.
    pub runtime_dir: PathBuf,
    /// The control socket.
    pub control_socket: PathBuf,
    /// The socket of attached programs.
    pub attach_socket: PathBuf,
    /// Where soft devices of the host meet.
    pub fabric_dir: PathBuf,
    /// Folder of the core locks.
    pub lock_dir: PathBuf,
}

/// A path that follows from the configuration is too long for a socket.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{key}: too long for a socket ({} has {} bytes); use a shorter appliance.runtime_dir, at most \
     {SOCKET_PATH_MAX} bytes with the socket's name",
    path.display(),
    path.as_os_str().len()
)]
pub struct PathError {
    /// The key of the socket.
    pub key: &'static str,
    /// The path.
    pub path: PathBuf,
}

impl Config {
    /// Fills in what the configuration leaves to the host.
    ///
    /// # Errors
    /// A socket's path is longer than the kernel takes.
    pub fn paths(&self, host: &Host) -> Result<Paths, PathError> {
        let name = &self.appliance.name;
        let runtime_dir = self.appliance.runtime_dir.or(host.runtime_dir(name));
        let paths = Paths {
            control_socket: self.control.socket.or(runtime_dir.join("control.sock")),
            attach_socket: self.attach.socket.or(runtime_dir.join("attach.sock")),
            fabric_dir: self.device.fabric_dir.or(host.base_dir().join("fabric")),
            lock_dir: self.workers.lock_dir.or(host.lock_dir()),
            runtime_dir,
        };
        let sockets = [
            ("control.socket", &paths.control_socket),
            ("attach.socket", &paths.attach_socket),
        ];
        for (key, path) in sockets {
            if path.as_os_str().len() > SOCKET_PATH_MAX {
                return Err(PathError {
                    key,
                    path: path.clone(),
                });
            }
        }
        Ok(paths)
    }
}
