//! How much a send may carry inline: found by creating queue pairs until one is accepted.
//!
//! No query tells the inline size that a device grants; it depends on the device, on its driver
//! and on the other sizes of the queue pair. So the very queue pair that will be used is created,
//! with the size that is wished for first; while the device refuses, less is asked for, down to
//! none ([`steps()`]). EINVAL, ENOMEM, ENOSPC and EOPNOTSUPP are refusals
//! ([`CreateQpError::may_be_inline`](pollux_provider::CreateQpError::may_be_inline)), anything
//! else ends the search. **What the accepted queue pair says of itself counts**, be it more or
//! less than what was asked: some drivers round up, some accept everything and give nothing.
//!
//! | part | is |
//! |---|---|
//! | [`steps()`] | which sizes are asked for; the table of the makers' known limits |
//! | [`search`] | asks for them, from the top or by halves; at most one queue pair is alive |
//! | [`Memory`] | what a device accepted for a shape, so that later creations are one each |
//! | [`Outcome`] | what was asked, granted, refused, and what was traded for depth |
//!
//! # From the top or by halves
//!
//! Both ways reach the same answer on a device that accepts every size below one that it
//! accepts. Queue pairs created with 256 bytes wished for, on the soft device (the counts are
//! exact and held by a test; a maker's name stands for the sizes, not for its hardware):
//!
//! | device | granted | ladder | bisect |
//! |---|---|---|---|
//! | no limit below 256, or one that accepts all; like mlx5 | 256 and more | 1 | 1 |
//! | like irdma, third generation | 216 | 1 | 1 |
//! | like erdma | 96 | 1 | 1 |
//! | like irdma, second generation | 101 | 2 | 4 |
//! | like irdma, first generation | 48 | 3 | 5 |
//! | unknown maker, 128 | 128 | 9 | 6 |
//! | unknown maker, none | 0 | 17 | 6 |
//!
//! The default is **ladder**. It asks exactly for what adapters are known to have, the largest
//! first, so that on those it is never slower; it does not take for granted that sizes are
//! accepted in order; and the queue pair that it keeps is the one that was accepted, not a second
//! creation of it. What it costs on an unknown device without inline, eleven creations more, is
//! paid once for each shape, at the start: a creation is a few commands to the firmware, some
//! tenths of a millisecond each. On the soft device a whole search takes 0.1 ms or less either
//! way. **Bisect** is for drivers that write a line into the kernel's log for each refusal. No
//! real adapter was measured for this.

mod memory;
mod outcome;
mod search;
mod steps;

use pollux_provider::{QpCaps, QpKind, QpSpec};

pub use self::memory::Memory;
pub use self::outcome::{Answer, OtherDepths, Outcome, Trade, Trial};
pub use self::search::{ProbeError, search};
pub use self::steps::{Origin, Step, VENDORS, limits_of, steps};
use crate::config::InlineProbe;

/// Everything of a queue pair but its inline size: what that size may depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Transport service.
    pub kind: QpKind,
    /// Depth of the send queue, in work requests.
    pub send_wr: u32,
    /// Depth of the receive queue, in work requests.
    pub recv_wr: u32,
    /// Pieces per send or WRITE.
    pub send_sge: u32,
    /// Pieces per receive.
    pub recv_sge: u32,
    /// Entries of the completion queue that it reports to.
    pub cq_entries: u32,
}

impl Shape {
    /// What is asked of the device for this shape and an inline size.
    #[must_use]
    pub fn spec(&self, inline_bytes: u32) -> QpSpec {
        QpSpec {
            kind: self.kind,
            caps: QpCaps {
                send_wr: self.send_wr,
                recv_wr: self.recv_wr,
                send_sge: self.send_sge,
                recv_sge: self.recv_sge,
                inline_bytes,
            },
        }
    }
}

/// What is wanted of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    /// Its other sizes.
    pub shape: Shape,
    /// Inline size wished for, in bytes; 0 for none.
    pub inline_bytes: u32,
    /// How a smaller one is found.
    pub mode: InlineProbe,
}
