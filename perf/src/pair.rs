//! Two workers in this process with a link and connections between them, and control's part done by
//! hand.

use anyhow::{Context, Result, anyhow};
use pollux_proto::conn::ConnParams;
use pollux_provider::soft::{DeviceOptions, Fabric, SoftDevice, SoftGroup, SoftQp};
use pollux_provider::{
    Access, Device, Mr, PollGroup, PollGroupSpec, Qp, QpCaps, QpKind, QpSpec, Region, Rkey,
    RtrAttr, RtsAttr, Wake,
};
use pollux_ring::{Pages, Pool, Segment, WakeSet, spsc};
use pollux_worker::{
    App, BufferSpan, Clock, Command, ConnId, ConnSpec, FlowControl, Link, LinkId, MessageSlots,
    OpenConn, Owner, Progress, Report, WaitSpec, Worker, WorkerLimits, alert_token,
};

/// Bytes of a slot for an incoming message.
const RECEIVE_BYTES: u32 = 256;
/// Bytes of a slot for an outgoing message.
const SEND_BYTES: u32 = 128;
/// Commands that a mailbox holds.
const ORDERS: usize = 64;
/// Passes of both workers until they must have come to rest.
const PASSES_MAX: u32 = 10_000;
/// Devices, by the last byte of their address.
pub(crate) const DEVICES: [u8; 2] = [1, 2];
/// The only link of each worker.
const LINK: LinkId = LinkId(0);

/// RNR timer code as Linux sets it and control sets it too: 0.06 ms.
pub(crate) const RNR_TIMER: u8 = 5;

/// What both sides are like.
#[derive(Clone, Debug)]
pub(crate) struct PairSpec {
    /// Connections between them.
    pub(crate) conns: u16,
    /// Bytes of each ring.
    pub(crate) ring_bytes: u32,
    /// Sizes of the queue pairs; as many receives are posted as asked for here.
    pub(crate) caps: QpCaps,
    /// What each side asks the other to wait after a "receiver not ready".
    pub(crate) rnr_timer: u8,
    /// What keeps each side from sending too much.
    pub(crate) flow: FlowControl,
}

/// One end.
pub(crate) struct Node<G: PollGroup<Qp = SoftQp>, A: App, C: Clock> {
    pub(crate) worker: Worker<G, A, C>,
    orders: spsc::Producer<Command<SoftQp, A::Order>>,
    pub(crate) news: spsc::Consumer<Report<SoftQp, A::Report>>,
    ring_bytes: u32,
    rings: Region,
    ring_mrs: Vec<Mr>,
    /// Kept for as long as the link uses them.
    _slot_mrs: Vec<Mr>,
    _device: SoftDevice,
}

/// What makes one end different from the other.
pub(crate) struct End<G, A, C> {
    /// Its application.
    pub(crate) app: A,
    /// Its clock.
    pub(crate) clock: C,
    /// What the worker polls, made of the driver's group.
    pub(crate) group: Box<dyn FnOnce(SoftGroup) -> G>,
}

/// Two workers with a link and connections between them, at rest.
pub(crate) fn connected<G, A, C>(
    spec: &PairSpec,
    ends: [End<G, A, C>; 2],
) -> Result<[Node<G, A, C>; 2]>
where
    G: PollGroup<Qp = SoftQp>,
    A: App,
    C: Clock,
{
    let fabric = Fabric::new();
    let mut parts = Vec::with_capacity(2);
    for last in DEVICES {
        let device = device(&fabric, last)?;
        let group = device.create_poll_group(&PollGroupSpec {
            cq_entries: 4096,
            wake: Wake::new()?,
        })?;
        let qp_spec = QpSpec {
            kind: QpKind::Rc,
            caps: spec.caps,
        };
        let qp = device.create_qp(group.id(), &qp_spec)?;
        parts.push((device, group, qp));
    }
    let qpns: Vec<u32> = parts.iter().map(|(_, _, qp)| qp.qpn()).collect();
    let mut nodes = Vec::with_capacity(2);
    for (index, (part, end)) in parts.into_iter().zip(ends).enumerate() {
        let peer = (DEVICES[1 - index], qpns[1 - index]);
        nodes.push(Node::new(spec, part, end, peer)?);
    }
    let nodes: Result<[Node<G, A, C>; 2], _> = nodes.try_into();
    let mut nodes = nodes.ok().context("two devices have two workers")?;
    rest(&mut nodes)?;
    for conn in (0..spec.conns).map(ConnId) {
        let targets = [nodes[0].target(conn), nodes[1].target(conn)];
        for (node, target) in nodes.iter_mut().zip(targets.into_iter().rev()) {
            node.open(conn, target)?;
        }
        rest(&mut nodes)?;
    }
    Ok(nodes)
}

/// Passes of both workers until neither finds anything. Their news must be good.
pub(crate) fn rest<G, A, C>(nodes: &mut [Node<G, A, C>; 2]) -> Result<()>
where
    G: PollGroup<Qp = SoftQp>,
    A: App,
    C: Clock,
{
    for _ in 0..PASSES_MAX {
        let mut quiet = true;
        for node in nodes.iter_mut() {
            quiet &= node.worker.pass() == Progress::Idle;
            while let Some(news) = node.news.pop() {
                match news {
                    Report::LinkAdopted(_) | Report::ConnOpened(_) => {}
                    news => return Err(anyhow!("a worker reports {news:?}")),
                }
            }
        }
        if quiet {
            return Ok(());
        }
    }
    Err(anyhow!(
        "the workers do not come to rest in {PASSES_MAX} passes"
    ))
}

impl<G: PollGroup<Qp = SoftQp>, A: App, C: Clock> Node<G, A, C> {
    fn new(
        spec: &PairSpec,
        (device, group, mut qp): (SoftDevice, SoftGroup, SoftQp),
        end: End<G, A, C>,
        (peer_last, peer_qpn): (u8, u32),
    ) -> Result<Self> {
        let (orders, worker_orders) = spsc::channel(ORDERS);
        let (worker_news, news) = spsc::channel(ORDERS);
        let limits = WorkerLimits {
            conns: spec.conns,
            links: 1,
            sessions: 1,
        };
        let mailbox = (worker_orders, worker_news, Wake::new()?);
        let waiting = (WaitSpec::default(), WakeSet::new()?);
        let group = (end.group)(group);
        let worker = Worker::new(group, end.app, end.clock, limits, mailbox, waiting);
        connect(&device, &mut qp, spec.rnr_timer, (peer_last, peer_qpn))?;
        let caps = qp.caps();
        let (receive, receive_mr) = slots(
            &device,
            |bytes| Ok(Region::from(Pool::create(bytes, Pages::Off)?)),
            (RECEIVE_BYTES, spec.caps.recv_wr),
        )?;
        let (send, send_mr) = slots(
            &device,
            |bytes| Ok(Region::from(Segment::create("send", bytes, Pages::Off)?)),
            (SEND_BYTES, caps.send_wr),
        )?;
        let link = Box::new(Link::new(LINK, caps, (receive, send), spec.flow.clone()));
        let ring = spec.ring_bytes as usize;
        let count = 2 * usize::from(spec.conns);
        let rings = Region::from(Segment::create("rings", count * ring, Pages::Off)?);
        let mut ring_mrs = Vec::with_capacity(count);
        for index in 0..count {
            let access = match index % 2 {
                0 => Access::LocalOnly,
                _ => Access::RemoteWrite,
            };
            ring_mrs.push(device.register(&rings, index * ring, ring, access)?);
        }
        let mut node = Node {
            worker,
            orders,
            news,
            ring_bytes: spec.ring_bytes,
            rings,
            ring_mrs,
            _slot_mrs: vec![receive_mr, send_mr],
            _device: device,
        };
        node.send(Command::AdoptLink { qp, link })?;
        Ok(node)
    }

    /// Gives the worker an order; it is taken with the next pass.
    pub(crate) fn send(&mut self, order: Command<SoftQp, A::Order>) -> Result<()> {
        let sent = self.orders.push(order);
        sent.map_err(|_| anyhow!("the worker's mailbox is full"))
    }

    /// Where the peer of `conn` writes.
    fn target(&self, conn: ConnId) -> (Rkey, u64) {
        let mr = &self.ring_mrs[2 * usize::from(conn.0) + 1];
        (mr.rkey(), mr.addr())
    }

    fn open(&mut self, conn: ConnId, (peer_rkey, peer_addr): (Rkey, u64)) -> Result<()> {
        let span = |ring: usize| BufferSpan {
            region: self.rings.clone(),
            offset: ring * self.ring_bytes as usize,
            lkey: self.ring_mrs[ring].lkey(),
        };
        let token = alert_token(conn, 1);
        let spec = ConnSpec {
            params: ConnParams {
                sndbuf_bytes: self.ring_bytes,
                rmbe_bytes: self.ring_bytes,
                peer_rmbe_bytes: self.ring_bytes,
                local_token: token,
                peer_token: token,
            },
            peer_rkey,
            peer_addr,
            sndbuf: span(2 * usize::from(conn.0)),
            rmbe: span(2 * usize::from(conn.0) + 1),
            owner: Owner::App(0),
        };
        let open = Box::new(OpenConn::new(&spec));
        let link = LINK;
        self.send(Command::ReserveConn { conn, link, token })?;
        self.send(Command::OpenConn { conn, open })
    }
}

/// A device of the generic kind.
pub(crate) fn device(fabric: &Fabric, last: u8) -> Result<SoftDevice> {
    Ok(fabric.open(DeviceOptions::new(gid(last)))?)
}

fn gid(last: u8) -> [u8; 16] {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, last]
}

/// Takes a queue pair to the state in which it sends, with the peer's as its other end.
pub(crate) fn connect(
    device: &SoftDevice,
    qp: &mut SoftQp,
    min_rnr_timer: u8,
    (peer_last, peer_qpn): (u8, u32),
) -> Result<()> {
    device.to_init(qp)?;
    device.to_rtr(
        qp,
        &RtrAttr {
            path_mtu: 4096,
            peer_qpn,
            rq_psn: 0,
            min_rnr_timer,
            peer_gid: gid(peer_last),
            peer_mac: [0; 6],
            hop_limit: 1,
        },
    )?;
    device.to_rts(
        qp,
        &RtsAttr {
            sq_psn: 0,
            timeout: 15,
            retry_count: 7,
            rnr_retry: 7,
        },
    )?;
    Ok(())
}

/// Registered memory for `count` messages of `bytes` bytes.
fn slots(
    device: &SoftDevice,
    memory: impl FnOnce(usize) -> Result<Region>,
    (bytes, count): (u32, u32),
) -> Result<(MessageSlots, Mr)> {
    let length = (bytes * count) as usize;
    let region = memory(length)?;
    let mr = device.register(&region, 0, length, Access::LocalOnly)?;
    let span = BufferSpan {
        region,
        offset: 0,
        lkey: mr.lkey(),
    };
    Ok((MessageSlots { span, bytes, count }, mr))
}
