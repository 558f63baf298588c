//! The attach socket: programs come, bring connections, and go.

use super::handshake::Origin;
use super::memory::BufferPool;
use super::state::{Place, SessionState, SlotPool};
use super::{Appliance, Token};
use crate::reactor::Interest;
use pollux_attach::layout::{Layout, Shape, VERSION};
use pollux_attach::message::{Reply, Request, Role as ProgramRole};
use pollux_attach::packet::{self, Packet, ReceiveError};
use pollux_attach::shared::{Violation, WorkerSide};
use pollux_attach::slots::{SlotRef, SlotTable};
use pollux_proto::diagnosis::Fallback;
use pollux_proto::link::Role;
use pollux_provider::Device;
use pollux_ring::wake_channel;
use pollux_worker::{Command, ServedSession, SessionId};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Programs that have connected and not yet said Hello.
const GREETING_MAX: usize = 64;

/// A program that has connected and not yet said Hello.
pub(crate) struct Greeting {
    socket: OwnedFd,
    pid: u32,
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
                let Some(session) = self.sessions.get_mut(&id) else {
                    return;
                };
                let released = SlotRef { slot, generation };
                if let Err(error) = session.pool.table.program_done(released) {
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
        let worker = id as usize % self.workers.len();
        let layout = Layout::of(shape);
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let segment = layout
            .create_segment("pollux-session")
            .map_err(|e| text(&e))?;
        let side = WorkerSide::new(segment.clone(), layout).map_err(|e| text(&e))?;
        let buffers =
            BufferPool::create(&self.device, segment.clone(), layout).map_err(|e| text(&e))?;
        let (wake, woken) = wake_channel().map_err(|e| text(&e))?;
        let port = &mut self.workers[worker].port;
        let (index, _) = port.sessions.take().ok_or_else(|| {
            "all sessions are in use; raise attach.sessions_max or close programs".to_string()
        })?;
        let worker_wake = match port.program_wake() {
            Ok(worker_wake) => worker_wake,
            Err(error) => {
                port.sessions.put(index);
                return Err(error.to_string());
            }
        };
        let reply = Reply::Welcome {
            version: VERSION,
            session: id,
        }
        .emit();
        let fds: [BorrowedFd<'_>; 3] = [segment.fd(), worker_wake.fd(), woken.fd()];
        if let Err(error) = packet::send(&greeting.socket, &reply, &fds) {
            port.forget_wake(&worker_wake);
            port.sessions.put(index);
            return Err(format!("the program does not read: {error}"));
        }
        let served = Box::new(ServedSession::new(side, wake));
        port.send(Command::AttachSession {
            session: SessionId(index),
            served,
        });
        let slots = shape.slots();
        let pool = SlotPool {
            table: SlotTable::new(slots),
            buffers,
        };
        let session = SessionState {
            worker,
            index,
            socket: None,
            worker_wake,
            pid: greeting.pid,
            program: name.to_string(),
            pool,
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
        self.workers[worker].port.forget_wake(&session.worker_wake);
        let orphans: Vec<_> = self
            .handshakes
            .iter()
            .filter(|(_, handshake)| {
                matches!(handshake.origin, Origin::Program { session, .. } if session == id)
            })
            .map(|(handshake, _)| *handshake)
            .collect();
        for handshake in orphans {
            self.cancel_handshake(handshake);
        }
        self.workers[worker]
            .port
            .send(Command::DetachSession(SessionId(index)));
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
        // A quarantined slot lies in this memory, which stays registered as long as its link.
        let quarantined = self.workers.iter().any(|state| {
            state
                .links
                .values()
                .flat_map(|link| &link.quarantine)
                .any(|place| matches!(place, Place::Session { session, .. } if *session == id))
        });
        self.workers[worker].port.sessions.put(session.0);
        if let Some(state) = self.sessions.remove(&id)
            && quarantined
        {
            self.buried.push((id, state));
        }
    }

    /// Frees the memory of sessions that no link can reach any more.
    pub(crate) fn sweep_buried(&mut self) {
        let workers = &self.workers;
        self.buried.retain(|(id, _)| {
            workers
                .iter()
                .flat_map(|state| state.links.values())
                .any(|link| {
                    link.quarantine.iter().any(
                        |place| matches!(place, Place::Session { session, .. } if session == id),
                    )
                })
        });
    }

    fn session_of(&self, worker: usize, session: SessionId) -> Option<u32> {
        self.sessions
            .iter()
            .find(|(_, state)| state.worker == worker && state.index == session.0)
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

    /// A connection stays on TCP: counted, logged, and told to whoever asked for it.
    pub(crate) fn fall_back(
        &mut self,
        (origin, role): (Origin, Role),
        peer: SocketAddr,
        fallback: Fallback,
        text: String,
    ) {
        tracing::info!(%peer, %role, reason = text, "connection stays on TCP");
        match origin {
            Origin::Program { session, request } => {
                let code = fallback.diagnosis.0;
                let reply = Reply::Fallback {
                    request,
                    code,
                    text: text.clone(),
                };
                self.send_reply(session, &reply, &[]);
            }
            Origin::Echo => {}
            Origin::Latency(run) => self.latency_failed(run, format!("fell back to TCP: {text}")),
        }
        let at = std::time::SystemTime::now();
        self.fallbacks.record(super::fallbacks::Fallback {
            at,
            role,
            peer,
            by: fallback.by,
            diagnosis: fallback.diagnosis,
            text,
        });
    }

    /// A connection is lost: told to whoever asked for it.
    pub(crate) fn tell_failed(&mut self, origin: Origin, errno: Errno, text: String) {
        match origin {
            Origin::Program { session, request } => {
                let reply = Reply::Failed {
                    request,
                    errno: errno.raw_os_error(),
                    text,
                };
                self.send_reply(session, &reply, &[]);
            }
            Origin::Echo => {}
            Origin::Latency(run) => self.latency_failed(run, text),
        }
    }
}
