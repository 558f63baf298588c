//! The objects of libibverbs with their lifetimes. The only unsafe code of the driver.
//!
//! Every object holds what has to outlive it, and is destroyed when it is dropped. All calls of libibverbs
//! may be made from any thread; the locks are inside.

mod chain;
mod queue;

use std::ffi::CStr;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use pollux_ring::Region;
use rdma_core_sys::{
    self as sys, Library, ibv_async_event, ibv_context, ibv_device, ibv_device_attr, ibv_gid_entry,
    ibv_mr, ibv_pd, ibv_port_attr, ibv_qp, zeroed,
};
use rustix::fs::OFlags;

pub(super) use chain::{Chain, Request};
pub(super) use queue::{Cq, QueuePair, Refused};

use super::status::{Subject, SubjectKind, subject_kind};
use crate::{Access, Errno};

/// What the last call of this thread left in `errno`.
fn last_errno() -> Errno {
    let code = std::io::Error::last_os_error().raw_os_error();
    code.map_or(Errno::IO, Errno::from_raw_os_error)
}

/// The result of a call that returns 0 or an error number.
fn checked(code: i32) -> Result<(), Errno> {
    match code {
        0 => Ok(()),
        // A few calls say -1 and leave the number elsewhere.
        -1 => Err(last_errno()),
        code => Err(Errno::from_raw_os_error(code.abs())),
    }
}

/// Makes registered memory survive forks. To be called before the first registration; later calls do
/// nothing.
pub(super) fn protect_from_fork(library: &Library) -> Result<(), Errno> {
    // SAFETY: no arguments. It only sets up the library's own bookkeeping.
    checked(unsafe { (library.ibv_fork_init)() })
}

/// All devices, as long as it lives.
struct DeviceList {
    library: Library,
    list: NonNull<*mut ibv_device>,
    count: usize,
}

impl DeviceList {
    fn read(library: &Library) -> Result<DeviceList, Errno> {
        let mut count = 0;
        // SAFETY: the argument points to an integer.
        let list = unsafe { (library.ibv_get_device_list)(&raw mut count) };
        let list = NonNull::new(list).ok_or_else(last_errno)?;
        Ok(DeviceList {
            library: *library,
            list,
            count: usize::try_from(count).unwrap_or(0),
        })
    }

    fn devices(&self) -> &[*mut ibv_device] {
        // SAFETY: the library says that the list has so many entries; it lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.list.as_ptr(), self.count) }
    }

    fn name(&self, device: *mut ibv_device) -> String {
        // SAFETY: the device is one of the list.
        let name = unsafe { (self.library.ibv_get_device_name)(device) };
        if name.is_null() {
            return String::new();
        }
        // SAFETY: a string inside the device, which ends with a zero byte.
        let name = unsafe { CStr::from_ptr(name) };
        name.to_string_lossy().into_owned()
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: the list came from the library and is given back once.
        unsafe { (self.library.ibv_free_device_list)(self.list.as_ptr()) }
    }
}

/// Names of all devices.
pub(super) fn device_names(library: &Library) -> Result<Vec<String>, Errno> {
    let list = DeviceList::read(library)?;
    let names = list.devices().iter().map(|device| list.name(*device));
    Ok(names.collect())
}

/// An open device.
pub(super) struct Context {
    library: Library,
    raw: NonNull<ibv_context>,
}

// SAFETY: calls of libibverbs may come from any thread; see the module text.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").finish_non_exhaustive()
    }
}

impl Context {
    /// Opens the device of this name. `None`: there is none.
    pub(super) fn open(library: &Library, name: &str) -> Result<Option<Arc<Context>>, Errno> {
        let list = DeviceList::read(library)?;
        let named = |device: &&*mut ibv_device| list.name(**device) == name;
        let Some(device) = list.devices().iter().find(named) else {
            return Ok(None);
        };
        // SAFETY: the device is one of the list, which still lives.
        let raw = unsafe { (library.ibv_open_device)(*device) };
        let raw = NonNull::new(raw).ok_or_else(last_errno)?;
        let library = *library;
        let context = Context { library, raw };
        // Whoever asks for events must never wait.
        let flags = rustix::fs::fcntl_getfl(context.async_fd())?;
        rustix::fs::fcntl_setfl(context.async_fd(), flags | OFlags::NONBLOCK)?;
        Ok(Some(Arc::new(context)))
    }

    /// The descriptor that is readable when there are events.
    pub(super) fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the context is open as long as `self` lives, and its beginning is as declared.
        let fd = unsafe { (*self.raw.as_ptr()).async_fd };
        // SAFETY: it is open as long as the context is.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    pub(super) fn query_device(&self) -> Result<ibv_device_attr, Errno> {
        let mut attr = zeroed();
        // SAFETY: an open context, and a struct of the type that the library fills.
        checked(unsafe { (self.library.ibv_query_device)(self.raw.as_ptr(), &raw mut attr) })?;
        Ok(attr)
    }

    pub(super) fn query_port(&self, port: u8) -> Result<ibv_port_attr, Errno> {
        let mut attr = zeroed();
        // SAFETY: an open context, and a struct at least as long as the one that the library fills.
        let code = unsafe { (self.library.ibv_query_port)(self.raw.as_ptr(), port, &raw mut attr) };
        checked(code)?;
        Ok(attr)
    }

    /// All valid GIDs of all ports, of which there are at most `entries_max`.
    pub(super) fn gid_table(&self, entries_max: usize) -> Result<Vec<ibv_gid_entry>, Errno> {
        let mut entries: Vec<ibv_gid_entry> = vec![zeroed(); entries_max];
        let (at, size) = (entries.as_mut_ptr(), size_of::<ibv_gid_entry>());
        // SAFETY: an open context, and room for as many entries of this size as is said.
        let count = unsafe {
            (self.library._ibv_query_gid_table)(self.raw.as_ptr(), at, entries_max, 0, size)
        };
        let Ok(count) = usize::try_from(count) else {
            let code = i32::try_from(count.unsigned_abs()).unwrap_or(0);
            return Err(if code == 0 {
                Errno::IO
            } else {
                Errno::from_raw_os_error(code)
            });
        };
        entries.truncate(count);
        Ok(entries)
    }

    /// The next event, with what it is about. `None`: there is none, or it cannot be read.
    pub(super) fn next_event(&self) -> Option<(u32, Subject)> {
        let mut event: ibv_async_event = zeroed();
        // SAFETY: an open context whose descriptor does not block, and room for an event.
        let code = unsafe { (self.library.ibv_get_async_event)(self.raw.as_ptr(), &raw mut event) };
        checked(code).ok()?;
        let subject = match subject_kind(event.event_type) {
            SubjectKind::Qp => {
                let qp = event.element as *const ibv_qp;
                // SAFETY: the element of an event of this type is a queue pair. It is not destroyed before
                // the event is acknowledged: the library makes its destruction wait for that.
                Subject::Qp(unsafe { (*qp).qp_num })
            }
            // A C integer in the low half of the union.
            SubjectKind::Port => Subject::Port(event.element as u32),
            SubjectKind::Device => Subject::Device,
        };
        // SAFETY: the event was read above and is acknowledged once.
        unsafe { (self.library.ibv_ack_async_event)(&raw mut event) };
        Some((event.event_type, subject))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: opened by the library, closed once, and everything made from it held it.
        let _ = unsafe { (self.library.ibv_close_device)(self.raw.as_ptr()) };
    }
}

/// A protection domain: what may be used together.
pub(super) struct Pd {
    context: Arc<Context>,
    raw: NonNull<ibv_pd>,
}

// SAFETY: calls of libibverbs may come from any thread; see the module text.
unsafe impl Send for Pd {}
// SAFETY: as above.
unsafe impl Sync for Pd {}

impl fmt::Debug for Pd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pd").finish_non_exhaustive()
    }
}

impl Pd {
    pub(super) fn new(context: &Arc<Context>) -> Result<Arc<Pd>, Errno> {
        // SAFETY: an open context.
        let raw = unsafe { (context.library.ibv_alloc_pd)(context.raw.as_ptr()) };
        let raw = NonNull::new(raw).ok_or_else(last_errno)?;
        let context = Arc::clone(context);
        Ok(Arc::new(Pd { context, raw }))
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        // SAFETY: made by the library, destroyed once, and everything made in it held it.
        let _ = unsafe { (self.context.library.ibv_dealloc_pd)(self.raw.as_ptr()) };
    }
}

fn is_writable(region: &Region) -> bool {
    match region {
        Region::Shared(segment) => segment.access() == pollux_ring::Access::ReadWrite,
        Region::Private(_) => true,
    }
}

/// A registration. Keeps the memory mapped.
pub(super) struct MemoryRegion {
    pd: Arc<Pd>,
    raw: NonNull<ibv_mr>,
    _region: Region,
}

// SAFETY: calls of libibverbs may come from any thread; see the module text.
unsafe impl Send for MemoryRegion {}
// SAFETY: as above.
unsafe impl Sync for MemoryRegion {}

impl MemoryRegion {
    /// Registers `len` bytes from `offset` on; the caller has checked that the region has them.
    pub(super) fn register(
        pd: &Arc<Pd>,
        region: &Region,
        offset: usize,
        len: usize,
        access: Access,
    ) -> Result<MemoryRegion, Errno> {
        assert!(offset <= region.len() && len <= region.len() - offset);
        // Receives are written by our own adapter. Memory that is mapped for reading only can be sent from.
        let local = if is_writable(region) {
            sys::IBV_ACCESS_LOCAL_WRITE
        } else {
            0
        };
        let flags = match access {
            Access::LocalOnly => local,
            Access::RemoteWrite => sys::IBV_ACCESS_LOCAL_WRITE | sys::IBV_ACCESS_REMOTE_WRITE,
        };
        let addr = (region.addr() + offset as u64) as *mut std::ffi::c_void;
        // SAFETY: a live protection domain, and bytes that are mapped: they lie in the region, of which the
        // result holds a handle. No reference to them exists in this process; see `ring::Region`.
        let raw =
            unsafe { (pd.context.library.ibv_reg_mr)(pd.raw.as_ptr(), addr, len, flags as i32) };
        let raw = NonNull::new(raw).ok_or_else(last_errno)?;
        Ok(MemoryRegion {
            pd: Arc::clone(pd),
            raw,
            _region: region.clone(),
        })
    }

    pub(super) fn lkey(&self) -> u32 {
        // SAFETY: the registration lives as long as `self`; keys do not change.
        unsafe { (*self.raw.as_ptr()).lkey }
    }

    pub(super) fn rkey(&self) -> u32 {
        // SAFETY: the registration lives as long as `self`; keys do not change.
        unsafe { (*self.raw.as_ptr()).rkey }
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // SAFETY: made by the library and ended once. Work that still names it fails, as the verbs say.
        let _ = unsafe { (self.pd.context.library.ibv_dereg_mr)(self.raw.as_ptr()) };
    }
}
