//! Simulated time: one word of nanoseconds that the world moves on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pollux_worker::Clock;

/// The clock of a world. Clones show the same time.
#[derive(Clone, Debug, Default)]
pub struct SimClock(Arc<AtomicU64>);

impl SimClock {
    /// Moves the time on.
    pub fn advance(&self, ns: u64) {
        self.0.fetch_add(ns, Ordering::Relaxed);
    }
}

impl Clock for SimClock {
    #[inline]
    fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
