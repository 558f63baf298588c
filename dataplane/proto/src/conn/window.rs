//! The peer's RMBE as its writer sees it.

use crate::cursor::{Cursor, Place, Step};
use crate::plan::Spot;

/// What a received consumer cursor means for the window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reading {
    /// The peer has read everything before this position.
    UpTo(u64),
    /// An old cursor; ignore it.
    Stale,
    /// It confirms this many bytes, more than are outstanding.
    Unsent(u64),
    /// It is this many laps ahead.
    Skips(u16),
    /// Its count is not inside the ring.
    OutsideRing,
}

/// Positions of the peer's RMBE.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Window {
    /// Size of the ring in bytes, at least 1.
    size: u32,
    /// Where the next byte goes; its total is the sndbuf's sent total.
    producer: Cursor,
    /// What the peer has read (TCP: snd_una, for the window).
    consumed: Place,
}

impl Window {
    /// A wholly open window of `size` bytes.
    pub(super) fn new(size: u32) -> Window {
        Window {
            size,
            producer: Cursor::START,
            consumed: Place::default(),
        }
    }

    /// Size of the ring in bytes.
    pub(super) fn size(&self) -> u32 {
        self.size
    }

    /// Bytes the peer has room for when `sent` bytes were sent in all.
    #[inline]
    pub(super) fn open(&self, sent: u64) -> u32 {
        self.size - (sent - self.consumed.total) as u32
    }

    /// Where the next byte goes.
    #[inline]
    pub(super) fn next(&self) -> Spot {
        Spot {
            offset: self.producer.count(),
            ring: self.size,
        }
    }

    /// The producer cursor for a message.
    #[inline]
    pub(super) fn producer(&self) -> Cursor {
        self.producer
    }

    /// The last consumer cursor of the peer.
    #[inline]
    pub(super) fn consumer(&self) -> Cursor {
        self.consumed.cursor
    }

    /// Bytes the peer has read.
    #[inline]
    pub(super) fn consumed(&self) -> u64 {
        self.consumed.total
    }

    /// Marks `len` bytes as written; at most what is open.
    #[inline]
    pub(super) fn fill(&mut self, len: u32) {
        self.producer = self.producer.advanced(len, self.size);
    }

    /// Judges and, if it holds, takes a received consumer cursor, when `sent` bytes were sent in
    /// all.
    #[inline]
    pub(super) fn receive(&mut self, consumer: Cursor, sent: u64) -> Reading {
        let step = match self.consumed.cursor.step_to(consumer, self.size) {
            Step::Forward(step) => step,
            Step::Stale => return Reading::Stale,
            Step::Skips(laps) => return Reading::Skips(laps),
            Step::OutsideRing => return Reading::OutsideRing,
        };
        if step > sent - self.consumed.total {
            return Reading::Unsent(step);
        }
        self.consumed.move_to(consumer, step);
        Reading::UpTo(self.consumed.total)
    }
}
