//! The gateway's thread: what it waits for, and in which order it works.
//!
//! One turn looks at the kernel's events, then at the session's, then moves bytes for every
//! connection that has something to do, each for a bounded while. Events only take notes: a
//! connection whose two ends both have news is served once. Without work the thread goes on
//! looking for the session's spinning time, then arms the session and sleeps.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pollux_attach::client::{Armed, OpenError, RequestId, Session, SessionOptions, StreamEvent};
use pollux_attach::packet;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use super::Link;
use super::flow::Means;
use super::listen::{Front, Pause};
use super::pair::{PairKey, Pairs, Queued, Token};
use crate::reactor::Timers;

/// Name under which the operator sees the gateway's session.
const SESSION_NAME: &str = "gateway";

/// Most events that one look at the kernel gives; the rest comes with the next.
const EVENTS_MAX: usize = 256;

/// How long to wait before joining the appliance is tried again.
const REOPEN_AFTER: Duration = Duration::from_secs(1);

/// What the thread is to be reminded of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Alarm {
    /// A connection is not connected yet, or is to be tried again.
    Dial(PairKey),
    /// A listener that could not accept is to try again.
    Resume(usize),
    /// The appliance is to be joined.
    Join,
}

/// Everything the thread owns.
#[derive(Debug)]
pub(super) struct Engine {
    pub(super) link: Arc<Link>,
    pub(super) fronts: Vec<Front>,
    pub(super) pairs: Pairs,
    /// Connections that wait for the appliance's decision.
    pub(super) requests: HashMap<RequestId, PairKey>,
    pub(super) session: Option<Session>,
    pub(super) means: Means,
    pub(super) timers: Timers<Alarm>,
    /// Connections that have something to do.
    pub(super) ready: VecDeque<PairKey>,
    news: Vec<StreamEvent>,
    join_failures: u32,
}

/// Whether a look has found anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Nothing,
    Something,
}

impl Engine {
    pub(super) fn new(link: Arc<Link>, fronts: Vec<Front>) -> io::Result<Engine> {
        let means = Means::new()?;
        let add = |fd, token: Token, flags| {
            epoll::add(
                &means.epoll,
                fd,
                epoll::EventData::new_u64(token.into()),
                flags,
            )
        };
        add(link.wake.fd(), Token::Wake, epoll::EventFlags::IN)?;
        for (index, front) in fronts.iter().enumerate() {
            // Not before the appliance is joined.
            add(
                front.as_fd(),
                Token::Front(index),
                epoll::EventFlags::empty(),
            )?;
        }
        Ok(Engine {
            link,
            fronts,
            pairs: Pairs::default(),
            requests: HashMap::new(),
            session: None,
            means,
            timers: Timers::new(),
            ready: VecDeque::new(),
            news: Vec::new(),
            join_failures: 0,
        })
    }

    /// Serves the forwards until the gateway is stopped.
    pub(super) fn run(mut self) {
        self.join();
        let mut events = Vec::with_capacity(EVENTS_MAX);
        let spin = spin(self.link.spin);
        let mut last_find = Instant::now();
        while !self.link.is_stopping() {
            let kernel = self.hear_kernel(&mut events, Some(Duration::ZERO));
            let session = self.hear_session();
            let now = Instant::now();
            let alarms = self.hear_alarms(now);
            let moved = self.run_ready();
            if [kernel, session, alarms, moved].contains(&Found::Something) {
                last_find = now;
                continue;
            }
            // The core is not offered to others meanwhile: recent schedulers take the rest of the
            // slice for it, some milliseconds, and a look is never long.
            if now.duration_since(last_find) < spin {
                std::hint::spin_loop();
                continue;
            }
            if self
                .session
                .as_ref()
                .is_none_or(|session| session.arm() == Armed::Idle)
            {
                let timeout = self.timers.next_in(now);
                if self.hear_kernel(&mut events, timeout) == Found::Something {
                    last_find = Instant::now();
                }
                // Before the session is looked at, which has to clear away its alarm first.
                self.run_ready();
            }
        }
        self.finish();
    }

    /// Takes the kernel's events; waits for the first one at most for `timeout`, `None` without
    /// limit.
    fn hear_kernel(&mut self, events: &mut Vec<epoll::Event>, timeout: Option<Duration>) -> Found {
        let timeout = timeout.map(|timeout| {
            Timespec::try_from(timeout).unwrap_or(Timespec {
                tv_sec: i64::MAX,
                tv_nsec: 0,
            })
        });
        events.clear();
        match epoll::wait(&self.means.epoll, spare_capacity(events), timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            // Only a descriptor that is no epoll set gives another error.
            Err(errno) => tracing::error!(error = %errno, "the gateway cannot wait for events"),
        }
        let mut found = Found::Nothing;
        for event in events.iter() {
            let (flags, data) = (event.flags, event.data);
            match Token::from(data.u64()) {
                // Both are looked at in every turn.
                Token::Wake | Token::Session => continue,
                Token::Front(index) => self.accept(index),
                Token::End(key, which) => self.hear_end(key, which, flags),
            }
            found = Found::Something;
        }
        found
    }

    /// Takes the session's events.
    fn hear_session(&mut self) -> Found {
        let Some(session) = &self.session else {
            return Found::Nothing;
        };
        let mut news = std::mem::take(&mut self.news);
        session.poll_events(&mut news);
        let found = if news.is_empty() {
            Found::Nothing
        } else {
            Found::Something
        };
        for event in news.drain(..) {
            match event {
                StreamEvent::Ready { token, readiness } => {
                    if let Token::End(key, which) = Token::from(token) {
                        self.hear_stream(key, which, &readiness);
                    }
                }
                StreamEvent::Upgraded { request, stream } => self.hear_upgrade(request, stream),
                StreamEvent::Gone => self.lose_session(),
            }
        }
        self.news = news;
        found
    }

    fn hear_alarms(&mut self, now: Instant) -> Found {
        let mut found = Found::Nothing;
        while let Some(alarm) = self.timers.expired(now) {
            found = Found::Something;
            match alarm {
                Alarm::Dial(key) => self.hear_dial_alarm(key, now),
                Alarm::Resume(index) => {
                    if let Some(front) = self.fronts.get_mut(index) {
                        front.pause = Pause::Over;
                    }
                    self.watch_front(index);
                }
                Alarm::Join => self.join(),
            }
        }
        found
    }

    /// Moves bytes for every connection that stands in the queue now, each for one turn.
    fn run_ready(&mut self) -> Found {
        for _ in 0..self.ready.len() {
            let Some(key) = self.ready.pop_front() else {
                break;
            };
            self.serve(key);
        }
        // Whoever stands in the queue again has moved a turn's bytes.
        if self.ready.is_empty() {
            Found::Nothing
        } else {
            Found::Something
        }
    }

    /// Puts a connection into the queue.
    #[inline]
    pub(super) fn enqueue(&mut self, key: PairKey) {
        if let Some(pair) = self.pairs.get_mut(key)
            && pair.queued == Queued::No
        {
            pair.queued = Queued::Yes;
            self.ready.push_back(key);
        }
    }

    /// Joins the appliance; failing that, tries again later.
    fn join(&mut self) {
        let outcome = open_session(&self.link).and_then(|session| {
            let data = epoll::EventData::new_u64(Token::Session.into());
            epoll::add(
                &self.means.epoll,
                session.event_fd(),
                data,
                epoll::EventFlags::IN,
            )
            .map_err(|errno| JoinError::System(errno.into()))?;
            Ok(session)
        });
        match outcome {
            Ok(session) => {
                tracing::info!(
                    session = session.number(),
                    "the gateway has joined the appliance"
                );
                self.join_failures = 0;
                self.session = Some(session);
            }
            Err(JoinError::Stopping) => return,
            Err(error) => {
                drop(self.link.control().take());
                if self.join_failures == 0 {
                    let again = REOPEN_AFTER;
                    tracing::warn!(%error, ?again, "the gateway cannot join the appliance");
                }
                self.join_failures = self.join_failures.saturating_add(1);
                self.timers
                    .insert(Instant::now() + REOPEN_AFTER, Alarm::Join);
            }
        }
        self.watch_fronts();
    }

    /// The appliance has ended the session: so have all connections that depend on it.
    fn lose_session(&mut self) {
        let Some(session) = self.session.take() else {
            return;
        };
        // A set that some stream still holds does not leave by itself.
        let _ = epoll::delete(&self.means.epoll, session.event_fd());
        drop(self.link.control().take());
        if !self.link.is_stopping() {
            tracing::warn!("the appliance has ended the gateway's session; joining again");
        }
        self.end_accelerated();
        self.timers.insert(Instant::now(), Alarm::Join);
        self.watch_fronts();
    }

    fn watch_fronts(&mut self) {
        for index in 0..self.fronts.len() {
            self.watch_front(index);
        }
    }

    /// Has a listener tell of connections if they can be served, and otherwise not.
    pub(super) fn watch_front(&mut self, index: usize) {
        let Some(front) = self.fronts.get(index) else {
            return;
        };
        let flags = match (&self.session, front.pause) {
            (Some(_), Pause::No | Pause::Over) => epoll::EventFlags::IN,
            (Some(_), Pause::Yes) | (None, _) => epoll::EventFlags::empty(),
        };
        let data = epoll::EventData::new_u64(Token::Front(index).into());
        if let Err(errno) = epoll::modify(&self.means.epoll, front, data, flags) {
            tracing::error!(forward = front.name, error = %errno, "the listener cannot be watched");
        }
    }

    /// Resets what exists.
    fn finish(mut self) {
        self.end_all();
    }
}

/// How long to look on without work. On a single core whoever has work for the thread waits for it
/// to sleep.
fn spin(wanted: Duration) -> Duration {
    match std::thread::available_parallelism() {
        Ok(cores) if cores.get() == 1 => Duration::ZERO,
        Ok(_) | Err(_) => wanted,
    }
}

/// Why the appliance was not joined.
#[derive(Debug, thiserror::Error)]
enum JoinError {
    #[error("cannot connect to the attach socket: {0}")]
    Connect(io::Error),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("{0}")]
    System(io::Error),
    #[error("the gateway is being stopped")]
    Stopping,
}

fn open_session(link: &Link) -> Result<Session, JoinError> {
    let control = packet::connect(&link.attach_socket).map_err(JoinError::Connect)?;
    let duplicate: OwnedFd = control.try_clone().map_err(JoinError::System)?;
    *link.control() = Some(duplicate);
    // Whoever stops the gateway says so before it looks for the socket.
    if link.is_stopping() {
        return Err(JoinError::Stopping);
    }
    let options = SessionOptions {
        name: SESSION_NAME.to_string(),
        spin: link.spin,
        ..SessionOptions::default()
    };
    Ok(Session::open_connected(control, &options)?)
}
