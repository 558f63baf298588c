//! Memory of this process alone: receive slots, staging buffers, tables of work requests.
//!
//! Hugepages come from the `hugepage-rs` allocator. It gives a null pointer where there are none,
//! asks for whatever size the kernel calls default, and panics where the kernel has no hugepages
//! at all; so it is asked only when the default size is 2 MiB and the pool has enough pages, and
//! its answer is checked. Everything else is ordinary anonymous memory, with a wish for
//! transparent hugepages.

use std::alloc::Layout;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::error::{AccessError, PoolError};
use crate::hugepages::{HUGEPAGE_BYTES, default_hugepage_is_2m, hugepages_free};
use crate::segment::{BYTES_MAX, PageKind, Pages, RawMemory};

/// Private memory. Clones share it, and it lives as long as any of them.
#[derive(Debug, Clone)]
pub struct Pool {
    memory: RawMemory,
    allocation: Arc<Allocation>,
}

/// Owner of the memory.
#[derive(Debug)]
enum Allocation {
    /// From the hugepage allocator, to be given back with the same layout.
    Huge { base: NonNull<u8>, layout: Layout },
    /// From mmap, of this length.
    Base { base: NonNull<u8>, len: usize },
}

// SAFETY: plain memory without ties to a thread, freed only by Drop.
unsafe impl Send for Allocation {}
// SAFETY: reached only through raw copies, which the holders of a pool order among themselves as
// the adapter's rules demand.
unsafe impl Sync for Allocation {}

impl Drop for Allocation {
    fn drop(&mut self) {
        match *self {
            Allocation::Huge { base, layout } => {
                // SAFETY: `base` came from this allocator with this layout, and is freed once.
                unsafe { hugepage_rs::dealloc(base.as_ptr(), layout) };
            }
            Allocation::Base { base, len } => {
                // SAFETY: base and len are what mmap returned and was asked for, unmapped once.
                let unmapped = unsafe { rustix::mm::munmap(base.as_ptr().cast(), len) };
                debug_assert_eq!(unmapped, Ok(()));
            }
        }
    }
}

impl Pool {
    /// Creates a pool of at least `bytes` bytes, filled with zeros. The size is rounded up to the
    /// page; [`Pool::page_kind`] tells which pages it got.
    ///
    /// # Errors
    ///
    /// [`PoolError::HugepagesMissing`] only with `Pages::Required`.
    pub fn create(bytes: usize, pages: Pages) -> Result<Pool, PoolError> {
        if bytes == 0 || bytes > BYTES_MAX {
            return Err(PoolError::Size { bytes });
        }
        let huge_wanted = match pages {
            Pages::Auto => bytes >= HUGEPAGE_BYTES / 2,
            Pages::Required => true,
            Pages::Off => false,
        };
        if huge_wanted {
            if let Some(pool) = create_huge(bytes) {
                return Ok(pool);
            }
            if pages == Pages::Required {
                return Err(PoolError::HugepagesMissing {
                    bytes,
                    need: bytes.div_ceil(HUGEPAGE_BYTES),
                    have: usable_hugepages(),
                });
            }
        }
        create_base(bytes)
    }

    /// Number of bytes, a multiple of the page size.
    #[inline]
    #[allow(clippy::len_without_is_empty)] // a pool is never empty
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Virtual address of byte 0, as adapters want it.
    #[inline]
    pub fn addr(&self) -> u64 {
        self.memory.addr()
    }

    /// The pages the pool is made of.
    pub fn page_kind(&self) -> PageKind {
        match *self.allocation {
            Allocation::Huge { .. } => PageKind::Huge2M,
            Allocation::Base { .. } => PageKind::Base,
        }
    }

    /// Copies `from` to `offset`.
    ///
    /// # Errors
    ///
    /// [`AccessError::OutOfBounds`]; nothing is copied then.
    #[inline]
    pub fn copy_in(&self, offset: usize, from: &[u8]) -> Result<(), AccessError> {
        self.memory.copy_in(offset, from)
    }

    /// Copies the bytes at `offset` into `into`.
    ///
    /// # Errors
    ///
    /// [`AccessError::OutOfBounds`]; nothing is copied then.
    #[inline]
    pub fn copy_out(&self, offset: usize, into: &mut [u8]) -> Result<(), AccessError> {
        self.memory.copy_out(offset, into)
    }

    #[inline(always)]
    pub(crate) fn memory(&self) -> &RawMemory {
        &self.memory
    }
}

/// Pages that the hugepage allocator could give.
fn usable_hugepages() -> usize {
    if default_hugepage_is_2m() {
        hugepages_free().free
    } else {
        0
    }
}

fn create_huge(bytes: usize) -> Option<Pool> {
    let len = bytes.next_multiple_of(HUGEPAGE_BYTES);
    if usable_hugepages() < len / HUGEPAGE_BYTES {
        return None;
    }
    let layout = Layout::from_size_align(len, HUGEPAGE_BYTES).ok()?;
    // SAFETY: the layout's size is not zero.
    let base = NonNull::new(unsafe { hugepage_rs::alloc(layout) })?;
    let allocation = Arc::new(Allocation::Huge { base, layout });
    // A limit of a control group shows on first touch, as SIGBUS; here it is an answer.
    // SAFETY: the range is ours, and populating changes no byte of it.
    match unsafe { rustix::mm::madvise(base.as_ptr().cast(), len, Advice::LinuxPopulateWrite) } {
        // Kernels before 5.14 do not know the advice.
        Ok(()) | Err(Errno::INVAL) => {}
        Err(_) => return None,
    }
    Some(Pool {
        memory: RawMemory::new(base, len),
        allocation,
    })
}

fn create_base(bytes: usize) -> Result<Pool, PoolError> {
    let len = bytes.next_multiple_of(rustix::param::page_size());
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice cannot touch existing memory.
    let address =
        unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), len, protection, MapFlags::PRIVATE) };
    let address = address.map_err(|errno| PoolError::Map { bytes, errno })?;
    // The kernel maps nothing at address 0 unless asked to.
    let base = NonNull::new(address.cast::<u8>()).ok_or(PoolError::Map {
        bytes,
        errno: Errno::FAULT,
    })?;
    let allocation = Arc::new(Allocation::Base { base, len });
    // SAFETY: the range is ours, and the advice changes no byte of it.
    let _ = unsafe { rustix::mm::madvise(address, len, Advice::LinuxHugepage) };
    Ok(Pool {
        memory: RawMemory::new(base, len),
        allocation,
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn pool_is_rounded_to_pages_and_zero() {
        let pool = Pool::create(5000, Pages::Off).expect("pool");
        assert_eq!(pool.len() % 4096, 0);
        assert!(pool.len() >= 5000);
        assert_eq!(pool.page_kind(), PageKind::Base);
        let mut bytes = vec![1; pool.len()];
        pool.copy_out(0, &mut bytes).expect("all of it");
        assert!(bytes.iter().all(|&byte| byte == 0));
    }

    #[test]
    fn copies_round_trip_and_stay_inside() {
        let pool = Pool::create(4096, Pages::Auto).expect("pool");
        pool.copy_in(100, b"hello").expect("inside");
        let mut back = [0; 5];
        pool.copy_out(100, &mut back).expect("inside");
        assert_eq!(&back, b"hello");
        let end = pool.len();
        for (offset, len) in [(end, 1), (end - 1, 2), (usize::MAX, 1), (0, end + 1)] {
            let refused = pool.copy_out(offset, &mut vec![0; len]);
            assert_eq!(
                refused,
                Err(AccessError::OutOfBounds {
                    offset,
                    len,
                    memory: end
                })
            );
        }
    }

    #[test]
    fn required_gives_hugepages_or_says_how_many_are_missing() {
        let bytes = 3 * HUGEPAGE_BYTES - 1;
        match Pool::create(bytes, Pages::Required) {
            Ok(pool) => {
                assert_eq!(
                    (pool.page_kind(), pool.len()),
                    (PageKind::Huge2M, 3 * HUGEPAGE_BYTES)
                );
                pool.copy_in(pool.len() - 1, &[1]).expect("last byte");
            }
            Err(error) => {
                let PoolError::HugepagesMissing { need: 3, have, .. } = error else {
                    panic!("{error}");
                };
                assert!(have < 3);
            }
        }
    }

    #[test]
    fn auto_always_gives_memory() {
        let pool = Pool::create(2 * HUGEPAGE_BYTES, Pages::Auto).expect("pool");
        pool.copy_in(pool.len() - 3, &[1, 2, 3])
            .expect("last bytes");
    }

    #[test]
    fn impossible_sizes_are_refused() {
        for bytes in [0, BYTES_MAX + 1, usize::MAX] {
            assert_eq!(
                Pool::create(bytes, Pages::Off).expect_err("refused"),
                PoolError::Size { bytes }
            );
        }
    }
}
