//! Control without the operating system: handshakes, link groups, queue pairs, LLC, and the places,
//! tokens and buffers of connections.
//!
//! A [`Plane`] is driven like the rules in `pollux-proto`: news go in by `handle_*`, wishes by plain
//! methods, news come out by [`Plane::poll_event`] until there are none, and time and randomness are
//! handed in. It has no thread, no clock and no socket, so the very code that runs in `polluxd` also
//! runs in tests and simulators, under a clock that jumps.
//!
//! ```text
//!    owner (polluxd, a simulator)
//!      |  begin, cancel, stop, handle_*       ^  poll_event
//!      v                                      |
//!    plane ---- Stream (TCP, a pipe) ----- the peer's plane
//!      |  commands          ^  reports
//!      v                    |
//!    worker (its thread, or Worker::pass)
//! ```
//!
//! | module | is |
//! |---|---|
//! | `handshake` | CLC over a stream, from the first byte to an open connection or back to TCP |
//! | `reserve` | what a handshake needs: group, place, token, buffers |
//! | `links` | link groups, queue pairs, LLC, and what workers report |
//! | `conns`, `pools` | connections, and the slots they use |
//! | `port`, `memory`, `places`, `state` | what those share |
//!
//! Who wants a connection is the owner's business: it gives each a name of its own (`U`), and says
//! where the buffers come from and who uses them inside the worker ([`Wanted`]).

mod census;
mod conns;
mod event;
mod handshake;
mod links;
mod memory;
mod places;
mod pools;
mod port;
mod reserve;
mod state;
mod stream;
#[cfg(test)]
mod tests;

pub use self::census::Census;
pub use self::event::{Event, Failure};
use self::handshake::Handshake;
pub use self::handshake::HandshakeId;
use self::memory::LinkMemory;
pub(crate) use self::memory::MemoryNote;
pub use self::memory::{MemoryError, link_memory_bytes};
pub use self::pools::Sharing;
use self::pools::SlotPool;
use self::port::WorkerPort;
pub use self::port::{AddWorkerError, MAILBOX_SLOTS, WorkerSpec};
pub use self::state::{ConnKey, PoolId, Syn, Tenant, Wanted};
pub(crate) use self::state::{ConnRecord, LinkPhase, LinkState};
use self::state::{Forgotten, GroupKey, WorkerState};
pub use self::stream::{Interest, Stream};
use crate::config::{DeviceConfig, InlineProbe};
use crate::probe::Memory;
use crate::view::{Found, InlineView};
use pollux_proto::group::{Group, GroupId, GroupLimits, Groups};
use pollux_proto::time::Instant;
use pollux_provider::Device;
use pollux_ring::{Pages, Wake, WakeError};
use pollux_worker::{
    App, Clock, Command, ConnId, InlineRule, PollMode, ServedSession, SessionId, Snapshot, Worker,
};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// How often orders that found a worker's ring full are tried again.
const BACKLOG_WAIT: Duration = Duration::from_millis(1);

/// How often the device is asked for news while there are links. A peer that died is noticed so
/// much earlier than by the test of an idle link, half a minute later.
const DEVICE_EVENTS_WAIT: Duration = Duration::from_millis(250);

/// Sizes of ring buffers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rings {
    /// Connections at a time.
    pub slots: u16,
    /// Bytes of each send buffer.
    pub sndbuf_bytes: u32,
    /// Bytes of each receive buffer: 16 KiB times a power of two, as CLC can name it.
    pub rmbe_bytes: u32,
}

/// What a plane has to be told.
#[derive(Clone, Debug)]
pub struct Config {
    /// Depth of each send queue asked for, in work requests.
    pub send_wr: u32,
    /// Depth of each receive queue asked for, in work requests.
    pub recv_wr: u32,
    /// Inline data wished for, in bytes.
    pub inline_bytes: u32,
    /// How a smaller size is found.
    pub inline_probe: InlineProbe,
    /// Pages of what the plane allocates itself.
    pub pages: Pages,
    /// When a peer that says nothing counts as dead.
    pub patience: Patience,
    /// How long a server waits for the first bytes, to see whether the client speaks SMC.
    pub peek_wait: Duration,
    /// The pool of each worker's own application.
    pub app_rings: Rings,
}

/// When a peer that says nothing counts as dead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Patience {
    /// How long an adapter waits for an acknowledgement: 4.096 us x 2^N.
    pub ack_timeout: u8,
    /// How often it tries again.
    pub retries: u8,
    /// How long a link is idle before a TEST LINK.
    pub test_link: Duration,
}

impl From<&DeviceConfig> for Patience {
    fn from(device: &DeviceConfig) -> Self {
        Patience {
            ack_timeout: device.ack_timeout,
            retries: device.retries,
            test_link: Duration::from_secs(device.test_link_s.into()),
        }
    }
}

/// Whether handshakes are begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Service {
    Open,
    /// The plane stops, or has stopped.
    Ended,
}

/// What links leave, dropped in this order.
struct Kept<Q> {
    qps: Vec<Q>,
    memory: Vec<LinkMemory>,
}

/// Control of a device `D`, and of its workers, which run the application `A`. A handshake is held
/// over a stream `S`; `U` is the owner's own name for a connection that it wants.
pub struct Plane<D: Device, A: App, S, U> {
    /// What came back from links and goes with the plane, if it is kept. First of all: by a queue pair
    /// its peer reaches the memory of pools.
    kept: Option<Kept<D::Qp>>,
    config: Config,
    /// As last handed in.
    now: Instant,
    random: Box<dyn FnMut() -> u32>,
    workers: Vec<WorkerState<D, A>>,
    workers_running: usize,
    service: Service,
    handshakes: BTreeMap<HandshakeId, Handshake<S, U>>,
    conns: BTreeMap<ConnKey, ConnRecord<S, U>>,
    /// Places whose handshake broke off after the worker had heard of them.
    forgotten: BTreeMap<ConnKey, Forgotten>,
    pools: BTreeMap<PoolId, SlotPool>,
    events: VecDeque<Event<A, S, U>>,
    /// Inline sizes that the device has accepted.
    probe: Memory,
    /// The last search.
    inline_found: InlineView,
    ids: u64,
    // The device goes last: after the links' queue pairs and all registered memory.
    device: D,
}

impl<D: Device, A: App, S, U> std::fmt::Debug for Plane<D, A, S, U> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plane")
            .field("workers", &self.workers.len())
            .field("handshakes", &self.handshakes.len())
            .field("conns", &self.conns.len())
            .finish_non_exhaustive()
    }
}

impl<D: Device, A: App, S: Stream, U: Copy> Plane<D, A, S, U> {
    /// A plane without workers. `random` draws 32 bits that peers cannot foresee: sequence numbers
    /// begin with them.
    pub fn new(device: D, config: Config, random: Box<dyn FnMut() -> u32>) -> Self {
        let inline_found = InlineView {
            asked_bytes: config.inline_bytes,
            granted_bytes: 0,
            found: Found::Nothing,
            attempts: 0,
            tries: Vec::new(),
            trade: None,
            depths: None,
        };
        Plane {
            kept: None,
            config,
            now: Instant::default(),
            random,
            workers: Vec::new(),
            workers_running: 0,
            service: Service::Open,
            handshakes: BTreeMap::new(),
            conns: BTreeMap::new(),
            forgotten: BTreeMap::new(),
            pools: BTreeMap::new(),
            events: VecDeque::new(),
            probe: Memory::default(),
            inline_found,
            ids: 0,
            device,
        }
    }

    /// Makes a worker, which the owner runs: in a thread by [`Worker::run`], or by calls of
    /// [`Worker::pass`]. Workers are numbered from 0 in the order of these calls. `news` is
    /// signalled when the worker has something to say.
    ///
    /// # Errors
    /// [`AddWorkerError`]: the device or the system refused what a worker needs.
    pub fn add_worker<C: Clock>(
        &mut self,
        spec: WorkerSpec,
        (app, clock): (A, C),
        news: &Wake,
    ) -> Result<Worker<D::Group, A, C>, AddWorkerError> {
        let index = self.workers.len();
        let (port, worker) = WorkerPort::new(&self.device, (index, &spec), (app, clock), news)?;
        self.workers.push(WorkerState {
            port,
            groups: Groups::new(GroupLimits::new(usize::from(spec.limits.links))),
            links: BTreeMap::new(),
            local: spec.local,
        });
        self.workers_running += 1;
        Ok(worker)
    }

    /// The next piece of news, until there is none: call it after any other call, and when a worker
    /// has signalled. Takes what workers report, in the order in which they said it.
    pub fn poll_event(&mut self, now: Instant) -> Option<Event<A, S, U>> {
        self.now = now;
        for worker in 0..self.workers.len() {
            loop {
                if let Some(event) = self.events.pop_front() {
                    return Some(event);
                }
                let Some(report) = self.workers[worker].port.next_report() else {
                    break;
                };
                self.handle_report(worker, report);
            }
            if self.workers[worker].port.has_backlog() {
                self.workers[worker].port.flush();
            }
        }
        self.events.pop_front()
    }

    /// When [`Plane::handle_timeouts`] has something to do.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let handshakes = self.handshakes.values().map(Handshake::due);
        let links = self.workers.iter().flat_map(|state| state.links.values());
        let engines = links.filter_map(|link| link.engine.as_ref()?.poll_timeout());
        let groups = self.workers.iter();
        let groups = groups.filter_map(|state| state.groups.poll_timeout());
        handshakes.chain(engines).chain(groups).min()
    }

    /// How long an owner that is woken by streams and workers may sleep before it calls
    /// [`Plane::handle_timeouts`], [`Plane::handle_device_events`] and [`Plane::poll_event`] again.
    #[must_use]
    pub fn wait(&self, now: Instant) -> Option<Duration> {
        let timer = self.poll_timeout().map(|due| due.since(now));
        let links = self.workers.iter().any(|state| !state.links.is_empty());
        let backlog = self.workers.iter().any(|state| state.port.has_backlog());
        let news = !self.events.is_empty();
        [
            timer,
            links.then_some(DEVICE_EVENTS_WAIT),
            backlog.then_some(BACKLOG_WAIT),
            news.then_some(Duration::ZERO),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Does what is due at `now`: ends handshakes that took too long, goes on with LLC, deletes
    /// groups that have idled too long.
    pub fn handle_timeouts(&mut self, now: Instant) {
        self.now = now;
        let handshakes: Vec<HandshakeId> = self
            .handshakes
            .iter()
            .filter(|(_, handshake)| handshake.due() <= now)
            .map(|(id, _)| *id)
            .collect();
        for id in handshakes {
            self.handle_handshake_timeout(id, now);
        }
        for worker in 0..self.workers.len() {
            let due: Vec<GroupId> = self.workers[worker]
                .links
                .iter()
                .filter(|(_, link)| {
                    link.engine
                        .as_ref()
                        .and_then(|engine| engine.poll_timeout())
                        .is_some_and(|due| due <= now)
                })
                .map(|(group, _)| *group)
                .collect();
            for group in due {
                if let Some(engine) = self.workers[worker]
                    .links
                    .get_mut(&group)
                    .and_then(|link| link.engine.as_mut())
                {
                    engine.handle_timeout(now);
                }
                self.pump_link(GroupKey { worker, group });
            }
            while let Some(group) = self.workers[worker].groups.take_idle(now) {
                self.end_group(GroupKey { worker, group });
            }
        }
    }

    /// Begins the end: handshakes under way go back to TCP, as do those that are begun from now on,
    /// peers are told that all groups are over, then the workers reset what is left and stop. It is
    /// complete when [`Plane::is_stopped`] says so.
    pub fn stop(&mut self, now: Instant) {
        self.cancel(now, |_| true);
        self.service = Service::Ended;
        let groups: Vec<GroupKey> = self.group_keys().collect();
        for group in groups {
            self.end_group(group);
        }
        for state in &mut self.workers {
            state.port.send(Command::Stop);
        }
    }

    /// Whether every worker has said its last word.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.workers_running == 0
    }

    /// Keeps the queue pairs that come back from now on until the plane is dropped, with the memory that
    /// peers reach by them, pools that were given up included: for an owner that stops it and then gives
    /// peers the time to read that it is over. Without its other end, or the memory behind that, a
    /// peer's queue pair fails, perhaps before the last message was looked at.
    pub fn keep_queue_pairs(&mut self) {
        self.kept.get_or_insert_with(|| Kept {
            qps: Vec::new(),
            memory: Vec::new(),
        });
    }

    /// Whether there are any of those.
    #[must_use]
    pub fn has_kept_queue_pairs(&self) -> bool {
        self.kept.as_ref().is_some_and(|kept| !kept.qps.is_empty())
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &D {
        &self.device
    }

    /// What a queue pair was last searched for and found; nothing before the first one.
    #[must_use]
    pub fn inline_found(&self) -> &InlineView {
        &self.inline_found
    }

    fn group_keys(&self) -> impl Iterator<Item = GroupKey> {
        let workers = self.workers.iter().enumerate();
        workers.flat_map(|(worker, state)| {
            let groups = state.links.keys();
            groups.map(move |group| GroupKey {
                worker,
                group: *group,
            })
        })
    }

    /// A number that was not used before; fits into 48 bits for longer than anybody waits.
    fn next_id(&mut self) -> u64 {
        self.ids += 1;
        self.ids
    }
}

/// Orders to workers. A worker that does not exist is not given any.
impl<D: Device, A: App, S: Stream, U: Copy> Plane<D, A, S, U> {
    /// Workers, running or not.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.workers.len()
    }

    /// Resets an open connection; [`Event::Closed`] follows.
    pub fn abort(&mut self, conn: ConnKey) {
        if self.conns.contains_key(&conn) {
            let order = Command::AbortConn(ConnId(conn.conn));
            self.workers[conn.worker].port.send(order);
        }
    }

    /// An order for the application inside a worker.
    pub fn order(&mut self, worker: usize, order: A::Order) {
        self.send(worker, Command::App(order));
    }

    /// What goes inline in a worker from now on, on links that exist and on those to come.
    pub fn set_inline(&mut self, worker: usize, rule: InlineRule) {
        self.send(worker, Command::SetInline(rule));
    }

    /// How a worker waits from now on.
    pub fn set_poll_mode(&mut self, worker: usize, mode: PollMode) {
        if let Some(state) = self.workers.get_mut(worker) {
            state.port.poll = mode;
        }
        self.send(worker, Command::SetPollMode(mode));
    }

    /// Asks all workers for their figures, which come by [`Event::Snapshot`].
    pub fn ask_snapshots(&mut self) {
        for state in &mut self.workers {
            let limits = state.port.limits;
            let snapshot = Snapshot::with_room(
                usize::from(limits.conns),
                usize::from(limits.links),
                usize::from(limits.sessions),
            );
            state.port.send(Command::Snapshot(Box::new(snapshot)));
        }
    }

    /// All workers count anew.
    pub fn clear_stats(&mut self) {
        for state in &mut self.workers {
            state.port.send(Command::ClearStats);
        }
    }

    /// Takes a place for a program's session in a worker; `None` when all are in use.
    pub fn take_session(&mut self, worker: usize) -> Option<SessionId> {
        let port = &mut self.workers.get_mut(worker)?.port;
        let (index, _) = port.sessions.take()?;
        Some(SessionId(index))
    }

    /// Gives back a place of which the worker has not heard.
    pub fn put_back_session(&mut self, worker: usize, session: SessionId) {
        if let Some(state) = self.workers.get_mut(worker) {
            state.port.sessions.put(session.0);
        }
    }

    /// The worker serves a session from now on.
    pub fn attach_session(&mut self, worker: usize, session: SessionId, served: ServedSession) {
        let served = Box::new(served);
        self.send(worker, Command::AttachSession { session, served });
    }

    /// The worker resets the connections of a session; [`Event::SessionDetached`] follows.
    pub fn detach_session(&mut self, worker: usize, session: SessionId) {
        self.send(worker, Command::DetachSession(session));
    }

    /// A new descriptor that ends a worker's sleep, for one program.
    ///
    /// # Errors
    /// The system has no descriptor left.
    ///
    /// # Panics
    /// There is no such worker.
    pub fn program_wake(&self, worker: usize) -> Result<Wake, WakeError> {
        self.workers[worker].port.program_wake()
    }

    /// Forgets a descriptor made by [`Plane::program_wake`].
    pub fn forget_wake(&self, worker: usize, wake: &Wake) {
        if let Some(state) = self.workers.get(worker) {
            state.port.forget_wake(wake);
        }
    }

    fn send(&mut self, worker: usize, order: port::Order<D, A>) {
        if let Some(state) = self.workers.get_mut(worker) {
            state.port.send(order);
        }
    }
}

/// What operators look at.
impl<D: Device, A: App, S, U> Plane<D, A, S, U> {
    /// The links of a worker with their groups.
    pub(crate) fn links(&self, worker: usize) -> impl Iterator<Item = (&LinkState<D>, &Group)> {
        let state = self.workers.get(worker);
        state.into_iter().flat_map(|state| {
            let links = state.links.iter();
            links.filter_map(|(id, link)| Some((link, state.groups.get(*id)?)))
        })
    }

    /// All connections.
    pub(crate) fn conns(&self) -> impl Iterator<Item = (&ConnKey, &ConnRecord<S, U>)> {
        self.conns.iter()
    }

    /// The link of a connection.
    pub(crate) fn link_of(&self, conn: ConnKey) -> Option<&LinkState<D>> {
        let record = self.conns.get(&conn)?;
        self.workers.get(conn.worker)?.links.get(&record.group)
    }

    /// How a worker waits.
    pub(crate) fn poll_mode(&self, worker: usize) -> Option<PollMode> {
        Some(self.workers.get(worker)?.port.poll)
    }
}
