//! The requester's side of a queue pair: posting, ringing, and learning what became of it.

use arrayvec::ArrayVec;
use pollux_ring::hint::fence_before_sleep_check;

use super::barrier::Fence;
use super::group::Sink;
use super::line_format::{self, CARRIED_BYTES_MAX, MESSAGE_BYTES_MAX, PIECES_MAX, Source, Verb};
use super::port::Verdict;
use super::qp::{Core, Link, NEVER, NOTICE_LINES, RecvRecord, SendRecord, Told, WakeFor};
use super::shared::{MrEntry, by_lkey};
use crate::checks::{check_bounds, check_count, check_inline, may_send};
use crate::table::View;
use crate::{
    Completion, DeviceEvent, Payload, Piece, PostError, QpErrorCause, QpState, Region, Sge, Signal,
    WcOpcode, WcStatus, WrId,
};

/// A send or WRITE to be posted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Work {
    pub(super) wr: WrId,
    pub(super) verb: Verb,
    pub(super) signal: Signal,
}

/// A registered piece after its key and bounds were checked.
#[derive(Clone, Copy)]
struct Registered<'a> {
    mr: &'a MrEntry,
    offset: usize,
    len: u32,
}

type Pieces<'a> = ArrayVec<Registered<'a>, PIECES_MAX>;

/// For the counters.
#[derive(Clone, Copy)]
enum Placement {
    Inline,
    ByReference,
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
        may_send(self.visible_state(), self.send.records.len(), &self.caps)?;
        let (bytes, placement) = match payload {
            Payload::Inline(pieces) => (self.post_inline(work, pieces)?, Placement::Inline),
            Payload::InlineBytes(message) => (self.post_bytes(work, message)?, Placement::Inline),
            Payload::ByReference(from) => {
                let (pieces, bytes) = self.check_pieces(mrs, from)?;
                self.post_referenced(work, bytes, &pieces)?;
                (bytes, Placement::ByReference)
            }
        };
        self.count_post(work.verb, bytes, placement);
        Ok(())
    }

    /// Posts mapped memory, inline; gives the number of bytes.
    #[inline]
    fn post_inline(&mut self, work: Work, pieces: &[Piece<'_>]) -> Result<u64, PostError> {
        // Nearly everything that is posted is one piece.
        if let [piece] = pieces {
            check_bounds(piece)?;
            let bytes = u64::from(piece.length);
            check_inline(bytes, &self.caps)?;
            let mut at = piece.offset;
            self.post_carried(work, piece.length as usize, |place| {
                copy_out(piece.region, at, place);
                at += place.len();
            })?;
            return Ok(bytes);
        }
        check_count(pieces.len(), &self.caps)?;
        pieces.iter().try_for_each(check_bounds)?;
        let bytes = pieces.iter().map(|piece| u64::from(piece.length)).sum();
        check_inline(bytes, &self.caps)?;
        self.post_carried(work, bytes as usize, gather(pieces))?;
        Ok(bytes)
    }

    /// Posts ordinary memory, inline; gives the number of bytes.
    #[inline]
    fn post_bytes(&mut self, work: Work, message: &[u8]) -> Result<u64, PostError> {
        let bytes = message.len() as u64;
        check_inline(bytes, &self.caps)?;
        let mut rest = message;
        self.post_carried(work, message.len(), |place| {
            let (now, later) = rest.split_at(place.len());
            place.copy_from_slice(now);
            rest = later;
        })?;
        Ok(bytes)
    }

    /// Posts a receive.
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
        let Sge { addr, length, lkey } = into;
        let mr = by_lkey(mrs, lkey).ok_or(PostError::BadLkey(lkey.0))?;
        if mr.offset(addr, u64::from(length)).is_none() {
            return Err(PostError::OutOfRegion { addr, length });
        }
        if self.recv.len() >= self.caps.recv_wr as usize {
            return Err(PostError::RecvQueueFull);
        }
        self.recv.push(RecvRecord {
            wr,
            addr,
            length,
            lkey,
        });
        self.stats.recvs_posted += 1;
        Ok(())
    }

    #[inline(always)]
    fn check_pieces<'a>(
        &self,
        mrs: &'a View<MrEntry>,
        from: &[Sge],
    ) -> Result<(Pieces<'a>, u64), PostError> {
        check_count(from.len(), &self.caps)?;
        let mut pieces = Pieces::new();
        let mut bytes = 0;
        for sge in from {
            bytes += u64::from(sge.length);
            pieces.push(check_piece(mrs, sge)?);
        }
        Ok((pieces, bytes))
    }

    #[inline]
    fn post_carried(
        &mut self,
        work: Work,
        len: usize,
        fill: impl FnMut(&mut [u8]),
    ) -> Result<(), PostError> {
        if !self.open {
            self.record(work, len as u32, NEVER);
            return Ok(());
        }
        let lines = line_format::lines_of(work.verb, len);
        if self.send.staged.room() < lines {
            return Err(PostError::SendQueueFull);
        }
        self.send.extend_chain();
        line_format::emit_carried(work.verb, len, &mut self.send.staged, fill);
        let line_end = self.send.line_end + lines as u64;
        self.record(work, len as u32, line_end);
        Ok(())
    }

    fn post_referenced(
        &mut self,
        work: Work,
        bytes: u64,
        pieces: &Pieces<'_>,
    ) -> Result<(), PostError> {
        let too_long = |limit| PostError::TooLong { bytes, limit };
        if bytes > u64::from(MESSAGE_BYTES_MAX) {
            return Err(too_long(MESSAGE_BYTES_MAX));
        }
        let source = |piece: &Registered<'_>| {
            let (offset, len) = (piece.offset as u64, piece.len);
            piece.mr.export.map(|export| Source {
                export,
                offset,
                len,
            })
        };
        let sources: Option<ArrayVec<Source, PIECES_MAX>> = pieces.iter().map(source).collect();
        let Some(sources) = sources.filter(|_| bytes > 0) else {
            // Private memory: the peer cannot read it, so lines carry it, as an adapter would fetch it.
            if bytes > u64::from(CARRIED_BYTES_MAX) {
                return Err(too_long(CARRIED_BYTES_MAX));
            }
            let pieces: ArrayVec<Piece<'_>, PIECES_MAX> =
                pieces.iter().map(Registered::mapped).collect();
            return self.post_carried(work, bytes as usize, gather(&pieces));
        };
        if !self.open {
            self.record(work, bytes as u32, NEVER);
            return Ok(());
        }
        if self.send.staged.room() == 0 {
            return Err(PostError::SendQueueFull);
        }
        self.send.extend_chain();
        line_format::emit_referenced(work.verb, &sources, self.send.staged.claim());
        let line_end = self.send.line_end + 1;
        self.record(work, bytes as u32, line_end);
        Ok(())
    }

    #[inline(always)]
    fn record(&mut self, work: Work, byte_len: u32, line_end: u64) {
        let opcode = match work.verb {
            Verb::Send => WcOpcode::Send,
            Verb::Write { .. } | Verb::WriteImm { .. } => WcOpcode::Write,
        };
        let Work { wr, signal, .. } = work;
        self.send.line_end = line_end;
        self.send.signalled_posted += u32::from(signal == Signal::Signaled);
        self.send.records.push(SendRecord {
            wr,
            line_end,
            byte_len,
            opcode,
            signal,
        });
    }

    #[inline]
    fn count_post(&mut self, verb: Verb, bytes: u64, placement: Placement) {
        let stats = &mut self.stats;
        stats.bytes_posted += bytes;
        stats.writes_with_imm += u64::from(matches!(verb, Verb::WriteImm { .. }));
        let counter = match (verb, placement) {
            (Verb::Send, Placement::Inline) => &mut stats.sends_inline,
            (Verb::Send, Placement::ByReference) => &mut stats.sends_by_reference,
            (Verb::Write { .. } | Verb::WriteImm { .. }, Placement::Inline) => {
                &mut stats.writes_inline
            }
            (Verb::Write { .. } | Verb::WriteImm { .. }, Placement::ByReference) => {
                &mut stats.writes_by_reference
            }
        };
        *counter += 1;
    }

    /// Rings: what was posted may go into the ring.
    #[inline]
    pub(super) fn flush(&mut self) {
        let end = self.send.records.end();
        if self.send.flushed == end {
            return;
        }
        self.stats.doorbells += 1;
        self.send.signalled_flushed += self.send.signalled_posted;
        self.send.signalled_posted = 0;
        self.send.chain_tail = None;
        self.send.flushed = end;
        if self.open {
            self.push_lines();
        }
    }

    /// Moves rung requests into the ring, each as a whole, as long as it has room.
    #[inline]
    pub(super) fn push_lines(&mut self) {
        let before = self.port.written_lines();
        while self.send.pushed < self.send.flushed {
            let Some(record) = self.send.records.get(self.send.pushed) else {
                break;
            };
            let lines = (record.line_end - self.port.written_lines()) as usize;
            if self.port.free_lines() < lines + NOTICE_LINES {
                self.refresh_writer();
                if self.port.free_lines() < lines + NOTICE_LINES {
                    break;
                }
            }
            self.send.pushed += 1;
            for _ in 0..lines {
                let Some(line) = self.send.staged.front() else {
                    break;
                };
                self.port.write_line(line);
                self.send.staged.pop();
            }
        }
        self.send.staged.rewind();
        if self.port.written_lines() != before {
            self.port.end_of_chain();
            self.wake_peer(WakeFor::Requests);
        }
    }

    /// Reads how many of our lines the peer consumed. An impossible answer fails the queue pair.
    pub(super) fn refresh_writer(&mut self) {
        let Some(link) = &self.link else { return };
        let consumed = link.port.consumed();
        match self.port.refresh_lines(consumed) {
            Ok(()) => self.send.acked_lines = consumed.min(self.send.lines_max),
            Err(violation) => {
                if self.failure.is_none() {
                    self.shared.event(DeviceEvent::PeerRefused {
                        what: format!("queue pair {:#08x}: {violation}", self.door.qpn),
                    });
                    self.fail_request(WcStatus::General);
                }
            }
        }
    }

    /// Wakes the peer if it sleeps. Costs a load of a line that hardly ever changes while it never sleeps.
    #[inline(always)]
    pub(super) fn wake_peer(&mut self, wake: WakeFor) {
        let may_sleep = |link: &Link| self.fence == Fence::Always || link.port.may_sleep();
        if self.link.as_ref().is_some_and(may_sleep) {
            self.wake_if_asleep(wake);
        }
    }

    #[cold]
    fn wake_if_asleep(&mut self, wake: WakeFor) {
        let Some(link) = &mut self.link else { return };
        fence_before_sleep_check();
        let sleep = link.port.sleep();
        let due = sleep.asleep() && (wake == WakeFor::Requests || sleep.wants_acks());
        if due && link.woken_for != Some(sleep.count()) {
            link.woken_for = Some(sleep.count());
            // The peer holds the other end; if it cannot be signalled, its death is seen elsewhere.
            let _ = link.wake.signal();
        }
    }

    /// A request of ours fails: the oldest that was not executed reports `status`.
    fn fail_request(&mut self, status: WcStatus) {
        self.shared.event(DeviceEvent::QpError {
            qpn: self.door.qpn,
            cause: QpErrorCause::Requester(status),
        });
        self.fail(Some(status), Told::No);
    }

    /// Looks at the peer's answers.
    pub(super) fn take_answers(&mut self) {
        let Some(link) = &self.link else { return };
        // In this order: with a verdict, the count read after it is final.
        let verdict = link.port.verdict();
        self.refresh_writer();
        match verdict {
            None => {}
            Some(_) if self.failure.is_some() => {}
            Some(Verdict::Refused(status)) if self.send.has_unacked() => self.fail_request(status),
            Some(Verdict::Refused(_) | Verdict::Closed) => self.peer_closed = true,
        }
    }

    /// The requester's part of a turn.
    pub(super) fn turn_send(&mut self, peer_ring: PeerRing, into: &mut Sink<'_>) {
        if self.failure.is_none() {
            let unsent = self.send.pushed < self.send.flushed;
            if unsent || self.send.signalled_flushed > 0 || self.rnr.is_some() {
                self.take_answers();
            }
        }
        if self.failure.is_none() {
            if self.open && self.send.pushed < self.send.flushed {
                self.push_lines();
            }
            // What the peer sent before it went is taken first.
            if self.peer_closed && peer_ring == PeerRing::Quiet && self.send.has_unacked() {
                self.refresh_writer();
                if self.send.has_unacked() && self.failure.is_none() {
                    self.fail_request(WcStatus::RetryExceeded);
                }
            }
        }
        self.complete_executed(into);
        if self.failure.is_some() {
            self.complete_failed(into);
        }
    }

    /// Completes what was executed, in order; a signalled request covers the unsignalled ones before it.
    fn complete_executed(&mut self, into: &mut Sink<'_>) {
        while let Some(&record) = self.send.records.get(self.send.examined) {
            if record.line_end > self.send.acked_lines || into.is_full() {
                return;
            }
            self.send.examined += 1;
            if record.signal == Signal::Signaled {
                self.send.signalled_flushed -= 1;
                self.drop_examined();
                self.complete_send(&record, WcStatus::Success, into);
            }
        }
    }

    /// Completes what was not executed, in order, then the receives.
    #[cold]
    fn complete_failed(&mut self, into: &mut Sink<'_>) {
        while !into.is_full() {
            let Some(&record) = self.send.records.get(self.send.examined) else {
                break;
            };
            if record.line_end <= self.send.acked_lines {
                return; // A success before it has not found room yet.
            }
            self.send.examined += 1;
            if record.signal == Signal::Signaled {
                let rung = self.send.examined <= self.send.flushed;
                let send = &mut self.send;
                *(if rung {
                    &mut send.signalled_flushed
                } else {
                    &mut send.signalled_posted
                }) -= 1;
            }
            self.drop_examined();
            let first = self
                .failure
                .as_mut()
                .and_then(|failure| failure.first.take());
            self.complete_send(&record, first.unwrap_or(WcStatus::WrFlush), into);
        }
        if self.send.examined == self.send.records.end() {
            // Unsignalled successes at the end: nothing will cover them any more.
            self.drop_examined();
            self.flush_receives(into);
        }
    }

    /// Frees the slots before `examined`.
    #[inline(always)]
    fn drop_examined(&mut self) {
        let send = &mut self.send;
        send.records.drop_before(send.examined);
        // In the error state nothing goes into the ring any more; positions only have to stay in order.
        send.pushed = send.pushed.max(send.examined);
        send.flushed = send.flushed.max(send.examined);
    }

    fn complete_send(&mut self, record: &SendRecord, status: WcStatus, into: &mut Sink<'_>) {
        if status != WcStatus::Success {
            self.tell();
        }
        self.stats.send_completions += 1;
        into.push(Completion {
            wr_id: record.wr,
            qp: self.index,
            status,
            opcode: record.opcode,
            byte_len: record.byte_len,
            imm: None,
        });
    }

    fn flush_receives(&mut self, into: &mut Sink<'_>) {
        while !into.is_full() {
            let Some(record) = self.recv.pop() else {
                return;
            };
            self.complete_recv(record.wr, WcStatus::WrFlush, 0, None, into);
        }
    }

    /// The caller gets to know of the error.
    pub(super) fn tell(&mut self) {
        if let Some(failure) = &mut self.failure {
            failure.told = true;
        }
    }
}

/// Whether the peer's ring has requests that can be executed now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PeerRing {
    Quiet,
    Busy,
}

#[inline(always)]
fn check_piece<'a>(mrs: &'a View<MrEntry>, sge: &Sge) -> Result<Registered<'a>, PostError> {
    let &Sge { addr, length, lkey } = sge;
    let mr = by_lkey(mrs, lkey).ok_or(PostError::BadLkey(lkey.0))?;
    let offset = mr.offset(addr, u64::from(length));
    let offset = offset.ok_or(PostError::OutOfRegion { addr, length })?;
    Ok(Registered {
        mr,
        offset,
        len: length,
    })
}

impl<'a> Registered<'a> {
    /// The same piece without its registration.
    fn mapped(&self) -> Piece<'a> {
        Piece {
            region: &self.mr.region,
            offset: self.offset,
            length: self.len,
        }
    }
}

/// Copies bytes from `at` on, which lie inside a piece whose bounds were checked.
#[inline(always)]
fn copy_out(region: &Region, at: usize, place: &mut [u8]) {
    let copied = region.copy_out(at, place);
    debug_assert!(copied.is_ok(), "{copied:?}");
}

/// Fills places with the bytes of pieces, one after the other.
fn gather<'a>(pieces: &'a [Piece<'a>]) -> impl FnMut(&mut [u8]) + 'a {
    let mut at = 0;
    let mut done = 0;
    move |mut place| {
        while let Some(piece) = pieces.get(at).filter(|_| !place.is_empty()) {
            let take = place.len().min(piece.length as usize - done);
            let (now, later) = place.split_at_mut(take);
            copy_out(piece.region, piece.offset + done, now);
            place = later;
            done += take;
            if done == piece.length as usize {
                at += 1;
                done = 0;
            }
        }
    }
}
