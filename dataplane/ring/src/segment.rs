//! Sealed memfd segments: memory that two processes share without trusting each other.
//!
//! A segment is created, sized, mapped and sealed in this order, so that from the moment another
//! process can see its descriptor its size is fixed for ever and no access inside the mapping can
//! raise SIGBUS for want of file. The seals are SHRINK, GROW and SEAL;
//! [`Segment::create_owner_writes`] adds FUTURE_WRITE, after which only the mapping of the creator
//! can write, whatever another process does with the descriptor.
//!
//! Hugepages: the memfd and its sizing succeed with an empty pool, and mmap is where ENOMEM shows;
//! a page taken away by a limit of a control group shows only on first touch, as SIGBUS. So pages
//! are populated before the segment is handed out, and any failure falls back to base pages. A
//! process that holds the descriptor of a hugepage segment without FUTURE_WRITE can punch holes
//! into it, which the pool may be unable to fill again: share such a segment only with processes
//! that are trusted not to do so. Base pages do not have this problem.

mod copy;
mod view;

use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::error::{AccessError, SegmentError};
use crate::hugepages::{HUGEPAGE_BYTES, hugepages_free};

pub(crate) use copy::RawMemory;
pub use view::{Lines, ReadLines, ReadWord, Word};

/// Filesystem type of a memfd made of hugepages, as `fstatfs` tells it (linux/magic.h).
const HUGETLBFS_MAGIC: u32 = 0x9584_58f6;

/// Longest name that memfd_create accepts, in bytes without the NUL.
const NAME_BYTES_MAX: usize = 249;

/// More than any address space of a process; keeps every sum below from overflowing.
pub(crate) const BYTES_MAX: usize = 1 << 47;

const SIZE_SEALS: SealFlags = SealFlags::SEAL
    .union(SealFlags::SHRINK)
    .union(SealFlags::GROW);

/// Which pages memory is made of: the configuration key `hugepages`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pages {
    /// Hugepages if the pool has enough of them, base pages otherwise. Memory below half a
    /// hugepage gets base pages, so that many small segments do not empty the pool.
    #[default]
    Auto,
    /// Hugepages, or an error that says how many are missing.
    Required,
    /// Base pages.
    Off,
}

/// Which pages memory got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageKind {
    /// Pages of 2 MiB.
    Huge2M,
    /// Pages of the processor's base size.
    Base,
}

/// What this process may do with a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Loads only; a store would fault, so no operation here issues one.
    ReadOnly,
    /// Loads and stores.
    ReadWrite,
}

/// Who may write a segment that this process creates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Writers {
    Everybody,
    Owner,
}

/// A shared memory segment, mapped into this process.
///
/// Clones share the mapping, which lives as long as any of them. See the module text for what the
/// seals guarantee.
#[derive(Debug, Clone)]
pub struct Segment {
    memory: RawMemory,
    access: Access,
    mapping: Arc<Mapping>,
}

/// Owner of the mapping and of the descriptor.
#[derive(Debug)]
struct Mapping {
    base: NonNull<u8>,
    len: usize,
    kind: PageKind,
    fd: OwnedFd,
}

// SAFETY: the mapping is plain memory without ties to a thread, and it is unmapped only by Drop,
// which runs when no clone is left.
unsafe impl Send for Mapping {}
// SAFETY: the mapping's bytes are reached only by raw copies and atomics, which any number of
// threads may use at once.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: base and len are what mmap returned and was asked for, nobody else unmaps them,
        // and every view of the memory holds an Arc of this value.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert_eq!(unmapped, Ok(()));
    }
}

impl Segment {
    /// Creates a segment of at least `bytes` bytes, filled with zeros, that every process which
    /// gets the descriptor may also map for writing.
    ///
    /// `name` appears in /proc/PID/maps. `bytes` is rounded up to the page size. Base pages come
    /// into being on first touch. [`Segment::page_kind`] tells which pages it got.
    ///
    /// # Errors
    ///
    /// [`SegmentError::HugepagesMissing`] only with `Pages::Required`; otherwise what the system
    /// refused.
    pub fn create(name: &str, bytes: usize, pages: Pages) -> Result<Segment, SegmentError> {
        Segment::create_with(name, bytes, pages, Writers::Everybody)
    }

    /// Like [`Segment::create`], but only the mapping returned here, and its clones, can write:
    /// the kernel refuses any later mapping for writing, write, or hole punched into the file.
    ///
    /// # Errors
    ///
    /// As [`Segment::create`]; also a kernel before 5.1, which lacks the seal.
    pub fn create_owner_writes(
        name: &str,
        bytes: usize,
        pages: Pages,
    ) -> Result<Segment, SegmentError> {
        Segment::create_with(name, bytes, pages, Writers::Owner)
    }

    fn create_with(
        name: &str,
        bytes: usize,
        pages: Pages,
        writers: Writers,
    ) -> Result<Segment, SegmentError> {
        if bytes == 0 || bytes > BYTES_MAX {
            return Err(SegmentError::Size { bytes });
        }
        let c_name = CString::new(name)
            .ok()
            .filter(|name| name.as_bytes().len() <= NAME_BYTES_MAX)
            .ok_or_else(|| SegmentError::Name {
                name: name.to_owned(),
            })?;
        let huge_wanted = match pages {
            Pages::Auto => bytes >= HUGEPAGE_BYTES / 2,
            Pages::Required => true,
            Pages::Off => false,
        };
        if huge_wanted {
            match create_huge(&c_name, bytes, writers) {
                Ok(segment) => return Ok(segment),
                Err(error) if pages == Pages::Required => return Err(error),
                Err(_) => {} // Auto promises memory, not its kind; page_kind() tells.
            }
        }
        create_base(&c_name, bytes, writers)
    }

    /// Maps a segment whose descriptor came from another process.
    ///
    /// `bytes_max` bounds what the other process can make this one map.
    ///
    /// # Errors
    ///
    /// [`SegmentError::NotSealed`] unless the three seals of size are there, so that its length
    /// cannot change afterwards; [`SegmentError::WrongSize`] for zero, more than `bytes_max`, or
    /// no multiple of the page; [`SegmentError::System`] for what the kernel refuses, such as
    /// writing to a segment that only its owner writes.
    pub fn from_fd(fd: OwnedFd, access: Access, bytes_max: usize) -> Result<Segment, SegmentError> {
        let seals = rustix::fs::fcntl_get_seals(&fd).unwrap_or(SealFlags::empty());
        if !seals.contains(SIZE_SEALS) {
            return Err(SegmentError::NotSealed {
                seals: seals.bits(),
            });
        }
        let kind = page_kind_of(&fd)?;
        let page_bytes = match kind {
            PageKind::Huge2M => HUGEPAGE_BYTES,
            PageKind::Base => rustix::param::page_size(),
        };
        let stat = rustix::fs::fstat(&fd).map_err(|errno| system("inspect", 0, errno))?;
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let bytes = usize::try_from(size)
            .ok()
            .filter(|&bytes| bytes > 0 && bytes <= bytes_max.min(BYTES_MAX))
            .filter(|&bytes| bytes.is_multiple_of(page_bytes))
            .ok_or(SegmentError::WrongSize {
                bytes: size,
                page_bytes,
                bytes_max,
            })?;
        let segment = map(fd, bytes, kind, access)?;
        if kind == PageKind::Huge2M {
            // Holes are filled now, where want of pages is an error and no signal.
            let advice = match access {
                Access::ReadOnly => Advice::LinuxPopulateRead,
                Access::ReadWrite => Advice::LinuxPopulateWrite,
            };
            segment.populate(advice)?;
        }
        Ok(segment)
    }

    /// The descriptor, to be sent to another process.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.mapping.fd.as_fd()
    }

    /// Number of bytes, a multiple of the page size.
    #[inline]
    #[allow(clippy::len_without_is_empty)] // a segment is never empty
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Virtual address of byte 0 in this process, as adapters want it.
    #[inline]
    pub fn addr(&self) -> u64 {
        self.memory.addr()
    }

    /// The pages the segment is made of.
    pub fn page_kind(&self) -> PageKind {
        self.mapping.kind
    }

    /// What this mapping allows.
    #[inline]
    pub fn access(&self) -> Access {
        self.access
    }

    /// Whether two handles are clones of one mapping.
    pub fn is_same_mapping(&self, other: &Segment) -> bool {
        Arc::ptr_eq(&self.mapping, &other.mapping)
    }

    /// Copies `from` to `offset`.
    ///
    /// # Errors
    ///
    /// [`AccessError::OutOfBounds`], [`AccessError::ReadOnly`]; nothing is copied then.
    #[inline]
    pub fn copy_in(&self, offset: usize, from: &[u8]) -> Result<(), AccessError> {
        self.check_writable()?;
        self.memory.copy_in(offset, from)
    }

    /// Copies the bytes at `offset` into `into`. Bytes that another process writes meanwhile may
    /// come old or new; the copy does not change afterwards.
    ///
    /// # Errors
    ///
    /// [`AccessError::OutOfBounds`]; nothing is copied then.
    #[inline]
    pub fn copy_out(&self, offset: usize, into: &mut [u8]) -> Result<(), AccessError> {
        self.memory.copy_out(offset, into)
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
        source: &Segment,
        source_offset: usize,
        len: usize,
    ) -> Result<(), AccessError> {
        self.check_writable()?;
        self.memory
            .copy_from(offset, &source.memory, source_offset, len)
    }

    /// The aligned word at `offset`, for as long as the segment is borrowed.
    ///
    /// # Errors
    ///
    /// [`AccessError::OutOfBounds`], [`AccessError::Misaligned`], or [`AccessError::ReadOnly`]: use
    /// [`Segment::read_word`] there.
    pub fn atomic_u64(&self, offset: usize) -> Result<&AtomicU64, AccessError> {
        self.check_writable()?;
        let pointer = self.memory.aligned(offset, 1)?;
        // SAFETY: `aligned` has checked that the 8 bytes lie in the mapping and are aligned; the
        // mapping is writable and outlives the borrow of self; the word is used only atomically,
        // as everything in this crate that touches shared words.
        Ok(unsafe { AtomicU64::from_ptr(pointer.as_ptr()) })
    }

    /// The aligned word at `offset`, as a handle that keeps the mapping.
    ///
    /// # Errors
    ///
    /// As [`Segment::atomic_u64`].
    pub fn word(&self, offset: usize) -> Result<Word, AccessError> {
        self.check_writable()?;
        Word::new(self.clone(), offset)
    }

    /// The aligned word at `offset`, as a handle that only loads.
    ///
    /// # Errors
    ///
    /// [`AccessError::OutOfBounds`], [`AccessError::Misaligned`].
    pub fn read_word(&self, offset: usize) -> Result<ReadWord, AccessError> {
        ReadWord::new(self.clone(), offset)
    }

    /// `lines` lines of 64 bytes from `offset` on, to write and read.
    ///
    /// # Errors
    ///
    /// [`AccessError::LineCount`] unless `lines` is a power of two,
    /// [`AccessError::Misaligned`] unless `offset` is a multiple of 64,
    /// [`AccessError::OutOfBounds`], [`AccessError::ReadOnly`].
    pub fn lines(&self, offset: usize, lines: usize) -> Result<Lines, AccessError> {
        self.check_writable()?;
        Lines::new(self.clone(), offset, lines)
    }

    /// `lines` lines of 64 bytes from `offset` on, to read.
    ///
    /// # Errors
    ///
    /// As [`Segment::lines`], without [`AccessError::ReadOnly`].
    pub fn read_lines(&self, offset: usize, lines: usize) -> Result<ReadLines, AccessError> {
        ReadLines::new(self.clone(), offset, lines)
    }

    #[inline(always)]
    pub(crate) fn memory(&self) -> &RawMemory {
        &self.memory
    }

    /// The memory, if this mapping may write it.
    #[inline(always)]
    pub(crate) fn writable_memory(&self) -> Result<&RawMemory, AccessError> {
        self.check_writable()?;
        Ok(&self.memory)
    }

    #[inline(always)]
    fn check_writable(&self) -> Result<(), AccessError> {
        match self.access {
            Access::ReadWrite => Ok(()),
            Access::ReadOnly => Err(AccessError::ReadOnly),
        }
    }

    /// Brings every page into being now, where failure is an error and not a signal.
    fn populate(&self, advice: Advice) -> Result<(), SegmentError> {
        let base = self.mapping.base.as_ptr().cast();
        // SAFETY: the range is our mapping; populating changes no byte of it.
        match unsafe { rustix::mm::madvise(base, self.len(), advice) } {
            // Kernels before 5.14 do not know the advice; the reservation made by mmap is all
            // that can be had there.
            Ok(()) | Err(Errno::INVAL) => Ok(()),
            Err(errno) => Err(system("populate", self.len(), errno)),
        }
    }
}

fn system(step: &'static str, bytes: usize, errno: Errno) -> SegmentError {
    SegmentError::System { step, bytes, errno }
}

fn create_huge(name: &CString, bytes: usize, writers: Writers) -> Result<Segment, SegmentError> {
    let rounded = bytes.next_multiple_of(HUGEPAGE_BYTES);
    let need = rounded / HUGEPAGE_BYTES;
    let have = hugepages_free().free;
    let missing = SegmentError::HugepagesMissing { bytes, need, have };
    if have < need {
        return Err(missing);
    }
    let flags = MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    let fd = create_memfd(name, rounded, flags)?;
    // Somebody else may have taken the pages since they were counted.
    let segment =
        map(fd, rounded, PageKind::Huge2M, Access::ReadWrite).map_err(|_| missing.clone())?;
    segment
        .populate(Advice::LinuxPopulateWrite)
        .map_err(|_| missing)?;
    seal(&segment, writers)?;
    Ok(segment)
}

fn create_base(name: &CString, bytes: usize, writers: Writers) -> Result<Segment, SegmentError> {
    let rounded = bytes.next_multiple_of(rustix::param::page_size());
    let fd = create_memfd(name, rounded, MemfdFlags::empty())?;
    let segment = map(fd, rounded, PageKind::Base, Access::ReadWrite)?;
    let base = segment.mapping.base.as_ptr().cast();
    // SAFETY: the range is our mapping, and the advice changes no byte of it. Whether the kernel
    // follows it (transparent_hugepage/shmem_enabled) is the machine's affair.
    let _ = unsafe { rustix::mm::madvise(base, rounded, Advice::LinuxHugepage) };
    seal(&segment, writers)?;
    Ok(segment)
}

fn create_memfd(name: &CString, bytes: usize, flags: MemfdFlags) -> Result<OwnedFd, SegmentError> {
    let flags = flags | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create(name.as_c_str(), flags)
        .map_err(|errno| system("create", bytes, errno))?;
    rustix::fs::ftruncate(&fd, bytes as u64).map_err(|errno| system("size", bytes, errno))?;
    Ok(fd)
}

fn map(fd: OwnedFd, bytes: usize, kind: PageKind, access: Access) -> Result<Segment, SegmentError> {
    let protection = match access {
        Access::ReadOnly => ProtFlags::READ,
        Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
    };
    // SAFETY: a new mapping at an address of the kernel's choice cannot touch existing memory.
    let address =
        unsafe { rustix::mm::mmap(ptr::null_mut(), bytes, protection, MapFlags::SHARED, &fd, 0) };
    let address = address.map_err(|errno| system("map", bytes, errno))?;
    // The kernel maps nothing at address 0 unless asked to.
    let base = NonNull::new(address.cast::<u8>()).ok_or(system("map", bytes, Errno::FAULT))?;
    let mapping = Arc::new(Mapping {
        base,
        len: bytes,
        kind,
        fd,
    });
    Ok(Segment {
        memory: RawMemory::new(base, bytes),
        access,
        mapping,
    })
}

fn seal(segment: &Segment, writers: Writers) -> Result<(), SegmentError> {
    let seals = match writers {
        Writers::Everybody => SIZE_SEALS,
        Writers::Owner => SIZE_SEALS | SealFlags::FUTURE_WRITE,
    };
    rustix::fs::fcntl_add_seals(segment.fd(), seals)
        .map_err(|errno| system("seal", segment.len(), errno))
}

fn page_kind_of(fd: &OwnedFd) -> Result<PageKind, SegmentError> {
    let stat = rustix::fs::fstatfs(fd).map_err(|errno| system("inspect", 0, errno))?;
    if stat.f_type as u32 != HUGETLBFS_MAGIC {
        return Ok(PageKind::Base);
    }
    let page_bytes = usize::try_from(stat.f_bsize).unwrap_or(0);
    if page_bytes == HUGEPAGE_BYTES {
        Ok(PageKind::Huge2M)
    } else {
        // Nothing here makes hugepages of another size, so the descriptor is not one of ours.
        Err(system("map", page_bytes, Errno::NOTSUP))
    }
}
