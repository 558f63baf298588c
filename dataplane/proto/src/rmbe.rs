//! The receive ring: what arrived, what the application read, what the peer was told of it.
//!
//! The peer writes into the ring by RDMA and then moves the producer cursor by a CDC message; the
//! application reads and moves the consumer cursor, which our own CDC messages carry back. The ring
//! knows positions only.
//!
//! ```text
//!   total:     announced        consumed        stop?       produced       announced + size
//!   ---------------|----------------|-------------|-------------|----------------|----
//!        read, not announced     readable     behind the urgent byte     the peer's window
//! ```
//!
//! 1. `announced <= consumed <= produced <= consumed + size`. A peer that breaks the last is reset.
//! 2. No total ever goes back.
//! 3. An update is due (RFC 7609 section 4.5.1, Linux) when more than [`update_watermark`] bytes
//!    are read and not announced and besides the peer's window is at most half the ring or the peer
//!    said it is blocked. Otherwise the announcement waits for the next message, up to half the
//!    ring for ever: a sender never waits for an empty ring.

use crate::cursor::{Cursor, Place, Step};

/// Fixed part of the update watermark: half of the smallest socket buffer of Linux.
const WATERMARK_FLOOR_BYTES: u32 = 2304;

/// Bytes that may be read and not announced before an update is considered, in a ring of `ring`
/// bytes.
///
/// A tenth of the ring and at least 2304 bytes, as in Linux. Rings below 4608 bytes, which Linux
/// does not have, take half of the ring instead: with a watermark of the ring or more no update
/// would ever be sent.
#[must_use]
pub const fn update_watermark(ring: u32) -> u32 {
    let half = ring / 2;
    let floor = if half < WATERMARK_FLOOR_BYTES {
        half
    } else {
        WATERMARK_FLOOR_BYTES
    };
    if ring / 10 > floor { ring / 10 } else { floor }
}

/// What a received producer cursor means for the ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Arrival {
    /// So many new bytes; may be 0.
    Bytes(u32),
    /// An old cursor; ignore it.
    Stale,
    /// It says that so many bytes lie in the ring, more than it has.
    Overrun(u64),
    /// It is this many laps ahead.
    Skips(u16),
    /// Its count is not inside the ring.
    OutsideRing,
}

/// Whether the peer has to be told now what was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Update {
    /// It can wait for the next message.
    CanWait,
    /// The thresholds are passed.
    Due,
}

/// Positions of one connection's receive ring.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Rmbe {
    /// Size of the ring in bytes, at least 1.
    size: u32,
    /// See [`update_watermark`].
    watermark: u32,
    /// Where the peer writes next (TCP: rcv_nxt).
    produced: Place,
    /// Where the application reads next (TCP: copied_seq).
    consumed: Place,
    /// What the last message to the peer said of `consumed` (TCP: rcv_wup).
    announced: u64,
    /// Position at which reading pauses for an urgent byte; `u64::MAX` without one.
    stop: u64,
}

impl Rmbe {
    /// An empty ring of `size` bytes; the caller made sure that it is not 0.
    pub(crate) fn new(size: u32) -> Rmbe {
        Rmbe {
            size,
            watermark: update_watermark(size),
            produced: Place::default(),
            consumed: Place::default(),
            announced: 0,
            stop: u64::MAX,
        }
    }

    /// Size of the ring in bytes.
    pub(crate) fn size(&self) -> u32 {
        self.size
    }

    /// Bytes the application can read now.
    #[inline]
    pub(crate) fn readable(&self) -> u32 {
        (self.produced.total.min(self.stop) - self.consumed.total) as u32
    }

    /// Whether the application has read everything that arrived.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.produced.total == self.consumed.total
    }

    /// Bytes that arrived since the connection began.
    #[inline]
    pub(crate) fn produced(&self) -> u64 {
        self.produced.total
    }

    /// Bytes read since the connection began, a skipped urgent byte included.
    #[inline]
    pub(crate) fn consumed(&self) -> u64 {
        self.consumed.total
    }

    /// Bytes read and not yet announced.
    #[inline]
    pub(crate) fn unannounced(&self) -> u64 {
        self.consumed.total - self.announced
    }

    /// Offset of the next byte the application reads.
    #[inline]
    pub(crate) fn read_offset(&self) -> u32 {
        self.consumed.cursor.count()
    }

    /// The last producer cursor of the peer.
    #[inline]
    pub(crate) fn producer(&self) -> Cursor {
        self.produced.cursor
    }

    /// Judges and, if it holds, takes a received producer cursor.
    #[inline]
    pub(crate) fn receive(&mut self, producer: Cursor) -> Arrival {
        let step = match self.produced.cursor.step_to(producer, self.size) {
            Step::Forward(step) => step,
            Step::Stale => return Arrival::Stale,
            Step::Skips(laps) => return Arrival::Skips(laps),
            Step::OutsideRing => return Arrival::OutsideRing,
        };
        let filled = self.produced.total + step - self.consumed.total;
        if filled > u64::from(self.size) {
            return Arrival::Overrun(filled);
        }
        self.produced.move_to(producer, step);
        // The ring holds at most `size` bytes, so the step fits.
        Arrival::Bytes(step as u32)
    }

    /// Marks `bytes` as read; at most what lies in the ring.
    #[inline]
    pub(crate) fn consume(&mut self, bytes: u32) {
        debug_assert!(u64::from(bytes) <= self.produced.total - self.consumed.total);
        self.consumed.advance(bytes, self.size);
    }

    /// Whether reading has come to the urgent byte.
    #[inline]
    pub(crate) fn is_at_stop(&self) -> bool {
        self.consumed.total == self.stop
    }

    /// Pauses reading at position `stop`.
    pub(crate) fn set_stop(&mut self, stop: u64) {
        self.stop = stop;
    }

    /// Lets reading go on to the end of what arrived.
    pub(crate) fn clear_stop(&mut self) {
        self.stop = u64::MAX;
    }

    /// Whether what was read has to be announced now, given whether the peer is blocked.
    ///
    /// "More than" the watermark and "at most" half the ring: both as in Linux.
    #[inline]
    pub(crate) fn update(&self, peer: Peer) -> Update {
        if self.unannounced() <= u64::from(self.watermark) {
            return Update::CanWait;
        }
        // At most half of the ring is the window, so at least the other half is not. Said this way
        // round because a liar may fill more than it was told of.
        let filled = self.produced.total - self.announced;
        let half = u64::from(self.size - self.size / 2);
        match peer {
            Peer::Blocked => Update::Due,
            Peer::Flowing if filled >= half => Update::Due,
            Peer::Flowing => Update::CanWait,
        }
    }

    /// The consumer cursor for a message, which thereby is announced.
    #[inline]
    pub(crate) fn announce(&mut self) -> Cursor {
        self.announced = self.consumed.total;
        self.consumed.cursor
    }
}

/// What the peer last said about its sending.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Peer {
    /// It has at least as much data as window.
    Blocked,
    /// It has room for all it has.
    Flowing,
}

#[cfg(test)]
#[expect(clippy::disallowed_types, reason = "inside the macros of proptest")]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Op {
        /// The peer writes up to so many bytes, all its window allows.
        Arrive(u32),
        Consume(u32),
        Announce,
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            (0..20u32).prop_map(Op::Arrive),
            (0..20u32).prop_map(Op::Consume),
            Just(Op::Announce),
        ]
    }

    proptest! {
        #[test]
        fn the_ring_agrees_with_a_queue_of_bytes(
            size in 1..18u32, ops in prop::collection::vec(op(), 1..80),
        ) {
            let mut ring = Rmbe::new(size);
            let mut memory = vec![0u8; size as usize];
            let mut queue = VecDeque::new();
            let (mut produced, mut consumed, mut announced) = (0u64, 0u64, 0u64);
            let mut producer = Cursor::START;
            for op in ops {
                match op {
                    Op::Arrive(bytes) => {
                        let window = u64::from(size) - (produced - announced);
                        let bytes = bytes.min(window as u32);
                        for _ in 0..bytes {
                            memory[(produced % u64::from(size)) as usize] = produced as u8;
                            queue.push_back(produced as u8);
                            produced += 1;
                        }
                        producer = producer.advanced(bytes, size);
                        prop_assert_eq!(ring.receive(producer), Arrival::Bytes(bytes));
                    }
                    Op::Consume(bytes) => {
                        let bytes = bytes.min(ring.readable());
                        for i in 0..bytes {
                            let at = (ring.read_offset() + i) % size;
                            prop_assert_eq!(Some(memory[at as usize]), queue.pop_front());
                        }
                        ring.consume(bytes);
                        consumed += u64::from(bytes);
                    }
                    Op::Announce => {
                        let cursor = ring.announce();
                        prop_assert_eq!(u64::from(cursor.count()), consumed % u64::from(size));
                        prop_assert_eq!(u64::from(cursor.wrap()), consumed / u64::from(size));
                        announced = consumed;
                    }
                }
                prop_assert_eq!(ring.readable() as usize, queue.len());
                prop_assert_eq!(ring.is_empty(), queue.is_empty());
                prop_assert_eq!((ring.produced(), ring.consumed()), (produced, consumed));
                let unannounced = consumed - announced;
                let window = u64::from(size) - (produced - announced);
                let over = unannounced > u64::from(update_watermark(size));
                prop_assert_eq!(ring.update(Peer::Blocked) == Update::Due, over);
                let tight = over && window <= u64::from(size / 2);
                prop_assert_eq!(ring.update(Peer::Flowing) == Update::Due, tight);
            }
        }
    }

    #[test]
    fn the_watermark_is_the_kernels_for_kernel_sizes() {
        assert_eq!(update_watermark(16 << 10), 2304);
        assert_eq!(update_watermark(32 << 10), 3276);
        assert_eq!(update_watermark(64 << 10), 6553);
        assert_eq!(update_watermark(512 << 20), (512 << 20) / 10);
    }

    #[test]
    fn in_a_ring_of_any_size_reading_all_of_a_full_ring_makes_an_update_due() {
        for size in (1..10_000).chain([16 << 10, 1 << 31, u32::MAX]) {
            let mut ring = Rmbe::new(size);
            let full = Cursor::START.advanced(size, size);
            assert_eq!(ring.receive(full), Arrival::Bytes(size));
            ring.consume(size);
            assert_eq!(ring.update(Peer::Flowing), Update::Due, "{size}");
            ring.announce();
            assert_eq!(ring.update(Peer::Blocked), Update::CanWait, "{size}");
        }
    }

    #[test]
    fn a_peer_that_uses_room_it_was_not_told_of_has_a_closed_window() {
        let mut ring = Rmbe::new(8);
        assert_eq!(ring.receive(Cursor::new(0, 5)), Arrival::Bytes(5));
        ring.consume(5);
        assert_eq!(ring.receive(Cursor::new(1, 5)), Arrival::Bytes(8));
        assert_eq!(ring.update(Peer::Flowing), Update::Due);
        assert_eq!(ring.update(Peer::Blocked), Update::Due);
    }

    #[test]
    fn a_cursor_that_overruns_the_ring_is_refused_and_changes_nothing() {
        let mut ring = Rmbe::new(8);
        assert_eq!(ring.receive(Cursor::new(0, 5)), Arrival::Bytes(5));
        ring.consume(2);
        let before = ring.clone();
        assert_eq!(ring.receive(Cursor::new(1, 3)), Arrival::Overrun(9));
        assert_eq!(ring.receive(Cursor::new(1, 8)), Arrival::OutsideRing);
        assert_eq!(ring.receive(Cursor::new(2, 0)), Arrival::Skips(2));
        assert_eq!(ring.receive(Cursor::new(0, 4)), Arrival::Stale);
        assert_eq!(ring, before);
        assert_eq!(ring.receive(Cursor::new(1, 2)), Arrival::Bytes(5));
        assert_eq!(ring.readable(), 8);
    }
}
