//! Control of a stack without handshakes: links and connections appear at both ends at once.

use std::collections::{BTreeMap, VecDeque};

use pollux_proto::conn::ConnParams;
use pollux_proto::credit::Credits as LinkCredits;
use pollux_provider::soft::{Census, SoftQp};
use pollux_provider::{
    Access, Device, DeviceEvent, GroupId, Mr, PollGroup, PollGroupSpec, Qp, QpCaps, QpKind, QpSpec,
    RtrAttr, RtsAttr,
};
use pollux_ring::spsc::{Consumer, Producer, channel};
use pollux_ring::{Pages, Pool, Region, Segment, Wake, WakeSet};
use pollux_wire::llc::{AnnounceCredits, Direction, Form, LLC_BYTES};
use pollux_worker::{
    BufferSpan, Command, ConnId, ConnSpec, FlowControl, Link, LinkId, MessageSlots, OpenConn,
    Owner, PeerDone, Report, Snapshot, WaitSpec, Worker, WorkerLimits, alert_token,
};

use super::{LINKS, News, NoStack, Orders, SimWorker, Word, or};
use crate::book::{Book, Event, Shared, lock};
use crate::checker::stream::Tag;
use crate::clock::SimClock;
use crate::device::{SimDevice, gid};
use crate::options::{StackOptions, counts_credits};
use crate::player::Player;

/// Bytes of a receive slot and of a send slot, as control makes them.
const SLOT_BYTES: (u32, u32) = (256, 128);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Running,
    Releasing,
}

/// This side of a link.
#[derive(Debug)]
struct LinkEnd {
    cable: usize,
    phase: Phase,
    peer_gid: [u8; 16],
    /// Rings into which the peer may still write until the link is gone.
    quarantine: Vec<u16>,
    /// Before it is handed to the worker.
    qp: Option<SoftQp>,
    slots: (MessageSlots, MessageSlots),
    _registrations: [Mr; 2],
}

/// When a ring may be used by another connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reuse {
    Now,
    /// The peer may still write into it.
    AfterTheLink,
}

/// A place in the worker's table.
#[derive(Clone, Copy, Debug)]
struct ConnEnd {
    tag: Tag,
    link: u16,
    ring: u16,
}

/// What one end of a connection tells the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer {
    pub(crate) conn: ConnId,
    ring: u16,
    token: u32,
    rmb: (pollux_provider::Rkey, u64),
    rmbe_bytes: u32,
}

/// Control without handshakes. The device comes first, so that it is the first to go.
pub(crate) struct Direct {
    device: SimDevice,
    index: usize,
    book: Shared<Book>,
    group: GroupId,
    options: StackOptions,
    orders: Producer<Orders>,
    backlog: VecDeque<Orders>,
    worker_wake: Wake,
    news: Consumer<News>,
    links: BTreeMap<u16, LinkEnd>,
    conns: BTreeMap<u16, ConnEnd>,
    free_links: VecDeque<u16>,
    free_conns: VecDeque<u16>,
    free_rings: VecDeque<u16>,
    generation: u16,
    rings: Region,
    /// Registrations of each ring pair: sndbuf, RMBE.
    ring_mrs: Vec<[Mr; 2]>,
    at_rest: Census,
    /// What was heard of peers and not told yet.
    heard: Vec<Word>,
}

/// The memory of all rings, and the registrations of each pair: sndbuf, RMBE. They lie side by side, so
/// that a byte too many is seen by the neighbour.
fn make_rings(
    device: &SimDevice,
    options: &StackOptions,
) -> Result<(Region, Vec<[Mr; 2]>), NoStack> {
    let (sndbuf, rmbe) = (options.sndbuf_bytes as usize, options.rmbe_bytes as usize);
    let places = usize::from(options.places);
    let segment = Segment::create("sim-rings", (sndbuf + rmbe) * places, Pages::Off);
    let rings = Region::from(segment.map_err(or("memory for rings"))?);
    let ring_mrs = (0..places)
        .map(|place| {
            let start = place * (sndbuf + rmbe);
            Ok([
                device.register(&rings, start, sndbuf, Access::LocalOnly)?,
                device.register(&rings, start + sndbuf, rmbe, Access::RemoteWrite)?,
            ])
        })
        .collect::<Result<Vec<_>, pollux_provider::RegisterError>>()
        .map_err(or("a registration"))?;
    Ok((rings, ring_mrs))
}

impl Direct {
    pub(crate) fn new(
        (index, life): (usize, u32),
        device: SimDevice,
        (player, clock): (Player, SimClock),
        options: &StackOptions,
        book: Shared<Book>,
    ) -> Result<(Direct, SimWorker), NoStack> {
        let wake = Wake::new().map_err(or("a wake descriptor"))?;
        let spec = PollGroupSpec {
            cq_entries: 1 << 16,
            wake: wake.try_clone().map_err(or("a wake descriptor"))?,
        };
        let group = device
            .create_poll_group(&spec)
            .map_err(or("a poll group"))?;
        let group_id = group.id();
        let (orders, worker_orders) = channel(options.mailbox.0);
        let (worker_news, news) = channel(options.mailbox.1);
        let limits = WorkerLimits {
            conns: options.places,
            links: LINKS,
            sessions: 1,
        };
        let wakes = WakeSet::new().map_err(or("a wake set"))?;
        wakes.add(&wake, 0).map_err(or("a wake set"))?;
        let worker_wake = wake.try_clone().map_err(or("a wake descriptor"))?;
        let worker = Worker::new(
            group,
            player,
            clock,
            limits,
            (worker_orders, worker_news, wake),
            (WaitSpec::default(), wakes),
        );
        let (rings, ring_mrs) = make_rings(&device, options)?;
        let at_rest = device.census();
        let mut direct = Direct {
            device,
            index,
            book,
            group: group_id,
            options: options.clone(),
            orders,
            backlog: VecDeque::new(),
            worker_wake,
            news,
            links: BTreeMap::new(),
            conns: BTreeMap::new(),
            free_links: (0..LINKS).collect(),
            free_conns: (0..options.places).collect(),
            free_rings: (0..options.places).collect(),
            generation: (life % 0x1000) as u16 * 16,
            rings,
            ring_mrs,
            at_rest,
            heard: Vec::new(),
        };
        direct.send(Command::SetInline(options.inline));
        Ok((direct, worker))
    }

    /// Asks for a snapshot.
    pub(crate) fn ask_snapshot(&mut self) {
        let room = usize::from(self.options.places);
        let snapshot = Snapshot::with_room(room, usize::from(LINKS), 1);
        self.send(Command::Snapshot(Box::new(snapshot)));
    }

    /// Sends an order; orders arrive in the order of the calls.
    pub(crate) fn send(&mut self, order: Orders) {
        self.backlog.push_back(order);
        self.flush_orders();
    }

    fn flush_orders(&mut self) {
        while let Some(order) = self.backlog.pop_front() {
            if let Err(full) = self.orders.push(order) {
                self.backlog.push_front(full.0);
                break;
            }
        }
        // Full is a signal that is still there.
        let _ = self.worker_wake.signal();
    }

    /// Whether the worker has orders that it has not carried out.
    pub(crate) fn has_orders(&self) -> bool {
        !self.backlog.is_empty() || self.orders.slots() < self.options.mailbox.0
    }

    /// Whether orders or news wait for control.
    pub(crate) fn has_mail(&self) -> bool {
        !self.backlog.is_empty() || self.news.peek().is_some() || !self.heard.is_empty()
    }

    // --- links ---

    /// Makes a queue pair for a link; gives its place and its number.
    pub(crate) fn make_link(
        &mut self,
        cable: usize,
        peer: usize,
    ) -> Result<Option<(u16, u32)>, NoStack> {
        // A peer that is back has been away: what was on its earlier life goes first.
        let heard = self.hear_device();
        self.heard.extend(heard);
        let Some(link) = self.free_links.pop_front() else {
            return Ok(None);
        };
        let caps = QpCaps {
            send_wr: self.options.send_wr,
            recv_wr: self.options.recv_wr,
            send_sge: 2,
            recv_sge: 1,
            inline_bytes: self.options.inline_bytes,
        };
        let kind = QpKind::Rc;
        let qp = self
            .device
            .create_qp(self.group, &QpSpec { kind, caps })
            .map_err(or("a queue pair"))?;
        let qpn = qp.qpn();
        let (receive_bytes, send_bytes) = SLOT_BYTES;
        let bytes = (caps.recv_wr * receive_bytes) as usize;
        let receive = Region::from(Pool::create(bytes, Pages::Off).map_err(or("receive slots"))?);
        let bytes = (caps.send_wr * send_bytes) as usize;
        let send = Region::from(
            Segment::create_owner_writes("sim-send", bytes, Pages::Off)
                .map_err(or("send slots"))?,
        );
        let slots = |region: &Region, bytes: u32, count: u32| {
            let mr = self
                .device
                .register(region, 0, (bytes * count) as usize, Access::LocalOnly)
                .map_err(or("a registration"))?;
            let span = BufferSpan {
                region: region.clone(),
                offset: 0,
                lkey: mr.lkey(),
            };
            Ok((MessageSlots { span, bytes, count }, mr))
        };
        let (receive, receive_mr) = slots(&receive, receive_bytes, caps.recv_wr)?;
        let (send, send_mr) = slots(&send, send_bytes, caps.send_wr)?;
        let end = LinkEnd {
            cable,
            phase: Phase::Running,
            peer_gid: gid(peer),
            quarantine: Vec::new(),
            qp: Some(qp),
            slots: (receive, send),
            _registrations: [receive_mr, send_mr],
        };
        self.links.insert(link, end);
        Ok(Some((link, qpn)))
    }

    /// Connects a queue pair and moves it into the worker.
    pub(crate) fn connect(
        &mut self,
        link: u16,
        peer_qpn: u32,
        peer: &StackOptions,
    ) -> Result<(), NoStack> {
        let flow = flow_control(&self.options, peer);
        let Some(end) = self.links.get_mut(&link) else {
            return Ok(());
        };
        let Some(mut qp) = end.qp.take() else {
            return Ok(());
        };
        let rtr = RtrAttr {
            path_mtu: 4096,
            peer_qpn,
            rq_psn: 0,
            min_rnr_timer: self.options.rnr_timer,
            peer_gid: end.peer_gid,
            peer_mac: [0; 6],
            hop_limit: 1,
        };
        let rts = RtsAttr {
            sq_psn: 0,
            timeout: 15,
            retry_count: 6,
            rnr_retry: 7,
        };
        let what = or("a connected queue pair");
        self.device.to_init(&mut qp).map_err(&what)?;
        self.device.to_rtr(&mut qp, &rtr).map_err(&what)?;
        self.device.to_rts(&mut qp, &rts).map_err(&what)?;
        let slots = end.slots.clone();
        let link = Box::new(Link::new(LinkId(link), qp.caps(), slots, flow));
        self.send(Command::AdoptLink { qp, link });
        Ok(())
    }

    /// Drops a link that was made and not connected.
    pub(crate) fn unmake_link(&mut self, link: u16) {
        if self.links.remove(&link).is_some() {
            self.free_links.push_back(link);
        }
    }

    /// Takes a link back from the worker.
    pub(crate) fn release_link(&mut self, link: u16) {
        if let Some(end) = self.links.get_mut(&link)
            && end.phase == Phase::Running
        {
            end.phase = Phase::Releasing;
            self.send(Command::ReleaseLink(LinkId(link)));
        }
    }

    /// Links that are not gone.
    pub(crate) fn link_count(&self) -> usize {
        self.links.len()
    }

    // --- connections ---

    /// Takes a place and rings for a connection and keeps them; what the peer has to know of them.
    pub(crate) fn reserve(&mut self, tag: Tag, link: u16) -> Option<Offer> {
        if self.free_conns.is_empty() || self.free_rings.is_empty() {
            return None;
        }
        let (conn, ring) = (self.free_conns.pop_front()?, self.free_rings.pop_front()?);
        self.generation = self.generation.checked_add(1).unwrap_or(1);
        let token = alert_token(ConnId(conn), self.generation);
        self.conns.insert(conn, ConnEnd { tag, link, ring });
        self.send(Command::ReserveConn {
            conn: ConnId(conn),
            link: LinkId(link),
            token,
        });
        let rmb = &self.ring_mrs[usize::from(ring)][1];
        Some(Offer {
            conn: ConnId(conn),
            ring,
            token,
            rmb: (rmb.rkey(), rmb.addr()),
            rmbe_bytes: self.options.rmbe_bytes,
        })
    }

    /// Whether a connection can be reserved.
    pub(crate) fn has_place(&self) -> bool {
        !self.free_conns.is_empty() && !self.free_rings.is_empty()
    }

    /// The connection that our offer and the peer's make.
    pub(crate) fn conn(&self, tag: Tag, ours: &Offer, peer: &Offer) -> Box<OpenConn> {
        let span = |mr: &Mr| BufferSpan {
            region: self.rings.clone(),
            offset: (mr.addr() - self.rings.addr()) as usize,
            lkey: mr.lkey(),
        };
        let [sndbuf, rmbe] = &self.ring_mrs[usize::from(ours.ring)];
        Box::new(OpenConn::new(&ConnSpec {
            params: ConnParams {
                sndbuf_bytes: self.options.sndbuf_bytes,
                rmbe_bytes: self.options.rmbe_bytes,
                peer_rmbe_bytes: peer.rmbe_bytes,
                local_token: ours.token,
                peer_token: peer.token,
            },
            peer_rkey: peer.rmb.0,
            peer_addr: peer.rmb.1,
            sndbuf: span(sndbuf),
            rmbe: span(rmbe),
            owner: Owner::App(tag.0),
        }))
    }

    /// Resets a connection or forgets its reservation, if the place is still its own.
    pub(crate) fn abort(&mut self, tag: Tag) {
        let of_tag = |(conn, end): (&u16, &ConnEnd)| (end.tag == tag).then_some(*conn);
        if let Some(conn) = self.conns.iter().find_map(of_tag) {
            self.send(Command::AbortConn(ConnId(conn)));
        }
    }

    // --- news ---

    /// Control's turn: at most `most` pieces of news.
    pub(crate) fn control(&mut self, most: usize) -> Vec<Word> {
        let mut words = std::mem::take(&mut self.heard);
        words.extend(self.hear_device());
        for _ in 0..most {
            let Some(report) = self.news.pop() else { break };
            self.note_report(&report);
            words.extend(self.handle(report));
        }
        self.flush_orders();
        words
    }

    /// Takes the device's news: links to a peer that is gone are given up.
    fn hear_device(&mut self) -> Vec<Word> {
        let mut words = Vec::new();
        for event in self.device.take_events() {
            if let DeviceEvent::PeerGone { gid } = event {
                let of_peer =
                    |(link, end): (&u16, &LinkEnd)| (end.peer_gid == gid).then_some(*link);
                let links: Vec<u16> = self.links.iter().filter_map(of_peer).collect();
                for link in links {
                    words.extend(self.links.get(&link).map(|end| Word::LinkDown(end.cable)));
                    self.release_link(link);
                }
            }
        }
        words
    }

    fn note_report(&self, report: &News) {
        let (kind, id, value) = match report {
            Report::LinkAdopted(link) => (0, link.0, 0),
            Report::ConnOpened(conn) => (1, conn.0, 0),
            Report::LinkFailed { link, status } => (2, link.0, *status as u64),
            Report::LinkReleased { link, .. } => (3, link.0, 0),
            Report::Llc { link, message } => (4, link.0, message.len() as u64),
            Report::CreditsDue { link, credits } => (5, link.0, u64::from(*credits)),
            Report::ConnClosed { conn, outcome, .. } => (6, conn.0, *outcome as u64),
            Report::SessionFault { session, .. } | Report::SessionDetached { session, .. } => {
                (7, session.0, 0)
            }
            Report::App(never) => match *never {},
            Report::Snapshot(_) => (8, 0, 0),
            Report::Stopped => (9, 0, 0),
        };
        let values = [kind, u64::from(id), value];
        lock(&self.book).note(Event::Report, self.index, &values, || {
            const KINDS: [&str; 10] = [
                "link adopted",
                "connection opened",
                "link failed",
                "link released",
                "LLC message",
                "credits due",
                "connection closed",
                "session",
                "snapshot",
                "stopped",
            ];
            format!("{} {id} ({value})", KINDS[kind as usize])
        });
    }

    fn handle(&mut self, report: News) -> Option<Word> {
        match report {
            Report::LinkAdopted(link) => {
                let end = self.links.get(&link.0)?;
                Some(Word::LinkUp(end.cable))
            }
            Report::LinkFailed { link, .. } => {
                let cable = self.links.get(&link.0)?.cable;
                self.release_link(link.0);
                Some(Word::LinkDown(cable))
            }
            Report::LinkReleased { link, qp, .. } => {
                drop(qp);
                let end = self.links.remove(&link.0)?;
                self.free_rings.extend(&end.quarantine);
                self.free_links.push_back(link.0);
                Some(Word::LinkGone(end.cable))
            }
            Report::CreditsDue { link, credits } => {
                let announcement = AnnounceCredits {
                    direction: Direction::Response,
                    credits,
                };
                let mut message = [0; LLC_BYTES];
                if announcement.emit(Form::V1, &mut message).is_ok() {
                    let message = message.into_iter().collect();
                    self.send(Command::SendLlc { link, message });
                }
                None
            }
            Report::ConnClosed {
                conn,
                peer_done,
                open,
                ..
            } => {
                // The peer has heard of a reservation's ring: it may still write into it.
                let reuse = match peer_done {
                    PeerDone::Yes if open.is_some() => Reuse::Now,
                    PeerDone::Yes | PeerDone::No => Reuse::AfterTheLink,
                };
                self.forget(conn.0, reuse);
                None
            }
            Report::Snapshot(snapshot) => Some(Word::Snapshot(snapshot)),
            Report::ConnOpened(_)
            | Report::Llc { .. }
            | Report::SessionFault { .. }
            | Report::SessionDetached { .. }
            | Report::Stopped => None,
            Report::App(never) => match never {},
        }
    }

    /// A place is free; its ring too, or once the link is gone.
    fn forget(&mut self, conn: u16, reuse: Reuse) {
        let Some(end) = self.conns.remove(&conn) else {
            let index = self.index;
            return lock(&self.book)
                .object(|| format!("stack {index}: place {conn} ended and was not in use"));
        };
        self.free_conns.push_back(conn);
        match self
            .links
            .get_mut(&end.link)
            .filter(|_| reuse == Reuse::AfterTheLink)
        {
            Some(link) => link.quarantine.push(end.ring),
            None => self.free_rings.push_back(end.ring),
        }
    }

    /// What is not given back although every link is gone, in words.
    pub(crate) fn leftovers(&self) -> Option<String> {
        let places = usize::from(self.options.places);
        let census = self.device.census();
        let left = Census {
            peers: self.at_rest.peers,
            create_qp_calls: self.at_rest.create_qp_calls,
            ..census
        };
        let is_clean = left == self.at_rest
            && self.free_conns.len() == places
            && self.free_rings.len() == places
            && self.free_links.len() == usize::from(LINKS)
            && self.conns.is_empty();
        (!is_clean).then(|| {
            format!(
                "{census:?} (at the start {:?}); free are {} places, {} rings of {places}, \
                 {} links of {LINKS}; in use are {:?}",
                self.at_rest,
                self.free_conns.len(),
                self.free_rings.len(),
                self.free_links.len(),
                self.conns
            )
        })
    }
}

/// How a link between two stacks keeps from sending too much.
fn flow_control(own: &StackOptions, peer: &StackOptions) -> FlowControl {
    let receives = |options: &StackOptions| u8::try_from(options.recv_wr).unwrap_or(u8::MAX);
    if counts_credits(own, peer)
        && let Some(credits) = LinkCredits::new(receives(peer), receives(own))
    {
        return FlowControl::Credits(credits);
    }
    FlowControl::UnderWay(own.under_way)
}
