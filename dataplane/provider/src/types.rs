//! Values of the driver contract: keys, spans, completions, capabilities, attributes, counters.
//!
//! Words follow the verbs (InfiniBand architecture volume 1, chapters 10 and 11); numbers that would be
//! easy to mix up have types of their own. Nothing here depends on a driver.

use core::fmt;

use pollux_ring::{Region, Wake};

/// The caller's name for a work request; comes back in its [`Completion`]. The driver never reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WrId(pub u64);

/// Key that lets this device's own work requests touch a registered region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lkey(pub u32);

/// Key that lets the peer's WRITEs reach a region registered with [`Access::RemoteWrite`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rkey(pub u32);

/// One piece of local registered memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sge {
    /// Virtual address of the first byte, inside the region that `lkey` names.
    pub addr: u64,
    /// Bytes.
    pub length: u32,
    /// Key of the region.
    pub lkey: Lkey,
}

/// Where a WRITE goes at the peer; its length is that of the local pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteSpan {
    /// Virtual address at the peer, as the peer announced it.
    pub addr: u64,
    /// Key the peer announced for the region around `addr`.
    pub rkey: Rkey,
}

/// What a region may be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Only this device's own work requests may use it (source of sends, target of receives).
    LocalOnly,
    /// The peer's WRITEs may change it as well.
    RemoteWrite,
}

/// Whether a successful work request produces a completion. A failed one always does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// Produces a completion, which also covers every earlier unsignalled request of the queue pair.
    Signaled,
    /// No completion on success; its send slot is freed by the next signalled request's completion.
    Unsignaled,
}

/// Mapped memory that an inline post copies from. No registration and no key are needed: the
/// processor reads the bytes, not the adapter.
#[derive(Debug, Clone, Copy)]
pub struct Piece<'a> {
    /// The memory.
    pub region: &'a Region,
    /// First byte, from the start of the region.
    pub offset: usize,
    /// Bytes.
    pub length: u32,
}

/// The bytes of a SEND or WRITE, and how they reach the adapter. Said with each post: there is no
/// inline flag that could survive from the last one.
#[derive(Debug, Clone, Copy)]
pub enum Payload<'a> {
    /// Copied at post, one piece after the other, at most [`QpCaps::send_sge`] of them: the memory may
    /// be reused as soon as the post returns. Together at most [`QpCaps::inline_bytes`] bytes,
    /// inclusive.
    Inline(&'a [Piece<'a>]),
    /// As [`Payload::Inline`], from ordinary memory.
    InlineBytes(&'a [u8]),
    /// Read later, one piece after the other, at most [`QpCaps::send_sge`] of them: the memory must
    /// stay unchanged until the request is covered by a completion.
    ByReference(&'a [Sge]),
}

/// How a work request ended (verbs `ibv_wc_status`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WcStatus {
    /// Done; for a send: executed at the peer.
    Success,
    /// A message longer than the receive that met it (reported on the receive).
    LocalLength,
    /// A local piece is not (or no longer) registered, or lies outside its region.
    LocalProtection,
    /// Outstanding when the queue pair went into the error state; not executed, or not known to be.
    WrFlush,
    /// The peer refused address, length or key of a WRITE.
    RemoteAccess,
    /// The peer could not make sense of the request, or it was longer than its receive.
    RemoteInvalidRequest,
    /// The peer could not finish the request for a fault of its own.
    RemoteOperation,
    /// The peer does not answer any more.
    RetryExceeded,
    /// The peer had no receive posted, more often than `rnr_retry` allows.
    RnrRetryExceeded,
    /// The answers of the peer contradict each other, or another fault of the transport.
    General,
}

/// What kind of work ended (verbs `ibv_wc_opcode`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WcOpcode {
    /// A SEND of ours.
    Send,
    /// A WRITE of ours, with or without immediate.
    Write,
    /// A receive of ours that took a SEND.
    Recv,
    /// A receive of ours that was used up by a WRITE with immediate; its memory is untouched.
    RecvWithImm,
}

impl WcOpcode {
    /// Whether this is work of the receive queue. For a flushed receive it is [`WcOpcode::Recv`].
    pub fn is_receive(self) -> bool {
        match self {
            WcOpcode::Recv | WcOpcode::RecvWithImm => true,
            WcOpcode::Send | WcOpcode::Write => false,
        }
    }
}

/// A queue pair's place inside the poll group that adopted it. Reused after a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QpIndex(pub u16);

/// Names a poll group of a device; never reused while the device lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupId(pub u32);

/// News about one work request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// Name given at post.
    pub wr_id: WrId,
    /// Queue pair it was posted to.
    pub qp: QpIndex,
    /// How it ended. Unless [`WcStatus::Success`], only `wr_id`, `qp` and `opcode` mean anything.
    pub status: WcStatus,
    /// What ended.
    pub opcode: WcOpcode,
    /// Bytes received or, for a send, transferred.
    pub byte_len: u32,
    /// The immediate value of a [`WcOpcode::RecvWithImm`], host order.
    pub imm: Option<u32>,
}

impl Completion {
    /// A value to fill arrays for [`crate::PollGroup::reap`] with; never returned by a driver.
    pub const EMPTY: Completion = Completion {
        wr_id: WrId(u64::MAX),
        qp: QpIndex(u16::MAX),
        status: WcStatus::General,
        opcode: WcOpcode::Send,
        byte_len: 0,
        imm: None,
    };
}

/// Sizes of a queue pair, as asked or as granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpCaps {
    /// Work requests the send queue holds until completions cover them.
    pub send_wr: u32,
    /// Receives that may be posted at a time.
    pub recv_wr: u32,
    /// Pieces per send or WRITE.
    pub send_sge: u32,
    /// Pieces per receive.
    pub recv_sge: u32,
    /// Longest message, in bytes and inclusive, that may be posted inline ([`Payload`]).
    pub inline_bytes: u32,
}

impl QpCaps {
    /// Those of a queue pair that is not there.
    pub const NONE: QpCaps = QpCaps {
        send_wr: 0,
        recv_wr: 0,
        send_sge: 0,
        recv_sge: 0,
        inline_bytes: 0,
    };
}

impl fmt::Display for QpCaps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let QpCaps {
            send_wr,
            recv_wr,
            send_sge,
            recv_sge,
            inline_bytes,
        } = self;
        write!(
            f,
            "{send_wr} sends of {send_sge} pieces, {recv_wr} receives of {recv_sge}, \
             {inline_bytes} B inline"
        )
    }
}

/// Transport service of a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QpKind {
    /// Reliable connection.
    Rc,
}

/// What is asked of [`crate::Device::create_qp`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpSpec {
    /// Transport service.
    pub kind: QpKind,
    /// Sizes asked for; what counts afterwards is [`crate::Qp::caps`].
    pub caps: QpCaps,
}

/// State of a queue pair (InfiniBand architecture, 10.3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum QpState {
    /// Fresh. Nothing may be posted.
    Reset,
    /// Receives may be posted; nothing is processed.
    Init,
    /// Ready to receive: the peer's requests are executed, sends may not be posted.
    Rtr,
    /// Ready to send.
    Rts,
    /// Everything outstanding is flushed. There is no way back.
    Error,
}

impl fmt::Display for QpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            QpState::Reset => "RESET",
            QpState::Init => "INIT",
            QpState::Rtr => "RTR",
            QpState::Rts => "RTS",
            QpState::Error => "ERROR",
        })
    }
}

/// What INIT -> RTR needs to know about the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RtrAttr {
    /// Path MTU in bytes: 256, 512, 1024, 2048 or 4096.
    pub path_mtu: u32,
    /// The peer's queue pair, 24 bits.
    pub peer_qpn: u32,
    /// First packet sequence number the peer will send, 24 bits.
    pub rq_psn: u32,
    /// How long the peer waits after we answered "receiver not ready": code 0..=31, see
    /// [`crate::rnr_timer_ns`].
    pub min_rnr_timer: u8,
    /// The peer's port.
    pub peer_gid: [u8; 16],
    /// The peer's Ethernet address; drivers without Ethernet ignore it.
    pub peer_mac: [u8; 6],
    /// IP hop limit: 1 for a direct neighbour, 64 through a gateway.
    pub hop_limit: u8,
}

/// What RTR -> RTS needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RtsAttr {
    /// First packet sequence number we send, 24 bits; the one announced to the peer.
    pub sq_psn: u32,
    /// Acknowledge timeout, code 0..=31 (4.096 us * 2^code; 0 = for ever).
    pub timeout: u8,
    /// Retries after a timeout, 0..=7.
    pub retry_count: u8,
    /// Retries after "receiver not ready", 0..=6; 7 = for ever.
    pub rnr_retry: u8,
}

/// Who a device is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceIdentity {
    /// Name for people and configuration.
    pub name: String,
    /// IEEE OUI of the maker, 24 bits.
    pub vendor_id: u32,
    /// The maker's part number.
    pub vendor_part_id: u32,
    /// Address of the port; goes into CLC messages.
    pub gid: [u8; 16],
    /// Ethernet address of the port.
    pub mac: [u8; 6],
    /// Port number, from 1.
    pub port: u8,
    /// Active path MTU in bytes.
    pub mtu_bytes: u32,
    /// Driver and carrier, for example "soft/shm".
    pub driver: &'static str,
}

/// Largest values a device accepts. The inline limit is missing on purpose: only the creation of a
/// queue pair tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceLimits {
    /// [`QpCaps::send_wr`].
    pub send_wr_max: u32,
    /// [`QpCaps::recv_wr`].
    pub recv_wr_max: u32,
    /// Pieces per send.
    pub send_sge_max: u32,
    /// Pieces per receive.
    pub recv_sge_max: u32,
    /// Live queue pairs.
    pub qp_max: u32,
    /// [`PollGroupSpec::cq_entries`].
    pub cq_entries_max: u32,
    /// Live registrations.
    pub mr_max: u32,
    /// Longest WRITE by reference, bytes.
    pub message_bytes_max: u32,
    /// Longest WRITE that is worth posting inline, bytes, where more is granted: longer ones arrive
    /// sooner by reference. As measured with this driver; `None` where nobody has measured.
    pub inline_worth_bytes: Option<u32>,
}

/// What is asked of [`crate::Device::create_poll_group`].
#[derive(Debug)]
pub struct PollGroupSpec {
    /// Room for completions. The send and receive queues of all queue pairs created for the group must
    /// fit in it together, so that it can never overrun.
    pub cq_entries: u32,
    /// Signalled when something happens for the group while it sleeps (see [`crate::PollGroup::arm`]).
    pub wake: Wake,
}

/// Intent given to [`crate::PollGroup::arm`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sleep {
    /// The caller wants to wait on the wake descriptor.
    May,
    /// The caller polls for ever; peers may leave out the check whether it sleeps.
    Never,
}

/// Answer of [`crate::PollGroup::arm`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Armed {
    /// Nothing is there; the wake descriptor will be signalled. Call
    /// [`crate::PollGroup::disarm`] after waking.
    Idle,
    /// There is work, or work that only polling can move on: poll again. The group is not armed.
    Pending,
}

/// Counters of one queue pair since its creation. Only grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QpStats {
    /// SENDs posted inline.
    pub sends_inline: u64,
    /// SENDs posted by reference.
    pub sends_by_reference: u64,
    /// WRITEs (with immediate too) posted inline.
    pub writes_inline: u64,
    /// WRITEs (with immediate too) posted by reference.
    pub writes_by_reference: u64,
    /// Of the WRITEs, those with immediate.
    pub writes_with_imm: u64,
    /// Bytes of all SENDs and WRITEs posted.
    pub bytes_posted: u64,
    /// Flushes that had work.
    pub doorbells: u64,
    /// Completions reaped for sends and WRITEs.
    pub send_completions: u64,
    /// Receives posted.
    pub recvs_posted: u64,
    /// Completions reaped for receives.
    pub recv_completions: u64,
    /// Times we told the peer "receiver not ready".
    pub rnr_naks_sent: u64,
    /// Times the peer told us so, as far as known: drivers look when they read acknowledgements.
    pub rnr_naks_received: u64,
    /// WRITEs of the peer executed here (drivers whose adapter does it report 0).
    pub writes_executed: u64,
}

/// News about a device, for logs and link supervision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceEvent {
    /// A peer device came into reach.
    PeerJoined {
        /// Its address.
        gid: [u8; 16],
    },
    /// A peer device went away; queue pairs to it fail with [`WcStatus::RetryExceeded`].
    PeerGone {
        /// Its address.
        gid: [u8; 16],
    },
    /// A queue pair went into the error state on its own.
    QpError {
        /// Which.
        qpn: u32,
        /// Why.
        cause: QpErrorCause,
    },
    /// News of the adapter or its port, and what the adapter says of a failure, in words.
    Adapter {
        /// What happened, with the values.
        what: String,
    },
    /// A peer broke the rules of the fabric and was cut off.
    PeerRefused {
        /// What it did, with the values.
        what: String,
    },
}

/// Why a queue pair went into the error state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QpErrorCause {
    /// A request of ours failed; its completion carries this status.
    Requester(WcStatus),
    /// We refused a request of the peer, which sees this status.
    Responder(WcStatus),
}
