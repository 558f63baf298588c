//! The worker's only source of time: nanoseconds since an arbitrary origin.

/// A monotonic clock in nanoseconds. The worker reads it at most once per pass.
pub trait Clock: Send {
    /// Nanoseconds since an origin that never changes during the clock's life.
    fn now(&self) -> u64;
}

/// The time-stamp counter, calibrated against the system's monotonic clock when it is made.
#[derive(Clone, Debug)]
pub struct Tsc {
    clock: quanta::Clock,
    origin: u64,
}

impl Tsc {
    /// Calibrates on first use in the process; later instances are cheap.
    #[must_use]
    pub fn new() -> Self {
        let clock = quanta::Clock::new();
        let origin = clock.raw();
        Tsc { clock, origin }
    }
}

impl Default for Tsc {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for Tsc {
    #[inline]
    fn now(&self) -> u64 {
        self.clock.delta_as_nanos(self.origin, self.clock.raw())
    }
}
