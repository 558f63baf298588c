//! The listeners of the forwards.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::net::sockopt::set_tcp_nodelay;
use rustix::net::{SocketFlags, acceptfrom_with};

use super::GatewayError;
use super::figures::Figures;
use super::port_owner::port_owner;
use super::socket::Socket;
use crate::config::{Endpoint, Forward};
use crate::syn_marks::SynMarks;
use crate::unix_socket::{BoundSocket, SocketError, SocketKind, listen_on};

/// Key of the configuration, for errors.
const KEY: &str = "forward.listen";

/// Which of the two ends speaks SMC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// The connecting end: plain connections are accepted.
    In,
    /// The listening end: plain connections are made.
    Out,
}

/// A forward with its listener.
#[derive(Debug)]
pub(super) struct Front {
    pub(super) name: String,
    pub(super) way: Way,
    /// As bound, with the port that the kernel chose.
    pub(super) listen: Endpoint,
    pub(super) connect: Endpoint,
    pub(super) figures: Figures,
    /// Not accepted from until an alarm, because descriptors or memory are short.
    pub(super) pause: Pause,
    listener: Listener,
}

/// Whether a listener is left alone for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pause {
    /// Everything that comes is accepted.
    No,
    /// The last accept has failed; an alarm ends the pause.
    Yes,
    /// The pause is over, but nothing was accepted yet.
    Over,
}

#[derive(Debug)]
enum Listener {
    Tcp(TcpListener),
    Unix(BoundSocket),
}

impl Front {
    pub(super) fn bind(forward: &Forward, marks: &SynMarks) -> Result<Front, GatewayError> {
        let Forward {
            name,
            listen,
            connect,
        } = forward;
        let way = match (listen, connect) {
            (Endpoint::Tcp(_) | Endpoint::Unix(_), Endpoint::Smc(_)) => Way::In,
            (Endpoint::Smc(_), Endpoint::Tcp(_) | Endpoint::Unix(_)) => Way::Out,
            (Endpoint::Smc(_), Endpoint::Smc(_))
            | (Endpoint::Tcp(_) | Endpoint::Unix(_), Endpoint::Tcp(_) | Endpoint::Unix(_)) => {
                return Err(GatewayError::Ends {
                    name: name.clone(),
                    listen: listen.clone(),
                    connect: connect.clone(),
                });
            }
        };
        let (listener, listen) = match listen {
            Endpoint::Tcp(address) => {
                let (listener, address) = bind_tcp(name, *address, &SynMarks::default())?;
                (listener, Endpoint::Tcp(address))
            }
            Endpoint::Smc(address) => {
                let (listener, address) = bind_tcp(name, *address, marks)?;
                (listener, Endpoint::Smc(address))
            }
            Endpoint::Unix(path) => (bind_unix(name, path)?, listen.clone()),
        };
        Ok(Front {
            name: name.clone(),
            way,
            listen,
            connect: connect.clone(),
            figures: Figures::new(),
            pause: Pause::No,
            listener,
        })
    }

    /// Takes a connection that waits, non-blocking, with the address it comes from.
    pub(super) fn accept(&self) -> io::Result<(Socket, Option<SocketAddr>)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (fd, from) = acceptfrom_with(self, flags)?;
        let socket = match &self.listener {
            Listener::Tcp(_) => Socket::Tcp(TcpStream::from(fd)),
            Listener::Unix(_) => Socket::Unix(UnixStream::from(fd)),
        };
        Ok((
            socket,
            from.and_then(|from| SocketAddr::try_from(from).ok()),
        ))
    }
}

impl AsFd for Front {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.listener {
            Listener::Tcp(listener) => listener.as_fd(),
            Listener::Unix(bound) => bound.listener.as_fd(),
        }
    }
}

fn bind_tcp(
    name: &str,
    address: SocketAddr,
    marks: &SynMarks,
) -> Result<(Listener, SocketAddr), GatewayError> {
    let bound = || {
        let listener = marks.listen(address)?;
        // What is accepted inherits it.
        set_tcp_nodelay(&listener, true)?;
        let address = listener.local_addr()?;
        Ok((Listener::Tcp(listener), address))
    };
    bound().map_err(|error: io::Error| {
        let name = name.to_string();
        if error.kind() == io::ErrorKind::AddrInUse {
            GatewayError::InUse {
                name,
                address,
                pid: port_owner(address),
            }
        } else {
            GatewayError::Listen {
                name,
                address,
                error,
            }
        }
    })
}

fn bind_unix(name: &str, path: &Path) -> Result<Listener, GatewayError> {
    let name = name.to_string();
    match listen_on(path, SocketKind::Stream, KEY) {
        Ok(bound) => Ok(Listener::Unix(bound)),
        Err(SocketError::InUse { path, pid }) => Err(GatewayError::PathInUse { name, path, pid }),
        Err(
            error @ (SocketError::NotASocket { .. }
            | SocketError::Busy { .. }
            | SocketError::Io { .. }),
        ) => Err(GatewayError::Path { name, error }),
    }
}
