//! Sleeping without lost wake-ups, and without a fence per message while nobody sleeps.
//!
//! A sleeper says "I sleep", then looks for work; a requester writes work, then looks whether its peer sleeps.
//! Each needs a full fence between its two steps. Requesters leave theirs out while the peer's port says
//! that it never sleeps. So a group that changes its mind first says that it *may* sleep, and then makes
//! every processor that runs a process of ours execute a fence (`membarrier(2)`, global expedited): a
//! requester that still saw the old word has made its lines visible by then, and every later one
//! sees the new word.
//!
//! Where the call is not to be had (an old kernel, a filter of system calls), a device always says that it may
//! sleep, and always fences.

use rustix::thread::{MembarrierCommand, membarrier};

/// When a requester fences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fence {
    /// When the peer says that it may sleep.
    IfPeerMaySleep,
    /// Always: this process does not take part in the barrier.
    Always,
}

/// Makes this process take part in the barrier. Once per device; repeating it is harmless.
pub(crate) fn join() -> Fence {
    match membarrier(MembarrierCommand::RegisterGlobalExpedited) {
        Ok(()) => Fence::IfPeerMaySleep,
        Err(_) => Fence::Always,
    }
}

/// Executes a fence on every processor that runs a process which has joined.
pub(crate) fn everywhere() -> Result<(), rustix::io::Errno> {
    membarrier(MembarrierCommand::GlobalExpedited)
}
