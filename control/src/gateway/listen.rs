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
use super::port_owner::{may_listen, port_owner};
use super::socket::Socket;
use crate::config::{Endpoint, Forward};
use crate::syn_marks::SynMarks;
use crate::unix_socket::{BoundSocket, SocketError, SocketKind, listen_on, look};

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
        let way = way(forward)?;
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

    /// What [`Front::bind`] would find, without taking anything. `made` are folders that will have been
    /// made before.
    pub(super) fn look(forward: &Forward, made: &[&Path]) -> Result<(), GatewayError> {
        way(forward)?;
        let name = &forward.name;
        match &forward.listen {
            Endpoint::Tcp(address) | Endpoint::Smc(address) => {
                may_listen(*address).map_err(|error| tcp_refused(name, *address, error))
            }
            Endpoint::Unix(path) => look(path, SocketKind::Stream, KEY, made)
                .map(|_| ())
                .map_err(|error| unix_refused(name, error)),
        }
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
    bound().map_err(|error: io::Error| tcp_refused(name, address, error))
}

fn tcp_refused(name: &str, address: SocketAddr, error: io::Error) -> GatewayError {
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
}

fn bind_unix(name: &str, path: &Path) -> Result<Listener, GatewayError> {
    let bound = listen_on(path, SocketKind::Stream, KEY);
    bound
        .map(Listener::Unix)
        .map_err(|error| unix_refused(name, error))
}

fn unix_refused(name: &str, error: SocketError) -> GatewayError {
    let name = name.to_string();
    match error {
        SocketError::InUse { path, pid } => GatewayError::PathInUse { name, path, pid },
        error @ (SocketError::NotASocket { .. }
        | SocketError::Busy { .. }
        | SocketError::Io { .. }) => GatewayError::Path { name, error },
    }
}

/// Which of the two ends of a forward speaks SMC.
fn way(forward: &Forward) -> Result<Way, GatewayError> {
    let Forward {
        name,
        listen,
        connect,
    } = forward;
    match (listen, connect) {
        (Endpoint::Tcp(_) | Endpoint::Unix(_), Endpoint::Smc(_)) => Ok(Way::In),
        (Endpoint::Smc(_), Endpoint::Tcp(_) | Endpoint::Unix(_)) => Ok(Way::Out),
        (Endpoint::Smc(_), Endpoint::Smc(_))
        | (Endpoint::Tcp(_) | Endpoint::Unix(_), Endpoint::Tcp(_) | Endpoint::Unix(_)) => {
            Err(GatewayError::Ends {
                name: name.clone(),
                listen: listen.clone(),
                connect: connect.clone(),
            })
        }
    }
}
