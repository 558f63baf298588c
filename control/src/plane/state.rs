//! What a plane remembers of workers, links, connections and buffers.

use super::HandshakeId;
use super::memory::{ConnBuffers, LinkMemory};
use super::port::WorkerPort;
use crate::view::InlineView;
use pollux_attach::slots::SlotRef;
use pollux_proto::clc::{Agreed, Local, LocalEndpoint, PeerEndpoint};
use pollux_proto::group::{GroupId, Groups};
use pollux_proto::link::Role;
use pollux_proto::llc::{Engine, RkeyTag};
use pollux_provider::{Device, QpCaps, Rkey};
use pollux_worker::{App, LinkId, SessionId};
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// A link group of one worker.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct GroupKey {
    pub(crate) worker: usize,
    pub(crate) group: GroupId,
}

/// A connection of one worker, from before its token is announced until both sides are done. Given
/// out again later.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ConnKey {
    /// The worker.
    pub worker: usize,
    /// The place in the worker's table.
    pub conn: u16,
}

/// A worker, and its link groups.
pub(crate) struct WorkerState<D: Device, A: App> {
    pub(crate) port: WorkerPort<D, A>,
    pub(crate) groups: Groups,
    pub(crate) links: BTreeMap<GroupId, LinkState<D>>,
    /// What this worker is to peers; each has an identity of its own, so that a peer never
    /// offers one worker the link of another.
    pub(crate) local: Local,
}

impl<D: Device, A: App> WorkerState<D, A> {
    pub(crate) fn group_of_link(&self, link: LinkId) -> Option<GroupId> {
        self.links
            .iter()
            .find(|(_, state)| state.link == link)
            .map(|(group, _)| *group)
    }
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
    /// What was agreed on, and who the peer is; known with the peer.
    pub(crate) agreed: Option<Agreed>,
    /// The handshake of the first contact, while it lasts.
    pub(crate) first: Option<HandshakeId>,
    /// Handshakes of the same peer that wait for the end of the first one.
    pub(crate) waiting: Vec<HandshakeId>,
    /// Slots into which the peer may still write, with the requests to forget them; free when it has
    /// answered, or when the link is gone.
    pub(crate) quarantine: Vec<(RkeyTag, Place)>,
}

/// Names a pool of ring buffers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum PoolId {
    /// The pool for the application inside a worker, by the worker's number. Made when it is first
    /// needed.
    Worker(usize),
    /// A pool that the owner has added, by the owner's number for it.
    Added(u32),
}

/// Whose slot a connection uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    pub(crate) pool: PoolId,
    pub(crate) slot: SlotRef,
}

/// Who reads and writes the bytes of a connection inside its worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tenant {
    /// The application inside the worker.
    App {
        /// What the application is told that the connection is for.
        tag: u64,
    },
    /// A program.
    Program {
        /// Its session in the worker's table.
        session: SessionId,
    },
}

/// A connection that somebody wants, over a stream that is connected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wanted<U> {
    /// The owner's own name for it, which comes back with every event.
    pub user: U,
    /// Who opened the stream.
    pub role: Role,
    /// The worker that is to have it.
    pub worker: usize,
    /// Where its buffers come from.
    pub pool: PoolId,
    /// Who uses it inside the worker.
    pub tenant: Tenant,
    /// Our end of the stream.
    pub local: SocketAddr,
    /// The other end.
    pub peer: SocketAddr,
    /// What the handshake of TCP has shown.
    pub syn: Syn,
}

/// Whether both ends' SYN carried the SMC option. If so, each waits for a message of CLC from the other
/// before any byte of a program (RFC 7609, 3.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Syn {
    /// No, or nobody has looked.
    Plain,
    /// Yes.
    Smc,
}

/// A connection that has a place in a worker's table.
pub(crate) struct ConnRecord<S, U> {
    pub(crate) wanted: Wanted<U>,
    pub(crate) group: GroupId,
    pub(crate) token: u32,
    pub(crate) peer_token: u32,
    pub(crate) peer_rkey: Rkey,
    pub(crate) peer_rmbe_bytes: u32,
    pub(crate) place: Place,
    pub(crate) buffers: ConnBuffers,
    /// Kept open as long as the connection of an application lives; a program keeps its own.
    pub(crate) _stream: Option<S>,
}

/// What a handshake had got that broke off after the worker, and perhaps the peer, had heard of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Forgotten {
    pub(crate) group: GroupId,
    pub(crate) place: Place,
    /// Key of the buffer that the peer may know.
    pub(crate) rkey: Rkey,
}

/// Whether a place in a worker's table is known there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum KnownTo {
    /// It can be given to another connection at once.
    Nobody,
    /// The worker keeps it reserved until it is told to forget it.
    Worker,
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
    pub(crate) known: KnownTo,
}
