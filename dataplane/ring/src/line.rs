//! A ring of 64-byte lines in memory that the other side may see or scribble.
//!
//! A line is eight words. Words 0 to 6 are payload; word 7 is the sequence number, stored last, so
//! that each line is complete in itself and one transfer of a cache line carries a message and its
//! announcement. Lines are counted from the beginning of the ring's life: line n stands at
//! position n modulo the number of lines and has sequence number n + 1, so a ring of zeros is
//! empty and nobody ever clears a line.
//!
//! ```text
//!            position 0        position 1        position 2        position 3
//!          +--------------+  +--------------+  +--------------+  +--------------+
//!          | payload | s 5|  | payload | s 6|  | payload | s 3|  | payload | s 4|
//!          +--------------+  +--------------+  +--------------+  +--------------+
//!                              ^ line 5, the      ^ line 2, read long ago; line 6
//!                                newest one         comes here when its reader's
//!                                                   count has passed 2
//! ```
//!
//! 1. The writer never stores into a line that the reader's count has not passed. It learns the
//!    count lazily, by [`LineWriter::refresh`], when it runs out of lines.
//! 2. The reader takes a line only when its sequence number is exactly the expected one.
//! 3. Neither side believes the other: a wrong sequence number is an empty ring, and a count that
//!    goes back or runs ahead is refused and reported.
//!
//! Where the reader's count lives is the caller's affair, and so is waking a sleeping reader.

use core::fmt;

use crate::error::AccessError;
use crate::segment::{Lines, ReadLines, Segment};
use crate::sync::{Ordering, fence};

/// Bytes of a line.
pub const LINE_BYTES: usize = 64;
/// Words of a line, the sequence number included.
pub const LINE_WORDS: usize = LINE_BYTES / 8;
/// Payload bytes of a line.
pub const LINE_PAYLOAD: usize = PAYLOAD_WORDS * 8;

const PAYLOAD_WORDS: usize = LINE_WORDS - 1;
const SEQUENCE: usize = PAYLOAD_WORDS;

/// Memory made of lines that can be read: a power of two of them, found by position.
///
/// Positions count on for ever; the memory reduces them. It is a trait so that the model checker
/// can put its own words in the place of shared memory.
pub trait LineSource {
    /// Number of lines, a power of two.
    fn lines(&self) -> usize;
    /// Loads a word (0 to 7), relaxed.
    fn load(&self, position: u64, word: usize) -> u64;
}

/// Memory made of lines that can also be written.
pub trait LineSink: LineSource {
    /// Stores a word (0 to 7), relaxed.
    fn store(&self, position: u64, word: usize, value: u64);
    /// Stores a word (0 to 7) after everything stored before.
    fn store_release(&self, position: u64, word: usize, value: u64);
    /// Hints that another core will read the line soon.
    fn demote(&self, position: u64);
    /// Hints that this core will write the line soon.
    fn prefetch(&self, position: u64);
}

/// A reader's count that no honest reader can have; it was ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadViolation {
    /// The count that was read.
    pub head: u64,
    /// The last count that was accepted.
    pub accepted: u64,
    /// Lines written so far, the most the count can be.
    pub written: u64,
}

impl fmt::Display for HeadViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the reader says that it has read {} lines; it must be between {} and {}",
            self.head, self.accepted, self.written
        )
    }
}

impl core::error::Error for HeadViolation {}

/// The writing end of a line ring.
#[derive(Debug)]
pub struct LineWriter<M = Lines> {
    memory: M,
    next: u64,
    head: u64,
    demoted: u64,
}

impl LineWriter {
    /// A writer of the empty ring of `lines` lines at `offset`, whose bytes must be zero.
    ///
    /// # Errors
    ///
    /// As [`Segment::lines`].
    pub fn new(segment: Segment, offset: usize, lines: usize) -> Result<LineWriter, AccessError> {
        Ok(LineWriter::over(segment.lines(offset, lines)?))
    }
}

impl<M: LineSink> LineWriter<M> {
    /// A writer of an empty ring, over any memory.
    pub fn over(memory: M) -> LineWriter<M> {
        LineWriter {
            memory,
            next: 0,
            head: 0,
            demoted: 0,
        }
    }

    /// Number of lines of the ring.
    #[inline(always)]
    pub fn capacity(&self) -> usize {
        self.memory.lines()
    }

    /// Lines that may be written now, by the last count that [`LineWriter::refresh`] accepted.
    #[inline(always)]
    pub fn free(&self) -> usize {
        self.memory.lines() - (self.next - self.head) as usize
    }

    /// Takes note of the reader's count, which the caller has read with acquire order.
    ///
    /// # Errors
    ///
    /// [`HeadViolation`] if the count goes back or runs ahead of what was written; the old one
    /// stays.
    #[inline]
    pub fn refresh(&mut self, head: u64) -> Result<(), HeadViolation> {
        if head < self.head || head > self.next {
            return Err(HeadViolation {
                head,
                accepted: self.head,
                written: self.next,
            });
        }
        self.head = head;
        Ok(())
    }

    /// Writes the next line. The reader can see it at once.
    ///
    /// Writing with [`LineWriter::free`] at 0 destroys a line that was not read; that is a mistake
    /// of the caller, caught in debug builds.
    #[inline(always)]
    pub fn write(&mut self, payload: &[u64; PAYLOAD_WORDS]) {
        debug_assert!(self.free() > 0, "line ring is full");
        for (word, value) in payload.iter().enumerate() {
            self.memory.store(self.next, word, *value);
        }
        let sequence = self.next + 1;
        self.memory.store_release(self.next, SEQUENCE, sequence);
        self.next = sequence;
    }

    /// Hints that the reader will soon read the lines written since the last call. It makes a
    /// single message faster and a stream slower.
    #[inline(always)]
    pub fn demote_last(&mut self) {
        while self.demoted != self.next {
            self.memory.demote(self.demoted);
            self.demoted += 1;
        }
    }

    /// Lets [`LineWriter::demote_last`] pass over the lines written so far.
    #[inline(always)]
    pub fn skip_demotion(&mut self) {
        self.demoted = self.next;
    }

    /// Hints that the next line will soon be written.
    #[inline(always)]
    pub fn prefetch_next(&self) {
        self.memory.prefetch(self.next);
    }

    /// Lines written in the ring's life.
    #[inline(always)]
    pub fn written(&self) -> u64 {
        self.next
    }
}

/// The reading end of a line ring.
#[derive(Debug)]
pub struct LineReader<M = ReadLines> {
    memory: M,
    next: u64,
}

impl LineReader {
    /// A reader, from the first line on, of the ring of `lines` lines at `offset`.
    ///
    /// # Errors
    ///
    /// As [`Segment::read_lines`].
    pub fn new(segment: Segment, offset: usize, lines: usize) -> Result<LineReader, AccessError> {
        Ok(LineReader::over(segment.read_lines(offset, lines)?))
    }
}

impl<M: LineSource> LineReader<M> {
    /// A reader from the first line on, over any memory.
    pub fn over(memory: M) -> LineReader<M> {
        LineReader { memory, next: 0 }
    }

    /// Number of lines of the ring.
    #[inline(always)]
    pub fn capacity(&self) -> usize {
        self.memory.lines()
    }

    /// A copy of the next line's payload if it has been written.
    #[inline(always)]
    pub fn peek(&self) -> Option<[u64; PAYLOAD_WORDS]> {
        self.peek_at(0)
    }

    /// A copy of the payload of the line `ahead` lines after the next one, if it has been written.
    ///
    /// With an honest writer nothing from `ahead` = capacity on is ever there.
    #[inline(always)]
    pub fn peek_at(&self, ahead: usize) -> Option<[u64; PAYLOAD_WORDS]> {
        let position = self.next.wrapping_add(ahead as u64);
        if self.memory.load(position, SEQUENCE) != position.wrapping_add(1) {
            return None;
        }
        fence(Ordering::Acquire);
        let mut payload = [0; PAYLOAD_WORDS];
        for (word, value) in payload.iter_mut().enumerate() {
            *value = self.memory.load(position, word);
        }
        Some(payload)
    }

    /// Passes `lines` lines. The writer learns of it when the caller publishes
    /// [`LineReader::read_count`], with release order, after the last peek at those lines.
    #[inline(always)]
    pub fn advance(&mut self, lines: usize) {
        self.next = self.next.wrapping_add(lines as u64);
    }

    /// Lines passed in the ring's life.
    #[inline(always)]
    pub fn read_count(&self) -> u64 {
        self.next
    }
}
