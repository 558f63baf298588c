//! Positions in rings that go round: the only place where ring arithmetic is written.
//!
//! Two forms of one position are kept side by side. On the wire it is a [`Cursor`]: laps and the
//! place within the lap. Inside it is also a total, 64 bits that never go round, so that "how far
//! apart" is a subtraction. A [`Place`] moves both together, with additions only: no step costs a
//! division.
//!
//! ```text
//!   ring of 8     0 1 2 3 4 5 6 7
//!   wrap 2            ^            count 3: byte 19 of the stream is the next one, total 19
//! ```
//!
//! 1. `count < ring`: a cursor that reaches the end stands at 0 of the next lap (RFC 7609 section
//!    4.3, without the diagnostic eye catcher, as Linux has it).
//! 2. A full ring is equal counts in different laps; an empty one is equal cursors.
//! 3. `total = laps * ring + count`, with the laps taken modulo 65536 on the wire.

use pollux_wire::cdc::RingCursor;

/// A position in a ring and how often it went round.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Cursor {
    /// Laps, going round at 16 bits.
    wrap: u16,
    /// Bytes from the start of the ring.
    count: u32,
}

/// What lies between a known cursor and a received one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Bytes forward, 0 included; at most two rings less one byte, so the caller still has to judge
    /// it.
    Forward(u64),
    /// The received one is older: ignore it, the rest of its message counts.
    Stale,
    /// The received one is at least two laps ahead, which no window allows; the laps.
    Skips(u16),
    /// The received count is not inside the ring.
    OutsideRing,
}

impl Cursor {
    /// Where every ring starts.
    pub const START: Cursor = Cursor { wrap: 0, count: 0 };

    /// The cursor at `count` bytes in lap `wrap`. Received values may be outside the ring until
    /// [`Cursor::step_to`] judged them.
    #[inline]
    #[must_use]
    pub const fn new(wrap: u16, count: u32) -> Cursor {
        Cursor { wrap, count }
    }

    /// Laps, going round at 16 bits.
    #[inline]
    #[must_use]
    pub const fn wrap(self) -> u16 {
        self.wrap
    }

    /// Bytes from the start of the ring.
    #[inline]
    #[must_use]
    pub const fn count(self) -> u32 {
        self.count
    }

    /// This cursor `by` bytes further in a ring of `ring` bytes; `by` is at most `ring`.
    #[inline]
    #[must_use]
    pub const fn advanced(self, by: u32, ring: u32) -> Cursor {
        let to_end = ring - self.count;
        if by < to_end {
            Cursor {
                wrap: self.wrap,
                count: self.count + by,
            }
        } else {
            Cursor {
                wrap: self.wrap.wrapping_add(1),
                count: by - to_end,
            }
        }
    }

    /// The way from this cursor to a received one, in a ring of `ring` bytes.
    ///
    /// Within one lap only the count decides; one lap ahead is a step round the end; behind is
    /// stale. Laps are compared round the circle of 65536.
    #[inline]
    #[must_use]
    pub const fn step_to(self, received: Cursor, ring: u32) -> Step {
        if received.count >= ring {
            return Step::OutsideRing;
        }
        match received.wrap.wrapping_sub(self.wrap) {
            0 if received.count >= self.count => {
                Step::Forward((received.count - self.count) as u64)
            }
            0 | 0x8000.. => Step::Stale,
            1 => Step::Forward((ring - self.count) as u64 + received.count as u64),
            laps @ 2..0x8000 => Step::Skips(laps),
        }
    }
}

impl From<RingCursor> for Cursor {
    #[inline]
    fn from(wire: RingCursor) -> Cursor {
        Cursor::new(wire.wrap, wire.count)
    }
}

impl From<Cursor> for RingCursor {
    #[inline]
    fn from(cursor: Cursor) -> RingCursor {
        RingCursor {
            wrap: cursor.wrap,
            count: cursor.count,
        }
    }
}

/// A position in both forms: as the wire says it, and as a total that never goes round.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Place {
    /// The wire's form.
    pub cursor: Cursor,
    /// Bytes since the connection began.
    pub total: u64,
}

impl Place {
    /// Moves `by` bytes on in a ring of `ring` bytes; `by` is at most `ring`.
    #[inline]
    pub const fn advance(&mut self, by: u32, ring: u32) {
        self.cursor = self.cursor.advanced(by, ring);
        self.total += by as u64;
    }

    /// Moves to a received cursor that [`Cursor::step_to`] found `step` bytes ahead.
    #[inline]
    pub const fn move_to(&mut self, received: Cursor, step: u64) {
        self.cursor = received;
        self.total += step;
    }
}

/// The offset `by` bytes behind `offset` in a ring of `ring` bytes; `by` is at most `ring`.
#[inline]
#[must_use]
pub const fn offset_advanced(offset: u32, by: u32, ring: u32) -> u32 {
    let to_end = ring - offset;
    if by < to_end {
        offset + by
    } else {
        by - to_end
    }
}

/// The offset of the byte just before `offset` in a ring of `ring` bytes.
#[inline]
#[must_use]
pub const fn offset_before(offset: u32, ring: u32) -> u32 {
    if offset == 0 { ring - 1 } else { offset - 1 }
}
