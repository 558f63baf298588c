//! Sending: what the application prepares, and the orders that come of it.

use arrayvec::ArrayVec;
use pollux_wire::cdc::{self, ConnStateFlags, ProducerFlags, RingCursor};

use super::close::App;
use super::urgent::TxUrgent;
use super::{Conn, ConnState};
use crate::error::Misuse;
use crate::event::EventSet;
use crate::plan::{self, Placement, Write};
use crate::sndbuf::Space;
use crate::units::SentMark;

/// Whether a transmit has to be covered by a completion, of its own or of later work on the same
/// queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NeedsCompletion {
    /// Everything was inline: nothing waits for it.
    No,
    /// Bytes went by reference. The peer's reading frees them too, but a reader may leave half of
    /// its RMBE unreported for ever: where the sndbuf is not larger than that, only a completion
    /// keeps a writer going. It may be late, for example asked for when half of the sndbuf is
    /// outstanding; it must come.
    Yes,
}

/// One batch: at most two writes, then exactly one CDC that announces them, in this order on one
/// queue pair.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Transmit {
    /// Writes into the peer's RMBE; none when only the message is due.
    pub writes: ArrayVec<Write, 2>,
    /// The message; the owner may fill in `credits`.
    pub cdc: cdc::Repr,
    /// To be given back when a completion covers the writes.
    pub mark: SentMark,
    /// Whether such a completion must come.
    pub needs_completion: NeedsCompletion,
}

impl Transmit {
    /// A place for [`Conn::poll_transmit_into`] to write to.
    pub const EMPTY: Transmit = Transmit {
        writes: ArrayVec::new_const(),
        cdc: cdc::Repr {
            seq: 0,
            token: 0,
            producer: RingCursor { wrap: 0, count: 0 },
            consumer: RingCursor { wrap: 0, count: 0 },
            producer_flags: ProducerFlags::EMPTY,
            state_flags: ConnStateFlags::EMPTY,
            credits: 0,
        },
        mark: SentMark(0),
        needs_completion: NeedsCompletion::No,
    };
}

/// Whether the application may add to the stream.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Sending {
    /// Yes, and it is sent as the window allows.
    Open,
    /// Yes, but it is held back until the peer has consumed our urgent byte.
    Held,
    /// No: the application ended it. What is prepared is sent.
    Ended,
    /// No: nobody takes it any more. What was prepared is discarded.
    Gone,
}

/// Reasons to send a message even without data.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Due(u8);

impl Due {
    pub(super) const NOTHING: Due = Due(0);
    /// The peer must learn our consumer cursor.
    pub(super) const UPDATE: Due = Due(1);
    /// The peer must learn that an urgent byte will come.
    pub(super) const URGENT: Due = Due(2);
    /// Connection state flags are owed; they wait until the send ring is drained.
    pub(super) const FLAGS: Due = Due(4);

    #[inline]
    pub(super) const fn contains(self, due: Due) -> bool {
        self.0 & due.0 == due.0
    }

    #[inline]
    pub(super) fn add(&mut self, due: Due) {
        self.0 |= due.0;
    }

    #[inline]
    pub(super) fn remove(&mut self, due: Due) {
        self.0 &= !due.0;
    }
}

impl Conn {
    /// Takes `bytes` more that the application has copied into the sndbuf at
    /// [`Conn::write_offset`].
    ///
    /// Behind an outstanding urgent byte they are taken and held back until the peer has consumed
    /// it.
    ///
    /// # Errors
    ///
    /// [`Misuse::RingFull`] beyond [`Conn::writable`]; [`Misuse::Ended`] after the application's
    /// own shutdown, close or abort; [`Misuse::PeerGone`] after the peer closed or the connection
    /// was reset.
    #[inline]
    pub fn prepare(&mut self, bytes: u32) -> Result<(), Misuse> {
        if bytes > self.sndbuf.room() || self.sending != Sending::Open {
            return self.prepare_unusual(bytes);
        }
        self.sndbuf.prepare(bytes);
        self.sndbuf.release();
        self.note_space();
        Ok(())
    }

    /// The rest of [`Conn::prepare`]: refusals, and bytes behind an urgent one.
    #[cold]
    fn prepare_unusual(&mut self, bytes: u32) -> Result<(), Misuse> {
        self.check_prepare(bytes)?;
        self.sndbuf.prepare(bytes);
        self.note_space();
        Ok(())
    }

    /// Whether `bytes` may be prepared.
    pub(super) fn check_prepare(&self, bytes: u32) -> Result<(), Misuse> {
        match self.sending {
            Sending::Open | Sending::Held => {
                let room = self.sndbuf.room();
                if bytes > room {
                    return Err(Misuse::RingFull { bytes, room });
                }
                Ok(())
            }
            Sending::Ended => Err(Misuse::Ended),
            Sending::Gone => match self.app {
                App::Open => Err(Misuse::PeerGone),
                App::HalfClosed | App::Closed => Err(Misuse::Ended),
            },
        }
    }

    /// Whether [`Conn::poll_transmit`] has something to order now.
    #[inline]
    #[must_use]
    pub fn wants_transmit(&self) -> bool {
        let has_data = self.sndbuf.queued() > 0 && self.window() > 0;
        has_data || (self.due != Due::NOTHING && self.is_due_now())
    }

    /// Whether a message without data is to go out now.
    fn is_due_now(&self) -> bool {
        self.due.contains(Due::UPDATE) || self.due.contains(Due::URGENT) || self.may_say_flags()
    }

    /// Whether connection state flags are owed and nothing has to be sent before them.
    fn may_say_flags(&self) -> bool {
        let drained = self.sndbuf.is_drained() || self.sending == Sending::Gone;
        self.due.contains(Due::FLAGS) && drained
    }

    /// The next batch, or `None` if there is nothing to send. Repeat until `None`.
    ///
    /// As [`Conn::poll_transmit_into`], which saves a copy of the order.
    #[inline]
    pub fn poll_transmit(&mut self, inline_max: u32) -> Option<Transmit> {
        let mut transmit = Transmit::EMPTY;
        self.poll_transmit_into(inline_max, &mut transmit)
            .then_some(transmit)
    }

    /// Writes the next batch into `transmit`; `false`, and nothing written, if there is nothing to
    /// send. Repeat until `false`.
    ///
    /// `inline_max` is what the adapter takes inline at this moment, in bytes; 0 for nothing. The
    /// caller has made sure that three work requests can be posted: the batch counts as sent.
    /// Inline chunks are free in the sndbuf when this returns, so the caller posts, that is copies,
    /// them before the application runs.
    #[inline]
    pub fn poll_transmit_into(&mut self, inline_max: u32, transmit: &mut Transmit) -> bool {
        if !self.wants_transmit() {
            return false;
        }
        let queued = self.sndbuf.queued();
        let window = self.window();
        let len = queued.min(window);
        let mut producer_flags = ProducerFlags::EMPTY;
        if queued >= window {
            // As in Linux this includes "all of it fits exactly": the window is closed afterwards,
            // and a sender with a closed window must have said so.
            producer_flags = ProducerFlags::WRITE_BLOCKED;
        }
        let (source, target) = (self.sndbuf.next(), self.window.next());
        plan::cut_into(&mut transmit.writes, len, source, target, inline_max);
        transmit.needs_completion = NeedsCompletion::No;
        for write in &transmit.writes {
            self.sndbuf.post(write.len, write.placement);
            if write.placement == Placement::ByReference {
                transmit.needs_completion = NeedsCompletion::Yes;
            }
        }
        transmit.mark = SentMark(self.sndbuf.sent());
        self.window.fill(len);
        if self.tx_urgent != TxUrgent::None {
            producer_flags = producer_flags.union(self.say_urgent());
        }
        if self.due != Due::NOTHING {
            self.say_due();
        }
        self.tx_seq = self.tx_seq.next();
        transmit.cdc = cdc::Repr {
            seq: self.tx_seq.0,
            token: self.peer_token,
            producer: self.window.producer().into(),
            consumer: self.rmbe.announce().into(),
            producer_flags,
            state_flags: self.said,
            credits: 0,
        };
        self.note_space();
        true
    }

    /// Settles what is due with the message that is being made.
    fn say_due(&mut self) {
        self.due.remove(Due::UPDATE);
        self.due.remove(Due::URGENT);
        if self.may_say_flags() {
            self.say_flags();
        }
    }

    /// Moves owed connection state flags into what we say from now on.
    #[cold]
    fn say_flags(&mut self) {
        self.due.remove(Due::FLAGS);
        let mut owed = core::mem::take(&mut self.owed);
        if owed.contains(ConnStateFlags::CLOSED) && self.rmbe.readable() > 0 {
            // Closing with unread bytes is a reset, as in TCP and in Linux.
            owed = owed
                .without(ConnStateFlags::CLOSED)
                .union(ConnStateFlags::ABNORMAL_CLOSE);
        }
        self.said = self.said.union(owed);
        if self.state == ConnState::Closed {
            self.events.raise(EventSet::CLOSED);
        }
    }

    /// A completion covers the work requests of a transmit and of all before it.
    #[inline]
    pub fn handle_completed(&mut self, mark: SentMark) {
        self.sndbuf.cover(mark.0);
        self.note_space();
    }

    /// Raises `WRITABLE` if the application has to learn of room.
    #[inline]
    pub(super) fn note_space(&mut self) {
        if self.sndbuf.take_space_news() == Space::Grown {
            self.events.raise(EventSet::WRITABLE);
        }
    }

    /// Gives up what was not sent and takes no more.
    pub(super) fn halt(&mut self) {
        self.sndbuf.discard();
        self.sending = Sending::Gone;
        self.tx_urgent = TxUrgent::None;
        self.due.remove(Due::URGENT);
    }
}
