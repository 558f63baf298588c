//! Workers as a plane sees them: two rings, a descriptor that wakes them, and the free places of
//! their tables.

use super::places::Places;
use pollux_proto::clc::Local;
use pollux_provider::{Device, GroupId, PollGroup, PollGroupSpec};
use pollux_ring::{Wake, WakeError, WakeSet, spsc};
use pollux_worker::{App, Clock, Command, PollMode, Report, WaitSpec, Worker, WorkerLimits};
use std::collections::VecDeque;

/// Orders and news that the rings of a mailbox hold, where nothing speaks for another number.
pub const MAILBOX_SLOTS: usize = 1024;

/// An order to a worker of device `D` with application `A`.
pub(crate) type Order<D, A> = Command<<D as Device>::Qp, <A as App>::Order>;
/// News of a worker of device `D` with application `A`.
pub(crate) type News<D, A> = Report<<D as Device>::Qp, <A as App>::Report>;
/// A worker of device `D`, to be run by the owner.
type WorkerOf<D, A, C> = Worker<<D as Device>::Group, A, C>;

/// Why a worker could not be made.
#[derive(Debug, thiserror::Error)]
pub enum AddWorkerError {
    /// The device refused a poll group.
    #[error("worker {worker}: {error}")]
    Group {
        /// The worker's number.
        worker: usize,
        /// What the device said.
        #[source]
        error: pollux_provider::CreateGroupError,
    },
    /// The system refused a descriptor.
    #[error("worker {worker}: cannot prepare its wake descriptors: {error}")]
    Wake {
        /// The worker's number.
        worker: usize,
        /// The system's answer.
        #[source]
        error: std::io::Error,
    },
}

/// What a worker is made with.
#[derive(Clone, Debug)]
pub struct WorkerSpec {
    /// Sizes of its tables; as many link groups as links are allowed.
    pub limits: WorkerLimits,
    /// How it waits, if its owner lets it wait.
    pub wait: WaitSpec,
    /// Entries of its completion queue.
    pub cq_entries: u32,
    /// Orders, and news, that its mailbox holds ([`MAILBOX_SLOTS`]); more are kept in order outside.
    pub mailbox: (usize, usize),
    /// What it brings to every handshake. Its peer id must differ from that of every other worker
    /// that the same peers can meet.
    pub local: Local,
}

/// A worker's mailbox and places.
pub(crate) struct WorkerPort<D: Device, A: App> {
    index: usize,
    pub(crate) limits: WorkerLimits,
    pub(crate) cq_entries: u32,
    pub(crate) group: GroupId,
    pub(crate) poll: PollMode,
    pub(crate) conns: Places,
    pub(crate) links: Places,
    pub(crate) sessions: Places,
    /// Control's own descriptor; nobody else holds it.
    wake: Wake,
    /// What ends the worker's sleep: a descriptor for each of those who signal.
    wakes: WakeSet,
    /// `None` once the worker has said its last word.
    commands: Option<spsc::Producer<Order<D, A>>>,
    backlog: VecDeque<Order<D, A>>,
    reports: spsc::Consumer<News<D, A>>,
}

impl<D: Device, A: App> WorkerPort<D, A> {
    /// Makes a worker, which is not run yet, and its port. `news` is signalled when it reports
    /// something.
    pub(crate) fn new<C: Clock>(
        device: &D,
        (index, spec): (usize, &WorkerSpec),
        (app, clock): (A, C),
        news: &Wake,
    ) -> Result<(Self, WorkerOf<D, A, C>), AddWorkerError> {
        let waking = |error: WakeError| AddWorkerError::Wake {
            worker: index,
            error: error.into(),
        };
        let wakes = WakeSet::new().map_err(waking)?;
        let wake = member_of(&wakes).map_err(waking)?;
        // Peers hold this one, through the fabric.
        let group_wake = member_of(&wakes).map_err(waking)?;
        let group_spec = PollGroupSpec {
            cq_entries: spec.cq_entries,
            wake: group_wake,
        };
        let group =
            device
                .create_poll_group(&group_spec)
                .map_err(|error| AddWorkerError::Group {
                    worker: index,
                    error,
                })?;
        let id = group.id();
        let (commands, worker_commands) = spsc::channel(spec.mailbox.0);
        let (worker_reports, reports) = spsc::channel(spec.mailbox.1);
        let worker = Worker::new(
            group,
            app,
            clock,
            spec.limits,
            (
                worker_commands,
                worker_reports,
                news.try_clone().map_err(waking)?,
            ),
            (spec.wait, wakes.try_clone().map_err(waking)?),
        );
        let port = WorkerPort {
            index,
            limits: spec.limits,
            cq_entries: spec.cq_entries,
            group: id,
            poll: spec.wait.mode,
            conns: Places::new(spec.limits.conns),
            links: Places::new(spec.limits.links),
            sessions: Places::new(spec.limits.sessions),
            wake,
            wakes,
            commands: Some(commands),
            backlog: VecDeque::new(),
            reports,
        };
        Ok((port, worker))
    }

    /// A new descriptor that ends the worker's sleep, for one program.
    pub(crate) fn program_wake(&self) -> Result<Wake, WakeError> {
        member_of(&self.wakes)
    }

    /// Forgets a descriptor made by [`WorkerPort::program_wake`].
    pub(crate) fn forget_wake(&self, wake: &Wake) {
        if let Err(error) = self.wakes.remove(wake) {
            tracing::error!(worker = self.index, %error, "a program's wake descriptor stays");
        }
    }

    /// Sends an order; orders arrive in the order of the calls. A worker that has stopped takes
    /// none any more: they are dropped, with what they hold.
    pub(crate) fn send(&mut self, order: Order<D, A>) {
        self.backlog.push_back(order);
        self.flush();
    }

    /// Sends orders that found the ring full.
    pub(crate) fn flush(&mut self) {
        let Some(commands) = self.commands.as_mut() else {
            return self.backlog.clear();
        };
        while let Some(order) = self.backlog.pop_front() {
            if let Err(full) = commands.push(order) {
                self.backlog.push_front(full.0);
                break;
            }
        }
        if let Err(error) = self.wake.signal() {
            tracing::error!(worker = self.index, %error, "cannot wake the worker");
        }
    }

    /// The worker has stopped: what it did not take is dropped.
    pub(crate) fn close(&mut self) {
        self.commands = None;
        self.backlog.clear();
    }

    /// Whether the worker has said its last word.
    pub(crate) fn is_closed(&self) -> bool {
        self.commands.is_none()
    }

    /// Whether orders still wait for room in the ring.
    pub(crate) fn has_backlog(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// Orders that wait for room in the ring.
    pub(crate) fn backlog(&self) -> usize {
        self.backlog.len()
    }

    /// The oldest news not yet taken.
    pub(crate) fn next_report(&mut self) -> Option<News<D, A>> {
        self.reports.pop()
    }
}

/// A new descriptor in a set. Which one was signalled does not matter.
fn member_of(wakes: &WakeSet) -> Result<Wake, WakeError> {
    let wake = Wake::new()?;
    wakes.add(&wake, 0)?;
    Ok(wake)
}
