//! A program's session with the appliance.

use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pollux_ring::{Access, Segment, Wake, WakeError, WakeReceiver};
use rustix::event::{PollFd, PollFlags, Timespec, epoll};
use rustix::io::Errno;

use super::error::{OpenError, UpgradeError};
use super::inbound::{Answer, Asker, Inbound, Interest, Readiness, StreamEvent};
use super::listener::Listener;
use super::outbound::{Outbound, Target};
use super::slot::SlotCell;
use super::stream::Stream;
use super::wait::{Spin, Waited};
use crate::layout::{Layout, VERSION};
use crate::message::{Reply, Request, Role};
use crate::packet::{self, Packet, ReceiveError};
use crate::shared::{ProgramSide, SlotState, SubmissionOp};

/// Longest session segment that is mapped, in bytes.
const SEGMENT_BYTES_MAX: usize = 1 << 40;
/// How long a call that must not wait stands by while the worker makes room for submissions.
pub(super) const PUSH_PATIENCE: Duration = Duration::from_millis(10);
/// How long the end of a stream stands by for room in the submission ring. No error can tell of it
/// there, and a worker that runs makes room within microseconds.
pub(super) const CLOSE_PATIENCE: Duration = Duration::from_secs(1);
/// Fruitless polls of an event loop after which the core is offered to others: a few microseconds.
const POLLS_PER_YIELD: u32 = 64;
/// Fruitless calls between two looks at whether the appliance still lives.
const CALLS_PER_LOOK: u32 = 256;

/// What a program wants of its session.
#[derive(Debug, Clone)]
pub struct SessionOptions {
    /// The program's name, for the operator. At most 256 bytes are sent.
    pub name: String,
    /// Connections at a time; 0 is what the appliance allows, and more is refused.
    pub slots: u16,
    /// Bytes of each sndbuf, a power of two from 4096; 0 is the appliance's default.
    pub sndbuf_bytes: u32,
    /// Bytes of each RMBE, a power of two from 4096; 0 is the appliance's default.
    pub rmbe_bytes: u32,
    /// How long a thread polls before it sleeps. Waking a sleeper costs about as much.
    pub spin: Duration,
    /// How long the appliance may take to answer Hello.
    pub open_timeout: Duration,
    /// How long an upgrade may take.
    pub upgrade_timeout: Duration,
}

impl Default for SessionOptions {
    fn default() -> SessionOptions {
        SessionOptions {
            name: String::new(),
            slots: 0,
            sndbuf_bytes: 0,
            rmbe_bytes: 0,
            spin: Duration::from_micros(50),
            open_timeout: Duration::from_secs(5),
            upgrade_timeout: Duration::from_secs(15),
        }
    }
}

/// Number of an upgrade begun by [`Session::upgrade_start`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestId(pub(super) u32);

/// Whether an event loop may sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Armed {
    /// It may: [`Session::event_fd`] becomes readable when something happens.
    Idle,
    /// Something has happened: call [`Session::poll_events`] again, and [`Listener::accept`] of
    /// listeners that must not wait. A connection that a listener has got is told of once.
    Pending,
}

/// A session with the appliance. Clones are the same session; it lives as long as any clone or
/// stream of it.
#[derive(Debug, Clone)]
pub struct Session {
    shared: Arc<Shared>,
}

/// What all handles of a session share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) segment: Segment,
    pub(super) layout: Layout,
    pub(super) cells: Box<[SlotCell]>,
    pub(super) inbound: Mutex<Inbound>,
    outbound: Mutex<Outbound>,
    pub(super) control: OwnedFd,
    pub(super) program_wake: WakeReceiver,
    worker_wake: Wake,
    /// Tells the event loop of what another thread has taken out of the ring.
    pub(super) loop_nudge: Wake,
    /// An epoll set of the three descriptors that may concern the event loop.
    event_set: OwnedFd,
    pub(super) spin: Duration,
    cores: Cores,
    upgrade_timeout: Duration,
    gone: AtomicBool,
    next_request: AtomicU32,
    fruitless: AtomicU32,
    number: u32,
}

/// Whether the worker might run while a thread of the program polls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cores {
    One,
    Several,
}

impl Session {
    /// Joins the appliance whose attach socket is at `path`.
    ///
    /// # Errors
    ///
    /// [`OpenError`] says what to do about it.
    pub fn open(path: impl AsRef<Path>, options: &SessionOptions) -> Result<Session, OpenError> {
        let path = path.as_ref();
        let control = packet::connect(path).map_err(|error| connect_error(path, error))?;
        Session::open_on(control, path, options)
    }

    /// Joins the appliance at the other end of a connected SOCK_SEQPACKET socket.
    ///
    /// # Errors
    ///
    /// As [`Session::open`].
    pub fn open_connected(
        control: OwnedFd,
        options: &SessionOptions,
    ) -> Result<Session, OpenError> {
        Session::open_on(control, Path::new("(connected socket)"), options)
    }

    fn open_on(
        control: OwnedFd,
        path: &Path,
        options: &SessionOptions,
    ) -> Result<Session, OpenError> {
        let hello = Request::Hello {
            version: VERSION,
            slots: options.slots,
            sndbuf_bytes: options.sndbuf_bytes,
            rmbe_bytes: options.rmbe_bytes,
            name: options.name.clone(),
        };
        packet::send(&control, &hello.emit(), &[]).map_err(|errno| OpenError::Socket {
            path: path.to_owned(),
            error: errno.into(),
        })?;
        let packet = first_answer(&control, path, options.open_timeout)?;
        let number = match Reply::parse(&packet.bytes, packet.fds.len())? {
            Reply::Welcome {
                version: VERSION,
                session,
            } => session,
            Reply::Welcome { version, .. } => {
                return Err(OpenError::Version {
                    theirs: version,
                    ours: VERSION,
                });
            }
            Reply::Refused { text } => return Err(OpenError::Refused { reason: text }),
            Reply::Accelerated { .. }
            | Reply::Fallback { .. }
            | Reply::Failed { .. }
            | Reply::Released { .. } => return Err(OpenError::Unexpected),
        };
        let mut fds = packet.fds.into_iter();
        let (Some(segment), Some(worker_wake), Some(program_wake)) =
            (fds.next(), fds.next(), fds.next())
        else {
            return Err(OpenError::Unexpected);
        };
        let segment = Segment::from_fd(segment, Access::ReadWrite, SEGMENT_BYTES_MAX)?;
        let ProgramSide {
            submitter,
            events,
            layout,
        } = ProgramSide::open(&segment)?;
        let slots = layout.shape().slots();
        let program_wake = WakeReceiver::from_fd(program_wake);
        let loop_nudge = Wake::new()?;
        let event_set = event_set([program_wake.fd(), control.as_fd(), loop_nudge.fd()])?;
        let shared = Shared {
            cells: (0..slots).map(|_| SlotCell::default()).collect(),
            inbound: Mutex::new(Inbound::new(events, slots)),
            outbound: Mutex::new(Outbound::new(submitter, slots)),
            worker_wake: Wake::from_fd(worker_wake),
            spin: options.spin,
            cores: cores(),
            upgrade_timeout: options.upgrade_timeout,
            gone: AtomicBool::new(false),
            next_request: AtomicU32::new(0),
            fruitless: AtomicU32::new(0),
            segment,
            layout,
            control,
            program_wake,
            loop_nudge,
            event_set,
            number,
        };
        Ok(Session {
            shared: Arc::new(shared),
        })
    }

    /// The session's number, as the operator sees it.
    pub fn number(&self) -> u32 {
        self.shared.number
    }

    /// The layout of the session's memory: how many slots, how large the buffers.
    pub fn layout(&self) -> &Layout {
        &self.shared.layout
    }

    /// Whether the appliance is known to be gone, or the session's memory was found damaged. Nothing but a new session helps then.
    pub fn is_gone(&self) -> bool {
        self.shared.is_gone()
    }

    /// Connects by TCP and upgrades the connection.
    ///
    /// # Errors
    ///
    /// Those of connect(2), and [`UpgradeError`] as the inner error.
    pub fn connect(&self, address: impl ToSocketAddrs) -> io::Result<Stream> {
        Ok(self.upgrade(TcpStream::connect(address)?, Role::Client)?)
    }

    /// Lets the appliance speak SMC on a fresh TCP connection, of which nothing was read or
    /// written. Blocks until the appliance has decided.
    ///
    /// # Errors
    ///
    /// [`UpgradeError`]; the connection is lost then. Staying on TCP is no error.
    pub fn upgrade(&self, tcp: TcpStream, role: Role) -> Result<Stream, UpgradeError> {
        let request = self.shared.start_upgrade(&tcp, role, |_| Asker::Thread)?;
        let deadline = Instant::now().checked_add(self.shared.upgrade_timeout);
        loop {
            let waited = self
                .shared
                .wait(Interest::Answer(request), Spin::No, None, deadline);
            let mut inbound = self.shared.inbound();
            if let Some(answer) = inbound.take_answer(request) {
                drop(inbound);
                return Stream::from_answer(&self.shared, tcp, answer);
            }
            let error = match waited {
                Ok(Waited::Ready) if !self.shared.is_gone() => continue,
                Ok(Waited::Ready) => UpgradeError::Gone,
                Ok(Waited::TimedOut) => UpgradeError::TimedOut {
                    after: self.shared.upgrade_timeout,
                },
                Err(error) => {
                    UpgradeError::System(Errno::from_io_error(&error).unwrap_or(Errno::IO))
                }
            };
            inbound.forget(request);
            return Err(error);
        }
    }

    /// As [`Session::upgrade`], but the answer comes as [`StreamEvent::Upgraded`]. The event loop
    /// decides how long it waits.
    ///
    /// # Errors
    ///
    /// [`UpgradeError`] if the request could not be made.
    pub fn upgrade_start(&self, tcp: TcpStream, role: Role) -> Result<RequestId, UpgradeError> {
        let kept = tcp.try_clone().map_err(|error| system_error(&error))?;
        self.shared
            .start_upgrade(&tcp, role, |_| Asker::Loop(kept))
            .map(RequestId)
    }

    /// Listens for TCP connections, to be upgraded as they come.
    ///
    /// # Errors
    ///
    /// Those of bind(2) and listen(2).
    pub fn listen(&self, address: impl ToSocketAddrs) -> io::Result<Listener> {
        Listener::bind(Arc::clone(&self.shared), address)
    }

    /// A descriptor that is readable when the event loop has something to do, provided that
    /// [`Session::arm`] said [`Armed::Idle`]. Only one thread may be the event loop.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.shared.event_set.as_fd()
    }

    /// Announces that the event loop is going to sleep on [`Session::event_fd`].
    pub fn arm(&self) -> Armed {
        self.shared.push_held_now();
        if self.shared.outbound().has_held() {
            // The worker is behind with our submissions and does not tell when it has caught up.
            rustix::thread::sched_yield();
            return Armed::Pending;
        }
        if self.shared.inbound().arm_loop(&self.shared) {
            Armed::Idle
        } else {
            Armed::Pending
        }
    }

    /// Adds everything that has happened since the last call to `events`, and ends what
    /// [`Session::arm`] began. Never blocks.
    pub fn poll_events(&self, events: &mut Vec<StreamEvent>) {
        let shared = &self.shared;
        shared.push_held_now();
        let mut inbound = shared.inbound();
        if inbound.disarm_loop() {
            let _ = shared.program_wake.drain();
            let _ = shared.loop_nudge.drain();
            inbound.pump_control(shared);
        } else if shared.is_time_to_look() {
            inbound.pump_control(shared);
        }
        inbound.pump(shared);
        inbound.take_loop_events(shared, events);
    }

    /// Waits until something happens or the time has passed, and adds it to `events`: polls for
    /// [`SessionOptions::spin`], then sleeps.
    ///
    /// # Errors
    ///
    /// None in practice.
    pub fn wait(&self, events: &mut Vec<StreamEvent>, timeout: Option<Duration>) -> io::Result<()> {
        let start = Instant::now();
        let deadline = timeout.and_then(|timeout| start.checked_add(timeout));
        let before = events.len();
        let mut polls = 0;
        loop {
            self.poll_events(events);
            let now = Instant::now();
            if events.len() > before || deadline.is_some_and(|deadline| now >= deadline) {
                return Ok(());
            }
            if now - start < self.shared.spin {
                polls += 1;
                self.shared.relax(polls);
                continue;
            }
            if self.arm() == Armed::Pending {
                continue;
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(now));
            let timeout = left.and_then(|left| Timespec::try_from(left).ok());
            let mut fds = [PollFd::new(&self.shared.event_set, PollFlags::IN)];
            match rustix::event::poll(&mut fds, timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

impl Shared {
    pub(super) fn inbound(&self) -> MutexGuard<'_, Inbound> {
        self.inbound.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn outbound(&self) -> MutexGuard<'_, Outbound> {
        self.outbound.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// Under the inbound lock.
    pub(super) fn set_gone(&self) {
        self.gone.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_single_core(&self) -> bool {
        self.cores == Cores::One
    }

    /// Between two fruitless polls, of which this is the `count`th.
    fn relax(&self, count: u32) {
        if self.is_single_core() || count.is_multiple_of(POLLS_PER_YIELD) {
            rustix::thread::sched_yield();
        } else {
            std::hint::spin_loop();
        }
    }

    /// Whether a call that found nothing is due to look at the control socket.
    pub(super) fn is_time_to_look(&self) -> bool {
        self.fruitless
            .fetch_add(1, Ordering::Relaxed)
            .is_multiple_of(CALLS_PER_LOOK)
    }

    /// Whether a reader or writer of a slot has something to do, as far as can be told without a
    /// lock.
    #[inline]
    pub(super) fn is_slot_ready(&self, interest: Interest) -> bool {
        let over = SlotState::RESET.bits() | SlotState::CLOSED.bits();
        match interest {
            Interest::Readable(slot) => self.cells.get(usize::from(slot)).is_none_or(|cell| {
                let ended = over | SlotState::END_OF_STREAM.bits();
                cell.readable(self.layout.shape().rmbe_bytes()) > 0
                    || cell.state().bits() & ended != 0
                    || cell.is_read_ended()
            }),
            Interest::Writable(slot) => self.cells.get(usize::from(slot)).is_none_or(|cell| {
                cell.writable(self.layout.shape().sndbuf_bytes()) > 0
                    || cell.state().bits() & over != 0
                    || cell.is_write_ended()
            }),
            Interest::Answer(_) | Interest::Listener(_) => false,
        }
    }

    pub(super) fn readiness(&self, slot: u16) -> Readiness {
        let Some(cell) = self.cells.get(usize::from(slot)) else {
            return Readiness {
                readable: 0,
                writable: 0,
                state: SlotState::CLOSED,
            };
        };
        let mut state = cell.state();
        if self.is_gone() {
            state |= SlotState::RESET;
        }
        let shape = self.layout.shape();
        let readable = cell.readable(shape.rmbe_bytes());
        let writable = cell.writable(shape.sndbuf_bytes());
        Readiness {
            readable: readable as usize,
            writable: writable as usize,
            state,
        }
    }

    pub(super) fn target<'a>(&'a self, slot: u16, cell: &'a SlotCell) -> Target<'a> {
        Target {
            segment: &self.segment,
            layout: &self.layout,
            cell,
            slot,
        }
    }

    /// Sends an upgrade.
    pub(super) fn start_upgrade(
        &self,
        tcp: &TcpStream,
        role: Role,
        asker: impl FnOnce(u32) -> Asker,
    ) -> Result<u32, UpgradeError> {
        let request = self.next_request.fetch_add(1, Ordering::Relaxed);
        // Asked before sent: the answer may be read by another thread at once.
        self.inbound().ask(request, asker(request));
        let message = Request::Upgrade { request, role }.emit();
        let patience = Instant::now().checked_add(self.upgrade_timeout);
        loop {
            if self.is_gone() {
                self.inbound().forget(request);
                return Err(UpgradeError::Gone);
            }
            let error = match packet::send(&self.control, &message, &[tcp.as_fd()]) {
                Ok(()) => return Ok(request),
                Err(Errno::AGAIN) if patience.is_none_or(|end| Instant::now() < end) => {
                    // The appliance reads our messages one after the other.
                    self.wait_for_control_room();
                    continue;
                }
                Err(Errno::PIPE | Errno::CONNRESET) => {
                    // Finds the end of the socket, so that whoever waits for news learns of it too.
                    self.inbound().pump_control(self);
                    UpgradeError::Gone
                }
                Err(errno) => UpgradeError::System(errno),
            };
            self.inbound().forget(request);
            return Err(error);
        }
    }

    fn wait_for_control_room(&self) {
        let mut fds = [PollFd::new(&self.control, PollFlags::OUT)];
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: 100_000_000,
        };
        // Whatever it says, the caller tries again.
        let _ = rustix::event::poll(&mut fds, Some(&timeout));
    }

    /// Ends the connection of an answer that nobody wants any more.
    pub(super) fn abandon(&self, answer: &Answer) {
        match answer {
            Answer::Accelerated { slot } => self.release(*slot, SubmissionOp::Abort),
            Answer::Fallback { .. } | Answer::Failed(_) => {}
        }
    }

    /// Closes or aborts a slot's connection and gives the slot back. The caller does not hold the
    /// outbound lock.
    pub(super) fn release(&self, slot: u16, op: SubmissionOp) {
        let Some(cell) = self.cells.get(usize::from(slot)) else {
            return;
        };
        let mut outbound = self.outbound();
        outbound.release(slot, cell, op, self.control.as_fd());
        self.wake_worker(outbound);
    }

    /// Wakes the worker if it sleeps, after something was submitted.
    #[inline]
    pub(super) fn wake_worker(&self, outbound: MutexGuard<'_, Outbound>) {
        let needed = outbound.must_wake();
        drop(outbound);
        if needed.is_needed() {
            // An eventfd that is full is a signal that is still there.
            let _ = self.worker_wake.signal();
        }
    }

    /// Submits what found no room, as far as there is room now.
    pub(super) fn push_held_now(&self) {
        let outbound = self.outbound();
        if outbound.has_held() {
            self.flush(outbound);
        }
    }

    /// Submits what found no room, and stands by for the worker to make some: nobody tells when it
    /// has, but it is not far, as a worker never sleeps while the ring has something in it.
    pub(super) fn push_held(&self, patience: Patience) {
        let mut end = None;
        while !self.is_gone() {
            let outbound = self.outbound();
            if !outbound.has_held() {
                return;
            }
            self.flush(outbound);
            let now = Instant::now();
            let end = end.get_or_insert_with(|| patience.end(now));
            if end.is_some_and(|end| now >= end) {
                return;
            }
            if self.is_time_to_look()
                && let Ok(mut inbound) = self.inbound.try_lock()
            {
                inbound.pump_control(self);
            }
            rustix::thread::sched_yield();
        }
    }

    fn flush(&self, mut outbound: MutexGuard<'_, Outbound>) {
        outbound.flush(&self.cells, self.control.as_fd());
        let is_damaged = outbound.is_damaged();
        self.wake_worker(outbound);
        if is_damaged {
            self.inbound().gone(self);
        }
    }
}

/// How long a call stands by for room in the submission ring. What found none by then is submitted
/// by a later call of the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Patience {
    /// As long as it takes, or until the appliance is gone.
    UntilDone,
    /// Until then.
    Until(Instant),
    /// So long.
    For(Duration),
}

impl Patience {
    fn end(self, now: Instant) -> Option<Instant> {
        match self {
            Patience::UntilDone => None,
            Patience::Until(end) => Some(end),
            Patience::For(time) => now.checked_add(time),
        }
    }
}

fn connect_error(path: &Path, error: io::Error) -> OpenError {
    let path = path.to_owned();
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            OpenError::NoAppliance { path }
        }
        io::ErrorKind::PermissionDenied => OpenError::Denied { path },
        _ => OpenError::Socket { path, error },
    }
}

fn system_error(error: &io::Error) -> UpgradeError {
    UpgradeError::System(Errno::from_io_error(error).unwrap_or(Errno::IO))
}

fn first_answer(control: &OwnedFd, path: &Path, after: Duration) -> Result<Packet, OpenError> {
    let socket = |error| OpenError::Socket {
        path: PathBuf::from(path),
        error,
    };
    let deadline = Instant::now().checked_add(after);
    loop {
        match packet::receive(control) {
            Ok(packet) => return Ok(packet),
            Err(ReceiveError::WouldBlock) => {}
            Err(
                error @ (ReceiveError::Closed
                | ReceiveError::TooLarge
                | ReceiveError::NoDescriptor { .. }),
            ) => {
                return Err(socket(io::Error::other(error)));
            }
            Err(ReceiveError::System(errno)) => return Err(socket(errno.into())),
        }
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            return Err(OpenError::NoAnswer {
                path: PathBuf::from(path),
                after,
            });
        }
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        let mut fds = [PollFd::new(control, PollFlags::IN)];
        match rustix::event::poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(socket(errno.into())),
        }
    }
}

fn event_set(members: [BorrowedFd<'_>; 3]) -> Result<OwnedFd, WakeError> {
    let failed = |errno| WakeError {
        step: "create",
        errno,
    };
    let set = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
    for member in members {
        epoll::add(
            &set,
            member,
            epoll::EventData::new_u64(0),
            epoll::EventFlags::IN,
        )
        .map_err(failed)?;
    }
    Ok(set)
}

/// Where the kernel lists the cores in use, such as "0-3,6".
const ONLINE_CORES: &str = "/sys/devices/system/cpu/online";

/// A thread pinned to one core of several says nothing about the worker's core.
fn cores() -> Cores {
    match std::fs::read_to_string(ONLINE_CORES) {
        Ok(list) if !list.contains(['-', ',']) => Cores::One,
        Ok(_) | Err(_) => Cores::Several,
    }
}
