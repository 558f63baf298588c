//! Sequence numbers of CDC messages: 16 bits that go round, with an order for near neighbours.

/// Number of a CDC message within one direction of one connection.
///
/// The first message has number 1; 65535 is followed by 0 (RFC 7609 appendix A.4).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct CdcSeq(pub u16);

impl CdcSeq {
    /// What stands before the first message: nothing was sent or received yet.
    pub const NONE: CdcSeq = CdcSeq(0);

    /// The number of the message after this one.
    #[inline]
    #[must_use]
    pub const fn next(self) -> CdcSeq {
        CdcSeq(self.0.wrapping_add(1))
    }

    /// Whether this number is older than `other`.
    ///
    /// Distances are taken round the circle: a number up to 32767 behind is older, equal numbers
    /// are not, and the one exactly opposite counts as older, as in Linux.
    #[inline]
    #[must_use]
    pub const fn is_before(self, other: CdcSeq) -> bool {
        (self.0.wrapping_sub(other.0) as i16) < 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_number_is_followed_by_zero() {
        assert_eq!(CdcSeq(0xffff).next(), CdcSeq(0));
        assert!(CdcSeq(0xffff).is_before(CdcSeq(0)));
        assert!(!CdcSeq(0).is_before(CdcSeq(0xffff)));
    }

    #[test]
    fn every_number_is_before_its_32767_successors_and_after_its_32767_predecessors() {
        for start in [0u16, 1, 2, 0x7fff, 0x8000, 0xfffe, 0xffff] {
            let start = CdcSeq(start);
            assert!(!start.is_before(start));
            let mut later = start;
            for _ in 0..0x7fff {
                later = later.next();
                assert!(start.is_before(later), "{start:?} {later:?}");
                assert!(!later.is_before(start), "{start:?} {later:?}");
            }
            let opposite = later.next();
            assert!(start.is_before(opposite) && opposite.is_before(start));
        }
    }
}
