//! A small appliance: control and worker in one thread, and a network that is a copy.
//!
//! Both ends of a TCP connection that are upgraded become a pair: bytes go from one end's sndbuf to
//! the other end's RMBE. Single ends echo, if that is the policy.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use pollux_attach::layout::{Layout, Shape, VERSION};
use pollux_attach::message::{Reply, Request, Role};
use pollux_attach::packet::{self, ReceiveError};
use pollux_attach::shared::{SlotNews, SlotState, Submission, SubmissionOp, Violation, WorkerSide};
use pollux_attach::slots::{SlotRef, SlotTable};
use pollux_ring::{Segment, Wake, WakeSender, WakeSet, wake_channel};
use rustix::event::{PollFd, PollFlags};

/// What the appliance does with an upgrade.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Policy {
    /// Waits for the other end of the TCP connection.
    Pair,
    /// Sends everything back.
    Echo,
    /// Stays on TCP.
    Fallback,
    /// Loses the connection.
    Fail,
    /// Never answers.
    Silent,
    /// Echoes, but answers only every fourth request, together with the three before, last first.
    Shuffled,
}

/// When the worker sleeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Poll {
    /// After some fruitless passes.
    Adaptive,
    /// After every fruitless pass.
    Sleepy,
}

#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) policy: Policy,
    pub(crate) poll: Poll,
    pub(crate) slots: u16,
    pub(crate) sndbuf_bytes: u32,
    pub(crate) rmbe_bytes: u32,
    /// Text of a refusal.
    pub(crate) refuse: Option<String>,
    pub(crate) version: u32,
    /// Most bytes moved in one go, to cut streams in odd places.
    pub(crate) move_max: usize,
}

impl Default for Plan {
    fn default() -> Plan {
        Plan {
            policy: Policy::Pair,
            poll: Poll::Adaptive,
            slots: 16,
            sndbuf_bytes: 65536,
            rmbe_bytes: 65536,
            refuse: None,
            version: VERSION,
            move_max: usize::MAX,
        }
    }
}

/// Orders of a test.
enum Order {
    Stop,
    /// Says so, and does nothing until the sender of the receiver is dropped.
    Freeze(Sender<()>, Receiver<()>),
    /// Tells the slots in use and the violations seen.
    Report(Sender<Report>),
    /// Hands out the memory of the first session.
    Memory(Sender<Segment>),
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Report {
    pub(crate) used_slots: usize,
    pub(crate) sessions: usize,
    pub(crate) violations: Vec<Violation>,
    pub(crate) sleeps: u64,
}

/// The appliance as a test holds it; dropping it kills it.
pub(crate) struct Appliance {
    _folder: tempfile::TempDir,
    path: PathBuf,
    orders: Sender<Order>,
    bell: Wake,
    thread: Option<JoinHandle<()>>,
}

impl Appliance {
    pub(crate) fn start(plan: Plan) -> Appliance {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("attach.sock");
        let listener = packet::listen(&path, 16).expect("listen");
        let (orders, incoming) = channel();
        let bell = Wake::new().expect("eventfd");
        let their_bell = bell.try_clone().expect("eventfd");
        let thread = std::thread::spawn(move || {
            World::new(plan, listener, incoming, their_bell).run();
        });
        Appliance {
            _folder: folder,
            path,
            orders,
            bell,
            thread: Some(thread),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Ends the appliance as if its process had died.
    pub(crate) fn kill(&mut self) {
        self.order(Order::Stop);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("appliance");
        }
    }

    /// Stops all work, from now on, until the returned value is dropped.
    pub(crate) fn freeze(&self) -> Sender<()> {
        let ((thaw, frozen), (ready, is_ready)) = (channel(), channel());
        self.order(Order::Freeze(ready, frozen));
        is_ready.recv().expect("an appliance");
        thaw
    }

    pub(crate) fn report(&self) -> Report {
        let (sender, receiver) = channel();
        self.order(Order::Report(sender));
        receiver.recv().expect("report")
    }

    /// The memory of the first session.
    pub(crate) fn memory(&self) -> Segment {
        let (sender, receiver) = channel();
        self.order(Order::Memory(sender));
        receiver.recv().expect("a session")
    }

    fn order(&self, order: Order) {
        let _ = self.orders.send(order);
        self.bell.signal().expect("bell");
    }
}

impl Drop for Appliance {
    fn drop(&mut self) {
        self.kill();
    }
}

type ConnId = usize;

/// One end of a connection.
struct Conn {
    session: usize,
    slot: SlotRef,
    peer: ConnId,
    prepared: u64,
    sent: u64,
    produced: u64,
    consumed: u64,
    write_ended: bool,
    closed: bool,
    state: SlotState,
    told: Option<SlotNews>,
}

struct Session {
    control: OwnedFd,
    side: WorkerSide,
    segment: Segment,
    layout: Layout,
    wake: WakeSender,
    worker_wake: Wake,
    slots: SlotTable,
    conns: Vec<Option<ConnId>>,
    alive: bool,
}

struct World {
    plan: Plan,
    listener: OwnedFd,
    orders: Receiver<Order>,
    bell: Wake,
    wakes: WakeSet,
    sessions: Vec<Session>,
    conns: Vec<Conn>,
    /// Upgrades that wait for the other end, by (local, peer) address of the end that waits.
    waiting: HashMap<(SocketAddr, SocketAddr), (usize, u32)>,
    shuffled: VecDeque<(usize, u32)>,
    report: Report,
    stopped: bool,
}

impl World {
    fn new(plan: Plan, listener: OwnedFd, orders: Receiver<Order>, bell: Wake) -> World {
        World {
            plan,
            listener,
            orders,
            bell,
            wakes: WakeSet::new().expect("epoll"),
            sessions: Vec::new(),
            conns: Vec::new(),
            waiting: HashMap::new(),
            shuffled: VecDeque::new(),
            report: Report::default(),
            stopped: false,
        }
    }

    fn run(&mut self) {
        let mut idle = 0;
        let patience = match self.plan.poll {
            Poll::Adaptive => 20,
            Poll::Sleepy => 0,
        };
        while !self.stopped {
            if self.serve_sessions() {
                idle = 0;
                continue;
            }
            idle += 1;
            if idle <= patience {
                std::thread::yield_now();
                continue;
            }
            self.sleep();
            self.control();
            idle = 0;
        }
    }

    /// Arms, looks once more, sleeps until a descriptor says something.
    fn sleep(&mut self) {
        for session in &self.sessions {
            session.side.arm();
        }
        let work = |session: &Session| session.side.has_submission() || session.side.has_pending();
        if !self
            .sessions
            .iter()
            .any(|session| session.alive && work(session))
        {
            self.report.sleeps += 1;
            let readable = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
            let mut fds = vec![
                readable(self.listener.as_fd()),
                readable(self.bell.fd()),
                readable(self.wakes.fd()),
            ];
            let alive = self.sessions.iter().filter(|session| session.alive);
            fds.extend(alive.map(|session| readable(session.control.as_fd())));
            rustix::event::poll(&mut fds, None).expect("poll");
        }
        for session in &self.sessions {
            session.side.disarm();
        }
        self.wakes
            .wait(Some(std::time::Duration::ZERO), |_| {})
            .expect("wakes");
    }

    fn control(&mut self) {
        self.bell.drain().expect("bell");
        while let Ok(order) = self.orders.try_recv() {
            match order {
                Order::Stop => self.stopped = true,
                Order::Freeze(ready, frozen) => {
                    let _ = ready.send(());
                    let _ = frozen.recv();
                }
                Order::Report(sender) => {
                    let alive = self.sessions.iter().filter(|session| session.alive);
                    self.report.used_slots = alive.map(|session| session.slots.used()).sum();
                    self.report.sessions =
                        self.sessions.iter().filter(|session| session.alive).count();
                    let _ = sender.send(self.report.clone());
                }
                Order::Memory(sender) => {
                    let _ = sender.send(self.sessions[0].segment.clone());
                }
            }
        }
        while let Ok(control) = packet::accept(&self.listener) {
            self.welcome(control);
        }
        for index in 0..self.sessions.len() {
            self.hear(index);
        }
    }

    fn welcome(&mut self, control: OwnedFd) {
        let hello = loop {
            match packet::receive(&control) {
                Ok(packet) => break packet,
                Err(ReceiveError::WouldBlock) => std::thread::yield_now(),
                Err(_) => return,
            }
        };
        let Ok(Request::Hello {
            slots,
            sndbuf_bytes,
            rmbe_bytes,
            ..
        }) = Request::parse(&hello.bytes, hello.fds.len())
        else {
            panic!("no hello");
        };
        if let Some(text) = self.plan.refuse.clone() {
            packet::send(&control, &Reply::Refused { text }.emit(), &[]).expect("refusal");
            return;
        }
        let or = |asked, default| if asked == 0 { default } else { asked };
        let slots = if slots == 0 { self.plan.slots } else { slots };
        let shape = Shape::new(
            slots,
            or(sndbuf_bytes, self.plan.sndbuf_bytes),
            or(rmbe_bytes, self.plan.rmbe_bytes),
        )
        .expect("shape");
        let layout = Layout::of(shape);
        let segment = layout.create_segment("session").expect("segment");
        let (wake, program_wake) = wake_channel().expect("pipe");
        let worker_wake = Wake::new().expect("eventfd");
        self.wakes.add(&worker_wake, 0).expect("watch");
        let session = self.sessions.len();
        let welcome = Reply::Welcome {
            version: self.plan.version,
            session: session as u32,
        };
        let fds = [segment.fd(), worker_wake.fd(), program_wake.fd()];
        let _ = packet::send(&control, &welcome.emit(), &fds);
        let side = WorkerSide::new(segment.clone(), layout).expect("worker side");
        self.sessions.push(Session {
            control,
            side,
            segment,
            layout,
            wake,
            worker_wake,
            slots: SlotTable::new(slots),
            conns: vec![None; usize::from(slots)],
            alive: true,
        });
    }

    fn hear(&mut self, index: usize) {
        while self.sessions[index].alive {
            match packet::receive(&self.sessions[index].control) {
                Ok(packet) => {
                    let request = Request::parse(&packet.bytes, packet.fds.len()).expect("request");
                    self.handle_request(index, request, packet.fds);
                }
                Err(ReceiveError::WouldBlock) => return,
                Err(ReceiveError::Closed) => self.end_session(index),
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn handle_request(&mut self, session: usize, request: Request, fds: Vec<OwnedFd>) {
        match request {
            Request::Hello { .. } => panic!("hello twice"),
            Request::Released { slot, generation } => {
                let released = SlotRef { slot, generation };
                self.sessions[session]
                    .slots
                    .program_done(released)
                    .expect("held slot");
            }
            Request::Upgrade { request, role } => self.upgrade(session, request, role, &fds[0]),
        }
    }

    fn upgrade(&mut self, session: usize, request: u32, role: Role, tcp: &OwnedFd) {
        match self.plan.policy {
            Policy::Silent => {}
            Policy::Echo => self.echo(session, request),
            Policy::Shuffled => {
                self.shuffled.push_front((session, request));
                if self.shuffled.len() == 4 {
                    for (session, request) in std::mem::take(&mut self.shuffled) {
                        self.echo(session, request);
                    }
                }
            }
            Policy::Fallback => {
                let text = format!("{role:?} asked in vain");
                self.reply(
                    session,
                    &Reply::Fallback {
                        request,
                        code: 0x0303_0000,
                        text,
                    },
                );
            }
            Policy::Fail => {
                let text = "the peer spoke nonsense".to_owned();
                self.reply(
                    session,
                    &Reply::Failed {
                        request,
                        errno: 71,
                        text,
                    },
                );
            }
            Policy::Pair => {
                let tcp = std::net::TcpStream::from(tcp.try_clone().expect("duplicate"));
                let local = tcp.local_addr().expect("address");
                let peer = tcp.peer_addr().expect("address");
                match self.waiting.remove(&(peer, local)) {
                    None => {
                        self.waiting.insert((local, peer), (session, request));
                    }
                    Some((other, their_request)) => {
                        let first = self.conns.len();
                        self.open(session, request, first + 1);
                        self.open(other, their_request, first);
                    }
                }
            }
        }
    }

    fn echo(&mut self, session: usize, request: u32) {
        let own = self.conns.len();
        self.open(session, request, own);
    }

    fn open(&mut self, index: usize, request: u32, peer: ConnId) {
        let id = self.conns.len();
        let session = &mut self.sessions[index];
        let slot = session.slots.take();
        let Some(slot) = slot.filter(|_| session.alive) else {
            let text = "no slot is free".to_owned();
            self.reply(
                index,
                &Reply::Fallback {
                    request,
                    code: 0,
                    text,
                },
            );
            return;
        };
        assert!(session.side.open_slot(slot.slot, slot.generation));
        session.conns[usize::from(slot.slot)] = Some(id);
        self.conns.push(Conn {
            session: index,
            slot,
            peer,
            prepared: 0,
            sent: 0,
            produced: 0,
            consumed: 0,
            write_ended: false,
            closed: false,
            state: SlotState::OPEN,
            told: None,
        });
        let SlotRef { slot, generation } = slot;
        self.reply(
            index,
            &Reply::Accelerated {
                request,
                slot,
                generation,
            },
        );
    }

    fn reply(&self, session: usize, reply: &Reply) {
        let session = &self.sessions[session];
        if session.alive {
            let _ = packet::send(&session.control, &reply.emit(), &[]);
        }
    }

    /// The program is gone: its connections close as the kernel would close them.
    fn end_session(&mut self, index: usize) {
        while self.poll_one(index) {}
        let session = &mut self.sessions[index];
        session.alive = false;
        self.wakes.remove(&session.worker_wake).expect("watched");
        let conns: Vec<ConnId> = session.conns.iter().flatten().copied().collect();
        for conn in conns {
            self.close(conn);
            self.serve(conn);
        }
    }

    /// One pass of the worker. Returns whether it found anything.
    fn serve_sessions(&mut self) -> bool {
        let mut any = false;
        for index in 0..self.sessions.len() {
            for _ in 0..16 {
                if !self.poll_one(index) {
                    break;
                }
                any = true;
            }
            let session = &mut self.sessions[index];
            if session.alive && (any || session.side.has_pending()) {
                any |= session.side.has_pending();
                if session.side.flush_events().is_needed() {
                    let _ = session.wake.signal();
                }
            }
        }
        any
    }

    fn poll_one(&mut self, index: usize) -> bool {
        if !self.sessions[index].alive {
            return false;
        }
        match self.sessions[index].side.poll() {
            None => false,
            Some(Ok(submission)) => {
                self.handle(index, &submission);
                true
            }
            Some(Err(violation)) => {
                self.report.violations.push(violation);
                self.end_faulty(index);
                true
            }
        }
    }

    fn end_faulty(&mut self, index: usize) {
        let session = &mut self.sessions[index];
        session.alive = false;
        rustix::net::shutdown(&session.control, rustix::net::Shutdown::Both).expect("shutdown");
        let conns: Vec<ConnId> = session.conns.iter().flatten().copied().collect();
        for conn in conns {
            self.abort(conn);
        }
    }

    fn handle(&mut self, session: usize, submission: &Submission) {
        let slot = usize::from(submission.slot);
        let Some(id) = self.sessions[session].conns[slot] else {
            return;
        };
        let conn = &mut self.conns[id];
        conn.prepared = submission.prepared_total;
        conn.consumed = submission.consumed_total;
        match submission.op {
            SubmissionOp::Kick => {}
            SubmissionOp::Urgent => {
                let peer = conn.peer;
                self.conns[peer].state |= SlotState::URGENT;
            }
            SubmissionOp::ShutdownWrite => conn.write_ended = true,
            SubmissionOp::Close => self.close(id),
            SubmissionOp::Abort => self.abort(id),
        }
        self.serve(id);
    }

    fn close(&mut self, id: ConnId) {
        let conn = &mut self.conns[id];
        conn.closed = true;
        conn.write_ended = true;
        if conn.produced > conn.consumed && conn.peer != id {
            self.abort(id);
        }
    }

    fn abort(&mut self, id: ConnId) {
        let peer = self.conns[id].peer;
        for end in [id, peer] {
            if let Some(conn) = self.conns.get_mut(end) {
                conn.state |= SlotState::RESET;
                conn.sent = conn.prepared;
                conn.closed |= end == id;
            }
        }
        self.serve(id);
    }

    /// Moves what can be moved in both directions and tells both ends.
    fn serve(&mut self, id: ConnId) {
        let peer = self.conns[id].peer;
        if peer >= self.conns.len() {
            return;
        }
        while self.transfer(id, peer) || (peer != id && self.transfer(peer, id)) {}
        self.tell(id);
        if peer != id {
            self.tell(peer);
        }
        self.finish(id, peer);
    }

    fn transfer(&mut self, from: ConnId, to: ConnId) -> bool {
        let (sender, receiver) = (&self.conns[from], &self.conns[to]);
        if sender.state.contains(SlotState::RESET) {
            return false;
        }
        let source = &self.sessions[sender.session];
        let target = &self.sessions[receiver.session];
        let sndbuf = source.layout.shape().sndbuf_bytes() as usize;
        let rmbe = target.layout.shape().rmbe_bytes() as usize;
        let room = rmbe as u64 - (receiver.produced - receiver.consumed);
        let out = sender.sent as usize % sndbuf;
        let at = receiver.produced as usize % rmbe;
        let bytes = (sender.prepared - sender.sent).min(room) as usize;
        let bytes = bytes
            .min(sndbuf - out)
            .min(rmbe - at)
            .min(self.plan.move_max);
        if bytes > 0 {
            let out = source.layout.sndbuf_offset(sender.slot.slot).expect("slot") + out;
            let at = target.layout.rmbe_offset(receiver.slot.slot).expect("slot") + at;
            target
                .segment
                .copy_from(at, &source.segment, out, bytes)
                .expect("copy");
            self.conns[from].sent += bytes as u64;
            self.conns[to].produced += bytes as u64;
        }
        let sender = &self.conns[from];
        if sender.write_ended && sender.sent == sender.prepared {
            self.conns[to].state |= SlotState::END_OF_STREAM;
        }
        bytes > 0
    }

    fn tell(&mut self, id: ConnId) {
        let conn = &mut self.conns[id];
        let news = SlotNews {
            produced: conn.produced,
            reclaimed: conn.sent,
            state: conn.state,
        };
        let session = &mut self.sessions[conn.session];
        if conn.told != Some(news) && session.alive {
            conn.told = Some(news);
            session.side.publish(conn.slot.slot, &news);
            if session.side.flush_events().is_needed() {
                let _ = session.wake.signal();
            }
        }
    }

    /// Ends connections of which nothing is left.
    fn finish(&mut self, id: ConnId, peer: ConnId) {
        let over = |conn: &Conn| {
            conn.state.contains(SlotState::RESET) || {
                conn.write_ended && conn.sent == conn.prepared && conn.closed
            }
        };
        if !(over(&self.conns[id]) && over(&self.conns[peer])) {
            return;
        }
        for end in [id, peer] {
            let conn = &mut self.conns[end];
            let slot = conn.slot;
            let session = &mut self.sessions[conn.session];
            if session.conns[usize::from(slot.slot)].take() != Some(end) {
                continue;
            }
            conn.state |= SlotState::CLOSED;
            self.tell(end);
            let session = &mut self.sessions[self.conns[end].session];
            session.side.close_slot(slot.slot);
            session.slots.worker_done(slot.slot);
            let index = self.conns[end].session;
            let SlotRef { slot, generation } = slot;
            self.reply(index, &Reply::Released { slot, generation });
        }
    }
}
