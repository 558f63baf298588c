//! How a worker waits: spin, yield, sleep.
//!
//! A cross-core wake-up costs the waker 13 to 23 microseconds and is seen 26 to 63 microseconds
//! later on the machines this was measured on, so a worker that may sleep spins first for about
//! as long as a wake-up would cost. It yields its core every few microseconds meanwhile, which
//! lets a program or a second worker on the same core go on.

use crate::app::App;
use crate::clock::Clock;
use crate::core::Core;
use crate::mailbox::PollMode;
use crate::pass::Progress;
use pollux_proto::planted::{Bug, is_planted};
use pollux_provider::{Armed, PollGroup, Sleep};
use pollux_ring::WakeSet;
use std::time::Duration;

/// How a worker waits.
#[derive(Clone, Copy, Debug)]
pub struct WaitSpec {
    /// The mode at the start; control may change it.
    pub mode: PollMode,
    /// Fruitless polling before the worker sleeps in `adaptive` mode, in nanoseconds.
    pub spin_ns: u64,
    /// Fruitless polling between two yields of the core, in nanoseconds.
    pub yield_ns: u64,
}

impl Default for WaitSpec {
    fn default() -> Self {
        WaitSpec {
            mode: PollMode::Adaptive,
            spin_ns: 50_000,
            yield_ns: 3_000,
        }
    }
}

/// Longest sleep: a bound on how late a missed wake-up would be noticed, were there one.
const SLEEP_MAX: Duration = Duration::from_millis(500);

/// The state of waiting.
pub(crate) struct Waiting {
    spec: WaitSpec,
    wakes: WakeSet,
    /// When the present idleness began and when the core was last yielded, if idle.
    idle_since: Option<(u64, u64)>,
}

impl Waiting {
    pub(crate) fn new(spec: WaitSpec, wakes: WakeSet) -> Self {
        Waiting {
            spec,
            wakes,
            idle_since: None,
        }
    }

    /// There was work.
    #[inline]
    pub(crate) fn busy(&mut self) {
        self.idle_since = None;
    }

    /// A pass found nothing, in a mode that may sleep. Gives what the last look before a sleep
    /// found, which may be the order to stop.
    pub(crate) fn idle<G: PollGroup, A: App, C: Clock>(
        &mut self,
        core: &mut Core<G, A, C>,
        app: &mut A,
    ) -> Progress {
        let spin_ns = match core.poll {
            PollMode::Busy => return Progress::Idle,
            PollMode::Adaptive => self.spec.spin_ns,
            PollMode::Interrupt => 0,
        };
        core.read_clock();
        let (since, yielded) = *self.idle_since.get_or_insert((core.now, core.now));
        if core.now - since < spin_ns {
            if core.now - yielded >= self.spec.yield_ns {
                self.idle_since = Some((since, core.now));
                std::thread::yield_now();
            }
            std::hint::spin_loop();
            return Progress::Idle;
        }
        self.sleep(core, app)
    }

    /// Sleeps until somebody signals or a timer is due, or finds that there is work after all.
    fn sleep<G: PollGroup, A: App, C: Clock>(
        &mut self,
        core: &mut Core<G, A, C>,
        app: &mut A,
    ) -> Progress {
        self.idle_since = None;
        match Waiting::fall_asleep(core, app) {
            Rest::Awake(found) => found,
            Rest::Asleep { timer } => {
                let timeout = timer.map_or(SLEEP_MAX, |timer| timer.min(SLEEP_MAX));
                // A failing wait returns at once: the worker then polls, which is slower but right.
                let _ = self.wakes.wait(Some(timeout), |_| {});
                Waiting::wake_up(core);
                core.read_clock();
                Progress::Idle
            }
        }
    }

    /// Arms every source of work and looks once more: what comes after the look signals a
    /// descriptor of the set, so no wake-up is lost.
    pub(crate) fn fall_asleep<G: PollGroup, A: App, C: Clock>(
        core: &mut Core<G, A, C>,
        app: &mut A,
    ) -> Rest {
        core.arm_sessions();
        let mut found = Progress::Idle;
        let sleeps_over = is_planted(Bug::SleepsOver);
        if core.group.arm(Sleep::May) == Armed::Idle || sleeps_over {
            if !sleeps_over {
                found = core.pass(app);
            }
            if found == Progress::Idle && core.may_sleep() {
                core.figures.sleeps += 1;
                let timer = core.timers.idle_ns(core.now).map(Duration::from_nanos);
                return Rest::Asleep { timer };
            }
        }
        Waiting::wake_up(core);
        Rest::Awake(found)
    }

    /// Nobody needs to signal any more.
    pub(crate) fn wake_up<G: PollGroup, A: App, C: Clock>(core: &mut Core<G, A, C>) {
        core.group.disarm();
        core.disarm_sessions();
    }

    /// Whether somebody has signalled since the last sleep.
    pub(crate) fn is_called(&self) -> bool {
        let mut called = false;
        let waited = self.wakes.wait(Some(Duration::ZERO), |_| called = true);
        called || waited.is_err()
    }
}

/// What came of going to sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// The last look found this, or something inside the worker does not let it sleep.
    Awake(Progress),
    /// It sleeps.
    Asleep {
        /// When a timer is due, from now; `None` without timers.
        timer: Option<Duration>,
    },
}
