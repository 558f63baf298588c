//! The attach socket: programs come, bring connections, and go.

use super::handshakes::Origin;
use super::{Appliance, Token};
use crate::plane::{PoolId, Sharing};
use crate::reactor::Interest;
use pollux_attach::layout::{Layout, Shape, VERSION};
use pollux_attach::message::{Reply, Request, Role as ProgramRole};
use pollux_attach::packet::{self, Packet, ReceiveError};
use pollux_attach::shared::{Violation, WorkerSide};
use pollux_attach::slots::SlotRef;
use pollux_proto::link::Role;
use pollux_provider::Device;
use pollux_ring::{Wake, wake_channel};
use pollux_worker::{ServedSession, SessionId};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Programs that have connected and not yet said Hello.
const GREETING_MAX: usize = 64;

/// A program that has connected and not yet said Hello.
pub(crate) struct Greeting {
    socket: OwnedFd,
    pid: u32,
}

/// A program's session. Its buffers are the pool [`PoolId::Added`] of the same number.
pub(crate) struct SessionState {
    pub(crate) worker: usize,
    /// Place in the worker's table.
    pub(crate) index: SessionId,
    socket: Option<OwnedFd>,
    /// Ends the worker's sleep; shared with this program only.
    worker_wake: Wake,
    pub(crate) pid: u32,
    pub(crate) program: String,
    /// Messages that found the socket full.
    outbox: VecDeque<Vec<u8>>,
}

impl<D> Appliance<D>
where
    D: Device,
    D::Qp: 'static,
    D::Group: 'static,
{
    /// Programs wait on the attach socket.
    pub(crate) fn accept_programs(&mut self) {
        loop {
            let socket = match packet::accept(&self.attach.listener) {
                Ok(socket) => socket,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    tracing::error!(%error, "cannot accept a program");
                    return;
                }
            };
            if let Err(error) = self.greet(socket) {
                tracing::warn!(%error, "a program was turned away");
            }
        }
    }

    fn greet(&mut self, socket: OwnedFd) -> Result<(), String> {
        let peer = rustix::net::sockopt::socket_peercred(&socket)
            .map_err(|error| format!("its credentials are not known: {error}"))?;
        let own = rustix::process::geteuid();
        if peer.uid != own && !peer.uid.is_root() {
            let (peer, own) = (peer.uid.as_raw(), own.as_raw());
            return Err(format!(
                "it runs as user {peer}; only {own} and root may attach"
            ));
        }
        if self.greetings.len() >= GREETING_MAX {
            return Err(format!(
                "{GREETING_MAX} programs have connected and said nothing"
            ));
        }
        let id = self.next_id() as u32;
        self.reactor
            .add(&socket, Interest::Read, Token::Session(id).into())
            .map_err(|error| format!("its socket cannot be watched: {error}"))?;
        let pid = peer.pid.as_raw_nonzero().get().unsigned_abs();
        self.greetings.insert(id, Greeting { socket, pid });
        Ok(())
    }

    /// A program's socket is ready.
    pub(crate) fn handle_session_socket(&mut self, id: u32) {
        self.flush_outbox(id);
        loop {
            let socket = match (self.sessions.get(&id), self.greetings.get(&id)) {
                (Some(session), _) => session.socket.as_ref(),
                (None, Some(greeting)) => Some(&greeting.socket),
                (None, None) => None,
            };
            let Some(socket) = socket else { return };
            let Packet { bytes, fds } = match packet::receive(socket) {
                Ok(packet) => packet,
                Err(ReceiveError::WouldBlock) => return,
                Err(ReceiveError::Closed) => return self.program_is_gone(id),
                Err(error) => {
                    tracing::warn!(session = id, %error, "a program broke the protocol");
                    return self.program_is_gone(id);
                }
            };
            match Request::parse(&bytes, fds.len()) {
                Ok(request) => self.handle_request(id, request, fds),
                Err(error) => {
                    tracing::warn!(session = id, %error, "a program broke the protocol");
                    return self.program_is_gone(id);
                }
            }
        }
    }

    fn handle_request(&mut self, id: u32, request: Request, fds: Vec<OwnedFd>) {
        match request {
            Request::Hello {
                version,
                slots,
                sndbuf_bytes,
                rmbe_bytes,
                name,
            } => {
                let Some(greeting) = self.greetings.remove(&id) else {
                    tracing::warn!(session = id, "a program said Hello twice");
                    return self.program_is_gone(id);
                };
                let wanted = (slots, sndbuf_bytes, rmbe_bytes);
                if let Err(text) = self.welcome(id, &greeting, version, wanted, &name) {
                    tracing::warn!(pid = greeting.pid, program = name, reason = text, "refused");
                    let _ = packet::send(&greeting.socket, &Reply::Refused { text }.emit(), &[]);
                    let _ = self.reactor.remove(&greeting.socket);
                    return;
                }
                if let Some(session) = self.sessions.get_mut(&id) {
                    session.socket = Some(greeting.socket);
                }
            }
            Request::Upgrade { request, role } => {
                let Some(worker) = self.sessions.get(&id).map(|session| session.worker) else {
                    return self.program_is_gone(id);
                };
                let role = match role {
                    ProgramRole::Client => Role::Client,
                    ProgramRole::Server => Role::Server,
                };
                for fd in fds {
                    let origin = Origin::Program {
                        session: id,
                        request,
                    };
                    self.begin_handshake(TcpStream::from(fd), (role, origin), worker);
                }
            }
            Request::Released { slot, generation } => {
                if !self.sessions.contains_key(&id) {
                    return;
                }
                let released = SlotRef { slot, generation };
                if let Err(error) = self.plane.program_done(PoolId::Added(id), released) {
                    tracing::warn!(session = id, %error, "a program broke the protocol");
                    self.program_is_gone(id);
                }
            }
        }
    }

    /// What a program asked for, with the configuration's values where it asked for nothing.
    fn session_shape(
        &self,
        (slots, sndbuf_bytes, rmbe_bytes): (u16, u32, u32),
    ) -> Result<Shape, String> {
        let or_default = |value, default| if value == 0 { default } else { value };
        let attach = &self.config.attach;
        let shape = Shape::new(
            if slots == 0 { attach.slots } else { slots },
            or_default(sndbuf_bytes, attach.sndbuf_bytes),
            or_default(rmbe_bytes, attach.rmb_bytes),
        )
        .map_err(|error| error.to_string())?;
        if pollux_wire::field::BufferSizeCode::from_bytes(shape.rmbe_bytes()).is_none() {
            let bytes = shape.rmbe_bytes();
            return Err(format!(
                "a receive ring of {bytes} bytes has no code; ask for 16K << n"
            ));
        }
        Ok(shape)
    }

    /// Makes a session and tells its program.
    fn welcome(
        &mut self,
        id: u32,
        greeting: &Greeting,
        version: u32,
        (slots, sndbuf_bytes, rmbe_bytes): (u16, u32, u32),
        name: &str,
    ) -> Result<(), String> {
        if version != VERSION {
            return Err(format!(
                "the program speaks version {version} of the attach protocol, this appliance \
                 {VERSION}; use the library that came with the appliance"
            ));
        }
        let shape = self.session_shape((slots, sndbuf_bytes, rmbe_bytes))?;
        let worker = id as usize % self.plane.workers();
        let layout = Layout::of(shape);
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let segment = layout
            .create_segment("pollux-session")
            .map_err(|e| text(&e))?;
        let side = WorkerSide::new(segment.clone(), layout).map_err(|e| text(&e))?;
        let (wake, woken) = wake_channel().map_err(|e| text(&e))?;
        let pool = PoolId::Added(id);
        self.plane
            .add_pool(pool, (segment.clone(), layout), Sharing::Program)
            .map_err(|e| text(&e))?;
        let fds = (segment.fd(), woken.fd());
        let placed = self.place_session((id, worker), greeting, fds);
        let (index, worker_wake) = match placed {
            Ok(placed) => placed,
            Err(text) => {
                self.plane.retire_pool(pool);
                return Err(text);
            }
        };
        let served = ServedSession::new(side, wake);
        self.plane.attach_session(worker, index, served);
        let slots = shape.slots();
        let session = SessionState {
            worker,
            index,
            socket: None,
            worker_wake,
            pid: greeting.pid,
            program: name.to_string(),
            outbox: VecDeque::new(),
        };
        self.sessions.insert(id, session);
        tracing::info!(
            session = id,
            pid = greeting.pid,
            program = name,
            slots,
            "attached"
        );
        Ok(())
    }

    /// Takes a place in the worker's table for a session, and tells its program.
    fn place_session(
        &mut self,
        (id, worker): (u32, usize),
        greeting: &Greeting,
        (segment, woken): (BorrowedFd<'_>, BorrowedFd<'_>),
    ) -> Result<(SessionId, Wake), String> {
        let index = self.plane.take_session(worker).ok_or_else(|| {
            "all sessions are in use; raise attach.sessions_max or close programs".to_string()
        })?;
        let worker_wake = match self.plane.program_wake(worker) {
            Ok(worker_wake) => worker_wake,
            Err(error) => {
                self.plane.put_back_session(worker, index);
                return Err(error.to_string());
            }
        };
        let reply = Reply::Welcome {
            version: VERSION,
            session: id,
        }
        .emit();
        let fds: [BorrowedFd<'_>; 3] = [segment, worker_wake.fd(), woken];
        if let Err(error) = packet::send(&greeting.socket, &reply, &fds) {
            self.plane.forget_wake(worker, &worker_wake);
            self.plane.put_back_session(worker, index);
            return Err(format!("the program does not read: {error}"));
        }
        Ok((index, worker_wake))
    }

    /// A program has closed its socket, died, or broken a rule: everything it had is freed.
    pub(crate) fn program_is_gone(&mut self, id: u32) {
        if let Some(greeting) = self.greetings.remove(&id) {
            let _ = self.reactor.remove(&greeting.socket);
            return;
        }
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let Some(socket) = session.socket.take() else {
            return;
        };
        let _ = self.reactor.remove(&socket);
        session.outbox.clear();
        tracing::info!(
            session = id,
            pid = session.pid,
            program = session.program,
            "detached"
        );
        let (worker, index) = (session.worker, session.index);
        // Before it is dropped: a child of the program may hold it still.
        self.plane.forget_wake(worker, &session.worker_wake);
        let now = self.now();
        self.plane.cancel(
            now,
            |origin| matches!(origin, Origin::Program { session, .. } if *session == id),
        );
        self.plane.detach_session(worker, index);
    }

    pub(crate) fn session_fault(
        &mut self,
        worker: usize,
        session: SessionId,
        violation: Violation,
    ) {
        let id = self.session_of(worker, session);
        tracing::warn!(session = id, %violation, "a program scribbled in its session's memory");
        if let Some(id) = id {
            self.program_is_gone(id);
        }
    }

    /// The worker does not use a session's memory any more.
    pub(crate) fn session_detached(&mut self, worker: usize, session: SessionId) {
        let Some(id) = self.session_of(worker, session) else {
            return;
        };
        self.sessions.remove(&id);
        // A quarantined slot lies in this memory, which stays registered as long as its link.
        self.plane.retire_pool(PoolId::Added(id));
    }

    /// The worker and the peer are done with a slot.
    pub(crate) fn slot_released(&mut self, pool: PoolId, slot: SlotRef) {
        let PoolId::Added(session) = pool else {
            return;
        };
        let SlotRef { slot, generation } = slot;
        self.send_reply(session, &Reply::Released { slot, generation }, &[]);
    }

    fn session_of(&self, worker: usize, session: SessionId) -> Option<u32> {
        self.sessions
            .iter()
            .find(|(_, state)| state.worker == worker && state.index == session)
            .map(|(id, _)| *id)
    }

    /// Tells a program something; kept in order when its socket is full.
    pub(crate) fn send_reply(&mut self, id: u32, reply: &Reply, fds: &[BorrowedFd<'_>]) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let Some(socket) = session.socket.as_ref() else {
            return;
        };
        let bytes = reply.emit();
        if !session.outbox.is_empty() {
            session.outbox.push_back(bytes);
            return;
        }
        match packet::send(socket, &bytes, fds) {
            Ok(()) => {}
            Err(Errno::AGAIN) => {
                session.outbox.push_back(bytes);
                let token = Token::Session(id).into();
                let _ = self
                    .reactor
                    .modify(socket.as_fd(), Interest::ReadWrite, token);
            }
            // Its end shows on the socket.
            Err(_) => {}
        }
    }

    fn flush_outbox(&mut self, id: u32) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let Some(socket) = session.socket.as_ref() else {
            return;
        };
        if session.outbox.is_empty() {
            return;
        }
        while let Some(bytes) = session.outbox.front() {
            match packet::send(socket, bytes, &[]) {
                Err(Errno::AGAIN) => return,
                Ok(()) | Err(_) => drop(session.outbox.pop_front()),
            }
        }
        let token = Token::Session(id).into();
        let _ = self.reactor.modify(socket.as_fd(), Interest::Read, token);
    }
}
