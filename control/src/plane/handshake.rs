//! Handshakes: bytes between a stream and the state machines of `proto::clc`, and the answers to
//! their questions.

use super::state::{ConnRecord, GroupKey, LinkPhase, Reserved, Syn, Tenant, Wanted};
use super::{Event, Failure, Interest, Plane, Service, Stream};
use pollux_attach::slots::SlotRef;
use pollux_proto::clc::{self, Agreed, Outcome, Output, Progress, Question, Reader};
use pollux_proto::conn::ConnParams;
use pollux_proto::diagnosis::{DecidedBy, Fallback};
use pollux_proto::group::PeerKey;
use pollux_proto::link::Role;
use pollux_proto::time::Instant;
use pollux_provider::{Device, Rkey};
use pollux_wire::clc::{Contact, Diagnosis, Sync};
use pollux_worker::{App, Command, ConnId, ConnSpec, OpenConn, Owner};
use std::io;
use std::time::Duration;

/// First bytes of every CLC message of SMC-R: "SMCR" in EBCDIC.
const EYE_CATCHER: [u8; 4] = [0xe2, 0xd4, 0xc3, 0xd9];

/// Why a plane that stops takes no connection.
const STOPPING: &str = "this appliance is stopping";

/// Names a handshake; a plane never uses one twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HandshakeId(pub u64);

/// The state machine of our side.
pub(super) enum Machine {
    /// A server waits for the first bytes, to see whether the client speaks SMC at all. Where a few
    /// are there it looks again later: they stay in the stream, which is ready all the time.
    Peeking {
        until: Instant,
        again: Option<Instant>,
    },
    Client(Box<clc::Client>),
    Server(Box<clc::Server>),
}

/// A handshake under way.
pub(super) struct Handshake<S, U> {
    stream: S,
    /// What the stream is watched for.
    interest: Interest,
    pub(super) wanted: Wanted<U>,
    pub(super) machine: Machine,
    reader: Reader,
    unsent: Vec<u8>,
    /// What the handshake has come to, while its last message still leaves: nobody else may use the
    /// stream before.
    parting: Option<Outcome>,
    /// Why the peer is declined whatever it offers.
    refusal: Option<String>,
    /// What the client offered, at a server.
    pub(super) candidate: Option<clc::Candidate>,
    pub(super) reserved: Option<Reserved>,
    /// The end of the whole handshake, whatever its parts may still wait for.
    deadline: Instant,
}

impl<S, U> Handshake<S, U> {
    /// When something is due if nothing comes before.
    pub(super) fn due(&self) -> Instant {
        let machine = match &self.machine {
            Machine::Peeking { until, again } => Some(again.unwrap_or(*until).min(*until)),
            Machine::Client(client) => client.poll_timeout(),
            Machine::Server(server) => server.poll_timeout(),
        };
        machine.map_or(self.deadline, |due| due.min(self.deadline))
    }
}

/// How long a server that has seen a few bytes waits for more before it looks again.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Whether a handshake goes on after a look at its first bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Looked {
    Goes,
    Waits,
}

/// What became of a look at the first bytes.
enum Peeked {
    Smc,
    Other,
    /// Nothing is there.
    Nothing,
    /// Too little to tell.
    Some,
}

/// Nothing can be done now; the stream itself is sound.
fn is_passing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

fn peek(stream: &impl Stream) -> Peeked {
    let mut bytes = [0; EYE_CATCHER.len()];
    match stream.peek(&mut bytes) {
        Ok(len) if len > 0 && bytes[..len] == EYE_CATCHER[..len] => {
            if len == EYE_CATCHER.len() {
                Peeked::Smc
            } else {
                Peeked::Some
            }
        }
        Err(error) if is_passing(&error) => Peeked::Nothing,
        Ok(_) | Err(_) => Peeked::Other,
    }
}

impl<D: Device, A: App, S: Stream, U: Copy> Plane<D, A, S, U> {
    /// Begins a handshake over a connected stream.
    ///
    /// What becomes of it is told by [`Event::Opened`], [`Event::FellBack`] or [`Event::Failed`].
    ///
    /// # Panics
    /// There is no worker `wanted.worker`.
    pub fn begin(&mut self, now: Instant, stream: S, wanted: Wanted<U>) -> HandshakeId {
        self.start(now, stream, wanted, None)
    }

    /// Begins a handshake that comes to nothing, for `why`. A client says so at once, to a server that
    /// waits for its word. A server waits for what is offered: who speaks SMC is declined, and who speaks
    /// something else is none of our business.
    ///
    /// # Panics
    /// As [`Plane::begin`].
    pub fn begin_to_decline(
        &mut self,
        now: Instant,
        stream: S,
        wanted: Wanted<U>,
        why: String,
    ) -> HandshakeId {
        self.start(now, stream, wanted, Some(why))
    }

    fn start(
        &mut self,
        now: Instant,
        stream: S,
        wanted: Wanted<U>,
        refusal: Option<String>,
    ) -> HandshakeId {
        self.now = now;
        let id = HandshakeId(self.next_id());
        let local = &self.workers[wanted.worker].local;
        let wait = local.wait;
        let is_stopping = self.service == Service::Ended;
        let refusal = match (wanted.role, wanted.syn) {
            (Role::Client, Syn::Smc) if is_stopping => Some(STOPPING.to_string()),
            _ => refusal,
        };
        let machine = match (wanted.role, &refusal) {
            (Role::Client, None) => Machine::Client(Box::new(clc::Client::new(local.clone(), now))),
            (Role::Client, Some(_)) => {
                let client = clc::Client::declining(local.clone(), Diagnosis::MEM, now);
                Machine::Client(Box::new(client))
            }
            (Role::Server, _) => Machine::Peeking {
                until: now.after(match wanted.syn {
                    Syn::Plain => self.config.peek_wait,
                    Syn::Smc => wait,
                }),
                again: None,
            },
        };
        let declines = wanted.role == Role::Client && refusal.is_some();
        let mut handshake = Handshake {
            stream,
            interest: Interest::Read,
            wanted,
            machine,
            reader: Reader::new(),
            unsent: Vec::new(),
            parting: None,
            refusal,
            candidate: None,
            reserved: None,
            deadline: now.after(wait.saturating_mul(3)),
        };
        if let Err(error) = handshake.stream.watch(id, Interest::Read) {
            let (user, error) = (wanted.user, Failure::Watch(error));
            self.events.push_back(Event::Failed { user, error });
            return id;
        }
        self.handshakes.insert(id, handshake);
        if is_stopping && !declines {
            self.give_up_untouched(id, STOPPING);
        } else {
            self.pump_handshake(id);
        }
        id
    }

    /// Whether the peer is declined whatever it offers.
    pub(super) fn is_refused(&self, id: HandshakeId) -> bool {
        let handshake = self.handshakes.get(&id);
        handshake.is_some_and(|handshake| handshake.refusal.is_some())
    }

    /// The stream of a handshake is ready: bytes, room, or its end. Without effect when the handshake
    /// is over, or nothing has come.
    pub fn handle_ready(&mut self, now: Instant, id: HandshakeId) {
        self.now = now;
        if self.look_at_first_bytes(id) == Looked::Waits {
            return;
        }
        self.flush_unsent(id);
        if self.is_parting(id) {
            return;
        }
        self.read_messages(id);
        self.pump_handshake(id);
    }

    /// While a server does not know whether the client speaks SMC, a look decides it.
    fn look_at_first_bytes(&mut self, id: HandshakeId) -> Looked {
        let now = self.now;
        let Some(handshake) = self.handshakes.get_mut(&id) else {
            return Looked::Waits;
        };
        let Machine::Peeking { again, .. } = &mut handshake.machine else {
            return Looked::Goes;
        };
        match peek(&handshake.stream) {
            Peeked::Nothing => Looked::Waits,
            Peeked::Some => {
                *again = Some(now.after(LOOK_AGAIN));
                self.rewatch(id);
                Looked::Waits
            }
            Peeked::Other => {
                self.no_smc(id, "the client spoke no SMC");
                Looked::Waits
            }
            Peeked::Smc => {
                let local = self.workers[handshake.wanted.worker].local.clone();
                handshake.machine = Machine::Server(Box::new(clc::Server::new(local, now)));
                self.rewatch(id);
                Looked::Goes
            }
        }
    }

    fn is_parting(&self, id: HandshakeId) -> bool {
        let handshake = self.handshakes.get(&id);
        handshake.is_some_and(|handshake| handshake.parting.is_some())
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
                stream,
                ..
            } = handshake;
            match stream.recv(reader.space()) {
                Err(error) if is_passing(&error) => return,
                Ok(0) | Err(_) => {
                    match machine {
                        Machine::Client(client) => client.handle_end(),
                        Machine::Server(server) => server.handle_end(),
                        Machine::Peeking { .. } => {}
                    }
                    return;
                }
                Ok(len) => match reader.filled(len) {
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
    pub(super) fn pump_handshake(&mut self, id: HandshakeId) {
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
            match handshake.stream.send(&handshake.unsent) {
                Ok(sent) if sent > 0 => drop(handshake.unsent.drain(..sent)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                    // A dead connection shows as an end or an error of the next read.
                    handshake.unsent.clear();
                }
                Ok(_) | Err(_) => break,
            }
        }
        if handshake.unsent.is_empty()
            && let Some(outcome) = handshake.parting.take()
        {
            return self.end_handshake(id, outcome);
        }
        self.rewatch(id);
    }

    /// Tells the stream what to wait for, if that has changed. A stream is ready as long as bytes lie
    /// in it, so it is not watched for what is not going to be taken: that would keep the owner
    /// busy.
    fn rewatch(&mut self, id: HandshakeId) {
        let Some(handshake) = self.handshakes.get_mut(&id) else {
            return;
        };
        let looks_later = matches!(handshake.machine, Machine::Peeking { again: Some(_), .. });
        let interest = match (handshake.unsent.is_empty(), &handshake.parting) {
            _ if looks_later => Interest::Nothing,
            (true, _) => Interest::Read,
            (false, None) => Interest::ReadWrite,
            (false, Some(_)) => Interest::Write,
        };
        if interest == handshake.interest {
            return;
        }
        handshake.interest = interest;
        if let Err(error) = handshake.stream.watch(id, interest) {
            tracing::error!(%error, "cannot watch the socket of a handshake");
        }
    }

    pub(super) fn accept(&mut self, id: HandshakeId, contact: Contact) {
        let now = self.now;
        let Some(handshake) = self.handshakes.get_mut(&id) else {
            return;
        };
        if let (Machine::Server(server), Some(reserved)) =
            (&mut handshake.machine, &handshake.reserved)
        {
            server.accept(now, contact, &reserved.own);
        }
    }

    pub(super) fn decline(&mut self, id: HandshakeId, diagnosis: Diagnosis) {
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

    /// The worker has the link of a first contact.
    pub(super) fn link_is_adopted(&mut self, id: HandshakeId) {
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
    pub(super) fn link_is_confirmed(&mut self, id: HandshakeId) {
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

    /// The link of a first contact does not work; it had come as far as `phase`.
    pub(super) fn link_has_failed(
        &mut self,
        id: HandshakeId,
        phase: LinkPhase,
        diagnosis: Diagnosis,
    ) {
        let now = self.now;
        let handshake = self.handshakes.get_mut(&id);
        match (handshake.map(|handshake| &mut handshake.machine), phase) {
            // The peer waits for our Confirm, and gets a Decline in its place.
            (Some(Machine::Client(client)), LinkPhase::Made | LinkPhase::Adopting) => {
                client.decline(diagnosis);
            }
            (Some(Machine::Client(client)), LinkPhase::Running | LinkPhase::Releasing) => {
                client.handle_link_failed(now, diagnosis);
            }
            (Some(Machine::Server(server)), _) => server.handle_link_failed(now, diagnosis),
            (Some(Machine::Peeking { .. }) | None, _) => {}
        }
        self.pump_handshake(id);
    }

    /// The peer knows our buffer, or does not want it.
    pub(super) fn rkey_is_answered(&mut self, id: HandshakeId, answer: Result<(), Diagnosis>) {
        let role = self
            .handshakes
            .get(&id)
            .map(|handshake| handshake.wanted.role);
        match (answer, role) {
            (Err(diagnosis), _) => self.decline(id, diagnosis),
            (Ok(()), Some(Role::Server)) => self.accept(id, Contact::Subsequent),
            (Ok(()), Some(Role::Client)) => return self.link_is_adopted(id),
            (Ok(()), None) => {}
        }
        self.pump_handshake(id);
    }

    /// A timer of a handshake may be due.
    pub(super) fn handle_handshake_timeout(&mut self, id: HandshakeId, now: Instant) {
        let Some(handshake) = self.handshakes.get_mut(&id) else {
            return;
        };
        if handshake.due() > now {
            return;
        }
        match &mut handshake.machine {
            Machine::Peeking { until, .. } if *until <= now => {
                return self.no_smc(id, "the client sent nothing in time");
            }
            Machine::Peeking { .. } => return self.handle_ready(now, id),
            Machine::Client(client) => client.handle_timeout(now),
            Machine::Server(server) => server.handle_timeout(now),
        }
        if handshake.deadline > now {
            return self.pump_handshake(id);
        }
        self.decline(id, Diagnosis::TIMEOUT_CL);
        self.pump_handshake(id);
        if self.is_parting(id)
            && let Some(handshake) = self.handshakes.remove(&id)
        {
            let peer = handshake.wanted.peer;
            self.fail(id, handshake, Failure::Unread { peer });
        }
    }

    /// A server's connection carries something else than SMC.
    fn no_smc(&mut self, id: HandshakeId, why: &str) {
        if let Some(handshake) = self.handshakes.remove(&id) {
            let fallback = Fallback {
                diagnosis: Diagnosis::PEERNOSMC,
                by: DecidedBy::Peer,
                sync: Sync::InSync,
            };
            self.fall_back(handshake, fallback, why.to_string());
        }
    }

    fn fall_back(&mut self, handshake: Handshake<S, U>, fallback: Fallback, text: String) {
        let Handshake {
            wanted, mut stream, ..
        } = handshake;
        stream.unwatch();
        self.events.push_back(Event::FellBack {
            user: wanted.user,
            role: wanted.role,
            peer: wanted.peer,
            stream,
            fallback,
            text,
        });
    }

    /// Ends the handshakes whose users are named: they are not wanted any more.
    pub fn cancel(&mut self, now: Instant, whose: impl Fn(&U) -> bool) {
        self.now = now;
        let orphans: Vec<HandshakeId> = self
            .handshakes
            .iter()
            .filter(|(_, handshake)| whose(&handshake.wanted.user))
            .map(|(id, _)| *id)
            .collect();
        for id in orphans {
            let handshake = self.handshakes.get(&id);
            match handshake.map(|handshake| &handshake.machine) {
                Some(Machine::Peeking { .. }) => {
                    self.give_up_untouched(id, "nobody wants the connection any more");
                }
                Some(Machine::Client(_) | Machine::Server(_)) | None => {
                    self.decline(id, Diagnosis::INTERR);
                    self.pump_handshake(id);
                }
            }
        }
    }

    /// Ends a handshake that has neither sent nor taken a byte.
    fn give_up_untouched(&mut self, id: HandshakeId, why: &str) {
        if let Some(handshake) = self.handshakes.remove(&id) {
            let fallback = Fallback {
                diagnosis: Diagnosis::INTERR,
                by: DecidedBy::Local,
                sync: Sync::InSync,
            };
            self.fall_back(handshake, fallback, why.to_string());
        }
    }

    fn end_handshake(&mut self, id: HandshakeId, outcome: Outcome) {
        let Some(outcome) = self.part_first(id, outcome) else {
            return;
        };
        let Some(mut handshake) = self.handshakes.remove(&id) else {
            return;
        };
        match outcome {
            // Its last words took longer than the worker. The peer has them and takes the connection for
            // open; its link tells it otherwise.
            Outcome::Connected(_) if self.workers[handshake.wanted.worker].port.is_closed() => {
                let peer = handshake.wanted.peer;
                self.fail(id, handshake, Failure::Stopped { peer });
            }
            Outcome::Connected(agreed) => self.connected(handshake, agreed),
            Outcome::Fallback(fallback) => {
                let reserved = handshake.reserved.take();
                self.give_up_reservation(id, reserved, fallback.sync);
                let refusal = match fallback.by {
                    DecidedBy::Local => handshake.refusal.take(),
                    DecidedBy::Peer => None,
                };
                let text = refusal.unwrap_or_else(|| fallback.to_string());
                self.fall_back(handshake, fallback, text);
            }
            Outcome::Failed(error) => {
                let peer = handshake.wanted.peer;
                self.fail(id, handshake, Failure::Handshake { peer, error });
            }
        }
    }

    /// Ends a handshake of which nobody may use the stream any more: bytes may be lost in it.
    fn fail(&mut self, id: HandshakeId, mut handshake: Handshake<S, U>, error: Failure) {
        let reserved = handshake.reserved.take();
        self.give_up_reservation(id, reserved, Sync::InSync);
        tracing::debug!(%error, "a connection is lost");
        handshake.stream.unwatch();
        handshake.stream.shutdown();
        let user = handshake.wanted.user;
        self.events.push_back(Event::Failed { user, error });
    }

    /// While a message still has to leave, a handshake is kept and ends by itself later; what it had
    /// reserved and does not need any more goes at once. Else the outcome comes back.
    fn part_first(&mut self, id: HandshakeId, outcome: Outcome) -> Option<Outcome> {
        let handshake = self.handshakes.get_mut(&id);
        let Some(handshake) = handshake.filter(|handshake| !handshake.unsent.is_empty()) else {
            return Some(outcome);
        };
        match outcome {
            // The stream is shut down anyway.
            Outcome::Failed(_) => return Some(outcome),
            Outcome::Connected(_) => handshake.parting = Some(outcome),
            Outcome::Fallback(fallback) => {
                handshake.parting = Some(outcome);
                let reserved = handshake.reserved.take();
                self.give_up_reservation(id, reserved, fallback.sync);
            }
        }
        self.rewatch(id);
        None
    }

    fn connected(&mut self, handshake: Handshake<S, U>, agreed: Agreed) {
        let Handshake {
            wanted,
            mut stream,
            reserved: Some(reserved),
            ..
        } = handshake
        else {
            return;
        };
        stream.unwatch();
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
        let owner = owner_of(wanted.tenant, place.slot);
        let stream = match wanted.tenant {
            Tenant::App { .. } => Some(stream),
            Tenant::Program { .. } => None,
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
            wanted,
            group,
            token,
            peer_token: agreed.peer.alert_token.get(),
            peer_rkey: spec.peer_rkey,
            peer_rmbe_bytes: agreed.peer.rmbe_bytes,
            place,
            buffers,
            _stream: stream,
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
}

/// Who uses a connection, as the worker sees it.
fn owner_of(tenant: Tenant, slot: SlotRef) -> Owner {
    match tenant {
        Tenant::App { tag } => Owner::App(tag),
        Tenant::Program { session } => Owner::Session {
            session,
            slot: slot.slot,
            generation: slot.generation,
        },
    }
}
