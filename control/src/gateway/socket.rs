//! One end of a forwarded connection.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use pollux_attach::client::Stream;
use rustix::io::Errno;
use rustix::net::sockopt::{set_socket_linger, set_tcp_nodelay, socket_error};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use crate::config::Endpoint;
use crate::syn_marks::SynMarks;

/// A connected socket, non-blocking, whatever carries its bytes.
#[derive(Debug)]
pub(super) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
    /// Upgraded, or TCP after all.
    Stream(Stream),
}

/// What became of an attempt to connect.
#[derive(Debug)]
pub(super) enum Dialed {
    /// It is connected.
    Now(Socket),
    /// The socket becomes writable when it is decided.
    Pending(Socket),
    /// The target's queue is full, and nobody tells when it is not.
    Full,
}

impl Socket {
    /// Reads what is there.
    #[inline]
    pub(super) fn read(&self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(tcp) => (&mut &*tcp).read(into),
            Socket::Unix(unix) => (&mut &*unix).read(into),
            Socket::Stream(stream) => (&mut &*stream).read(into),
        }
    }

    /// Writes what there is room for.
    #[inline]
    pub(super) fn write(&self, from: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(tcp) => (&mut &*tcp).write(from),
            Socket::Unix(unix) => (&mut &*unix).write(from),
            Socket::Stream(stream) => (&mut &*stream).write(from),
        }
    }

    /// Ends the outgoing direction.
    pub(super) fn shutdown_write(&self) -> io::Result<()> {
        match self {
            Socket::Tcp(tcp) => tcp.shutdown(Shutdown::Write),
            Socket::Unix(unix) => unix.shutdown(Shutdown::Write),
            Socket::Stream(stream) => stream.shutdown(Shutdown::Write),
        }
    }

    /// Ends the connection so that the other end learns that it is incomplete. A Unix socket has
    /// no other means than closing.
    pub(super) fn reset(self) {
        match self {
            Socket::Tcp(tcp) => {
                // Without the option the connection is closed in the ordinary way.
                let _ = set_socket_linger(&tcp, Some(Duration::ZERO));
            }
            Socket::Unix(_) => {}
            Socket::Stream(stream) => stream.abort(),
        }
    }

    /// The descriptor that tells when the socket is ready, `None` if the session does.
    pub(super) fn kernel_fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Socket::Tcp(tcp) => Some(tcp.as_fd()),
            Socket::Unix(unix) => Some(unix.as_fd()),
            Socket::Stream(stream) if stream.is_accelerated() => None,
            Socket::Stream(stream) => Some(stream.tcp_fd()),
        }
    }

    /// The stream, if it is in shared memory.
    pub(super) fn accelerated(&self) -> Option<&Stream> {
        match self {
            Socket::Stream(stream) if stream.is_accelerated() => Some(stream),
            Socket::Tcp(_) | Socket::Unix(_) | Socket::Stream(_) => None,
        }
    }

    /// Whether an attempt to connect has succeeded, once it is decided.
    pub(super) fn connect_result(&self) -> io::Result<()> {
        match self.kernel_fd() {
            Some(fd) => Ok(socket_error(fd)??),
            None => Ok(()),
        }
    }
}

/// Begins to connect to an endpoint; one that speaks SMC is connected by TCP first.
pub(super) fn dial(endpoint: &Endpoint, marks: &SynMarks) -> io::Result<Dialed> {
    match endpoint {
        Endpoint::Tcp(address) => dial_tcp(*address, &SynMarks::default()),
        Endpoint::Smc(address) => dial_tcp(*address, marks),
        Endpoint::Unix(path) => dial_unix(path),
    }
}

fn open(family: AddressFamily) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(family, SocketType::STREAM, flags, None)?)
}

fn dial_tcp(address: SocketAddr, marks: &SynMarks) -> io::Result<Dialed> {
    let fd = open(match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    })?;
    set_tcp_nodelay(&fd, true)?;
    marks.mark(&fd);
    let connected = connect(&fd, &address);
    let socket = Socket::Tcp(TcpStream::from(fd));
    match connected {
        Ok(()) => Ok(Dialed::Now(socket)),
        Err(Errno::INPROGRESS | Errno::INTR) => Ok(Dialed::Pending(socket)),
        Err(errno) => Err(errno.into()),
    }
}

fn dial_unix(path: &Path) -> io::Result<Dialed> {
    let fd = open(AddressFamily::UNIX)?;
    match connect(&fd, &SocketAddrUnix::new(path)?) {
        Ok(()) => Ok(Dialed::Now(Socket::Unix(UnixStream::from(fd)))),
        Err(Errno::AGAIN) => Ok(Dialed::Full),
        Err(errno) => Err(errno.into()),
    }
}
