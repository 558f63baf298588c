//! A device between processes whose helper thread is driven by hand.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use pollux_ring::Wake;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::ShmCarrier;
use crate::Errno;
use crate::lock::lock;
use crate::soft::device::{DeviceOptions, OpenError, SoftDevice, make_shared};
use crate::soft::fabric_thread::{FabricThread, Links, Outgoing};
use crate::soft::rendezvous;
use crate::soft::shared::EXPORTS_MAX;
use crate::table::Table;

/// A device whose peers are played by the caller: it gets the other ends of their connections.
pub struct Host {
    device: SoftDevice,
    thread: FabricThread,
    links: Arc<Links>,
    shared: Arc<crate::soft::shared::Shared>,
}

fn socket_pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socketpair(family, kind, flags, None)
}

impl Host {
    /// Opens the device; its rendezvous stands in `fabric_dir`, where nobody is greeted.
    ///
    /// # Errors
    /// As [`crate::soft::open_shm`].
    pub fn open(fabric_dir: &Path, options: DeviceOptions, seed: u64) -> Result<Host, OpenError> {
        let gid = options.gid;
        let shared = make_shared(options, "soft/shm", seed)?;
        let rendezvous = rendezvous::listen(fabric_dir, gid)?;
        let notify = Wake::new().map_err(|error| OpenError::Rendezvous {
            step: "watch",
            path: fabric_dir.to_owned(),
            errno: error.errno,
        })?;
        let links = Arc::new(Links {
            outgoing: Mutex::default(),
            notify,
            stopping: AtomicBool::new(false),
        });
        let thread = FabricThread::new(Arc::clone(&shared), Arc::clone(&links), rendezvous);
        let carrier = ShmCarrier {
            fabric_dir: fabric_dir.to_owned(),
            own: Arc::clone(&shared),
            links: Arc::clone(&links),
            thread: Mutex::new(None),
        };
        Ok(Host {
            device: SoftDevice::new(Arc::clone(&shared), Arc::new(carrier)),
            thread,
            links,
            shared,
        })
    }

    /// The device.
    pub fn device(&self) -> &SoftDevice {
        &self.device
    }

    /// A connection that a peer has made; the peer's end.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub fn visit(&mut self) -> Result<OwnedFd, Errno> {
        let (here, there) = socket_pair()?;
        self.thread.visit(here);
        Ok(there)
    }

    /// A connection that the device has made to a peer of that address and life; the peer's end.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub fn call(&self, gid: [u8; 16], incarnation: u64) -> Result<OwnedFd, Errno> {
        let (socket, there) = socket_pair()?;
        let exports = || Arc::new(Table::new(EXPORTS_MAX, 0));
        let peer = self.shared.peer(gid, incarnation, exports);
        lock(&self.links.outgoing).push(Arc::new(Outgoing { socket, peer }));
        Ok(there)
    }

    /// Every peer that was called is gone, as if its connection had ended.
    pub fn hang_up(&self) {
        for outgoing in lock(&self.links.outgoing).drain(..) {
            self.shared.bury(&outgoing.peer);
        }
    }

    /// One turn of the helper thread over the connections that peers have made.
    pub fn turn(&mut self) {
        self.thread.turn();
    }

    /// Connections that peers have made and that were not cut off.
    pub fn connections(&self) -> usize {
        self.thread.connections()
    }
}
