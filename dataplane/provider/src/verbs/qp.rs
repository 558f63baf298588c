//! One queue pair: what is under way, and how it ends.

use std::sync::Arc;

use rdma_core_sys::{self as sys, ibv_wc};

use super::attributes;
use super::ffi::{Chain, QueuePair, Refused};
use super::name::{Name, Queue, position};
use super::shared::Seat;
use super::status::{Failed, FailedWork, wc_status};
use crate::fifo::Fifo;
use crate::{
    Completion, Errno, GroupId, Qp, QpCaps, QpIndex, QpState, QpStats, WcOpcode, WcStatus, WrId,
};

/// A queue pair of the verbs driver.
#[derive(Debug)]
pub struct VerbsQp {
    pub(super) core: Box<Core>,
}

impl Qp for VerbsQp {
    fn qpn(&self) -> u32 {
        self.core.qpn
    }

    fn caps(&self) -> QpCaps {
        self.core.caps
    }

    fn state(&self) -> QpState {
        self.core.visible_state()
    }

    fn group(&self) -> GroupId {
        self.core.seat.group
    }
}

/// A posted SEND or WRITE.
#[derive(Debug, Clone, Copy)]
pub(super) struct SendRecord {
    pub(super) wr: WrId,
    pub(super) byte_len: u32,
    pub(super) opcode: WcOpcode,
}

/// Whether everything that was rung before a failure has reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Drain {
    /// The marker behind it is under way.
    Waiting,
    /// What is still in the queue was never rung, or the adapter will not report it any more.
    Done,
}

/// Whether the caller knows of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Told {
    Yes,
    No,
}

#[derive(Debug)]
struct Failure {
    told: Told,
    drain: Drain,
    /// What the oldest request reports that the adapter never took; flushed if nothing.
    first: Option<WcStatus>,
}

/// All of a queue pair.
///
/// ```text
///   send:  first       rung          end        receives:  first     flushed     given       end
///            | at the    | in the     |                      | held    | at the    | never     |
///            | adapter   | chain      |                      | back    | adapter   | given     |
/// ```
#[derive(Debug)]
pub(super) struct Core {
    // Destroyed before its seat is free for another.
    pub(super) qp: Arc<QueuePair>,
    pub(super) seat: Seat,
    pub(super) qpn: u32,
    pub(super) caps: QpCaps,
    pub(super) state: QpState,
    pub(super) send: Fifo<SendRecord>,
    pub(super) rung: u64,
    pub(super) chain: Chain,
    pub(super) recv: Fifo<WrId>,
    pub(super) recv_flushed: u64,
    pub(super) recv_given: u64,
    failure: Option<Failure>,
    pub(super) stats: QpStats,
}

/// What a completion of the adapter comes to.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The caller's completion.
    Completion(Completion),
    /// Nothing for the caller now.
    Nothing,
}

impl Core {
    pub(super) fn new(qp: QueuePair, seat: Seat, caps: QpCaps) -> Core {
        let qp = Arc::new(qp);
        seat.occupy(&qp);
        let nothing = SendRecord {
            wr: WrId(0),
            byte_len: 0,
            opcode: WcOpcode::Send,
        };
        let (sends, pieces) = (caps.send_wr as usize, caps.send_sge as usize);
        Core {
            qpn: qp.qpn(),
            qp,
            seat,
            caps,
            state: QpState::Reset,
            send: Fifo::new(sends, nothing),
            rung: 0,
            chain: Chain::new(sends, pieces, caps.inline_bytes as usize),
            recv: Fifo::new(caps.recv_wr as usize, WrId(0)),
            recv_flushed: 0,
            recv_given: 0,
            failure: None,
            stats: QpStats::default(),
        }
    }

    pub(super) fn index(&self) -> QpIndex {
        QpIndex(self.seat.place)
    }

    #[inline(always)]
    pub(super) fn name(&self, queue: Queue, position: u64) -> u64 {
        let Seat { place, life, .. } = self.seat;
        Name {
            queue,
            life,
            place,
            position: position as u32,
        }
        .to_bits()
    }

    /// The state as far as the caller was told.
    #[inline(always)]
    pub(super) fn visible_state(&self) -> QpState {
        match &self.failure {
            Some(Failure {
                told: Told::Yes, ..
            }) => QpState::Error,
            Some(Failure { told: Told::No, .. }) | None => self.state,
        }
    }

    /// Whether the queue pair is lost, told or not. The adapter gets nothing any more.
    #[inline(always)]
    pub(super) fn is_failing(&self) -> bool {
        self.failure.is_some()
    }

    /// Hands the chain over. A chain that the adapter does not take fails the queue pair.
    #[inline]
    pub(super) fn flush(&mut self) {
        let end = self.send.end();
        // What was posted after a failure is not in it, and never rung.
        if self.chain.is_empty() {
            return;
        }
        self.stats.doorbells += 1;
        match self.qp.post_send(&mut self.chain) {
            Ok(()) => self.rung = end,
            Err(refused) => self.chain_refused(refused),
        }
    }

    #[cold]
    fn chain_refused(&mut self, refused: Refused) {
        let Refused { errno, taken } = refused;
        self.rung += taken as u64;
        self.seat.shared.failed(Failed {
            qpn: self.qpn,
            work: FailedWork::Send,
            status: sys::IBV_WC_LOC_QP_OP_ERR,
            vendor_err: errno.raw_os_error() as u32,
        });
        // Nothing comes of an adapter that is out of order but what is said here.
        let _ = self.fail(Some(WcStatus::General), Told::No);
    }

    /// Moves the queue pair into the error state, unless it is there.
    ///
    /// The adapter flushes what it has. A marker behind it tells when it is through with the sends, of which
    /// unsignalled successes say nothing; receives all report.
    ///
    /// # Errors
    /// The answer of a device that refused; the queue pair counts as failed all the same.
    #[cold]
    pub(super) fn fail(&mut self, first: Option<WcStatus>, told: Told) -> Result<(), Errno> {
        if let Some(failure) = &mut self.failure {
            if told == Told::Yes {
                failure.told = Told::Yes;
            }
            return Ok(());
        }
        self.chain.clear();
        let moved = self.qp.modify(&attributes::error());
        let mut drain = Drain::Done;
        match moved {
            Ok(()) if self.send.first() < self.rung => {
                let marker = self.name(Queue::Marker, 0);
                if self.qp.post_marker(marker).is_ok() {
                    drain = Drain::Waiting;
                }
            }
            Ok(()) => {}
            // A device that does not even do this reports nothing any more.
            Err(_) => self.recv_flushed = self.recv_given,
        }
        self.failure = Some(Failure { told, drain, first });
        moved
    }

    /// Takes a completion of the adapter.
    #[inline]
    pub(super) fn take(&mut self, name: Name, wc: &ibv_wc) -> Outcome {
        match name.queue {
            Queue::Send => self.take_send(name.position, wc),
            Queue::Recv => self.take_recv(name.position, wc),
            Queue::Marker => self.take_marker(),
        }
    }

    #[inline]
    fn take_send(&mut self, low: u32, wc: &ibv_wc) -> Outcome {
        let at = position(self.send.first(), low);
        let Some(&record) = self.send.get(at) else {
            return Outcome::Nothing;
        };
        // Unsignalled requests before it were done, or would have reported.
        self.send.drop_before(at + 1);
        let status = wc_status(wc.status);
        if status != WcStatus::Success {
            self.failed(FailedWork::Send, wc);
        }
        Outcome::Completion(self.complete_send(&record, status))
    }

    #[inline]
    fn take_recv(&mut self, low: u32, wc: &ibv_wc) -> Outcome {
        let at = position(self.recv.first(), low);
        let Some(&wr) = self.recv.get(at) else {
            return Outcome::Nothing;
        };
        let status = wc_status(wc.status);
        match status {
            WcStatus::Success => {}
            // In its turn, behind the sends: see `next_flushed`.
            WcStatus::WrFlush => {
                self.recv_flushed = at + 1;
                let _ = self.fail(None, Told::No);
                return Outcome::Nothing;
            }
            WcStatus::LocalLength
            | WcStatus::LocalProtection
            | WcStatus::RemoteAccess
            | WcStatus::RemoteInvalidRequest
            | WcStatus::RemoteOperation
            | WcStatus::RetryExceeded
            | WcStatus::RnrRetryExceeded
            | WcStatus::General => self.failed(FailedWork::Recv, wc),
        }
        self.recv.drop_before(at + 1);
        self.recv_flushed = self.recv_flushed.max(at + 1);
        let with_imm = status == WcStatus::Success && wc.wc_flags & sys::IBV_WC_WITH_IMM != 0;
        let opcode = if with_imm && wc.opcode == sys::IBV_WC_RECV_RDMA_WITH_IMM {
            WcOpcode::RecvWithImm
        } else {
            WcOpcode::Recv
        };
        self.stats.recv_completions += 1;
        Outcome::Completion(Completion {
            wr_id: wr,
            qp: self.index(),
            status,
            opcode,
            byte_len: wc.byte_len,
            imm: with_imm.then(|| u32::from_be(wc.imm_data)),
        })
    }

    fn take_marker(&mut self) -> Outcome {
        if let Some(failure) = &mut self.failure {
            failure.drain = Drain::Done;
            let done = self.rung.max(self.send.first());
            self.send.drop_before(done);
        }
        Outcome::Nothing
    }

    /// The adapter has told the caller, who reads it in a moment.
    #[cold]
    fn failed(&mut self, work: FailedWork, wc: &ibv_wc) {
        if self.failure.is_none() && wc.status != sys::IBV_WC_WR_FLUSH_ERR {
            self.seat.shared.failed(Failed {
                qpn: self.qpn,
                work,
                status: wc.status,
                vendor_err: wc.vendor_err,
            });
        }
        let _ = self.fail(None, Told::Yes);
    }

    fn complete_send(&mut self, record: &SendRecord, status: WcStatus) -> Completion {
        self.stats.send_completions += 1;
        Completion {
            wr_id: record.wr,
            qp: self.index(),
            status,
            opcode: record.opcode,
            byte_len: record.byte_len,
            imm: None,
        }
    }

    /// The next completion of a failing queue pair that does not come from the adapter: sends that were
    /// never rung, then receives, those that the adapter has flushed and those that it never got.
    #[cold]
    pub(super) fn next_flushed(&mut self) -> Option<Completion> {
        if !self.has_flushed() {
            return None;
        }
        let failure = self.failure.as_mut()?;
        failure.told = Told::Yes;
        if let Some(&record) = self.send.front() {
            let status = failure.first.take().unwrap_or(WcStatus::WrFlush);
            self.send.pop();
            return Some(self.complete_send(&record, status));
        }
        let wr = self.recv.pop()?;
        self.stats.recv_completions += 1;
        Some(Completion {
            wr_id: wr,
            qp: self.index(),
            status: WcStatus::WrFlush,
            opcode: WcOpcode::Recv,
            byte_len: 0,
            imm: None,
        })
    }

    /// Whether [`Core::next_flushed`] has something.
    pub(super) fn has_flushed(&self) -> bool {
        match &self.failure {
            None => false,
            Some(failure) if failure.drain == Drain::Waiting => false,
            Some(_) if !self.send.is_empty() => true,
            Some(_) => {
                let first = self.recv.first();
                !self.recv.is_empty() && (first < self.recv_flushed || first >= self.recv_given)
            }
        }
    }
}
