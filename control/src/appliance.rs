//! The appliance: the control thread and everything it owns.
//!
//! One loop waits for descriptors, timers and the workers' news, and does all that is slow:
//! handshakes, queue pairs, memory, programs' sessions, operators' questions. Data never passes
//! through here.
//!
//! | module | is |
//! |---|---|
//! | `handshakes` | who wants connections, and what they are told; the rest is [`crate::plane`] |
//! | `sessions` | programs on the attach socket |
//! | `services` | echo services and latency runs inside the workers |
//! | `operations` | the methods of the control socket |
//! | `devices` | opening the device of the configuration |
//! | `admission`, `limits` | what one program or one peer may have |
//! | `tcp`, `threads`, `fallbacks`, `inline`, `throttles` | what those share |

mod admission;
pub(crate) mod devices;
mod fallbacks;
mod handshakes;
mod inline;
mod limits;
mod operations;
mod services;
mod sessions;
mod tcp;
mod threads;
mod throttles;

use self::admission::Admission;
use self::fallbacks::Fallbacks;
use self::handshakes::Asker;
use self::operations::Snapshots;
use self::services::LatencyRun;
use self::sessions::{Greeting, SessionState};
use self::tcp::Tcp;
use self::threads::WorkerThread;
use self::throttles::Throttles;
use crate::config::{Config, CreditChoice, Driver, Hugepages, Paths, PollMode, ServiceKind};
use crate::core_lock::CoreLock;
use crate::cores::CorePlan;
use crate::exit::{ExitStatus, Fatal};
use crate::gateway::port_owner::{may_listen, port_owner};
use crate::gateway::{Gateway, GatewayError};
use crate::log::Log;
use crate::plane::{self, HandshakeId, MAILBOX_SLOTS, Patience, Plane, Rings, WorkerSpec};
use crate::reactor::{Event, Interest, Reactor, Signals};
use crate::rpc::{InlineSetting, InlineUse, RpcError, RpcServer, Ticket};
use crate::runtime_dir::RuntimeDir;
use crate::spare::Spare;
use crate::start::{Prepared, socket_status};
use crate::syn_marks::SynMarks;
use crate::unix_socket::{BoundSocket, SocketPath};
use arrayvec::ArrayVec;
use pollux_proto::clc::{BareCredits, GidRule, Local, MaxConns};
use pollux_proto::time::Instant;
use pollux_provider::Device;
use pollux_ring::{Pages, Wake};
use pollux_wire::clc::VendorOptions;
use pollux_wire::field::{Gid, Mac, MtuCode, PeerId, Ueid};
use pollux_worker::{Builtin, InlineRule, PollMode as WorkerPoll, Tsc, WaitSpec, WorkerLimits};
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::TcpListener;
use std::rc::Rc;
use std::time::Duration;

/// Tokens of the control socket's clients begin here; all others are below.
const RPC_TOKENS: u64 = 1 << 60;
/// How long the orderly end may take before what is left is dropped.
const STOP_WAIT: Duration = Duration::from_secs(3);
/// How long peers are given to read that it is over, before their queue pairs lose their other end.
const FAREWELL_WAIT: Duration = Duration::from_millis(50);
/// Connections of a worker's own application at a time.
const APP_SLOTS: u16 = 64;

/// What a descriptor of the reactor is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Token {
    Signals,
    News,
    Attach,
    Service(usize),
    Session(u32),
    Handshake(HandshakeId),
    Latency(u64),
    Device,
}

impl From<Token> for u64 {
    fn from(token: Token) -> u64 {
        let (kind, number) = match token {
            Token::Signals => (0, 0),
            Token::News => (1, 0),
            Token::Attach => (2, 0),
            Token::Service(index) => (3, index as u64),
            Token::Session(id) => (4, u64::from(id)),
            Token::Handshake(HandshakeId(id)) => (5, id),
            Token::Latency(id) => (6, id),
            Token::Device => (7, 0),
        };
        kind << 48 | number
    }
}

impl Token {
    fn from_u64(token: u64) -> Option<Token> {
        let number = token & ((1 << 48) - 1);
        Some(match token >> 48 {
            0 => Token::Signals,
            1 => Token::News,
            2 => Token::Attach,
            3 => Token::Service(number as usize),
            4 => Token::Session(number as u32),
            5 => Token::Handshake(HandshakeId(number)),
            6 => Token::Latency(number),
            7 => Token::Device,
            _ => return None,
        })
    }
}

/// How far the end has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stopping {
    No,
    /// A signal or an operator asked for it.
    Asked,
    /// Workers are finishing; what is not done by then is dropped.
    Waiting(Instant),
}

/// Figures of control itself.
#[derive(Debug, Default)]
struct Figures {
    closed: u64,
    reset: u64,
    /// Connections that stayed on TCP.
    fallbacks: u64,
    /// Handshakes that ended with the loss of their connection.
    lost: u64,
    /// Programs that broke a rule and lost their session for it.
    faults: u64,
    /// Programs that were turned away or refused a session.
    refused: u64,
}

/// Whether somebody was told that busy workers leave no core to anybody else.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Told {
    No,
    Yes,
}

/// The appliance on a device `D`.
pub struct Appliance<D: Device> {
    config: Config,
    config_file: String,
    started: std::time::Instant,
    cleared: std::time::Instant,
    /// Shared only within this thread, so that a call can be carried out while the server holds it.
    reactor: Rc<Reactor>,
    signals: Signals,
    attach: BoundSocket,
    /// Lent out while it carries out a call.
    rpc: Option<RpcServer>,
    answers: Vec<(Ticket, Result<Value, RpcError>)>,
    news: Wake,
    services: Vec<TcpListener>,
    gateway: Option<Gateway>,
    syn_marks: SynMarks,
    greetings: BTreeMap<u32, Greeting>,
    sessions: BTreeMap<u32, SessionState>,
    latency: BTreeMap<u64, LatencyRun>,
    fallbacks: Fallbacks,
    snapshots: Snapshots,
    figures: Figures,
    admission: Admission,
    throttles: Throttles,
    log: Log,
    /// Takes whom no descriptor is left for.
    spare: Spare,
    cores: CorePlan,
    told_of_busy_cores: Told,
    /// What the operator lets go inline.
    inline_rule: InlineRule,
    ids: u64,
    stopping: Stopping,
    paths: Paths,
    // From here on the order of dropping counts: the cores are free for others when nobody can
    // reach this appliance any more.
    threads: Vec<WorkerThread>,
    plane: Plane<D, Builtin, Tcp, Asker>,
    _control_path: SocketPath,
    _runtime_dir: RuntimeDir,
    _locks: Vec<CoreLock>,
}

/// 32 random bits from the system.
fn random_u32() -> u32 {
    let mut bytes = [0; 4];
    fill_random(&mut bytes);
    u32::from_ne_bytes(bytes)
}

/// Fills `bytes` from the system's generator; from the hasher's keys should that be missing.
fn fill_random(bytes: &mut [u8]) {
    let flags = rustix::rand::GetRandomFlags::empty();
    if rustix::rand::getrandom(&mut *bytes, flags) != Ok(bytes.len()) {
        use std::hash::{BuildHasher, Hasher};
        for chunk in bytes.chunks_mut(8) {
            let drawn = std::hash::RandomState::new()
                .build_hasher()
                .finish()
                .to_ne_bytes();
            chunk.copy_from_slice(&drawn[..chunk.len()]);
        }
    }
}

fn worker_poll(mode: PollMode) -> WorkerPoll {
    match mode {
        PollMode::Busy => WorkerPoll::Busy,
        PollMode::Adaptive => WorkerPoll::Adaptive,
        PollMode::Interrupt => WorkerPoll::Interrupt,
    }
}

/// Runs `polluxd` on the device of the configuration until it is told to end.
///
/// # Errors
/// What keeps the appliance from starting, with its exit status.
pub fn serve(prepared: Prepared) -> Result<(), Fatal> {
    match prepared.config.device.driver {
        Driver::Soft => {
            let device = devices::open_soft(&prepared.config, &prepared.paths)?;
            Appliance::start(device, prepared)?.run()
        }
        Driver::Verbs => {
            let device = devices::open_verbs(&prepared.config)?;
            Appliance::start(device, prepared)?.run()
        }
    }
}

impl<D> Appliance<D>
where
    D: Device,
    D::Qp: 'static,
    D::Group: 'static,
{
    /// Starts the workers and listens; nothing is accepted before [`Appliance::run`].
    ///
    /// # Errors
    /// What is missing or taken, with its exit status.
    pub fn start(device: D, prepared: Prepared) -> Result<Self, Fatal> {
        let os = |what: &str, error: &dyn std::fmt::Display| Fatal::os(format!("{what}: {error}"));
        // On a failure these are dropped from the last to the first: sockets before their folder,
        // the cores at the end.
        let Prepared {
            locks,
            runtime_dir,
            attach,
            control,
            signals,
            cores,
            poll,
            config,
            config_file,
            paths,
            log,
        } = prepared;
        let reactor = Reactor::new()
            .map(Rc::new)
            .map_err(|e| os("cannot make an event loop", &e))?;
        let news = Wake::new().map_err(|e| os("cannot make a wake descriptor", &e))?;
        let syn_marks = SynMarks::attach(&config.handshake)?;
        let services = listen_all(&config, &syn_marks)?;
        let mut plane = Plane::new(device, plane_config(&config), Box::new(random_u32));
        let threads = start_workers(&config, &mut plane, (&cores.workers, &poll), &news)?;
        let BoundSocket {
            listener,
            path: control_path,
            ..
        } = control;
        let mut appliance = Appliance {
            rpc: Some(RpcServer::new(listener, RPC_TOKENS)),
            answers: Vec::new(),
            config_file,
            paths,
            started: std::time::Instant::now(),
            cleared: std::time::Instant::now(),
            reactor,
            signals,
            attach,
            news,
            services,
            gateway: None,
            syn_marks,
            greetings: BTreeMap::new(),
            sessions: BTreeMap::new(),
            latency: BTreeMap::new(),
            fallbacks: Fallbacks::default(),
            snapshots: Snapshots::default(),
            figures: Figures::default(),
            admission: Admission::new(&config.handshake),
            throttles: Throttles::default(),
            log,
            spare: Spare::new(),
            cores,
            told_of_busy_cores: told_at_start(&poll),
            inline_rule: InlineRule::OFF,
            ids: 0,
            stopping: Stopping::No,
            threads,
            plane,
            config,
            _control_path: control_path,
            _runtime_dir: runtime_dir,
            _locks: locks,
        };
        appliance
            .watch()
            .map_err(|e| os("cannot watch the sockets", &e))?;
        Ok(appliance)
    }

    fn watch(&mut self) -> std::io::Result<()> {
        let reactor = &self.reactor;
        reactor.add(&self.signals, Interest::Read, Token::Signals.into())?;
        reactor.add(self.news.fd(), Interest::Read, Token::News.into())?;
        reactor.add(&self.attach.listener, Interest::Read, Token::Attach.into())?;
        if let Some(events) = self.plane.device().event_fd() {
            reactor.add(events, Interest::Read, Token::Device.into())?;
        }
        for (index, listener) in self.services.iter().enumerate() {
            reactor.add(listener, Interest::Read, Token::Service(index).into())?;
        }
        match self.rpc.as_mut() {
            Some(rpc) => rpc.start(reactor),
            None => Ok(()),
        }
    }

    /// Runs until a signal or an operator ends it, then closes everything in order.
    ///
    /// # Errors
    /// The event loop itself failed, or a gateway could not start.
    pub fn run(mut self) -> Result<(), Fatal> {
        self.set_inline(InlineSetting::Use(InlineUse::On));
        if !self.config.forwards.is_empty() {
            let spin = Duration::from_micros(u64::from(self.config.attach.spin_us));
            let attach = &self.paths.attach_socket;
            let gateway = Gateway::start(&self.config.forwards, &self.syn_marks, attach, spin)
                .map_err(Fatal::from)?;
            self.gateway = Some(gateway);
        }

        tracing::info!(
            gid = %gid(self.plane.device()),
            control = %self.paths.control_socket.display(),
            "ready"
        );
        let mut events = Vec::new();
        while !self.is_over() {
            let timeout = self.next_timeout();
            self.reactor
                .wait(timeout, &mut events)
                .map_err(|error| Fatal::os(format!("cannot wait for events: {error}")))?;
            for event in &events {
                self.handle_event(event);
            }
            self.take_news();
            self.plane.handle_device_events(self.now());
            self.handle_timeouts();
            self.go_on_stopping();
        }
        if self.plane.has_kept_queue_pairs() {
            std::thread::sleep(FAREWELL_WAIT);
        }
        drop(self);
        tracing::info!("stopped");
        Ok(())
    }

    fn handle_event(&mut self, event: &Event) {
        if event.token >= RPC_TOKENS {
            return self.with_rpc(|rpc, appliance| {
                let reactor = Rc::clone(&appliance.reactor);
                rpc.handle(&reactor, event, appliance);
            });
        }
        match Token::from_u64(event.token) {
            Some(Token::Signals) => {
                if self.signals.take() {
                    self.stopping = match self.stopping {
                        Stopping::No => Stopping::Asked,
                        going => going,
                    };
                }
            }
            Some(Token::News) => {
                let _ = self.news.drain();
            }
            // Its news are taken in every turn of the loop.
            Some(Token::Device) => {}
            Some(Token::Attach) => self.accept_programs(),
            Some(Token::Service(index)) => self.accept_service(index),
            Some(Token::Session(id)) => self.handle_session_socket(id),
            Some(Token::Handshake(id)) => self.plane.handle_ready(self.now(), id),
            Some(Token::Latency(id)) => self.latency_socket_ready(id),
            None => tracing::error!(token = event.token, "an event that nobody waits for"),
        }
    }

    /// How long the loop may wait.
    fn next_timeout(&self) -> Option<Duration> {
        let now = self.now();
        let runs = self.latency.values().filter_map(LatencyRun::due);
        let stop = match self.stopping {
            Stopping::Waiting(until) => Some(until),
            Stopping::No | Stopping::Asked => None,
        };
        let greetings = self.greetings.values().map(|greeting| greeting.until);
        let due = runs.chain(stop).chain(greetings).min();
        let due = due.map(|due| due.since(now));
        due.into_iter().chain(self.plane.wait(now)).min()
    }

    fn handle_timeouts(&mut self) {
        let now = self.now();
        self.plane.handle_timeouts(now);
        self.expire_latency(now);
        self.expire_greetings(now);
    }

    /// Begins the end, or notices that it is complete.
    fn go_on_stopping(&mut self) {
        if self.stopping != Stopping::Asked {
            return;
        }
        tracing::info!("stopping");
        self.stopping = Stopping::Waiting(self.now().after(STOP_WAIT));
        if let Some(rpc) = self.rpc.as_mut() {
            let _ = rpc.stop_accepting(&self.reactor);
        }
        let _ = self.reactor.remove(&self.attach.listener);
        for listener in self.services.drain(..) {
            let _ = self.reactor.remove(&listener);
        }
        if let Some(gateway) = self.gateway.take() {
            gateway.stop();
        }
        self.plane.keep_queue_pairs();
        let sessions: Vec<u32> = self.sessions.keys().copied().collect();
        for id in sessions {
            self.program_is_gone(id);
        }
        self.plane.stop(self.now());
    }

    fn is_over(&self) -> bool {
        match self.stopping {
            Stopping::No | Stopping::Asked => false,
            Stopping::Waiting(until) => {
                let answered = self.rpc.as_ref().is_none_or(RpcServer::is_idle);
                (self.plane.is_stopped() && answered) || self.now() >= until
            }
        }
    }

    /// Lends the server out, since its methods are the appliance's own.
    fn with_rpc(&mut self, work: impl FnOnce(&mut RpcServer, &mut Self)) {
        let Some(mut rpc) = self.rpc.take() else {
            return;
        };
        work(&mut rpc, self);
        for (ticket, answer) in std::mem::take(&mut self.answers) {
            rpc.complete(&self.reactor, ticket, answer);
        }
        self.rpc = Some(rpc);
    }

    /// Answers a call that was promised an answer.
    fn complete(&mut self, ticket: Ticket, answer: Result<Value, RpcError>) {
        // While the server itself is lent out, answers wait for its return.
        match self.rpc.as_mut() {
            Some(rpc) => rpc.complete(&self.reactor, ticket, answer),
            None => self.answers.push((ticket, answer)),
        }
    }

    /// Nanoseconds since the start.
    fn now(&self) -> Instant {
        Instant(u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// A number that was not used before; fits into 48 bits for longer than anybody waits.
    fn next_id(&mut self) -> u64 {
        self.ids += 1;
        self.ids
    }

    /// Counters of the gateway for `stats`.
    fn gateway_values(&self) -> Vec<(String, u64)> {
        let Some(gateway) = &self.gateway else {
            return Vec::new();
        };
        gateway
            .figures()
            .into_iter()
            .flat_map(|forward| {
                let name = forward.name.clone();
                forward
                    .values()
                    .map(move |(figure, value)| (format!("forward.{name}.{figure}"), value))
            })
            .collect()
    }
}

/// Where all workers begin busy, the start has said what that means.
fn told_at_start(poll: &[PollMode]) -> Told {
    if poll.iter().all(|mode| *mode == PollMode::Busy) {
        Told::Yes
    } else {
        Told::No
    }
}

/// What the plane has to know of the configuration.
fn plane_config(config: &Config) -> plane::Config {
    let (device, attach) = (&config.device, &config.attach);
    plane::Config {
        send_wr: device.send_wr,
        recv_wr: device.recv_wr,
        inline_bytes: device.inline_bytes,
        inline_probe: device.inline_probe,
        pages: match config.memory.hugepages {
            Hugepages::Auto => Pages::Auto,
            Hugepages::Required => Pages::Required,
            Hugepages::Off => Pages::Off,
        },
        patience: Patience::from(device),
        peek_wait: millis(config.handshake.peek_timeout_ms),
        app_rings: Rings {
            slots: APP_SLOTS,
            sndbuf_bytes: attach.sndbuf_bytes,
            rmbe_bytes: attach.rmb_bytes,
        },
    }
}

/// Makes a worker for each of the cores, with its way of waiting, looks whether the device can make
/// the queue pairs of links, and starts the workers.
fn start_workers<D>(
    config: &Config,
    plane: &mut Plane<D, Builtin, Tcp, Asker>,
    (cores, poll): (&[u32], &[PollMode]),
    news: &Wake,
) -> Result<Vec<WorkerThread>, Fatal>
where
    D: Device,
    D::Qp: 'static,
    D::Group: 'static,
{
    if cores.is_empty() {
        return Err(Fatal::config(
            "there is no worker: name a core in workers.cores",
        ));
    }
    let mut workers = Vec::new();
    for index in 0..cores.len() {
        let mode = poll.get(index).copied().unwrap_or(PollMode::Adaptive);
        let spec = worker_spec(config, plane.device(), mode)?;
        let inside = (Builtin::default(), Tsc::new());
        let worker = plane
            .add_worker(spec, inside, news)
            .map_err(|error| Fatal::os(error.to_string()))?;
        workers.push(worker);
    }
    plane.try_device().map_err(|error| {
        let name = &plane.device().identity().name;
        Fatal::os(format!("{name}: {error}"))
    })?;
    let threads = workers.into_iter().zip(cores).enumerate();
    let threads = threads.map(|(index, (worker, core))| {
        WorkerThread::start(index, *core as usize, worker)
            .map_err(|error| Fatal::os(format!("worker {index}: cannot start a thread: {error}")))
    });
    threads.collect()
}

/// The device's address as people write it.
fn gid<D: Device>(device: &D) -> std::net::Ipv6Addr {
    std::net::Ipv6Addr::from(device.identity().gid)
}

/// What the refusal of a listening address comes down to.
fn listen_status(error: &std::io::Error) -> ExitStatus {
    match error.kind() {
        std::io::ErrorKind::AddrInUse => ExitStatus::TempFail,
        // An address that this host does not have.
        std::io::ErrorKind::AddrNotAvailable => ExitStatus::Config,
        _ => ExitStatus::Os,
    }
}

impl From<GatewayError> for Fatal {
    fn from(error: GatewayError) -> Fatal {
        let status = match &error {
            GatewayError::InUse { .. } | GatewayError::PathInUse { .. } => ExitStatus::TempFail,
            GatewayError::Ends { .. } => ExitStatus::Config,
            GatewayError::Listen { error, .. } => listen_status(error),
            GatewayError::Path { error, .. } => socket_status(error),
            GatewayError::System { .. } | GatewayError::Wake(_) => ExitStatus::Os,
        };
        Fatal::new(status, error.to_string())
    }
}

/// Listens for the services of the configuration.
fn listen_all(config: &Config, marks: &SynMarks) -> Result<Vec<TcpListener>, Fatal> {
    let services = config.services.iter().map(|service| {
        let ServiceKind::Echo = service.kind;
        listen(service.listen, marks)
    });
    services.collect()
}

/// What the start of a service would find out about its address, without taking it.
///
/// # Errors
/// As the start.
pub(crate) fn look_at_service(address: std::net::SocketAddr) -> Result<(), Fatal> {
    may_listen(address).map_err(|error| listen_refused(address, &error))
}

fn listen_refused(address: std::net::SocketAddr, error: &std::io::Error) -> Fatal {
    let status = listen_status(error);
    if status != ExitStatus::TempFail {
        let text = format!("cannot listen on {address} (service.listen): {error}");
        return Fatal::new(status, text);
    }
    let by = port_owner(address).map_or(String::new(), |pid| format!(" by process {pid}"));
    Fatal::temporary(format!(
        "{address} is in use{by}; stop that program, or choose another address with service.listen"
    ))
}

/// Listens on a TCP address of the configuration.
fn listen(address: std::net::SocketAddr, marks: &SynMarks) -> Result<TcpListener, Fatal> {
    let bound = marks.listen(address);
    let listener = bound.map_err(|error| listen_refused(address, &error))?;
    if let Ok(chosen) = listener.local_addr() {
        tracing::info!("echo service: {chosen}");
    }
    Ok(listener)
}

fn worker_spec<D: Device>(
    config: &Config,
    device: &D,
    mode: PollMode,
) -> Result<WorkerSpec, Fatal> {
    let workers = &config.workers;
    let per_link = config.device.send_wr + config.device.recv_wr;
    let cq_entries = (u32::from(workers.links_max) * per_link).min(device.limits().cq_entries_max);
    let mut peer_id = [0; 8];
    fill_random(&mut peer_id[..2]);
    peer_id[2..].copy_from_slice(&device.identity().mac);
    Ok(WorkerSpec {
        limits: WorkerLimits {
            conns: workers.conns_max,
            links: workers.links_max,
            sessions: config.attach.sessions_max,
        },
        wait: WaitSpec {
            mode: worker_poll(mode),
            spin_ns: u64::from(workers.spin_us) * 1000,
            ..WaitSpec::default()
        },
        cq_entries,
        mailbox: (MAILBOX_SLOTS, MAILBOX_SLOTS),
        local: local(config, device, peer_id)?,
    })
}

/// What a worker brings to every handshake.
fn local<D: Device>(config: &Config, device: &D, peer_id: [u8; 8]) -> Result<Local, Fatal> {
    let identity = device.identity();
    let mut ueids = ArrayVec::new();
    for name in &config.appliance.ueids {
        let ueid = Ueid::new(name)
            .map_err(|error| Fatal::config(format!("appliance.ueids: {name:?}: {error}")))?;
        if ueids.try_push(ueid).is_err() {
            return Err(Fatal::config(
                "appliance.ueids: more than 8 names; remove some",
            ));
        }
    }
    let mtu = (1..=5)
        .filter_map(MtuCode::new)
        .rfind(|code| code.bytes() <= identity.mtu_bytes)
        .unwrap_or(MtuCode::B256);
    let credits = VendorOptions::VALID.union(VendorOptions::CREDITS);
    let (options, bare_credits) = match config.handshake.credits {
        CreditChoice::On => (credits, BareCredits::Off),
        CreditChoice::Bare => (credits, BareCredits::On),
        CreditChoice::Off => (VendorOptions::NONE, BareCredits::Off),
    };
    let max_conns = MaxConns::new(config.handshake.conns_per_group_max);
    let host = rustix::system::uname();
    Ok(Local {
        peer_id: PeerId(peer_id),
        gid: Gid(identity.gid),
        mac: Mac(identity.mac),
        mtu,
        host_name: pollux_wire::clc::host_name(&host.nodename().to_string_lossy()),
        ueids,
        max_conns: max_conns.unwrap_or(MaxConns::MAX),
        wait: millis(config.handshake.timeout_ms),
        gid_rule: GidRule::Any,
        options,
        bare_credits,
        v1: None,
    })
}

/// A duration of the configuration.
fn millis(ms: u32) -> Duration {
    Duration::from_millis(u64::from(ms))
}
