//! Real adapters, through libibverbs.
//!
//! # How it works
//!
//! The contract rings once for a chain of posts; `ibv_post_send` rings with every call. So a post fills the
//! next place of a **chain** that was allocated with the queue pair, copies inline bytes into it, and a
//! flush hands the whole chain over with one call, through the function table of the open device. Nothing is
//! allocated or locked on the way, and no system call is made but those of the adapter's own library (a real
//! one makes none; soft-RoCE makes one per doorbell).
//!
//! ```text
//!     post:   check state, slots, keys, bounds -> record (our name, bytes) + place in the chain
//!     flush:  ibv_post_send(chain)                       one doorbell
//!     reap:   ibv_poll_cq -> name of the work -> record -> completion
//! ```
//!
//! What the contract promises beyond the verbs is done here:
//!
//! * **Names.** The adapter is given a name of ours for each request: which queue pair of the group, in which
//!   life, which queue, which position. So a completion finds its queue pair without a search, one that comes
//!   for a queue pair that was destroyed is known as such, and the bytes of a SEND, which adapters do not
//!   report, are in the record.
//! * **Order of failure.** At the first sign of failure the queue pair is moved into the error state, and a
//!   last *marker* follows what was rung: when it comes back flushed, whatever has not reported until then was
//!   an unsignalled success. Receives that come back flushed are held until then. Work that was never rung
//!   completes last of the sends.
//! * **Keys.** Local keys are ours, not the adapter's: checking one at post is an index into private memory.
//! * **Sleep.** A thread of the device waits on the completion channels of armed groups and signals
//!   their wake-up descriptors. It has nothing to do while nobody is armed.
//!
//! # What differs from the soft driver
//!
//! * Counters of "receiver not ready" and of executed WRITEs stay 0: adapters count them per port, if at all.
//! * The completions of a group come in the order of their arrival, whichever queue pair they belong to.
//! * There are no [`crate::DeviceEvent::PeerGone`] events: a peer that is gone shows as exhausted retries.
//! * [`crate::QpIndex`] is chosen when the queue pair is created and stays the same until it is destroyed.
//!
//! # Why not the `ibv_wr_*` interface
//!
//! It writes requests where the adapter reads them and would save the copy of inline bytes. But it locks
//! the queue pair between its start and its end, which here would be the first post and the flush, with
//! everything that a worker does in between, and a queue pair that is released with posted work would take
//! the lock to another thread. So the work would have to be staged all the same, and the calls per
//! request (three or more through pointers, against one per chain) come on top.
//!
//! # Where to read
//!
//! `gid`, `adapter`, `attributes`, `status` and `name` are pure; `ffi` alone is unsafe; `qp` and `post` are one queue
//! pair, `group` the pass, `waker` the thread, `device` the slow path;
//! `survey` and `sysfs` look at a host without making anything on it.

mod adapter;
mod attributes;
mod device;
mod error;
#[allow(
    unsafe_code,
    reason = "calls of libibverbs, and the lifetimes of its objects"
)]
mod ffi;
mod gid;
mod group;
mod name;
mod post;
mod qp;
mod shared;
mod status;
mod survey;
mod sysfs;
mod waker;

pub use adapter::{Adapter, AdapterLimits, Chosen, LinkLayer, OpenOptions, Port, PortState};
pub use attributes::mtu_bytes;
pub use device::VerbsDevice;
pub use error::OpenError;
pub use gid::{
    GidChoice, GidEntry, GidError, GidKind, GidReason, GidTable, reasons as gid_reasons,
};
pub use group::VerbsGroup;
pub use qp::VerbsQp;
pub use rdma_core_sys::LoadError;
pub use survey::{LibraryInfo, Survey, Surveyed, device_names};
