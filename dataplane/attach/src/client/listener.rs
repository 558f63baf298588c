//! A TCP listener whose connections are upgraded as they come.

use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;

use super::inbound::{Asker, Interest};
use super::session::Shared;
use super::stream::{Blocking, Stream};
use super::wait::{Spin, Waited};
use crate::message::Role;

/// Accepts TCP connections and lets the appliance upgrade them.
///
/// Connections are handed to the appliance as soon as they are accepted and come out in the order
/// in which it decides: a client that says nothing does not hold up the others.
#[derive(Debug)]
pub struct Listener {
    shared: Arc<Shared>,
    tcp: TcpListener,
    number: u64,
    nonblocking: AtomicBool,
}

impl Listener {
    pub(super) fn bind(shared: Arc<Shared>, address: impl ToSocketAddrs) -> io::Result<Listener> {
        let tcp = TcpListener::bind(address)?;
        tcp.set_nonblocking(true)?;
        let number = shared.inbound().add_listener();
        Ok(Listener {
            shared,
            tcp,
            number,
            nonblocking: AtomicBool::new(false),
        })
    }

    /// The address it listens on.
    ///
    /// # Errors
    ///
    /// Those of getsockname(2).
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }

    /// Says whether [`Listener::accept`] waits.
    pub fn set_blocking(&self, blocking: Blocking) {
        let nonblocking = match blocking {
            Blocking::Wait => false,
            Blocking::Never => true,
        };
        self.nonblocking.store(nonblocking, Ordering::Relaxed);
    }

    /// The next connection, accelerated or not, and the address it comes from. Connections that
    /// are lost in the handshake are passed over.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if it must not wait, `ConnectionReset` if the appliance is gone, and those of
    /// accept(2).
    pub fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        loop {
            self.accept_tcp()?;
            let accepted = {
                let mut inbound = self.shared.inbound();
                inbound.pump_control(&self.shared);
                inbound.take_accepted(self.number)
            };
            if let Some((tcp, answer)) = accepted {
                let Ok(peer) = tcp.peer_addr() else { continue };
                match Stream::from_answer(&self.shared, tcp, answer) {
                    Ok(stream) => return Ok((stream, peer)),
                    Err(_) => continue,
                }
            }
            if self.shared.is_gone() {
                return Err(Errno::CONNRESET.into());
            }
            if self.nonblocking.load(Ordering::Relaxed) {
                return Err(Errno::AGAIN.into());
            }
            let interest = Interest::Listener(self.number);
            match self
                .shared
                .wait(interest, Spin::No, Some(self.tcp.as_fd()), None)?
            {
                Waited::Ready | Waited::TimedOut => {}
            }
        }
    }

    /// Hands what TCP has accepted to the appliance.
    fn accept_tcp(&self) -> io::Result<()> {
        loop {
            let tcp = match self.tcp.accept() {
                Ok((tcp, _)) => tcp,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            let kept = tcp.try_clone()?;
            let asker = |_| Asker::Listener(self.number, kept);
            self.shared.start_upgrade(&tcp, Role::Server, asker)?;
        }
    }

    /// The TCP listener's descriptor.
    pub fn tcp_fd(&self) -> BorrowedFd<'_> {
        self.tcp.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let left = self.shared.inbound().remove_listener(self.number);
        for (_, answer) in left {
            self.shared.abandon(&answer);
        }
    }
}
