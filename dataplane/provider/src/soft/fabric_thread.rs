//! The thread of a device that listens to its peers.
//!
//! It sleeps in `poll(2)` on the rendezvous socket, on every connection, and on an eventfd by which the device
//! tells it of a new connection or of the end. It takes offers, exports and withdrawals in, and sees
//! peers die. Nothing in it is in the way of data.

#[cfg(feature = "testing")]
mod testing;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use pollux_ring::{Access, Region, Segment, Wake};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::SocketFlags;

use super::port::PORT_BYTES_MAX;
use super::rendezvous::{self, Fds, Message, Received, Rendezvous};
use super::shared::{EXPORTS_MAX, Offer, Peer, Shared};
use crate::lock::lock;
use crate::table::Table;
use crate::{DeviceEvent, GidHex};

/// Largest segment that is mapped for a peer: an address range, no memory.
const SEGMENT_BYTES_MAX: usize = 1 << 40;
/// Connections from peers at a time.
const INCOMING_MAX: usize = 1024;
/// Messages taken from one connection before the others have their turn.
const MESSAGES_PER_TURN: usize = 32;

/// A connection that we made.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) socket: OwnedFd,
    pub(super) peer: Arc<Peer>,
}

/// What the device and its thread share.
#[derive(Debug)]
pub(super) struct Links {
    pub(super) outgoing: Mutex<Vec<Arc<Outgoing>>>,
    pub(super) notify: Wake,
    pub(super) stopping: AtomicBool,
}

/// A connection that a peer made. Without a peer until it said hello.
#[derive(Debug)]
struct Incoming {
    socket: OwnedFd,
    peer: Option<Arc<Peer>>,
}

/// What becomes of a connection.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    Keep,
    Close,
}

/// The thread's own.
pub(super) struct FabricThread {
    shared: Arc<Shared>,
    links: Arc<Links>,
    rendezvous: Rendezvous,
    incoming: Vec<Incoming>,
    accepting: Accepting,
}

/// Whether the rendezvous socket is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Accepting {
    Now,
    /// There is no descriptor left; the socket would be ready all the time.
    Later,
}

/// How long to wait for a free descriptor.
const ACCEPT_PAUSE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};

impl FabricThread {
    pub(super) fn new(
        shared: Arc<Shared>,
        links: Arc<Links>,
        rendezvous: Rendezvous,
    ) -> FabricThread {
        FabricThread {
            shared,
            links,
            rendezvous,
            incoming: Vec::new(),
            accepting: Accepting::Now,
        }
    }

    /// Runs until the device says stop.
    pub(super) fn run(mut self) {
        while !self.links.stopping.load(Ordering::Acquire) {
            let outgoing: Vec<Arc<Outgoing>> = lock(&self.links.outgoing).clone();
            let Some(ready) = self.wait(&outgoing) else {
                continue;
            };
            let (own, connections) = ready.split_at(2);
            let (incoming, outgoing_ready) = connections.split_at(self.incoming.len());
            for (outgoing, _) in outgoing
                .iter()
                .zip(outgoing_ready)
                .filter(|(_, ready)| **ready)
            {
                self.outgoing_ended(outgoing);
            }
            self.take_messages(incoming);
            if own[0] {
                let _ = self.links.notify.drain();
            }
            if own[1] || self.accepting == Accepting::Later {
                self.accepting = self.accept();
            }
        }
    }

    /// Which descriptors have something: the eventfd, the rendezvous, incoming, outgoing. `None` after a signal.
    fn wait(&self, outgoing: &[Arc<Outgoing>]) -> Option<Vec<bool>> {
        let own = [self.links.notify.fd(), self.rendezvous.socket.as_fd()];
        let incoming = self.incoming.iter().map(|incoming| incoming.socket.as_fd());
        let outgoing = outgoing.iter().map(|outgoing| outgoing.socket.as_fd());
        let fds = own.into_iter().chain(incoming).chain(outgoing);
        let mut fds: Vec<PollFd<'_>> = fds
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        let timeout = match self.accepting {
            Accepting::Now => None,
            Accepting::Later => {
                fds[1] = PollFd::from_borrowed_fd(own[1], PollFlags::empty());
                Some(&ACCEPT_PAUSE)
            }
        };
        match rustix::event::poll(&mut fds, timeout) {
            Ok(_) => Some(fds.iter().map(|fd| !fd.revents().is_empty()).collect()),
            Err(_) => None,
        }
    }

    /// Nobody speaks on a connection of ours; whatever comes is its end.
    fn outgoing_ended(&self, outgoing: &Arc<Outgoing>) {
        match rendezvous::receive(&outgoing.socket) {
            Received::Nothing => return,
            Received::End => {}
            Received::Message(..) | Received::Bad(_) => {
                self.refuse(&outgoing.peer, "speaks out of turn")
            }
        }
        lock(&self.links.outgoing).retain(|other| !Arc::ptr_eq(other, outgoing));
        self.shared.bury(&outgoing.peer);
    }

    fn accept(&mut self) -> Accepting {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        loop {
            match rustix::net::accept_with(&self.rendezvous.socket, flags) {
                Ok(socket) => self.greet(socket),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => return Accepting::Now,
                Err(_) => return Accepting::Later,
            }
        }
    }

    fn greet(&mut self, socket: OwnedFd) {
        let refusal = match rendezvous::check_credentials(&socket) {
            Ok(()) if self.incoming.len() < INCOMING_MAX => None,
            Ok(()) => Some(format!(
                "this device has {INCOMING_MAX} connections already"
            )),
            Err(refusal) => Some(refusal),
        };
        match refusal {
            None => self.incoming.push(Incoming { socket, peer: None }),
            Some(reason) => {
                let what = format!("a connection was refused: {reason}");
                self.shared.event(DeviceEvent::PeerRefused { what });
                // It is for people; whoever cannot take it learns as much from the end.
                let _ = rendezvous::send(&socket, &Message::Refused { reason }, &[]);
            }
        }
    }

    fn take_messages(&mut self, ready: &[bool]) {
        let mut connections = std::mem::take(&mut self.incoming);
        let mut ready = ready.iter();
        connections.retain_mut(|connection| {
            let is_ready = ready.next().is_some_and(|ready| *ready);
            !is_ready || self.take_from(connection) == Next::Keep
        });
        self.incoming = connections;
    }

    fn take_from(&self, connection: &mut Incoming) -> Next {
        for _ in 0..MESSAGES_PER_TURN {
            match rendezvous::receive(&connection.socket) {
                Received::Nothing => return Next::Keep,
                Received::Message(message, fds) => {
                    if let Err(what) = self.handle(connection, message, fds) {
                        return self.cut_off(connection, &what);
                    }
                }
                Received::Bad(bad) => return self.cut_off(connection, &bad.to_string()),
                Received::End => {
                    if let Some(peer) = &connection.peer {
                        self.shared.bury(peer);
                    }
                    return Next::Close;
                }
            }
        }
        Next::Keep
    }

    fn cut_off(&self, connection: &Incoming, what: &str) -> Next {
        let reason = what.to_owned();
        let _ = rendezvous::send(&connection.socket, &Message::Refused { reason }, &[]);
        match &connection.peer {
            Some(peer) => {
                self.refuse(peer, what);
                self.shared.bury(peer);
            }
            None => {
                let what = format!("a connection was refused: {what}");
                self.shared.event(DeviceEvent::PeerRefused { what });
            }
        }
        Next::Close
    }

    fn refuse(&self, peer: &Peer, what: &str) {
        let what = format!("device {}: {what}", GidHex(peer.gid));
        self.shared.event(DeviceEvent::PeerRefused { what });
    }

    fn handle(&self, from: &mut Incoming, message: Message, fds: Fds) -> Result<(), String> {
        let known = from.peer.as_ref().ok_or("it did not say hello first");
        match message {
            Message::Hello { gid, incarnation } if from.peer.is_none() => {
                let exports = || Arc::new(Table::new(EXPORTS_MAX, 0));
                from.peer = Some(self.shared.peer(gid, incarnation, exports));
                let (gid, incarnation) = (self.shared.identity.gid, self.shared.incarnation);
                let welcome = Message::Welcome { gid, incarnation };
                rendezvous::send(&from.socket, &welcome, &[])
                    .map_err(|errno| format!("cannot answer: {errno}"))
            }
            Message::Offer { to, from: qpn } => self.take_offer(known?, to, qpn, fds),
            Message::Export { id } => {
                let peer = known?;
                let fd = fds
                    .into_iter()
                    .next()
                    .ok_or("an export without descriptor")?;
                let segment = Segment::from_fd(fd, Access::ReadOnly, SEGMENT_BYTES_MAX)
                    .map_err(|error| format!("cannot map its export: {error}"))?;
                peer.exports
                    .mirror(id, Region::Shared(segment))
                    .map_err(|_| format!("its export has number {}", id.index))?;
                self.shared.table_changed(&peer.exports);
                Ok(())
            }
            Message::Withdraw { id } => {
                let exports = &known?.exports;
                exports.unmirror(id);
                self.shared.table_changed(exports);
                Ok(())
            }
            Message::Hello { .. } | Message::Welcome { .. } | Message::Refused { .. } => {
                Err("it speaks out of turn".to_owned())
            }
        }
    }

    fn take_offer(&self, peer: &Arc<Peer>, to: u32, qpn: u32, fds: Fds) -> Result<(), String> {
        let [port, wake] = fds
            .into_inner()
            .map_err(|_| "an offer without its descriptors")?;
        let port = Segment::from_fd(port, Access::ReadOnly, PORT_BYTES_MAX)
            .map_err(|error| format!("cannot map its port: {error}"))?;
        if !rendezvous::is_wake(&wake) {
            return Err("its wake is not a non-blocking eventfd".to_owned());
        }
        let (peer, wake) = (Arc::clone(peer), Wake::from_fd(wake));
        self.shared.deliver(
            to,
            Offer {
                peer,
                qpn,
                port,
                wake,
            },
        );
        Ok(())
    }
}
