//! The paths of one appliance, with every `"auto"` filled in.

use std::net::{Ipv4Addr, Ipv6Addr};
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

impl Paths {
    /// The GID of the soft device when the configuration says `"auto"`: always the same for one
    /// runtime folder, so that an appliance that was killed finds, and takes over, what it left
    /// in the fabric folder. In the form of a RoCEv2 GID of an IPv4 address of the loopback
    /// network, 127.0.0.0/8, which no adapter has.
    ///
    /// Two appliances that by chance get the same are refused by the fabric; `device.gid` helps.
    #[must_use]
    pub fn default_gid(&self) -> Ipv6Addr {
        // FNV-1a, 64 bits: short, and the same in every version, unlike the standard hasher.
        let hash = self
            .runtime_dir
            .as_os_str()
            .as_encoded_bytes()
            .iter()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
                (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
            });
        let [.., b, c, d] = (hash ^ hash >> 32).to_be_bytes();
        Ipv4Addr::new(127, b, c, d).to_ipv6_mapped()
    }
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
