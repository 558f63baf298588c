//! What control remembers of links, connections and sessions.

use super::handshake::HandshakeId;
use super::memory::{BufferPool, ConnBuffers, LinkMemory};
use super::workers::WorkerPort;
use crate::view::InlineView;
use pollux_attach::slots::{SlotRef, SlotTable};
use pollux_proto::clc::{Agreed, LocalEndpoint, PeerEndpoint};
use pollux_proto::group::{GroupId, Groups};
use pollux_proto::link::Role;
use pollux_proto::llc::Engine;
use pollux_provider::{Device, QpCaps};
use pollux_ring::Wake;
use pollux_wire::field::Ueid;
use pollux_worker::LinkId;
use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;

/// A link group of one worker.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct GroupKey {
    pub(crate) worker: usize,
    pub(crate) group: GroupId,
}

/// A connection of one worker, from before its token is announced until both sides are done.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct ConnKey {
    pub(crate) worker: usize,
    pub(crate) conn: u16,
}

/// A worker, its link groups, and the buffers of its own application.
pub(crate) struct WorkerState<D: Device> {
    pub(crate) port: WorkerPort<D>,
    pub(crate) groups: Groups,
    pub(crate) links: BTreeMap<GroupId, LinkState<D>>,
    pub(crate) app: Option<SlotPool>,
    /// What this worker is to peers; each has an identity of its own, so that a peer never
    /// offers one worker the link of another.
    pub(crate) local: pollux_proto::clc::Local,
}

impl<D: Device> WorkerState<D> {
    pub(crate) fn group_of_link(&self, link: LinkId) -> Option<GroupId> {
        self.links
            .iter()
            .find(|(_, state)| state.link == link)
            .map(|(group, _)| *group)
    }
}

/// Buffers, and who has them.
pub(crate) struct SlotPool {
    pub(crate) table: SlotTable,
    pub(crate) buffers: BufferPool,
}

/// How far a link has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LinkPhase {
    /// The queue pair exists and is not connected.
    Made,
    /// On its way into the worker.
    Adopting,
    /// The worker has it; LLC decides the rest.
    Running,
    /// On its way back from the worker.
    Releasing,
}

/// The link of a group.
pub(crate) struct LinkState<D: Device> {
    pub(crate) link: LinkId,
    pub(crate) phase: LinkPhase,
    /// Here until it is moved into the worker.
    pub(crate) qp: Option<D::Qp>,
    pub(crate) qpn: u32,
    pub(crate) psn: u32,
    pub(crate) caps: QpCaps,
    pub(crate) inline: InlineView,
    pub(crate) memory: LinkMemory,
    pub(crate) engine: Option<Engine>,
    /// Credits to be announced once the link is confirmed.
    pub(crate) credits_due: Option<u8>,
    pub(crate) peer: Option<PeerEndpoint>,
    pub(crate) ueid: Option<Ueid>,
    /// The handshake of the first contact, while it lasts.
    pub(crate) first: Option<HandshakeId>,
    /// Handshakes of the same peer that wait for the end of the first one.
    pub(crate) waiting: Vec<HandshakeId>,
    /// Slots into which a silent peer may still write; free when the link is gone.
    pub(crate) quarantine: Vec<Place>,
}

/// Whose slot a connection uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// A slot of a program's session.
    Session {
        /// The session.
        session: u32,
        /// The slot.
        slot: SlotRef,
    },
    /// A slot of a worker's own pool.
    App {
        /// The worker.
        worker: usize,
        /// The slot.
        slot: SlotRef,
    },
}

/// A connection that has a place in a worker's table.
pub(crate) struct ConnRecord {
    pub(crate) group: GroupId,
    pub(crate) token: u32,
    pub(crate) peer_token: u32,
    pub(crate) peer_rmbe_bytes: u32,
    pub(crate) place: Place,
    pub(crate) buffers: ConnBuffers,
    pub(crate) role: Role,
    pub(crate) local: SocketAddr,
    pub(crate) peer: SocketAddr,
    /// Kept open as long as the connection of an application lives; a program keeps its own.
    pub(crate) _tcp: Option<TcpStream>,
    pub(crate) user: ConnUser,
}

/// Who waits for a connection to open, or to end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ConnUser {
    /// A program, by the number of its request.
    Program { request: u32 },
    /// The echo service.
    Echo,
    /// The latency run with this number.
    Latency(u64),
}

/// A program's session.
pub(crate) struct SessionState {
    pub(crate) worker: usize,
    /// Place in the worker's table.
    pub(crate) index: u16,
    pub(crate) socket: Option<OwnedFd>,
    /// Ends the worker's sleep; shared with this program only.
    pub(crate) worker_wake: Wake,
    pub(crate) pid: u32,
    pub(crate) program: String,
    pub(crate) pool: SlotPool,
    /// Messages that found the socket full.
    pub(crate) outbox: std::collections::VecDeque<Vec<u8>>,
}

/// What a handshake has got for its connection.
#[derive(Clone, Debug)]
pub(crate) struct Reserved {
    pub(crate) conn: ConnKey,
    pub(crate) group: GroupId,
    pub(crate) token: u32,
    pub(crate) place: Place,
    pub(crate) buffers: ConnBuffers,
    pub(crate) own: LocalEndpoint,
    pub(crate) agreed: Option<Agreed>,
}
