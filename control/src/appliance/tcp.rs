//! The TCP connection of a handshake, watched by the reactor.

use super::Token;
use crate::plane::{HandshakeId, Interest, Stream};
use crate::reactor::{self, Reactor};
use rustix::net::{RecvFlags, SendFlags};
use std::io;
use std::net::{Shutdown, TcpStream};
use std::rc::Rc;

/// Whether the reactor knows a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Watched {
    Yes,
    No,
}

/// A TCP socket that may be shared with a program: it is never made non-blocking, since that would
/// change it for the program as well.
#[derive(Debug)]
pub(crate) struct Tcp {
    socket: TcpStream,
    reactor: Rc<Reactor>,
    watched: Watched,
}

impl Tcp {
    pub(crate) fn new(socket: TcpStream, reactor: Rc<Reactor>) -> Self {
        Tcp {
            socket,
            reactor,
            watched: Watched::No,
        }
    }
}

impl Stream for Tcp {
    fn peek(&self, into: &mut [u8]) -> io::Result<usize> {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        Ok(rustix::net::recv(&self.socket, into, flags)?.1)
    }

    fn recv(&self, into: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::net::recv(&self.socket, into, RecvFlags::DONTWAIT)?.1)
    }

    fn send(&self, from: &[u8]) -> io::Result<usize> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        Ok(rustix::net::send(&self.socket, from, flags)?)
    }

    fn watch(&mut self, id: HandshakeId, interest: Interest) -> io::Result<()> {
        let interest = match interest {
            Interest::Read => reactor::Interest::Read,
            Interest::ReadWrite => reactor::Interest::ReadWrite,
        };
        let token = Token::Handshake(id).into();
        match self.watched {
            Watched::Yes => self.reactor.modify(&self.socket, interest, token),
            Watched::No => {
                self.reactor.add(&self.socket, interest, token)?;
                self.watched = Watched::Yes;
                Ok(())
            }
        }
    }

    fn unwatch(&mut self) {
        self.watched = Watched::No;
        if let Err(error) = self.reactor.remove(&self.socket) {
            tracing::debug!(%error, "the socket of a handshake was not watched");
        }
    }

    fn shutdown(&self) {
        // An error means that it is over already.
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}
