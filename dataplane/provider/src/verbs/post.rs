//! Posting: checks, a record, and a place in the chain.

use rdma_core_sys::{self as sys, ibv_sge};

use super::ffi::Request;
use super::name::Queue;
use super::qp::{Core, SendRecord, Told};
use super::shared::{MrEntry, by_lkey};
use crate::checks::{check_bounds, check_count, check_inline, may_send};
use crate::table::View;
use crate::{Payload, Piece, PostError, QpState, RemoteSpan, Sge, Signal, WcOpcode, WrId};

/// What is asked of the adapter.
#[derive(Debug, Clone, Copy)]
pub(super) enum Verb {
    Send,
    Write(RemoteSpan),
    WriteImm(RemoteSpan, u32),
}

/// A send or WRITE to be posted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Work {
    pub(super) wr: WrId,
    pub(super) verb: Verb,
    pub(super) signal: Signal,
}

/// For the counters, and for the adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Placement {
    Inline,
    ByReference,
}

/// The bytes of a request, which lie in the next place of the chain.
struct Placed {
    bytes: u32,
    /// Pieces by reference.
    pieces: usize,
    placement: Placement,
}

impl Core {
    /// Posts a send or WRITE.
    #[inline]
    pub(super) fn post(
        &mut self,
        mrs: &View<MrEntry>,
        work: Work,
        payload: Payload<'_>,
    ) -> Result<(), PostError> {
        may_send(self.visible_state(), self.send.len(), &self.caps)?;
        let placed = match payload {
            Payload::Inline(pieces) => self.place_pieces(pieces)?,
            Payload::InlineBytes(message) => {
                check_inline(message.len() as u64, &self.caps)?;
                self.chain.bytes(message.len()).copy_from_slice(message);
                Placed {
                    bytes: message.len() as u32,
                    pieces: 0,
                    placement: Placement::Inline,
                }
            }
            Payload::ByReference(from) => self.place_references(mrs, from)?,
        };
        self.count_post(work.verb, &placed);
        self.record(work, &placed);
        Ok(())
    }

    #[inline]
    fn place_pieces(&mut self, pieces: &[Piece<'_>]) -> Result<Placed, PostError> {
        check_count(pieces.len(), &self.caps)?;
        pieces.iter().try_for_each(check_bounds)?;
        let bytes = pieces.iter().map(|piece| u64::from(piece.length)).sum();
        check_inline(bytes, &self.caps)?;
        let mut place = self.chain.bytes(bytes as usize);
        for piece in pieces {
            let (now, later) = place.split_at_mut(piece.length as usize);
            let copied = piece.region.copy_out(piece.offset, now);
            debug_assert!(copied.is_ok(), "the bounds were checked: {copied:?}");
            place = later;
        }
        Ok(Placed {
            bytes: bytes as u32,
            pieces: 0,
            placement: Placement::Inline,
        })
    }

    #[inline]
    fn place_references(&mut self, mrs: &View<MrEntry>, from: &[Sge]) -> Result<Placed, PostError> {
        check_count(from.len(), &self.caps)?;
        let mut bytes = 0;
        for (place, sge) in self.chain.sges().iter_mut().zip(from) {
            *place = checked_piece(mrs, sge)?;
            bytes += u64::from(sge.length);
        }
        let limit = self.seat.shared.limits.message_bytes_max;
        if bytes > u64::from(limit) {
            return Err(PostError::TooLong { bytes, limit });
        }
        Ok(Placed {
            bytes: bytes as u32,
            pieces: from.len(),
            placement: Placement::ByReference,
        })
    }

    /// Appends to queue and chain. After a failure that the caller does not know of yet, to the queue only.
    #[inline]
    fn record(&mut self, work: Work, placed: &Placed) {
        let Work { wr, verb, signal } = work;
        let wr_id = self.name(Queue::Send, self.send.end());
        let opcode = match verb {
            Verb::Send => WcOpcode::Send,
            Verb::Write(_) | Verb::WriteImm(..) => WcOpcode::Write,
        };
        self.send.push(SendRecord {
            wr,
            byte_len: placed.bytes,
            opcode,
        });
        if self.is_failing() {
            return;
        }
        let (mut flags, size) = match placed.placement {
            Placement::Inline if placed.bytes > 0 => (sys::IBV_SEND_INLINE, placed.bytes as usize),
            // Nothing to be read now, or ever.
            Placement::Inline => (0, 0),
            Placement::ByReference => (0, placed.pieces),
        };
        if signal == Signal::Signaled {
            flags |= sys::IBV_SEND_SIGNALED;
        }
        let nowhere = RemoteSpan {
            addr: 0,
            rkey: crate::Rkey(0),
        };
        let (opcode, to, imm) = match verb {
            Verb::Send => {
                flags |= sys::IBV_SEND_SOLICITED;
                (sys::IBV_WR_SEND, nowhere, 0)
            }
            Verb::Write(to) => (sys::IBV_WR_RDMA_WRITE, to, 0),
            Verb::WriteImm(to, imm) => (sys::IBV_WR_RDMA_WRITE_WITH_IMM, to, imm),
        };
        let request = Request {
            wr_id,
            opcode,
            flags,
            imm_data: imm.to_be(),
            remote_addr: to.addr,
            rkey: to.rkey.0,
        };
        self.chain.push(&request, size);
    }

    #[inline]
    fn count_post(&mut self, verb: Verb, placed: &Placed) {
        let stats = &mut self.stats;
        stats.bytes_posted += u64::from(placed.bytes);
        stats.writes_with_imm += u64::from(matches!(verb, Verb::WriteImm(..)));
        let counter = match (verb, placed.placement) {
            (Verb::Send, Placement::Inline) => &mut stats.sends_inline,
            (Verb::Send, Placement::ByReference) => &mut stats.sends_by_reference,
            (Verb::Write(_) | Verb::WriteImm(..), Placement::Inline) => &mut stats.writes_inline,
            (Verb::Write(_) | Verb::WriteImm(..), Placement::ByReference) => {
                &mut stats.writes_by_reference
            }
        };
        *counter += 1;
    }

    /// Posts a receive. Adapters see it at once.
    #[inline]
    pub(super) fn post_recv(
        &mut self,
        mrs: &View<MrEntry>,
        wr: WrId,
        into: Sge,
    ) -> Result<(), PostError> {
        match self.visible_state() {
            QpState::Init | QpState::Rtr | QpState::Rts => {}
            state @ (QpState::Reset | QpState::Error) => return Err(PostError::WrongState(state)),
        }
        let piece = checked_piece(mrs, &into)?;
        if self.recv.len() >= self.caps.recv_wr as usize {
            return Err(PostError::RecvQueueFull);
        }
        let at = self.recv.end();
        self.recv.push(wr);
        self.stats.recvs_posted += 1;
        if self.is_failing() {
            return Ok(());
        }
        let name = self.name(Queue::Recv, at);
        match self.qp.post_recv(name, piece) {
            Ok(()) => self.recv_given = at + 1,
            // There was room, and the piece is good: the queue pair is of no use any more. It completes with
            // the others.
            Err(_) => drop(self.fail(None, Told::No)),
        }
        Ok(())
    }
}

/// The piece as the adapter knows it, if it lies in its registration.
#[inline(always)]
fn checked_piece(mrs: &View<MrEntry>, sge: &Sge) -> Result<ibv_sge, PostError> {
    let &Sge { addr, length, lkey } = sge;
    let mr = by_lkey(mrs, lkey).ok_or(PostError::BadLkey(lkey.0))?;
    if !mr.holds(addr, u64::from(length)) {
        return Err(PostError::OutOfRegion { addr, length });
    }
    Ok(ibv_sge {
        addr,
        length,
        lkey: mr.adapter_lkey,
    })
}
