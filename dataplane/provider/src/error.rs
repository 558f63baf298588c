//! One error type per operation of the contract. Each says what was wrong, with the value.

use core::fmt;

use crate::Errno;
use crate::types::{GroupId, QpCaps, QpIndex, QpState};

/// Prints a GID as 32 hexadecimal digits, the form used for names in the file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GidHex(pub [u8; 16]);

impl fmt::Display for GidHex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Why [`crate::Device::register`] refused.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    /// The span is empty or does not lie in the region.
    #[error(
        "cannot register {len} bytes at offset {offset}: the region has {region_bytes} bytes \
         (a registration needs at least 1 byte)"
    )]
    OutOfRegion {
        /// First byte asked for.
        offset: usize,
        /// Bytes asked for.
        len: usize,
        /// Bytes the region has.
        region_bytes: usize,
    },
    /// All registrations of the device are in use.
    #[error("cannot register memory: all {limit} registrations of the device are in use")]
    TooMany {
        /// [`crate::DeviceLimits::mr_max`].
        limit: u32,
    },
    /// The limit of locked memory does not allow it.
    #[error(
        "cannot register {len} bytes: the locked-memory limit is {limit_bytes} bytes, {needed_bytes} are \
         needed; raise it (service: LimitMEMLOCK=infinity, shell: ulimit -l unlimited, container: \
         --ulimit memlock=-1)"
    )]
    Locked {
        /// Bytes asked for.
        len: usize,
        /// The limit.
        limit_bytes: u64,
        /// What this device has registered, and these.
        needed_bytes: u64,
    },
    /// The system refused.
    #[error("cannot register {len} bytes: {errno}")]
    System {
        /// Bytes asked for.
        len: usize,
        /// Answer of the system.
        errno: Errno,
    },
}

/// Why [`crate::Device::create_poll_group`] refused.
#[derive(Debug, thiserror::Error)]
pub enum CreateGroupError {
    /// Zero or more than the device has.
    #[error("cannot create a completion queue of {asked} entries: 1 to {limit} are possible")]
    Entries {
        /// Entries asked for.
        asked: u32,
        /// [`crate::DeviceLimits::cq_entries_max`].
        limit: u32,
    },
    /// The system refused.
    #[error("cannot create a completion queue: {0}")]
    System(Errno),
}

/// Why [`crate::Device::create_qp`] refused. Nothing is left behind.
///
/// Devices answer a too large inline size with EINVAL, ENOMEM, ENOSPC or EOPNOTSUPP; a caller that
/// probes treats these four alike ([`CreateQpError::may_be_inline`]).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot create a queue pair with {asked}: {errno}; {hint}")]
pub struct CreateQpError {
    /// Answer of the device or system.
    pub errno: Errno,
    /// What was asked for.
    pub asked: QpCaps,
    /// Most likely cause or cure, for people.
    pub hint: String,
}

impl CreateQpError {
    /// Whether asking for less inline data may help.
    pub fn may_be_inline(&self) -> bool {
        let inline = [Errno::INVAL, Errno::NOMEM, Errno::NOSPC, Errno::OPNOTSUPP];
        self.asked.inline_bytes > 0 && inline.contains(&self.errno)
    }
}

/// Why a state change was refused. The queue pair keeps its state unless said otherwise.
#[derive(Debug, thiserror::Error)]
pub enum ModifyError {
    /// Not a step of the state machine RESET -> INIT -> RTR -> RTS -> ERROR.
    #[error("queue pair {qpn:#08x} cannot go from {from} to {to}")]
    WrongState {
        /// Queue pair.
        qpn: u32,
        /// Its state.
        from: QpState,
        /// State asked for.
        to: QpState,
    },
    /// An attribute has a value that does not exist.
    #[error("queue pair {qpn:#08x}: {name} is {value}, allowed is {allowed}")]
    BadAttribute {
        /// Queue pair.
        qpn: u32,
        /// Field of the attribute struct.
        name: &'static str,
        /// Value given.
        value: u64,
        /// Values that exist.
        allowed: &'static str,
    },
    /// The peer device cannot be reached.
    #[error("no path to device {}: {place}: {cause}", GidHex(*gid))]
    NoPeer {
        /// Address that was asked for.
        gid: [u8; 16],
        /// Where it was looked for, for example the path of its rendezvous socket.
        place: String,
        /// What happened there.
        cause: String,
    },
    /// The system refused.
    #[error("queue pair {qpn:#08x} cannot go to {to}: {errno}")]
    System {
        /// Queue pair.
        qpn: u32,
        /// State asked for.
        to: QpState,
        /// Answer of the system.
        errno: Errno,
    },
}

/// Why [`crate::PollGroup::adopt`] refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AdoptRefusal {
    /// The queue pair was created for another group (its completions go there).
    #[error("it was created for poll group {created_for:?}, this is {this:?}")]
    WrongGroup {
        /// Group named at creation.
        created_for: GroupId,
        /// Group that was asked to adopt.
        this: GroupId,
    },
    /// The group holds all it can.
    #[error("the poll group already holds {limit} queue pairs")]
    Full {
        /// Queue pairs a group can hold.
        limit: usize,
    },
}

/// A refused adoption; gives the queue pair back.
pub struct AdoptError<Q> {
    /// The queue pair, unchanged.
    pub qp: Q,
    /// Why.
    pub reason: AdoptRefusal,
}

impl<Q> fmt::Debug for AdoptError<Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdoptError")
            .field("reason", &self.reason)
            .finish_non_exhaustive()
    }
}

impl<Q> fmt::Display for AdoptError<Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot adopt the queue pair: {}", self.reason)
    }
}

impl<Q> core::error::Error for AdoptError<Q> {}

/// Why a post was refused. A refused post has posted nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// All send slots are taken; completions free them.
    #[error("the send queue is full: completions that cover its work have to be reaped first")]
    SendQueueFull,
    /// As many receives are posted as the queue pair has.
    #[error("the receive queue is full")]
    RecvQueueFull,
    /// More than the granted inline size.
    #[error("{bytes} bytes inline are more than the {limit} bytes granted")]
    InlineTooLong {
        /// Bytes of all pieces.
        bytes: u64,
        /// [`QpCaps::inline_bytes`] as granted.
        limit: u32,
    },
    /// More pieces than the queue pair has.
    #[error("{pieces} pieces are more than the {limit} granted")]
    TooManySges {
        /// Pieces given.
        pieces: usize,
        /// Granted.
        limit: u32,
    },
    /// Longer than any message the device can carry (or, from memory that only this process can see,
    /// longer than the driver copies on the way).
    #[error("a message of {bytes} bytes is more than the {limit} bytes possible from this memory")]
    TooLong {
        /// Bytes of all pieces.
        bytes: u64,
        /// Possible.
        limit: u32,
    },
    /// No registration has this key.
    #[error("no registration has the local key {0:#010x}")]
    BadLkey(u32),
    /// A piece does not lie inside its region.
    #[error("{length} bytes at {addr:#x} do not lie inside the registration of their key")]
    OutOfRegion {
        /// Address of the piece.
        addr: u64,
        /// Its length, bytes.
        length: u32,
    },
    /// An inline piece does not lie inside its memory.
    #[error("{length} bytes at offset {offset} do not lie inside memory of {region_bytes} bytes")]
    PieceOutOfBounds {
        /// Offset of the piece.
        offset: usize,
        /// Its length, bytes.
        length: u32,
        /// Bytes of the memory.
        region_bytes: usize,
    },
    /// The state does not allow this post.
    #[error("a queue pair in state {0} does not take this work")]
    WrongState(QpState),
    /// The group has no queue pair at this index.
    #[error("the poll group has no queue pair {0:?}")]
    NoSuchQp(QpIndex),
}

/// Why a flush was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FlushError {
    /// The group has no queue pair at this index.
    #[error("the poll group has no queue pair {0:?}")]
    NoSuchQp(QpIndex),
}
