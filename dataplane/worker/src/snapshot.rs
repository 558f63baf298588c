//! What an operator sees of a worker: figures and table entries, copied on request.

use crate::app::App;
use crate::budget::SNAPSHOT_PER_PASS;
use crate::clock::Clock;
use crate::conn::Held;
use crate::core::Core;
use crate::link::{CreditFigures, LinkState};
use crate::mailbox::{ConnId, InlineRule, LinkId, Owner, PollMode, Report, SessionId};
use pollux_proto::conn::ConnState;
use pollux_provider::{PollGroup, QpIndex, QpStats};

/// One connection.
#[derive(Clone, Debug)]
pub struct ConnFigures {
    /// Its place.
    pub conn: ConnId,
    /// The link that carries it.
    pub link: LinkId,
    /// Our alert token.
    pub token: u32,
    /// The protocol's state.
    pub state: ConnState,
    /// Bytes the application has queued, in its life.
    pub bytes_out: u64,
    /// Bytes that have arrived, in its life.
    pub bytes_in: u64,
    /// Bytes that have arrived and are not read.
    pub readable: u32,
    /// Bytes queued and not yet free again in the sndbuf.
    pub unreclaimed: u64,
    /// Who uses it.
    pub owner: Owner,
}

/// One link.
#[derive(Clone, Debug)]
pub struct LinkFigures {
    /// Its place.
    pub link: LinkId,
    /// Its queue pair in the worker's poll group.
    pub qp: QpIndex,
    /// Whether it carries traffic.
    pub up: bool,
    /// What goes inline.
    pub inline: InlineRule,
    /// Inline bytes the queue pair granted.
    pub granted_inline: u32,
    /// Connections on it.
    pub conns: u32,
    /// What its queue pair has done.
    pub stats: QpStats,
    /// Its credits, if there are any.
    pub credits: Option<CreditFigures>,
}

/// Counters of a worker since its start or the last clearing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerFigures {
    /// Turns of the loop.
    pub passes: u64,
    /// Turns that found work.
    pub busy_passes: u64,
    /// Times the worker slept.
    pub sleeps: u64,
    /// CDC messages received.
    pub cdc_received: u64,
    /// CDC messages sent.
    pub cdc_sent: u64,
    /// LLC messages received.
    pub llc_received: u64,
    /// LLC messages sent.
    pub llc_sent: u64,
    /// CDC messages for a token that nobody holds (normal right after a close).
    pub unknown_tokens: u64,
    /// Messages that could not be understood.
    pub malformed: u64,
    /// Submissions taken from programs.
    pub submissions: u64,
    /// Connections opened.
    pub conns_opened: u64,
    /// Connections ended.
    pub conns_closed: u64,
    /// Connections that ended by a reset, ours or the peer's.
    pub conns_reset: u64,
    /// Times a connection found no send slot or no credit, or somebody waiting before it, and had
    /// to wait its turn.
    pub send_waits: u64,
    /// Peers that returned more credits than they ever gave.
    pub credit_faults: u64,
}

/// A copy of a worker's tables; made with room by control, filled by the worker.
#[derive(Debug)]
pub struct Snapshot {
    /// Counters.
    pub figures: WorkerFigures,
    /// How the worker waits.
    pub poll: PollMode,
    /// Connections; never grown beyond the capacity it came with.
    pub conns: Vec<ConnFigures>,
    /// Links; never grown beyond the capacity it came with.
    pub links: Vec<LinkFigures>,
    /// Sessions served; never grown beyond the capacity it came with.
    pub sessions: Vec<SessionId>,
}

impl Snapshot {
    /// Room for tables of the given sizes.
    #[must_use]
    pub fn with_room(conns: usize, links: usize, sessions: usize) -> Self {
        Snapshot {
            figures: WorkerFigures::default(),
            poll: PollMode::Busy,
            conns: Vec::with_capacity(conns),
            links: Vec::with_capacity(links),
            sessions: Vec::with_capacity(sessions),
        }
    }
}

impl<G: PollGroup, A: App, C: Clock> Core<G, A, C> {
    /// Copies the next few table entries into the snapshot that was asked for; reports it when
    /// it is complete.
    pub(crate) fn continue_snapshot(&mut self) {
        let Some((mut snapshot, next)) = self.snapshot.take() else {
            return;
        };
        let end = (next + SNAPSHOT_PER_PASS).min(self.conns.len());
        for index in next..end {
            let place = &self.conns[index];
            if let Held::Open(open) = &place.held
                && snapshot.conns.len() < snapshot.conns.capacity()
            {
                let proto = &open.proto;
                snapshot.conns.push(ConnFigures {
                    conn: ConnId(index as u16),
                    link: place.link,
                    token: place.token,
                    state: proto.state(),
                    bytes_out: proto.prepared_total(),
                    bytes_in: proto.produced_total(),
                    readable: proto.readable(),
                    unreclaimed: proto.prepared_total() - proto.reclaimed_total(),
                    owner: open.owner,
                });
            }
        }
        if end < self.conns.len() {
            self.snapshot = Some((snapshot, end));
            return;
        }
        for link in self.links.iter().flatten() {
            if snapshot.links.len() < snapshot.links.capacity() {
                snapshot.links.push(LinkFigures {
                    link: link.id,
                    qp: link.qp,
                    up: link.state == LinkState::Up,
                    inline: link.inline,
                    granted_inline: link.granted_inline,
                    conns: link.conns,
                    stats: self.group.stats(link.qp),
                    credits: link.credit_figures(self.now),
                });
            }
        }
        for session in &self.active_sessions {
            if snapshot.sessions.len() < snapshot.sessions.capacity() {
                snapshot.sessions.push(*session);
            }
        }
        snapshot.figures = self.figures;
        snapshot.poll = self.poll;
        self.report(Report::Snapshot(snapshot));
    }
}
