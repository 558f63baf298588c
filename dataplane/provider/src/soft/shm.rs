//! The carrier between processes of one host.
//!
//! Devices meet in a directory (`rendezvous`), hand each other the descriptors of ports and exported segments,
//! and from then on share memory. Each device has one helper thread (`fabric_thread`) that listens.

#[cfg(feature = "testing")]
pub(super) mod testing;

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use pollux_ring::{Region, Segment, Wake};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use super::device::{
    Carrier, DeviceOptions, NoPath, OpenError, SoftDevice, check_options, make_shared,
};
use super::fabric_thread::{FabricThread, Links, Outgoing};
use super::rendezvous::{self, Message};
use super::shared::{EXPORTS_MAX, Peer, Shared};
use crate::lock::lock;
use crate::table::{Id, Table};

/// Name of the helper thread.
const THREAD_NAME: &str = "pollux-fabric";

/// Opens a soft device that processes of this host can reach: those that use the same `fabric_dir` and
/// belong to the same user, or root.
///
/// Creates the directory if it is missing, and in it a socket named by the 32 hexadecimal digits of the GID.
/// A socket left behind by a dead process is taken over.
///
/// # Errors
/// [`OpenError`]: an option has an impossible value, the address is taken, or the socket cannot be made.
pub fn open_shm(fabric_dir: &Path, options: DeviceOptions) -> Result<SoftDevice, OpenError> {
    let gid = options.gid;
    // Differs from process to process and from call to call.
    let seed = RandomState::new().build_hasher().finish();
    let shared = make_shared(options, "soft/shm", seed)?;
    let rendezvous = rendezvous::listen(fabric_dir, gid)?;
    let path = rendezvous::socket_path(fabric_dir, gid);
    let failed = |step, errno| OpenError::Rendezvous {
        step,
        path: path.clone(),
        errno,
    };
    let notify = Wake::new().map_err(|error| failed("watch", error.errno))?;
    let links = Arc::new(Links {
        outgoing: Mutex::default(),
        notify,
        stopping: AtomicBool::new(false),
    });
    let thread = FabricThread::new(Arc::clone(&shared), Arc::clone(&links), rendezvous);
    let thread = std::thread::Builder::new()
        .name(THREAD_NAME.to_owned())
        .spawn(move || thread.run())
        .map_err(|error| {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::AGAIN);
            failed("start the thread that listens on", errno)
        })?;
    let carrier = ShmCarrier {
        fabric_dir: fabric_dir.to_owned(),
        own: Arc::clone(&shared),
        links,
        thread: Mutex::new(Some(thread)),
    };
    Ok(SoftDevice::new(shared, Arc::new(carrier)))
}

/// Whether [`open_shm`] would find its address free. Makes nothing, and removes nothing.
///
/// # Errors
/// [`OpenError`], as [`open_shm`] would.
pub fn look_shm(fabric_dir: &Path, options: &DeviceOptions) -> Result<(), OpenError> {
    check_options(options.gid, options.mtu_bytes)?;
    rendezvous::look(fabric_dir, options.gid)
}

/// One device's connections.
#[derive(Debug)]
struct ShmCarrier {
    fabric_dir: PathBuf,
    own: Arc<Shared>,
    links: Arc<Links>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl ShmCarrier {
    /// The connection to a life of a peer, if we have one.
    fn connection(&self, wanted: impl Fn(&Peer) -> bool) -> Option<Arc<Outgoing>> {
        let outgoing = lock(&self.links.outgoing);
        let alive = |peer: &Peer| !peer.is_gone() && wanted(peer);
        outgoing
            .iter()
            .find(|connection| alive(&connection.peer))
            .cloned()
    }

    fn no_path(&self, gid: [u8; 16], cause: String) -> NoPath {
        let place = rendezvous::socket_path(&self.fabric_dir, gid)
            .display()
            .to_string();
        NoPath { place, cause }
    }

    /// A connection that cannot be written to is a dead peer.
    fn give_up(&self, connection: &Arc<Outgoing>) {
        lock(&self.links.outgoing).retain(|other| !Arc::ptr_eq(other, connection));
        self.own.bury(&connection.peer);
    }

    /// Sends to every connection; the lock keeps messages about one export in order.
    fn send_to_all(&self, send: impl Fn(&Outgoing) -> Result<(), Errno>) {
        let outgoing = lock(&self.links.outgoing);
        let failed: Vec<Arc<Outgoing>> = outgoing
            .iter()
            .filter(|connection| send(connection).is_err())
            .cloned()
            .collect();
        drop(outgoing);
        failed
            .iter()
            .for_each(|connection| self.give_up(connection));
    }
}

/// Whether the peer has closed a connection, perhaps unseen yet by the helper thread. Nobody speaks on it,
/// so whatever comes is its end.
fn has_ended(connection: &Outgoing) -> bool {
    let mut fds = [PollFd::new(&connection.socket, PollFlags::IN)];
    rustix::event::poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

fn send_export(connection: &Outgoing, id: Id, segment: &Segment) -> Result<(), Errno> {
    let fd = rendezvous::read_only(segment.fd())?;
    rendezvous::send(
        &connection.socket,
        &Message::Export { id },
        &[std::os::fd::AsFd::as_fd(&fd)],
    )
}

impl Carrier for ShmCarrier {
    fn reach(&self, gid: [u8; 16]) -> Result<Arc<Peer>, NoPath> {
        while let Some(connection) = self.connection(|peer| peer.gid == gid) {
            if !has_ended(&connection) {
                return Ok(Arc::clone(&connection.peer));
            }
            self.give_up(&connection);
        }
        let path = rendezvous::socket_path(&self.fabric_dir, gid);
        let (own_gid, own_life) = (self.own.identity.gid, self.own.incarnation);
        let (socket, incarnation) = rendezvous::connect(&path, gid, own_gid, own_life)
            .map_err(|cause| self.no_path(gid, cause))?;
        let exports = || Arc::new(Table::new(EXPORTS_MAX, 0));
        let peer = self.own.peer(gid, incarnation, exports);
        let connection = Arc::new(Outgoing {
            socket,
            peer: Arc::clone(&peer),
        });
        {
            // Under the lock, so that nothing is exported or withdrawn in between.
            let mut outgoing = lock(&self.links.outgoing);
            for (id, region) in self.own.exports.all() {
                let Region::Shared(segment) = region else {
                    continue;
                };
                send_export(&connection, id, &segment).map_err(|errno| {
                    self.no_path(gid, format!("cannot hand our segments over: {errno}"))
                })?;
            }
            outgoing.push(connection);
        }
        self.links
            .notify
            .signal()
            .map_err(|error| self.no_path(gid, error.to_string()))?;
        Ok(peer)
    }

    fn offer(
        &self,
        peer: &Peer,
        to: u32,
        from: u32,
        port: &Segment,
        wake: &Wake,
    ) -> Result<(), NoPath> {
        let no_path = |cause| self.no_path(peer.gid, cause);
        let same_life =
            |known: &Peer| (known.gid, known.incarnation) == (peer.gid, peer.incarnation);
        let connection = self
            .connection(same_life)
            .ok_or_else(|| no_path("it has just gone".to_owned()))?;
        let port = rendezvous::read_only(port.fd())
            .map_err(|errno| no_path(format!("cannot open our port for reading: {errno}")))?;
        let fds = [std::os::fd::AsFd::as_fd(&port), wake.fd()];
        rendezvous::send(&connection.socket, &Message::Offer { to, from }, &fds)
            .map_err(|errno| no_path(format!("cannot hand our port over: {errno}")))
    }

    fn exported(&self, id: Id, segment: &Segment) -> Result<(), Errno> {
        // Opened here first: a failure of ours is no fault of a peer.
        drop(rendezvous::read_only(segment.fd())?);
        self.send_to_all(|connection| send_export(connection, id, segment));
        Ok(())
    }

    fn withdrawn(&self, id: Id) {
        self.send_to_all(|connection| {
            rendezvous::send(&connection.socket, &Message::Withdraw { id }, &[])
        });
    }

    fn leave(&self) {
        self.links.stopping.store(true, Ordering::Release);
        if self.links.notify.signal().is_ok()
            && let Some(thread) = lock(&self.thread).take()
        {
            // A panic of the thread has been reported by its own message.
            let _ = thread.join();
        }
        lock(&self.links.outgoing).clear();
    }
}
