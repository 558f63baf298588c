//! From two rings to at most two writes of at most two pieces: a pure function.
//!
//! A span of the stream lies in the sndbuf and has a place in the peer's RMBE. Each ring may end in
//! the middle of it. The end of the RMBE cuts it into *chunks*, one RDMA WRITE each, because a
//! WRITE has one target address; the end of the sndbuf cuts a chunk into *pieces*, one
//! scatter-gather entry each.
//!
//! ```text
//!   sndbuf  ......[=====piece 0=====)   [==piece 1==).......      source ring ends in chunk 0
//!   RMBE    ...[============chunk 0=============)   [=chunk 1=)   target ring ends in the span
//! ```
//!
//! 1. Chunks and pieces cover exactly the span, each byte once, in the order of the stream.
//! 2. No chunk reaches over the end of the target ring, no piece over the end of the source ring.
//! 3. A chunk is inline iff its length is at most `inline_max`; 0 means that nothing is.

use arrayvec::ArrayVec;

use crate::cursor::offset_advanced;

/// Contiguous bytes of the sndbuf.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Piece {
    /// First byte, from the start of the sndbuf.
    pub offset: u32,
    /// Bytes, at least 1.
    pub len: u32,
}

/// How the adapter gets the bytes of a WRITE.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Placement {
    /// Copied into the work request when it is posted: the sndbuf is free again at once.
    Inline,
    /// Read from the sndbuf later: the bytes must stay until the work is known to be done.
    ByReference,
}

/// One RDMA WRITE: contiguous in the peer's RMBE.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Write {
    /// Where it goes, from the start of the peer's RMBE.
    pub to_offset: u32,
    /// Where it comes from, in order; one piece, or two where the sndbuf ends in between.
    pub pieces: ArrayVec<Piece, 2>,
    /// Bytes: the sum of the pieces.
    pub len: u32,
    /// Inline or by reference.
    pub placement: Placement,
}

/// Where in a ring something starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spot {
    /// First byte, less than `ring`.
    pub offset: u32,
    /// Size of the ring in bytes, at least 1.
    pub ring: u32,
}

/// Cuts `len` bytes that lie at `source` and go to `target` into writes.
///
/// `len` is at most the size of either ring; 0 gives no write. `inline_max` is the adapter's limit
/// in bytes and is judged for each chunk anew.
#[inline]
#[must_use]
pub fn cut(len: u32, source: Spot, target: Spot, inline_max: u32) -> ArrayVec<Write, 2> {
    let mut writes = ArrayVec::new();
    cut_into(&mut writes, len, source, target, inline_max);
    writes
}

/// As [`cut`], into a place that is there already: on the hot path the order is not moved about.
#[inline]
pub(crate) fn cut_into(
    writes: &mut ArrayVec<Write, 2>,
    len: u32,
    source: Spot,
    target: Spot,
    inline_max: u32,
) {
    debug_assert!(len <= source.ring && len <= target.ring);
    writes.clear();
    if len == 0 {
        return;
    }
    let first = len.min(target.ring - target.offset);
    writes.push(chunk(first, source, target.offset, inline_max));
    if first < len {
        let offset = offset_advanced(source.offset, first, source.ring);
        let source = Spot { offset, ..source };
        writes.push(chunk(len - first, source, 0, inline_max));
    }
}

/// One write of `len` bytes to `to_offset`, with its pieces.
#[inline]
fn chunk(len: u32, source: Spot, to_offset: u32, inline_max: u32) -> Write {
    let mut pieces = ArrayVec::new();
    let first = len.min(source.ring - source.offset);
    pieces.push(Piece {
        offset: source.offset,
        len: first,
    });
    if first < len {
        pieces.push(Piece {
            offset: 0,
            len: len - first,
        });
    }
    let placement = if len <= inline_max {
        Placement::Inline
    } else {
        Placement::ByReference
    };
    Write {
        to_offset,
        pieces,
        len,
        placement,
    }
}
