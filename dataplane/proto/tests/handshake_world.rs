//! Two hosts with groups, links and many handshakes at once, in every order of delivery that chance
//! finds.
//!
//! TCP and the link are different transports: a CONFIRM RKEY may overtake an Accept, a CONFIRM LINK
//! may come long after the Confirm. Whatever the order, with a working fabric every handshake ends
//! connected on both sides. With a broken one both sides end; a server is then never connected to a
//! client that is not. (The other way round happens when the last answer of a client is lost, and
//! its link fails soon after.)

mod handshake;

use std::collections::VecDeque;

use handshake::{START, local, own};
use pollux_proto::Role;
use pollux_proto::clc::{
    Agreed, Candidate, Client, Local, LocalEndpoint, MaxConns, Outcome, Output, Progress, Question,
    Reader, Server,
};
use pollux_proto::group::{GroupId, GroupLimits, GroupState, Groups, PeerKey};
use pollux_proto::link::{LinkEnd, RToken};
use pollux_proto::llc::{self, Engine, EngineParams, RkeyTag};
use pollux_proto::time::Instant;
use pollux_wire::clc::{Contact, Diagnosis, Sync};
use pollux_wire::field::{AlertToken, Qpn, Rkey};
use proptest::collection::vec;
use proptest::prelude::*;

/// Which side's machine a handshake runs.
enum Machine {
    Client(Client),
    Server(Server),
}

/// One handshake at one host.
struct Handshake {
    machine: Machine,
    reader: Reader,
    /// Our queue pair, RMB and token, and the group we are in.
    own: LocalEndpoint,
    group: Option<GroupId>,
    outcome: Option<Outcome>,
}

/// One queue pair with the exchanges on it.
struct Link {
    group: GroupId,
    qpn: Qpn,
    peer_qpn: Qpn,
    engine: Engine,
    /// The handshake of the first contact.
    founder: usize,
}

struct Host {
    local: Local,
    groups: Groups,
    handshakes: Vec<Handshake>,
    links: Vec<Link>,
    next_qpn: u32,
}

/// A message under way on the fabric.
struct Packet {
    to: Role,
    qpn: Qpn,
    bytes: llc::Bytes,
}

struct World {
    now: Instant,
    hosts: [Host; 2],
    /// Bytes under way on each TCP stream, by handshake and receiver.
    tcp: Vec<[VecDeque<u8>; 2]>,
    /// In order for each queue pair.
    fabric: VecDeque<Packet>,
    is_fabric_up: bool,
}

fn side(role: Role) -> usize {
    match role {
        Role::Client => 0,
        Role::Server => 1,
    }
}

fn other(role: Role) -> Role {
    match role {
        Role::Client => Role::Server,
        Role::Server => Role::Client,
    }
}

impl Host {
    fn new(n: u8, max_conns: u8) -> Host {
        let local = Local {
            max_conns: MaxConns::new(max_conns).unwrap(),
            ..local(n)
        };
        Host {
            local,
            groups: Groups::new(GroupLimits::new(8)),
            handshakes: Vec::new(),
            links: Vec::new(),
            next_qpn: 0x100,
        }
    }

    fn link(&mut self, group: GroupId) -> Option<&mut Link> {
        self.links.iter_mut().find(|link| link.group == group)
    }
}

impl World {
    fn new(max_conns: u8) -> World {
        World {
            now: START,
            hosts: [Host::new(2, max_conns), Host::new(1, max_conns)],
            tcp: Vec::new(),
            fabric: VecDeque::new(),
            is_fabric_up: true,
        }
    }

    /// Starts a handshake on a new TCP connection.
    fn connect(&mut self) {
        let index = self.tcp.len();
        self.tcp.push([VecDeque::new(), VecDeque::new()]);
        for role in [Role::Client, Role::Server] {
            let now = self.now;
            let host = &mut self.hosts[side(role)];
            let machine = match role {
                Role::Client => Machine::Client(Client::new(host.local.clone(), now)),
                Role::Server => Machine::Server(Server::new(host.local.clone(), now)),
            };
            let number = index as u32 + 1;
            let rtoken = RToken {
                rkey: Rkey(number),
                address: u64::from(number) << 20,
            };
            let alert_token = AlertToken::new(number).unwrap();
            let own = LocalEndpoint {
                rtoken,
                alert_token,
                ..own(1)
            };
            let reader = Reader::new();
            host.handshakes.push(Handshake {
                machine,
                reader,
                own,
                group: None,
                outcome: None,
            });
            self.drive(role, index);
        }
    }

    /// Takes all orders of one handshake.
    fn drive(&mut self, role: Role, index: usize) {
        loop {
            let handshake = &mut self.hosts[side(role)].handshakes[index];
            let order = match &mut handshake.machine {
                Machine::Client(client) => client.poll_output().map(|output| match output {
                    Output::Send(bytes) => Output::Send(bytes),
                    Output::Ask(agreed) => Output::Ask(Asked::Prepare(agreed)),
                    Output::Done(outcome) => Output::Done(outcome),
                }),
                Machine::Server(server) => server.poll_output().map(|output| match output {
                    Output::Send(bytes) => Output::Send(bytes),
                    Output::Ask(Question::Choose(candidate)) => {
                        Output::Ask(Asked::Choose(candidate))
                    }
                    Output::Ask(Question::Connect(agreed)) => Output::Ask(Asked::Connect(agreed)),
                    Output::Done(outcome) => Output::Done(outcome),
                }),
            };
            match order {
                None => return,
                Some(Output::Send(bytes)) => {
                    self.tcp[index][side(other(role))].extend(bytes);
                }
                Some(Output::Ask(Asked::Choose(candidate))) => self.choose(index, &candidate),
                Some(Output::Ask(Asked::Prepare(agreed))) => self.prepare(index, &agreed),
                Some(Output::Ask(Asked::Connect(agreed))) => {
                    self.make_link(Role::Server, index, &agreed);
                }
                Some(Output::Done(outcome)) => self.finish(role, index, outcome),
            }
        }
    }

    fn choose(&mut self, index: usize, candidate: &Candidate) {
        let now = self.now;
        let host = &mut self.hosts[side(Role::Server)];
        let key = PeerKey::of_candidate(candidate);
        let token = host.handshakes[index].own.alert_token;
        if let Some(group) = host.groups.find_as_server(&key) {
            host.groups.join(group, token).unwrap();
            host.handshakes[index].group = Some(group);
            return self.confirm_rkey(Role::Server, index, group);
        }
        let made = host
            .groups
            .create(Role::Server, key, None, candidate.max_conns);
        let handshake = &mut host.handshakes[index];
        let Machine::Server(server) = &mut handshake.machine else {
            panic!("a server chooses")
        };
        match made {
            Err(_) => server.decline(Diagnosis::MEM),
            Ok(group) => {
                host.groups.join(group, token).unwrap();
                handshake.group = Some(group);
                host.next_qpn += 1;
                handshake.own.qpn = Qpn::from_low_bits(host.next_qpn);
                server.accept(now, Contact::First, &handshake.own);
            }
        }
    }

    fn prepare(&mut self, index: usize, agreed: &Agreed) {
        let host = &mut self.hosts[side(Role::Client)];
        let key = PeerKey::of_server(agreed.terms.version, &agreed.peer);
        let token = host.handshakes[index].own.alert_token;
        let qpn = Some(agreed.peer.qpn);
        match agreed.terms.contact {
            Contact::First => {
                let max_conns = agreed.terms.max_conns;
                let group = host
                    .groups
                    .create(Role::Client, key, qpn, max_conns)
                    .unwrap();
                host.groups.join(group, token).unwrap();
                host.next_qpn += 1;
                let handshake = &mut host.handshakes[index];
                handshake.group = Some(group);
                handshake.own.qpn = Qpn::from_low_bits(host.next_qpn);
                self.make_link(Role::Client, index, agreed);
                self.client(index).provide_own();
            }
            Contact::Subsequent => {
                let found = host.groups.find_as_client(&key, agreed.peer.qpn);
                match found.filter(|group| host.groups.join(*group, token).is_ok()) {
                    Some(group) => {
                        host.handshakes[index].group = Some(group);
                        self.confirm_rkey(Role::Client, index, group);
                    }
                    None => self.decline(Role::Client, index, Diagnosis::SYNCERR),
                }
            }
        }
    }

    fn client(&mut self, index: usize) -> &mut Handshake {
        &mut self.hosts[side(Role::Client)].handshakes[index]
    }

    fn decline(&mut self, role: Role, index: usize, diagnosis: Diagnosis) {
        match &mut self.hosts[side(role)].handshakes[index].machine {
            Machine::Client(client) => client.decline(diagnosis),
            Machine::Server(server) => server.decline(diagnosis),
        }
    }

    fn confirm_rkey(&mut self, role: Role, index: usize, group: GroupId) {
        let host = &mut self.hosts[side(role)];
        let rtoken = host.handshakes[index].own.rtoken;
        let link = host.link(group).unwrap();
        let qpn = link.qpn;
        link.engine
            .confirm_rkey(RkeyTag(index as u64), rtoken)
            .unwrap();
        host.handshakes[index].own.qpn = qpn;
        self.drive_link(role, qpn);
    }

    fn make_link(&mut self, role: Role, index: usize, agreed: &Agreed) {
        let now = self.now;
        let host = &mut self.hosts[side(role)];
        let handshake = &host.handshakes[index];
        let qpn = handshake.own.qpn;
        let end = LinkEnd {
            mac: host.local.mac,
            gid: host.local.gid,
            qpn,
        };
        let mut engine = Engine::new(EngineParams::new(role, agreed, end), now);
        engine.learn_rtoken(agreed.peer.rtoken);
        let group = handshake.group.unwrap();
        let peer_qpn = agreed.peer.qpn;
        host.links.push(Link {
            group,
            qpn,
            peer_qpn,
            engine,
            founder: index,
        });
    }

    /// Takes all orders of one link.
    fn drive_link(&mut self, role: Role, qpn: Qpn) {
        let now = self.now;
        loop {
            let host = &mut self.hosts[side(role)];
            let Some(link) = host.links.iter_mut().find(|link| link.qpn == qpn) else {
                return;
            };
            let (group, peer_qpn, founder) = (link.group, link.peer_qpn, link.founder);
            let Some(output) = link.engine.poll_output(now) else {
                return;
            };
            match output {
                llc::Output::Send(bytes) => {
                    self.fabric.push_back(Packet {
                        to: other(role),
                        qpn: peer_qpn,
                        bytes,
                    });
                }
                llc::Output::LinkConfirmed => {
                    host.groups.activate(now, group, peer_qpn);
                    match &mut host.handshakes[founder].machine {
                        Machine::Client(client) => client.handle_link_confirmed(),
                        Machine::Server(server) => server.handle_link_confirmed(),
                    }
                    self.drive(role, founder);
                }
                llc::Output::RkeyConfirmed { tag } => self.on_rkey_confirmed(role, tag),
                llc::Output::RkeyFailed { tag, .. } => {
                    self.decline(role, tag.0 as usize, Diagnosis::ERR_REGBUF);
                    self.drive(role, tag.0 as usize);
                }
                llc::Output::Failed(failure) => {
                    match &mut host.handshakes[founder].machine {
                        Machine::Client(client) => {
                            client.handle_link_failed(now, failure.diagnosis());
                        }
                        Machine::Server(server) => {
                            server.handle_link_failed(now, failure.diagnosis());
                        }
                    }
                    self.forget(role, group);
                    self.drive(role, founder);
                }
                llc::Output::GroupDeleted { .. } => self.forget(role, group),
                llc::Output::PeerRkey(_)
                | llc::Output::PeerDeletedRkey(_)
                | llc::Output::PeerCredits(_)
                | llc::Output::RkeyDeleted { .. } => {}
            }
        }
    }

    fn on_rkey_confirmed(&mut self, role: Role, tag: RkeyTag) {
        let now = self.now;
        let handshake = &mut self.hosts[side(role)].handshakes[tag.0 as usize];
        match &mut handshake.machine {
            Machine::Client(client) => client.provide(&handshake.own),
            Machine::Server(server) => server.accept(now, Contact::Subsequent, &handshake.own),
        }
        self.drive(role, tag.0 as usize);
    }

    /// The group is over.
    fn forget(&mut self, role: Role, group: GroupId) {
        let host = &mut self.hosts[side(role)];
        host.groups.remove(group);
        host.links.retain(|link| link.group != group);
    }

    fn finish(&mut self, role: Role, index: usize, outcome: Outcome) {
        let now = self.now;
        let host = &mut self.hosts[side(role)];
        let handshake = &mut host.handshakes[index];
        assert!(handshake.outcome.is_none(), "one outcome");
        handshake.outcome = Some(outcome.clone());
        let Some(group) = handshake.group else { return };
        let sync = match outcome {
            Outcome::Connected(_) => return,
            Outcome::Fallback(fallback) => fallback.sync,
            Outcome::Failed(_) => Sync::InSync,
        };
        host.groups.leave(now, group, handshake.own.alert_token);
        let is_forming = host
            .groups
            .get(group)
            .is_some_and(|g| g.state() == GroupState::Forming);
        if is_forming || sync == Sync::OutOfSync {
            self.forget(role, group);
        }
    }

    /// Delivers up to `count` bytes of one TCP stream, as one read.
    fn deliver_tcp(&mut self, role: Role, index: usize, count: usize) {
        let handshake = &mut self.hosts[side(role)].handshakes[index];
        let stream = &mut self.tcp[index][side(role)];
        if handshake.outcome.is_some() {
            // The stream belongs to the application or is idle: no machine reads it.
            return stream.clear();
        }
        let space = handshake.reader.space();
        let count = space.len().min(count).min(stream.len());
        for byte in &mut space[..count] {
            *byte = stream.pop_front().unwrap();
        }
        if handshake.reader.filled(count).unwrap() == Progress::Complete {
            let message = handshake.reader.message().unwrap().to_vec();
            handshake.reader.restart();
            match &mut handshake.machine {
                Machine::Client(client) => client.handle_message(&message),
                Machine::Server(server) => server.handle_message(&message),
            }
            self.drive(role, index);
        }
    }

    fn deliver_packet(&mut self, choice: usize) {
        let pick = &self.fabric[choice % self.fabric.len()];
        let (to, qpn) = (pick.to, pick.qpn);
        // A queue pair keeps its order: the oldest message for the chosen one goes.
        let oldest = self
            .fabric
            .iter()
            .position(|packet| (packet.to, packet.qpn) == (to, qpn));
        let packet = self.fabric.remove(oldest.unwrap()).unwrap();
        if !self.is_fabric_up {
            return;
        }
        let now = self.now;
        let link = self.hosts[side(to)]
            .links
            .iter_mut()
            .find(|link| link.qpn == qpn);
        if let Some(link) = link {
            link.engine.handle_message(now, &packet.bytes);
            self.drive_link(to, qpn);
        }
    }

    /// Jumps to the next timer; false if there is none before `end`.
    fn jump(&mut self, end: Instant) -> bool {
        let mut due = Vec::new();
        for role in [Role::Client, Role::Server] {
            let host = &self.hosts[side(role)];
            due.extend(
                host.links
                    .iter()
                    .filter_map(|link| link.engine.poll_timeout()),
            );
            due.extend(host.handshakes.iter().filter_map(|h| match &h.machine {
                Machine::Client(client) => client.poll_timeout(),
                Machine::Server(server) => server.poll_timeout(),
            }));
        }
        let Some(next) = due.into_iter().min().filter(|next| *next <= end) else {
            return false;
        };
        self.now = self.now.max(next);
        let now = self.now;
        for role in [Role::Client, Role::Server] {
            let qpns: Vec<Qpn> = self.hosts[side(role)]
                .links
                .iter()
                .map(|link| link.qpn)
                .collect();
            for qpn in qpns {
                let host = &mut self.hosts[side(role)];
                if let Some(link) = host.links.iter_mut().find(|link| link.qpn == qpn) {
                    link.engine.handle_timeout(now);
                }
                self.drive_link(role, qpn);
            }
            for index in 0..self.tcp.len() {
                match &mut self.hosts[side(role)].handshakes[index].machine {
                    Machine::Client(client) => client.handle_timeout(now),
                    Machine::Server(server) => server.handle_timeout(now),
                }
                self.drive(role, index);
            }
        }
        true
    }

    /// One thing happens, chosen by `choice`: bytes arrive, a packet arrives, or a timer expires.
    fn step(&mut self, choice: usize, end: Instant) -> bool {
        let mut ready = Vec::new();
        for (index, streams) in self.tcp.iter().enumerate() {
            for role in [Role::Client, Role::Server] {
                if !streams[side(role)].is_empty() {
                    ready.push((role, index));
                }
            }
        }
        let packets = usize::from(!self.fabric.is_empty()) * 3;
        match choice % (ready.len() + packets + 1) {
            pick if pick < ready.len() => {
                let (role, index) = ready[pick];
                self.deliver_tcp(role, index, 1 + choice % 90);
                true
            }
            _ if packets > 0 => {
                self.deliver_packet(choice);
                true
            }
            _ if ready.is_empty() => self.jump(end),
            _ => {
                let (role, index) = ready[0];
                self.deliver_tcp(role, index, usize::MAX);
                true
            }
        }
    }

    /// Runs by the given choices, and then on in a fixed way until nothing is left to happen in 20
    /// s.
    fn run(&mut self, choices: &[usize]) {
        let end = self.now.after(core::time::Duration::from_secs(20));
        let mut choices = choices.iter().copied();
        for spare in 0..100_000 {
            if !self.step(choices.next().unwrap_or(spare), end) {
                return;
            }
        }
        panic!("the world does not come to rest");
    }

    /// Both outcomes of one handshake.
    fn outcomes(&self, index: usize) -> [&Outcome; 2] {
        [Role::Client, Role::Server].map(|role| {
            let outcome = &self.hosts[side(role)].handshakes[index].outcome;
            outcome
                .as_ref()
                .unwrap_or_else(|| panic!("{role} {index} has no outcome"))
        })
    }

    fn is_connected(&self, index: usize) -> bool {
        let connected = self
            .outcomes(index)
            .map(|o| matches!(o, Outcome::Connected(_)));
        assert_eq!(connected[0], connected[1], "{:?}", self.outcomes(index));
        connected[0]
    }

    /// Every handshake ended connected, and both sides mean the same queue pairs and RMBs.
    fn assert_all_connected(&self) {
        for index in 0..self.tcp.len() {
            let [at_client, at_server] = self.outcomes(index);
            let (Outcome::Connected(at_client), Outcome::Connected(at_server)) =
                (at_client, at_server)
            else {
                panic!("{index}: {at_client:?} {at_server:?}")
            };
            for (agreed, peer) in [(at_client, Role::Server), (at_server, Role::Client)] {
                let own = &self.hosts[side(peer)].handshakes[index].own;
                assert_eq!((agreed.peer.qpn, agreed.peer.rtoken), (own.qpn, own.rtoken));
                assert_eq!(agreed.peer.alert_token, own.alert_token);
            }
            assert_eq!(at_client.terms.contact, at_server.terms.contact);
        }
    }
}

enum Asked {
    Choose(Candidate),
    Prepare(Agreed),
    Connect(Agreed),
}

impl Handshake {
    fn provide_own(&mut self) {
        match &mut self.machine {
            Machine::Client(client) => client.provide(&self.own),
            Machine::Server(_) => panic!("a client provides"),
        }
    }
}

fn conns(world: &World, role: Role) -> Vec<usize> {
    world.hosts[side(role)]
        .groups
        .iter()
        .map(|(_, group)| group.conns())
        .collect()
}

#[test]
fn the_second_connection_joins_the_group_of_the_first() {
    let mut world = World::new(32);
    world.connect();
    world.run(&[]);
    world.connect();
    world.run(&[]);
    world.assert_all_connected();
    assert_eq!(
        (conns(&world, Role::Client), conns(&world, Role::Server)),
        (vec![2], vec![2])
    );
}

#[test]
fn a_full_group_is_followed_by_a_new_one() {
    let mut world = World::new(16);
    for _ in 0..17 {
        world.connect();
        world.run(&[]);
    }
    world.assert_all_connected();
    assert_eq!(conns(&world, Role::Server), [16, 1]);
    assert_eq!(conns(&world, Role::Client), [16, 1]);
}

#[test]
fn a_client_that_lost_its_group_falls_back_once_and_the_next_connection_makes_a_new_group() {
    let mut world = World::new(32);
    world.connect();
    world.run(&[]);
    let client = &mut world.hosts[side(Role::Client)];
    let (lost, _) = client.groups.iter().next().unwrap();
    client.groups.retire(lost);
    world.connect();
    world.run(&[]);
    for outcome in world.outcomes(1) {
        let Outcome::Fallback(fallback) = outcome else {
            panic!("{outcome:?}")
        };
        assert_eq!(fallback.diagnosis, Diagnosis::SYNCERR);
        assert_eq!(fallback.sync, Sync::OutOfSync);
    }
    assert_eq!(conns(&world, Role::Server), [0; 0]);
    world.connect();
    world.run(&[]);
    assert!(world.is_connected(2));
}

#[test]
fn without_a_fabric_the_first_contact_ends_on_tcp_at_both_sides() {
    let mut world = World::new(32);
    world.is_fabric_up = false;
    world.connect();
    world.run(&[]);
    for outcome in world.outcomes(0) {
        let Outcome::Fallback(fallback) = outcome else {
            panic!("{outcome:?}")
        };
        assert_eq!(fallback.diagnosis, Diagnosis::TIMEOUT_CL);
    }
    for role in [Role::Client, Role::Server] {
        assert!(conns(&world, role).is_empty());
    }
}

#[test]
fn a_fabric_that_breaks_later_turns_later_contacts_to_tcp() {
    let mut world = World::new(32);
    world.connect();
    world.run(&[]);
    world.is_fabric_up = false;
    world.connect();
    world.run(&[]);
    assert!(world.is_connected(0) && !world.is_connected(1));
    assert_eq!(conns(&world, Role::Server), [1]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn on_a_working_fabric_every_handshake_connects_whatever_overtakes_what(
        before in vec(any::<usize>(), 0..60),
        first in 1..4usize,
        choices in vec(any::<usize>(), 0..600),
        then in 0..6usize,
    ) {
        let mut world = World::new(16);
        for _ in 0..first {
            world.connect();
        }
        world.run(&before);
        for _ in 0..then {
            world.connect();
        }
        world.run(&choices);
        world.assert_all_connected();
        let total = first + then;
        prop_assert_eq!(conns(&world, Role::Client).iter().sum::<usize>(), total);
        prop_assert_eq!(conns(&world, Role::Server).iter().sum::<usize>(), total);
    }

    #[test]
    fn when_the_fabric_breaks_at_any_moment_both_sides_end_and_no_server_is_alone(
        first in 1..4usize,
        until in vec(any::<usize>(), 0..120),
        then in 0..4usize,
        choices in vec(any::<usize>(), 0..300),
    ) {
        let mut world = World::new(16);
        for _ in 0..first {
            world.connect();
        }
        let end = world.now.after(core::time::Duration::from_secs(20));
        for choice in until {
            world.step(choice, end);
        }
        world.is_fabric_up = false;
        for _ in 0..then {
            world.connect();
        }
        world.run(&choices);
        for index in 0..first + then {
            let [client, server] = world.outcomes(index);
            if matches!(server, Outcome::Connected(_)) {
                prop_assert!(matches!(client, Outcome::Connected(_)), "{:?}", client);
            }
        }
    }
}
