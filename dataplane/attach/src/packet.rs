//! Packets with descriptors on a Unix socket of type SOCK_SEQPACKET.
//!
//! Neither direction ever blocks unless asked to, whatever the socket's mode is: a program that
//! does not read must not hold up the appliance. Descriptors arrive closed on exec; those of a
//! packet that is refused are closed.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use thiserror::Error;

use crate::message::{FDS_MAX, MESSAGE_BYTES_MAX};

/// A packet received.
#[derive(Debug)]
pub struct Packet {
    /// Its bytes, at least one.
    pub bytes: Vec<u8>,
    /// The descriptors that came with it.
    pub fds: Vec<OwnedFd>,
}

/// Why no packet was received.
#[derive(Debug, Error)]
pub enum ReceiveError {
    /// The other side has closed the socket, or its process is gone.
    #[error("the other side has closed the socket")]
    Closed,
    /// Nothing has come yet.
    #[error("no message has come yet")]
    WouldBlock,
    /// More bytes or descriptors than any message has.
    #[error("a message is longer than {MESSAGE_BYTES_MAX} bytes or has over {FDS_MAX} descriptors")]
    TooLarge,
    /// The descriptors of a message were dropped, since this process can have no more. The socket is
    /// as good as before.
    #[error(
        "this process has no room for the descriptors of a message; raise its limit (ulimit -n)"
    )]
    NoDescriptor {
        /// The bytes of the message.
        bytes: Vec<u8>,
    },
    /// The kernel refused.
    #[error("cannot receive a message: {0}")]
    System(Errno),
}

/// Connects to the socket at `path`.
///
/// # Errors
///
/// `ENOENT` and `ECONNREFUSED` mean that nobody listens there.
pub fn connect(path: &Path) -> io::Result<OwnedFd> {
    let socket = socket()?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Creates, binds and listens on a socket at `path`, which must not exist. It is non-blocking.
///
/// # Errors
///
/// `EADDRINUSE` if there is something at `path`.
pub fn listen(path: &Path, backlog: i32) -> io::Result<OwnedFd> {
    let socket = socket()?;
    rustix::io::ioctl_fionbio(&socket, true)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, backlog)?;
    Ok(socket)
}

/// Accepts a program on a socket made by [`listen`].
///
/// # Errors
///
/// `EAGAIN` if nobody waits.
pub fn accept(listener: impl AsFd) -> io::Result<OwnedFd> {
    Ok(rustix::net::accept_with(listener, SocketFlags::CLOEXEC)?)
}

/// Two connected sockets, for tests and for programs that start the appliance themselves.
///
/// # Errors
///
/// Too many open files.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?)
}

fn socket() -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?)
}

/// Sends a packet, or nothing: a packet is never sent in part.
///
/// # Errors
///
/// `EAGAIN` if the other side has not read enough of what was sent before; `EPIPE` or
/// `ECONNRESET` if it is gone; `EINVAL` for more than [`FDS_MAX`] descriptors.
pub fn send(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if fds.len() > FDS_MAX {
        return Err(Errno::INVAL);
    }
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::INVAL);
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    loop {
        match rustix::net::sendmsg(&socket, &[io::IoSlice::new(bytes)], &mut control, flags) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Takes the next packet if there is one.
///
/// # Errors
///
/// [`ReceiveError`]. After anything but `WouldBlock` and `NoDescriptor` the socket is of no more use.
pub fn receive(socket: impl AsFd) -> Result<Packet, ReceiveError> {
    // One descriptor more than allowed, to tell three from four.
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX + 1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = vec![0; MESSAGE_BYTES_MAX];
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = loop {
        let buffer = &mut [io::IoSliceMut::new(&mut bytes)];
        match rustix::net::recvmsg(&socket, buffer, &mut control, flags) {
            Ok(received) => break received,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Err(ReceiveError::WouldBlock),
            Err(Errno::CONNRESET | Errno::PIPE) => return Err(ReceiveError::Closed),
            Err(errno) => return Err(ReceiveError::System(errno)),
        }
    };
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    if received.flags.contains(ReturnFlags::TRUNC) || fds.len() > FDS_MAX {
        return Err(ReceiveError::TooLarge);
    }
    bytes.truncate(received.bytes);
    // There was space for one more than are here, so those that lack did not find a number.
    if received.flags.contains(ReturnFlags::CTRUNC) {
        return Err(ReceiveError::NoDescriptor { bytes });
    }
    if bytes.is_empty() {
        return Err(ReceiveError::Closed);
    }
    Ok(Packet { bytes, fds })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packet_and_descriptors_arrive_together_and_closed_on_exec() {
        let (here, there) = pair().expect("pair");
        send(&here, b"abc", &[here.as_fd(), there.as_fd()]).expect("send");
        send(&here, b"d", &[]).expect("send");
        let packet = receive(&there).expect("packet");
        assert_eq!((&packet.bytes[..], packet.fds.len()), (&b"abc"[..], 2));
        for fd in &packet.fds {
            let flags = rustix::io::fcntl_getfd(fd).expect("flags");
            assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        }
        assert_eq!(receive(&there).expect("packet").bytes, b"d");
        assert!(matches!(receive(&there), Err(ReceiveError::WouldBlock)));
    }

    #[test]
    fn end_of_the_other_side_is_reported_in_both_directions() {
        let (here, there) = pair().expect("pair");
        drop(there);
        assert!(matches!(receive(&here), Err(ReceiveError::Closed)));
        assert_eq!(send(&here, b"a", &[]), Err(Errno::PIPE));
    }

    #[test]
    fn too_many_bytes_or_descriptors_are_refused_and_closed() {
        let (here, there) = pair().expect("pair");
        send(&here, &[7; MESSAGE_BYTES_MAX + 1], &[]).expect("send");
        assert!(matches!(receive(&there), Err(ReceiveError::TooLarge)));
        let four = [here.as_fd(); FDS_MAX + 1];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX + 1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&four)));
        let bytes = [io::IoSlice::new(b"x")];
        rustix::net::sendmsg(&here, &bytes, &mut control, SendFlags::empty()).expect("send");
        assert!(matches!(receive(&there), Err(ReceiveError::TooLarge)));
        assert!(send(&here, b"y", &four).is_err());
    }

    #[test]
    fn reader_that_does_not_read_never_blocks_the_sender() {
        let (here, _there) = pair().expect("pair");
        let refused = (0..1_000_000).find_map(|_| send(&here, &[1; 100], &[]).err());
        assert_eq!(refused, Some(Errno::AGAIN));
    }

    #[test]
    fn listener_accepts_and_says_when_nobody_waits() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("attach.sock");
        assert_eq!(
            connect(&path).expect_err("nobody").kind(),
            io::ErrorKind::NotFound
        );
        let listener = listen(&path, 8).expect("listen");
        let nobody = accept(&listener).expect_err("nobody");
        assert_eq!(nobody.kind(), io::ErrorKind::WouldBlock);
        let here = connect(&path).expect("connect");
        let there = accept(&listener).expect("accept");
        send(&here, b"hello", &[]).expect("send");
        assert_eq!(receive(&there).expect("packet").bytes, b"hello");
    }
}
