//! Where everything lies in the memory of a session.
//!
//! One segment for each session, created by the appliance and mapped by both sides. Each word that
//! one side stores and the other polls has a pair of cache lines of its own, so that neither a
//! neighbour nor the prefetcher of neighbours takes it away.
//!
//! ```text
//!      0  header: magic, version, shape                      (appliance, once)
//!    128  program sleeps                                     (program)
//!    256  worker sleeps                                      (worker)
//!    384  submissions taken                                  (worker)
//!    512  events taken                                       (program)
//!   1024  submission lines                                   (program)
//!      .  event lines                                        (worker)
//!      .  sndbuf of slot 0, 1, 2, ...  from a multiple of 4096 (program; the worker's inline bytes)
//!      .  RMBE of slot 0, 1, 2, ...                          (adapter)
//! ```
//!
//! The worker takes the layout from control and never looks at the header again, so what a program
//! writes into it is without effect. The program checks the header before it believes it.

use pollux_ring::{AccessError, LINE_BYTES, Pages, Segment, SegmentError};
use thiserror::Error;

/// "POLLUXAT" in the byte order of the machine.
const MAGIC: u64 = u64::from_le_bytes(*b"POLLUXAT");

/// Version of the memory layout and of the control protocol; both sides must have the same.
pub const VERSION: u32 = 1;

/// Most slots of a session.
pub const SLOTS_MAX: u16 = 4096;
/// Smallest sndbuf or RMBE, in bytes.
pub const BUFFER_BYTES_MIN: u32 = 4096;
/// Largest sndbuf or RMBE, in bytes.
pub const BUFFER_BYTES_MAX: u32 = 64 << 20;
/// Size of sndbufs and RMBEs unless something else is asked for, in bytes.
pub const BUFFER_BYTES_DEFAULT: u32 = 64 << 10;

pub(crate) const PROGRAM_SLEEPS: usize = 128;
pub(crate) const WORKER_SLEEPS: usize = 256;
pub(crate) const SUBMISSIONS_TAKEN: usize = 384;
pub(crate) const EVENTS_TAKEN: usize = 512;
const SUBMISSION_LINES_AT: usize = 1024;
const BUFFER_ALIGNMENT: usize = 4096;
const HEADER_WORDS: usize = 6;

/// What a session's memory is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    slots: u16,
    sndbuf_bytes: u32,
    rmbe_bytes: u32,
}

/// A shape that no session can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ShapeError {
    /// The number of slots.
    #[error("a session cannot have {slots} slots; ask for 1 to {SLOTS_MAX}")]
    Slots {
        /// The number asked for.
        slots: u16,
    },
    /// The size of a buffer.
    #[error(
        "a {buffer} cannot have {bytes} bytes; ask for a power of two from {BUFFER_BYTES_MIN} to \
         {BUFFER_BYTES_MAX}"
    )]
    Buffer {
        /// "sndbuf" or "RMBE".
        buffer: &'static str,
        /// The size asked for.
        bytes: u32,
    },
}

impl Shape {
    /// A session of `slots` connections at a time, with a sndbuf and an RMBE of these sizes each.
    ///
    /// # Errors
    ///
    /// [`ShapeError`] unless there is a slot, not more than [`SLOTS_MAX`], and the sizes are powers
    /// of two from [`BUFFER_BYTES_MIN`] to [`BUFFER_BYTES_MAX`].
    pub fn new(slots: u16, sndbuf_bytes: u32, rmbe_bytes: u32) -> Result<Shape, ShapeError> {
        if slots == 0 || slots > SLOTS_MAX {
            return Err(ShapeError::Slots { slots });
        }
        for (buffer, bytes) in [("sndbuf", sndbuf_bytes), ("RMBE", rmbe_bytes)] {
            let in_range = (BUFFER_BYTES_MIN..=BUFFER_BYTES_MAX).contains(&bytes);
            if !in_range || !bytes.is_power_of_two() {
                return Err(ShapeError::Buffer { buffer, bytes });
            }
        }
        Ok(Shape {
            slots,
            sndbuf_bytes,
            rmbe_bytes,
        })
    }

    /// Connections that the session can have at a time.
    pub fn slots(&self) -> u16 {
        self.slots
    }

    /// Bytes of each sndbuf, a power of two.
    pub fn sndbuf_bytes(&self) -> u32 {
        self.sndbuf_bytes
    }

    /// Bytes of each RMBE, a power of two.
    pub fn rmbe_bytes(&self) -> u32 {
        self.rmbe_bytes
    }
}

/// Why a segment is not believed to be the memory of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum HeaderError {
    /// It does not start with the mark of a session.
    #[error("the segment starts with {found:#018x} and is no session memory")]
    Magic {
        /// Its first word.
        found: u64,
    },
    /// The two sides come from different versions.
    #[error(
        "the session memory has version {found}, this program knows version {VERSION}; use the \
         library that came with the appliance"
    )]
    Version {
        /// Version found.
        found: u64,
    },
    /// Its shape is impossible.
    #[error("the session memory has an impossible shape: {0}")]
    Shape(#[from] ShapeError),
    /// A word that must be small is not.
    #[error("the session memory has {found} for its {what}")]
    Number {
        /// What the word stands for.
        what: &'static str,
        /// The word.
        found: u64,
    },
    /// The segment is too small for what its header says.
    #[error("a session of this shape needs {need} bytes, the segment has {have}")]
    TooSmall {
        /// Bytes that the shape needs.
        need: usize,
        /// Bytes of the segment.
        have: usize,
    },
    /// The segment cannot be read or written as a session needs it.
    #[error("the session memory cannot be used: {0}")]
    Access(#[from] AccessError),
}

/// Offsets of everything in a session's memory, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    shape: Shape,
    event_lines_at: usize,
    sndbufs_at: usize,
    rmbes_at: usize,
    bytes: usize,
}

impl Layout {
    /// The layout of a session of this shape.
    pub fn of(shape: Shape) -> Layout {
        // Sizes are bounded by the shape: at most 2^12 slots of 2^27 bytes.
        let slots = usize::from(shape.slots);
        let submissions = submission_lines(shape) * LINE_BYTES;
        let event_lines_at = SUBMISSION_LINES_AT + submissions;
        let lines_end = event_lines_at + event_lines(shape) * LINE_BYTES;
        let sndbufs_at = lines_end.next_multiple_of(BUFFER_ALIGNMENT);
        let rmbes_at = sndbufs_at + slots * shape.sndbuf_bytes as usize;
        let bytes = rmbes_at + slots * shape.rmbe_bytes as usize;
        Layout {
            shape,
            event_lines_at,
            sndbufs_at,
            rmbes_at,
            bytes,
        }
    }

    /// The shape it is the layout of.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Bytes of the whole.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Offset of a slot's sndbuf, `None` for a slot that the session does not have.
    pub fn sndbuf_offset(&self, slot: u16) -> Option<usize> {
        self.place(self.sndbufs_at, slot, self.shape.sndbuf_bytes)
    }

    /// Offset of a slot's RMBE, `None` for a slot that the session does not have.
    pub fn rmbe_offset(&self, slot: u16) -> Option<usize> {
        self.place(self.rmbes_at, slot, self.shape.rmbe_bytes)
    }

    /// Offset and length of all sndbufs together, to register them at once.
    pub fn sndbufs(&self) -> (usize, usize) {
        (self.sndbufs_at, self.rmbes_at - self.sndbufs_at)
    }

    /// Offset and length of all RMBEs together, to register them at once.
    pub fn rmbes(&self) -> (usize, usize) {
        (self.rmbes_at, self.bytes - self.rmbes_at)
    }

    /// Creates the memory of a session, with its header.
    ///
    /// It is made of base pages whatever the appliance uses elsewhere: the program gets the
    /// descriptor for writing and could punch holes into hugepages, which the worker would then
    /// touch in vain. The kernel may still give transparent hugepages.
    ///
    /// # Errors
    ///
    /// As [`Segment::create`].
    pub fn create_segment(&self, name: &str) -> Result<Segment, SegmentError> {
        let segment = Segment::create(name, self.bytes, Pages::Off)?;
        let header: [u64; HEADER_WORDS] = [
            MAGIC,
            u64::from(VERSION),
            u64::from(self.shape.slots),
            u64::from(self.shape.sndbuf_bytes),
            u64::from(self.shape.rmbe_bytes),
            self.bytes as u64,
        ];
        for (index, word) in header.iter().enumerate() {
            let written = segment.copy_in(index * 8, &word.to_ne_bytes());
            debug_assert_eq!(written, Ok(()), "the segment is larger than its header");
        }
        Ok(segment)
    }

    /// Reads and judges the header of a session's memory.
    ///
    /// # Errors
    ///
    /// [`HeaderError`] unless everything in it fits together and into the segment.
    pub fn read(segment: &Segment) -> Result<Layout, HeaderError> {
        let mut header = [0; HEADER_WORDS];
        for (index, word) in header.iter_mut().enumerate() {
            let mut bytes = [0; 8];
            segment.copy_out(index * 8, &mut bytes)?;
            *word = u64::from_ne_bytes(bytes);
        }
        let [magic, version, slots, sndbuf_bytes, rmbe_bytes, bytes] = header;
        if magic != MAGIC {
            return Err(HeaderError::Magic { found: magic });
        }
        if version != u64::from(VERSION) {
            return Err(HeaderError::Version { found: version });
        }
        let number = |what, found| move |_| HeaderError::Number { what, found };
        let shape = Shape::new(
            u16::try_from(slots).map_err(number("number of slots", slots))?,
            u32::try_from(sndbuf_bytes).map_err(number("sndbuf size", sndbuf_bytes))?,
            u32::try_from(rmbe_bytes).map_err(number("RMBE size", rmbe_bytes))?,
        )?;
        let layout = Layout::of(shape);
        if bytes != layout.bytes as u64 {
            return Err(HeaderError::Number {
                what: "size",
                found: bytes,
            });
        }
        if segment.len() < layout.bytes {
            return Err(HeaderError::TooSmall {
                need: layout.bytes,
                have: segment.len(),
            });
        }
        Ok(layout)
    }

    pub(crate) fn submission_lines(&self) -> (usize, usize) {
        (SUBMISSION_LINES_AT, submission_lines(self.shape))
    }

    pub(crate) fn event_lines(&self) -> (usize, usize) {
        (self.event_lines_at, event_lines(self.shape))
    }

    fn place(&self, area: usize, slot: u16, bytes: u32) -> Option<usize> {
        (slot < self.shape.slots).then(|| area + usize::from(slot) * bytes as usize)
    }
}

/// Room for a few submissions of each slot before a program has to wait for the worker.
fn submission_lines(shape: Shape) -> usize {
    (usize::from(shape.slots) * 4).next_power_of_two().max(256)
}

/// Room for a few events of each slot before news of a slot is merged.
fn event_lines(shape: Shape) -> usize {
    (usize::from(shape.slots) * 2).next_power_of_two().max(256)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(slots: u16, sndbuf: u32, rmbe: u32) -> Shape {
        Shape::new(slots, sndbuf, rmbe).expect("shape")
    }

    #[test]
    fn areas_follow_each_other_without_overlap() {
        for slots in [1, 2, 3, 63, 64, 256, 1000, SLOTS_MAX] {
            let layout = Layout::of(shape(slots, 4096, 8192));
            let (submissions, lines) = layout.submission_lines();
            assert!(submissions >= EVENTS_TAKEN + 128);
            let (events, event_lines) = layout.event_lines();
            assert_eq!(submissions + lines * LINE_BYTES, events);
            let (sndbufs, sndbuf_bytes) = layout.sndbufs();
            assert!(events + event_lines * LINE_BYTES <= sndbufs);
            let (rmbes, rmbe_bytes) = layout.rmbes();
            assert_eq!(sndbufs + sndbuf_bytes, rmbes);
            assert_eq!(rmbes + rmbe_bytes, layout.bytes());
            assert_eq!((sndbufs % 4096, rmbes % 4096), (0, 0));
            let last = slots - 1;
            assert_eq!(layout.sndbuf_offset(last), Some(rmbes - 4096));
            assert_eq!(layout.rmbe_offset(last), Some(layout.bytes() - 8192));
            assert_eq!(layout.sndbuf_offset(slots), None);
            assert_eq!(layout.rmbe_offset(u16::MAX), None);
        }
    }

    #[test]
    fn largest_shape_does_not_overflow() {
        let layout = Layout::of(shape(SLOTS_MAX, BUFFER_BYTES_MAX, BUFFER_BYTES_MAX));
        assert_eq!(
            layout.rmbes().1,
            usize::from(SLOTS_MAX) * BUFFER_BYTES_MAX as usize
        );
    }

    #[test]
    fn impossible_shapes_are_refused_with_the_value() {
        assert_eq!(
            Shape::new(0, 4096, 4096),
            Err(ShapeError::Slots { slots: 0 })
        );
        assert_eq!(
            Shape::new(4097, 4096, 4096),
            Err(ShapeError::Slots { slots: 4097 })
        );
        for bytes in [
            0,
            1,
            2048,
            4095,
            4097,
            3 << 12,
            BUFFER_BYTES_MAX * 2,
            u32::MAX,
        ] {
            let refused = |buffer| Err(ShapeError::Buffer { buffer, bytes });
            assert_eq!(Shape::new(1, bytes, 4096), refused("sndbuf"));
            assert_eq!(Shape::new(1, 4096, bytes), refused("RMBE"));
        }
    }

    #[test]
    fn header_is_read_back() {
        let layout = Layout::of(shape(5, 4096, 65536));
        let segment = layout.create_segment("session").expect("segment");
        assert_eq!(Layout::read(&segment), Ok(layout));
    }

    #[test]
    fn scribbled_header_is_refused_and_never_panics() {
        let layout = Layout::of(shape(5, 4096, 65536));
        for index in 0..HEADER_WORDS {
            for word in [0, 1, 6, 1 << 12, 1 << 20, u64::from(u32::MAX) + 1, u64::MAX] {
                let segment = layout.create_segment("session").expect("segment");
                let mut old = [0; 8];
                segment.copy_out(index * 8, &mut old).expect("inside");
                let scribbled = segment.copy_in(index * 8, &word.to_ne_bytes());
                assert_eq!(scribbled, Ok(()));
                let read = Layout::read(&segment);
                assert_eq!(
                    read.is_err(),
                    word != u64::from_ne_bytes(old),
                    "{index} {word}"
                );
            }
        }
    }

    #[test]
    fn header_that_promises_more_than_the_segment_is_refused() {
        let small = Layout::of(shape(1, 4096, 4096))
            .create_segment("session")
            .expect("segment");
        let large = Layout::of(shape(64, 4096, 4096));
        for (index, word) in [(2, 64), (5, large.bytes() as u64)] {
            small
                .copy_in(index * 8, &u64::to_ne_bytes(word))
                .expect("inside");
        }
        let expected = HeaderError::TooSmall {
            need: large.bytes(),
            have: small.len(),
        };
        assert_eq!(Layout::read(&small), Err(expected));
    }
}
