//! A poll group as an adapter is one: it goes on while the program that polls it does something else.
//!
//! The soft device works only while its owner polls, so one that pauses takes nothing in, and its
//! receives cannot run out. An adapter takes messages as they come, uses up a receive for each, and
//! leaves the completions in its queue until somebody asks. This group does the same: whatever has
//! come is executed and queued whenever the worker polls, and all through the worker's pauses; the
//! worker then gets as much of the queue as it asks for. While the worker handles a batch nothing is
//! executed, so receives run out less often than with an adapter, not more.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pollux_provider::soft::SoftGroup;
use pollux_provider::{Armed, Completion, Layer, Layered, PollGroup, Sleep};
use pollux_worker::{Clock, Tsc};

use super::Numbers;
use super::drive::{WhenIdle, idle};

/// Completions that the queue holds.
const QUEUE_ENTRIES: usize = 1024;
/// Completions taken from the driver at once: more than the deepest receive queue, so that only the
/// receives end a batch.
const BATCH: usize = 128;

/// How a worker is kept from polling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pauses {
    /// The longest pause; each is between nothing and this.
    pub max: Duration,
    /// The mean time from the end of one pause to the beginning of the next.
    pub every: Duration,
}

/// What pauses there were.
#[derive(Debug, Default)]
pub(super) struct Paused {
    pub(super) count: AtomicU64,
    pub(super) ns: AtomicU64,
}

/// The pauses of one worker.
pub(super) struct Schedule {
    pauses: Pauses,
    numbers: Numbers,
    /// When the next one begins; nothing before the first look at the clock.
    next: Option<u64>,
    paused: Arc<Paused>,
}

impl Schedule {
    pub(super) fn new(pauses: Pauses, seed: u64, paused: Arc<Paused>) -> Schedule {
        Schedule {
            pauses,
            numbers: Numbers::new(seed),
            next: None,
            paused,
        }
    }

    /// The end of a pause that begins now.
    fn until(&mut self, now: u64) -> Option<u64> {
        let next = self.next.get_or_insert_with(|| {
            let every = self.pauses.every.as_nanos() as u64;
            now + self.numbers.below(2 * every)
        });
        if now < *next {
            return None;
        }
        self.next = None;
        Some(now + self.numbers.below(self.pauses.max.as_nanos() as u64))
    }

    fn record(&self, ns: u64) {
        self.paused.count.fetch_add(1, Ordering::Relaxed);
        self.paused.ns.fetch_add(ns, Ordering::Relaxed);
    }
}

/// The adapter over the driver.
pub(super) type AdapterGroup = Layered<SoftGroup, Adapter>;

/// What goes on while the worker does not poll.
pub(super) struct Adapter {
    clock: Tsc,
    queue: VecDeque<Completion>,
    batch: Box<[Completion]>,
    schedule: Option<Schedule>,
    when_idle: WhenIdle,
}

impl Adapter {
    pub(super) fn over(
        driver: SoftGroup,
        clock: Tsc,
        schedule: Option<Schedule>,
        when_idle: WhenIdle,
    ) -> AdapterGroup {
        let adapter = Adapter {
            clock,
            queue: VecDeque::with_capacity(QUEUE_ENTRIES),
            batch: vec![Completion::EMPTY; BATCH].into_boxed_slice(),
            schedule,
            when_idle,
        };
        Layered::new(driver, adapter)
    }

    /// Executes what has come, as far as there are receives and places in the queue.
    fn execute(&mut self, driver: &mut SoftGroup, now: u64) {
        if self.queue.len() + BATCH <= QUEUE_ENTRIES {
            let count = driver.reap(now, &mut self.batch);
            self.queue.extend(&self.batch[..count]);
        }
    }

    /// The worker does nothing for a while; the adapter goes on.
    #[cold]
    fn pause(&mut self, driver: &mut SoftGroup, begun: u64, until: u64) -> u64 {
        let mut now = begun;
        while now < until {
            self.execute(driver, now);
            idle(self.when_idle);
            now = self.clock.now();
        }
        if let Some(schedule) = &self.schedule {
            schedule.record(now - begun);
        }
        now
    }
}

impl Layer<SoftGroup> for Adapter {
    fn reap(&mut self, driver: &mut SoftGroup, now: u64, into: &mut [Completion]) -> usize {
        let until = self.schedule.as_mut().and_then(|next| next.until(now));
        let now = until.map_or(now, |until| self.pause(driver, now, until));
        self.execute(driver, now);
        let count = into.len().min(self.queue.len());
        for (place, completion) in into.iter_mut().zip(self.queue.drain(..count)) {
            *place = completion;
        }
        count
    }

    fn arm(&mut self, driver: &mut SoftGroup, sleep: Sleep) -> Armed {
        if self.queue.is_empty() {
            driver.arm(sleep)
        } else {
            Armed::Pending
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_come_at_random_and_none_is_longer_than_allowed() {
        let pauses = Pauses {
            max: Duration::from_millis(20),
            every: Duration::from_millis(100),
        };
        let mut schedule = Schedule::new(pauses, 7, Arc::default());
        let (mut now, mut lengths) = (1_000, Vec::new());
        while now < 60_000_000_000 {
            match schedule.until(now) {
                Some(until) => {
                    lengths.push(until - now);
                    schedule.record(until - now);
                    now = until;
                }
                None => now += 100_000,
            }
        }
        // Some 60 s with a pause of 10 ms after each 100 ms.
        assert!((400..700).contains(&lengths.len()), "{}", lengths.len());
        assert!(lengths.iter().all(|length| *length < 20_000_000));
        assert!(lengths.iter().any(|length| *length > 15_000_000));
        assert!(lengths.iter().any(|length| *length < 5_000_000));
        let counted = schedule.paused.count.load(Ordering::Relaxed);
        assert_eq!(counted, lengths.len() as u64);
    }
}
