//! What can go wrong with memory, one type for each operation.

use rustix::io::Errno;
use thiserror::Error;

/// Why an access to a [`crate::Segment`], [`crate::Pool`] or [`crate::Region`] was refused.
///
/// Nothing was read or written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum AccessError {
    /// The bytes do not lie inside the memory.
    #[error("{len} bytes at offset {offset} lie outside a memory of {memory} bytes")]
    OutOfBounds {
        /// First byte asked for.
        offset: usize,
        /// Number of bytes asked for.
        len: usize,
        /// Number of bytes the memory has.
        memory: usize,
    },
    /// The segment is mapped read-only, and the operation writes or hands out a way to write.
    #[error("the segment is mapped read-only; map it with Access::ReadWrite to write")]
    ReadOnly,
    /// An atomic word or a line ring does not start where it must.
    #[error("offset {offset} is not a multiple of {alignment}")]
    Misaligned {
        /// The offset asked for.
        offset: usize,
        /// What it must be a multiple of, in bytes.
        alignment: usize,
    },
    /// A line ring must have a power of two of lines.
    #[error("a ring of {lines} lines is impossible; the number must be a power of two")]
    LineCount {
        /// The number of lines asked for.
        lines: usize,
    },
}

/// Why a [`crate::Segment`] could not be created or mapped.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SegmentError {
    /// The name holds a NUL byte or is too long for the kernel (249 bytes).
    #[error("'{}' is no name for a segment: at most 249 bytes and no NUL byte", name.escape_debug())]
    Name {
        /// The name.
        name: String,
    },
    /// A segment needs at least one byte, and must fit into the address space.
    #[error("a segment of {bytes} bytes is impossible; ask for 1 byte to 2^47 bytes")]
    Size {
        /// The number of bytes asked for.
        bytes: usize,
    },
    /// `Pages::Required`, and the kernel's pool has too few hugepages.
    #[error(
        "hugepages are required, but {bytes} bytes need {need} pages of 2 MiB and only {have} are \
         free; raise vm.nr_hugepages (sysctl) or set hugepages = \"auto\""
    )]
    HugepagesMissing {
        /// The number of bytes asked for.
        bytes: usize,
        /// Pages needed.
        need: usize,
        /// Pages free and not reserved.
        have: usize,
    },
    /// A system call failed.
    #[error("cannot {step} a segment of {bytes} bytes: {errno}")]
    System {
        /// What was being done: "create", "size", "map", "seal", "inspect".
        step: &'static str,
        /// The size of the segment, 0 when it is not known yet.
        bytes: usize,
        /// The kernel's answer.
        errno: Errno,
    },
    /// The descriptor got from another process is not sealed, so its size could change under us.
    #[error(
        "the descriptor is no sealed memfd (seals {seals:#x}; SEAL, SHRINK and GROW are needed); \
         its size could change while it is mapped"
    )]
    NotSealed {
        /// The seals found, as `fcntl(F_GET_SEALS)` gives them; 0 if the descriptor has none.
        seals: u32,
    },
    /// The descriptor got from another process has a size that is zero, not a multiple of the
    /// page, or larger than the caller accepts.
    #[error(
        "the segment has {bytes} bytes; expected a multiple of {page_bytes} from {page_bytes} \
         to {bytes_max}"
    )]
    WrongSize {
        /// Its size.
        bytes: u64,
        /// What the size must be a multiple of.
        page_bytes: usize,
        /// The most the caller accepts.
        bytes_max: usize,
    },
}

/// Why a [`crate::Pool`] could not be created.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PoolError {
    /// A pool needs at least one byte, and must fit into the address space.
    #[error("a pool of {bytes} bytes is impossible; ask for 1 byte to 2^47 bytes")]
    Size {
        /// The number of bytes asked for.
        bytes: usize,
    },
    /// `Pages::Required`, and the kernel's pool has too few hugepages.
    #[error(
        "hugepages are required, but {bytes} bytes need {need} pages of 2 MiB and only {have} are \
         free; raise vm.nr_hugepages (sysctl) or set hugepages = \"auto\""
    )]
    HugepagesMissing {
        /// The number of bytes asked for.
        bytes: usize,
        /// Pages needed.
        need: usize,
        /// Pages free and not reserved.
        have: usize,
    },
    /// The kernel gave no memory.
    #[error("cannot map {bytes} bytes of private memory: {errno}")]
    Map {
        /// The number of bytes asked for.
        bytes: usize,
        /// The kernel's answer.
        errno: Errno,
    },
}
