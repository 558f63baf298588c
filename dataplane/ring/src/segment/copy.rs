//! Copies in memory that others may write at the same time.
//!
//! A copy goes through raw pointers only. Short ones are a handful of unaligned loads, all before
//! the first store, without a call; so they may overlap. A compiler fence on either side of the
//! shared access keeps the compiler from reading shared bytes twice or from looking through the
//! copy at the bytes behind it: what was judged is what is used.

use std::ptr::NonNull;
use std::sync::atomic::{Ordering, compiler_fence};

use crate::error::AccessError;

/// Longest copy that is done without a call, in bytes.
const SHORT_BYTES: usize = 64;

/// Start and length of live memory: the one place where bounds are checked.
///
/// It does not own the memory. Whoever makes one keeps the memory mapped for as long as the value
/// or a copy of it is used.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RawMemory {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: plain memory without ties to a thread; see the type's text for who keeps it alive.
unsafe impl Send for RawMemory {}
// SAFETY: used only through raw copies and atomics, which any number of threads may use at once.
unsafe impl Sync for RawMemory {}

impl RawMemory {
    /// `base` must be the start of `len` mapped bytes, aligned to at least 64.
    pub(crate) fn new(base: NonNull<u8>, len: usize) -> RawMemory {
        debug_assert!(base.addr().get().is_multiple_of(64));
        RawMemory { base, len }
    }

    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[inline(always)]
    pub(crate) fn addr(&self) -> u64 {
        self.base.addr().get() as u64
    }

    /// Pointer to `len` bytes at `offset`, all of them inside the memory.
    #[inline(always)]
    fn span(&self, offset: usize, len: usize) -> Result<*mut u8, AccessError> {
        if offset <= self.len && len <= self.len - offset {
            Ok(self.base.as_ptr().wrapping_add(offset))
        } else {
            Err(AccessError::OutOfBounds {
                offset,
                len,
                memory: self.len,
            })
        }
    }

    /// Pointer to `words` words at `offset`, aligned and inside the memory.
    pub(crate) fn aligned(&self, offset: usize, words: usize) -> Result<NonNull<u64>, AccessError> {
        let len = words.saturating_mul(8);
        let outside = AccessError::OutOfBounds {
            offset,
            len,
            memory: self.len,
        };
        let pointer = NonNull::new(self.span(offset, len)?).ok_or(outside)?;
        if offset.is_multiple_of(8) {
            Ok(pointer.cast())
        } else {
            Err(AccessError::Misaligned {
                offset,
                alignment: 8,
            })
        }
    }

    #[inline(always)]
    pub(crate) fn copy_in(&self, offset: usize, from: &[u8]) -> Result<(), AccessError> {
        let to = self.span(offset, from.len())?;
        // SAFETY: `span` has checked the target; the source is a slice of that length.
        unsafe { copy(from.as_ptr(), to, from.len()) };
        Ok(())
    }

    #[inline(always)]
    pub(crate) fn copy_out(&self, offset: usize, into: &mut [u8]) -> Result<(), AccessError> {
        let from = self.span(offset, into.len())?;
        // SAFETY: `span` has checked the source; the target is a slice of that length.
        unsafe { copy(from, into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    #[inline(always)]
    pub(crate) fn copy_from(
        &self,
        offset: usize,
        source: &RawMemory,
        source_offset: usize,
        len: usize,
    ) -> Result<(), AccessError> {
        let to = self.span(offset, len)?;
        let from = source.span(source_offset, len)?;
        // SAFETY: `span` has checked both sides; overlap is allowed.
        unsafe { copy(from, to, len) };
        Ok(())
    }
}

/// Copies `len` bytes as if through a buffer.
///
/// # Safety
///
/// `from` must be readable and `to` writable for `len` bytes.
#[inline(always)]
unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    compiler_fence(Ordering::SeqCst);
    if len <= SHORT_BYTES {
        // SAFETY: handed on from the caller; the length has just been checked.
        unsafe { copy_short(from, to, len) };
    } else {
        // SAFETY: handed on from the caller.
        unsafe { std::ptr::copy(from, to, len) };
    }
    compiler_fence(Ordering::SeqCst);
}

/// Copies at most 64 bytes by loads and stores that overlap in the middle.
///
/// # Safety
///
/// As [`copy`], and `len` is at most 64.
#[inline(always)]
unsafe fn copy_short(from: *const u8, to: *mut u8, len: usize) {
    type Wide = [u64; 2];
    if len > 32 {
        // SAFETY: 32 < len, so both halves of 32 bytes lie inside.
        unsafe { copy_ends::<[Wide; 2]>(from, to, len) };
    } else if len >= 16 {
        // SAFETY: 16 <= len, so both ends of 16 bytes lie inside.
        unsafe { copy_ends::<Wide>(from, to, len) };
    } else if len >= 8 {
        // SAFETY: 8 <= len, so both ends of 8 bytes lie inside.
        unsafe { copy_ends::<u64>(from, to, len) };
    } else if len >= 4 {
        // SAFETY: 4 <= len, so both ends of 4 bytes lie inside.
        unsafe { copy_ends::<u32>(from, to, len) };
    } else if len >= 2 {
        // SAFETY: 2 <= len, so both ends of 2 bytes lie inside.
        unsafe { copy_ends::<u16>(from, to, len) };
    } else if len == 1 {
        // SAFETY: the one byte lies inside.
        unsafe { copy_ends::<u8>(from, to, len) };
    }
}

/// Copies the first and the last `T` of `len` bytes, which covers all if `len` is at most twice
/// the size of `T`.
///
/// # Safety
///
/// As [`copy`], and `len` is at least the size of `T`.
#[inline(always)]
unsafe fn copy_ends<T: Copy>(from: *const u8, to: *mut u8, len: usize) {
    let last = len - size_of::<T>();
    // SAFETY: readable by the caller's promise; any bytes are a valid T, an array of integers.
    let head = unsafe { from.cast::<T>().read_unaligned() };
    // SAFETY: as above, and `last` plus the size of T is `len`.
    let tail = unsafe { from.wrapping_add(last).cast::<T>().read_unaligned() };
    // SAFETY: writable by the caller's promise.
    unsafe { to.cast::<T>().write_unaligned(head) };
    // SAFETY: as above, and `last` plus the size of T is `len`.
    unsafe { to.wrapping_add(last).cast::<T>().write_unaligned(tail) };
}
