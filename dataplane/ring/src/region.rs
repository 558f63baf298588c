//! What an adapter registers: shared or private memory, behind one face.

use crate::error::AccessError;
use crate::pool::Pool;
use crate::segment::{PageKind, RawMemory, Segment};

/// A segment or a pool. Clones share the memory, and it lives as long as any of them.
#[derive(Debug, Clone)]
pub enum Region {
    /// Memory that another process may also map.
    Shared(Segment),
    /// Memory of this process alone.
    Private(Pool),
}

impl Region {
    /// Number of bytes.
    #[inline]
    #[allow(clippy::len_without_is_empty)] // a region is never empty
    pub fn len(&self) -> usize {
        match self {
            Region::Shared(segment) => segment.len(),
            Region::Private(pool) => pool.len(),
        }
    }

    /// Virtual address of byte 0 in this process.
    #[inline]
    pub fn addr(&self) -> u64 {
        match self {
            Region::Shared(segment) => segment.addr(),
            Region::Private(pool) => pool.addr(),
        }
    }

    /// The pages the region is made of.
    pub fn page_kind(&self) -> PageKind {
        match self {
            Region::Shared(segment) => segment.page_kind(),
            Region::Private(pool) => pool.page_kind(),
        }
    }

    /// Copies `from` to `offset`.
    ///
    /// # Errors
    ///
    /// [`AccessError::OutOfBounds`], [`AccessError::ReadOnly`]; nothing is copied then.
    #[inline]
    pub fn copy_in(&self, offset: usize, from: &[u8]) -> Result<(), AccessError> {
        match self {
            Region::Shared(segment) => segment.copy_in(offset, from),
            Region::Private(pool) => pool.copy_in(offset, from),
        }
    }

    /// Copies the bytes at `offset` into `into`.
    ///
    /// # Errors
    ///
    /// [`AccessError::OutOfBounds`]; nothing is copied then.
    #[inline]
    pub fn copy_out(&self, offset: usize, into: &mut [u8]) -> Result<(), AccessError> {
        self.memory().copy_out(offset, into)
    }

    /// Copies `len` bytes at `source_offset` of `source` to `offset`. Overlap is allowed and
    /// behaves as if the bytes went through a buffer of their own.
    ///
    /// # Errors
    ///
    /// [`AccessError::OutOfBounds`] for either side, [`AccessError::ReadOnly`] for this one;
    /// nothing is copied then.
    #[inline]
    pub fn copy_from(
        &self,
        offset: usize,
        source: &Region,
        source_offset: usize,
        len: usize,
    ) -> Result<(), AccessError> {
        let to = match self {
            Region::Shared(segment) => segment.writable_memory()?,
            Region::Private(pool) => pool.memory(),
        };
        to.copy_from(offset, source.memory(), source_offset, len)
    }

    #[inline(always)]
    fn memory(&self) -> &RawMemory {
        match self {
            Region::Shared(segment) => segment.memory(),
            Region::Private(pool) => pool.memory(),
        }
    }
}

impl From<Segment> for Region {
    fn from(segment: Segment) -> Region {
        Region::Shared(segment)
    }
}

impl From<Pool> for Region {
    fn from(pool: Pool) -> Region {
        Region::Private(pool)
    }
}
