//! One stack: a device, a worker with a player inside, and control.
//!
//! Control is of one of two kinds. `managed.rs` has the real one, the plane of `pollux-control` with
//! its handshakes over simulated TCP. `direct.rs` puts links and connections where a handshake would
//! leave them, so that rings of a single byte can be tried: CLC cannot name any below 16 KiB.

mod direct;
mod managed;

use std::convert::Infallible;

use pollux_provider::soft::SoftQp;
use pollux_worker::{Command, InlineRule, Progress, Report, Rest, Snapshot, Worker};

pub(crate) use self::direct::Direct;
pub(crate) use self::managed::Managed;
use crate::book::{Book, Event, Shared, lock};
use crate::checker::stream::Tag;
use crate::clock::SimClock;
use crate::faults::{Adapter, FaultyGroup};
use crate::options::Ns;
use crate::player::{Order, Player};

/// Links of a worker at a time; each fault may leave one behind for a while.
const LINKS: u16 = 24;

type Orders = Command<SoftQp, Order>;
type News = Report<SoftQp, Infallible>;
type SimWorker = Worker<FaultyGroup, Player, SimClock>;

/// What control has to tell the world.
#[derive(Debug)]
pub(crate) enum Word {
    /// The link's receives are posted (direct control).
    LinkUp(usize),
    /// The link has failed or its peer is gone (direct control).
    LinkDown(usize),
    /// Nothing is left of the link on this side (direct control).
    LinkGone(usize),
    /// A connection could not be opened, and why (managed control).
    Refused(Tag, String),
    /// A snapshot that was asked for.
    Snapshot(Box<Snapshot>),
    /// The stack has come to an orderly end.
    Stopped,
}

/// Either kind of control.
pub(crate) enum Control {
    Direct(Box<Direct>),
    Managed(Box<Managed>),
}

/// A stack. Control has the device, which comes first: when a stack is dropped it leaves the fabric
/// before the worker can say a last word.
pub(crate) struct Stack {
    pub(crate) control: Control,
    worker: Option<SimWorker>,
    pub(crate) index: usize,
    pub(crate) life: u32,
    pub(crate) adapter: Shared<Adapter>,
    /// Whether the last pass found nothing, so that the worker may go to sleep.
    is_idle: bool,
    /// While the worker sleeps: when a timer of its own wakes it.
    sleeps_until: Option<Ns>,
    book: Shared<Book>,
}

/// The system refused something that a simulation needs; the text says what.
#[derive(Debug, thiserror::Error)]
#[error("cannot make a simulated stack: {what}: {cause}")]
pub struct NoStack {
    what: &'static str,
    cause: String,
}

impl NoStack {
    /// Turns the answer of the system about `what` into this error.
    pub(crate) fn of<E: std::fmt::Display>(what: &'static str) -> impl Fn(E) -> NoStack {
        or(what)
    }
}

fn or<E: std::fmt::Display>(what: &'static str) -> impl Fn(E) -> NoStack {
    move |cause| NoStack {
        what,
        cause: cause.to_string(),
    }
}

impl Stack {
    pub(crate) fn new(
        (control, worker): (Control, SimWorker),
        (index, life): (usize, u32),
        adapter: Shared<Adapter>,
        book: Shared<Book>,
    ) -> Stack {
        lock(&book).note(Event::Born, index, &[u64::from(life)], || {
            format!("life {life} begins")
        });
        Stack {
            control,
            worker: Some(worker),
            index,
            life,
            adapter,
            is_idle: false,
            sleeps_until: None,
            book,
        }
    }

    pub(crate) fn direct(&mut self) -> Option<&mut Direct> {
        match &mut self.control {
            Control::Direct(direct) => Some(direct),
            Control::Managed(_) => None,
        }
    }

    pub(crate) fn managed(&mut self) -> Option<&mut Managed> {
        match &mut self.control {
            Control::Managed(managed) => Some(managed),
            Control::Direct(_) => None,
        }
    }

    /// Whether it runs and is not to stop.
    pub(crate) fn is_serving(&self) -> bool {
        match &self.control {
            Control::Direct(_) => true,
            Control::Managed(managed) => !managed.stops(),
        }
    }

    /// Ends of connections that stopped although they could go on.
    pub(crate) fn owed(&self) -> Vec<Tag> {
        let worker = self.worker.as_ref();
        worker.map_or_else(Vec::new, |worker| worker.app().owes().collect())
    }

    /// One pass of the worker, unless it sleeps and nothing wakes it. One that is to stop does, with
    /// all that is left to do.
    pub(crate) fn pass(&mut self, now: Ns) -> Progress {
        let Some(worker) = &mut self.worker else {
            return Progress::Idle;
        };
        if let Some(until) = self.sleeps_until {
            // What the adapter holds back it announces when it lets it go.
            let held = lock(&self.adapter).next_due();
            let is_due = now >= until || held.is_some_and(|held| now >= held);
            if !is_due && !worker.is_called() {
                return Progress::Idle;
            }
            worker.wake_up();
            self.sleeps_until = None;
            lock(&self.book).note(Event::Pass, self.index, &[2], || "wakes up".to_owned());
        }
        let progress = worker.pass();
        self.note(progress);
        progress
    }

    /// Whether the worker is awake and found nothing when it last looked.
    pub(crate) fn may_sleep(&self) -> bool {
        self.sleeps_until.is_none() && self.is_idle
    }

    /// The worker goes to sleep, unless it finds something to do.
    pub(crate) fn fall_asleep(&mut self, now: Ns) -> Progress {
        let Some(worker) = &mut self.worker else {
            return Progress::Idle;
        };
        match worker.fall_asleep() {
            Rest::Awake(found) => {
                self.note(found);
                // Its loop goes on with a pass.
                self.is_idle = false;
                found
            }
            Rest::Asleep { timer } => {
                let timer = timer.map(|timer| timer.as_nanos() as Ns);
                self.sleeps_until = Some(timer.map_or(Ns::MAX, |timer| now + timer));
                let mut book = lock(&self.book);
                book.figures.sleeps += 1;
                book.note(Event::Pass, self.index, &[3], || "falls asleep".to_owned());
                Progress::Idle
            }
        }
    }

    fn note(&mut self, progress: Progress) {
        self.is_idle = progress == Progress::Idle;
        {
            let mut book = lock(&self.book);
            book.figures.steps += 1;
            match progress {
                Progress::Idle => {}
                Progress::Busy => book.note(Event::Pass, self.index, &[], || "busy".to_owned()),
                Progress::Stopped => {
                    book.note(Event::Pass, self.index, &[1], || "stopped".to_owned());
                }
            }
        }
        if progress == Progress::Stopped
            && let Some(worker) = self.worker.take()
        {
            worker.finish();
        }
    }

    /// Control's turn: at most `most` pieces of news.
    pub(crate) fn control(&mut self, now: Ns, most: usize) -> Vec<Word> {
        match &mut self.control {
            Control::Direct(direct) => direct.control(most),
            Control::Managed(managed) => managed.control(now, most),
        }
    }

    /// An order for the player.
    pub(crate) fn order(&mut self, order: Order) {
        match &mut self.control {
            Control::Direct(direct) => direct.send(Command::App(order)),
            Control::Managed(managed) => managed.order(order),
        }
    }

    /// What goes inline from now on.
    pub(crate) fn set_inline(&mut self, rule: InlineRule) {
        match &mut self.control {
            Control::Direct(direct) => direct.send(Command::SetInline(rule)),
            Control::Managed(managed) => managed.set_inline(rule),
        }
    }

    /// Asks for a snapshot, which comes as a word.
    pub(crate) fn ask_snapshot(&mut self) {
        match &mut self.control {
            Control::Direct(direct) => direct.ask_snapshot(),
            Control::Managed(managed) => managed.ask_snapshot(),
        }
    }

    /// Resets a connection, if it is still there.
    pub(crate) fn abort(&mut self, tag: Tag) {
        match &mut self.control {
            Control::Direct(direct) => direct.abort(tag),
            Control::Managed(managed) => managed.abort(tag),
        }
    }

    /// Whether orders or news wait for control.
    pub(crate) fn has_mail(&self, now: Ns) -> bool {
        match &self.control {
            Control::Direct(direct) => direct.has_mail(),
            Control::Managed(managed) => managed.has_mail(now),
        }
    }

    /// When control or the adapter goes on by itself, if it does.
    pub(crate) fn next_due(&self) -> Option<Ns> {
        let control = match &self.control {
            Control::Direct(_) => None,
            Control::Managed(managed) => managed.next_due(),
        };
        let adapter = lock(&self.adapter).next_due();
        control.into_iter().chain(adapter).min()
    }

    /// What control has to do and holds, in words.
    pub(crate) fn state(&self) -> String {
        match &self.control {
            Control::Direct(direct) => format!("stack {}: mail {}", self.index, direct.has_mail()),
            Control::Managed(managed) => format!("stack {}: {}", self.index, managed.state()),
        }
    }

    /// What is not given back although everything should be, in words.
    pub(crate) fn leftovers(&self) -> Option<String> {
        let left = match &self.control {
            Control::Direct(direct) => direct.leftovers(),
            Control::Managed(managed) => managed.leftovers(),
        };
        left.map(|left| format!("stack {}: {left}", self.index))
    }
}
