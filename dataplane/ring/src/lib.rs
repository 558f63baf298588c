//! Memory that two threads, two processes or an adapter share, and the rings that live in it.
//!
//! # What is here
//!
//! - [`Segment`]: a sealed memfd mapped into this process, to be shared with another one.
//! - [`Pool`]: memory of this process alone (receive slots, work requests), on hugepages if there
//!   are any.
//! - [`Region`]: either of them, as an adapter registers it.
//! - [`LineWriter`] and [`LineReader`]: a ring of 64-byte lines, each complete in itself.
//! - [`SleepFlag`] and [`SleepView`]: how one side says that it sleeps and the other finds out
//!   without a lost wake-up.
//! - [`Wake`] and [`wake_channel`]: file descriptors that end a sleep.
//! - [`spsc`]: a bounded ring of values between two threads of one process.
//! - [`neighbour`]: whether the process at the other end of a Unix socket may share memory with us.
//! - [`counters`]: numbers with one writer and many readers.
//!
//! # The rule about shared memory
//!
//! No reference to shared bytes is ever formed. Bytes are copied in and out by raw pointers, and
//! words are read and written as atomics. Whoever reads what another process writes copies first
//! and judges the copy.
//!
//! Everything here is about memory of one host: words have the byte order of the machine.

pub mod counters;
mod error;
#[allow(unsafe_code)] // cache hints are instructions without a Rust spelling
pub mod hint;
mod hugepages;
mod line;
pub mod neighbour;
#[allow(unsafe_code)] // wraps an allocator with raw pointers
mod pool;
mod region;
#[allow(unsafe_code)] // mmap, and copies in memory that others write
mod segment;
mod sleep;
pub mod spsc;
mod sync;
mod wake;

pub use error::{AccessError, PoolError, SegmentError};
pub use hugepages::{HUGEPAGE_BYTES, HugepageInfo, hugepages_below, hugepages_free};
pub use line::{
    HeadViolation, LINE_BYTES, LINE_PAYLOAD, LINE_WORDS, LineReader, LineSink, LineSource,
    LineWriter,
};
pub use pool::Pool;
pub use region::Region;
pub use segment::{Access, Lines, PageKind, Pages, ReadLines, ReadWord, Segment, Word};
pub use sleep::{SleepFlag, SleepView, WordSink, WordSource};
pub use wake::{Wake, WakeError, WakeReceiver, WakeSender, WakeSet, wake_channel};
