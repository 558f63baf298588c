//! The embedded driver: a reliable connection in shared memory, without adapter, root or kernel module.
//!
//! # How it works
//!
//! Each queue pair has a **port**: a sealed segment that only its owner writes and its peer maps read-only.
//! In it lie a ring of 64-byte lines, the owner's work requests, and some words about the *peer's*
//! requests: how many were executed, and whether the owner has stopped.
//!
//! ```text
//!     requester A                                        target B
//!     post: stage lines in private memory
//!     flush: copy them into A's ring        ------>      reap: read the lines, judge them,
//!                                                        copy the payload into B's memory
//!     reap, only if A waits for it:         <------      publish "lines consumed" once per reap
//! ```
//!
//! So **the target's reap executes the work**: no thread ever writes another's memory, nothing needs a
//! lock, and a peer that scribbles over its port can only ask for things that are checked anyway. A small
//! message is one line: request, payload and announcement travel in a single transfer between two cores. A WRITE
//! by reference carries export, offset and length in its line; the target copies from its read-only mapping
//! of the peer's segment, and pays the second, dependent transfer that an adapter would pay.
//!
//! # What differs from an adapter
//!
//! * Nothing moves while the target is not polled. That is no time-out: only the end of the peer's process
//!   or queue pair ends a connection (`timeout` and `retry_count` are checked and not used).
//! * A by-reference source in private memory ([`pollux_ring::Pool`]) cannot be read by the peer; it is carried
//!   in lines, up to 8 KiB.
//! * A refused request puts both ends into the error state, as with adapters; the verdict reaches the
//!   requester through the words above, plus a *notice* line that makes it look at once.
//! * A first packet sequence number that the target does not expect ends in
//!   [`crate::WcStatus::RetryExceeded`] at once, where an adapter would drop packets until then.
//!
//! # Where to read
//!
//! `line_format` (the lines), `port` (the segment), `qp` with `qp_send` and `qp_target` (the engine), `group`
//! (the pass), `shared` and `table` (what control changes), then the carriers: [`Fabric`] keeps all devices
//! in one process, [`open_shm`] connects processes.

mod barrier;
mod device;
mod fabric_thread;
mod group;
mod line_format;
mod personality;
mod port;
mod process;
mod qp;
mod qp_send;
mod qp_target;
mod rendezvous;
mod shared;
mod shm;
#[cfg(feature = "testing")]
pub mod testing;

pub use device::{DeviceOptions, OpenError, SoftDevice};
pub use group::SoftGroup;
pub use personality::{INLINE_BYTES_MAX, Personality, UnknownPersonality};
pub use process::Fabric;
pub use qp::SoftQp;
pub use shared::Census;
pub use shm::{look_shm, open_shm};
