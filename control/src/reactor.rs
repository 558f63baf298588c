//! What the control thread waits on: file descriptors by epoll, timers, and signals.
//!
//! The reactor is thin on purpose. It knows tokens, not callbacks: the owner of the loop decides
//! what a token means, in one `match`. Level-triggered: a descriptor that still has something is
//! reported again by the next wait.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use signal_hook::SigId;
use signal_hook::consts::{SIGINT, SIGTERM};

/// What to be told about a descriptor. That the other end is gone is always told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Nothing but the end.
    Nothing,
    /// Something can be read, or accepted.
    Read,
    /// Something can be written.
    Write,
    /// Both.
    ReadWrite,
}

impl Interest {
    fn flags(self) -> epoll::EventFlags {
        match self {
            Interest::Nothing => epoll::EventFlags::empty(),
            Interest::Read => epoll::EventFlags::IN,
            Interest::Write => epoll::EventFlags::OUT,
            Interest::ReadWrite => epoll::EventFlags::IN | epoll::EventFlags::OUT,
        }
    }
}

/// One descriptor is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The number given when the descriptor was added.
    pub token: u64,
    /// A read will not block. It may find the end of the stream or an error.
    pub readable: bool,
    /// A write will not block.
    pub writable: bool,
    /// Both directions are over, or the descriptor has an error.
    pub closed: bool,
}

/// A set of descriptors, each with a token.
#[derive(Debug)]
pub struct Reactor {
    epoll: OwnedFd,
}

/// Most events that one wait gives; the rest comes with the next.
const EVENTS_MAX: usize = 64;

impl Reactor {
    /// An empty set.
    ///
    /// # Errors
    /// The kernel's refusal (`EMFILE`, `ENOMEM`).
    pub fn new() -> io::Result<Reactor> {
        Ok(Reactor {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
        })
    }

    /// Adds a descriptor. It leaves the set by [`Reactor::remove`] or when it is closed with all
    /// its duplicates.
    ///
    /// # Errors
    /// The kernel's refusal; `EEXIST` when it is in the set already.
    pub fn add(&self, fd: impl AsFd, interest: Interest, token: u64) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token);
        Ok(epoll::add(&self.epoll, fd, data, interest.flags())?)
    }

    /// Changes what a descriptor is watched for, or its token.
    ///
    /// # Errors
    /// The kernel's refusal; `ENOENT` when it is not in the set.
    pub fn modify(&self, fd: impl AsFd, interest: Interest, token: u64) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token);
        Ok(epoll::modify(&self.epoll, fd, data, interest.flags())?)
    }

    /// Takes a descriptor out of the set.
    ///
    /// # Errors
    /// The kernel's refusal; `ENOENT` when it is not in the set.
    pub fn remove(&self, fd: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, fd)?)
    }

    /// Waits until something is ready, at most for `timeout` (`None`: without limit), and puts it
    /// into `events`, which is emptied first. A signal ends the wait early, with no event.
    ///
    /// # Errors
    /// The kernel's refusal; not `EINTR`.
    pub fn wait(&self, timeout: Option<Duration>, events: &mut Vec<Event>) -> io::Result<()> {
        events.clear();
        let mut ready: Vec<epoll::Event> = Vec::with_capacity(EVENTS_MAX);
        let timeout = timeout.map(|timeout| {
            Timespec::try_from(timeout).unwrap_or(Timespec {
                tv_sec: i64::MAX,
                tv_nsec: 0,
            })
        });
        match epoll::wait(&self.epoll, spare_capacity(&mut ready), timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        events.extend(ready.iter().map(|event| {
            let (flags, data) = (event.flags, event.data);
            let closed = flags.intersects(epoll::EventFlags::HUP | epoll::EventFlags::ERR);
            Event {
                token: data.u64(),
                readable: closed || flags.contains(epoll::EventFlags::IN),
                writable: flags.contains(epoll::EventFlags::OUT),
                closed,
            }
        }));
        Ok(())
    }
}

impl AsFd for Reactor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// Points in time, each with a key. The time is always an argument.
#[derive(Debug)]
pub struct Timers<K> {
    waiting: BTreeMap<TimerId, K>,
    count: u64,
}

/// Names a timer for [`Timers::cancel`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimerId {
    at: Instant,
    number: u64,
}

impl<K> Default for Timers<K> {
    fn default() -> Timers<K> {
        Timers {
            waiting: BTreeMap::new(),
            count: 0,
        }
    }
}

impl<K> Timers<K> {
    /// Without timers.
    #[must_use]
    pub fn new() -> Timers<K> {
        Timers::default()
    }

    /// Adds a timer that expires at `at`.
    pub fn insert(&mut self, at: Instant, key: K) -> TimerId {
        self.count += 1;
        let id = TimerId {
            at,
            number: self.count,
        };
        self.waiting.insert(id, key);
        id
    }

    /// Removes a timer; its key comes back unless it has expired.
    pub fn cancel(&mut self, id: TimerId) -> Option<K> {
        self.waiting.remove(&id)
    }

    /// Takes out one timer that has expired at `now`, the earliest first. To be called until
    /// there is none.
    pub fn expired(&mut self, now: Instant) -> Option<K> {
        let (id, _) = self.waiting.first_key_value()?;
        if id.at > now {
            return None;
        }
        self.waiting.pop_first().map(|(_, key)| key)
    }

    /// How long to wait for the earliest timer; `None` without timers.
    #[must_use]
    pub fn next_in(&self, now: Instant) -> Option<Duration> {
        self.waiting
            .first_key_value()
            .map(|(id, _)| id.at.saturating_duration_since(now))
    }
}

/// SIGTERM and SIGINT as a readable descriptor. The first of them is news; the second, when the
/// orderly end hangs, ends the process at once with status 128 + signal.
#[derive(Debug)]
pub struct Signals {
    pipe: UnixStream,
    registered: Vec<SigId>,
}

impl Signals {
    /// Takes over both signals for the whole process, until the value is dropped.
    ///
    /// # Errors
    /// No descriptors are left, or the kernel refuses the handler.
    pub fn install() -> io::Result<Signals> {
        let (pipe, write) = UnixStream::pair()?;
        pipe.set_nonblocking(true)?;
        let mut signals = Signals {
            pipe,
            registered: Vec::new(),
        };
        let seen = Arc::new(AtomicBool::new(false));
        for signal in [SIGTERM, SIGINT] {
            // In this order: the flag is still unset when the first signal passes the shutdown.
            let id = signal_hook::flag::register_conditional_shutdown(
                signal,
                128 + signal,
                Arc::clone(&seen),
            )?;
            signals.registered.push(id);
            let id = signal_hook::low_level::pipe::register(signal, write.try_clone()?)?;
            signals.registered.push(id);
            signals
                .registered
                .push(signal_hook::flag::register(signal, Arc::clone(&seen))?);
        }
        Ok(signals)
    }

    /// Whether a signal has come since the last call.
    pub fn take(&mut self) -> bool {
        let mut any = false;
        let mut bytes = [0; 16];
        while matches!(self.pipe.read(&mut bytes), Ok(1..)) {
            any = true;
        }
        any
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for id in self.registered.drain(..) {
            signal_hook::low_level::unregister(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn readiness_is_told_with_the_token_until_it_is_used_up() {
        let reactor = Reactor::new().expect("epoll");
        let (mut near, mut far) = UnixStream::pair().expect("a pair");
        reactor.add(&near, Interest::Read, 7).expect("add");
        let mut events = Vec::new();
        reactor
            .wait(Some(Duration::ZERO), &mut events)
            .expect("wait");
        assert_eq!(events, []);

        far.write_all(b"x").expect("write");
        for _ in 0..2 {
            reactor.wait(None, &mut events).expect("wait");
            let expected = Event {
                token: 7,
                readable: true,
                writable: false,
                closed: false,
            };
            assert_eq!(events, [expected]);
        }
        near.read_exact(&mut [0]).expect("read");
        reactor.modify(&near, Interest::Write, 8).expect("modify");
        reactor.wait(None, &mut events).expect("wait");
        assert_eq!(
            (events[0].token, events[0].readable, events[0].writable),
            (8, false, true)
        );
    }

    #[test]
    fn the_end_of_the_other_side_is_told_without_any_interest() {
        let reactor = Reactor::new().expect("epoll");
        let (near, far) = UnixStream::pair().expect("a pair");
        reactor.add(&near, Interest::Nothing, 1).expect("add");
        drop(far);
        let mut events = Vec::new();
        reactor.wait(None, &mut events).expect("wait");
        assert!(events[0].closed && events[0].readable);
        reactor.remove(&near).expect("remove");
        reactor
            .wait(Some(Duration::ZERO), &mut events)
            .expect("wait");
        assert_eq!(events, []);
    }

    #[test]
    fn timers_expire_in_the_order_of_their_times_and_not_when_cancelled() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut timers = Timers::new();
        assert_eq!(timers.next_in(start), None);
        timers.insert(at(20), "late");
        let cancelled = timers.insert(at(15), "cancelled");
        timers.insert(at(10), "early");
        timers.insert(at(10), "early too");
        assert_eq!(timers.next_in(at(4)), Some(Duration::from_millis(6)));
        assert_eq!(timers.expired(at(9)), None);
        assert_eq!(timers.cancel(cancelled), Some("cancelled"));
        assert_eq!(timers.cancel(cancelled), None);
        let all: Vec<_> = std::iter::from_fn(|| timers.expired(at(30))).collect();
        assert_eq!(all, ["early", "early too", "late"]);
    }

    #[test]
    fn a_signal_wakes_the_reactor_once() {
        let mut signals = Signals::install().expect("handlers");
        let reactor = Reactor::new().expect("epoll");
        reactor.add(&signals, Interest::Read, 3).expect("add");
        assert!(!signals.take());
        signal_hook::low_level::raise(SIGTERM).expect("raise");
        let mut events = Vec::new();
        while events.is_empty() {
            reactor.wait(None, &mut events).expect("wait");
        }
        assert_eq!(events[0].token, 3);
        assert!(signals.take());
        assert!(!signals.take());
    }
}
