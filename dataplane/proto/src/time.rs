//! Time as plain nanoseconds with an arbitrary origin, always handed in by the caller.

use core::time::Duration;

/// A point in time: nanoseconds since an origin that the caller chose, the same for every call.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Instant(pub u64);

impl Instant {
    /// This point plus `wait`; the last representable point if that overflows.
    #[inline]
    #[must_use]
    pub fn after(self, wait: Duration) -> Instant {
        Instant(self.0.saturating_add(nanoseconds(wait)))
    }

    /// Time from `earlier` to this point, zero if `earlier` is later.
    #[inline]
    #[must_use]
    pub const fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// `wait` in nanoseconds; more than 584 years count as 584 years.
fn nanoseconds(wait: Duration) -> u64 {
    u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adding_and_subtracting_meet_again() {
        let start = Instant(1_000);
        let end = start.after(Duration::from_micros(3));
        assert_eq!(end, Instant(4_000));
        assert_eq!(end.since(start), Duration::from_micros(3));
    }

    #[test]
    fn the_edges_of_time_hold() {
        assert_eq!(Instant(5).after(Duration::MAX), Instant(u64::MAX));
        assert_eq!(Instant(5).since(Instant(6)), Duration::ZERO);
    }
}
