//! One connection: two byte streams between an application and its peer, as a state machine.
//!
//! The owner of a [`Conn`] holds the memory (a sndbuf that the adapter reads, an RMBE that the peer
//! writes) and the queue pair. It tells the connection what happened and carries out what the
//! connection orders:
//!
//! ```text
//!   application                    Conn                        fabric
//!   copies into the sndbuf  ->  prepare(n)
//!                               poll_transmit()         ->  WRITE, WRITE, SEND of one CDC
//!                               handle_completed(mark)  <-  completion that covers a WRITE
//!                               handle_cdc(message)     <-  CDC of the peer
//!   reads from the RMBE     <-  take_events()
//!   has read                ->  consume(n)
//! ```
//!
//! After any call the owner asks [`Conn::wants_transmit`], [`Conn::take_events`] and, where it
//! keeps timers, [`Conn::timer`]; each costs a few instructions. [`Conn::poll_transmit`] may raise
//! events too.
//!
//! What is promised, for a peer that is honest or not:
//!
//! 1. Writes stay inside the peer's free space: between its announced consumer cursor and one ring
//!    further.
//! 2. A CDC is handed out together with, and after, the writes of all bytes it announces.
//! 3. Bytes are sent whenever there are some and the window is not closed. A closed window is
//!    opened by the reader as soon as it read more than the watermark, because the last CDC said
//!    write blocked.
//! 4. Received cursors are judged before they are believed. What cannot be true resets this
//!    connection, with the reason, and nothing else.
//! 5. The final flags (closed, abnormal close) are said once; after them at most a reset follows.
//!
//! The rules are those of RFC 7609 and of the Linux kernel, which is the peer to be understood.
//! Departures are named where they are.

mod close;
mod rx;
mod state;
mod tx;
mod urgent;
mod window;

use pollux_wire::cdc::{ConnStateFlags, ProducerFlags};

pub use self::close::{ABORT_GUARD, CLOSE_GUARD, ConnTimer, DOOMED_DRAIN_GUARD, DRAIN_GUARD};
pub use self::state::ConnState;
pub use self::tx::{NeedsCompletion, Transmit};
pub use self::urgent::UrgentDelivery;
pub use crate::plan::{Piece, Placement, Write};
pub use crate::rmbe::update_watermark;

use self::close::App;
use self::tx::{Due, Sending};
use self::urgent::{RxUrgent, TxUrgent};
use self::window::Window;
use crate::error::AbortReason;
use crate::event::EventSet;
use crate::rmbe::Rmbe;
use crate::seq::CdcSeq;
use crate::sndbuf::SndBuf;

/// What the handshake settled about a connection. Sizes are in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ConnParams {
    /// Size of the own sndbuf, at least 1.
    pub sndbuf_bytes: u32,
    /// Size of the own RMBE, at least 1.
    pub rmbe_bytes: u32,
    /// Size of the peer's RMBE, at least 1.
    pub peer_rmbe_bytes: u32,
    /// The alert token we gave out: received messages carry it.
    pub local_token: u32,
    /// The alert token the peer gave out: sent messages carry it.
    pub peer_token: u32,
}

/// Whether the peer may still write into our RMBE.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PeerWrites {
    /// It has not confirmed the end: the memory must not be given to another connection.
    Possible,
    /// It closed or reset, or its link is down.
    Over,
}

/// Whether the link of the connection works.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum LinkHealth {
    Up,
    Down,
}

/// One connection. See the module text for how to drive it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Conn {
    sndbuf: SndBuf,
    window: Window,
    rmbe: Rmbe,
    local_token: u32,
    peer_token: u32,
    /// Number of the last message sent.
    tx_seq: CdcSeq,
    /// Number of the last message received.
    rx_seq: CdcSeq,
    /// Reasons to send a message even without data.
    due: Due,
    /// Whether the application may add to the stream.
    sending: Sending,
    state: ConnState,
    /// How far the application has ended the connection.
    app: App,
    events: EventSet,
    /// Producer flags of the last message; write blocked is forgotten once everything is read.
    peer_producer_flags: ProducerFlags,
    /// Connection state flags the peer has said so far.
    peer_flags: ConnStateFlags,
    /// Connection state flags we have said so far.
    said: ConnStateFlags,
    /// Connection state flags to be said once the send ring is drained.
    owed: ConnStateFlags,
    link: LinkHealth,
    delivery: UrgentDelivery,
    tx_urgent: TxUrgent,
    rx_urgent: RxUrgent,
    /// Sent total when the drain timer last expired.
    drain_mark: u64,
    abort_reason: Option<AbortReason>,
}

impl Conn {
    /// A connection right after its handshake: active, both rings empty, the whole window open.
    ///
    /// # Panics
    ///
    /// If a size is 0, which the handshake must have excluded.
    #[must_use]
    pub fn new(params: &ConnParams) -> Conn {
        let sizes = [
            params.sndbuf_bytes,
            params.rmbe_bytes,
            params.peer_rmbe_bytes,
        ];
        assert!(!sizes.contains(&0), "a ring of 0 bytes: {params:?}");
        Conn {
            sndbuf: SndBuf::new(params.sndbuf_bytes),
            window: Window::new(params.peer_rmbe_bytes),
            rmbe: Rmbe::new(params.rmbe_bytes),
            local_token: params.local_token,
            peer_token: params.peer_token,
            tx_seq: CdcSeq::NONE,
            rx_seq: CdcSeq::NONE,
            due: Due::NOTHING,
            sending: Sending::Open,
            state: ConnState::Active,
            app: App::Open,
            events: EventSet::NONE,
            peer_producer_flags: ProducerFlags::EMPTY,
            peer_flags: ConnStateFlags::EMPTY,
            said: ConnStateFlags::EMPTY,
            owed: ConnStateFlags::EMPTY,
            link: LinkHealth::Up,
            delivery: UrgentDelivery::Inline,
            tx_urgent: TxUrgent::None,
            rx_urgent: RxUrgent::None,
            drain_mark: 0,
            abort_reason: None,
        }
    }

    /// Takes the events since the last call.
    #[inline]
    pub fn take_events(&mut self) -> EventSet {
        core::mem::take(&mut self.events)
    }

    /// Whether [`Conn::take_events`] has something to give.
    #[inline]
    #[must_use]
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Bytes that can be consumed now, contiguous in the ring from [`Conn::read_offset`] (and round
    /// its end). They stay readable after the peer closed or reset; after a close or abort of our own
    /// there are none.
    #[inline]
    #[must_use]
    pub fn readable(&self) -> u32 {
        match self.app {
            App::Open | App::HalfClosed => self.rmbe.readable(),
            App::Closed => 0,
        }
    }

    /// Bytes that can be prepared now, from [`Conn::write_offset`] (and round the end); 0 once the
    /// stream has ended.
    #[inline]
    #[must_use]
    pub fn writable(&self) -> u32 {
        match self.sending {
            Sending::Open | Sending::Held => self.sndbuf.room(),
            Sending::Ended | Sending::Gone => 0,
        }
    }

    /// Bytes that arrived in the RMBE since the connection began.
    #[inline]
    #[must_use]
    pub fn produced_total(&self) -> u64 {
        self.rmbe.produced()
    }

    /// Bytes consumed since the connection began; a skipped urgent byte is among them.
    #[inline]
    #[must_use]
    pub fn consumed_total(&self) -> u64 {
        self.rmbe.consumed()
    }

    /// Bytes prepared since the connection began.
    #[inline]
    #[must_use]
    pub fn prepared_total(&self) -> u64 {
        self.sndbuf.prepared()
    }

    /// Bytes handed out by [`Conn::poll_transmit`] since the connection began.
    #[inline]
    #[must_use]
    pub fn sent_total(&self) -> u64 {
        self.sndbuf.sent()
    }

    /// Bytes whose place in the sndbuf is free again. Below [`Conn::sent_total`] the adapter may
    /// still be reading the difference, also after the connection has ended.
    #[inline]
    #[must_use]
    pub fn reclaimed_total(&self) -> u64 {
        self.sndbuf.reclaimed()
    }

    /// Offset in the RMBE of the next byte to be read.
    #[inline]
    #[must_use]
    pub fn read_offset(&self) -> u32 {
        self.rmbe.read_offset()
    }

    /// Offset in the sndbuf where the next byte is to be prepared.
    #[inline]
    #[must_use]
    pub fn write_offset(&self) -> u32 {
        self.sndbuf.write_offset()
    }

    /// Bytes the peer has room for, as far as we know.
    #[inline]
    #[must_use]
    pub fn window(&self) -> u32 {
        self.window.open(self.sndbuf.sent())
    }

    /// The state of the connection.
    #[inline]
    #[must_use]
    pub fn state(&self) -> ConnState {
        self.state
    }

    /// Why the connection did not end, or will not end, by a normal close.
    #[must_use]
    pub fn abort_reason(&self) -> Option<AbortReason> {
        self.abort_reason
    }

    /// Whether the readable bytes are the last ones: after them comes the end of the stream or the
    /// reset.
    #[must_use]
    pub fn peer_is_done(&self) -> bool {
        !self.peer_flags.is_empty() || self.state == ConnState::Closed
    }

    /// Whether nothing is left to be sent or waited for: the owner may forget the connection, once
    /// the application has too and its own work requests are done.
    #[inline]
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.state == ConnState::Closed && self.due == Due::NOTHING
    }

    /// Whether the RMBE can be given to another connection (RFC 7609 section 4.9: not before the
    /// peer has closed or reset, or its link is down). Ask when the connection is finished.
    #[must_use]
    pub fn peer_writes(&self) -> PeerWrites {
        match self.link {
            LinkHealth::Up if !state::has_final(self.peer_flags) => PeerWrites::Possible,
            LinkHealth::Up | LinkHealth::Down => PeerWrites::Over,
        }
    }
}
