//! What control and a worker say to each other: fixed-size values over two SPSC rings.
//!
//! Control owns everything slow. It *moves* a queue pair into the worker with
//! [`Command::AdoptLink`] and gets it back with [`Report::LinkReleased`]; between the two nobody
//! but the worker touches it.

use crate::budget::LLC_BYTES_MAX;
use crate::conn::OpenConn;
use crate::link::Link;
use crate::session::ServedSession;
use crate::snapshot::Snapshot;
use arrayvec::ArrayVec;
use pollux_proto::conn::ConnParams;
use pollux_provider::{Lkey, QpStats, Rkey, WcStatus};
use pollux_ring::Region;

/// Index of a link in the worker's table; chosen by control, below `WorkerLimits::links`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u16);

/// Index of a connection in the worker's table; chosen by control, below `WorkerLimits::conns`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord, Hash)]
pub struct ConnId(pub u16);

/// Index of a program's session in the worker's table; chosen by control.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u16);

/// One LLC message, as received or to be sent.
pub type LlcBytes = ArrayVec<u8, LLC_BYTES_MAX>;

/// The alert token of connection `conn` in its `generation`-th life: the index is in the low half
/// so that the worker finds the connection of a CDC message without a search, the generation
/// makes a late message of an earlier life miss. Never zero (RFC 7609 asks for that).
#[must_use]
pub fn alert_token(conn: ConnId, generation: u16) -> u32 {
    (u32::from(generation) << 16) | (u32::from(conn.0) + 1)
}

/// The table index inside an alert token, `None` for a token that this side never gave out.
#[must_use]
pub(crate) fn token_index(token: u32) -> Option<usize> {
    ((token & 0xffff) as usize).checked_sub(1)
}

/// How much goes inline at most. What a queue pair has granted is the limit above it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InlineRule {
    /// Longest message (CDC, LLC), in bytes and inclusive; 0 for none.
    pub messages: u32,
    /// Longest chunk of a stream (WRITE), in bytes and inclusive; 0 for none.
    pub writes: u32,
}

impl InlineRule {
    /// Nothing goes inline.
    pub const OFF: InlineRule = InlineRule {
        messages: 0,
        writes: 0,
    };
    /// Whatever fits goes inline.
    pub const ALL: InlineRule = InlineRule {
        messages: u32::MAX,
        writes: u32::MAX,
    };

    /// The rule on a queue pair that has granted `bytes`.
    #[must_use]
    pub fn within(self, bytes: u32) -> InlineRule {
        InlineRule {
            messages: self.messages.min(bytes),
            writes: self.writes.min(bytes),
        }
    }
}

/// How a worker waits while there is nothing to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PollMode {
    /// Never sleeps and makes no system call.
    Busy,
    /// Polls for a while, yielding the core now and then, and sleeps when that was in vain.
    Adaptive,
    /// Sleeps as soon as a pass found nothing.
    Interrupt,
}

impl PollMode {
    /// The word used in the configuration and by the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            PollMode::Busy => "busy",
            PollMode::Adaptive => "adaptive",
            PollMode::Interrupt => "interrupt",
        }
    }
}

/// A ring in registered memory.
#[derive(Clone, Debug)]
pub struct BufferSpan {
    /// The memory the ring lies in.
    pub region: Region,
    /// First byte of the ring, counted from the start of `region`.
    pub offset: usize,
    /// Key of the local registration that covers the ring.
    pub lkey: Lkey,
}

/// A link's memory for messages, made and registered by control.
#[derive(Clone, Debug)]
pub struct MessageSlots {
    /// The slots, `count` of `bytes` each, one behind the other.
    pub span: BufferSpan,
    /// Bytes of one slot.
    pub bytes: u32,
    /// Number of slots.
    pub count: u32,
}

/// Who reads and writes the bytes of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// A program, by a slot of its session.
    Session {
        /// The program's session.
        session: SessionId,
        /// The slot whose rings the connection uses.
        slot: u16,
        /// Which of the slot's connections this is, as the program was told.
        generation: u16,
    },
    /// The application inside the worker; the tag tells it what the connection is for.
    App(u64),
}

/// Everything a worker needs to run a connection.
#[derive(Debug)]
pub struct ConnSpec {
    /// Ring sizes and tokens.
    pub params: ConnParams,
    /// Key of the peer's RMB on this link.
    pub peer_rkey: Rkey,
    /// Address of the first byte of the peer's RMBE.
    pub peer_addr: u64,
    /// The ring that outgoing bytes are read from.
    pub sndbuf: BufferSpan,
    /// The ring that the peer writes into.
    pub rmbe: BufferSpan,
    /// Who uses it.
    pub owner: Owner,
}

/// Control's orders to a worker.
#[derive(Debug)]
pub enum Command<Q, O> {
    /// Take over a link: post its receives, then report [`Report::LinkAdopted`].
    AdoptLink {
        /// The queue pair in state RTS, moved in.
        qp: Q,
        /// The worker's bookkeeping for it, made by control so that the worker allocates nothing.
        link: Box<Link>,
    },
    /// Give a link's queue pair back with [`Report::LinkReleased`]; connections still on it are
    /// reset.
    ReleaseLink(LinkId),
    /// Send an LLC message on a link.
    SendLlc {
        /// The link.
        link: LinkId,
        /// The message.
        message: LlcBytes,
    },
    /// Serve a program's session.
    AttachSession {
        /// Where it goes.
        session: SessionId,
        /// The session, made by control so that the worker allocates nothing.
        served: Box<ServedSession>,
    },
    /// Stop serving a session: reset its connections, then report [`Report::SessionDetached`].
    DetachSession(SessionId),
    /// Keep early CDC messages for a token that was announced to the peer but is not open yet.
    ///
    /// A pass takes a few orders only, so a message may meet the worker before an order that waits in
    /// the mailbox. Control therefore announces a token only when this was carried out: an LLC message
    /// of its own that it ordered later (CONFIRM LINK, CONFIRM RKEY) has been answered.
    ReserveConn {
        /// The connection's place.
        conn: ConnId,
        /// The only link on which the token is valid.
        link: LinkId,
        /// The announced token.
        token: u32,
    },
    /// Open a reserved connection.
    OpenConn {
        /// Its place.
        conn: ConnId,
        /// The connection, made by control so that the worker allocates nothing.
        open: Box<OpenConn>,
    },
    /// Forget a reservation whose handshake failed, or reset an open connection. Without effect when
    /// the connection has ended meanwhile, so that [`Report::ConnClosed`] comes once.
    AbortConn(ConnId),
    /// The peer has withdrawn the buffer that a connection writes into. If it has not ended its side
    /// before, the connection does not exist there, and is reset.
    PeerWithdrew(ConnId),
    /// Change the way of waiting.
    SetPollMode(PollMode),
    /// Change what goes inline, on every link.
    SetInline(InlineRule),
    /// An order for the application inside the worker.
    App(O),
    /// Fill in what the tables hold, a few entries per pass, and report it back.
    Snapshot(Box<Snapshot>),
    /// Start counting anew.
    ClearStats,
    /// Finish: reset all connections and return from the loop after [`Report::Stopped`].
    Stop,
}

/// How a connection ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConnOutcome {
    /// Both sides closed in order.
    Closed,
    /// One side reset it, or the link failed.
    Reset,
}

/// Whether the peer has said that it is done with a connection: until then it may still write
/// into the RMBE, whose memory must not be given to another connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PeerDone {
    /// The peer's close or abort was received, or the link is dead.
    Yes,
    /// The peer never answered.
    No,
}

/// A worker's news for control.
#[derive(Debug)]
pub enum Report<Q, R> {
    /// The link's receives are posted: the peer may be told to send.
    LinkAdopted(LinkId),
    /// The connection is open: its program or application may use it.
    ConnOpened(ConnId),
    /// The link is dead; its connections have been reset. Control answers with `ReleaseLink`.
    LinkFailed {
        /// The link.
        link: LinkId,
        /// The completion status that ended it.
        status: WcStatus,
    },
    /// A link's queue pair, moved back, with its last counters.
    LinkReleased {
        /// The link.
        link: LinkId,
        /// The queue pair; `None` if the worker had no such link.
        qp: Option<Q>,
        /// What it did in its life.
        stats: QpStats,
        /// The bookkeeping, to be dropped where that may take time.
        bookkeeping: Option<Box<Link>>,
    },
    /// An LLC message arrived.
    Llc {
        /// The link it came on.
        link: LinkId,
        /// Its bytes, cut at [`LLC_BYTES_MAX`].
        message: LlcBytes,
    },
    /// Credits wait to be returned to the peer, and no message of ours has carried them: control
    /// answers with an announcement on the link, which says how many it is by then.
    CreditsDue {
        /// The link.
        link: LinkId,
        /// How many there are now.
        credits: u8,
    },
    /// A connection has ended and its place is free.
    ConnClosed {
        /// The place.
        conn: ConnId,
        /// How it ended.
        outcome: ConnOutcome,
        /// Whether its memory may be used again.
        peer_done: PeerDone,
        /// The connection itself, for its last figures and to be dropped where that may take time.
        open: Option<Box<OpenConn>>,
    },
    /// A program broke the rules of its session's memory; control detaches it.
    SessionFault {
        /// The session.
        session: SessionId,
        /// What it did.
        violation: pollux_attach::shared::Violation,
    },
    /// A session's memory is no longer used by this worker.
    SessionDetached {
        /// The session.
        session: SessionId,
        /// Its shared memory, to be dropped where that may take time.
        served: Option<Box<ServedSession>>,
    },
    /// Word of the application inside the worker.
    App(R),
    /// A snapshot asked for.
    Snapshot(Box<Snapshot>),
    /// The last report of a worker.
    Stopped,
}
