//! The two halves of a session's memory: what a program submits and what a worker tells it.
//!
//! # Lines
//!
//! Both directions are line rings ([`pollux_ring::LineWriter`]). A line is complete in itself: it
//! carries the absolute state of one slot, so that repeating one changes nothing, and up to
//! [`INLINE_BYTES`] of the stream, so that a short message costs the other side one transfer of a
//! cache line and not two.
//!
//! | word | submission (program to worker) | event (worker to program) |
//! |---|---|---|
//! | 0 | op 8, inline length 8, slot 16, generation 16, zero 16 | zero 8, inline length 8, slot 16, generation 16, state 16 |
//! | 1 | bytes prepared since the connection began | bytes received since the connection began |
//! | 2 | bytes consumed since the connection began | bytes of the sndbuf that are free again |
//! | 3-6 | the last bytes prepared | the last bytes received |
//!
//! Fields of word 0 are listed from the lowest bit. Inline bytes of a submission are copied into
//! the sndbuf by the worker, where the adapter may take them; those of an event also stand in the
//! RMBE, where a program that did not keep them finds them.
//!
//! # Generations
//!
//! A slot serves one connection after the other, and its lines may be older than what the control
//! socket has just said. Each connection of a slot has a generation; lines of another one are
//! ignored on both sides.
//!
//! # Trust
//!
//! The worker copies a line and then judges it: slot, op, lengths, totals that never go back and
//! stay inside the ring. A line that breaks a rule is a [`Violation`], which ends the session. The
//! program believes the appliance, but never panics over it.
//!
//! # Sleep
//!
//! See [`pollux_ring::SleepFlag`]. Each side makes its lines visible and then asks whether the
//! other must be woken; whoever wakes does so with a descriptor that is not part of the memory.

mod entry;
mod program_side;
mod worker_side;

use std::ops::{BitOr, BitOrAssign};

use pollux_ring::HeadViolation;
use thiserror::Error;

pub use entry::{INLINE_BYTES, Inline};
pub use program_side::{Event, EventReader, ProgramSide, SubmissionRingFull, Submitter};
pub use worker_side::WorkerSide;

/// What a program asks of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubmissionOp {
    /// Look at the totals: there is something to send, or room to announce.
    Kick,
    /// As Kick; the last byte prepared is urgent.
    Urgent,
    /// Nothing will be prepared any more.
    ShutdownWrite,
    /// The program is done with the connection; what was prepared is still sent. With received
    /// bytes that were not consumed it becomes a reset.
    Close,
    /// Reset the connection now.
    Abort,
}

/// A judged submission: the slot exists, the totals never went back and lie inside the rings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Submission {
    /// What is asked.
    pub op: SubmissionOp,
    /// The slot.
    pub slot: u16,
    /// Which of the slot's connections is meant.
    pub generation: u16,
    /// Bytes prepared in the sndbuf since the connection began.
    pub prepared_total: u64,
    /// Bytes consumed from the RMBE since the connection began.
    pub consumed_total: u64,
}

/// What a worker knows about a slot's connection, to tell its program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SlotNews {
    /// Bytes received into the RMBE since the connection began. Never goes back.
    pub produced: u64,
    /// Bytes of the sndbuf that may be overwritten, since the connection began. Never goes back.
    pub reclaimed: u64,
    /// What else is true of the connection.
    pub state: SlotState,
}

/// Facts about a connection, each true from some moment on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SlotState(u16);

impl SlotState {
    /// An open connection without anything special.
    pub const OPEN: SlotState = SlotState(0);
    /// The peer sends no more: after the bytes received so far comes the end of the stream.
    pub const END_OF_STREAM: SlotState = SlotState(1);
    /// The connection ended abnormally: reads and writes fail.
    pub const RESET: SlotState = SlotState(2);
    /// The connection is over and the worker will not touch its buffers any more.
    pub const CLOSED: SlotState = SlotState(4);
    /// The peer has announced urgent data that has not arrived yet.
    pub const URGENT_PENDING: SlotState = SlotState(8);
    /// Urgent data has arrived.
    pub const URGENT: SlotState = SlotState(16);

    /// The bits, to be stored.
    pub fn bits(self) -> u16 {
        self.0
    }

    /// A state from stored bits; unknown ones are kept and mean nothing.
    pub fn from_bits(bits: u16) -> SlotState {
        SlotState(bits)
    }

    /// Whether all facts of `other` are true.
    #[inline]
    pub fn contains(self, other: SlotState) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for SlotState {
    type Output = SlotState;

    fn bitor(self, other: SlotState) -> SlotState {
        SlotState(self.0 | other.0)
    }
}

impl BitOrAssign for SlotState {
    fn bitor_assign(&mut self, other: SlotState) {
        *self = *self | other;
    }
}

/// Whether the other side sleeps and must be woken to see what was just made visible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a sleeper that is not woken sleeps for ever"]
pub enum WakeNeeded {
    /// It sleeps, or is about to.
    Yes,
    /// It will look by itself.
    No,
}

impl WakeNeeded {
    /// Whether the answer is yes.
    pub fn is_needed(self) -> bool {
        self == WakeNeeded::Yes
    }
}

/// One of the two directions of a connection, as far as a total is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Total {
    /// Bytes put into the sndbuf.
    Prepared,
    /// Bytes taken out of the RMBE.
    Consumed,
}

impl std::fmt::Display for Total {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Total::Prepared => "prepared",
            Total::Consumed => "consumed",
        })
    }
}

/// A rule of the session's memory that a program has broken. The library never does; a program
/// that scribbles may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Violation {
    /// A slot that the session does not have.
    #[error("a submission names slot {slot}, the session has {slots}")]
    SlotOutOfRange {
        /// The slot named.
        slot: u16,
        /// Slots of the session.
        slots: u16,
    },
    /// A first word with an unknown op, an impossible length, or bits that must be zero.
    #[error("a submission starts with {word:#018x}, which means nothing")]
    BadEntry {
        /// The line's first word.
        word: u64,
    },
    /// A total that is less than before.
    #[error("slot {slot}: {total} total went back from {was} to {is}")]
    TotalWentBack {
        /// The slot.
        slot: u16,
        /// Which total.
        total: Total,
        /// Its last value.
        was: u64,
        /// Its value now.
        is: u64,
    },
    /// A total beyond what the ring can hold, or beyond what has been received.
    #[error("slot {slot}: {total} total is {is}, at most {most} is possible")]
    TotalBeyondRing {
        /// The slot.
        slot: u16,
        /// Which total.
        total: Total,
        /// Its value.
        is: u64,
        /// The largest possible value.
        most: u64,
    },
    /// Bytes prepared after the program had ended its direction.
    #[error("slot {slot}: bytes were prepared after the end of the stream")]
    PreparedAfterEnd {
        /// The slot.
        slot: u16,
    },
    /// The count of events taken is impossible.
    #[error("events taken: {0}")]
    EventHead(HeadViolation),
}
