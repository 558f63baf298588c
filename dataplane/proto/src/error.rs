//! Why a connection was reset, and what an application asked that cannot be.

use thiserror::Error;

use crate::seq::CdcSeq;

/// Which of the two cursors of a CDC message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CursorKind {
    /// Where the peer writes next, in our RMBE.
    Producer,
    /// Where the peer reads next, in its own RMBE.
    Consumer,
}

impl core::fmt::Display for CursorKind {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            CursorKind::Producer => "producer",
            CursorKind::Consumer => "consumer",
        })
    }
}

/// Why a connection ended other than by a normal close.
///
/// The variants from [`AbortReason::CursorOutsideRing`] on are violations: what the peer said
/// cannot be true, and going on would corrupt the stream. The connection has then reset itself;
/// others on the link live on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Error)]
pub enum AbortReason {
    /// The application asked for it, or closed with unread bytes.
    #[error("reset by the local application")]
    Local,
    /// The peer's abnormal close flag (0x20): it reset, or closed with unread bytes.
    #[error("reset by the peer, which aborted or closed without reading everything; see its log")]
    Peer,
    /// The link of the connection failed and there is no other.
    #[error("the link went down; reconnect once the peer is reachable again")]
    LinkDown,
    /// After a close, the peer took none of the remaining bytes for a whole drain period.
    #[error(
        "closed with {unsent} bytes unsent, of which the peer took none in time; \
         the peer's program does not read"
    )]
    DrainStalled {
        /// Bytes that were prepared and are lost.
        unsent: u64,
    },
    /// After a close, the peer did not answer for a whole guard period.
    #[error("the peer did not confirm the close or reset in time; its receive ring stays reserved")]
    PeerSilent,
    /// A cursor whose count is not less than the size of its ring.
    #[error("peer violation: {kind} cursor at {count} in a ring of {ring} bytes; connection reset")]
    CursorOutsideRing {
        /// Which cursor.
        kind: CursorKind,
        /// The count received.
        count: u32,
        /// Size of the ring in bytes.
        ring: u32,
    },
    /// A cursor two or more laps ahead of the last one.
    #[error(
        "peer violation: {kind} cursor went {laps} laps ahead in one message; connection reset"
    )]
    CursorSkipsLaps {
        /// Which cursor.
        kind: CursorKind,
        /// Laps between the last cursor and this one.
        laps: u16,
    },
    /// A producer cursor that claims more unread bytes than our RMBE holds.
    #[error(
        "peer violation: it claims {filled} unread bytes in our RMBE of {ring}, so unread data \
         was overwritten; connection reset"
    )]
    ProducerOverrun {
        /// Bytes that would lie in the ring.
        filled: u64,
        /// Size of the ring in bytes.
        ring: u32,
    },
    /// A consumer cursor that confirms bytes we never sent.
    #[error(
        "peer violation: it claims to have read {claimed} bytes more where only {outstanding} \
         were outstanding; connection reset"
    )]
    ConsumedUnsent {
        /// Bytes the cursor moved.
        claimed: u64,
        /// Bytes sent and not confirmed before.
        outstanding: u64,
    },
    /// A failover validation that names a message which never arrived here.
    #[error(
        "the peer moved to another link and message {confirmed} never arrived here, the last \
         was {last}; bytes are lost, connection reset"
    )]
    FailoverLoss {
        /// Last sequence number received.
        last: u16,
        /// Sequence number the peer believes delivered.
        confirmed: u16,
    },
}

impl AbortReason {
    /// The reason for a failover validation that fails.
    pub(crate) fn failover_loss(last: CdcSeq, confirmed: CdcSeq) -> AbortReason {
        AbortReason::FailoverLoss {
            last: last.0,
            confirmed: confirmed.0,
        }
    }

    /// Whether the peer broke the protocol, as opposed to an end that can happen to honest sides.
    #[must_use]
    pub fn is_violation(&self) -> bool {
        match self {
            AbortReason::Local
            | AbortReason::Peer
            | AbortReason::LinkDown
            | AbortReason::DrainStalled { .. }
            | AbortReason::PeerSilent
            | AbortReason::FailoverLoss { .. } => false,
            AbortReason::CursorOutsideRing { .. }
            | AbortReason::CursorSkipsLaps { .. }
            | AbortReason::ProducerOverrun { .. }
            | AbortReason::ConsumedUnsent { .. } => true,
        }
    }
}

/// A wish that the connection cannot take. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Error)]
pub enum Misuse {
    /// More bytes prepared than the send ring has room for.
    #[error("{bytes} bytes prepared where the send ring has room for {room}; wait for `writable`")]
    RingFull {
        /// Bytes asked.
        bytes: u32,
        /// Room there was.
        room: u32,
    },
    /// More bytes consumed than are readable.
    #[error("{bytes} bytes consumed where {readable} are readable; read less")]
    NotReadable {
        /// Bytes asked.
        bytes: u32,
        /// Bytes there were.
        readable: u32,
    },
    /// Bytes prepared after the application's own half close, close or abort; consumed after its
    /// close or abort.
    #[error("the application ended this direction before; open a new connection")]
    Ended,
    /// Bytes prepared after the peer closed or the connection was reset. This can happen to an
    /// honest application that has not learned of it yet (a socket says EPIPE or ECONNRESET).
    #[error("the peer takes no more bytes; stop writing")]
    PeerGone,
    /// An urgent byte prepared while the peer has not consumed the one before.
    #[error("an urgent byte is outstanding; wait until the peer has consumed it")]
    UrgentOutstanding,
    /// An urgent write of no bytes: there would be no urgent byte.
    #[error("an urgent write needs at least one byte")]
    NothingUrgent,
}
