//! The driver contract, and the software fabric that keeps it without an adapter.
//!
//! # Two halves
//!
//! * **Slow path**, [`Device`]: opened, asked and changed by the control thread. It registers memory,
//!   creates poll groups and queue pairs and moves them RESET -> INIT -> RTR -> RTS. It may allocate,
//!   lock and make system calls.
//! * **Fast path**, [`PollGroup`]: owned by one worker, together with the queue pairs it adopted. Posting,
//!   flushing and reaping never block, lock, allocate or make a system call (a flush towards a peer that
//!   *sleeps* makes one: it wakes it).
//!
//! A queue pair is a value. Control creates it for a group ([`Device::create_qp`] names the
//! [`GroupId`]), walks it through its states, and *moves* it into the worker, where
//! [`PollGroup::adopt`] takes it; [`PollGroup::release`] gives it back with everything posted still in
//! it. Nobody can touch a queue pair that somebody else owns, so there is no lock order to remember.
//!
//! # What every driver promises (a reliable connection)
//!
//! 1. Requests of one queue pair take effect at the peer in the order of their posts: when a SEND's
//!    receive completes there, every WRITE posted before it is in memory.
//! 2. Posting is not ringing: nothing posted is seen by the peer before a [`PollGroup::flush`].
//! 3. A SEND and a WRITE with immediate use up one posted receive of the peer, in order. Without one the
//!    peer answers "receiver not ready" (RNR); the request is repeated after the peer's
//!    `min_rnr_timer`, as often as our `rnr_retry` allows, and work behind it waits.
//! 4. A successful unsignalled request completes silently and keeps its send slot until a later signalled
//!    request of the same queue pair is reaped, or an error is. A failed request always completes.
//! 5. Keys and bounds are checked where the memory is: local pieces at post, remote spans at the peer.
//!    Inline pieces have bounds and no key.
//! 6. The first failure puts the queue pair into the error state. Everything else outstanding
//!    completes, in order of posting, with [`WcStatus::WrFlush`], sends before receives. Work posted
//!    before the caller has *reaped* that failure is taken and flushed too; afterwards posts are
//!    refused with [`PostError::WrongState`].
//! 7. Inline data is limited at creation (a device may refuse or grant another size than asked) and at
//!    post ([`PostError::InlineTooLong`], the limit itself is allowed).
//! 8. When a peer device dies, outstanding and later work towards it ends with
//!    [`WcStatus::RetryExceeded`].
//!
//! # Time
//!
//! No driver asks for the time on the fast path. [`PollGroup::reap`] gets `now`, in nanoseconds of any
//! monotonic clock; the software driver measures RNR timers with it.
//!
//! The embedded driver is in [`soft`], the one for adapters in [`verbs`]; start reading there with the module
//! text. What wants to stand between
//! a worker and its driver is a [`Layer`].

mod checks;
pub mod error;
mod fifo;
mod layer;
mod lock;
pub mod soft;
mod table;
mod timer;
mod types;
pub mod verbs;

use std::os::fd::BorrowedFd;

pub use pollux_ring::{Region, Wake};
pub use rustix::io::Errno;

pub use crate::error::{
    AdoptError, AdoptRefusal, CreateGroupError, CreateQpError, FlushError, GidHex, ModifyError,
    PostError, RegisterError,
};
pub use crate::layer::{Layer, Layered};
pub use crate::timer::rnr_timer_ns;
pub use crate::types::{
    Access, Armed, Completion, DeviceEvent, DeviceIdentity, DeviceLimits, GroupId, Lkey, Payload,
    Piece, PollGroupSpec, QpCaps, QpErrorCause, QpIndex, QpKind, QpSpec, QpState, QpStats,
    RemoteSpan, Rkey, RtrAttr, RtsAttr, Sge, Signal, Sleep, WcOpcode, WcStatus, WrId,
};

/// Slow path of a driver: one adapter port (or a pretended one). Used by the control thread.
///
/// Every method may block briefly. Errors leave nothing half made.
pub trait Device {
    /// Queue pair of this driver; may travel between threads.
    type Qp: Qp + Send;
    /// Poll group of this driver; may travel to its worker.
    type Group: PollGroup<Qp = Self::Qp> + Send;

    /// Who this device is. Does not change.
    fn identity(&self) -> &DeviceIdentity;

    /// Largest sizes this device accepts. Does not change.
    fn limits(&self) -> &DeviceLimits;

    /// Registers `len` bytes of `region` from `offset` on, so that work requests can name them.
    ///
    /// Each call has keys of its own, also for the same bytes. The region's memory stays mapped as long as
    /// the [`Mr`] lives. A worker knows the new keys when this returns; a peer may name the remote key as
    /// soon as it was told.
    ///
    /// # Errors
    /// [`RegisterError`]: empty or outside the region, no registration left, refused by the system.
    fn register(
        &self,
        region: &Region,
        offset: usize,
        len: usize,
        access: Access,
    ) -> Result<Mr, RegisterError>;

    /// Creates a poll group (a completion queue with its queue pairs).
    ///
    /// # Errors
    /// [`CreateGroupError`]: `cq_entries` is zero or over the limit, or the system refused.
    fn create_poll_group(&self, spec: &PollGroupSpec) -> Result<Self::Group, CreateGroupError>;

    /// Creates a queue pair in state RESET whose completions go to `group`.
    ///
    /// # Errors
    /// [`CreateQpError`], as a device refuses: EINVAL for sizes it does not have or a group that is
    /// gone, ENOMEM and ENOSPC for lack of room. A device may also *grant* another inline size than asked:
    /// read [`Qp::caps`].
    fn create_qp(&self, group: GroupId, spec: &QpSpec) -> Result<Self::Qp, CreateQpError>;

    /// RESET -> INIT: receives may be posted from now on.
    ///
    /// # Errors
    /// [`ModifyError::WrongState`].
    fn to_init(&self, qp: &mut Self::Qp) -> Result<(), ModifyError>;

    /// INIT -> RTR: binds the queue pair to its peer; the peer's requests are executed from now on (once it
    /// is adopted and polled).
    ///
    /// The peer's device must be reachable; the peer's *queue pair* may be bound before or after.
    ///
    /// # Errors
    /// [`ModifyError`]: wrong state, an attribute out of range, or no path to the peer. The state stays INIT.
    fn to_rtr(&self, qp: &mut Self::Qp, attr: &RtrAttr) -> Result<(), ModifyError>;

    /// RTR -> RTS: sends may be posted from now on.
    ///
    /// # Errors
    /// [`ModifyError`]: wrong state or an attribute out of range.
    fn to_rts(&self, qp: &mut Self::Qp, attr: &RtsAttr) -> Result<(), ModifyError>;

    /// Any state -> ERROR: everything outstanding is flushed; the completions come when the queue pair is
    /// adopted and polled.
    ///
    /// # Errors
    /// None of the soft driver; [`ModifyError::System`] where a system refuses.
    fn to_error(&self, qp: &mut Self::Qp) -> Result<(), ModifyError>;

    /// News since the last call, oldest first. A bounded number is kept; older ones are dropped.
    fn take_events(&self) -> Vec<DeviceEvent>;

    /// A descriptor that is readable while [`Device::take_events`] has something to say; `None` where
    /// nothing waits for it: the caller asks now and then.
    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// A queue pair at rest: owned by control, or on its way.
pub trait Qp {
    /// Number that the peer names in [`RtrAttr::peer_qpn`], 24 bits.
    fn qpn(&self) -> u32;
    /// Sizes as granted. Only these count, not those asked for.
    fn caps(&self) -> QpCaps;
    /// State.
    fn state(&self) -> QpState;
    /// Poll group it was created for.
    fn group(&self) -> GroupId;
}

/// Fast path of a driver: a completion queue and the queue pairs that report to it. One worker owns it.
pub trait PollGroup {
    /// Queue pair of this driver.
    type Qp;

    /// Name to give to [`Device::create_qp`].
    fn id(&self) -> GroupId;

    /// Takes a queue pair over. Slow: not for every pass.
    ///
    /// # Errors
    /// [`AdoptError`] gives the queue pair back unchanged: created for another group, or no place left.
    fn adopt(&mut self, qp: Self::Qp) -> Result<QpIndex, AdoptError<Self::Qp>>;

    /// Gives a queue pair back, with its posted work. Work flushed or not goes on as far as it can without
    /// being polled; nothing is reaped for it until it is adopted again. `None`: no such index.
    fn release(&mut self, qp: QpIndex) -> Option<Self::Qp>;

    /// Sizes as granted; all zero for an unknown index.
    fn caps(&self, qp: QpIndex) -> QpCaps;

    /// State as far as the caller was told: an error shows here at the latest when its completion was
    /// reaped. [`QpState::Reset`] for an unknown index.
    fn state(&self, qp: QpIndex) -> QpState;

    /// Posts a WRITE of `payload` to `to`.
    ///
    /// Needs state RTS. Inline bytes are read now; bytes by reference later, at the latest when the request
    /// is covered by a completion. Costs one send slot.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted then.
    fn post_write(
        &mut self,
        qp: QpIndex,
        wr: WrId,
        payload: Payload<'_>,
        to: RemoteSpan,
        signal: Signal,
    ) -> Result<(), PostError>;

    /// Posts a WRITE that also uses up one receive of the peer and hands it `imm`.
    ///
    /// Otherwise as [`PollGroup::post_write`].
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted then.
    fn post_write_imm(
        &mut self,
        qp: QpIndex,
        wr: WrId,
        payload: Payload<'_>,
        to: RemoteSpan,
        imm: u32,
        signal: Signal,
    ) -> Result<(), PostError>;

    /// Posts a SEND of `payload`. Needs state RTS; costs one send slot.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted then.
    fn post_send(
        &mut self,
        qp: QpIndex,
        wr: WrId,
        payload: Payload<'_>,
        signal: Signal,
    ) -> Result<(), PostError>;

    /// Posts a receive. Needs state INIT, RTR or RTS; takes effect at once, without a flush.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted then.
    fn post_recv(&mut self, qp: QpIndex, wr: WrId, into: Sge) -> Result<(), PostError>;

    /// Rings the doorbell of a queue pair: what was posted since the last flush becomes visible to the peer,
    /// as one chain. Without posted work it does nothing and counts nothing.
    ///
    /// # Errors
    /// [`FlushError::NoSuchQp`]. A dead or failed peer is not an error here; it shows as completions.
    fn flush(&mut self, qp: QpIndex) -> Result<(), FlushError>;

    /// Moves all queue pairs on and takes completions, at most `into.len()`, fairly between queue pairs.
    ///
    /// `now`: nanoseconds of a monotonic clock that never goes back between calls. Returns how many
    /// entries of `into` were filled, from the front. Bounded work per call.
    fn reap(&mut self, now: u64, into: &mut [Completion]) -> usize;

    /// Says what the caller is going to do now that it found nothing.
    ///
    /// [`Sleep::May`]: on [`Armed::Idle`] the caller may wait for the wake descriptor of the group; any
    /// later arrival, completion or device event signals it. On [`Armed::Pending`] it must poll again. The
    /// first such call after a [`Sleep::Never`] (or ever) may take milliseconds: it makes sure that every
    /// peer knows. From then on peers pay a fence per flush.
    /// [`Sleep::Never`]: the caller polls for ever; always answers [`Armed::Pending`]. A new group starts so.
    fn arm(&mut self, sleep: Sleep) -> Armed;

    /// Ends an [`Armed::Idle`]: wakes are not signalled any more. Draining the descriptor is the caller's.
    fn disarm(&mut self);

    /// Counters; all zero for an unknown index.
    fn stats(&self, qp: QpIndex) -> QpStats;
}

/// A registration. Dropping it deregisters: its keys mean nothing from the next call of each poll group
/// on, and work that still names them fails. The memory stays mapped until nobody reads it any more.
pub struct Mr {
    lkey: Lkey,
    rkey: Rkey,
    addr: u64,
    len: usize,
    _registration: Box<dyn Send + Sync>,
}

impl Mr {
    /// For drivers: wraps a registration whose drop undoes it.
    pub fn new(
        lkey: Lkey,
        rkey: Rkey,
        addr: u64,
        len: usize,
        registration: Box<dyn Send + Sync>,
    ) -> Mr {
        Mr {
            lkey,
            rkey,
            addr,
            len,
            _registration: registration,
        }
    }

    /// Key for our own work requests.
    pub fn lkey(&self) -> Lkey {
        self.lkey
    }

    /// Key to announce to the peer; only good for [`Access::RemoteWrite`].
    pub fn rkey(&self) -> Rkey {
        self.rkey
    }

    /// Virtual address of the first registered byte; what is announced to the peer.
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// Registered bytes.
    #[allow(clippy::len_without_is_empty, reason = "a registration is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }
}

impl core::fmt::Debug for Mr {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Mr {
            lkey,
            rkey,
            addr,
            len,
            ..
        } = self;
        write!(
            f,
            "Mr {{ {addr:#x}+{len}, lkey {:#010x}, rkey {:#010x} }}",
            lkey.0, rkey.0
        )
    }
}
