//! Many worlds, on several threads.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use pollux_proto::planted::{Bug, plant};

use crate::book::{Detail, Figures, Violation, lock};
use crate::numbers::mix;
use crate::options::Options;
use crate::world::{Outcome, World};

/// One world in so many is run twice; both runs have to be the same.
pub const REPEAT_EVERY: u64 = 100;

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The first seed; the others follow.
    pub from: u64,
    /// Worlds.
    pub worlds: u64,
    /// Threads.
    pub threads: usize,
    /// Begins no new world after this time.
    pub time: Option<Duration>,
    /// Stops after this many failures.
    pub failures_max: usize,
    /// What is planted in every world.
    pub bug: Option<Bug>,
}

/// What came of looking for a planted fault.
#[derive(Clone, Debug)]
pub struct Mutation {
    /// What was planted.
    pub bug: Bug,
    /// The first world that was not as it should be, if there was one.
    pub found: Option<Failure>,
    /// Worlds until then.
    pub worlds: u64,
}

/// Looks for a planted fault in the worlds from `plan.from` on.
#[must_use]
pub fn look_for(bug: Bug, plan: &Plan) -> Mutation {
    let plan = Plan {
        bug: Some(bug),
        failures_max: 1,
        ..*plan
    };
    let summary = run(&plan);
    // Threads end at different worlds: the first failure is what counts.
    let found = summary.failures.into_iter().next();
    Mutation {
        bug,
        worlds: found.as_ref().map_or(summary.figures.worlds, |failure| {
            failure.seed - plan.from + 1
        }),
        found,
    }
}

/// A world that was not as it should be.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Its seed.
    pub seed: u64,
    /// What was wrong.
    pub violation: Violation,
}

/// What a swarm has found.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Sums.
    pub figures: Figures,
    /// Worlds that were run twice.
    pub repeated: u64,
    /// What went wrong, by seed.
    pub failures: Vec<Failure>,
    /// One number for all that happened, whatever the order in which it did.
    pub digest: u64,
}

/// Runs the world of a seed. A panic inside is a violation like any other.
#[must_use]
pub fn run_seed(seed: u64, detail: Detail) -> Outcome {
    let mut book = None;
    let run = catch_unwind(AssertUnwindSafe(|| {
        let mut world = World::new(Options::draw(seed), detail)?;
        book = Some(world.book());
        world.live()?;
        Ok(world.outcome())
    }));
    let what = match run {
        Ok(Ok(outcome)) => return outcome,
        Ok(Err(refused)) => {
            let refused: crate::NoStack = refused;
            refused.to_string()
        }
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
            format!("panic: {}", text.unwrap_or_default())
        }
    };
    let mut outcome = Outcome {
        digest: 0,
        figures: Figures::default(),
        violation: None,
        story: Vec::new(),
    };
    let (mut step, mut now) = (0, 0);
    if let Some(book) = &book {
        let book = lock(book);
        (step, now) = (book.step, book.now);
        outcome.figures = book.figures.clone();
        outcome.story = book.story().map(str::to_owned).collect();
    }
    outcome.violation = Some(Violation { step, now, what });
    outcome
}

/// Runs a swarm.
#[must_use]
pub fn run(plan: &Plan) -> Summary {
    let next = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let summary = Mutex::new(Summary::default());
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..plan.threads.max(1) {
            scope.spawn(|| {
                let mut own = Summary::default();
                plant(plan.bug);
                while !stop.load(Ordering::Relaxed) {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let is_late = plan.time.is_some_and(|time| begun.elapsed() >= time);
                    if number >= plan.worlds || is_late {
                        break;
                    }
                    own.take(plan.from + number);
                    if own.failures.len() >= plan.failures_max {
                        stop.store(true, Ordering::Relaxed);
                    }
                }
                let mut all = summary.lock().unwrap_or_else(PoisonError::into_inner);
                all.add(own);
            });
        }
    });
    let mut summary = summary.into_inner().unwrap_or_else(PoisonError::into_inner);
    summary.failures.sort_by_key(|failure| failure.seed);
    summary
}

impl Summary {
    /// Runs one more world, and again if it is its turn.
    fn take(&mut self, seed: u64) {
        let outcome = run_seed(seed, Detail::None);
        self.figures.add(&outcome.figures);
        self.digest ^= mix(outcome.digest ^ mix(seed));
        if let Some(violation) = outcome.violation {
            self.failures.push(Failure { seed, violation });
        } else if seed.is_multiple_of(REPEAT_EVERY) {
            self.repeated += 1;
            let again = run_seed(seed, Detail::None);
            if again.digest != outcome.digest {
                let (first, second) = (outcome.digest, again.digest);
                self.failures.push(Failure {
                    seed,
                    violation: Violation {
                        step: 0,
                        now: 0,
                        what: format!("two runs differ: {first:#x} and {second:#x}"),
                    },
                });
            }
        }
    }

    fn add(&mut self, other: Summary) {
        self.figures.add(&other.figures);
        self.repeated += other.repeated;
        self.failures.extend(other.failures);
        self.digest ^= other.digest;
    }
}
