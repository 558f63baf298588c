//! The book of a world: what happened, as a digest and as a story, and whether it was right.
//!
//! Every part of a world writes into the same book. Checkers that find something wrong say so here;
//! the first violation stands, and the world ends with the next step.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::checker::links::CableBook;
use crate::checker::stream::{ConnBook, Tag};
use crate::numbers::mix;

/// Something that several parts of one world hold. A world has one thread: nobody ever waits.
pub type Shared<T> = Arc<Mutex<T>>;

/// The value inside. A world that has panicked is not looked at again, so poison means nothing.
pub fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is wrong with a world.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// The step at which it was found.
    pub step: u64,
    /// Simulated time, nanoseconds.
    pub now: u64,
    /// What was found.
    pub what: String,
}

/// How much of a story is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Detail {
    /// Nothing: a swarm only needs the digest.
    None,
    /// Everything.
    All,
}

/// Which kind of event; part of the digest.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
pub enum Event {
    /// A stack came to life.
    Born,
    /// A stack made a pass.
    Pass,
    /// A WRITE was posted.
    Write,
    /// A message was posted.
    Send,
    /// A completion reached a worker.
    Completion,
    /// A worker reported to control.
    Report,
    /// Control ordered something.
    Order,
    /// An application's turn.
    App,
    /// A fault.
    Fault,
    /// Bytes on simulated TCP.
    Net,
    /// The world as a whole.
    World,
}

/// Counts of a world, or of many.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Figures {
    /// Worlds.
    pub worlds: u64,
    /// Passes of workers.
    pub steps: u64,
    /// Sleeps of workers.
    pub sleeps: u64,
    /// Connections opened on both sides.
    pub conns: u64,
    /// Ends whose handshake led to no connection.
    pub refused: u64,
    /// Of the connections, ended without a reset and with everything delivered both ways.
    pub delivered: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Work requests posted.
    pub posts: u64,
    /// "Receiver not ready" answers.
    pub rnrs: u64,
    /// Times at which the credits were counted.
    pub credit_checks: u64,
    /// Faults, by kind.
    pub faults: BTreeMap<&'static str, u64>,
}

impl Figures {
    /// Adds those of another world.
    pub fn add(&mut self, other: &Figures) {
        self.worlds += other.worlds;
        self.steps += other.steps;
        self.sleeps += other.sleeps;
        self.conns += other.conns;
        self.refused += other.refused;
        self.delivered += other.delivered;
        self.bytes += other.bytes;
        self.posts += other.posts;
        self.rnrs += other.rnrs;
        self.credit_checks += other.credit_checks;
        for (fault, count) in &other.faults {
            *self.faults.entry(fault).or_default() += count;
        }
    }
}

/// Lines of a story that are kept: the end of it is what one wants to read.
const LINES_MAX: usize = 200_000;

/// The book.
#[derive(Debug)]
pub struct Book {
    /// The step that the world is in.
    pub step: u64,
    /// Simulated time, nanoseconds.
    pub now: u64,
    /// Grows whenever something useful happened: bytes moved, a connection came or went.
    pub progress: u64,
    /// Grows whenever something that was held back goes on by itself: somebody may have work by it.
    pub stirred: u64,
    /// What was counted.
    pub figures: Figures,
    pub(crate) conns: Vec<ConnBook>,
    pub(crate) cables: Vec<CableBook>,
    /// Ends that are open though the other end came to nothing.
    pub(crate) half_open: Vec<Tag>,
    digest: u64,
    detail: Detail,
    story: VecDeque<String>,
    violation: Option<Violation>,
}

impl Book {
    /// An empty book.
    #[must_use]
    pub fn new(detail: Detail) -> Book {
        Book {
            step: 0,
            now: 0,
            progress: 0,
            stirred: 0,
            figures: Figures::default(),
            conns: Vec::new(),
            cables: Vec::new(),
            half_open: Vec::new(),
            digest: 0,
            detail,
            story: VecDeque::new(),
            violation: None,
        }
    }

    /// Notes an event: `values` go into the digest, the text into the story if there is one.
    pub fn note(
        &mut self,
        event: Event,
        who: usize,
        values: &[u64],
        text: impl FnOnce() -> String,
    ) {
        let mut digest = self.digest ^ ((event as u64) << 56) ^ ((who as u64) << 48) ^ self.now;
        for value in values {
            digest = mix(digest ^ value);
        }
        self.digest = mix(digest);
        if self.detail == Detail::All {
            if self.story.len() == LINES_MAX {
                self.story.pop_front();
            }
            let (step, us) = (self.step, self.now / 1000);
            self.story.push_back(format!(
                "{step:>7} {us:>9} us  stack {who}  {:<10} {}",
                format!("{event:?}").to_lowercase(),
                text()
            ));
        }
    }

    /// Notes a fault and counts it.
    pub fn fault(&mut self, kind: &'static str, who: usize, text: impl FnOnce() -> String) {
        *self.figures.faults.entry(kind).or_default() += 1;
        self.note(Event::Fault, who, &[kind.len() as u64], || {
            let text = text();
            format!("{kind} {text}")
        });
    }

    /// Something is wrong. Only the first finding counts.
    pub fn object(&mut self, what: impl FnOnce() -> String) {
        if self.violation.is_none() {
            self.violation = Some(Violation {
                step: self.step,
                now: self.now,
                what: what(),
            });
        }
    }

    /// What was wrong, if anything.
    #[must_use]
    pub fn violation(&self) -> Option<&Violation> {
        self.violation.as_ref()
    }

    /// One number for everything that has happened.
    #[must_use]
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// The story, if it was kept.
    pub fn story(&self) -> impl Iterator<Item = &str> {
        self.story.iter().map(String::as_str)
    }
}
