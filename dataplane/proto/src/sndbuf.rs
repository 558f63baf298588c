//! The send ring: what the application prepared, what was sent, what may be overwritten.
//!
//! The application copies bytes in at the write offset; the adapter reads them from the read offset
//! on. The ring knows positions only, never the bytes.
//!
//! ```text
//!   total:      reclaimed        sent       released     prepared       reclaimed + size
//!   ----------------|--------------|------------|------------|----------------|----
//!        free again   in the adapter   queued      held back     free
//! ```
//!
//! 1. `reclaimed <= sent <= released <= prepared <= reclaimed + size`, unless the queue was
//!    discarded: then `released = sent` and nothing is sent any more.
//! 2. Inline bytes are reclaimed when they are posted, if no bytes by reference are outstanding
//!    before them.
//! 3. Bytes by reference are reclaimed when a completion covers them, or when the peer's consumer
//!    cursor shows that they were read: whichever comes first. The peer may be silent about half of
//!    its RMBE, so completions must come in the end.
//! 4. No total ever goes back.
//!
//! Whether bytes may be sent, and how many the peer has room for, others decide.

use crate::cursor::offset_advanced;
use crate::plan::{Placement, Spot};
use crate::planted::{Bug, is_planted};

/// Positions of one connection's send ring.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct SndBuf {
    /// Size of the ring in bytes, at least 1.
    size: u32,
    /// Offset of the next byte the application prepares.
    write_offset: u32,
    /// Offset of the next byte to be sent.
    read_offset: u32,
    /// Bytes the application copied in.
    prepared: u64,
    /// Bytes that may be sent; behind `prepared` while an urgent byte is outstanding.
    released: u64,
    /// Bytes handed out in writes (TCP: snd_nxt).
    sent: u64,
    /// Bytes whose place is free again (TCP: snd_una, for the memory only).
    reclaimed: u64,
    /// End of the last chunk that was sent by reference.
    by_reference_end: u64,
    /// What the application was last told of `reclaimed`.
    signalled: u64,
}

impl SndBuf {
    /// An empty ring of `size` bytes; the caller made sure that it is not 0.
    pub(crate) fn new(size: u32) -> SndBuf {
        SndBuf {
            size,
            write_offset: 0,
            read_offset: 0,
            prepared: 0,
            released: 0,
            sent: 0,
            reclaimed: 0,
            by_reference_end: 0,
            signalled: 0,
        }
    }

    /// Bytes that can be prepared now.
    #[inline]
    pub(crate) fn room(&self) -> u32 {
        self.size - (self.prepared - self.reclaimed) as u32
    }

    /// Bytes that wait to be sent and are not held back.
    #[inline]
    pub(crate) fn queued(&self) -> u32 {
        (self.released - self.sent) as u32
    }

    /// Whether nothing is left to be sent, bytes held back included.
    #[inline]
    pub(crate) fn is_drained(&self) -> bool {
        self.prepared == self.sent
    }

    /// Bytes the application copied in since the connection began.
    #[inline]
    pub(crate) fn prepared(&self) -> u64 {
        self.prepared
    }

    /// Bytes handed out in writes since the connection began.
    #[inline]
    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    /// Bytes whose place in the ring is free again.
    #[inline]
    pub(crate) fn reclaimed(&self) -> u64 {
        self.reclaimed
    }

    /// Offset of the next byte the application prepares.
    #[inline]
    pub(crate) fn write_offset(&self) -> u32 {
        self.write_offset
    }

    /// Where the next bytes to be sent lie.
    #[inline]
    pub(crate) fn next(&self) -> Spot {
        Spot {
            offset: self.read_offset,
            ring: self.size,
        }
    }

    /// Takes `bytes` more from the application, held back until [`SndBuf::release`]; at most
    /// [`SndBuf::room`].
    #[inline]
    pub(crate) fn prepare(&mut self, bytes: u32) {
        debug_assert!(bytes <= self.room());
        self.prepared += u64::from(bytes);
        let before = self.write_offset;
        self.write_offset = offset_advanced(before, bytes, self.size);
        if is_planted(Bug::OffByOneAtTheWrap) && self.write_offset < before {
            self.write_offset = offset_advanced(self.write_offset, 1, self.size);
        }
    }

    /// Lets everything that is prepared be sent.
    #[inline]
    pub(crate) fn release(&mut self) {
        self.released = self.prepared;
    }

    /// Gives up what was not sent: it never will be.
    pub(crate) fn discard(&mut self) {
        self.released = self.sent;
    }

    /// Marks the next `len` bytes, one chunk, as posted; at most [`SndBuf::queued`].
    #[inline]
    pub(crate) fn post(&mut self, len: u32, placement: Placement) {
        debug_assert!(len <= self.queued());
        self.sent += u64::from(len);
        self.read_offset = offset_advanced(self.read_offset, len, self.size);
        match placement {
            Placement::Inline => self.settle(),
            Placement::ByReference => self.by_reference_end = self.sent,
        }
    }

    /// Notes that the adapter or the peer is done with everything before position `to`.
    #[inline]
    pub(crate) fn cover(&mut self, to: u64) {
        let to = to.min(self.sent);
        if to > self.reclaimed {
            self.reclaimed = to;
            self.settle();
        }
    }

    /// Frees everything sent once no bytes by reference are outstanding.
    #[inline]
    fn settle(&mut self) {
        if self.by_reference_end <= self.reclaimed {
            self.reclaimed = self.sent;
        }
    }

    /// Whether the application should be told that there is room, which is noted as done.
    ///
    /// The rule looks at the ring as the application does: by what it was told, not by what is
    /// true. If that view is more than half full and the truth is better, it is time. So an
    /// application that believes its ring to be full is always told, and one that exchanges small
    /// messages in a large ring never is.
    #[inline]
    pub(crate) fn take_space_news(&mut self) -> Space {
        let believed = self.prepared - self.signalled;
        if believed <= u64::from(self.size / 2) || self.reclaimed == self.signalled {
            return Space::Same;
        }
        self.signalled = self.reclaimed;
        Space::Grown
    }
}

/// Whether the application has to learn about room in its send ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Space {
    /// Nothing it needs to know.
    Same,
    /// There is more room than it was told, and it may be waiting for it.
    Grown,
}

#[cfg(test)]
#[expect(clippy::disallowed_types, reason = "inside the macros of proptest")]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    /// A byte of the stream as the model sees it: where it lies, what it is, whether the adapter
    /// needs it.
    #[derive(Clone, Copy)]
    struct Byte {
        offset: u32,
        value: u8,
        placement: Option<Placement>,
    }

    #[derive(Clone, Copy, Debug)]
    enum Op {
        Prepare(u32),
        Post(u32, Placement),
        /// Covers this share, in 1/255, of what is sent.
        Cover(u8),
    }

    fn op() -> impl Strategy<Value = Op> {
        let placement = prop_oneof![Just(Placement::Inline), Just(Placement::ByReference)];
        prop_oneof![
            (0..12u32).prop_map(Op::Prepare),
            (0..12u32, placement).prop_map(|(len, placement)| Op::Post(len, placement)),
            any::<u8>().prop_map(Op::Cover),
        ]
    }

    /// The ring's memory and every byte since the last one reclaimed.
    struct Model {
        memory: Vec<u8>,
        bytes: VecDeque<Byte>,
        /// Position of the first of `bytes`.
        start: u64,
        covered: u64,
    }

    impl Model {
        fn prepare(&mut self, ring: &SndBuf, bytes: u32) {
            for i in 0..bytes {
                let offset = offset_advanced(ring.write_offset(), i, ring.size);
                let value = (ring.prepared() + u64::from(i)) as u8;
                self.memory[offset as usize] = value;
                self.bytes.push_back(Byte {
                    offset,
                    value,
                    placement: None,
                });
            }
        }

        fn post(&mut self, ring: &SndBuf, len: u32, placement: Placement) {
            for i in 0..len {
                let at = (ring.sent() - self.start) as usize + i as usize;
                let offset = offset_advanced(ring.next().offset, i, ring.size);
                assert_eq!(self.bytes[at].offset, offset, "sent in order");
                self.bytes[at].placement = Some(placement);
            }
        }

        /// Compares what the ring reclaimed with what it may and must.
        fn check(&mut self, ring: &SndBuf) {
            let may_free = |byte: &Byte, position: u64, covered: u64| match byte.placement {
                None => false,
                Some(Placement::Inline) => true,
                Some(Placement::ByReference) => position < covered,
            };
            let outstanding = self.bytes.iter().enumerate().any(|(i, byte)| {
                byte.placement == Some(Placement::ByReference)
                    && self.start + i as u64 >= self.covered
            });
            if !outstanding {
                assert_eq!(ring.reclaimed(), ring.sent(), "all is free");
            }
            assert!(ring.reclaimed() >= self.covered);
            while self.start < ring.reclaimed() {
                let byte = self
                    .bytes
                    .pop_front()
                    .expect("not beyond what was prepared");
                assert!(may_free(&byte, self.start, self.covered), "freed early");
                self.start += 1;
            }
            for byte in &self.bytes {
                assert_eq!(self.memory[byte.offset as usize], byte.value, "overwritten");
            }
            assert_eq!(
                u64::from(ring.room()),
                u64::from(ring.size) - self.bytes.len() as u64
            );
        }
    }

    proptest! {
            #[test]
            fn the_ring_agrees_with_a_queue_of_bytes(
                size in 1..10u32, ops in prop::collection::vec(op(), 1..80),
            ) {
                let mut ring = SndBuf::new(size);
                let mut model = Model {
                    memory: vec![0; size as usize],
                    bytes: VecDeque::new(),
                    start: 0,
                    covered: 0,
                };
                for op in ops {
                    match op {
                        Op::Prepare(bytes) => {
                            let bytes = bytes.min(ring.room());
                            model.prepare(&ring, bytes);
                            ring.prepare(bytes);
                            ring.release();
                        }
                        Op::Post(len, placement) => {
                            let len = len.min(ring.queued());
                            // A chunk has at least one byte.
                            if len == 0 {
     continue;
    }
                            model.post(&ring, len, placement);
                            ring.post(len, placement);
                        }
                        Op::Cover(share) => {
                            let to = ring.sent() * u64::from(share) / 255;
                            model.covered = model.covered.max(to);
                            ring.cover(to);
                        }
                    }
                    model.check(&ring);
                }
            }
        }

    /// A ring of 8 bytes of which `prepared` are prepared and released.
    fn ring_with(prepared: u32) -> SndBuf {
        let mut ring = SndBuf::new(8);
        ring.prepare(prepared);
        ring.release();
        ring
    }

    #[test]
    fn inline_bytes_are_free_when_posted_up_to_the_first_by_reference() {
        let mut ring = ring_with(8);
        ring.post(2, Placement::Inline);
        assert_eq!(ring.reclaimed(), 2);
        ring.post(3, Placement::ByReference);
        ring.post(1, Placement::Inline);
        assert_eq!(ring.reclaimed(), 2, "order is kept");
        ring.cover(5);
        assert_eq!(
            ring.reclaimed(),
            6,
            "the inline byte behind comes free as well"
        );
    }

    #[test]
    fn a_mark_beyond_what_was_sent_frees_no_more_than_that() {
        let mut ring = ring_with(4);
        ring.post(3, Placement::ByReference);
        ring.cover(u64::MAX);
        assert_eq!((ring.reclaimed(), ring.room()), (3, 7));
    }

    #[test]
    fn an_application_that_believes_the_ring_full_is_told_and_others_are_not() {
        let mut ring = SndBuf::new(8);
        let mut told = 0;
        // Small inline messages: the ring is always empty, but the application is told of it only
        // when it would otherwise believe that more than half is in use.
        for _ in 0..40 {
            ring.prepare(1);
            ring.release();
            told += usize::from(ring.take_space_news() == Space::Grown);
            ring.post(1, Placement::Inline);
            told += usize::from(ring.take_space_news() == Space::Grown);
            assert!(
                ring.prepared() - ring.signalled < 8,
                "it never believes it full"
            );
        }
        assert!((5..=10).contains(&told), "{told} times in 40 messages");
    }
}
