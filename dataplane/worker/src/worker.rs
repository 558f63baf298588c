//! The worker: its tables, its application, and the loop.

use crate::app::App;
use crate::budget::IDLE_PASSES_PER_CLOCK;
use crate::clock::Clock;
use crate::core::{Core, Mailbox, WorkerLimits};
use crate::mailbox::{PollMode, Report};
use crate::pass::Progress;
use crate::wait::{Rest, WaitSpec, Waiting};
use pollux_provider::PollGroup;
use pollux_ring::WakeSet;

/// How long the end of a worker may take, in passes: enough for resets to be posted and flushed,
/// bounded so that a peer that takes nothing more cannot hold it up.
const LAST_PASSES: u32 = 10_000;

/// A worker: moves into its thread and stays there.
pub struct Worker<G: PollGroup, A: App, C: Clock> {
    core: Core<G, A, C>,
    app: A,
    waiting: Waiting,
}

impl<G: PollGroup, A: App, C: Clock> std::fmt::Debug for Worker<G, A, C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker")
            .field("poll", &self.core.poll)
            .finish_non_exhaustive()
    }
}

impl<G: PollGroup, A: App, C: Clock> Worker<G, A, C> {
    /// A worker with empty tables of the given sizes. `wakes` has a descriptor for each of
    /// those who signal while the worker sleeps: control, `group` and every program. The worker
    /// never reads them, so whoever holds one cannot take another's signal or hold it up.
    pub fn new(
        group: G,
        app: A,
        clock: C,
        limits: WorkerLimits,
        mailbox: Mailbox<G, A>,
        (wait, wakes): (WaitSpec, WakeSet),
    ) -> Self {
        let mut core = Core::new(group, clock, limits, mailbox);
        core.poll = wait.mode;
        Worker {
            core,
            app,
            waiting: Waiting::new(wait, wakes),
        }
    }

    /// One pass; for tests and simulators that drive the worker themselves.
    #[inline]
    pub fn pass(&mut self) -> Progress {
        self.core.read_clock();
        self.core.pass(&mut self.app)
    }

    /// Puts the worker to sleep, as its loop does after fruitless polling, and returns at once; for
    /// simulators. A worker that sleeps must be woken by [`Worker::wake_up`] before its next pass.
    pub fn fall_asleep(&mut self) -> Rest {
        self.core.read_clock();
        Waiting::fall_asleep(&mut self.core, &mut self.app)
    }

    /// Whether somebody has signalled a worker that sleeps.
    pub fn is_called(&self) -> bool {
        self.waiting.is_called()
    }

    /// Ends what [`Worker::fall_asleep`] began.
    pub fn wake_up(&mut self) {
        Waiting::wake_up(&mut self.core);
    }

    /// The application inside.
    pub fn app(&self) -> &A {
        &self.app
    }

    /// Runs until control sends `Stop`. Everything the worker holds is reset and given back by
    /// reports before it returns; the poll group is dropped.
    pub fn run(mut self) {
        let mut idle = 0_u32;
        loop {
            match self.core.pass(&mut self.app) {
                Progress::Busy => {
                    idle = 0;
                    self.core.read_clock();
                    self.waiting.busy();
                }
                Progress::Idle => {
                    idle += 1;
                    if idle.is_multiple_of(IDLE_PASSES_PER_CLOCK) {
                        self.core.read_clock();
                    }
                    if self.core.poll == PollMode::Busy {
                        std::hint::spin_loop();
                    } else if self.waiting.idle(&mut self.core, &mut self.app) == Progress::Stopped
                    {
                        break;
                    }
                }
                Progress::Stopped => break,
            }
        }
        self.finish();
    }

    /// Resets what is open, gives the resets time to leave, then gives everything back by reports;
    /// the poll group is dropped. For those who drive the worker by [`Worker::pass`], once that says
    /// [`Progress::Stopped`].
    ///
    /// Waits while reports find the ring full and control still takes them: whoever plays control in
    /// the same thread must have taken the older ones.
    pub fn finish(mut self) {
        self.core.abort_all();
        let mut quiet = 0;
        for _ in 0..LAST_PASSES {
            self.core.read_clock();
            match self.core.pass(&mut self.app) {
                Progress::Idle => quiet += 1,
                Progress::Busy => quiet = 0,
                Progress::Stopped => {}
            }
            if quiet > 64 {
                break;
            }
        }
        self.core.release_all();
        self.core.report(Report::Stopped);
        self.core.flush_reports();
        while !self.core.late_reports.is_empty() && self.core.reports_are_read() {
            self.core.flush_reports();
            std::thread::yield_now();
        }
    }
}
