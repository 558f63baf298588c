//! Words of a line to values and back.

use super::{SlotState, SubmissionOp, Violation};

/// Most bytes of the stream that travel in the line itself.
pub const INLINE_BYTES: usize = INLINE_WORDS * 8;

const INLINE_WORDS: usize = 4;

/// Words of a line's payload.
pub(super) type Words = [u64; 7];

/// Bytes of the stream that travel in a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Inline {
    bytes: [u8; INLINE_BYTES],
    len: u8,
}

impl Inline {
    /// No bytes.
    pub const NONE: Inline = Inline {
        bytes: [0; INLINE_BYTES],
        len: 0,
    };

    /// These bytes, `None` if they are too many.
    #[inline]
    pub(super) fn from_slice(from: &[u8]) -> Option<Inline> {
        let mut inline = Inline::NONE;
        (inline.append(from) == from.len()).then_some(inline)
    }

    /// Adds as many of the bytes as fit, and returns how many.
    #[inline]
    pub(crate) fn append(&mut self, from: &[u8]) -> usize {
        let start = self.as_slice().len();
        let len = from.len().min(INLINE_BYTES - start);
        self.bytes[start..start + len].copy_from_slice(&from[..len]);
        self.len = (start + len) as u8;
        len
    }

    /// The bytes.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len).min(INLINE_BYTES)]
    }

    /// Number of bytes.
    #[inline]
    #[allow(clippy::len_without_is_empty)] // whether there are any is not asked for by itself
    pub fn len(&self) -> usize {
        usize::from(self.len)
    }

    #[inline]
    fn words(&self) -> [u64; INLINE_WORDS] {
        let mut words = [0; INLINE_WORDS];
        for (word, bytes) in words.iter_mut().zip(self.bytes.as_chunks().0) {
            *word = u64::from_ne_bytes(*bytes);
        }
        words
    }

    #[inline]
    fn from_words(words: [u64; INLINE_WORDS], len: u8) -> Inline {
        let mut bytes = [0; INLINE_BYTES];
        for (bytes, word) in bytes.as_chunks_mut().0.iter_mut().zip(words) {
            *bytes = word.to_ne_bytes();
        }
        Inline { bytes, len }
    }
}

/// A submission as it stands in a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RawSubmission {
    pub(super) op: SubmissionOp,
    pub(super) slot: u16,
    pub(super) generation: u16,
    pub(super) prepared: u64,
    pub(super) consumed: u64,
    pub(super) inline: Inline,
}

impl RawSubmission {
    #[inline]
    pub(super) fn emit(&self) -> Words {
        let op: u64 = match self.op {
            SubmissionOp::Kick => 1,
            SubmissionOp::Urgent => 2,
            SubmissionOp::ShutdownWrite => 3,
            SubmissionOp::Close => 4,
            SubmissionOp::Abort => 5,
        };
        let word = op | first_word(self.inline.len, self.slot, self.generation);
        let [a, b, c, d] = self.inline.words();
        [word, self.prepared, self.consumed, a, b, c, d]
    }

    #[inline]
    pub(super) fn parse(words: &Words) -> Result<RawSubmission, Violation> {
        let [word, prepared, consumed, a, b, c, d] = *words;
        let op = match word as u8 {
            1 => SubmissionOp::Kick,
            2 => SubmissionOp::Urgent,
            3 => SubmissionOp::ShutdownWrite,
            4 => SubmissionOp::Close,
            5 => SubmissionOp::Abort,
            _ => return Err(Violation::BadEntry { word }),
        };
        let (len, slot, generation, rest) = split_first_word(word);
        if rest != 0 || usize::from(len) > INLINE_BYTES {
            return Err(Violation::BadEntry { word });
        }
        let inline = Inline::from_words([a, b, c, d], len);
        Ok(RawSubmission {
            op,
            slot,
            generation,
            prepared,
            consumed,
            inline,
        })
    }
}

/// An event as it stands in a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RawEvent {
    pub(super) slot: u16,
    pub(super) generation: u16,
    pub(super) state: SlotState,
    pub(super) produced: u64,
    pub(super) reclaimed: u64,
    pub(super) inline: Inline,
}

impl RawEvent {
    #[inline]
    pub(super) fn emit(&self) -> Words {
        let word = first_word(self.inline.len, self.slot, self.generation)
            | u64::from(self.state.bits()) << 48;
        let [a, b, c, d] = self.inline.words();
        [word, self.produced, self.reclaimed, a, b, c, d]
    }

    #[inline]
    pub(super) fn parse(words: &Words) -> RawEvent {
        let [word, produced, reclaimed, a, b, c, d] = *words;
        let (len, slot, generation, state) = split_first_word(word);
        let inline = Inline::from_words([a, b, c, d], len.min(INLINE_BYTES as u8));
        let state = SlotState::from_bits(state);
        RawEvent {
            slot,
            generation,
            state,
            produced,
            reclaimed,
            inline,
        }
    }
}

#[inline]
fn first_word(len: u8, slot: u16, generation: u16) -> u64 {
    u64::from(len) << 8 | u64::from(slot) << 16 | u64::from(generation) << 32
}

/// Inline length, slot, generation, and the highest 16 bits.
#[inline]
fn split_first_word(word: u64) -> (u8, u16, u16, u16) {
    (
        (word >> 8) as u8,
        (word >> 16) as u16,
        (word >> 32) as u16,
        (word >> 48) as u16,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn inline() -> impl Strategy<Value = Inline> {
        prop::collection::vec(any::<u8>(), 0..=INLINE_BYTES)
            .prop_map(|bytes| Inline::from_slice(&bytes).expect("not too long"))
    }

    fn op() -> impl Strategy<Value = SubmissionOp> {
        prop_oneof![
            Just(SubmissionOp::Kick),
            Just(SubmissionOp::Urgent),
            Just(SubmissionOp::ShutdownWrite),
            Just(SubmissionOp::Close),
            Just(SubmissionOp::Abort),
        ]
    }

    proptest! {
        #[test]
        fn submission_round_trips(
            op in op(), slot: u16, generation: u16, prepared: u64, consumed: u64, inline in inline(),
        ) {
            let raw = RawSubmission { op, slot, generation, prepared, consumed, inline };
            prop_assert_eq!(RawSubmission::parse(&raw.emit()), Ok(raw));
        }

        #[test]
        fn event_round_trips(
            slot: u16, generation: u16, state: u16, produced: u64, reclaimed: u64,
            inline in inline(),
        ) {
            let state = SlotState::from_bits(state);
            let raw = RawEvent { slot, generation, state, produced, reclaimed, inline };
            prop_assert_eq!(RawEvent::parse(&raw.emit()), raw);
        }

        #[test]
        fn any_words_parse_or_are_refused(words: Words) {
            if let Ok(raw) = RawSubmission::parse(&words) {
                prop_assert!(raw.inline.len() <= INLINE_BYTES);
                prop_assert_eq!(raw.emit(), words);
            }
            let event = RawEvent::parse(&words);
            prop_assert!(event.inline.as_slice().len() <= INLINE_BYTES);
        }
    }

    #[test]
    fn inline_takes_what_fits_and_no_more() {
        let bytes: Vec<u8> = (0..40).collect();
        let mut inline = Inline::from_slice(&bytes[..20]).expect("fits");
        assert_eq!(inline.append(&bytes[20..33]), 12);
        assert_eq!(inline.as_slice(), &bytes[..32]);
        assert_eq!(inline.append(&bytes), 0);
        assert_eq!(Inline::from_slice(&bytes[..33]), None);
        assert_eq!(Inline::from_slice(&[]), Some(Inline::NONE));
    }
}
