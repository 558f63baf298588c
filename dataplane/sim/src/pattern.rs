//! The bytes of every stream, as a function of who writes them and where they lie in the stream.
//!
//! So nobody has to remember what was written: a reader knows what it must find. Neighbouring offsets
//! and offsets one ring apart have unrelated bytes, so that a byte taken from the wrong place shows.

use crate::numbers::mix;

/// Who writes a stream: the connection's number and the side.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord, Hash)]
pub struct Writer(pub u64);

#[inline]
fn word(writer: Writer, index: u64) -> [u8; 8] {
    mix((writer.0 << 36) ^ index ^ 0x5bd1).to_le_bytes()
}

/// Fills `bytes` with the stream of `writer` from `offset` on.
pub fn fill(writer: Writer, offset: u64, bytes: &mut [u8]) {
    let mut at = offset;
    let mut rest = bytes;
    while !rest.is_empty() {
        let within = (at % 8) as usize;
        let take = rest.len().min(8 - within);
        let (now, later) = rest.split_at_mut(take);
        now.copy_from_slice(&word(writer, at / 8)[within..within + take]);
        at += take as u64;
        rest = later;
    }
}

/// The first place in `bytes`, read from `offset` on, that is not the stream of `writer`.
#[must_use]
pub fn mismatch(writer: Writer, offset: u64, bytes: &[u8]) -> Option<usize> {
    let mut done = 0;
    while done < bytes.len() {
        let at = offset + done as u64;
        let within = (at % 8) as usize;
        let take = (bytes.len() - done).min(8 - within);
        let expected = word(writer, at / 8);
        let found = &bytes[done..done + take];
        if let Some(wrong) = (0..take).find(|i| found[*i] != expected[within + i]) {
            return Some(done + wrong);
        }
        done += take;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_filled_in_pieces_is_found_as_a_whole() {
        let mut whole = [0; 100];
        for (start, end) in [(0, 3), (3, 50), (50, 100)] {
            fill(Writer(9), 1000 + start as u64, &mut whole[start..end]);
        }
        assert_eq!(mismatch(Writer(9), 1000, &whole), None);
    }

    #[test]
    fn a_wrong_byte_a_shift_and_a_foreign_stream_are_found() {
        let mut bytes = [0; 40];
        fill(Writer(2), 5, &mut bytes);
        bytes[17] ^= 1;
        assert_eq!(mismatch(Writer(2), 5, &bytes), Some(17));
        fill(Writer(2), 5, &mut bytes);
        assert!(mismatch(Writer(2), 5 + 64, &bytes).is_some());
        assert!(mismatch(Writer(3), 5, &bytes).is_some());
    }
}
