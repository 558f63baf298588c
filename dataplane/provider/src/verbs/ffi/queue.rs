//! Completion queues and queue pairs.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rdma_core_sys::{
    self as sys, PollCq, PostRecv, PostSend, ReqNotifyCq, ibv_comp_channel, ibv_cq, ibv_qp,
    ibv_qp_cap, ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_wc, zeroed,
};
use rustix::fs::OFlags;

use super::chain::Chain;
use super::{Context, Pd, checked, last_errno};
use crate::Errno;
use crate::verbs::attributes::Change;

/// What a function that is missing in a device's table stands for.
fn present<T>(function: Option<T>) -> Result<T, Errno> {
    function.ok_or(Errno::OPNOTSUPP)
}

/// Where a completion queue says that something came, once it was asked to.
struct Channel {
    context: Arc<Context>,
    raw: NonNull<ibv_comp_channel>,
}

impl Channel {
    fn new(context: &Arc<Context>) -> Result<Channel, Errno> {
        // SAFETY: an open context.
        let raw = unsafe { (context.library.ibv_create_comp_channel)(context.raw.as_ptr()) };
        let raw = NonNull::new(raw).ok_or_else(last_errno)?;
        let context = Arc::clone(context);
        let channel = Channel { context, raw };
        let flags = rustix::fs::fcntl_getfl(channel.fd())?;
        rustix::fs::fcntl_setfl(channel.fd(), flags | OFlags::NONBLOCK)?;
        Ok(channel)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel lives as long as `self`, and its beginning is as declared.
        let fd = unsafe { (*self.raw.as_ptr()).fd };
        // SAFETY: it is open as long as the channel lives.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: made by the library and destroyed once; its only queue went before it.
        let _ = unsafe { (self.context.library.ibv_destroy_comp_channel)(self.raw.as_ptr()) };
    }
}

/// A completion queue with a channel of its own.
pub(in super::super) struct Cq {
    raw: NonNull<ibv_cq>,
    poll: PollCq,
    notify: ReqNotifyCq,
    channel: Channel,
}

// SAFETY: calls of libibverbs may come from any thread; see the text of the module above.
unsafe impl Send for Cq {}
// SAFETY: as above.
unsafe impl Sync for Cq {}

impl fmt::Debug for Cq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cq").finish_non_exhaustive()
    }
}

impl AsFd for Cq {
    /// Readable when the queue has something to say, see [`Cq::take_events`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.fd()
    }
}

impl Cq {
    pub(in super::super) fn new(context: &Arc<Context>, entries: u32) -> Result<Arc<Cq>, Errno> {
        // SAFETY: an open context, whose function table was filled when it was opened.
        let ops = unsafe { (*context.raw.as_ptr()).ops };
        let (poll, notify) = (present(ops.poll_cq)?, present(ops.req_notify_cq)?);
        let channel = Channel::new(context)?;
        let entries = i32::try_from(entries).map_err(|_| Errno::INVAL)?;
        let (context, at) = (context.raw.as_ptr(), channel.raw.as_ptr());
        let create = channel.context.library.ibv_create_cq;
        // SAFETY: an open context and one of its channels, which is destroyed after the queue.
        let raw = unsafe { create(context, entries, ptr::null_mut(), at, 0) };
        let raw = NonNull::new(raw).ok_or_else(last_errno)?;
        Ok(Arc::new(Cq {
            raw,
            poll,
            notify,
            channel,
        }))
    }

    /// Takes completions; gives their number.
    #[inline]
    pub(in super::super) fn poll(&self, into: &mut [ibv_wc]) -> Result<usize, Errno> {
        let room = i32::try_from(into.len()).unwrap_or(i32::MAX);
        // SAFETY: a live queue of the device whose function this is, and room for so many completions.
        let count = unsafe { (self.poll)(self.raw.as_ptr(), room, into.as_mut_ptr()) };
        usize::try_from(count).map_err(|_| Errno::IO)
    }

    /// Asks to be told of the next completion.
    pub(in super::super) fn notify(&self) -> Result<(), Errno> {
        // SAFETY: a live queue of the device whose function this is.
        checked(unsafe { (self.notify)(self.raw.as_ptr(), 0) })
    }

    /// Takes what the channel has to say, and gives how often it has said something.
    pub(in super::super) fn take_events(&self) -> u32 {
        let library = &self.channel.context.library;
        let mut count = 0;
        loop {
            let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
            let channel = self.channel.raw.as_ptr();
            // SAFETY: a live channel whose descriptor does not block, and room for both answers.
            let code =
                unsafe { (library.ibv_get_cq_event)(channel, &raw mut cq, &raw mut context) };
            if code != 0 {
                break;
            }
            count += 1;
        }
        if count > 0 {
            // SAFETY: this queue is the only one of its channel, so that all events were its own.
            unsafe { (library.ibv_ack_cq_events)(self.raw.as_ptr(), count) };
        }
        count
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        // Unread events need no acknowledgement; those that were read have had theirs.
        // SAFETY: made by the library, destroyed once, and its queue pairs held it.
        let _ = unsafe { (self.channel.context.library.ibv_destroy_cq)(self.raw.as_ptr()) };
    }
}

/// A chain that an adapter did not take whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct Refused {
    /// Its answer.
    pub(in super::super) errno: Errno,
    /// Requests that it took, from the front.
    pub(in super::super) taken: usize,
}

/// A queue pair.
pub(in super::super) struct QueuePair {
    raw: NonNull<ibv_qp>,
    post_send: PostSend,
    post_recv: PostRecv,
    pd: Arc<Pd>,
    _cq: Arc<Cq>,
}

// SAFETY: calls of libibverbs may come from any thread; see the text of the module above.
unsafe impl Send for QueuePair {}
// SAFETY: as above.
unsafe impl Sync for QueuePair {}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePair")
            .field("qpn", &self.qpn())
            .finish_non_exhaustive()
    }
}

impl QueuePair {
    /// A reliable connection whose completions all go to `cq`, and its sizes as granted.
    pub(in super::super) fn create(
        pd: &Arc<Pd>,
        cq: &Arc<Cq>,
        cap: ibv_qp_cap,
    ) -> Result<(QueuePair, ibv_qp_cap), Errno> {
        let context = pd.context.raw.as_ptr();
        // SAFETY: an open context, whose function table was filled when it was opened.
        let ops = unsafe { (*context).ops };
        let (post_send, post_recv) = (present(ops.post_send)?, present(ops.post_recv)?);
        let mut attr: sys::ibv_qp_init_attr = zeroed();
        attr.send_cq = cq.raw.as_ptr();
        attr.recv_cq = cq.raw.as_ptr();
        attr.cap = cap;
        attr.qp_type = sys::IBV_QPT_RC;
        // SAFETY: a live protection domain, and attributes with a live queue of the same device; all
        // other pointers are null.
        let raw = unsafe { (pd.context.library.ibv_create_qp)(pd.raw.as_ptr(), &raw mut attr) };
        let raw = NonNull::new(raw).ok_or_else(last_errno)?;
        let (pd, _cq) = (Arc::clone(pd), Arc::clone(cq));
        let qp = QueuePair {
            raw,
            post_send,
            post_recv,
            pd,
            _cq,
        };
        Ok((qp, attr.cap))
    }

    pub(in super::super) fn qpn(&self) -> u32 {
        // SAFETY: the queue pair lives as long as `self`; its number does not change.
        unsafe { (*self.raw.as_ptr()).qp_num }
    }

    /// Changes state and attributes. A system call.
    pub(in super::super) fn modify(&self, change: &Change) -> Result<(), Errno> {
        let mut attr = change.attr;
        let (modify, mask) = (self.pd.context.library.ibv_modify_qp, change.mask as i32);
        // SAFETY: a live queue pair, and attributes of which the mask names those that are set.
        checked(unsafe { modify(self.raw.as_ptr(), &raw mut attr, mask) })
    }

    /// Hands a chain over, with one doorbell. It is empty afterwards, taken or not.
    #[inline]
    pub(in super::super) fn post_send(&self, chain: &mut Chain) -> Result<(), Refused> {
        let first = chain.link();
        let mut refused = ptr::null_mut();
        // SAFETY: a live queue pair of the device whose function this is, and a chain that ends with null. Its
        // pieces name registered memory, or inline bytes in the chain, which are read before this returns.
        let code = unsafe { (self.post_send)(self.raw.as_ptr(), first, &raw mut refused) };
        let outcome = checked(code).map_err(|errno| Refused {
            errno,
            taken: chain.index_of(refused),
        });
        chain.clear();
        outcome
    }

    /// Hands a SEND without bytes over, signalled. For queue pairs in the error state.
    pub(in super::super) fn post_marker(&self, wr_id: u64) -> Result<(), Errno> {
        let mut wr: ibv_send_wr = zeroed();
        wr.wr_id = wr_id;
        wr.opcode = sys::IBV_WR_SEND;
        wr.send_flags = sys::IBV_SEND_SIGNALED;
        let mut refused = ptr::null_mut();
        // SAFETY: a live queue pair of the device whose function this is, and a single request without pieces.
        checked(unsafe { (self.post_send)(self.raw.as_ptr(), &raw mut wr, &raw mut refused) })
    }

    /// Hands a receive over.
    #[inline]
    pub(in super::super) fn post_recv(&self, wr_id: u64, into: ibv_sge) -> Result<(), Errno> {
        let mut sge = into;
        let mut wr: ibv_recv_wr = zeroed();
        wr.wr_id = wr_id;
        wr.sg_list = &raw mut sge;
        wr.num_sge = 1;
        let mut refused = ptr::null_mut();
        // SAFETY: a live queue pair of the device whose function this is, and a single receive whose piece is
        // read before this returns.
        checked(unsafe { (self.post_recv)(self.raw.as_ptr(), &raw mut wr, &raw mut refused) })
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // Waits until control has acknowledged the events that it has read.
        // SAFETY: made by the library and destroyed once.
        let _ = unsafe { (self.pd.context.library.ibv_destroy_qp)(self.raw.as_ptr()) };
    }
}
