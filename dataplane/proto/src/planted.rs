//! Faults that can be planted, to see that the simulator finds them.
//!
//! Only a build with the feature `planted` can: then a thread chooses one with [`plant`], and the
//! places that ask [`is_planted`] do the wrong thing on that thread. Without the feature the answer is a
//! constant `false`, and nothing of it is left in the code. The list is here because everybody who has
//! such a place uses this crate.

/// A fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    /// Now and then a receive that was posted anew is not returned to the peer (`worker/src/link.rs`).
    LostCredit,
    /// Behind the end of a send ring the next bytes are put one place too far (`sndbuf.rs`).
    OffByOneAtTheWrap,
    /// The message that announces a WRITE is posted before it (`worker/src/transmit.rs`).
    CdcBeforeWrite,
    /// A receive buffer that has been used before is cleared only when its new connection is open, and
    /// the peer may have written into it (`control/src/plane/conns.rs`).
    ClearedAfterReuse,
    /// The only connection that waits for its link is not looked at when there is room again
    /// (`worker/src/core.rs`).
    MissedWakeUp,
    /// A worker goes to sleep over what came before it asked to be woken (`worker/src/wait.rs`).
    SleepsOver,
}

impl Bug {
    /// Every fault.
    pub const ALL: [Bug; 6] = [
        Bug::LostCredit,
        Bug::OffByOneAtTheWrap,
        Bug::CdcBeforeWrite,
        Bug::ClearedAfterReuse,
        Bug::MissedWakeUp,
        Bug::SleepsOver,
    ];

    /// Its name on a command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Bug::LostCredit => "lost-credit",
            Bug::OffByOneAtTheWrap => "off-by-one-at-the-wrap",
            Bug::CdcBeforeWrite => "cdc-before-write",
            Bug::ClearedAfterReuse => "cleared-after-reuse",
            Bug::MissedWakeUp => "missed-wake-up",
            Bug::SleepsOver => "sleeps-over",
        }
    }
}

/// Whether this build can have faults planted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ground {
    /// It can.
    Fertile,
    /// It was built without the feature `planted`.
    Barren,
}

pub use selector::{is_planted, plant};

#[cfg(feature = "planted")]
mod selector {
    use core::cell::Cell;

    use super::{Bug, Ground};

    thread_local! {
        static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    /// Chooses what goes wrong on this thread from now on.
    pub fn plant(bug: Option<Bug>) -> Ground {
        PLANTED.set(bug);
        Ground::Fertile
    }

    /// Whether this goes wrong on this thread.
    #[inline]
    #[must_use]
    pub fn is_planted(bug: Bug) -> bool {
        PLANTED.get() == Some(bug)
    }
}

#[cfg(not(feature = "planted"))]
mod selector {
    use super::{Bug, Ground};

    /// Does nothing: see the feature `planted`.
    pub fn plant(_: Option<Bug>) -> Ground {
        Ground::Barren
    }

    /// Never.
    #[inline(always)]
    #[must_use]
    pub const fn is_planted(_: Bug) -> bool {
        false
    }
}
