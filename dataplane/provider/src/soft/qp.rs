//! A queue pair: its queues, its port, and what it knows of its peer.
//!
//! The requester's side is in `qp_send`, the target's side in `qp_target`; both are methods of [`Core`].
//! Nothing here is shared with another thread: the port's words are how the two ends talk, and the
//! door is how the device brings the peer's port.

use std::sync::Arc;

use pollux_ring::{LineReader, Region, Wake};

use super::barrier::Fence;
use super::line_format::{
    CARRIED_BYTES_MAX, EMPTY_LINE, LineBytes, NOTICE_LINE, Verb, continue_chain, lines_of,
};
use super::port::{PeerPort, Port, PortError, Verdict};
use super::shared::{Door, Peer, Shared};
use crate::fifo::Fifo;
use crate::table::View;
use crate::{
    DeviceEvent, GroupId, Lkey, Qp, QpCaps, QpErrorCause, QpIndex, QpState, QpStats, RtrAttr,
    Signal, WcOpcode, WcStatus, WrId,
};

/// One line of the ring stays free for the notice, so that news of an error always fits.
pub(super) const NOTICE_LINES: usize = 1;

/// Line position of work that is never transferred.
pub(super) const NEVER: u64 = u64::MAX;

/// A send or WRITE that no reaped completion covers yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct SendRecord {
    pub(super) wr: WrId,
    /// Lines of our ring up to and including this request, since the beginning.
    pub(super) line_end: u64,
    pub(super) byte_len: u32,
    pub(super) opcode: WcOpcode,
    pub(super) signal: Signal,
}

/// A posted receive.
#[derive(Debug, Clone, Copy)]
pub(super) struct RecvRecord {
    pub(super) wr: WrId,
    pub(super) addr: u64,
    pub(super) length: u32,
    pub(super) lkey: Lkey,
}

/// The requester's queue.
///
/// ```text
///   first        examined       pushed        flushed        end
///     | executed,    | maybe in    | rung, waits  | posted,    |
///     | unsignalled  | the ring    | for lines    | not rung   |
/// ```
#[derive(Debug)]
pub(super) struct SendQueue {
    pub(super) records: Fifo<SendRecord>,
    /// Records before this one are executed and unsignalled: they wait for a completion to cover them.
    pub(super) examined: u64,
    /// Records before this one are in the ring.
    pub(super) pushed: u64,
    /// Records before this one may go into the ring.
    pub(super) flushed: u64,
    /// Signalled records that are flushed and not completed.
    pub(super) signalled_flushed: u32,
    /// Signalled records that are not flushed.
    pub(super) signalled_posted: u32,
    /// Lines of the records from `pushed` on.
    pub(super) staged: Fifo<LineBytes>,
    /// Where among these the newest request begins, until it is rung.
    pub(super) chain_tail: Option<u64>,
    /// Lines of all records since the beginning.
    pub(super) line_end: u64,
    /// Lines of requests that the peer says it has consumed.
    pub(super) acked_lines: u64,
    /// Lines of requests that will ever be in the ring: known once the port is closed.
    pub(super) lines_max: u64,
}

impl SendQueue {
    fn new(caps: &QpCaps) -> SendQueue {
        // Any mixture of inline requests fits, and one long message from private memory besides.
        let verb = Verb::WriteImm {
            addr: 0,
            rkey: 0,
            imm: 0,
        };
        let inline_lines = lines_of(verb, caps.inline_bytes as usize);
        let carried_lines = lines_of(verb, CARRIED_BYTES_MAX as usize);
        let filler = SendRecord {
            wr: WrId(0),
            line_end: NEVER,
            byte_len: 0,
            opcode: WcOpcode::Send,
            signal: Signal::Unsignaled,
        };
        let staged_lines = caps.send_wr as usize * inline_lines + carried_lines;
        SendQueue {
            records: Fifo::new(caps.send_wr as usize, filler),
            examined: 0,
            pushed: 0,
            flushed: 0,
            signalled_flushed: 0,
            signalled_posted: 0,
            staged: Fifo::new(staged_lines, EMPTY_LINE),
            chain_tail: None,
            line_end: 0,
            acked_lines: 0,
            lines_max: NEVER,
        }
    }

    /// Before a request is staged: it becomes the end of its chain, and the one before it is the end no more.
    #[inline(always)]
    pub(super) fn extend_chain(&mut self) {
        let before = self.chain_tail.replace(self.staged.end());
        if let Some(line) = before.and_then(|before| self.staged.get_mut(before)) {
            continue_chain(line);
        }
    }

    /// Whether something rung has not been executed, as far as we know.
    pub(super) fn has_unacked(&self) -> bool {
        let last = self
            .flushed
            .checked_sub(1)
            .and_then(|last| self.records.get(last));
        last.is_some_and(|last| last.line_end > self.acked_lines)
    }
}

const NO_RECV: RecvRecord = RecvRecord {
    wr: WrId(0),
    addr: 0,
    length: 0,
    lkey: Lkey(0),
};

/// What a queue pair knows of its peer once the two are connected.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) port: PeerPort,
    pub(super) exports: View<Region>,
    pub(super) wake: Wake,
    /// The sleep for which the peer was woken already.
    pub(super) woken_for: Option<u64>,
    /// The peer's port, as a source of payload.
    pub(super) memory: Region,
    /// The reader of the peer's requests, while no group has it.
    pub(super) reader: Option<LineReader>,
}

/// The other end, as the caller named it.
#[derive(Debug, Clone)]
pub(super) struct Bound {
    pub(super) attr: RtrAttr,
    pub(super) peer: Arc<Peer>,
}

/// Waiting after "receiver not ready".
#[derive(Debug, Clone, Copy)]
pub(super) struct RnrWait {
    pub(super) until: u64,
    pub(super) naks: u32,
}

/// The error state.
#[derive(Debug, Clone, Copy)]
pub(super) struct Failure {
    /// What the first request that was not executed reports; flush if none.
    pub(super) first: Option<WcStatus>,
    /// Whether the caller has reaped (or asked for) it.
    pub(super) told: bool,
}

/// All of a queue pair. Aligned so that it never shares a pair of cache lines with another thread's.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Core {
    pub(super) shared: Arc<Shared>,
    pub(super) door: Arc<Door>,
    pub(super) group: GroupId,
    pub(super) caps: QpCaps,
    /// The state before an error.
    pub(super) state: QpState,
    pub(super) failure: Option<Failure>,
    /// Whom this queue pair talks to, from RTR on.
    pub(super) bound: Option<Bound>,
    pub(super) port: Port,
    pub(super) link: Option<Link>,
    pub(super) send: SendQueue,
    pub(super) recv: Fifo<RecvRecord>,
    pub(super) rnr: Option<RnrWait>,
    /// Whether the peer's first line met our expectation of its sequence number.
    pub(super) psn_checked: bool,
    /// Whether the port is open: the peer's requests are executed and ours go into the ring. Ends with an error, or
    /// when the peer has to give up.
    pub(super) open: bool,
    /// Lines of the peer that were consumed.
    pub(super) consumed: u64,
    /// Lines of the peer that we said we consumed.
    pub(super) published: u64,
    /// The peer is gone or has closed: nothing of ours will be executed any more.
    pub(super) peer_closed: bool,
    pub(super) stats: QpStats,
    pub(super) index: QpIndex,
    /// Whether a flush has to assume that the peer may sleep, whatever it says.
    pub(super) fence: Fence,
}

impl Core {
    pub(super) fn new(
        shared: &Arc<Shared>,
        door: Arc<Door>,
        group: GroupId,
        caps: QpCaps,
    ) -> Result<Core, PortError> {
        let send = SendQueue::new(&caps);
        Ok(Core {
            port: Port::create(door.qpn, send.staged.room())?,
            shared: Arc::clone(shared),
            door,
            group,
            caps,
            state: QpState::Reset,
            failure: None,
            bound: None,
            link: None,
            send,
            recv: Fifo::new(caps.recv_wr as usize, NO_RECV),
            rnr: None,
            psn_checked: false,
            open: true,
            consumed: 0,
            published: 0,
            peer_closed: false,
            stats: QpStats::default(),
            index: QpIndex(u16::MAX),
            fence: shared.fence,
        })
    }

    /// State as far as the caller was told.
    pub(super) fn visible_state(&self) -> QpState {
        match self.failure {
            Some(failure) if failure.told || !self.has_work() => QpState::Error,
            Some(_) | None => self.state,
        }
    }

    fn has_work(&self) -> bool {
        !self.send.records.is_empty() || !self.recv.is_empty()
    }

    /// Whether a poll may find something that no line of the peer announces.
    pub(super) fn needs_attention(&self) -> bool {
        let unsent = self.send.pushed < self.send.flushed;
        self.send.signalled_flushed > 0
            || unsent
            || self.rnr.is_some()
            || self.failure.is_some() && self.has_work()
            || self.peer_closed && self.failure.is_none() && self.send.has_unacked()
    }

    /// Takes the peer's port from the door if it has come. Slow.
    pub(super) fn connect(&mut self) {
        let Some(bound) = self.bound.as_ref().filter(|_| self.link.is_none()) else {
            return;
        };
        let Some(offer) = self.door.take(&bound.peer, bound.attr.peer_qpn) else {
            return;
        };
        match PeerPort::open(&offer.port, offer.qpn) {
            Ok((port, reader)) => {
                self.link = Some(Link {
                    exports: offer.peer.exports.view(),
                    port,
                    memory: Region::Shared(offer.port),
                    wake: offer.wake,
                    woken_for: None,
                    reader: Some(reader),
                });
                // What was written before is seen now; the peer may have gone to sleep without it.
                self.wake_peer(WakeFor::Requests);
            }
            Err(refusal) => self.shared.event(DeviceEvent::PeerRefused {
                what: format!("queue pair {:#08x}: {refusal}", self.door.qpn),
            }),
        }
    }

    /// Looks at the slow-path news: offers, exports, lives of peers.
    pub(super) fn catch_up(&mut self) {
        self.connect();
        if let Some(link) = &mut self.link {
            link.exports.refresh();
        }
        self.peer_closed |= self
            .bound
            .as_ref()
            .is_some_and(|bound| bound.peer.is_gone());
    }

    /// Enters the error state. `first` is for the oldest request that was not executed.
    pub(super) fn fail(&mut self, first: Option<WcStatus>, told: Told) {
        if let Some(failure) = &mut self.failure {
            failure.told |= told == Told::Yes;
            return;
        }
        self.failure = Some(Failure {
            first,
            told: told == Told::Yes,
        });
        self.open = false;
        self.rnr = None;
        self.close_port(Verdict::Closed);
    }

    /// Enters the error state because the peer asked for something impossible.
    pub(super) fn refuse(&mut self, status: WcStatus) {
        self.close_port(Verdict::Refused(status));
        self.shared.event(DeviceEvent::QpError {
            qpn: self.door.qpn,
            cause: QpErrorCause::Responder(status),
        });
        self.fail(None, Told::No);
    }

    /// Tells the peer how far we are, if it does not know.
    #[inline]
    pub(super) fn publish_consumed(&mut self) {
        if self.published != self.consumed {
            self.published = self.consumed;
            self.port.publish_consumed(self.consumed);
            self.wake_peer(WakeFor::Acks);
        }
    }

    /// Tells the peer that nothing is executed here any more, at once if it polls.
    pub(super) fn close_port(&mut self, verdict: Verdict) {
        self.publish_consumed();
        if !self.port.publish_verdict(verdict) {
            return;
        }
        // What is not in the ring now will never be; the notice is no request.
        self.send.lines_max = self.port.written_lines();
        // Every request has left this line free.
        self.port.write_line(&NOTICE_LINE);
        self.wake_peer(WakeFor::Requests);
    }
}

/// Whether the caller knows of the error already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Told {
    Yes,
    No,
}

/// What a sleeping peer would be woken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WakeFor {
    /// New lines in our ring.
    Requests,
    /// Consumption of the peer's lines: wakes only a peer that waits for that.
    Acks,
}

/// A queue pair of a soft device, at rest. Dropping it destroys it; its peer finds nobody any more.
#[derive(Debug)]
pub struct SoftQp {
    pub(super) core: Box<Core>,
}

impl Qp for SoftQp {
    fn qpn(&self) -> u32 {
        self.core.door.qpn
    }

    fn caps(&self) -> QpCaps {
        self.core.caps
    }

    fn state(&self) -> QpState {
        self.core.visible_state()
    }

    fn group(&self) -> GroupId {
        self.core.group
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.close_port(Verdict::Closed);
        self.shared.remove_qp(self.door.qpn, self.group, &self.caps);
    }
}
