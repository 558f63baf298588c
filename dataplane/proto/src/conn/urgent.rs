//! The urgent byte, both ways (RFC 7609 section 4.5.2, Linux `MSG_OOB`).
//!
//! Sender: the urgent byte is the last one of its span. Messages say "pending" until the one that
//! carries the byte says "present" as well. Nothing behind it is sent before the peer's consumer
//! cursor shows that it read everything.
//!
//! Receiver: the byte lies in the RMBE just before the producer cursor of the message that says
//! "present". Delivered inline it is an ordinary byte at which reading pauses once. Delivered out
//! of line the owner copies it by [`Conn::take_urgent`] and reading skips it. Passing it either way
//! tells the peer at once.

use pollux_wire::cdc::ProducerFlags;

use super::Conn;
use super::tx::{Due, Sending};
use crate::cursor::offset_before;
use crate::error::Misuse;
use crate::event::EventSet;

/// How a received urgent byte reaches the application.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum UrgentDelivery {
    /// In the stream, as with `SO_OOBINLINE`. It needs nothing of the owner.
    Inline,
    /// Beside the stream: the owner takes it on the event `URGENT`, and the stream has a gap there.
    OutOfLine,
}

/// Our own urgent byte.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum TxUrgent {
    /// There is none.
    None,
    /// Prepared, not yet sent.
    Queued,
    /// Sent, not yet consumed by the peer.
    Sent,
}

/// The peer's urgent byte.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum RxUrgent {
    /// There is none before the reader.
    None,
    /// In the stream; reading stops behind it.
    Inline,
    /// At this offset of the RMBE and not copied; reading stops before it.
    Untaken(u32),
    /// Copied by the owner; reading will skip it.
    Taken,
}

impl Conn {
    /// Takes `bytes` more of which the last one is urgent.
    ///
    /// # Errors
    ///
    /// As [`Conn::prepare`]; [`Misuse::UrgentOutstanding`] until the event `URGENT_CONFIRMED` for
    /// the one before; [`Misuse::NothingUrgent`] for 0 bytes.
    pub fn prepare_urgent(&mut self, bytes: u32) -> Result<(), Misuse> {
        self.check_prepare(bytes)?;
        if self.tx_urgent != TxUrgent::None {
            return Err(Misuse::UrgentOutstanding);
        }
        if bytes == 0 {
            return Err(Misuse::NothingUrgent);
        }
        self.sndbuf.prepare(bytes);
        self.sndbuf.release();
        self.sending = Sending::Held;
        self.tx_urgent = TxUrgent::Queued;
        // Even with a closed window the peer learns that something urgent waits.
        self.due.add(Due::URGENT);
        self.note_space();
        Ok(())
    }

    /// The urgent flags for a message whose bytes were just posted.
    #[cold]
    pub(super) fn say_urgent(&mut self) -> ProducerFlags {
        match self.tx_urgent {
            TxUrgent::None | TxUrgent::Sent => ProducerFlags::EMPTY,
            TxUrgent::Queued if self.sndbuf.queued() > 0 => ProducerFlags::URGENT_PENDING,
            TxUrgent::Queued => {
                self.tx_urgent = TxUrgent::Sent;
                ProducerFlags::URGENT_PENDING.union(ProducerFlags::URGENT_PRESENT)
            }
        }
    }

    /// Goes on with the stream once the peer has read everything up to our urgent byte.
    #[inline]
    pub(super) fn confirm_urgent(&mut self) {
        if self.tx_urgent == TxUrgent::Sent && self.window.consumed() == self.sndbuf.sent() {
            self.resume_after_urgent();
        }
    }

    #[cold]
    fn resume_after_urgent(&mut self) {
        self.tx_urgent = TxUrgent::None;
        self.events.raise(EventSet::URGENT_CONFIRMED);
        match self.sending {
            Sending::Held | Sending::Open => self.sending = Sending::Open,
            Sending::Ended => {}
            Sending::Gone => return,
        }
        self.sndbuf.release();
    }

    /// Chooses how urgent bytes that arrive from now on are delivered; inline at first.
    pub fn set_urgent_delivery(&mut self, delivery: UrgentDelivery) {
        self.delivery = delivery;
    }

    /// An urgent byte arrived: the last one before the producer cursor. One that was not read yet
    /// becomes an ordinary byte of the stream, as in TCP.
    #[cold]
    pub(super) fn on_urgent(&mut self) {
        let end = self.rmbe.produced();
        match self.delivery {
            UrgentDelivery::Inline => {
                self.rmbe.set_stop(end);
                self.rx_urgent = RxUrgent::Inline;
            }
            UrgentDelivery::OutOfLine => {
                let end_offset = self.rmbe.producer().count();
                let offset = offset_before(end_offset, self.rmbe.size());
                self.rmbe.set_stop(end - 1);
                self.rx_urgent = RxUrgent::Untaken(offset);
            }
        }
        self.events.raise(EventSet::URGENT);
    }

    /// Offset in the RMBE of an urgent byte that has to be copied, which thereby counts as copied.
    ///
    /// The owner calls this on the event `URGENT` and copies the byte before it asks for the next
    /// transmit. Until it does, reading does not get past the byte. `None` when delivery is inline.
    pub fn take_urgent(&mut self) -> Option<u32> {
        match self.rx_urgent {
            RxUrgent::Untaken(offset) => {
                self.rx_urgent = RxUrgent::Taken;
                if self.rmbe.is_at_stop() {
                    self.pass_urgent();
                }
                Some(offset)
            }
            RxUrgent::None | RxUrgent::Inline | RxUrgent::Taken => None,
        }
    }

    /// Reading has come to the urgent byte.
    #[cold]
    pub(super) fn pass_urgent(&mut self) {
        match self.rx_urgent {
            RxUrgent::None | RxUrgent::Untaken(_) => return,
            RxUrgent::Inline => {}
            RxUrgent::Taken => self.rmbe.consume(1),
        }
        self.rx_urgent = RxUrgent::None;
        self.rmbe.clear_stop();
        // The sender waits for exactly this.
        self.want_update();
        if self.rmbe.readable() > 0 {
            self.events.raise(EventSet::READABLE);
        }
    }
}
