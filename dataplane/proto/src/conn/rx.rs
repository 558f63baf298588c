//! Receiving: messages of the peer are judged, then taken; reading leads to updates.

use pollux_wire::cdc::{self, ConnStateFlags, ProducerFlags};

use super::close::App;
use super::state::has_final;
use super::tx::Due;
use super::window::Reading;
use super::{Conn, ConnState, LinkHealth};
use crate::cursor::Cursor;
use crate::error::{AbortReason, CursorKind, Misuse};
use crate::event::EventSet;
use crate::rmbe::{Arrival, Peer, Update};
use crate::seq::CdcSeq;

impl Conn {
    /// Takes a CDC message of the peer.
    ///
    /// Ignored, as in Linux: messages with a foreign token or an older sequence number than the
    /// last (an equal one is taken), cursors that go back (the rest of the message counts), and
    /// everything once the connection is over.
    ///
    /// # Errors
    ///
    /// What cannot be true: a cursor outside its ring or laps ahead, more unread bytes than our
    /// RMBE holds, bytes read that were never sent, a failover that lost a message. The connection
    /// has then reset itself and will order an abnormal close. The peer's own reset is no error but
    /// the event `RESET`.
    #[inline]
    pub fn handle_cdc(&mut self, message: &cdc::Repr) -> Result<(), AbortReason> {
        if message.token != self.local_token {
            return Ok(());
        }
        match self.state {
            ConnState::Closed | ConnState::PeerAbortWait | ConnState::ProcessAbort => {
                self.handle_late(message);
                return Ok(());
            }
            ConnState::Active
            | ConnState::PeerCloseWait1
            | ConnState::PeerCloseWait2
            | ConnState::AppCloseWait1
            | ConnState::AppCloseWait2
            | ConnState::AppFinCloseWait
            | ConnState::PeerFinCloseWait => {}
        }
        let flags = message.producer_flags;
        if flags.contains(ProducerFlags::FAILOVER_VALIDATION) {
            return self.handle_failover(CdcSeq(message.seq));
        }
        if CdcSeq(message.seq).is_before(self.rx_seq) {
            return Ok(());
        }
        self.rx_seq = CdcSeq(message.seq);
        let consumer = Cursor::from(message.consumer);
        if consumer != self.window.consumer() {
            self.on_consumer(consumer)?;
        }
        let producer = Cursor::from(message.producer);
        let mut arrived = 0;
        if producer != self.rmbe.producer() {
            arrived = self.on_producer(producer)?;
        }
        if flags.0 | self.peer_producer_flags.0 | message.state_flags.0 != 0 {
            self.on_producer_flags(flags, arrived);
            self.on_state_flags(message.state_flags);
        }
        Ok(())
    }

    /// The peer's view of what it read.
    #[inline]
    fn on_consumer(&mut self, consumer: Cursor) -> Result<(), AbortReason> {
        match self.window.receive(consumer, self.sndbuf.sent()) {
            Reading::UpTo(position) => {
                self.sndbuf.cover(position);
                self.confirm_urgent();
                self.note_space();
                Ok(())
            }
            Reading::Stale => Ok(()),
            refused @ (Reading::Unsent(_) | Reading::Skips(_) | Reading::OutsideRing) => {
                Err(self.refuse_consumer(consumer, refused))
            }
        }
    }

    /// Resets because of a consumer cursor.
    #[cold]
    fn refuse_consumer(&mut self, consumer: Cursor, refused: Reading) -> AbortReason {
        let kind = CursorKind::Consumer;
        let reason = match refused {
            Reading::Skips(laps) => AbortReason::CursorSkipsLaps { kind, laps },
            Reading::Unsent(claimed) => AbortReason::ConsumedUnsent {
                claimed,
                outstanding: self.sndbuf.sent() - self.window.consumed(),
            },
            Reading::OutsideRing | Reading::UpTo(_) | Reading::Stale => {
                AbortReason::CursorOutsideRing {
                    kind,
                    count: consumer.count(),
                    ring: self.window.size(),
                }
            }
        };
        self.reset(reason);
        reason
    }

    /// New bytes in our RMBE; how many.
    #[inline]
    fn on_producer(&mut self, producer: Cursor) -> Result<u32, AbortReason> {
        match self.rmbe.receive(producer) {
            Arrival::Bytes(arrived) => {
                self.events.raise(EventSet::READABLE);
                Ok(arrived)
            }
            Arrival::Stale => Ok(0),
            refused @ (Arrival::Overrun(_) | Arrival::Skips(_) | Arrival::OutsideRing) => {
                Err(self.refuse_producer(producer, refused))
            }
        }
    }

    /// Resets because of a producer cursor.
    #[cold]
    fn refuse_producer(&mut self, producer: Cursor, refused: Arrival) -> AbortReason {
        let kind = CursorKind::Producer;
        let ring = self.rmbe.size();
        let reason = match refused {
            Arrival::Overrun(filled) => AbortReason::ProducerOverrun { filled, ring },
            Arrival::Skips(laps) => AbortReason::CursorSkipsLaps { kind, laps },
            Arrival::OutsideRing | Arrival::Bytes(_) | Arrival::Stale => {
                AbortReason::CursorOutsideRing {
                    kind,
                    count: producer.count(),
                    ring,
                }
            }
        };
        self.reset(reason);
        reason
    }

    /// Levels of the peer's sending side, `arrived` new bytes having come with them.
    #[inline(never)]
    fn on_producer_flags(&mut self, flags: ProducerFlags, arrived: u32) {
        let before = core::mem::replace(&mut self.peer_producer_flags, flags);
        let pending = ProducerFlags::URGENT_PENDING;
        let mut answer = flags.contains(ProducerFlags::CURSOR_UPDATE_REQUESTED);
        if flags.contains(ProducerFlags::URGENT_PRESENT) && arrived > 0 {
            self.on_urgent();
        } else if flags.contains(pending) {
            // The sender wants its urgent byte through.
            answer |= self.rmbe.unannounced() > 0;
            if !before.contains(pending) {
                self.events.raise(EventSet::URGENT_PENDING);
            }
        }
        if flags.contains(ProducerFlags::WRITE_BLOCKED) {
            // Linux leaves this to the next read. Whoever has just become blocked is told at once
            // what was read; while it stays so the threshold holds, or a slow reader would open the
            // window bytewise.
            let newly = !before.contains(ProducerFlags::WRITE_BLOCKED);
            answer |= newly && self.rmbe.unannounced() > 0;
            answer |= self.rmbe.update(Peer::Blocked) == Update::Due;
        }
        if answer {
            self.want_update();
        }
    }

    /// Levels of the peer's end of the connection. They are added up: a peer cannot take one back.
    fn on_state_flags(&mut self, flags: ConnStateFlags) {
        let before = self.peer_flags;
        let fresh = flags.without(before);
        if fresh.is_empty() {
            return;
        }
        self.peer_flags = before.union(flags);
        if fresh.contains(ConnStateFlags::ABNORMAL_CLOSE) {
            self.on_peer_abort();
            return;
        }
        if before.is_empty() {
            self.events.raise(EventSet::END_OF_STREAM);
        }
        if fresh.contains(ConnStateFlags::CLOSED) {
            self.events.raise(EventSet::PEER_CLOSED);
            self.on_peer_gone();
        }
        self.enter(self.state.after_peer_end(self.peer_flags, self.app));
    }

    /// A message after a reset or after the end: only the peer's own end matters still.
    #[cold]
    fn handle_late(&mut self, message: &cdc::Repr) {
        if !has_final(message.state_flags) {
            return;
        }
        self.peer_flags = self.peer_flags.union(message.state_flags);
        if self.state == ConnState::PeerAbortWait {
            self.enter(ConnState::Closed);
        }
    }

    /// The peer moved to another link and names the last message it believes delivered.
    ///
    /// A peer on a single link never sends this. If we saw that message, the peer goes on from
    /// there; what it repeats is filtered as stale.
    #[cold]
    fn handle_failover(&mut self, confirmed: CdcSeq) -> Result<(), AbortReason> {
        if !self.rx_seq.is_before(confirmed) {
            return Ok(());
        }
        let reason = AbortReason::failover_loss(self.rx_seq, confirmed);
        self.reset(reason);
        Err(reason)
    }

    /// Takes back `bytes` of the RMBE: the application has read them.
    ///
    /// An update to the peer becomes due by itself only when Linux would send one; otherwise the
    /// next message carries it.
    ///
    /// # Errors
    ///
    /// [`Misuse::NotReadable`] beyond [`Conn::readable`]; [`Misuse::Ended`] after the application
    /// closed or aborted.
    #[inline]
    pub fn consume(&mut self, bytes: u32) -> Result<(), Misuse> {
        let readable = self.rmbe.readable();
        if bytes > readable || self.app == App::Closed {
            return Err(self.refuse_consume(bytes, readable));
        }
        self.rmbe.consume(bytes);
        if self.rmbe.is_at_stop() {
            self.pass_urgent();
        }
        if self.rmbe.update(self.peer()) == Update::Due {
            self.want_update();
        }
        if self.rmbe.is_empty() {
            let flags = self.peer_producer_flags;
            self.peer_producer_flags = flags.without(ProducerFlags::WRITE_BLOCKED);
        }
        Ok(())
    }

    /// Why bytes cannot be consumed.
    #[cold]
    fn refuse_consume(&self, bytes: u32, readable: u32) -> Misuse {
        match self.app {
            App::Closed => Misuse::Ended,
            App::Open | App::HalfClosed => Misuse::NotReadable { bytes, readable },
        }
    }

    /// What the peer last said of its sending.
    #[inline]
    fn peer(&self) -> Peer {
        let flags = self.peer_producer_flags;
        if flags.contains(ProducerFlags::WRITE_BLOCKED) {
            Peer::Blocked
        } else {
            Peer::Flowing
        }
    }

    /// Makes an update due, unless nobody listens any more.
    #[inline]
    pub(super) fn want_update(&mut self) {
        let heard = match self.link {
            LinkHealth::Up => !has_final(self.peer_flags) && !has_final(self.said),
            LinkHealth::Down => false,
        };
        if heard {
            self.due.add(Due::UPDATE);
        }
    }
}
