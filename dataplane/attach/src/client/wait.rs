//! Waiting: spin, then sleep. See the text of [`super`] for the roles.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::TryLockError;
use std::time::{Duration, Instant};

use pollux_ring::Wake;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use super::inbound::{Interest, Lead};
use super::session::{Patience, Shared};

/// Fruitless polls between two looks at the clock.
const POLLS_PER_CLOCK: u32 = 64;
/// Time of fruitless polling after which the core is offered to others.
const YIELD_EVERY: Duration = Duration::from_micros(4);
/// A yield that takes longer has let somebody else run; one that finds nobody takes 0.2 us.
const OTHERS_RAN: Duration = Duration::from_micros(1);

/// Why a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waited {
    /// There may be something to do.
    Ready,
    /// The deadline has passed.
    TimedOut,
}

/// Whether somebody else waits for the core of the polling thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Core {
    Ours,
    Wanted,
}

/// Whether a wait begins by polling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spin {
    First,
    No,
}

impl Shared {
    /// Waits until `interest` is ready, `extra` is readable, or the deadline has passed.
    pub(super) fn wait(
        &self,
        interest: Interest,
        spin: Spin,
        extra: Option<BorrowedFd<'_>>,
        deadline: Option<Instant>,
    ) -> io::Result<Waited> {
        self.push_held_now();
        if spin == Spin::First && self.spin(interest, deadline) {
            return Ok(Waited::Ready);
        }
        // Nobody else submits what found no room, and nobody tells when there is some.
        self.push_held(deadline.map_or(Patience::UntilDone, Patience::Until));
        self.sleep(interest, extra, deadline)
    }

    /// Polls for the session's spinning time. Returns whether the interest became ready.
    fn spin(&self, interest: Interest, deadline: Option<Instant>) -> bool {
        let start = Instant::now();
        let end = start + self.spin;
        let end = deadline.map_or(end, |deadline| deadline.min(end));
        let mut core = if self.is_single_core() {
            Core::Wanted
        } else {
            Core::Ours
        };
        let mut yielded = start;
        loop {
            let polls = match core {
                Core::Ours => POLLS_PER_CLOCK,
                Core::Wanted => 1,
            };
            if self.poll_burst(interest, polls) {
                return true;
            }
            let now = Instant::now();
            if now >= end {
                return false;
            }
            if core == Core::Wanted || now - yielded >= YIELD_EVERY {
                rustix::thread::sched_yield();
                yielded = Instant::now();
                // Who ran may be the worker itself: then polling keeps it from answering.
                let others_ran = yielded - now >= OTHERS_RAN;
                core = if others_ran || self.is_single_core() {
                    Core::Wanted
                } else {
                    Core::Ours
                };
            }
        }
    }

    /// A number of polls under one lock; without it if another thread distributes.
    fn poll_burst(&self, interest: Interest, polls: u32) -> bool {
        match self.inbound.try_lock() {
            Ok(mut inbound) => {
                for _ in 0..polls {
                    inbound.pump(self);
                    if inbound.is_ready(self, interest) {
                        return true;
                    }
                    std::hint::spin_loop();
                }
            }
            Err(TryLockError::WouldBlock | TryLockError::Poisoned(_)) => {
                for _ in 0..polls {
                    if self.is_gone() || self.is_slot_ready(interest) {
                        return true;
                    }
                    std::hint::spin_loop();
                }
            }
        }
        false
    }

    fn sleep(
        &self,
        interest: Interest,
        extra: Option<BorrowedFd<'_>>,
        deadline: Option<Instant>,
    ) -> io::Result<Waited> {
        let mut inbound = self.inbound();
        let (id, wake) = inbound.add_waiter(interest)?;
        let outcome = loop {
            inbound.pump(self);
            if inbound.is_ready(self, interest) {
                break Ok(Waited::Ready);
            }
            let left = match time_left(deadline) {
                Some(Duration::ZERO) => break Ok(Waited::TimedOut),
                left => left,
            };
            let leads = match inbound.lead(id) {
                Lead::EventsCame => continue,
                Lead::Me => Leads::Yes,
                Lead::Another => Leads::No,
            };
            drop(inbound);
            let polled = self.poll(&wake, extra, leads, left);
            inbound = self.inbound();
            let _ = wake.drain();
            if leads == Leads::Yes {
                inbound.stop_leading();
                let _ = self.program_wake.drain();
                inbound.pump_control(self);
            }
            match polled {
                Ok(Extra::Readable) => break Ok(Waited::Ready),
                Ok(Extra::Quiet) => {}
                Err(errno) => break Err(errno.into()),
            }
        };
        inbound.remove_waiter(id);
        outcome
    }

    fn poll(
        &self,
        wake: &Wake,
        extra: Option<BorrowedFd<'_>>,
        leads: Leads,
        timeout: Option<Duration>,
    ) -> Result<Extra, Errno> {
        let readable = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        // Without an extra descriptor the thread's own stands in its place.
        let mut fds = [
            readable(extra.unwrap_or(wake.fd())),
            readable(wake.fd()),
            readable(self.program_wake.fd()),
            readable(self.control.as_fd()),
        ];
        let count = match leads {
            Leads::Yes => 4,
            Leads::No => 2,
        };
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        match rustix::event::poll(&mut fds[..count], timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        let ready = extra.is_some() && !fds[0].revents().is_empty();
        Ok(if ready { Extra::Readable } else { Extra::Quiet })
    }
}

/// Whether this thread polls the session's descriptors for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leads {
    Yes,
    No,
}

/// State of the extra descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extra {
    Readable,
    Quiet,
}

fn time_left(deadline: Option<Instant>) -> Option<Duration> {
    deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()))
}
