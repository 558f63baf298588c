//! What a plane tells its owner.

use super::state::{ConnKey, PoolId};
use pollux_attach::shared::Violation;
use pollux_attach::slots::SlotRef;
use pollux_proto::clc::HandshakeError;
use pollux_proto::diagnosis::Fallback;
use pollux_proto::link::Role;
use pollux_worker::{App, ConnOutcome, PeerDone, SessionId, Snapshot};
use std::net::SocketAddr;

/// Why a handshake led neither to a connection nor back to TCP.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The stream cannot be watched. No byte of it was touched.
    #[error("cannot watch the socket: {0}")]
    Watch(#[source] std::io::Error),
    /// The handshake broke off. Bytes may be lost, so the stream was shut down.
    #[error("handshake with {peer} failed: {error}")]
    Handshake {
        /// The other end of the stream.
        peer: SocketAddr,
        /// What went wrong.
        #[source]
        error: HandshakeError,
    },
    /// The last message of the handshake did not leave in time, and the stream was shut down.
    #[error("handshake with {peer} failed: it takes no more bytes of ours; the peer hangs")]
    Unread {
        /// The other end of the stream.
        peer: SocketAddr,
    },
    /// The handshake came to its end after the worker had, and the stream was shut down.
    #[error("handshake with {peer} failed: this appliance has stopped")]
    Stopped {
        /// The other end of the stream.
        peer: SocketAddr,
    },
}

/// News for the owner. Each handshake that was begun ends with one of [`Event::Opened`],
/// [`Event::FellBack`] and [`Event::Failed`]; each connection that was opened ends with
/// [`Event::Closed`].
#[derive(Debug)]
pub enum Event<A: App, S, U> {
    /// A connection is open in its worker.
    Opened {
        /// The connection.
        conn: ConnKey,
        /// Who wanted it.
        user: U,
        /// The slot whose buffers it uses.
        slot: SlotRef,
    },
    /// A connection stays on TCP: the stream is as if no handshake had been tried.
    FellBack {
        /// Who wanted the connection.
        user: U,
        /// This side's role.
        role: Role,
        /// The other end of the stream.
        peer: SocketAddr,
        /// The stream, not watched any more.
        stream: S,
        /// Why, as the protocol has it.
        fallback: Fallback,
        /// Why, in words.
        text: String,
    },
    /// A connection is lost, and its stream is dropped.
    Failed {
        /// Who wanted the connection.
        user: U,
        /// Why.
        error: Failure,
    },
    /// A connection has ended. Its place in the worker's table is free.
    Closed {
        /// What the connection was called.
        conn: ConnKey,
        /// Who wanted it.
        user: U,
        /// How it ended.
        outcome: ConnOutcome,
        /// Whether the peer has said that it writes no more; if not, the slot is kept until the
        /// link is gone.
        peer_done: PeerDone,
    },
    /// Worker and peer are done with a slot that is shared with a program.
    Released {
        /// The pool.
        pool: PoolId,
        /// The slot.
        slot: SlotRef,
    },
    /// Word of the application inside a worker.
    App {
        /// The worker.
        worker: usize,
        /// What it says.
        report: A::Report,
    },
    /// A worker's figures, as asked for.
    Snapshot {
        /// The worker.
        worker: usize,
        /// The figures.
        snapshot: Box<Snapshot>,
    },
    /// A program broke the rules of its session's memory: it is to be detached.
    SessionFault {
        /// The worker.
        worker: usize,
        /// The session.
        session: SessionId,
        /// What it did.
        violation: Violation,
    },
    /// A worker does not use a session's memory any more. The session's place is free.
    SessionDetached {
        /// The worker.
        worker: usize,
        /// The session.
        session: SessionId,
    },
    /// A worker has left its loop; this was its last word.
    WorkerStopped {
        /// The worker.
        worker: usize,
    },
}
