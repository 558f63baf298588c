//! How two processes of a fabric meet: sockets, credentials, and the messages that carry descriptors.
//!
//! Every device listens on a Unix socket (SEQPACKET, mode 0600) named by its address in the fabric
//! directory. A device that wants to reach another one connects and says hello; from then on only the
//! connecting side speaks, and the accepting side watches. So two devices that know each other have two
//! connections, one in each direction, and each message has one writer and one reader. The end of
//! either connection is the end of the peer.
//!
//! A message is one packet, little-endian: magic, version, kind, then the fields. Everything is judged on
//! arrival: who sent it, how long it is, how many descriptors came with it and of what kind.

#[cfg(feature = "testing")]
pub(super) mod testing;

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use arrayvec::ArrayVec;
use rustix::fs::{FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use super::device::OpenError;
use crate::GidHex;
use crate::table::Id;

/// Version of the messages and of everything in shared memory.
pub(super) const VERSION: u16 = 1;
const MAGIC: u32 = 0x7866_6c70;
/// How long a connecting device waits for an answer. The other side answers from a thread of its own
/// that does nothing slow.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest packet, bytes.
const PACKET_BYTES_MAX: usize = 256;
/// Descriptors with one packet.
const FDS_MAX: usize = 2;
/// Longest path of a socket: 108 bytes less the NUL (linux/un.h).
const PATH_BYTES_MAX: usize = 107;

/// Descriptors that came with, or go with, a message.
pub(super) type Fds = ArrayVec<OwnedFd, FDS_MAX>;

/// What devices say to each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Message {
    /// Connecting side, first: who I am.
    Hello { gid: [u8; 16], incarnation: u64 },
    /// Accepting side, the answer.
    Welcome { gid: [u8; 16], incarnation: u64 },
    /// Accepting side, the other answer.
    Refused { reason: String },
    /// The port of queue pair `from` for queue pair `to`; descriptors: port, wake.
    Offer { to: u32, from: u32 },
    /// A segment that requests may name; descriptor: the segment.
    Export { id: Id },
    /// A segment that they may not name any more.
    Withdraw { id: Id },
}

const HELLO: u16 = 1;
const WELCOME: u16 = 2;
const REFUSED: u16 = 3;
const OFFER: u16 = 4;
const EXPORT: u16 = 5;
const WITHDRAW: u16 = 6;

/// Why a packet is no message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadPacket {
    #[error("a packet of {0} bytes is too short or too long for its kind")]
    Length(usize),
    #[error("it starts with {0:#010x}, which is not our protocol")]
    Magic(u32),
    #[error("it speaks version {0} of the rendezvous, this is version {VERSION}")]
    Version(u16),
    #[error("there is no message of kind {0}")]
    Kind(u16),
    #[error("a message of kind {kind} came with {found} descriptors instead of {expected}")]
    Descriptors {
        kind: u16,
        found: usize,
        expected: usize,
    },
    #[error("more descriptors came than fit")]
    Truncated,
}

type Packet = ArrayVec<u8, PACKET_BYTES_MAX>;

impl Message {
    fn kind(&self) -> u16 {
        match self {
            Message::Hello { .. } => HELLO,
            Message::Welcome { .. } => WELCOME,
            Message::Refused { .. } => REFUSED,
            Message::Offer { .. } => OFFER,
            Message::Export { .. } => EXPORT,
            Message::Withdraw { .. } => WITHDRAW,
        }
    }

    fn emit(&self) -> Packet {
        let mut packet = Packet::new();
        let mut put = |bytes: &[u8]| {
            // A reason may be cut; everything else is far shorter than a packet.
            let room = packet.remaining_capacity().min(bytes.len());
            packet.extend(bytes[..room].iter().copied());
        };
        put(&MAGIC.to_le_bytes());
        put(&VERSION.to_le_bytes());
        put(&self.kind().to_le_bytes());
        match self {
            Message::Hello { gid, incarnation } | Message::Welcome { gid, incarnation } => {
                put(gid);
                put(&incarnation.to_le_bytes());
            }
            Message::Refused { reason } => put(reason.as_bytes()),
            Message::Offer { to, from } => {
                put(&to.to_le_bytes());
                put(&from.to_le_bytes());
            }
            Message::Export { id } | Message::Withdraw { id } => put(&id.to_bits().to_le_bytes()),
        }
        packet
    }

    fn parse(packet: &[u8], fds: usize) -> Result<Message, BadPacket> {
        let short = BadPacket::Length(packet.len());
        let (head, body) = packet.split_at_checked(8).ok_or(short.clone())?;
        let magic = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
        if magic != MAGIC {
            return Err(BadPacket::Magic(magic));
        }
        let version = u16::from_le_bytes([head[4], head[5]]);
        if version != VERSION {
            return Err(BadPacket::Version(version));
        }
        let kind = u16::from_le_bytes([head[6], head[7]]);
        let word = |at: usize| -> Result<u32, BadPacket> {
            let bytes: [u8; 4] = body
                .get(at..at + 4)
                .and_then(|bytes| bytes.try_into().ok())
                .ok_or(short.clone())?;
            Ok(u32::from_le_bytes(bytes))
        };
        let (message, body_bytes, expected) = match kind {
            HELLO | WELCOME => {
                let gid = body
                    .get(..16)
                    .and_then(|gid| gid.try_into().ok())
                    .ok_or(short.clone())?;
                let incarnation = u64::from(word(16)?) | u64::from(word(20)?) << 32;
                let hello = Message::Hello { gid, incarnation };
                let welcome = Message::Welcome { gid, incarnation };
                (if kind == HELLO { hello } else { welcome }, 24, 0)
            }
            REFUSED => {
                let reason = String::from_utf8_lossy(body).into_owned();
                (Message::Refused { reason }, body.len(), 0)
            }
            OFFER => (
                Message::Offer {
                    to: word(0)?,
                    from: word(4)?,
                },
                8,
                2,
            ),
            EXPORT => (
                Message::Export {
                    id: Id::from_bits(word(0)?),
                },
                4,
                1,
            ),
            WITHDRAW => (
                Message::Withdraw {
                    id: Id::from_bits(word(0)?),
                },
                4,
                0,
            ),
            unknown => return Err(BadPacket::Kind(unknown)),
        };
        if body.len() != body_bytes {
            return Err(short);
        }
        if fds != expected {
            return Err(BadPacket::Descriptors {
                kind,
                found: fds,
                expected,
            });
        }
        Ok(message)
    }
}

/// Sends a message; waits as long as the socket's time-out if the reader is behind.
pub(super) fn send(
    socket: &OwnedFd,
    message: &Message,
    fds: &[BorrowedFd<'_>],
) -> Result<(), Errno> {
    let packet = message.emit();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::INVAL);
    }
    loop {
        let sent = rustix::net::sendmsg(
            socket,
            &[IoSlice::new(&packet)],
            &mut control,
            SendFlags::NOSIGNAL,
        );
        match sent {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// What a socket had to say.
#[derive(Debug)]
pub(super) enum Received {
    Message(Message, Fds),
    /// Nothing now.
    Nothing,
    /// The other side has closed, or died.
    End,
    Bad(BadPacket),
}

/// Receives one message. Blocks if the socket does.
pub(super) fn receive(socket: &OwnedFd) -> Received {
    let mut packet = [0; PACKET_BYTES_MAX + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = rustix::net::recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut packet)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    );
    let mut fds = Fds::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            // Descriptors beyond the room are closed by their drop.
            rights.for_each(|fd| drop(fds.try_push(fd)));
        }
    }
    match got {
        Ok(got) if got.bytes == 0 => Received::End,
        Ok(got) if got.flags.contains(ReturnFlags::CTRUNC) => Received::Bad(BadPacket::Truncated),
        Ok(got) if got.bytes > PACKET_BYTES_MAX => Received::Bad(BadPacket::Length(got.bytes)),
        Ok(got) => match Message::parse(&packet[..got.bytes], fds.len()) {
            Ok(message) => Received::Message(message, fds),
            Err(bad) => Received::Bad(bad),
        },
        Err(Errno::AGAIN | Errno::INTR) => Received::Nothing,
        Err(_) => Received::End,
    }
}

/// Where the device with this address listens.
pub(super) fn socket_path(fabric_dir: &Path, gid: [u8; 16]) -> PathBuf {
    fabric_dir.join(GidHex(gid).to_string())
}

/// A listening rendezvous socket. Dropping it removes its file, if the file is still this socket's.
#[derive(Debug)]
pub(super) struct Rendezvous {
    pub(super) socket: OwnedFd,
    path: PathBuf,
    inode: (u64, u64),
}

impl Drop for Rendezvous {
    fn drop(&mut self) {
        if rustix::fs::stat(&self.path).is_ok_and(|stat| (stat.st_dev, stat.st_ino) == self.inode) {
            // Already gone is as good.
            let _ = rustix::fs::unlink(&self.path);
        }
    }
}

/// Opens the rendezvous of the device with this address: takes a dead one over, refuses a live one.
pub(super) fn listen(fabric_dir: &Path, gid: [u8; 16]) -> Result<Rendezvous, OpenError> {
    let path = socket_path(fabric_dir, gid);
    let failed = |step| {
        let path = path.clone();
        move |errno| OpenError::Rendezvous { step, path, errno }
    };
    check_length(&path)?;
    std::fs::create_dir_all(fabric_dir).map_err(|error| OpenError::Rendezvous {
        step: "create the fabric directory",
        path: fabric_dir.to_owned(),
        errno: Errno::from_io_error(&error).unwrap_or(Errno::IO),
    })?;
    // One device at a time looks for a dead socket and replaces it.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(fabric_dir, flags, Mode::empty())
        .map_err(failed("open the directory of"))?;
    rustix::fs::flock(&directory, FlockOperation::LockExclusive)
        .map_err(failed("lock the directory of"))?;
    remove_if_dead(&path, gid)?;
    let address = SocketAddrUnix::new(&path).map_err(failed("name"))?;
    let socket = new_socket(SocketFlags::NONBLOCK).map_err(failed("create"))?;
    // The file gets the mode of the socket, less the umask: never open to others, even for a moment.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR).map_err(failed("protect"))?;
    rustix::net::bind(&socket, &address).map_err(failed("bind"))?;
    rustix::net::listen(&socket, 128).map_err(failed("listen on"))?;
    let stat = rustix::fs::stat(&path).map_err(failed("look at"))?;
    Ok(Rendezvous {
        socket,
        inode: (stat.st_dev, stat.st_ino),
        path,
    })
}

fn check_length(path: &Path) -> Result<(), OpenError> {
    let bytes = path.as_os_str().len();
    if bytes <= PATH_BYTES_MAX {
        return Ok(());
    }
    Err(OpenError::PathTooLong {
        path: path.to_owned(),
        bytes,
        limit: PATH_BYTES_MAX,
    })
}

/// Whether [`listen`] would find the address free; makes and removes nothing.
pub(super) fn look(fabric_dir: &Path, gid: [u8; 16]) -> Result<(), OpenError> {
    let path = socket_path(fabric_dir, gid);
    check_length(&path)?;
    life(&path, gid).map(|_| ())
}

/// What is at the place of a rendezvous socket that nobody serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    /// Nothing.
    None,
    /// The socket of a device that is dead.
    Over,
}

/// Removes the socket of a device that is dead.
fn remove_if_dead(path: &Path, gid: [u8; 16]) -> Result<(), OpenError> {
    match life(path, gid)? {
        Life::None => Ok(()),
        Life::Over => rustix::fs::unlink(path).map_err(|errno| OpenError::Rendezvous {
            step: "take over",
            path: path.to_owned(),
            errno,
        }),
    }
}

/// Asks for the device at a rendezvous socket; refuses one that lives.
fn life(path: &Path, gid: [u8; 16]) -> Result<Life, OpenError> {
    let failed = |step| {
        move |errno| OpenError::Rendezvous {
            step,
            path: path.to_owned(),
            errno,
        }
    };
    let address = SocketAddrUnix::new(path).map_err(failed("name"))?;
    let probe = new_socket(SocketFlags::NONBLOCK).map_err(failed("create a probe for"))?;
    match rustix::net::connect(&probe, &address) {
        Err(Errno::NOENT) => Ok(Life::None),
        Err(Errno::CONNREFUSED) => {
            // Also the answer of a file that is no socket; that one is not ours to remove.
            let stat = rustix::fs::lstat(path).map_err(failed("look at"))?;
            if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
                return Err(failed("take over")(Errno::NOTSOCK));
            }
            Ok(Life::Over)
        }
        // A full backlog is a life sign as well.
        Ok(()) | Err(Errno::AGAIN) => {
            let pid = pollux_ring::neighbour::pid_of(&probe);
            let pid = pid.and_then(|pid| i32::try_from(pid).ok()).unwrap_or(0);
            Err(OpenError::InUse {
                gid,
                path: path.to_owned(),
                pid,
            })
        }
        Err(errno) => Err(failed("look for a device at")(errno)),
    }
}

fn new_socket(flags: SocketFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | SocketFlags::CLOEXEC;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// Connects to the device with this address and introduces ourselves. Gives the socket and the life of the
/// device that answered; an error is text for people.
pub(super) fn connect(
    path: &Path,
    gid: [u8; 16],
    own_gid: [u8; 16],
    incarnation: u64,
) -> Result<(OwnedFd, u64), String> {
    let failed = |step: &'static str| move |errno: Errno| format!("cannot {step}: {errno}");
    let address = SocketAddrUnix::new(path).map_err(failed("name the socket"))?;
    let socket = new_socket(SocketFlags::empty()).map_err(failed("create a socket"))?;
    for side in [Timeout::Send, Timeout::Recv] {
        sockopt::set_socket_timeout(&socket, side, Some(ANSWER_TIMEOUT))
            .map_err(failed("limit the time to wait"))?;
    }
    rustix::net::connect(&socket, &address).map_err(|errno| match errno {
        Errno::NOENT | Errno::CONNREFUSED => format!(
            "no device with this address is open on this host, or it uses another fabric \
             directory ({errno})"
        ),
        Errno::AGAIN => "the device does not take connections".to_owned(),
        errno => format!("cannot connect: {errno}"),
    })?;
    check_credentials(&socket)?;
    send(
        &socket,
        &Message::Hello {
            gid: own_gid,
            incarnation,
        },
        &[],
    )
    .map_err(failed("say hello"))?;
    match receive(&socket) {
        Received::Message(
            Message::Welcome {
                gid: theirs,
                incarnation,
            },
            _,
        ) if theirs == gid => Ok((socket, incarnation)),
        Received::Message(Message::Refused { reason }, _) => Err(format!("refused: {reason}")),
        Received::Message(other, _) => Err(format!("answered {other:?} instead of welcome")),
        Received::Nothing => Err(format!(
            "no answer within {} s: the process seems to be stopped",
            ANSWER_TIMEOUT.as_secs()
        )),
        Received::End => Err("the device closed the connection".to_owned()),
        Received::Bad(bad) => Err(format!("the answer makes no sense: {bad}")),
    }
}

/// Whether the process at the other end may be our peer: the same user, or root.
pub(super) fn check_credentials(socket: &OwnedFd) -> Result<(), String> {
    match pollux_ring::neighbour::trusted(socket) {
        Ok(_) => Ok(()),
        Err(stranger) => Err(stranger.to_string()),
    }
}

/// The same file, opened for reading only: whoever gets it cannot map it for writing.
pub(super) fn read_only(fd: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// Whether a descriptor from a peer is an eventfd that never blocks us.
pub(super) fn is_wake(fd: &OwnedFd) -> bool {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let is_eventfd = rustix::fs::readlink(path, Vec::new())
        .is_ok_and(|target| target.as_bytes() == b"anon_inode:[eventfd]");
    is_eventfd
        && rustix::fs::fcntl_getfl(fd.as_fd()).is_ok_and(|flags| flags.contains(OFlags::NONBLOCK))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn messages() -> impl Strategy<Value = Message> {
        let id = any::<u32>().prop_map(Id::from_bits);
        prop_oneof![
            any::<([u8; 16], u64)>()
                .prop_map(|(gid, incarnation)| Message::Hello { gid, incarnation }),
            any::<([u8; 16], u64)>()
                .prop_map(|(gid, incarnation)| Message::Welcome { gid, incarnation }),
            "[a-z ]{0,200}".prop_map(|reason| Message::Refused { reason }),
            any::<(u32, u32)>().prop_map(|(to, from)| Message::Offer { to, from }),
            id.clone().prop_map(|id| Message::Export { id }),
            id.prop_map(|id| Message::Withdraw { id }),
        ]
    }

    fn expected_fds(message: &Message) -> usize {
        match message {
            Message::Offer { .. } => 2,
            Message::Export { .. } => 1,
            Message::Hello { .. }
            | Message::Welcome { .. }
            | Message::Refused { .. }
            | Message::Withdraw { .. } => 0,
        }
    }

    proptest! {
        #[test]
        fn messages_come_back(message in messages()) {
            let fds = expected_fds(&message);
            prop_assert_eq!(Message::parse(&message.emit(), fds), Ok(message));
        }

        #[test]
        fn wrong_number_of_descriptors_or_bytes_is_refused(message in messages(), cut in 1..8usize) {
            let fds = expected_fds(&message);
            let packet = message.emit();
            prop_assert!(Message::parse(&packet, fds + 1).is_err());
            if !matches!(message, Message::Refused { .. }) {
                prop_assert!(Message::parse(&packet[..packet.len() - cut], fds).is_err());
            }
        }

        #[test]
        fn any_packet_is_judged_without_panic(
            packet in proptest::collection::vec(any::<u8>(), 0..300), fds in 0..3usize
        ) {
            let _ = Message::parse(&packet, fds);
        }

        #[test]
        fn any_packet_with_an_honest_head_is_judged_without_panic(
            kind in 0..9u16, body in proptest::collection::vec(any::<u8>(), 0..40), fds in 0..3usize
        ) {
            let mut packet = MAGIC.to_le_bytes().to_vec();
            packet.extend(VERSION.to_le_bytes());
            packet.extend(kind.to_le_bytes());
            packet.extend(body);
            let _ = Message::parse(&packet, fds);
        }
    }

    #[test]
    fn other_version_is_named_in_the_refusal() {
        let mut packet = Message::Withdraw {
            id: Id::from_bits(1),
        }
        .emit();
        packet[4] = 9;
        let refusal = Message::parse(&packet, 0).unwrap_err();
        assert_eq!(refusal, BadPacket::Version(9));
        assert!(refusal.to_string().contains("version 9"));
    }

    #[test]
    fn long_reason_is_cut_to_a_packet() {
        let packet = Message::Refused {
            reason: "x".repeat(1000),
        }
        .emit();
        assert_eq!(packet.len(), PACKET_BYTES_MAX);
        assert!(Message::parse(&packet, 0).is_ok());
    }

    #[test]
    fn only_a_nonblocking_eventfd_is_a_wake() {
        let good = pollux_ring::Wake::new().unwrap();
        assert!(is_wake(&good.fd().try_clone_to_owned().unwrap()));
        let blocking = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        assert!(!is_wake(&blocking));
        let (pipe, _other) = rustix::pipe::pipe().unwrap();
        assert!(!is_wake(&pipe));
    }

    #[test]
    fn descriptor_for_reading_cannot_be_mapped_for_writing() {
        use pollux_ring::{Access, Pages, Segment};
        let segment = Segment::create("test", 4096, Pages::Off).unwrap();
        segment.copy_in(0, b"seen").unwrap();
        let fd = read_only(segment.fd()).unwrap();
        assert!(Segment::from_fd(fd.try_clone().unwrap(), Access::ReadWrite, 1 << 20).is_err());
        let mapped = Segment::from_fd(fd, Access::ReadOnly, 1 << 20).unwrap();
        let mut bytes = [0; 4];
        mapped.copy_out(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"seen");
    }
}
