//! The thread that turns completion events of a device into signals of its groups' wake-up descriptors.
//!
//! An adapter tells of a completion through a descriptor of its own, which has to be read with a call of its own;
//! a worker waits on an eventfd, together with its programs and its mailbox. So this thread stands between
//! them. It costs a sleeping worker one more change of threads, and nobody else anything: completion
//! queues that were not asked to tell say nothing.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use pollux_ring::{Wake, WakeError};
use rustix::event::epoll;
use rustix::fd::OwnedFd;

use super::ffi::Cq;
use crate::lock::lock;
use crate::{Errno, GroupId};

/// Token of the descriptor that ends the thread; groups have theirs from 0.
const STOP: u64 = u64::MAX;

/// A group that may sleep.
#[derive(Debug)]
struct Sleeper {
    cq: Arc<Cq>,
    wake: Wake,
    armed: Arc<AtomicBool>,
}

#[derive(Debug)]
struct Inner {
    epoll: OwnedFd,
    stop: Wake,
    sleepers: Mutex<HashMap<u64, Sleeper>>,
}

/// The thread's handle; dropping it ends the thread.
#[derive(Debug)]
pub(super) struct Waker {
    inner: Arc<Inner>,
    thread: Option<JoinHandle<()>>,
}

impl Waker {
    /// Starts the thread.
    pub(super) fn start() -> Result<Waker, Errno> {
        let stop = Wake::new().map_err(|WakeError { errno, .. }| errno)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let token = epoll::EventData::new_u64(STOP);
        epoll::add(&epoll, &stop, token, epoll::EventFlags::IN)?;
        let sleepers = Mutex::new(HashMap::new());
        let inner = Arc::new(Inner {
            epoll,
            stop,
            sleepers,
        });
        let own = Arc::clone(&inner);
        let named = std::thread::Builder::new().name("pollux-verbs".to_owned());
        let thread = named.spawn(move || own.run()).map_err(|error| {
            let code = error.raw_os_error();
            code.map_or(Errno::AGAIN, Errno::from_raw_os_error)
        })?;
        let thread = Some(thread);
        Ok(Waker { inner, thread })
    }

    /// Watches the queue of a group from now on.
    pub(super) fn add(
        &self,
        group: GroupId,
        cq: &Arc<Cq>,
        wake: Wake,
        armed: &Arc<AtomicBool>,
    ) -> Result<(), Errno> {
        let token = u64::from(group.0);
        let sleeper = Sleeper {
            cq: Arc::clone(cq),
            wake,
            armed: Arc::clone(armed),
        };
        lock(&self.inner.sleepers).insert(token, sleeper);
        let data = epoll::EventData::new_u64(token);
        let watched = epoll::add(&self.inner.epoll, cq, data, epoll::EventFlags::IN);
        if watched.is_err() {
            lock(&self.inner.sleepers).remove(&token);
        }
        watched
    }

    /// Ends that. The thread has let go of the queue when this returns.
    pub(super) fn remove(&self, group: GroupId) {
        let sleeper = lock(&self.inner.sleepers).remove(&u64::from(group.0));
        if let Some(Sleeper { cq, .. }) = sleeper {
            // It was added, and closing it would take it out as well.
            let _ = epoll::delete(&self.inner.epoll, &cq);
        }
    }
}

impl Drop for Waker {
    fn drop(&mut self) {
        let _ = self.inner.stop.signal();
        if let Some(thread) = self.thread.take() {
            // It has not panicked: it calls nothing that does.
            let _ = thread.join();
        }
    }
}

impl Inner {
    fn run(&self) {
        let nothing = epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        };
        let mut events = [nothing; 32];
        loop {
            let count = match epoll::wait(&self.epoll, &mut events[..], None) {
                Ok(count) => count,
                Err(Errno::INTR) => continue,
                Err(_) => return,
            };
            for event in &events[..count] {
                match event.data.u64() {
                    STOP => return,
                    token => self.tell(token),
                }
            }
        }
    }

    /// Passes the news of a group's queue on.
    fn tell(&self, token: u64) {
        let sleepers = lock(&self.sleepers);
        // Gone meanwhile: its descriptor will not be heard of again.
        let Some(sleeper) = sleepers.get(&token) else {
            return;
        };
        sleeper.cq.take_events();
        if sleeper.armed.swap(false, Ordering::SeqCst) {
            // The worker holds the other end; a full counter is a signal that is still there.
            let _ = sleeper.wake.signal();
        }
    }
}
