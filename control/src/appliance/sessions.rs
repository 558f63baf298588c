//! The attach socket: programs come, bring connections, and go.

use super::handshakes::Origin;
use super::{Appliance, Token, millis};
use crate::plane::{PoolId, Sharing};
use crate::reactor::Interest;
use pollux_attach::layout::{Layout, Shape, VERSION};
use pollux_attach::message::{Reply, Request, Role as ProgramRole};
use pollux_attach::packet::{self, Packet, ReceiveError};
use pollux_attach::shared::{Violation, WorkerSide};
use pollux_attach::slots::SlotRef;
use pollux_proto::link::Role;
use pollux_proto::time::Instant;
use pollux_provider::Device;
use pollux_ring::{Wake, neighbour, wake_channel};
use pollux_wire::clc::Diagnosis;
use pollux_worker::{ServedSession, SessionId};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Programs that have connected and not yet said Hello.
const GREETING_MAX: usize = 64;

/// Programs accepted for one event, and messages taken from one of them: the others have their turn
/// then.
const ACCEPTS_MAX: usize = 16;
const MESSAGES_MAX: usize = 32;

/// What a program is told whose connection would need one.
const NO_DESCRIPTOR: &str = "the appliance has no file descriptor left; raise its limit (ulimit -n, \
                             LimitNOFILE=), or close connections";

/// A program that has connected and not yet said Hello.
pub(crate) struct Greeting {
    socket: OwnedFd,
    pid: u32,
    /// When it is let go.
    pub(crate) until: Instant,
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
    pub(crate) shape: Shape,
    /// Messages that found the socket full.
    outbox: VecDeque<Vec<u8>>,
}

impl SessionState {
    /// Connections that it may have.
    pub(crate) fn slots(&self) -> u16 {
        self.shape.slots()
    }

    /// Messages that may wait for a program that does not read: an answer for each handshake, and the
    /// release of each connection, twice.
    fn outbox_max(&self) -> usize {
        64 + 4 * usize::from(self.slots())
    }
}

impl<D> Appliance<D>
where
    D: Device,
    D::Qp: 'static,
    D::Group: 'static,
{
    /// Programs wait on the attach socket.
    pub(crate) fn accept_programs(&mut self) {
        for _ in 0..ACCEPTS_MAX {
            let greeted = match packet::accept(&self.attach.listener) {
                Ok(socket) => self.greet(socket),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    self.spare.turn_away(&self.attach.listener);
                    Err(format!("it cannot be accepted: {error}"))
                }
            };
            if let Err(error) = greeted {
                self.refused();
                let now = self.now();
                if let Some(left_out) = self.throttles.refusals.admit(now) {
                    tracing::warn!(error, left_out, "a program was turned away");
                }
            }
        }
    }

    fn refused(&mut self) {
        self.figures.refused += 1;
    }

    /// A program has broken a rule of the attach protocol or of its session's memory.
    fn fault(&mut self, id: u32, what: &dyn std::fmt::Display) {
        self.figures.faults += 1;
        let now = self.now();
        if let Some(left_out) = self.throttles.faults.admit(now) {
            let session = self.sessions.get(&id);
            let program = session.map_or("", |session| session.program.as_str());
            let pid = session.map_or(0, |session| session.pid);
            tracing::warn!(
                session = id,
                pid,
                program,
                left_out,
                "a program broke the rules, and loses its session: {what}"
            );
        }
        self.program_is_gone(id);
    }

    /// Lets those go that have connected and say nothing.
    pub(crate) fn expire_greetings(&mut self, now: Instant) {
        let silent = self
            .greetings
            .iter()
            .filter(|(_, greeting)| greeting.until <= now);
        let silent: Vec<u32> = silent.map(|(id, _)| *id).collect();
        for id in silent {
            self.refused();
            if let Some(left_out) = self.throttles.refusals.admit(now) {
                let pid = self.greetings.get(&id).map_or(0, |greeting| greeting.pid);
                let error = "it has connected and said nothing";
                tracing::warn!(pid, error, left_out, "a program was turned away");
            }
            self.program_is_gone(id);
        }
    }

    fn greet(&mut self, socket: OwnedFd) -> Result<(), String> {
        // 0 for one of another PID namespace.
        let pid = neighbour::trusted(&socket).map_err(|stranger| stranger.to_string())?;
        let pid = pid.unwrap_or(0);
        if self.greetings.len() >= GREETING_MAX {
            return Err(format!(
                "{GREETING_MAX} programs have connected and said nothing"
            ));
        }
        let id = self.next_id() as u32;
        self.reactor
            .add(&socket, Interest::Read, Token::Session(id).into())
            .map_err(|error| format!("its socket cannot be watched: {error}"))?;
        let wait = millis(self.config.handshake.timeout_ms);
        let until = self.now().after(wait);
        self.greetings.insert(id, Greeting { socket, pid, until });
        Ok(())
    }

    /// A program's socket is ready.
    pub(crate) fn handle_session_socket(&mut self, id: u32) {
        self.flush_outbox(id);
        for _ in 0..MESSAGES_MAX {
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
                Err(ReceiveError::NoDescriptor { bytes }) => {
                    self.lost_descriptor(id, &bytes);
                    continue;
                }
                Err(error) => return self.fault(id, &error),
            };
            match Request::parse(&bytes, fds.len()) {
                Ok(request) => self.handle_request(id, request, fds),
                Err(error) => return self.fault(id, &error),
            }
        }
    }

    /// The descriptor of a message is lost, because this process can have no more of them.
    fn lost_descriptor(&mut self, id: u32, bytes: &[u8]) {
        match Request::parse(bytes, 1) {
            // Nothing was sent and nothing taken: the connection stays as it is.
            Ok(Request::Upgrade {
                request,
                role: ProgramRole::Client,
            }) => {
                self.figures.fallbacks += 1;
                let reply = Reply::Fallback {
                    request,
                    code: Diagnosis::MEM.0,
                    text: NO_DESCRIPTOR.to_string(),
                };
                self.send_reply(id, &reply, &[]);
            }
            // The bytes of a handshake may wait in it, which nobody takes.
            Ok(Request::Upgrade {
                request,
                role: ProgramRole::Server,
            }) => {
                let origin = Origin::Program {
                    session: id,
                    request,
                };
                self.tell_failed(origin, Errno::NFILE, NO_DESCRIPTOR.to_string());
            }
            Ok(Request::Hello { .. } | Request::Released { .. }) => {
                self.fault(id, &"a message has descriptors that it does not need");
            }
            Err(error) => self.fault(id, &error),
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
                    return self.fault(id, &"it said Hello twice");
                };
                let wanted = (slots, sndbuf_bytes, rmbe_bytes);
                if let Err(text) = self.welcome(id, &greeting, version, wanted, &name) {
                    self.refused();
                    let now = self.now();
                    if let Some(left_out) = self.throttles.refusals.admit(now) {
                        let (pid, program) = (greeting.pid, name);
                        tracing::warn!(pid, program, reason = text, left_out, "refused");
                    }
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
                    self.fault(id, &error);
                }
            }
        }
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
        self.check_session(greeting.pid, shape)?;
        let worker = self.least_loaded_worker();
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
            shape,
            outbox: VecDeque::new(),
        };
        self.sessions.insert(id, session);
        let now = self.now();
        if let Some(left_out) = self.throttles.sessions.admit(now) {
            let (session, pid, program) = (id, greeting.pid, name);
            tracing::info!(session, pid, program, slots, left_out, "attached");
        }
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
        let now = Instant(u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX));
        if let Some(left_out) = self.throttles.sessions.admit(now) {
            let (pid, program) = (session.pid, &session.program);
            tracing::info!(session = id, pid, program, left_out, "detached");
        }
        let (worker, index) = (session.worker, session.index);
        // Before it is dropped: a child of the program may hold it still.
        self.plane.forget_wake(worker, &session.worker_wake);
        self.plane.cancel(
            now,
            |asker| matches!(asker.origin, Origin::Program { session, .. } if session == id),
        );
        self.plane.detach_session(worker, index);
    }

    pub(crate) fn session_fault(
        &mut self,
        worker: usize,
        session: SessionId,
        violation: Violation,
    ) {
        if let Some(id) = self.session_of(worker, session) {
            self.fault(id, &format!("its session's memory: {violation}"));
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
            if session.outbox.len() < session.outbox_max() {
                session.outbox.push_back(bytes);
            } else {
                self.fault(id, &"it does not read what it is told");
            }
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
