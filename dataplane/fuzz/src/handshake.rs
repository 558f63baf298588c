//! A client and a server of the handshake over TCP, their owners, and somebody on the line between
//! them who alters, inserts, drops and cuts what they say, or waits.
//!
//! 1. A machine puts out legal messages of its role, at most one question of each kind, and exactly one
//!    outcome, after which it is silent and has no timer.
//! 2. A reader takes whole messages from the stream and never a byte of what follows.
//! 3. Whatever happened, once bytes, answers and timers are given what they wait for, both machines
//!    come to their outcome within the sum of their time-outs.
//! 4. If nobody touched the line, both end alike: connected on the same terms, each with what the other
//!    has, or on TCP for the same reason.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::time::Duration;

use pollux_proto::Role;
use pollux_proto::clc::{
    Agreed, BareCredits, Client, DECLINE_WAIT, GidRule, Handshake, Local, LocalEndpoint,
    MESSAGE_WAIT, MaxConns, Outcome, Output, Progress, Question, Reader, Server, Side, V1Local,
};
use pollux_proto::diagnosis::DecidedBy;
use pollux_proto::link::RToken;
use pollux_proto::time::Instant;
use pollux_wire::clc::{
    self, Attachment, Contact, Diagnosis, IpArea, Kind, VendorOptions, host_name,
};
use pollux_wire::field::{
    AlertToken, BufferSizeCode, Gid, Mac, MtuCode, PeerId, Psn, Qpn, Rkey, RmbeIndex, Ueid,
};

use crate::Input;

const START: Instant = Instant(1 << 40);
/// Longest time from the last touch to the last outcome: each side's two waits, and one for a Decline.
const END_WITHIN: Duration =
    Duration::from_secs(2 * MESSAGE_WAIT.as_secs() + DECLINE_WAIT.as_secs());
/// Steps in which whatever is left must come to its end.
const STEPS_TO_THE_END: usize = 64;

/// Whether what happened is what happens between two hosts on a working line.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Line {
    Untouched,
    Touched,
}

/// One side: machine, reader, the stream towards it, and what was seen of it.
struct End<S: Side> {
    role: Role,
    machine: Handshake<S>,
    reader: Reader,
    /// Bytes under way to it.
    stream: VecDeque<u8>,
    /// Whether nothing follows them.
    is_cut: bool,
    /// Bytes taken from the stream, and how many of them were whole messages.
    taken: usize,
    messages: usize,
    sent: Vec<Kind>,
    question: Option<S::Question>,
    questions: usize,
    outcome: Option<Outcome>,
    own: LocalEndpoint,
}

/// Drives one target run.
pub(crate) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut world = World::new(&mut input);
    while !input.is_empty() {
        world.step(&mut input);
    }
    world.finish();
}

struct World {
    now: Instant,
    line: Line,
    client: End<pollux_proto::clc::ClientSide>,
    server: End<pollux_proto::clc::ServerSide>,
    /// What the server answers to a candidate.
    contact: Contact,
}

/// A host that speaks what the bits say.
fn local(n: u8, bits: u8) -> Local {
    let gid = Gid::from_ipv4([192, 0, 2, n].into());
    let ueids = ["FIRST", "SECOND"].map(Ueid::new);
    let spoken = match bits & 3 {
        0 => &ueids[..],
        1 => &ueids[1..],
        2 => &ueids[..1],
        _ => &[],
    };
    let subnets = IpArea {
        ipv4_subnet: [192, 0, 2, 0],
        ipv4_length: if bits & 4 == 0 { 24 } else { 25 },
        ..IpArea::default()
    };
    let options = match bits >> 4 & 3 {
        0 => VendorOptions::NONE,
        1 => VendorOptions::VALID.union(VendorOptions::CREDITS),
        2 => VendorOptions(0xe000_0000),
        _ => VendorOptions::VALID,
    };
    Local {
        peer_id: PeerId::from_instance(n.into(), Mac([2, 0, 0, 0, 0, n])),
        gid: if bits & 0x40 == 0 { gid } else { Gid([n; 16]) },
        mac: Mac([2, 0, 0, 0, 0, n]),
        mtu: if n == 1 {
            MtuCode::B1024
        } else {
            MtuCode::B4096
        },
        host_name: host_name("fuzz"),
        ueids: spoken.iter().flatten().copied().collect(),
        max_conns: MaxConns::new(n.saturating_mul(16)).unwrap_or(MaxConns::COMMON),
        gid_rule: if bits & 0x80 == 0 {
            GidRule::Any
        } else {
            GidRule::Ipv4Mapped
        },
        options,
        bare_credits: if bits & 8 == 0 {
            BareCredits::Off
        } else {
            BareCredits::On
        },
        wait: MESSAGE_WAIT,
        v1: (bits & 3 != 0).then_some(V1Local { gid, subnets }),
    }
}

/// What the owner of host `n` makes for the connection.
fn own(n: u8, bits: u8) -> LocalEndpoint {
    LocalEndpoint {
        qpn: Qpn::from_low_bits(0x100 + u32::from(n)),
        psn: Psn::from_low_bits(u32::from(bits) << 16),
        rtoken: RToken {
            rkey: Rkey(u32::from(n)),
            address: u64::from(n) << 40,
        },
        rmbe_index: RmbeIndex::new(n).unwrap_or(RmbeIndex::FIRST),
        alert_token: AlertToken::new(u32::from(n) + 6).expect("not zero"),
        rmbe_size: BufferSizeCode::new(bits >> 4 & 5).expect("a size"),
        // A server that has none to give does not speak of credits.
        receives: if n == 1 && bits & 0x20 != 0 {
            0
        } else {
            bits.max(3)
        },
        attachment: if bits & 1 == 0 {
            Attachment::Direct
        } else {
            Attachment::Indirect
        },
    }
}

impl<S: Side> End<S> {
    fn new(role: Role, machine: Handshake<S>, own: LocalEndpoint) -> End<S> {
        End {
            role,
            machine,
            reader: Reader::new(),
            stream: VecDeque::new(),
            is_cut: false,
            taken: 0,
            messages: 0,
            sent: Vec::new(),
            question: None,
            questions: 0,
            outcome: None,
            own,
        }
    }

    /// Takes every order, judges it, and gives what is to be sent.
    fn drain(&mut self) -> Vec<u8> {
        let mut said = Vec::new();
        while let Some(output) = self.machine.poll_output() {
            assert_eq!(self.outcome, None, "{output:?} after the outcome");
            match output {
                Output::Send(bytes) => {
                    self.judge_sent(&bytes);
                    said.extend_from_slice(&bytes);
                }
                Output::Ask(question) => {
                    assert!(self.question.is_none(), "{question:?} beside another");
                    self.questions += 1;
                    self.question = Some(question);
                }
                Output::Done(outcome) => self.judge_outcome(outcome),
            }
        }
        assert_eq!(self.machine.is_done(), self.outcome.is_some());
        if self.outcome.is_some() {
            self.question = None;
            assert_eq!(self.machine.poll_timeout(), None);
        }
        said
    }

    fn judge_sent(&mut self, bytes: &[u8]) {
        let message = clc::Message::parse(bytes).expect("our own message is legal");
        assert_eq!(message.buffer_len(), bytes.len(), "and nothing follows it");
        let kind = clc::Header::parse(bytes)
            .expect("a message has a header")
            .kind;
        let before = (self.sent.len(), self.sent.last().copied());
        let is_in_turn = match (self.role, kind) {
            (Role::Client, Kind::Proposal) => before.0 == 0,
            (Role::Client, Kind::Confirm) => before == (1, Some(Kind::Proposal)),
            (Role::Server, Kind::Accept) => before.0 == 0,
            (Role::Client | Role::Server, Kind::Decline) => before.1 != Some(Kind::Decline),
            (Role::Client, Kind::Accept) => false,
            (Role::Server, Kind::Proposal | Kind::Confirm) => false,
        };
        assert!(is_in_turn, "{kind:?} after {:?}", self.sent);
        self.sent.push(kind);
    }

    fn judge_outcome(&mut self, outcome: Outcome) {
        let has_declined = self.sent.last() == Some(&Kind::Decline);
        match &outcome {
            Outcome::Connected(agreed) => {
                assert!(!has_declined);
                judge_agreed(agreed);
            }
            Outcome::Fallback(fallback) => {
                assert_eq!(fallback.by == DecidedBy::Local, has_declined);
                assert!(!fallback.to_string().is_empty());
            }
            Outcome::Failed(error) => {
                assert!(!has_declined);
                assert!(!error.to_string().is_empty());
            }
        }
        self.outcome = Some(outcome);
    }

    /// One read of up to `count` bytes from the stream.
    fn read(&mut self, count: usize) {
        if self.outcome.is_some() {
            return;
        }
        let space = self.reader.space();
        assert!(!space.is_empty(), "a whole message is not taken");
        let count = space.len().min(count).min(self.stream.len());
        if count == 0 {
            if self.stream.is_empty() && self.is_cut {
                self.machine.handle_end();
            }
            return;
        }
        for (place, byte) in space.iter_mut().zip(self.stream.drain(..count)) {
            *place = byte;
        }
        self.taken += count;
        match self.reader.filled(count) {
            Ok(Progress::More) => assert!(self.reader.message().is_none()),
            Ok(Progress::Complete) => {
                let message = self.reader.message().expect("it is complete").to_vec();
                let header = clc::Header::parse(&message).expect("it was framed by its header");
                assert_eq!(message.len(), usize::from(header.length));
                self.messages += message.len();
                assert_eq!(self.taken, self.messages, "a byte too many was taken");
                self.reader.restart();
                self.machine.handle_message(&message);
            }
            Err(_) => {
                assert_eq!(self.taken, self.messages + clc::HEADER_BYTES);
                // As the appliance does: what cannot be framed cannot be answered.
                self.machine.handle_end();
                self.reader.restart();
            }
        }
    }

    /// Whether the machine waits for nothing but its owner's word on the link.
    fn waits_for_link(&self) -> bool {
        self.outcome.is_none() && self.question.is_none() && self.machine.poll_timeout().is_none()
    }
}

fn judge_agreed(agreed: &Agreed) {
    let (terms, peer) = (&agreed.terms, &agreed.peer);
    let end = peer.rmbe_address.checked_add(peer.rmbe_bytes.into());
    assert!(end.is_some(), "an RMBE beyond the address space: {peer:?}");
    assert!(peer.rmbe_address >= peer.rtoken.address);
    assert!(terms.max_conns >= 16 || terms.contact == Contact::Subsequent);
    assert_eq!(terms.eid.is_some(), terms.version == clc::Version::V2);
    if let Some(receives) = agreed.peer_receives {
        assert!(receives > 0 && terms.contact == Contact::First);
    }
}

impl World {
    fn new(input: &mut Input<'_>) -> World {
        let (of_client, of_server, bits) = (input.byte(), input.byte(), input.byte());
        let client = Client::new(local(2, of_client), START);
        let server = Server::new(local(1, of_server), START);
        let mut world = World {
            now: START,
            line: Line::Untouched,
            client: End::new(Role::Client, client, own(2, bits)),
            server: End::new(Role::Server, server, own(1, bits.rotate_left(3))),
            contact: if bits & 0x80 == 0 {
                Contact::First
            } else {
                Contact::Subsequent
            },
        };
        world.drain();
        world
    }

    /// Takes the orders of both sides; what one says is under way to the other.
    fn drain(&mut self) {
        let said = self.client.drain();
        self.server.stream.extend(said);
        let said = self.server.drain();
        self.client.stream.extend(said);
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let op = input.byte();
        match op & 0x0f {
            0..=2 => self.client.read(usize::from(input.byte()) + 1),
            3..=5 => self.server.read(usize::from(input.byte()) + 1),
            6 | 7 => self.answer(),
            8 => self.tamper(input, op),
            9 => {
                self.touch();
                let bytes = input.bytes(usize::from(op >> 4) * 8 + 1);
                let stream = self.stream(op);
                bytes.iter().rev().for_each(|byte| stream.push_front(*byte));
            }
            10 => {
                self.touch();
                match op & 0x10 {
                    0 => self.client.is_cut = true,
                    _ => self.server.is_cut = true,
                }
            }
            11 => self.wait(Duration::from_millis(u64::from(input.u16()) / 8)),
            12 => drop(self.jump()),
            13 => {
                self.touch();
                let diagnosis = Diagnosis(input.u32());
                match op & 0x10 {
                    0 => self.client.machine.decline(diagnosis),
                    _ => self.server.machine.decline(diagnosis),
                }
            }
            14 => {
                self.touch();
                self.link_news(op);
            }
            _ => {
                // An answer, whether somebody asked for it or not.
                self.touch();
                if op & 0x10 == 0 {
                    self.client.question = None;
                    self.client.machine.provide(&self.client.own);
                } else {
                    self.server.question = None;
                    self.server
                        .machine
                        .accept(self.now, self.contact, &self.server.own);
                }
            }
        }
        self.drain();
    }

    fn touch(&mut self) {
        self.line = Line::Touched;
    }

    fn stream(&mut self, op: u8) -> &mut VecDeque<u8> {
        match op & 0x10 {
            0 => &mut self.client.stream,
            _ => &mut self.server.stream,
        }
    }

    /// Changes a byte under way, or drops one, or doubles one.
    fn tamper(&mut self, input: &mut Input<'_>, op: u8) {
        let (at, how) = (usize::from(input.byte()), input.byte());
        let stream = self.stream(op);
        if stream.is_empty() {
            return;
        }
        let at = at % stream.len();
        match op >> 5 {
            0 => drop(stream.remove(at)),
            1 => stream.insert(at, how),
            2 => stream[at] = how,
            _ => stream[at] ^= 1 << (how & 7),
        }
        self.touch();
    }

    /// News of the link, at whatever time, to one side.
    fn link_news(&mut self, op: u8) {
        let now = self.now;
        let diagnosis = Diagnosis::TIMEOUT_CL;
        match op >> 4 & 3 {
            0 => self.client.machine.handle_link_confirmed(),
            1 => self.server.machine.handle_link_confirmed(),
            2 => self.client.machine.handle_link_failed(now, diagnosis),
            _ => self.server.machine.handle_link_failed(now, diagnosis),
        }
    }

    /// The owners do what they are asked; a link that both have works.
    fn answer(&mut self) {
        if self.client.question.take().is_some() {
            self.client.machine.provide(&self.client.own);
        }
        match self.server.question.take() {
            Some(Question::Choose(_)) => {
                self.server
                    .machine
                    .accept(self.now, self.contact, &self.server.own);
            }
            Some(Question::Connect(_)) => self.confirm_links(),
            None => {}
        }
        self.drain();
    }

    /// The server's queue pair leads to the client's, and the other way round.
    fn confirm_links(&mut self) {
        if self.line == Line::Untouched {
            self.client.machine.handle_link_confirmed();
            self.server.machine.handle_link_confirmed();
        } else {
            let diagnosis = Diagnosis::TIMEOUT_CL;
            self.server.machine.handle_link_failed(self.now, diagnosis);
        }
    }

    fn wait(&mut self, time: Duration) {
        self.now = self.now.after(time);
        self.expire();
    }

    /// Time goes to the next timer; without one it stands still.
    fn jump(&mut self) -> bool {
        let due = [
            self.client.machine.poll_timeout(),
            self.server.machine.poll_timeout(),
        ];
        let Some(next) = due.into_iter().flatten().min() else {
            return false;
        };
        self.now = self.now.max(next);
        self.expire();
        true
    }

    /// Timers whose time has come.
    fn expire(&mut self) {
        let now = self.now;
        let due = |timeout: Option<Instant>| timeout.is_some_and(|at| at <= now);
        if due(self.client.machine.poll_timeout()) || due(self.server.machine.poll_timeout()) {
            // On a line that nobody touches a timer expires only if somebody is slow to read.
            self.touch();
        }
        self.client.machine.handle_timeout(now);
        self.server.machine.handle_timeout(now);
        self.drain();
        assert!(
            !due(self.client.machine.poll_timeout()),
            "an expired timer stays"
        );
        assert!(
            !due(self.server.machine.poll_timeout()),
            "an expired timer stays"
        );
    }

    /// Gives both sides what they wait for until both are done.
    fn finish(&mut self) {
        let since = self.now;
        for _ in 0..STEPS_TO_THE_END {
            if self.client.outcome.is_some() && self.server.outcome.is_some() {
                break;
            }
            let before = self.progress();
            self.client.read(usize::MAX);
            self.drain();
            self.server.read(usize::MAX);
            self.drain();
            self.answer();
            if before != self.progress() || self.jump() {
                continue;
            }
            // Nothing is left but a first contact whose link nobody has spoken of yet.
            for waits in [self.client.waits_for_link(), self.server.waits_for_link()] {
                assert!(waits || self.client.outcome.is_some() || self.server.outcome.is_some());
            }
            let (now, diagnosis) = (self.now, Diagnosis::TIMEOUT_CL);
            self.client.machine.handle_link_failed(now, diagnosis);
            self.server.machine.handle_link_failed(now, diagnosis);
            self.drain();
        }
        let took = self.now.since(since);
        assert!(took <= END_WITHIN, "the end took {took:?}");
        let (Some(at_client), Some(at_server)) = (&self.client.outcome, &self.server.outcome)
        else {
            panic!(
                "no outcome: {:?} and {:?}",
                self.client.outcome, self.server.outcome
            );
        };
        judge_stream(&self.client);
        judge_stream(&self.server);
        if self.line == Line::Untouched {
            self.judge_pair(at_client, at_server);
        }
    }

    /// Differs before and after anything but the passing of time.
    fn progress(&self) -> [usize; 6] {
        let (client, server) = (&self.client, &self.server);
        [
            client.taken,
            server.taken,
            client.sent.len(),
            server.sent.len(),
            client.questions + usize::from(client.question.is_some()),
            server.questions + usize::from(server.question.is_some()),
        ]
    }

    /// What holds if nobody touched the line.
    fn judge_pair(&self, at_client: &Outcome, at_server: &Outcome) {
        match (at_client, at_server) {
            (Outcome::Connected(client), Outcome::Connected(server)) => {
                assert_eq!(client.terms.contact, self.contact);
                assert_eq!(client.terms.version, server.terms.version);
                assert_eq!(client.terms.eid, server.terms.eid);
                if self.contact == Contact::First {
                    assert_eq!(client.terms, server.terms);
                    assert_eq!(client.peer.mtu, server.peer.mtu);
                    assert_eq!(
                        client.peer_receives.is_some(),
                        server.peer_receives.is_some()
                    );
                }
                for (seen, own) in [(client, &self.server.own), (server, &self.client.own)] {
                    assert_eq!(seen.peer.qpn, own.qpn);
                    assert_eq!(seen.peer.rtoken, own.rtoken);
                    assert_eq!(seen.peer.alert_token, own.alert_token);
                    assert_eq!(seen.peer.rmbe_bytes, own.rmbe_size.bytes());
                    assert!(
                        seen.peer_receives
                            .is_none_or(|receives| receives == own.receives)
                    );
                }
                assert!(self.client.stream.is_empty() && self.server.stream.is_empty());
            }
            (Outcome::Fallback(client), Outcome::Fallback(server)) => {
                assert_eq!(
                    (client.diagnosis, client.sync),
                    (server.diagnosis, server.sync)
                );
                assert_ne!(client.by, server.by);
            }
            other => panic!("the two ends differ: {other:?}"),
        }
    }
}

/// What was taken from a stream whose bytes go on to the application.
fn judge_stream<S: Side>(end: &End<S>)
where
    S::Question: Debug,
{
    match &end.outcome {
        // A connected stream carries nothing any more.
        Some(Outcome::Connected(_)) => {}
        Some(Outcome::Fallback(fallback)) if fallback.by == DecidedBy::Peer => {
            assert_eq!(end.taken, end.messages);
        }
        Some(Outcome::Fallback(_) | Outcome::Failed(_)) | None => {}
    }
    assert!(end.questions <= 2);
}
