//! A link as the worker sees it: send slots, message slots and what waits for completions.

use crate::budget::{LLC_BACKLOG, SEND_SLOTS_FOR_LLC};
use crate::mailbox::{ConnId, InlineRule, LinkId, LlcBytes, MessageSlots};
use arrayvec::ArrayVec;
use pollux_proto::units::SentMark;
use pollux_provider::{QpCaps, QpIndex, Signal, WcStatus, WrId};
use std::collections::VecDeque;

/// A transmission whose by-reference bytes become free when the link's send queue has completed
/// up to `sequence`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Covered {
    pub(crate) sequence: u64,
    pub(crate) conn: ConnId,
    pub(crate) token: u32,
    pub(crate) mark: SentMark,
}

/// Whether a link carries traffic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LinkState {
    Up,
    /// A work request failed; waits for control to take the queue pair back.
    Failed(WcStatus),
}

/// Most connections of a link group, as its handshake can agree on.
const CONNS_MAX: usize = 255;

/// The send side's accounting is in sequence numbers: `posted` work requests so far, of which
/// `completed` are known to be done. The provider frees a slot only with a completion that covers
/// it, so at least one request in every quarter of the queue asks for one.
#[derive(Debug)]
pub struct Link {
    pub(crate) id: LinkId,
    pub(crate) qp: QpIndex,
    pub(crate) state: LinkState,
    /// What goes inline: what the queue pair granted, cut by the operator's rule.
    pub(crate) inline: InlineRule,
    pub(crate) granted_inline: u32,
    depth: u32,
    posted: u64,
    completed: u64,
    last_signaled: u64,
    pub(crate) receive: MessageSlots,
    pub(crate) send: MessageSlots,
    pub(crate) covered: VecDeque<Covered>,
    pub(crate) llc_backlog: ArrayVec<LlcBytes, LLC_BACKLOG>,
    /// Connections that found no send slot, in the order in which they came.
    pub(crate) waiters: VecDeque<ConnId>,
    /// Work was posted since the last doorbell.
    pub(crate) touched: Touched,
    pub(crate) conns: u32,
}

/// Whether a doorbell is due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Touched {
    Yes,
    No,
}

impl Link {
    /// Bookkeeping for a link whose queue pair has the sizes `caps`.
    ///
    /// `receive` has at most `caps.recv_wr` slots for incoming messages; `send` has at least
    /// `caps.send_wr` slots for messages that are too long to be posted inline.
    #[must_use]
    pub fn new(id: LinkId, caps: QpCaps, receive: MessageSlots, send: MessageSlots) -> Self {
        let depth = caps.send_wr;
        Link {
            id,
            qp: QpIndex(0),
            state: LinkState::Up,
            inline: InlineRule::ALL.within(caps.inline_bytes),
            granted_inline: caps.inline_bytes,
            depth,
            posted: 0,
            completed: 0,
            last_signaled: 0,
            receive,
            send,
            covered: VecDeque::with_capacity(depth as usize),
            llc_backlog: ArrayVec::new(),
            waiters: VecDeque::with_capacity(CONNS_MAX),
            touched: Touched::No,
            conns: 0,
        }
    }

    /// The worker's poll group has taken the queue pair.
    pub(crate) fn adopted(&mut self, qp: QpIndex, rule: InlineRule) {
        self.qp = qp;
        self.set_inline(rule);
    }

    /// The operator has spoken.
    pub(crate) fn set_inline(&mut self, rule: InlineRule) {
        self.inline = rule.within(self.granted_inline);
    }

    /// Send slots free for data: all but those kept for LLC.
    #[inline]
    pub(crate) fn free_for_data(&self) -> u32 {
        self.free().saturating_sub(SEND_SLOTS_FOR_LLC)
    }

    /// Send slots free.
    #[inline]
    pub(crate) fn free(&self) -> u32 {
        self.depth - (self.posted - self.completed) as u32
    }

    /// Identifier of the next work request.
    #[inline]
    pub(crate) fn next_wr(&self) -> WrId {
        WrId(self.posted)
    }

    /// Counts the work request just posted.
    #[inline]
    pub(crate) fn count_posted(&mut self, signal: Signal) {
        if signal == Signal::Signaled {
            self.last_signaled = self.posted;
        }
        self.posted += 1;
    }

    /// Whether the next work request, the last of its chain, should ask for a completion.
    #[inline]
    pub(crate) fn reclaim_signal(&self) -> Signal {
        if self.posted - self.last_signaled >= u64::from(self.depth / 4) {
            Signal::Signaled
        } else {
            Signal::Unsignaled
        }
    }

    /// Takes note of a successful completion, which covers all earlier requests.
    #[inline]
    pub(crate) fn complete(&mut self, wr: WrId) {
        debug_assert!(wr.0 < self.posted, "a completion for work never posted");
        self.completed = self.completed.max(wr.0 + 1).min(self.posted);
    }

    /// The next transmission whose bytes the completions so far have freed.
    #[inline]
    pub(crate) fn pop_covered(&mut self) -> Option<Covered> {
        if self.covered.front()?.sequence < self.completed {
            self.covered.pop_front()
        } else {
            None
        }
    }

    /// Offset in the send slots' region for the message with the next identifier.
    pub(crate) fn send_slot_offset(&self) -> usize {
        let slot = self.posted % u64::from(self.send.count);
        self.send.span.offset + slot as usize * self.send.bytes as usize
    }

    /// Offset in the receive slots' region of slot `slot`.
    #[inline]
    pub(crate) fn receive_slot_offset(&self, slot: u32) -> usize {
        self.receive.span.offset + slot as usize * self.receive.bytes as usize
    }
}
