//! The worker's part: a whole pass in which an application writes and the bytes leave.

use anyhow::{Context, Result, anyhow, ensure};
use pollux_control::rpc::InlineUse;
use pollux_proto::conn::ConnParams;
use pollux_proto::event::EventSet;
use pollux_provider::soft::{Fabric, SoftDevice, SoftGroup, SoftQp};
use pollux_provider::{
    Access, Device, Mr, PollGroup, PollGroupSpec, Qp, QpKind, QpSpec, Region, Rkey, Wake,
};
use pollux_ring::{Pages, Pool, Segment, WakeSet, spsc};
use pollux_worker::{
    App, BufferSpan, Clock, Command, ConnId, ConnOutcome, ConnSpec, FlowControl, InlineRule, Io,
    Link, LinkId, MessageSlots, OpenConn, Owner, Progress, Report, WaitSpec, Worker, WorkerLimits,
    alert_token,
};

use super::{CAPS, DEVICES, MESSAGE_BYTES, attributes, device};

/// Bytes of each ring: a whole number of messages, so that none is cut in two at its end.
const RING_BYTES: u32 = 16 << 10;
/// Bytes of a slot for an incoming message.
const RECEIVE_BYTES: u32 = 256;
/// Bytes of a slot for an outgoing message.
const SEND_BYTES: u32 = 128;
/// Commands that a mailbox holds.
const ORDERS: usize = 64;
/// Passes of both workers until they must have come to rest.
const PASSES_MAX: u32 = 10_000;
/// The connection that sends.
const SENDING: ConnId = ConnId(0);

/// Writes a message when ordered, and takes in whatever comes.
struct Writer {
    /// Bytes received, and whether all were as sent.
    received: u64,
    is_intact: bool,
}

impl App for Writer {
    /// The byte of which the message consists.
    type Order = u8;
    type Report = ();

    fn order<I: Io>(&mut self, order: u8, io: &mut I) -> Option<()> {
        let written = io.write(SENDING, &[order; MESSAGE_BYTES]);
        // Word only of a failure: a report would wake control, which is not on a message's way.
        (written != MESSAGE_BYTES).then_some(())
    }

    fn opened<I: Io>(&mut self, _: ConnId, _: u64, _: &mut I) {}

    fn ready<I: Io>(&mut self, conn: ConnId, _: u64, _: EventSet, io: &mut I) -> Option<()> {
        let mut into = [0; MESSAGE_BYTES];
        while let count @ 1.. = io.read(conn, &mut into) {
            let number = self.received / MESSAGE_BYTES as u64;
            self.is_intact &= into[..count].iter().all(|byte| *byte == number as u8);
            self.received += count as u64;
        }
        None
    }

    fn closed(&mut self, _: ConnId, _: u64, _: ConnOutcome) -> Option<()> {
        None
    }
}

/// No time passes, so that nothing depends on it.
#[derive(Clone, Copy)]
struct Still;

impl Clock for Still {
    fn now(&self) -> u64 {
        1
    }
}

type TheWorker = Worker<SoftGroup, Writer, Still>;
type Order = Command<SoftQp, u8>;

/// One end.
struct Node {
    worker: TheWorker,
    orders: spsc::Producer<Order>,
    news: spsc::Consumer<Report<SoftQp, ()>>,
    rings: Region,
    ring_mrs: Vec<Mr>,
    /// Kept for as long as the link uses them.
    _slot_mrs: Vec<Mr>,
    _device: SoftDevice,
}

/// What is counted: the worker takes the order, its application writes, the bytes leave.
#[inline(never)]
fn counted_pass(worker: &mut TheWorker) -> Progress {
    worker.pass()
}

/// Sends `messages` messages on one of `idle + 1` connections.
pub(super) fn run(mode: InlineUse, messages: u64, idle: u16) -> Result<()> {
    let mut nodes = connected(idle + 1)?;
    for node in &mut nodes {
        node.send(Command::SetInline(rule(mode)))?;
    }
    rest(&mut nodes)?;
    for number in 0..messages {
        nodes[0].send(Command::App(number as u8))?;
        let progress = counted_pass(&mut nodes[0].worker);
        ensure!(progress == Progress::Busy, "an order was not taken");
        rest(&mut nodes)?;
    }
    let app = nodes[1].worker.app();
    let expected = messages * MESSAGE_BYTES as u64;
    ensure!(
        app.received == expected && app.is_intact,
        "{} bytes arrived instead of {expected}, or not as they were sent",
        app.received
    );
    Ok(())
}

fn rule(mode: InlineUse) -> InlineRule {
    match mode {
        InlineUse::On => InlineRule::ALL,
        InlineUse::Messages => InlineRule {
            writes: 0,
            ..InlineRule::ALL
        },
        InlineUse::Off => InlineRule::OFF,
    }
}

/// Passes of both workers until neither finds anything. Their news must be good.
fn rest(nodes: &mut [Node; 2]) -> Result<()> {
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

/// Two workers with a link and `conns` connections between them.
fn connected(conns: u16) -> Result<[Node; 2]> {
    let fabric = Fabric::new();
    let mut parts = Vec::with_capacity(2);
    for last in DEVICES {
        let device = device(&fabric, last)?;
        let group = device.create_poll_group(&PollGroupSpec {
            cq_entries: 4096,
            wake: Wake::new()?,
        })?;
        let spec = QpSpec {
            kind: QpKind::Rc,
            caps: CAPS,
        };
        let qp = device.create_qp(group.id(), &spec)?;
        parts.push((device, group, qp));
    }
    let qpns: Vec<u32> = parts.iter().map(|(_, _, qp)| qp.qpn()).collect();
    let mut nodes = Vec::with_capacity(2);
    for (index, part) in parts.into_iter().enumerate() {
        let peer = (DEVICES[1 - index], qpns[1 - index]);
        nodes.push(Node::new(part, peer, conns)?);
    }
    let nodes: Result<[Node; 2], _> = nodes.try_into();
    let mut nodes = nodes.ok().context("two devices have two workers")?;
    rest(&mut nodes)?;
    for conn in (0..conns).map(ConnId) {
        let targets = [nodes[0].target(conn), nodes[1].target(conn)];
        for (node, target) in nodes.iter_mut().zip(targets.into_iter().rev()) {
            node.open(conn, target)?;
        }
        rest(&mut nodes)?;
    }
    Ok(nodes)
}

impl Node {
    fn new(
        (device, group, mut qp): (SoftDevice, SoftGroup, SoftQp),
        (peer_last, peer_qpn): (u8, u32),
        conns: u16,
    ) -> Result<Node> {
        let (orders, worker_orders) = spsc::channel(ORDERS);
        let (worker_news, news) = spsc::channel(ORDERS);
        let limits = WorkerLimits {
            conns,
            links: 1,
            sessions: 1,
        };
        let app = Writer {
            received: 0,
            is_intact: true,
        };
        let mailbox = (worker_orders, worker_news, Wake::new()?);
        let waiting = (WaitSpec::default(), WakeSet::new()?);
        let worker = Worker::new(group, app, Still, limits, mailbox, waiting);
        let (rtr, rts) = attributes(peer_last, peer_qpn);
        device.to_init(&mut qp)?;
        device.to_rtr(&mut qp, &rtr)?;
        device.to_rts(&mut qp, &rts)?;
        let caps = qp.caps();
        let (receive, receive_mr) = slots(
            &device,
            |bytes| Ok(Region::from(Pool::create(bytes, Pages::Off)?)),
            (RECEIVE_BYTES, caps.recv_wr),
        )?;
        let (send, send_mr) = slots(
            &device,
            |bytes| Ok(Region::from(Segment::create("send", bytes, Pages::Off)?)),
            (SEND_BYTES, caps.send_wr),
        )?;
        let flow = FlowControl::UnderWay(u32::MAX);
        let link = Box::new(Link::new(LinkId(0), caps, (receive, send), flow));
        let ring = RING_BYTES as usize;
        let count = 2 * usize::from(conns);
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
            rings,
            ring_mrs,
            _slot_mrs: vec![receive_mr, send_mr],
            _device: device,
        };
        node.send(Command::AdoptLink { qp, link })?;
        Ok(node)
    }

    fn send(&mut self, order: Order) -> Result<()> {
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
            offset: ring * RING_BYTES as usize,
            lkey: self.ring_mrs[ring].lkey(),
        };
        let token = alert_token(conn, 1);
        let spec = ConnSpec {
            params: ConnParams {
                sndbuf_bytes: RING_BYTES,
                rmbe_bytes: RING_BYTES,
                peer_rmbe_bytes: RING_BYTES,
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
        let link = LinkId(0);
        self.send(Command::ReserveConn { conn, link, token })?;
        self.send(Command::OpenConn { conn, open })
    }
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
