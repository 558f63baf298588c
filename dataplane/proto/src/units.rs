//! Numbers with meaning that travel between the rules and their owner.

/// How much of the stream had been handed out when a transmit was made.
///
/// The owner keeps it beside the work requests of a [`Transmit`](crate::conn::Transmit) and gives it back to
/// [`Conn::handle_completed`](crate::conn::Conn::handle_completed) when a completion covers them. Later marks
/// cover earlier ones, so that the newest completed mark is enough.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct SentMark(pub u64);

/// Index of a connection's RMBE inside an RMB as the wire has it: the first one is 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RmbeIndex(core::num::NonZeroU8);

impl RmbeIndex {
    /// The first RMBE of an RMB, the only one in Linux.
    pub const FIRST: RmbeIndex = RmbeIndex(core::num::NonZeroU8::MIN);

    /// The index in byte 45 of a CLC Accept or Confirm; `None` for 0, which names no RMBE.
    #[must_use]
    pub const fn from_wire(byte: u8) -> Option<RmbeIndex> {
        match core::num::NonZeroU8::new(byte) {
            Some(index) => Some(RmbeIndex(index)),
            None => None,
        }
    }

    /// The byte on the wire.
    #[must_use]
    pub const fn to_wire(self) -> u8 {
        self.0.get()
    }

    /// First byte of the RMBE inside its RMB, all RMBEs being `rmbe_bytes` long.
    #[must_use]
    pub const fn offset(self, rmbe_bytes: u32) -> u64 {
        (self.0.get() - 1) as u64 * rmbe_bytes as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rmbe_starts_at_the_rmb_and_zero_names_none() {
        assert_eq!(RmbeIndex::from_wire(0), None);
        assert_eq!(RmbeIndex::from_wire(1), Some(RmbeIndex::FIRST));
        assert_eq!(RmbeIndex::FIRST.offset(65536), 0);
        let last = RmbeIndex::from_wire(255).unwrap();
        assert_eq!(last.offset(512 << 20), 254 * (512 << 20));
        assert_eq!(last.to_wire(), 255);
    }
}
