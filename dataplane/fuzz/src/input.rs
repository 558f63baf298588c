//! Bytes as a source of decisions.

/// Reads small values from the front of an input. Behind its end everything is zero, so that a list of
/// operations asks [`Input::is_empty`] and need not care inside an operation.
#[derive(Debug, Clone)]
pub struct Input<'a> {
    rest: &'a [u8],
}

impl<'a> Input<'a> {
    /// The whole of `bytes`.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Input<'a> {
        Input { rest: bytes }
    }

    /// Whether nothing is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.rest.split_first() else {
            return 0;
        };
        self.rest = rest;
        *first
    }

    /// A number below `limit`, from one byte; 0 for a limit of 0.
    pub fn below(&mut self, limit: u8) -> u8 {
        self.byte().checked_rem(limit).unwrap_or(0)
    }

    /// Two bytes, little-endian.
    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    /// Four bytes, little-endian.
    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    /// Eight bytes, little-endian.
    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// A number that is mostly small, sometimes at an edge, and can be any: one byte says which.
    pub fn number(&mut self) -> u64 {
        match self.byte() {
            small @ 0..=0xdf => small.into(),
            0xe0..=0xef => self.u16().into(),
            0xf0..=0xf5 => self.u32().into(),
            0xf6..=0xf9 => self.u64(),
            edge @ 0xfa..=0xfc => u64::from(u32::MAX) + u64::from(edge) - 0xfb,
            edge @ 0xfd..=0xff => u64::MAX - (0xff - u64::from(edge)),
        }
    }

    /// As [`Input::number`], cut to 32 bits.
    pub fn number32(&mut self) -> u32 {
        self.number() as u32
    }

    /// Up to `count` bytes: as many as are left.
    pub fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.rest.split_at(count.min(self.rest.len()));
        self.rest = rest;
        taken
    }

    /// Everything that is left.
    pub fn rest(&mut self) -> &'a [u8] {
        self.bytes(self.rest.len())
    }

    /// Exactly `N` bytes, zeros behind the end.
    pub fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let bytes = self.bytes(N);
        array[..bytes.len()].copy_from_slice(bytes);
        array
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_from_the_front_and_zeros_from_behind_the_end() {
        let mut input = Input::new(&[7, 1, 2, 9]);
        assert_eq!((input.below(4), input.u16(), input.u32()), (3, 0x0201, 9));
        assert!(input.is_empty());
        assert_eq!((input.byte(), input.below(0), input.u64()), (0, 0, 0));
    }

    #[test]
    fn a_number_reaches_the_edges() {
        let number = |bytes: &[u8]| Input::new(bytes).number();
        assert_eq!(number(&[0xdf]), 0xdf);
        assert_eq!(number(&[0xe0, 1, 2]), 0x0201);
        assert_eq!(number(&[0xfa]), u64::from(u32::MAX) - 1);
        assert_eq!(number(&[0xfc]), u64::from(u32::MAX) + 1);
        assert_eq!(number(&[0xff]), u64::MAX);
    }

    #[test]
    fn what_is_left_is_given_and_no_more() {
        let mut input = Input::new(b"abc");
        assert_eq!(input.bytes(2), b"ab");
        assert_eq!(input.bytes(2), b"c");
        assert_eq!(input.rest(), b"");
    }
}
