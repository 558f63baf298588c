//! Two workers on a fabric inside this process, with control's part done by hand.

use pollux_proto::conn::ConnParams;
use pollux_proto::credit::Credits;
use pollux_provider::soft::{DeviceOptions, Fabric, Personality, SoftDevice, SoftGroup, SoftQp};
use pollux_provider::{
    Access, Completion, Device, Layer, Layered, Mr, PollGroup, PollGroupSpec, Qp, QpCaps, QpIndex,
    QpKind, QpSpec, RtrAttr, RtsAttr, WcStatus,
};
use pollux_ring::{Pages, Pool, Region, Segment, Wake, WakeSet, spsc};
use pollux_worker::{
    App, BufferSpan, Builtin, Clock, Command, ConnId, ConnSpec, FlowControl, Link, LinkId, Mailbox,
    MessageSlots, OpenConn, Owner, PingRun, Report, Tsc, WaitSpec, Worker, WorkerLimits,
    alert_token,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub(crate) type Orders<A> = spsc::Producer<Command<SoftQp, <A as App>::Order>>;
pub(crate) type News<A> = spsc::Consumer<Report<SoftQp, <A as App>::Report>>;

/// What the workers of these tests poll.
pub(crate) type Group = Layered<SoftGroup, Breaks>;

/// Lets the only queue pair fail when told, in the same batch of completions as what it has delivered
/// until then.
pub(crate) struct Breaks(Arc<AtomicBool>);

impl Layer<SoftGroup> for Breaks {
    fn reap(&mut self, group: &mut SoftGroup, now: u64, into: &mut [Completion]) -> usize {
        let count = group.reap(now, into);
        if !self.0.swap(false, Ordering::Relaxed) {
            return count;
        }
        group.fail(QpIndex(0), WcStatus::RetryExceeded);
        count + group.reap(now, &mut into[count..])
    }
}

/// A clock that only moves when told to, shared by all who hold a clone.
#[derive(Clone, Default)]
pub(crate) struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    #[allow(dead_code, reason = "not every test moves the time")]
    pub(crate) fn advance(&self, ns: u64) {
        self.0.fetch_add(ns, Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Sizes of a node; each test picks what it needs.
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) send_wr: u32,
    pub(crate) recv_wr: u32,
    pub(crate) inline_bytes: u32,
    /// Of each sndbuf.
    pub(crate) ring_bytes: u32,
    /// Of each RMBE.
    pub(crate) rmbe_bytes: u32,
    pub(crate) conns: u16,
    /// Receives that both sides have announced, if they count credits.
    pub(crate) flow: Option<u8>,
}

impl Sizes {
    /// Both rings of this size.
    #[allow(dead_code, reason = "not every test has rings of its own")]
    pub(crate) fn with_rings(self, bytes: u32) -> Sizes {
        Sizes {
            ring_bytes: bytes,
            rmbe_bytes: bytes,
            ..self
        }
    }
}

impl Default for Sizes {
    fn default() -> Self {
        Sizes {
            send_wr: 64,
            recv_wr: 64,
            inline_bytes: 256,
            ring_bytes: 16 << 10,
            rmbe_bytes: 16 << 10,
            conns: 4,
            flow: None,
        }
    }
}

/// One side: a device, a worker, and what control keeps.
pub(crate) struct Node<A: App, C: Clock> {
    pub(crate) device: SoftDevice,
    pub(crate) worker: Worker<Group, A, C>,
    /// Set, it lets the queue pair fail when the worker next asks for completions.
    #[allow(dead_code, reason = "few tests let it fail")]
    pub(crate) breaks: Arc<AtomicBool>,
    pub(crate) orders: Orders<A>,
    pub(crate) news: News<A>,
    #[allow(dead_code, reason = "only tests in which workers sleep wake them")]
    pub(crate) wake: Wake,
    sizes: Sizes,
    qp: Option<SoftQp>,
    qpn: u32,
    rings: Region,
    ring_mrs: Vec<Mr>,
    slot_mrs: Vec<Mr>,
}

fn gid(last: u8) -> [u8; 16] {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, last]
}

impl<A: App, C: Clock> Node<A, C> {
    fn new(fabric: &Fabric, last: u8, sizes: Sizes, app: A, clock: C, wait: WaitSpec) -> Self {
        let options = DeviceOptions {
            personality: Personality::AcceptsAllGives(sizes.inline_bytes),
            ..DeviceOptions::new(gid(last))
        };
        let device = fabric.open(options).expect("device");
        let wake = Wake::new().expect("wake");
        let spec = PollGroupSpec {
            cq_entries: 4096,
            wake: wake.try_clone().expect("clone"),
        };
        let group = device.create_poll_group(&spec).expect("group");
        let caps = QpCaps {
            send_wr: sizes.send_wr,
            recv_wr: sizes.recv_wr,
            send_sge: 2,
            recv_sge: 1,
            inline_bytes: sizes.inline_bytes,
        };
        let qp = device
            .create_qp(
                group.id(),
                &QpSpec {
                    kind: QpKind::Rc,
                    caps,
                },
            )
            .expect("qp");
        assert_eq!(qp.caps().inline_bytes, sizes.inline_bytes);
        let qpn = qp.qpn();
        let (orders, worker_orders) = spsc::channel(64);
        let (worker_news, news) = spsc::channel(256);
        let breaks = Arc::new(AtomicBool::new(false));
        let group = Layered::new(group, Breaks(Arc::clone(&breaks)));
        let mailbox: Mailbox<Group, A> = (worker_orders, worker_news, Wake::new().expect("wake"));
        let limits = WorkerLimits {
            conns: sizes.conns,
            links: 2,
            sessions: 2,
        };
        let wakes = WakeSet::new().expect("a set");
        wakes.add(&wake, 0).expect("a member");
        let waiting = (wait, wakes);
        let worker = Worker::new(group, app, clock, limits, mailbox, waiting);
        let (sndbuf, rmbe) = (sizes.ring_bytes as usize, sizes.rmbe_bytes as usize);
        let bytes = (sndbuf + rmbe) * usize::from(sizes.conns);
        let rings = Region::from(Segment::create("rings", bytes, Pages::Off).expect("segment"));
        let ring_mrs = (0..sizes.conns)
            .flat_map(|conn| {
                let start = usize::from(conn) * (sndbuf + rmbe);
                [
                    device.register(&rings, start, sndbuf, Access::LocalOnly),
                    device.register(&rings, start + sndbuf, rmbe, Access::RemoteWrite),
                ]
            })
            .map(|registered| registered.expect("register"))
            .collect();
        Node {
            device,
            worker,
            breaks,
            orders,
            news,
            wake,
            sizes,
            qp: Some(qp),
            qpn,
            rings,
            ring_mrs,
            slot_mrs: Vec::new(),
        }
    }

    pub(crate) fn send(&mut self, order: Command<SoftQp, A::Order>) {
        assert!(
            self.orders.push(order).is_ok(),
            "the mailbox of a test is never full"
        );
    }

    /// Connects the queue pair with the other node's and hands it to the worker as link 0.
    fn join(&mut self, peer_last: u8, peer_qpn: u32) {
        let mut qp = self.qp.take().expect("joined once");
        let rtr = RtrAttr {
            path_mtu: 4096,
            peer_qpn,
            rq_psn: 0,
            min_rnr_timer: 5,
            peer_gid: gid(peer_last),
            peer_mac: [0; 6],
            hop_limit: 1,
        };
        let rts = RtsAttr {
            sq_psn: 0,
            timeout: 15,
            retry_count: 7,
            rnr_retry: 7,
        };
        self.device.to_init(&mut qp).expect("init");
        self.device.to_rtr(&mut qp, &rtr).expect("rtr");
        self.device.to_rts(&mut qp, &rts).expect("rts");
        let caps = qp.caps();
        let receive_bytes = (caps.recv_wr * 256) as usize;
        let receive = Region::from(Pool::create(receive_bytes, Pages::Off).expect("pool"));
        let send_bytes = (caps.send_wr * 128) as usize;
        let send = Region::from(Segment::create("send", send_bytes, Pages::Off).expect("send"));
        let mut slots = |region: &Region, bytes: u32, count: u32| {
            let mr = self
                .device
                .register(region, 0, region_bytes(bytes, count), Access::LocalOnly)
                .expect("register");
            let lkey = mr.lkey();
            self.slot_mrs.push(mr);
            MessageSlots {
                span: BufferSpan {
                    region: region.clone(),
                    offset: 0,
                    lkey,
                },
                bytes,
                count,
            }
        };
        let receive = slots(&receive, 256, caps.recv_wr);
        let send = slots(&send, 128, caps.send_wr);
        let flow = self
            .sizes
            .flow
            .map_or(FlowControl::UnderWay(u32::MAX), |receives| {
                FlowControl::Credits(Credits::new(receives, receives).expect("enough receives"))
            });
        let link = Box::new(Link::new(LinkId(0), caps, (receive, send), flow));
        self.send(Command::AdoptLink { qp, link });
    }

    /// Key and address of the RMB of connection `conn`.
    pub(crate) fn rmb(&self, conn: u16) -> (pollux_provider::Rkey, u64) {
        let mr = &self.ring_mrs[usize::from(conn) * 2 + 1];
        (mr.rkey(), mr.addr())
    }

    /// Opens connection `conn` with the ring pair of the same number towards `peer`.
    pub(crate) fn open(&mut self, conn: u16, peer: (pollux_provider::Rkey, u64), owner: Owner) {
        self.reserve(conn);
        self.open_reserved(conn, peer, owner);
    }

    /// Keeps the place of connection `conn`.
    pub(crate) fn reserve(&mut self, conn: u16) {
        self.send(Command::ReserveConn {
            conn: ConnId(conn),
            link: LinkId(0),
            token: alert_token(ConnId(conn), 1),
        });
    }

    /// Opens a connection whose place is kept.
    pub(crate) fn open_reserved(
        &mut self,
        conn: u16,
        peer: (pollux_provider::Rkey, u64),
        owner: Owner,
    ) {
        let span = |ring: usize| BufferSpan {
            region: self.rings.clone(),
            offset: (self.ring_mrs[ring].addr() - self.rings.addr()) as usize,
            lkey: self.ring_mrs[ring].lkey(),
        };
        let token = alert_token(ConnId(conn), 1);
        let spec = ConnSpec {
            params: ConnParams {
                sndbuf_bytes: self.sizes.ring_bytes,
                rmbe_bytes: self.sizes.rmbe_bytes,
                peer_rmbe_bytes: self.sizes.rmbe_bytes,
                local_token: token,
                peer_token: token,
            },
            peer_rkey: peer.0,
            peer_addr: peer.1,
            sndbuf: span(usize::from(conn) * 2),
            rmbe: span(usize::from(conn) * 2 + 1),
            owner,
        };
        self.send(Command::OpenConn {
            conn: ConnId(conn),
            open: Box::new(OpenConn::new(&spec)),
        });
    }
}

fn region_bytes(bytes: u32, count: u32) -> usize {
    (bytes * count) as usize
}

/// Two nodes with one link between them, made and connected.
pub(crate) fn pair<A: App, C: Clock + Clone>(
    sizes: Sizes,
    apps: [A; 2],
    clock: &C,
    wait: WaitSpec,
) -> [Node<A, C>; 2] {
    let fabric = Fabric::new();
    let [first, second] = apps;
    let mut a = Node::new(&fabric, 1, sizes, first, clock.clone(), wait);
    let mut b = Node::new(&fabric, 2, sizes, second, clock.clone(), wait);
    let (qpn_a, qpn_b) = (a.qpn, b.qpn);
    a.join(2, qpn_b);
    b.join(1, qpn_a);
    [a, b]
}

/// Opens connection 0 at both nodes: an application with `tags`.
#[allow(dead_code, reason = "not every test opens both ends at once")]
pub(crate) fn connect<A: App, C: Clock>([a, b]: &mut [Node<A, C>; 2], conn: u16, tags: [u64; 2]) {
    let (rmb_a, rmb_b) = (a.rmb(conn), b.rmb(conn));
    a.open(conn, rmb_b, Owner::App(tags[0]));
    b.open(conn, rmb_a, Owner::App(tags[1]));
}

/// A ping-pong run over connection 0.
#[allow(dead_code, reason = "only the ping-pong tests order one")]
pub(crate) fn ping(bytes: usize, rounds: usize) -> Box<PingRun> {
    Box::new(PingRun {
        conn: ConnId(0),
        message_bytes: bytes,
        warmup: 0,
        duration_ns: u64::MAX,
        samples: Vec::with_capacity(rounds),
        end: pollux_worker::PingEnd::Running,
    })
}

#[allow(dead_code, reason = "only the tests with the real clock need it")]
pub(crate) type PingNode = Node<Builtin, Tsc>;
