//! Two planes with a worker each, joined by pipes and a fabric inside this process, driven by hand
//! with a clock that jumps.

use super::frail::Frail;
use super::pipe::{Cable, Pipe};
use crate::config::{DeviceConfig, InlineProbe};
use crate::plane::{
    Census, Config, ConnKey, Event, MAILBOX_SLOTS, Patience, Plane, PoolId, Rings, Sharing, Syn,
    Tenant, Wanted, WorkerSpec,
};
use arrayvec::ArrayVec;
use pollux_attach::layout::{Layout, Shape};
use pollux_proto::clc::{BareCredits, GidRule, Local, MaxConns};
use pollux_proto::event::EventSet;
use pollux_proto::link::Role;
use pollux_proto::time::Instant;
use pollux_provider::soft::{DeviceOptions, Fabric, SoftGroup};
use pollux_provider::{Device, DeviceEvent, PollGroupSpec};
use pollux_ring::{Pages, Wake};
use pollux_wire::clc::{Diagnosis, VendorOptions};
use pollux_wire::field::{Gid, Mac, MtuCode, PeerId, Ueid};
use pollux_worker::{
    App, Clock, ConnId, ConnOutcome, Io, Progress, WaitSpec, Worker, WorkerLimits,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The tag of all connections.
const TAG: u64 = 7;
/// Turns without any work after which a world counts as quiet.
const QUIET_TURNS: u32 = 3;

/// A clock that is moved by hand.
#[derive(Clone, Debug, Default)]
pub(super) struct Hand(Arc<AtomicU64>);

impl Clock for Hand {
    fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What the application is told to do.
#[derive(Clone, Copy, Debug)]
pub(super) enum Say {
    /// Write so many bytes.
    Write(ConnId, usize),
    /// Close a connection.
    Close(ConnId),
}

/// An application that counts what it reads, and closes when the peer does.
#[derive(Debug, Default)]
pub(super) struct Talk {
    pub(super) read: BTreeMap<u16, usize>,
}

impl App for Talk {
    type Order = Say;
    type Report = ();

    fn order<I: Io>(&mut self, order: Say, io: &mut I) -> Option<()> {
        match order {
            Say::Write(conn, bytes) => drop(io.write(conn, &vec![0x5a; bytes])),
            Say::Close(conn) => io.close(conn),
        }
        None
    }

    fn opened<I: Io>(&mut self, conn: ConnId, tag: u64, _io: &mut I) {
        assert_eq!(tag, TAG);
        self.read.insert(conn.0, 0);
    }

    fn ready<I: Io>(
        &mut self,
        conn: ConnId,
        _tag: u64,
        events: EventSet,
        io: &mut I,
    ) -> Option<()> {
        let mut bytes = [0; 512];
        loop {
            let len = io.read(conn, &mut bytes);
            if len == 0 {
                break;
            }
            *self.read.entry(conn.0).or_default() += len;
        }
        if events.contains(EventSet::END_OF_STREAM) || events.contains(EventSet::RESET) {
            io.close(conn);
        }
        None
    }

    fn closed(&mut self, _conn: ConnId, _tag: u64, _outcome: ConnOutcome) -> Option<()> {
        None
    }
}

/// What became of a connection, as its owner heard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Heard {
    Opened(u32, ConnKey),
    FellBack(u32, Diagnosis),
    Failed(u32),
    Closed(u32, ConnOutcome),
    Stopped,
}

type TestPlane = Plane<Frail, Talk, Pipe, u32>;

/// A host.
pub(super) struct Host {
    pub(super) plane: TestPlane,
    /// `None` once it has stopped.
    pub(super) workers: Vec<Option<Worker<SoftGroup, Talk, Hand>>>,
    pub(super) heard: Vec<Heard>,
    /// A host that is frozen does nothing.
    frozen: bool,
}

/// What differs from one world to another.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    /// Workers of each host.
    pub(super) workers: usize,
    /// Connections of each worker's pool.
    pub(super) slots: u16,
    /// Links of each worker.
    pub(super) links: u16,
    pub(super) conns: u16,
    /// Names of the domains of the two hosts.
    pub(super) ueids: [&'static str; 2],
    /// How long a link is idle before its peer is asked whether it lives.
    pub(super) test_link: Duration,
}

impl Default for Terms {
    fn default() -> Self {
        Terms {
            workers: 1,
            slots: 4,
            links: 4,
            conns: 8,
            ueids: ["TEST.POLLUX"; 2],
            test_link: Duration::from_secs(30),
        }
    }
}

pub(super) fn gid(host: usize) -> [u8; 16] {
    [
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0xff,
        0xff,
        127,
        0,
        0,
        host as u8 + 1,
    ]
}

fn local((host, worker): (usize, usize), ueid: &str) -> Local {
    let mut ueids = ArrayVec::new();
    ueids.push(Ueid::new(ueid).expect("a legal name"));
    Local {
        peer_id: PeerId([(16 * worker + host) as u8 + 1; 8]),
        gid: Gid(gid(host)),
        mac: Mac([2, 0, 0, 0, 0, host as u8]),
        mtu: MtuCode::B1024,
        host_name: pollux_wire::clc::host_name("test"),
        ueids,
        max_conns: MaxConns::MAX,
        wait: Duration::from_secs(6),
        gid_rule: GidRule::Any,
        options: VendorOptions::VALID.union(VendorOptions::CREDITS),
        bare_credits: BareCredits::Off,
        v1: None,
    }
}

impl Host {
    fn new(fabric: &Fabric, clock: &Hand, host: usize, terms: &Terms) -> Self {
        let device = fabric.open(DeviceOptions::new(gid(host))).expect("device");
        let config = Config {
            send_wr: 32,
            recv_wr: 16,
            inline_bytes: 256,
            inline_probe: InlineProbe::Ladder,
            pages: Pages::Off,
            patience: Patience {
                test_link: terms.test_link,
                ..Patience::from(&DeviceConfig::default())
            },
            peek_wait: Duration::from_millis(500),
            app_rings: Rings {
                slots: terms.slots,
                sndbuf_bytes: 16 << 10,
                rmbe_bytes: 16 << 10,
            },
        };
        let mut drawn = 1000 * host as u32;
        let random = Box::new(move || {
            drawn += 1;
            drawn
        });
        let mut plane = Plane::new(Frail::new(device), config, random);
        let news = Wake::new().expect("wake");
        let mut workers = Vec::new();
        for worker in 0..terms.workers {
            let spec = WorkerSpec {
                limits: WorkerLimits {
                    conns: terms.conns,
                    links: terms.links,
                    sessions: 1,
                },
                wait: WaitSpec::default(),
                cq_entries: 1024,
                mailbox: (MAILBOX_SLOTS, MAILBOX_SLOTS),
                local: local((host, worker), terms.ueids[host]),
            };
            let inside = (Talk::default(), clock.clone());
            let worker = plane.add_worker(spec, inside, &news);
            workers.push(Some(worker.expect("worker")));
        }
        Host {
            plane,
            workers,
            heard: Vec::new(),
            frozen: false,
        }
    }

    fn pass(&mut self) -> bool {
        let mut busy = false;
        for place in &mut self.workers {
            let progress = place.as_mut().map(Worker::pass);
            match progress {
                Some(Progress::Busy) => busy = true,
                Some(Progress::Idle) | None => {}
                Some(Progress::Stopped) => {
                    busy = true;
                    if let Some(worker) = place.take() {
                        worker.finish();
                    }
                }
            }
        }
        busy
    }

    fn take_news(&mut self, now: Instant) -> bool {
        let before = self.heard.len();
        while let Some(event) = self.plane.poll_event(now) {
            self.heard.push(match event {
                Event::Opened { conn, user, .. } => Heard::Opened(user, conn),
                Event::FellBack { user, fallback, .. } => Heard::FellBack(user, fallback.diagnosis),
                Event::Failed { user, .. } => Heard::Failed(user),
                Event::Closed { user, outcome, .. } => Heard::Closed(user, outcome),
                Event::WorkerStopped { .. } => Heard::Stopped,
                Event::Released { .. }
                | Event::App { .. }
                | Event::Snapshot { .. }
                | Event::SessionFault { .. }
                | Event::SessionDetached { .. } => continue,
            });
        }
        self.heard.len() > before
    }

    /// The open connection of a user.
    pub(super) fn opened(&self, user: u32) -> Option<ConnKey> {
        self.heard.iter().find_map(|heard| match heard {
            Heard::Opened(of, conn) if *of == user => Some(*conn),
            _ => None,
        })
    }

    /// What is said of a user's connection, in order.
    pub(super) fn heard_of(&self, user: u32) -> Vec<Heard> {
        let of = |heard: &&Heard| match heard {
            Heard::Opened(of, _)
            | Heard::FellBack(of, _)
            | Heard::Failed(of)
            | Heard::Closed(of, _) => *of == user,
            Heard::Stopped => false,
        };
        self.heard.iter().filter(of).copied().collect()
    }
}

/// Where a host's connections go.
#[derive(Clone, Copy, Debug)]
pub(super) struct Home {
    pub(super) worker: usize,
    pub(super) pool: PoolId,
}

impl Home {
    /// A worker with its own pool.
    pub(super) fn of(worker: usize) -> Self {
        let pool = PoolId::Worker(worker);
        Home { worker, pool }
    }
}

/// Two hosts.
pub(super) struct World {
    pub(super) hosts: [Host; 2],
    /// Where the next connections of each host go.
    pub(super) homes: [Home; 2],
    /// What TCP has shown of the next connections.
    pub(super) syn: Syn,
    pub(super) cables: Vec<([usize; 2], Cable)>,
    clock: Hand,
    steps: usize,
    vain_steps: usize,
    fabric: Fabric,
    terms: Terms,
}

impl World {
    pub(super) fn new(terms: Terms) -> Self {
        let (fabric, clock) = (Fabric::with_seed(1), Hand::default());
        clock.0.store(1_000_000_000, Ordering::Relaxed);
        let hosts = [0, 1].map(|host| Host::new(&fabric, &clock, host, &terms));
        World {
            hosts,
            homes: [Home::of(0); 2],
            syn: Syn::Plain,
            cables: Vec::new(),
            clock,
            steps: 0,
            vain_steps: 0,
            fabric,
            terms,
        }
    }

    pub(super) fn now(&self) -> Instant {
        Instant(self.clock.now())
    }

    /// Host `client` connects to the other one; both call the connection `user`.
    pub(super) fn connect(&mut self, client: usize, user: u32) -> Cable {
        let (cable, [near, far]) = Cable::new();
        let server = 1 - client;
        self.cables.push(([client, server], cable.clone()));
        self.begin(server, Role::Server, user, far);
        self.begin(client, Role::Client, user, near);
        cable
    }

    /// A host has a stream to somebody that the test plays itself.
    pub(super) fn connect_alone(&mut self, host: usize, role: Role, user: u32) -> (Cable, Pipe) {
        let (cable, [near, far]) = Cable::new();
        // The other end belongs to no host.
        self.cables.push(([host, usize::MAX], cable.clone()));
        self.begin(host, role, user, near);
        (cable, far)
    }

    /// As [`World::connect`], to a server that takes nothing it is offered.
    pub(super) fn connect_in_vain(&mut self, client: usize, user: u32) -> Cable {
        let (cable, [near, far]) = Cable::new();
        let server = 1 - client;
        self.cables.push(([client, server], cable.clone()));
        self.begin_in_vain(server, Role::Server, user, far);
        self.begin(client, Role::Client, user, near);
        cable
    }

    /// As [`World::connect_alone`], of a host that does not want to.
    pub(super) fn connect_alone_in_vain(
        &mut self,
        host: usize,
        role: Role,
        user: u32,
    ) -> (Cable, Pipe) {
        let (cable, [near, far]) = Cable::new();
        self.cables.push(([host, usize::MAX], cable.clone()));
        self.begin_in_vain(host, role, user, near);
        (cable, far)
    }

    fn begin_in_vain(&mut self, host: usize, role: Role, user: u32, stream: Pipe) {
        let (now, wanted) = (self.now(), self.wanted(host, role, user));
        let plane = &mut self.hosts[host].plane;
        plane.begin_to_decline(now, stream, wanted, "enough of it".to_string());
    }

    fn begin(&mut self, host: usize, role: Role, user: u32, stream: Pipe) {
        let (now, wanted) = (self.now(), self.wanted(host, role, user));
        self.hosts[host].plane.begin(now, stream, wanted);
    }

    fn wanted(&self, host: usize, role: Role, user: u32) -> Wanted<u32> {
        let Home { worker, pool } = self.homes[host];
        Wanted {
            user,
            role,
            worker,
            pool,
            tenant: Tenant::App { tag: TAG },
            local: ([127, 0, 0, host as u8 + 1], 1000).into(),
            peer: ([127, 0, 0, 2 - host as u8], 1000).into(),
            syn: self.syn,
        }
    }

    /// Tells a host's plane of its streams.
    fn tell_streams(&mut self, host: usize) -> bool {
        let now = self.now();
        let mut told = false;
        for (ends, cable) in &self.cables {
            for end in [0, 1] {
                if ends[end] == host
                    && let Some(id) = cable.ready(end)
                {
                    self.hosts[host].plane.handle_ready(now, id);
                    told = true;
                }
            }
        }
        told
    }

    /// One small step of the world; six make a turn. Says whether anything happened.
    pub(super) fn step(&mut self) -> bool {
        let now = self.now();
        let (host, what) = ((self.steps / 3) % 2, self.steps % 3);
        self.steps += 1;
        if self.hosts[host].frozen {
            return false;
        }
        match what {
            0 => self.tell_streams(host),
            1 => self.hosts[host].pass(),
            _ => {
                self.hosts[host].plane.handle_device_events(now);
                self.hosts[host].plane.handle_timeouts(now);
                self.hosts[host].take_news(now)
            }
        }
    }

    /// Whether the last step surely changed nothing. News are taken without a word at times.
    pub(super) fn was_vain(&self) -> bool {
        self.vain_steps > 0 && !self.steps.is_multiple_of(3)
    }

    /// One small step; when a turn and a half were in vain, the next timer's time comes.
    pub(super) fn step_or_jump(&mut self) {
        self.vain_steps = if self.step() { 0 } else { self.vain_steps + 1 };
        if self.vain_steps >= 9
            && let Some(due) = self.next_timer()
        {
            self.clock
                .0
                .store(due.0.max(self.clock.now()), Ordering::Relaxed);
        }
    }

    /// Lets the workers talk to each other, and control know nothing of it.
    pub(super) fn run_workers(&mut self) {
        for _ in 0..100 {
            for host in &mut self.hosts {
                host.pass();
            }
        }
    }

    /// Goes on until nothing happens any more at this time.
    pub(super) fn settle(&mut self) {
        let mut quiet = 0;
        for _ in 0..20_000 {
            quiet = if self.step() { 0 } else { quiet + 1 };
            if quiet > 6 * QUIET_TURNS {
                return;
            }
        }
    }

    fn next_timer(&self) -> Option<Instant> {
        let hosts = self.hosts.iter().filter(|host| !host.frozen);
        hosts.filter_map(|host| host.plane.poll_timeout()).min()
    }

    /// Lets time pass, in jumps of at most `jump`, to the next timer each.
    fn pass_time(&mut self, time: Duration, jump: Duration) {
        let end = self.now().after(time);
        self.settle();
        while self.now() < end {
            let most = self.now().after(jump).min(end);
            let next = self.next_timer().map_or(most, |due| due.min(most));
            // A timer that is due and does nothing would stop the time.
            let next = next.max(self.now().after(Duration::from_millis(1)));
            self.clock.0.store(next.0, Ordering::Relaxed);
            self.settle();
        }
    }

    /// Lets time pass, for connections' own timers as well.
    pub(super) fn seconds(&mut self, seconds: u64) {
        self.pass_time(Duration::from_secs(seconds), Duration::from_secs(10));
    }

    /// Lets more time pass than a group may idle.
    pub(super) fn idle(&mut self) {
        self.pass_time(Duration::from_secs(700), Duration::from_secs(100));
    }

    /// The host does nothing from now on, until it is thawed.
    pub(super) fn freeze(&mut self, host: usize) {
        self.hosts[host].frozen = true;
    }

    pub(super) fn thaw(&mut self, host: usize) {
        self.hosts[host].frozen = false;
    }

    /// A host believes that its peer's device is gone.
    pub(super) fn lose_sight(&mut self, host: usize) {
        let news = DeviceEvent::PeerGone { gid: gid(1 - host) };
        self.hosts[host].plane.device().news.borrow_mut().push(news);
    }

    /// From now on a host's device refuses registrations after so many.
    pub(super) fn limit_registrations(&mut self, host: usize, left: usize) {
        self.hosts[host].plane.device().registrations_left.set(left);
    }

    /// From now on a host's device finds no path after so many.
    pub(super) fn limit_paths(&mut self, host: usize, left: usize) {
        self.hosts[host].plane.device().paths_left.set(left);
    }

    /// From now on a host's device refuses queue pairs after so many.
    pub(super) fn limit_queue_pairs(&mut self, host: usize, left: usize) {
        self.hosts[host].plane.device().queue_pairs_left.set(left);
    }

    /// From now on a host's queue pairs are made for another worker than the one that gets them.
    pub(super) fn make_queue_pairs_for_nobody(&mut self, host: usize) {
        let device = self.hosts[host].plane.device();
        let wake = Wake::new().expect("wake");
        let spec = PollGroupSpec {
            cq_entries: 1024,
            wake,
        };
        let group = device.inner.create_poll_group(&spec).expect("group");
        device.strangers.replace(Some(group));
    }

    /// Gives a host a pool of its own making, for its next connections.
    pub(super) fn add_pool(&mut self, host: usize, pool: PoolId) {
        let shape = Shape::new(2, 16 << 10, 16 << 10).expect("a shape");
        let layout = Layout::of(shape);
        let segment = layout.create_segment("pollux-test").expect("memory");
        let plane = &mut self.hosts[host].plane;
        plane
            .add_pool(pool, (segment, layout), Sharing::Worker)
            .expect("a pool");
        self.homes[host].pool = pool;
    }

    /// A host dies without a word and another one takes its address.
    pub(super) fn crash(&mut self, host: usize) {
        // The cables end as their pipes are dropped; the device must be gone before its heir comes.
        let place = &mut self.hosts[host];
        place.workers.clear();
        let spare = (Fabric::new(), Hand::default());
        *place = Host::new(&spare.0, &spare.1, host, &self.terms);
        *place = Host::new(&self.fabric, &self.clock, host, &self.terms);
    }

    pub(super) fn stop(&mut self, host: usize) {
        let now = self.now();
        self.hosts[host].plane.stop(now);
    }

    /// What a host holds, in its plane.
    pub(super) fn census(&self, host: usize) -> Census {
        self.hosts[host].plane.census()
    }

    /// Queue pairs and registrations of a host's device.
    pub(super) fn device(&self, host: usize) -> (usize, usize) {
        let census = self.hosts[host].plane.device().inner.census();
        (census.qps, census.mrs)
    }

    /// Bytes that a host's application has read from a connection.
    pub(super) fn read(&self, host: usize, conn: ConnKey) -> usize {
        let worker = self.hosts[host].workers[conn.worker].as_ref();
        worker.map_or(0, |worker| {
            worker.app().read.get(&conn.conn).copied().unwrap_or(0)
        })
    }

    /// Uses an open connection in both directions and closes it.
    pub(super) fn use_and_close(&mut self, user: u32) {
        let ends = [0, 1].map(|host| {
            let opened = self.hosts[host].opened(user);
            opened.unwrap_or_else(|| panic!("{user} is not open at {host}: {}", self.story()))
        });
        for host in [0, 1] {
            let ConnKey { worker, conn } = ends[host];
            let order = Say::Write(ConnId(conn), 300);
            self.hosts[host].plane.order(worker, order);
        }
        self.settle();
        for host in [0, 1] {
            assert_eq!(self.read(host, ends[host]), 300, "{}", self.story());
        }
        self.close(0, user);
        self.seconds(1);
        for host in [0, 1] {
            let heard = self.hosts[host].heard_of(user);
            let last = heard.last();
            assert_eq!(
                last,
                Some(&Heard::Closed(user, ConnOutcome::Closed)),
                "{host}: {}",
                self.story()
            );
        }
    }

    pub(super) fn close(&mut self, host: usize, user: u32) {
        if let Some(conn) = self.hosts[host].opened(user) {
            let order = Say::Close(ConnId(conn.conn));
            self.hosts[host].plane.order(conn.worker, order);
        }
    }

    /// A new connection opens, carries bytes and closes.
    pub(super) fn check_a_new_connection_works(&mut self, client: usize, user: u32) {
        self.connect(client, user);
        self.seconds(2);
        self.use_and_close(user);
    }

    /// After all groups have idled out, nothing is held any more but the pools.
    pub(super) fn check_nothing_is_left(&mut self) {
        self.idle();
        for host in [0, 1] {
            let census = self.census(host);
            let pools = census.registrations;
            let nothing = Census {
                registrations: pools,
                ..Census::default()
            };
            assert_eq!(census, nothing, "host {host}: {}", self.story());
            assert_eq!(
                self.device(host),
                (0, pools),
                "host {host}: {}",
                self.story()
            );
        }
        for (ends, cable) in &self.cables {
            let watched = [0, 1].map(|end| cable.is_watched(end));
            assert_eq!(watched, [false; 2], "{ends:?}: {}", self.story());
        }
    }

    /// Every connection that was begun and has not ended otherwise ends with one word, and every
    /// open one with one more.
    pub(super) fn check_each_was_told(&self, host: usize, user: u32) {
        let heard = self.hosts[host].heard_of(user);
        let told = matches!(
            heard[..],
            [Heard::FellBack(..)] | [Heard::Failed(_)] | [Heard::Opened(..), Heard::Closed(..)]
        );
        assert!(told, "host {host}, connection {user}: {}", self.story());
    }

    /// What was heard so far, for a failure's text.
    pub(super) fn story(&self) -> String {
        format!(
            "after {} steps, {:?}: heard {:?} and {:?}",
            self.steps,
            self.now(),
            self.hosts[0].heard,
            self.hosts[1].heard
        )
    }
}
