//! Handshakes: bytes between a TCP socket and the state machines of `proto::clc`, and the
//! answers to their questions.

use super::state::{ConnKey, ConnRecord, ConnUser, GroupKey, LinkPhase, Place, Reserved};
use super::{Appliance, Token};
use crate::reactor::Interest;
use pollux_proto::clc::{self, Agreed, Outcome, Output, Progress, Question, Reader};
use pollux_proto::conn::ConnParams;
use pollux_proto::diagnosis::{DecidedBy, Fallback};
use pollux_proto::group::PeerKey;
use pollux_proto::link::Role;
use pollux_proto::llc::RkeyTag;
use pollux_proto::time::Instant;
use pollux_provider::{Device, Rkey};
use pollux_wire::clc::{Contact, Diagnosis, Sync};
use pollux_worker::{Command, ConnId, ConnSpec, OpenConn, Owner, TAG_ECHO, TAG_PING};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use std::net::{SocketAddr, TcpStream};

/// First bytes of every CLC message of SMC-R: "SMCR" in EBCDIC.
const EYE_CATCHER: [u8; 4] = [0xe2, 0xd4, 0xc3, 0xd9];

/// Names a handshake; never used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct HandshakeId(pub(crate) u64);

/// Who wants the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    /// A program that sent its socket.
    Program { session: u32, request: u32 },
    /// A connection to an echo service.
    Echo,
    /// A latency run.
    Latency(u64),
}

/// The state machine of our side.
enum Machine {
    /// A server waits for the first bytes, to see whether the client speaks SMC at all.
    Peeking {
        until: Instant,
    },
    Client(Box<clc::Client>),
    Server(Box<clc::Server>),
}

/// A handshake under way.
pub(crate) struct Handshake {
    tcp: TcpStream,
    pub(crate) origin: Origin,
    pub(crate) worker: usize,
    pub(crate) role: Role,
    local: SocketAddr,
    peer: SocketAddr,
    machine: Machine,
    reader: Reader,
    unsent: Vec<u8>,
    /// What the client offered, at a server.
    candidate: Option<clc::Candidate>,
    pub(crate) reserved: Option<Reserved>,
    /// The end of the whole handshake, whatever its parts may still wait for.
    deadline: Instant,
}

impl Handshake {
    /// When something is due if nothing comes before.
    pub(crate) fn due(&self) -> Instant {
        let machine = match &self.machine {
            Machine::Peeking { until } => Some(*until),
            Machine::Client(client) => client.poll_timeout(),
            Machine::Server(server) => server.poll_timeout(),
        };
        machine.map_or(self.deadline, |due| due.min(self.deadline))
    }
}

/// What became of a look at the first bytes.
enum Peeked {
    Smc,
    Other,
    Wait,
}

fn peek(tcp: &TcpStream) -> Peeked {
    let mut bytes = [0; EYE_CATCHER.len()];
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    match rustix::net::recv(tcp, &mut bytes, flags) {
        Ok((_, len)) if len > 0 && bytes[..len] == EYE_CATCHER[..len] => {
            if len == EYE_CATCHER.len() {
                Peeked::Smc
            } else {
                Peeked::Wait
            }
        }
        Err(Errno::AGAIN | Errno::INTR) => Peeked::Wait,
        Ok(_) | Err(_) => Peeked::Other,
    }
}

impl<D> Appliance<D>
where
    D: Device,
    D::Qp: 'static,
    D::Group: 'static,
{
    /// Begins a handshake on a connected TCP socket. Its file description may be shared with a
    /// program, so it is never made non-blocking.
    pub(crate) fn begin_handshake(
        &mut self,
        tcp: TcpStream,
        (role, origin): (Role, Origin),
        worker: usize,
    ) {
        let (Ok(local), Ok(peer)) = (tcp.local_addr(), tcp.peer_addr()) else {
            let text = "the socket is not a connected TCP socket any more".to_string();
            self.tell_failed(origin, rustix::io::Errno::NOTCONN, text);
            return;
        };
        let now = self.now();
        if role == Role::Client && !self.config.is_peer(peer) {
            let text = format!("{peer} is not listed as a [[peer]]; no SMC was offered");
            self.fall_back(
                (origin, role),
                peer,
                Fallback {
                    diagnosis: Diagnosis::PEERNOSMC,
                    by: DecidedBy::Local,
                    sync: Sync::InSync,
                },
                text,
            );
            return;
        }
        let config = &self.config.handshake;
        let (peek_wait, wait) = (millis(config.peek_timeout_ms), millis(config.timeout_ms));
        let machine = match role {
            Role::Client => {
                let local = self.workers[worker].local.clone();
                Machine::Client(Box::new(clc::Client::new(local, now)))
            }
            Role::Server => Machine::Peeking {
                until: now.after(peek_wait),
            },
        };
        let id = HandshakeId(self.next_id());
        if let Err(error) = self
            .reactor
            .add(&tcp, Interest::Read, Token::Handshake(id).into())
        {
            self.tell_failed(
                origin,
                Errno::NOMEM,
                format!("cannot watch the socket: {error}"),
            );
            return;
        }
        let handshake = Handshake {
            tcp,
            origin,
            worker,
            role,
            local,
            peer,
            machine,
            reader: Reader::new(),
            unsent: Vec::new(),
            candidate: None,
            reserved: None,
            deadline: now.after(wait.saturating_mul(3)),
        };
        self.handshakes.insert(id, handshake);
        self.pump_handshake(id);
    }

    /// The TCP socket of a handshake is ready.
    pub(crate) fn handle_handshake_socket(&mut self, id: HandshakeId) {
        let now = self.now();
        let Some(handshake) = self.handshakes.get_mut(&id) else {
            return;
        };
        if let Machine::Peeking { .. } = handshake.machine {
            match peek(&handshake.tcp) {
                Peeked::Wait => return,
                Peeked::Other => return self.no_smc(id, "the client spoke no SMC"),
                Peeked::Smc => {
                    let local = self.workers[handshake.worker].local.clone();
                    handshake.machine = Machine::Server(Box::new(clc::Server::new(local, now)));
                }
            }
        }
        self.flush_unsent(id);
        self.read_messages(id);
        self.pump_handshake(id);
    }

    /// Reads what belongs to the handshake and never a byte more.
    fn read_messages(&mut self, id: HandshakeId) {
        loop {
            let Some(handshake) = self.handshakes.get_mut(&id) else {
                return;
            };
            let Handshake {
                machine,
                reader,
                tcp,
                ..
            } = handshake;
            let received = rustix::net::recv(&*tcp, reader.space(), RecvFlags::DONTWAIT);
            match received {
                Err(Errno::AGAIN | Errno::INTR) => return,
                Ok((_, 0)) | Err(_) => {
                    match machine {
                        Machine::Client(client) => client.handle_end(),
                        Machine::Server(server) => server.handle_end(),
                        Machine::Peeking { .. } => {}
                    }
                    return;
                }
                Ok((_, len)) => match reader.filled(len) {
                    Ok(Progress::More) => {}
                    Ok(Progress::Complete) => {
                        let message = reader.message().unwrap_or_default().to_vec();
                        reader.restart();
                        match machine {
                            Machine::Client(client) => client.handle_message(&message),
                            Machine::Server(server) => server.handle_message(&message),
                            Machine::Peeking { .. } => {}
                        }
                        // What follows may be for the program: one message per readiness, and
                        // only as long as the handshake goes on.
                        return;
                    }
                    Err(error) => {
                        let error = clc::HandshakeError::from(error);
                        return self.end_handshake(id, Outcome::Failed(error));
                    }
                },
            }
        }
    }

    /// Carries out what the machine of a handshake orders.
    pub(crate) fn pump_handshake(&mut self, id: HandshakeId) {
        loop {
            let Some(handshake) = self.handshakes.get_mut(&id) else {
                return;
            };
            let done = match &mut handshake.machine {
                Machine::Peeking { .. } => return,
                Machine::Client(client) => match client.poll_output() {
                    None => return,
                    Some(Output::Send(bytes)) => {
                        self.send_bytes(id, &bytes);
                        continue;
                    }
                    Some(Output::Ask(agreed)) => {
                        self.prepare_client(id, agreed);
                        continue;
                    }
                    Some(Output::Done(outcome)) => outcome,
                },
                Machine::Server(server) => match server.poll_output() {
                    None => return,
                    Some(Output::Send(bytes)) => {
                        self.send_bytes(id, &bytes);
                        continue;
                    }
                    Some(Output::Ask(Question::Choose(candidate))) => {
                        handshake.candidate = Some(candidate);
                        self.choose_server(id, PeerKey::of_candidate(&candidate), candidate);
                        continue;
                    }
                    Some(Output::Ask(Question::Connect(agreed))) => {
                        self.connect_first(id, agreed);
                        continue;
                    }
                    Some(Output::Done(outcome)) => outcome,
                },
            };
            return self.end_handshake(id, done);
        }
    }

    fn send_bytes(&mut self, id: HandshakeId, bytes: &[u8]) {
        if let Some(handshake) = self.handshakes.get_mut(&id) {
            handshake.unsent.extend_from_slice(bytes);
            self.flush_unsent(id);
        }
    }

    fn flush_unsent(&mut self, id: HandshakeId) {
        let Some(handshake) = self.handshakes.get_mut(&id) else {
            return;
        };
        while !handshake.unsent.is_empty() {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match rustix::net::send(&handshake.tcp, &handshake.unsent, flags) {
                Ok(sent) => drop(handshake.unsent.drain(..sent)),
                Err(Errno::INTR) => {}
                // A dead connection shows as an end or an error of the next read.
                Err(_) => break,
            }
        }
        let interest = if handshake.unsent.is_empty() {
            Interest::Read
        } else {
            Interest::ReadWrite
        };
        if let Err(error) =
            self.reactor
                .modify(&handshake.tcp, interest, Token::Handshake(id).into())
        {
            tracing::error!(%error, "cannot watch the socket of a handshake");
        }
    }

    /// A server decides which group a client joins.
    fn choose_server(&mut self, id: HandshakeId, key: PeerKey, candidate: clc::Candidate) {
        let Some(worker) = self.handshakes.get(&id).map(|handshake| handshake.worker) else {
            return;
        };
        let state = &mut self.workers[worker];
        let forming = state
            .links
            .iter_mut()
            .find(|(group, link)| {
                link.first.is_some()
                    && state
                        .groups
                        .get(**group)
                        .is_some_and(|group| group.role() == Role::Server && *group.key() == key)
            })
            .map(|(_, link)| link);
        if let Some(link) = forming {
            // The client is about to have a link: with it this connection needs none of its own.
            link.waiting.push(id);
            return;
        }
        let reserved = match state.groups.find_as_server(&key) {
            Some(group) => self.reserve(id, group),
            None => self
                .make_link(worker, Role::Server, key, (None, candidate.max_conns), id)
                .and_then(|group| self.reserve(id, group)),
        };
        match reserved {
            Ok(Contact::Subsequent) => {}
            Ok(Contact::First) => self.accept(id, Contact::First),
            Err(diagnosis) => self.decline(id, diagnosis),
        }
    }

    /// Goes on with a handshake that waited for another one's link.
    pub(crate) fn choose_again(&mut self, id: HandshakeId) {
        let Some(handshake) = self.handshakes.get(&id) else {
            return;
        };
        if let Some(candidate) = handshake.candidate {
            self.choose_server(id, PeerKey::of_candidate(&candidate), candidate);
            self.pump_handshake(id);
        }
    }

    fn accept(&mut self, id: HandshakeId, contact: Contact) {
        let now = self.now();
        let Some(handshake) = self.handshakes.get_mut(&id) else {
            return;
        };
        if let (Machine::Server(server), Some(reserved)) =
            (&mut handshake.machine, &handshake.reserved)
        {
            server.accept(now, contact, &reserved.own);
        }
    }

    fn decline(&mut self, id: HandshakeId, diagnosis: Diagnosis) {
        match self
            .handshakes
            .get_mut(&id)
            .map(|handshake| &mut handshake.machine)
        {
            Some(Machine::Client(client)) => client.decline(diagnosis),
            Some(Machine::Server(server)) => server.decline(diagnosis),
            Some(Machine::Peeking { .. }) | None => {}
        }
    }

    /// A client has an Accept: joins the group it names, or makes one.
    fn prepare_client(&mut self, id: HandshakeId, agreed: Agreed) {
        let Some(handshake) = self.handshakes.get(&id) else {
            return;
        };
        let worker = handshake.worker;
        let key = PeerKey::of_server(agreed.terms.version, &agreed.peer);
        let done = match agreed.terms.contact {
            Contact::First => {
                let made = (Some(agreed.peer.qpn), agreed.terms.max_conns);
                self.make_link(worker, Role::Client, key, made, id)
                    .and_then(|group| self.reserve(id, group))
                    .map(|_| self.connect_first(id, agreed))
            }
            Contact::Subsequent => self.workers[worker]
                .groups
                .find_as_client(&key, agreed.peer.qpn)
                .ok_or(Diagnosis::SYNCERR)
                .and_then(|group| self.reserve(id, group))
                .map(|_| ()),
        };
        if let Err(diagnosis) = done {
            self.decline(id, diagnosis);
        }
    }

    /// Gets a place, a token and buffers for the connection of a handshake in a group. On a link
    /// that works, the peer is told of the buffer first; the handshake goes on with its answer.
    fn reserve(
        &mut self,
        id: HandshakeId,
        group: pollux_proto::group::GroupId,
    ) -> Result<Contact, Diagnosis> {
        let Some(handshake) = self.handshakes.get(&id) else {
            return Err(Diagnosis::INTERR);
        };
        let (worker, origin) = (handshake.worker, handshake.origin);
        let (place, buffers) = self.take_slot(worker, origin)?;
        let reserved = self.reserve_in(worker, group, (place, buffers));
        let reserved = match reserved {
            Ok(reserved) => reserved,
            Err(diagnosis) => {
                self.put_back_slot(place);
                return Err(diagnosis);
            }
        };
        let link = self.workers[worker].links.get_mut(&group);
        let running = link
            .as_ref()
            .is_some_and(|link| link.phase == LinkPhase::Running);
        let rtoken = reserved.own.rtoken;
        if let Some(handshake) = self.handshakes.get_mut(&id) {
            handshake.reserved = Some(reserved);
        }
        if !running {
            return Ok(Contact::First);
        }
        self.reserve_at_worker(id);
        let tag = RkeyTag(id.0);
        let engine = self.workers[worker]
            .links
            .get_mut(&group)
            .and_then(|link| link.engine.as_mut());
        match engine.map(|engine| engine.confirm_rkey(tag, rtoken)) {
            Some(Ok(())) => {
                self.pump_link(GroupKey { worker, group });
                Ok(Contact::Subsequent)
            }
            Some(Err(_)) | None => Err(Diagnosis::ERR_REGBUF),
        }
    }

    /// The worker keeps early messages for the token from now on.
    fn reserve_at_worker(&mut self, id: HandshakeId) {
        let Some(reserved) = self.handshakes.get(&id).and_then(|h| h.reserved.as_ref()) else {
            return;
        };
        let (key, token) = (reserved.conn, reserved.token);
        let state = &mut self.workers[key.worker];
        if let Some(link) = state.links.get(&reserved.group) {
            let (conn, link) = (ConnId(key.conn), link.link);
            state.port.send(Command::ReserveConn { conn, link, token });
        }
    }

    /// First contact: both sides know each other's queue pair. The link is connected and moved
    /// into the worker; the handshake goes on when the worker has it.
    fn connect_first(&mut self, id: HandshakeId, agreed: Agreed) {
        let Some(handshake) = self.handshakes.get_mut(&id) else {
            return;
        };
        let worker = handshake.worker;
        let Some(reserved) = handshake.reserved.as_mut() else {
            return;
        };
        reserved.agreed = Some(agreed);
        let group = reserved.group;
        match self.connect_link(GroupKey { worker, group }, &agreed) {
            Ok(()) => self.reserve_at_worker(id),
            Err(diagnosis) => self.decline(id, diagnosis),
        }
    }

    /// The worker has the link of a first contact.
    pub(crate) fn link_is_adopted(&mut self, id: HandshakeId) {
        let Some(handshake) = self.handshakes.get_mut(&id) else {
            return;
        };
        if let (Machine::Client(client), Some(reserved)) =
            (&mut handshake.machine, &handshake.reserved)
        {
            client.provide(&reserved.own);
        }
        self.pump_handshake(id);
    }

    /// The link of a first contact works.
    pub(crate) fn link_is_confirmed(&mut self, id: HandshakeId) {
        match self
            .handshakes
            .get_mut(&id)
            .map(|handshake| &mut handshake.machine)
        {
            Some(Machine::Client(client)) => client.handle_link_confirmed(),
            Some(Machine::Server(server)) => server.handle_link_confirmed(),
            Some(Machine::Peeking { .. }) | None => {}
        }
        self.pump_handshake(id);
    }

    /// The link of a first contact does not work.
    pub(crate) fn link_has_failed(&mut self, id: HandshakeId, diagnosis: Diagnosis) {
        let now = self.now();
        match self
            .handshakes
            .get_mut(&id)
            .map(|handshake| &mut handshake.machine)
        {
            Some(Machine::Client(client)) => client.handle_link_failed(now, diagnosis),
            Some(Machine::Server(server)) => server.handle_link_failed(now, diagnosis),
            Some(Machine::Peeking { .. }) | None => {}
        }
        self.pump_handshake(id);
    }

    /// The peer knows our buffer, or does not want it.
    pub(crate) fn rkey_is_answered(&mut self, id: HandshakeId, answer: Result<(), Diagnosis>) {
        let role = self.handshakes.get(&id).map(|handshake| handshake.role);
        match (answer, role) {
            (Err(diagnosis), _) => self.decline(id, diagnosis),
            (Ok(()), Some(Role::Server)) => self.accept(id, Contact::Subsequent),
            (Ok(()), Some(Role::Client)) => return self.link_is_adopted(id),
            (Ok(()), None) => {}
        }
        self.pump_handshake(id);
    }

    /// A timer of a handshake may be due.
    pub(crate) fn handle_handshake_timeout(&mut self, id: HandshakeId, now: Instant) {
        let Some(handshake) = self.handshakes.get_mut(&id) else {
            return;
        };
        if handshake.due() > now {
            return;
        }
        match &mut handshake.machine {
            Machine::Peeking { .. } => {
                return self.no_smc(id, "the client sent nothing in time");
            }
            Machine::Client(client) => client.handle_timeout(now),
            Machine::Server(server) => server.handle_timeout(now),
        }
        if handshake.deadline <= now {
            self.decline(id, Diagnosis::TIMEOUT_CL);
        }
        self.pump_handshake(id);
    }

    /// A server's connection carries something else than SMC.
    fn no_smc(&mut self, id: HandshakeId, why: &str) {
        let Some(handshake) = self.handshakes.remove(&id) else {
            return;
        };
        self.unwatch(&handshake.tcp);
        let fallback = Fallback {
            diagnosis: Diagnosis::PEERNOSMC,
            by: DecidedBy::Peer,
            sync: Sync::InSync,
        };
        let (origin, role) = (handshake.origin, handshake.role);
        self.fall_back((origin, role), handshake.peer, fallback, why.to_string());
    }

    /// Ends the handshake of a program that is gone.
    pub(crate) fn cancel_handshake(&mut self, id: HandshakeId) {
        self.decline(id, Diagnosis::INTERR);
        self.pump_handshake(id);
    }

    fn end_handshake(&mut self, id: HandshakeId, outcome: Outcome) {
        let Some(mut handshake) = self.handshakes.remove(&id) else {
            return;
        };
        self.unwatch(&handshake.tcp);
        match outcome {
            Outcome::Connected(agreed) => self.connected(handshake, agreed),
            Outcome::Fallback(fallback) => {
                let reserved = handshake.reserved.take();
                self.give_up_reservation(id, reserved, fallback.sync);
                let who = (handshake.origin, handshake.role);
                self.fall_back(who, handshake.peer, fallback, fallback.to_string());
            }
            Outcome::Failed(error) => {
                let reserved = handshake.reserved.take();
                self.give_up_reservation(id, reserved, Sync::InSync);
                let peer = handshake.peer;
                tracing::warn!(%peer, %error, "the handshake failed");
                let text = format!("handshake with {peer} failed: {error}");
                // Bytes may be lost in the stream: nobody may go on with it.
                let _ = handshake.tcp.shutdown(std::net::Shutdown::Both);
                self.tell_failed(handshake.origin, Errno::CONNRESET, text);
            }
        }
    }

    fn connected(&mut self, handshake: Handshake, agreed: Agreed) {
        let Some(reserved) = handshake.reserved else {
            return;
        };
        let Reserved {
            conn: key,
            group,
            token,
            place,
            buffers,
            ..
        } = reserved;
        let state = &mut self.workers[key.worker];
        if let Some(link) = state.links.get_mut(&group) {
            link.first = None;
            if let Some(engine) = link.engine.as_mut() {
                engine.learn_rtoken(agreed.peer.rtoken);
            }
        }
        let (owner, user) = self.owner_of(handshake.origin, place);
        let tcp = match user {
            ConnUser::Program { .. } => None,
            ConnUser::Echo | ConnUser::Latency(_) => Some(handshake.tcp),
        };
        let spec = ConnSpec {
            params: ConnParams {
                sndbuf_bytes: buffers.sndbuf_bytes,
                rmbe_bytes: buffers.rmbe_bytes,
                peer_rmbe_bytes: agreed.peer.rmbe_bytes,
                local_token: token,
                peer_token: agreed.peer.alert_token.get(),
            },
            peer_rkey: Rkey(agreed.peer.rtoken.rkey.0),
            peer_addr: agreed.peer.rmbe_address,
            sndbuf: buffers.sndbuf.clone(),
            rmbe: buffers.rmbe.clone(),
            owner,
        };
        let record = ConnRecord {
            group,
            token,
            peer_token: agreed.peer.alert_token.get(),
            peer_rmbe_bytes: agreed.peer.rmbe_bytes,
            place,
            buffers,
            role: handshake.role,
            local: handshake.local,
            peer: handshake.peer,
            _tcp: tcp,
            user,
        };
        self.conns.insert(key, record);
        let open = Box::new(OpenConn::new(&spec));
        self.workers[key.worker].port.send(Command::OpenConn {
            conn: ConnId(key.conn),
            open,
        });
        self.release_waiting(GroupKey {
            worker: key.worker,
            group,
        });
    }

    /// Who uses a connection, as the worker and as control see it.
    fn owner_of(&self, origin: Origin, place: Place) -> (Owner, ConnUser) {
        match (origin, place) {
            (Origin::Program { request, session }, Place::Session { slot, .. }) => {
                let index = self
                    .sessions
                    .get(&session)
                    .map_or(0, |session| session.index);
                let owner = Owner::Session {
                    session: pollux_worker::SessionId(index),
                    slot: slot.slot,
                    generation: slot.generation,
                };
                (owner, ConnUser::Program { request })
            }
            (Origin::Latency(run), _) => (Owner::App(TAG_PING), ConnUser::Latency(run)),
            (Origin::Echo | Origin::Program { .. }, _) => (Owner::App(TAG_ECHO), ConnUser::Echo),
        }
    }

    /// Takes back what a handshake that did not lead to a connection had got.
    fn give_up_reservation(&mut self, id: HandshakeId, reserved: Option<Reserved>, sync: Sync) {
        let Some(Reserved {
            conn: key,
            group,
            token,
            place,
            ..
        }) = reserved
        else {
            return;
        };
        let now = self.now();
        let state = &mut self.workers[key.worker];
        if let Some(token) = pollux_wire::field::AlertToken::new(token) {
            state.groups.leave(now, group, token);
        }
        let first = state
            .links
            .get(&group)
            .is_some_and(|link| link.first == Some(id));
        let announced = state
            .links
            .get(&group)
            .is_some_and(|l| l.phase != LinkPhase::Made);
        if announced {
            // The worker answers with ConnClosed, which frees the place.
            self.forgotten.insert(key, (group, place));
            state.port.send(Command::AbortConn(ConnId(key.conn)));
        } else {
            state.port.conns.put(key.conn);
            self.put_back_slot(place);
        }
        let group = GroupKey {
            worker: key.worker,
            group,
        };
        if first || sync == Sync::OutOfSync {
            self.end_group(group);
        }
    }

    fn unwatch(&self, tcp: &TcpStream) {
        if let Err(error) = self.reactor.remove(tcp) {
            tracing::debug!(%error, "the socket of a handshake was not watched");
        }
    }

    /// A free place in a worker's table of connections, joined to a group.
    fn reserve_in(
        &mut self,
        worker: usize,
        group: pollux_proto::group::GroupId,
        (place, buffers): (Place, super::memory::ConnBuffers),
    ) -> Result<Reserved, Diagnosis> {
        let state = &mut self.workers[worker];
        let link = state.links.get(&group).ok_or(Diagnosis::NOACTLINK)?;
        let (conn, generation) = state.port.conns.take().ok_or(Diagnosis::MEM)?;
        let token = pollux_worker::alert_token(ConnId(conn), generation);
        let own = link.endpoint(&buffers, token);
        let joined = own.map(|own| (own, state.groups.join(group, own.alert_token)));
        match joined {
            Some((own, Ok(()))) => Ok(Reserved {
                conn: ConnKey { worker, conn },
                group,
                token,
                place,
                buffers,
                own,
                agreed: None,
            }),
            Some((_, Err(error))) => {
                tracing::debug!(%error, "a connection cannot join its group");
                state.port.conns.put(conn);
                Err(Diagnosis::NOACTLINK)
            }
            None => {
                state.port.conns.put(conn);
                Err(Diagnosis::INTERR)
            }
        }
    }
}

/// A duration of the configuration.
pub(crate) fn millis(ms: u32) -> std::time::Duration {
    std::time::Duration::from_millis(u64::from(ms))
}
