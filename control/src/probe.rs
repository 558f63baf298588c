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
//! accepts. Creations, and the time of a whole search, with 256 bytes wished for on the soft
//! device:
//!
//! | personality | granted | ladder | | bisect | |
//! |---|---|---|---|---|---|
//! | generic | 256 | 1 | 28 us | 1 | 26 us |
//! | mlx5 | 476 | 1 | 34 us | 1 | 32 us |
//! | irdma-gen3 | 216 | 1 | 27 us | 1 | 29 us |
//! | irdma-gen2 | 101 | 2 | 25 us | 4 | 107 us |
//! | irdma-gen1 | 48 | 3 | 26 us | 5 | 110 us |
//! | erdma | 96 | 1 | 25 us | 1 | 26 us |
//! | gives-64, gives-0 | 64, 0 | 1 | 22 us | 1 | 22 us |
//! | budget-49152 (unknown maker, 128) | 128 | 9 | 24 us | 6 | 55 us |
//! | budget-40960 (unknown maker, 96) | 96 | 11 | 25 us | 6 | 88 us |
//! | none (unknown maker) | 0 | 17 | 24 us | 6 | 20 us |
//!
//! The counts are exact and held by a test. The times are medians of 201 searches, optimised
//! build, queues 256 deep, in one process, two cores of a virtual machine
//! (AMD EPYC) that others used too; with shared memory between processes they are the same. They
//! show what a search consists of: a refusal costs the soft device less than a microsecond, a
//! queue pair that is made about 25, and bisect makes several that it does not keep.
//!
//! **No real adapter was there to be measured.** There a command to the firmware takes some
//! tenths of a millisecond, so that at worst, an unknown device without inline data, ladder costs
//! eleven commands more: a few milliseconds, paid once for each shape, at the start.
//!
//! The default is **ladder**. It asks exactly for what adapters are known to have, the largest
//! first, so that on those it needs no creation more than bisect; it does not take for granted
//! that sizes are accepted in order; and each queue pair that it makes is one that it keeps.
//! **Bisect** is for unknown devices with a small limit whose driver is slow to refuse, or writes
//! each refusal into the kernel's log, as soft-RoCE does.

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
