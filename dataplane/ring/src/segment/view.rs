//! Words and lines inside a segment, as handles that keep the mapping alive.
//!
//! Bounds and alignment are checked once, when a handle is made; positions are masked, so that an
//! access can never leave the ring and needs no check. Handles that only load exist for read-only
//! mappings. Loads are relaxed, with a fence where order matters: on memory that is mapped
//! read-only this is the kind of atomic load that is always allowed, and on x86-64 the fence is no
//! instruction.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::Segment;
use crate::error::AccessError;
use crate::hint;
use crate::line::{LINE_BYTES, LINE_WORDS, LineSink, LineSource};
use crate::sleep::{WordSink, WordSource};

/// A shared word that this process may load and store.
#[derive(Debug, Clone)]
pub struct Word {
    read: ReadWord,
}

/// A shared word that this process only loads.
#[derive(Debug, Clone)]
pub struct ReadWord {
    word: NonNull<u64>,
    _keeps_mapped: Segment,
}

// SAFETY: the pointer leads into the mapping that the segment beside it keeps alive, and is used
// only for atomic accesses.
unsafe impl Send for ReadWord {}
// SAFETY: as for Send; atomic accesses may come from any number of threads.
unsafe impl Sync for ReadWord {}

impl ReadWord {
    pub(super) fn new(segment: Segment, offset: usize) -> Result<ReadWord, AccessError> {
        Ok(ReadWord {
            word: segment.memory.aligned(offset, 1)?,
            _keeps_mapped: segment,
        })
    }

    /// The word's value, without order against other accesses.
    #[inline(always)]
    pub fn load(&self) -> u64 {
        self.atomic().load(Ordering::Relaxed)
    }

    /// The word's value; what its writer stored before it, and this thread reads after it, is seen.
    #[inline(always)]
    pub fn load_acquire(&self) -> u64 {
        let value = self.load();
        fence(Ordering::Acquire);
        value
    }

    #[inline(always)]
    fn atomic(&self) -> &AtomicU64 {
        // SAFETY: checked to be inside the mapping and aligned when the handle was made; the
        // mapping lives as long as the handle.
        unsafe { AtomicU64::from_ptr(self.word.as_ptr()) }
    }
}

impl Word {
    pub(super) fn new(segment: Segment, offset: usize) -> Result<Word, AccessError> {
        Ok(Word {
            read: ReadWord::new(segment, offset)?,
        })
    }

    /// The word's value, without order against other accesses.
    #[inline(always)]
    pub fn load(&self) -> u64 {
        self.read.load()
    }

    /// The word's value; what its writer stored before it, and this thread reads after it, is seen.
    #[inline(always)]
    pub fn load_acquire(&self) -> u64 {
        self.read.load_acquire()
    }

    /// Stores a value, without order against other accesses.
    #[inline(always)]
    pub fn store(&self, value: u64) {
        self.read.atomic().store(value, Ordering::Relaxed);
    }

    /// Stores a value; whoever sees it also sees what this thread stored before.
    #[inline(always)]
    pub fn store_release(&self, value: u64) {
        self.read.atomic().store(value, Ordering::Release);
    }
}

impl WordSource for ReadWord {
    #[inline(always)]
    fn load(&self) -> u64 {
        ReadWord::load(self)
    }
}

impl WordSource for Word {
    #[inline(always)]
    fn load(&self) -> u64 {
        Word::load(self)
    }
}

impl WordSink for Word {
    #[inline(always)]
    fn store(&self, value: u64) {
        Word::store(self, value);
    }
}

/// Lines of a segment that this process only loads.
#[derive(Debug, Clone)]
pub struct ReadLines {
    base: NonNull<u64>,
    mask: usize,
    _keeps_mapped: Segment,
}

/// Lines of a segment that this process may load and store.
#[derive(Debug, Clone)]
pub struct Lines {
    read: ReadLines,
}

// SAFETY: the pointer leads into the mapping that the segment beside it keeps alive, and is used
// only for atomic accesses.
unsafe impl Send for ReadLines {}
// SAFETY: as for Send; atomic accesses may come from any number of threads.
unsafe impl Sync for ReadLines {}

impl ReadLines {
    pub(super) fn new(
        segment: Segment,
        offset: usize,
        lines: usize,
    ) -> Result<ReadLines, AccessError> {
        if !lines.is_power_of_two() {
            return Err(AccessError::LineCount { lines });
        }
        if !offset.is_multiple_of(LINE_BYTES) {
            return Err(AccessError::Misaligned {
                offset,
                alignment: LINE_BYTES,
            });
        }
        let base = segment
            .memory
            .aligned(offset, lines.saturating_mul(LINE_WORDS))?;
        Ok(ReadLines {
            base,
            mask: lines - 1,
            _keeps_mapped: segment,
        })
    }

    /// The word, wherever `position` stands on its way round and round.
    #[inline(always)]
    fn atomic(&self, position: u64, word: usize) -> &AtomicU64 {
        let index = (position as usize & self.mask) * LINE_WORDS + (word % LINE_WORDS);
        let pointer = self.base.as_ptr().wrapping_add(index);
        // SAFETY: the line is masked to the number of lines and the word to those of a line, and
        // all of these were checked to be inside the mapping and aligned when the handle was made;
        // the mapping lives as long as the handle.
        unsafe { AtomicU64::from_ptr(pointer) }
    }
}

impl LineSource for ReadLines {
    #[inline(always)]
    fn lines(&self) -> usize {
        self.mask + 1
    }

    #[inline(always)]
    fn load(&self, position: u64, word: usize) -> u64 {
        self.atomic(position, word).load(Ordering::Relaxed)
    }
}

impl Lines {
    pub(super) fn new(segment: Segment, offset: usize, lines: usize) -> Result<Lines, AccessError> {
        Ok(Lines {
            read: ReadLines::new(segment, offset, lines)?,
        })
    }
}

impl LineSource for Lines {
    #[inline(always)]
    fn lines(&self) -> usize {
        self.read.lines()
    }

    #[inline(always)]
    fn load(&self, position: u64, word: usize) -> u64 {
        self.read.load(position, word)
    }
}

impl LineSink for Lines {
    #[inline(always)]
    fn store(&self, position: u64, word: usize, value: u64) {
        self.read
            .atomic(position, word)
            .store(value, Ordering::Relaxed);
    }

    #[inline(always)]
    fn store_release(&self, position: u64, word: usize, value: u64) {
        self.read
            .atomic(position, word)
            .store(value, Ordering::Release);
    }

    #[inline(always)]
    fn demote(&self, position: u64) {
        hint::cldemote(self.read.atomic(position, 0).as_ptr().cast());
    }

    #[inline(always)]
    fn prefetch(&self, position: u64) {
        hint::prefetchw(self.read.atomic(position, 0).as_ptr().cast());
    }
}
