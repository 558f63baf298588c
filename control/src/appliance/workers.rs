//! Workers as control sees them: a thread, two rings, and the free places of the tables.

use super::places::Places;
use pollux_provider::{Device, GroupId, PollGroup, PollGroupSpec};
use pollux_ring::{Wake, WakeError, WakeSet, spsc};
use pollux_worker::{
    Builtin, Command, PingRun, PollMode, Report, Tsc, WaitSpec, Worker, WorkerLimits,
};
use std::collections::VecDeque;
use std::thread::JoinHandle;

/// Commands and reports a ring holds; more are kept in order outside it.
const MAILBOX_SLOTS: usize = 1024;

/// An order to a worker of device `D`.
pub(crate) type Order<D> = Command<<D as Device>::Qp, Box<PingRun>>;
/// News of a worker of device `D`.
pub(crate) type News<D> = Report<<D as Device>::Qp, Box<PingRun>>;

/// Why a worker could not be started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WorkerStartError {
    /// The device refused a poll group.
    #[error("worker {worker}: {error}")]
    Group {
        /// The worker's number.
        worker: usize,
        /// What the device said.
        #[source]
        error: pollux_provider::CreateGroupError,
    },
    /// The system refused a descriptor or a thread.
    #[error("worker {worker}: cannot {what}: {error}")]
    System {
        /// The worker's number.
        worker: usize,
        /// What was refused.
        what: &'static str,
        /// The system's answer.
        #[source]
        error: std::io::Error,
    },
}

/// What a worker is started with.
#[derive(Clone, Debug)]
pub(crate) struct WorkerPlan {
    pub(crate) index: usize,
    pub(crate) core: usize,
    pub(crate) limits: WorkerLimits,
    pub(crate) wait: WaitSpec,
    pub(crate) cq_entries: u32,
    pub(crate) peer_id: [u8; 8],
}

/// A running worker.
pub(crate) struct WorkerPort<D: Device> {
    pub(crate) plan: WorkerPlan,
    pub(crate) group: GroupId,
    pub(crate) poll: PollMode,
    pub(crate) conns: Places,
    pub(crate) links: Places,
    pub(crate) sessions: Places,
    /// Control's own descriptor; nobody else holds it.
    wake: Wake,
    /// What ends the worker's sleep: a descriptor for each of those who signal.
    wakes: WakeSet,
    commands: spsc::Producer<Order<D>>,
    backlog: VecDeque<Order<D>>,
    reports: spsc::Consumer<News<D>>,
    thread: Option<JoinHandle<()>>,
}

impl<D> WorkerPort<D>
where
    D: Device,
    D::Qp: 'static,
    D::Group: 'static,
{
    /// Starts a worker on its core. `news` is signalled when it reports something.
    pub(crate) fn start(
        device: &D,
        plan: WorkerPlan,
        news: &Wake,
    ) -> Result<Self, WorkerStartError> {
        let worker = plan.index;
        let system = |what| {
            move |error: std::io::Error| WorkerStartError::System {
                worker,
                what,
                error,
            }
        };
        let waking = |error: WakeError| system("prepare its wake descriptors")(error.into());
        let wakes = WakeSet::new().map_err(waking)?;
        let wake = member_of(&wakes).map_err(waking)?;
        // Peers hold this one, through the fabric.
        let group_wake = member_of(&wakes).map_err(waking)?;
        let spec = PollGroupSpec {
            cq_entries: plan.cq_entries,
            wake: group_wake,
        };
        let group = device
            .create_poll_group(&spec)
            .map_err(|error| WorkerStartError::Group { worker, error })?;
        let id = group.id();
        let (commands, worker_commands) = spsc::channel(MAILBOX_SLOTS);
        let (worker_reports, reports) = spsc::channel(MAILBOX_SLOTS);
        let running = Worker::new(
            group,
            Builtin::default(),
            Tsc::new(),
            plan.limits,
            (
                worker_commands,
                worker_reports,
                news.try_clone().map_err(waking)?,
            ),
            (plan.wait, wakes.try_clone().map_err(waking)?),
        );
        let core = plan.core;
        let thread = std::thread::Builder::new()
            .name(format!("pollux-w{worker}"))
            .spawn(move || {
                // The core was checked against the allowed set before; a refusal here means that
                // the set has shrunk since, and the worker then runs wherever it may.
                if !core_affinity::set_for_current(core_affinity::CoreId { id: core }) {
                    tracing::warn!(worker, core, "cannot pin the worker to its core any more");
                }
                running.run();
            })
            .map_err(system("start a thread"))?;
        Ok(WorkerPort {
            group: id,
            poll: plan.wait.mode,
            conns: Places::new(plan.limits.conns),
            links: Places::new(plan.limits.links),
            sessions: Places::new(plan.limits.sessions),
            plan,
            wake,
            wakes,
            commands,
            backlog: VecDeque::new(),
            reports,
            thread: Some(thread),
        })
    }

    /// A new descriptor that ends the worker's sleep, for one program.
    pub(crate) fn program_wake(&self) -> Result<Wake, WakeError> {
        member_of(&self.wakes)
    }

    /// Forgets a descriptor made by [`WorkerPort::program_wake`].
    pub(crate) fn forget_wake(&self, wake: &Wake) {
        if let Err(error) = self.wakes.remove(wake) {
            tracing::error!(worker = self.plan.index, %error, "a program's wake descriptor stays");
        }
    }

    /// Sends an order; orders arrive in the order of the calls.
    pub(crate) fn send(&mut self, order: Order<D>) {
        self.backlog.push_back(order);
        self.flush();
    }

    /// Sends orders that found the ring full.
    pub(crate) fn flush(&mut self) {
        while let Some(order) = self.backlog.pop_front() {
            if let Err(full) = self.commands.push(order) {
                self.backlog.push_front(full.0);
                break;
            }
        }
        if let Err(error) = self.wake.signal() {
            tracing::error!(worker = self.plan.index, %error, "cannot wake the worker");
        }
    }

    /// Whether orders still wait for room in the ring.
    pub(crate) fn has_backlog(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// The oldest news not yet taken.
    pub(crate) fn next_report(&mut self) -> Option<News<D>> {
        self.reports.pop()
    }

    /// Waits for the thread, which ends after its last report.
    pub(crate) fn join(&mut self) {
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!(
                worker = self.plan.index,
                "the worker's thread ended with a panic"
            );
        }
    }
}

/// A new descriptor in a set. Which one was signalled does not matter.
fn member_of(wakes: &WakeSet) -> Result<Wake, WakeError> {
    let wake = Wake::new()?;
    wakes.add(&wake, 0)?;
    Ok(wake)
}
