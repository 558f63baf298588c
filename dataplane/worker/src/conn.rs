//! A place in the worker's table of connections.

use crate::mailbox::{ConnId, ConnSpec, LinkId, Owner};
use arrayvec::ArrayVec;
use pollux_attach::shared::{SlotNews, SlotState, Submission, SubmissionOp};
use pollux_proto::conn::{Conn, ConnTimer, Write};
use pollux_proto::error::Misuse;
use pollux_proto::event::EventSet;
use pollux_provider::{Lkey, Piece, Rkey, Sge};
use pollux_ring::Region;
use pollux_wire::cdc;

/// An open connection: the rules, and where its bytes and its peer are.
#[derive(Debug)]
pub struct OpenConn {
    pub(crate) proto: Conn,
    pub(crate) owner: Owner,
    pub(crate) peer_addr: u64,
    pub(crate) peer_rkey: Rkey,
    lkey: Lkey,
    /// Address of the sndbuf's first byte, as a work request names it.
    sndbuf_addr: u64,
    sndbuf: Region,
    sndbuf_offset: usize,
    sndbuf_bytes: u32,
    rmbe: Region,
    rmbe_offset: usize,
    rmbe_bytes: u32,
    /// What the program was last told.
    told: SlotNews,
    /// Facts that an event has told and that stay true.
    facts: SlotState,
    pub(crate) timer: Option<ConnTimer>,
    pub(crate) reset: Reset,
    program: Program,
}

/// Whether the program has done with the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Program {
    Uses,
    Closed,
}

/// Whether the connection met an abnormal end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reset {
    Yes,
    No,
}

impl OpenConn {
    /// A connection as `spec` describes it, with nothing sent or received yet.
    #[must_use]
    pub fn new(spec: &ConnSpec) -> Self {
        OpenConn {
            proto: Conn::new(&spec.params),
            owner: spec.owner,
            peer_addr: spec.peer_addr,
            peer_rkey: spec.peer_rkey,
            lkey: spec.sndbuf.lkey,
            sndbuf_addr: spec.sndbuf.region.addr() + spec.sndbuf.offset as u64,
            sndbuf: spec.sndbuf.region.clone(),
            sndbuf_offset: spec.sndbuf.offset,
            sndbuf_bytes: spec.params.sndbuf_bytes,
            rmbe: spec.rmbe.region.clone(),
            rmbe_offset: spec.rmbe.offset,
            rmbe_bytes: spec.params.rmbe_bytes,
            told: SlotNews::default(),
            facts: SlotState::OPEN,
            timer: None,
            reset: Reset::No,
            program: Program::Uses,
        }
    }

    /// Whether the program has closed or reset it; what it wrote before is still on its way.
    pub(crate) fn is_closed_by_program(&self) -> bool {
        self.program == Program::Closed
    }

    /// Whether the adapter is done with everything that was sent from the sndbuf.
    pub(crate) fn is_reclaimed(&self) -> bool {
        self.proto.reclaimed_total() >= self.proto.sent_total()
    }

    /// The bytes of a WRITE where the processor finds them.
    #[inline]
    pub(crate) fn pieces(&self, write: &Write) -> ArrayVec<Piece<'_>, 2> {
        let mut pieces = ArrayVec::new();
        for piece in &write.pieces {
            pieces.push(Piece {
                region: &self.sndbuf,
                offset: self.sndbuf_offset + piece.offset as usize,
                length: piece.len,
            });
        }
        pieces
    }

    /// The bytes of a WRITE where the adapter finds them.
    #[inline]
    pub(crate) fn registered_pieces(&self, write: &Write) -> ArrayVec<Sge, 2> {
        let mut pieces = ArrayVec::new();
        for piece in &write.pieces {
            pieces.push(Sge {
                addr: self.sndbuf_addr + u64::from(piece.offset),
                length: piece.len,
                lkey: self.lkey,
            });
        }
        pieces
    }

    /// Size of the sndbuf.
    #[inline]
    pub(crate) fn sndbuf_bytes(&self) -> u32 {
        self.sndbuf_bytes
    }

    /// Carries out a program's submission, whose totals the session's memory has judged.
    #[inline]
    pub(crate) fn apply(&mut self, submission: &Submission) -> Result<(), Misuse> {
        let proto = &mut self.proto;
        let consumed = submission
            .consumed_total
            .saturating_sub(proto.consumed_total()) as u32;
        if consumed > 0 {
            proto.consume(consumed)?;
        }
        let prepared = submission
            .prepared_total
            .saturating_sub(proto.prepared_total()) as u32;
        let taken = match submission.op {
            SubmissionOp::Urgent => proto.prepare_urgent(prepared),
            SubmissionOp::Kick
            | SubmissionOp::ShutdownWrite
            | SubmissionOp::Close
            | SubmissionOp::Abort => {
                if prepared == 0 {
                    Ok(())
                } else {
                    proto.prepare(prepared)
                }
            }
        };
        match taken {
            // Written before the program could learn that the peer is gone; it will be told.
            Ok(()) | Err(Misuse::PeerGone) => {}
            Err(error) => return Err(error),
        }
        match submission.op {
            SubmissionOp::Kick | SubmissionOp::Urgent => {}
            SubmissionOp::ShutdownWrite => proto.shutdown_write(),
            SubmissionOp::Close => {
                self.program = Program::Closed;
                proto.close();
            }
            SubmissionOp::Abort => {
                self.program = Program::Closed;
                proto.abort();
            }
        }
        Ok(())
    }

    /// Remembers facts that the program has to be told.
    #[inline]
    pub(crate) fn note(&mut self, events: EventSet) {
        const FACTS: [(EventSet, SlotState); 5] = [
            (EventSet::END_OF_STREAM, SlotState::END_OF_STREAM),
            (EventSet::RESET, SlotState::RESET),
            (EventSet::CLOSED, SlotState::CLOSED),
            (EventSet::URGENT_PENDING, SlotState::URGENT_PENDING),
            (EventSet::URGENT, SlotState::URGENT),
        ];
        for (event, fact) in FACTS {
            if events.contains(event) {
                self.facts |= fact;
            }
        }
    }

    /// What the program does not know yet, if anything; counts as told.
    #[inline]
    pub(crate) fn take_news(&mut self) -> Option<SlotNews> {
        let news = SlotNews {
            produced: self.proto.produced_total(),
            reclaimed: self.proto.reclaimed_total(),
            state: self.facts,
        };
        if news == self.told {
            return None;
        }
        self.told = news;
        Some(news)
    }

    /// Copies received bytes out of the RMBE and consumes them; returns how many.
    pub(crate) fn read(&mut self, into: &mut [u8]) -> usize {
        let len = into.len().min(self.proto.readable() as usize);
        let start = self.proto.read_offset() as usize;
        let first = len.min(self.rmbe_bytes as usize - start);
        let (head, tail) = into[..len].split_at_mut(first);
        let copied = self
            .rmbe
            .copy_out(self.rmbe_offset + start, head)
            .and_then(|()| self.rmbe.copy_out(self.rmbe_offset, tail))
            .is_ok();
        if copied && self.proto.consume(len as u32).is_ok() {
            len
        } else {
            0
        }
    }

    /// Copies bytes into the sndbuf and prepares them; returns how many found room.
    pub(crate) fn write(&mut self, from: &[u8]) -> usize {
        let len = from.len().min(self.proto.writable() as usize);
        let start = self.proto.write_offset() as usize;
        let first = len.min(self.sndbuf_bytes as usize - start);
        let (head, tail) = from[..len].split_at(first);
        let copied = self
            .sndbuf
            .copy_in(self.sndbuf_offset + start, head)
            .and_then(|()| self.sndbuf.copy_in(self.sndbuf_offset, tail))
            .is_ok();
        if copied && self.proto.prepare(len as u32).is_ok() {
            len
        } else {
            0
        }
    }
}

/// What a place holds.
#[derive(Debug)]
pub(crate) enum Held {
    Nothing,
    /// The token has been announced; the newest message that came early. One is enough: each CDC
    /// carries the whole state, and without an update from us the peer cannot go round the ring.
    Reservation(Option<cdc::Repr>),
    Open(Box<OpenConn>),
}

/// A place of the table.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) token: u32,
    pub(crate) link: LinkId,
    pub(crate) held: Held,
    /// In the queue of connections to be served.
    pub(crate) queued: Queued,
}

/// Whether a connection waits for its turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Queued {
    Yes,
    No,
}

impl Place {
    pub(crate) fn empty() -> Self {
        Place {
            token: 0,
            link: LinkId(0),
            held: Held::Nothing,
            queued: Queued::No,
        }
    }

    #[inline]
    pub(crate) fn open(&mut self) -> Option<&mut OpenConn> {
        match &mut self.held {
            Held::Open(conn) => Some(conn),
            Held::Reservation(_) | Held::Nothing => None,
        }
    }
}

/// The index of a connection as the tables use it.
#[inline]
pub(crate) fn at(conn: ConnId) -> usize {
    usize::from(conn.0)
}
