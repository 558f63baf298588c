//! The target's side of a queue pair: executing what the peer's ring holds.
//!
//! Nothing the peer writes is believed: a line is copied, then judged, and what it asks for is checked
//! against our registrations. What is wrong ends the queue pair, never the process.

use pollux_ring::{LINE_PAYLOAD, LineReader, Region};

use super::group::Sink;
use super::line_format::{self, Chain, Entry, Form, Line, Request, Verb};
use super::port::{self, Verdict};
use super::qp::{Core, RnrWait};
use super::qp_send::PeerRing;
use super::shared::{MrEntry, by_lkey, by_rkey};
use crate::table::{Lookup, View};
use crate::{Completion, WcOpcode, WcStatus, WrId, rnr_timer_ns};

/// Requests of one queue pair executed in a turn.
const REQUESTS_PER_TURN: usize = 64;
/// Bytes after which a turn ends: a large WRITE by reference must not hold up other queue pairs.
const BYTES_PER_TURN: u64 = 256 * 1024;

/// How the peer's requests have been coming.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arrivals {
    /// The last pass found nothing: after this chain nothing is expected.
    Single,
    /// Every pass finds something: there is probably more.
    Streaming,
}

/// What became of one request.
enum Outcome {
    /// Executed; this many bytes.
    Done(u32),
    /// Cannot be executed yet.
    Wait,
    /// The queue pair has failed.
    Failed,
}

impl Core {
    /// The target's part of a turn.
    pub(super) fn turn_target(
        &mut self,
        reader: &mut LineReader,
        mrs: &View<MrEntry>,
        now: u64,
        arrivals: Arrivals,
        into: &mut Sink<'_>,
    ) -> PeerRing {
        let mut bytes = 0;
        let mut peer_ring = PeerRing::Quiet;
        let mut next = reader.peek();
        for left in (0..REQUESTS_PER_TURN).rev() {
            if !self.open || self.rnr.is_some_and(|rnr| now < rnr.until) {
                break;
            }
            let Some(line) = next.or_else(|| reader.peek()) else {
                break;
            };
            let request = match line_format::parse(&line) {
                Ok(Entry::Request(request)) => request,
                Ok(Entry::Notice) => {
                    self.advance(reader, 1);
                    self.take_answers();
                    break;
                }
                Err(line_format::Nonsense) => {
                    self.refuse(WcStatus::RemoteInvalidRequest);
                    break;
                }
            };
            let more = request.chain == Chain::More || arrivals == Arrivals::Streaming;
            // Looked at before the work, so that the line comes while we work. Where nothing is expected
            // nothing is looked at: the answer to this message would have to wait for that miss.
            next = if more {
                reader.peek_at(request.lines())
            } else {
                None
            };
            match self.execute(&line, request, reader, mrs, now, into) {
                Outcome::Done(len) => bytes += u64::from(len),
                Outcome::Wait if into.is_full() => peer_ring = PeerRing::Busy,
                Outcome::Wait => {
                    if self.peer_closed {
                        self.abandon(Verdict::Closed);
                    }
                    break;
                }
                Outcome::Failed => break,
            }
            if !more || into.is_full() || bytes >= BYTES_PER_TURN || left == 0 {
                peer_ring = PeerRing::Busy;
                break;
            }
        }
        self.publish_consumed();
        peer_ring
    }

    /// Gives up on the peer: what it still wants cannot come to an end, and what we want neither. Without
    /// outstanding work this is no error.
    fn abandon(&mut self, verdict: Verdict) {
        self.open = false;
        self.rnr = None;
        self.peer_closed = true;
        self.close_port(verdict);
    }

    /// Ends the queue pair over the peer's next request; everything before it counts as executed.
    fn refuse_request(&mut self, status: WcStatus) -> Outcome {
        self.refuse(status);
        Outcome::Failed
    }

    #[inline]
    fn execute(
        &mut self,
        line: &Line,
        request: Request,
        reader: &mut LineReader,
        mrs: &View<MrEntry>,
        now: u64,
        into: &mut Sink<'_>,
    ) -> Outcome {
        if !self.psn_checked
            && let Err(status) = self.check_psn()
        {
            return self.refuse_request(status);
        }
        let lines = request.lines();
        if lines > 1 {
            if lines > reader.capacity() {
                return self.refuse_request(WcStatus::RemoteInvalidRequest);
            }
            // An honest requester writes the last line last.
            if reader.peek_at(lines - 1).is_none() {
                return Outcome::Wait;
            }
        }
        let from = Payload {
            line,
            request,
            position: reader.read_count(),
            ring: reader.capacity(),
        };
        let outcome = match request.verb {
            Verb::Send => self.execute_send(&from, mrs, now, into),
            Verb::Write { addr, rkey } => self.execute_write(&from, mrs, addr, rkey),
            Verb::WriteImm { addr, rkey, imm } => {
                if self.recv.is_empty() {
                    self.not_ready(now)
                } else if into.is_full() {
                    Outcome::Wait
                } else {
                    let written = self.execute_write(&from, mrs, addr, rkey);
                    if let Outcome::Done(len) = written
                        && let Some(recv) = self.recv.pop()
                    {
                        self.complete_recv(recv.wr, WcStatus::Success, len, Some(imm), into);
                    }
                    written
                }
            }
        };
        if let Outcome::Done(_) = outcome {
            self.rnr = None;
            self.advance(reader, lines);
        }
        outcome
    }

    #[inline(always)]
    fn advance(&mut self, reader: &mut LineReader, lines: usize) {
        reader.advance(lines);
        self.consumed = reader.read_count();
    }

    #[inline(always)]
    fn execute_send(
        &mut self,
        from: &Payload<'_>,
        mrs: &View<MrEntry>,
        now: u64,
        into: &mut Sink<'_>,
    ) -> Outcome {
        let Some(&recv) = self.recv.front() else {
            return self.not_ready(now);
        };
        if into.is_full() {
            return Outcome::Wait;
        }
        let len = from.request.len;
        if len > recv.length {
            self.refuse_request(WcStatus::RemoteInvalidRequest);
            return self.fail_recv(recv.wr, WcStatus::LocalLength, into);
        }
        let place = by_lkey(mrs, recv.lkey)
            .and_then(|mr| Some((mr, mr.offset(recv.addr, u64::from(recv.length))?)));
        let Some((mr, offset)) = place else {
            self.refuse_request(WcStatus::RemoteOperation);
            return self.fail_recv(recv.wr, WcStatus::LocalProtection, into);
        };
        match self.copy(from, &mr.region, offset) {
            Copied::All => {}
            Copied::NotYet => return Outcome::Wait,
            Copied::Refused(status) => return self.refuse_request(status),
        }
        self.recv.pop();
        self.complete_recv(recv.wr, WcStatus::Success, len, None, into);
        Outcome::Done(len)
    }

    #[cold]
    fn fail_recv(&mut self, wr: WrId, status: WcStatus, into: &mut Sink<'_>) -> Outcome {
        self.recv.pop();
        self.tell();
        self.complete_recv(wr, status, 0, None, into);
        Outcome::Failed
    }

    #[inline(always)]
    fn execute_write(
        &mut self,
        from: &Payload<'_>,
        mrs: &View<MrEntry>,
        addr: u64,
        rkey: u32,
    ) -> Outcome {
        let len = from.request.len;
        if len > 0 {
            let place =
                by_rkey(mrs, rkey).and_then(|mr| Some((mr, mr.offset(addr, u64::from(len))?)));
            let Some((mr, offset)) = place else {
                return self.refuse_request(WcStatus::RemoteAccess);
            };
            match self.copy(from, &mr.region, offset) {
                Copied::All => {}
                Copied::NotYet => return Outcome::Wait,
                Copied::Refused(status) => return self.refuse_request(status),
            }
        }
        self.stats.writes_executed += 1;
        Outcome::Done(len)
    }

    /// Copies the payload to `offset` of `to`, where its length was checked to fit.
    #[inline(always)]
    fn copy(&self, from: &Payload<'_>, to: &Region, offset: usize) -> Copied {
        let Some(link) = &self.link else {
            return Copied::NotYet;
        };
        match from.request.form {
            Form::Carried => from.copy_carried(&link.memory, to, offset),
            Form::Referenced { pieces } => {
                let mut at = offset;
                for source in line_format::sources(from.line, pieces) {
                    let memory = match link.exports.get(source.export) {
                        Lookup::Live(memory) => memory,
                        Lookup::Unknown => return Copied::NotYet,
                        Lookup::Withdrawn => return Copied::Refused(WcStatus::LocalProtection),
                    };
                    let len = source.len as usize;
                    // An offset outside the export is the requester's fault, whoever it is.
                    if to
                        .copy_from(at, memory, source.offset as usize, len)
                        .is_err()
                    {
                        return Copied::Refused(WcStatus::LocalProtection);
                    }
                    at += len;
                }
                Copied::All
            }
        }
    }

    #[inline]
    pub(super) fn complete_recv(
        &mut self,
        wr: WrId,
        status: WcStatus,
        byte_len: u32,
        imm: Option<u32>,
        into: &mut Sink<'_>,
    ) {
        if status != WcStatus::Success {
            self.tell();
        }
        self.stats.recv_completions += 1;
        let opcode = if imm.is_some() {
            WcOpcode::RecvWithImm
        } else {
            WcOpcode::Recv
        };
        into.push(Completion {
            wr_id: wr,
            qp: self.index,
            status,
            opcode,
            byte_len,
            imm,
        });
    }

    /// The peer's first request: it must have started to send, with the sequence number it announced.
    #[cold]
    fn check_psn(&mut self) -> Result<(), WcStatus> {
        let run = self.link.as_ref().and_then(|link| link.port.run());
        let run = run.ok_or(WcStatus::RemoteInvalidRequest)?;
        let expected = self.bound.as_ref().map(|bound| bound.attr.rq_psn);
        if expected != Some(run.psn) {
            // A real adapter would drop the packets until the requester gives up.
            return Err(WcStatus::RetryExceeded);
        }
        self.psn_checked = true;
        Ok(())
    }

    /// Answers "receiver not ready", or gives up if the requester does.
    #[cold]
    fn not_ready(&mut self, now: u64) -> Outcome {
        let naks = self.rnr.map_or(0, |rnr| rnr.naks).saturating_add(1);
        self.stats.rnr_naks_sent += 1;
        self.port.publish_rnr_naks(self.stats.rnr_naks_sent);
        let retry = self
            .link
            .as_ref()
            .and_then(|link| link.port.run())
            .map_or(0, |r| r.rnr_retry);
        if retry != RNR_RETRY_FOREVER && naks > u32::from(retry) {
            // The requester fails, and with it the connection; this end only finds nobody any more.
            self.abandon(Verdict::Refused(WcStatus::RnrRetryExceeded));
            return Outcome::Failed;
        }
        let code = self
            .bound
            .as_ref()
            .map_or(0, |bound| bound.attr.min_rnr_timer);
        let until = now.saturating_add(rnr_timer_ns(code).unwrap_or(0));
        self.rnr = Some(RnrWait { until, naks });
        Outcome::Wait
    }
}

/// The value of `rnr_retry` that means "for ever".
const RNR_RETRY_FOREVER: u8 = 7;

/// What became of a copy.
enum Copied {
    All,
    /// A segment is missing that may still come.
    NotYet,
    Refused(WcStatus),
}

/// A request with the place of its lines.
struct Payload<'a> {
    line: &'a Line,
    request: Request,
    /// Of the first line.
    position: u64,
    /// Lines of the ring.
    ring: usize,
}

impl Payload<'_> {
    /// Copies carried bytes straight from the peer's port. What they say is the receiver's affair, so unlike
    /// the words of the request they need no copy that stands still.
    #[inline(always)]
    fn copy_carried(&self, port: &Region, to: &Region, offset: usize) -> Copied {
        let len = self.request.len as usize;
        let head = self.request.verb.head_bytes();
        let mut done = len.min(LINE_PAYLOAD - head);
        let mut position = self.position;
        let mut place = port::line_offset(position, self.ring) + head;
        let mut copied = to.copy_from(offset, port, place, done);
        while done < len && copied.is_ok() {
            position += 1;
            place = port::line_offset(position, self.ring);
            let next = (len - done).min(LINE_PAYLOAD);
            copied = to.copy_from(offset + done, port, place, next);
            done += next;
        }
        match copied {
            Ok(()) => Copied::All,
            // Both sides were checked; what is left is a registration that cannot be written.
            Err(_) => Copied::Refused(WcStatus::RemoteOperation),
        }
    }
}
