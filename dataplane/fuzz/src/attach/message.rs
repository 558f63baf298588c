//! Messages of the attach socket, as bytes and as packets with descriptors.
//!
//! 1. What is accepted is emitted as the same bytes, and nothing else is accepted for them: not a byte
//!    more or less, not another number of descriptors.
//! 2. A packet arrives whole with its descriptors or not at all, and no descriptor is left behind.

use std::cell::RefCell;
use std::fs::File;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use pollux_attach::message::{FDS_MAX, MESSAGE_BYTES_MAX, Reply, Request};
use pollux_attach::packet::{self, Packet, ReceiveError};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use crate::fds;

thread_local! {
    /// Two ends of a socket, and something to send a descriptor of.
    static SOCKETS: RefCell<Option<(OwnedFd, OwnedFd, File)>> = const { RefCell::new(None) };
}

/// Drives one target run: the first byte says how many descriptors come along, and whether they and the
/// bytes, or more bytes than any message has, go through a socket.
pub(crate) fn run(bytes: &[u8]) {
    let Some((how, packet)) = bytes.split_first() else {
        return;
    };
    let fds = usize::from(how & 7);
    judge(packet, fds);
    match how >> 6 {
        0 | 1 => {}
        2 => through_a_socket(packet, fds),
        _ => {
            let padding = [0; MESSAGE_BYTES_MAX];
            through_a_socket(&[packet, &padding].concat(), fds);
        }
    }
}

fn judge(packet: &[u8], fds: usize) {
    let request = Request::parse(packet, fds);
    let reply = Reply::parse(packet, fds);
    match &request {
        Ok(request) => {
            assert_eq!(request.emit(), packet, "{request:?}");
            is_strict(packet, fds, |packet, fds| {
                Request::parse(packet, fds).is_ok()
            });
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    match &reply {
        Ok(reply) => {
            assert_eq!(reply.emit(), packet, "{reply:?}");
            is_strict(packet, fds, |packet, fds| Reply::parse(packet, fds).is_ok());
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    if let (Ok(Request::Released { .. }), other) | (_, other @ Ok(Reply::Released { .. })) =
        (&request, &reply)
    {
        // The one message that both sides say.
        assert!(matches!(other, Ok(Reply::Released { .. })));
    } else {
        assert!(request.is_err() || reply.is_err(), "it means two things");
    }
}

fn is_strict(packet: &[u8], fds: usize, parses: impl Fn(&[u8], usize) -> bool) {
    assert!(packet.len() <= MESSAGE_BYTES_MAX && fds <= FDS_MAX);
    assert!(!parses(packet, fds + 1));
    assert!(fds == 0 || !parses(packet, fds - 1));
    assert!(!parses(&packet[..packet.len() - 1], fds));
    assert!(!parses(&[packet, &[0]].concat(), fds));
}

fn through_a_socket(bytes: &[u8], fds: usize) {
    SOCKETS.with_borrow_mut(|sockets| {
        let (here, there, null) = sockets.get_or_insert_with(|| {
            let (here, there) = packet::pair().expect("a pair");
            (here, there, File::open("/dev/null").expect("/dev/null"))
        });
        let before = fds::lowest_free();
        let given = vec![null.as_fd(); fds];
        if fds <= FDS_MAX {
            assert_eq!(packet::send(&*here, bytes, &given), Ok(()));
        } else {
            assert_eq!(packet::send(&*here, bytes, &given), Err(Errno::INVAL));
            // Others can.
            send(&*here, bytes, &given);
        }
        let received = packet::receive(&*there);
        match received {
            Ok(Packet {
                bytes: got,
                fds: with,
            }) => {
                assert_eq!((&got[..], with.len()), (bytes, fds));
                drop(with);
            }
            Err(ReceiveError::WouldBlock) => panic!("the packet is lost"),
            Err(ReceiveError::TooLarge) => {
                assert!(bytes.len() > MESSAGE_BYTES_MAX || fds > FDS_MAX);
            }
            // A packet without bytes looks like the end.
            Err(ReceiveError::Closed) => assert!(bytes.is_empty()),
            Err(error @ (ReceiveError::NoDescriptor { .. } | ReceiveError::System(_))) => {
                panic!("{error}")
            }
        }
        assert!(matches!(
            packet::receive(&*there),
            Err(ReceiveError::WouldBlock)
        ));
        assert_eq!(fds::lowest_free(), before, "a descriptor was left open");
    });
}

/// Sends more descriptors than any message has.
fn send(socket: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
    let bytes = [IoSlice::new(bytes)];
    rustix::net::sendmsg(socket, &bytes, &mut control, SendFlags::NOSIGNAL).expect("room");
}
