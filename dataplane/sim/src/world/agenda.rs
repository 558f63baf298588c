//! What is to happen at a time: connections, pauses, crashes.

use pollux_proto::link::Role;
use pollux_worker::{Clock, ConnId, OpenConn};

use super::World;
use crate::book::lock;
use crate::checker::stream::{Stage, Tag};
use crate::net::End;
use crate::options::{MS, Ns, S, US, inline_rule};
use crate::stack::NoStack;

/// Why control resets a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Why {
    /// Somebody wishes it.
    Wish,
    /// Its other end came to nothing.
    HalfOpen,
}

impl Why {
    fn text(self) -> &'static str {
        match self {
            Why::Wish => "control aborted it",
            Why::HalfOpen => "its other end came to nothing",
        }
    }
}

/// Something that happens at a time.
#[derive(Debug)]
pub(super) enum Action {
    /// A connection is wanted.
    Arrive,
    /// One end of a reserved connection is opened (direct control).
    Open {
        stack: usize,
        life: u32,
        tag: Tag,
        conn: ConnId,
        open: Box<OpenConn>,
    },
    /// One end of a TCP connection is handed to control.
    Begin {
        stack: usize,
        life: u32,
        tag: Tag,
        end: End,
        role: Role,
    },
    /// A TCP connection is reset.
    Reset { pipe: usize, tag: Tag },
    /// Control resets a connection.
    Abort(Tag, Why),
    /// A stack is not polled for a while.
    Pause,
    /// An adapter keeps completions to itself for a while.
    Withhold,
    /// A stack dies.
    Crash,
    /// A stack comes to an orderly end.
    Stop,
    /// A stack stands still for so long that its peers give it up.
    Freeze,
    /// An operator changes what goes inline.
    Tune,
    /// A stack that is gone comes back.
    Revive(usize),
    /// One end of a link learns that the other is gone (direct control).
    Tell { cable: usize, side: usize },
}

impl Action {
    /// Whether a connection comes to life by it.
    pub(super) fn opens(&self) -> bool {
        match self {
            Action::Open { .. } | Action::Begin { .. } | Action::Arrive => true,
            Action::Reset { .. }
            | Action::Abort(..)
            | Action::Pause
            | Action::Withhold
            | Action::Crash
            | Action::Stop
            | Action::Freeze
            | Action::Tune
            | Action::Revive(_)
            | Action::Tell { .. } => false,
        }
    }

    /// Whether it still happens when the time of faults is over.
    pub(super) fn is_needed(&self) -> bool {
        match self {
            Action::Open { .. }
            | Action::Begin { .. }
            | Action::Tell { .. }
            | Action::Abort(_, Why::HalfOpen) => true,
            Action::Arrive
            | Action::Reset { .. }
            | Action::Abort(_, Why::Wish)
            | Action::Pause
            | Action::Withhold
            | Action::Crash
            | Action::Stop
            | Action::Freeze
            | Action::Tune
            | Action::Revive(_) => false,
        }
    }
}

impl World {
    pub(super) fn schedule(&mut self, after: Ns, action: Action) {
        let due = self.now() + after;
        self.agenda_count += 1;
        self.agenda.insert((due, self.agenda_count), action);
    }

    /// The next of a row of faults that come every so often.
    fn schedule_next(&mut self, every: Ns, action: Action) {
        if every > 0 && self.now() < self.options.faults_until && !self.winds_up {
            let after = self.numbers.between(1, 2 * every);
            self.schedule(after, action);
        }
    }

    /// What is known from the beginning.
    pub(super) fn schedule_all(&mut self) {
        for _ in 0..self.options.conns {
            let after = self.numbers.below(self.options.arrivals_within);
            self.schedule(after, Action::Arrive);
        }
        let faults = self.options.faults.clone();
        self.schedule_next(faults.pause_every, Action::Pause);
        self.schedule_next(faults.withhold_every, Action::Withhold);
        self.schedule_next(faults.crash_every, Action::Crash);
        self.schedule_next(faults.stop_every, Action::Stop);
        self.schedule_next(faults.freeze_every, Action::Freeze);
        self.schedule_next(faults.tune_every, Action::Tune);
    }

    /// Does what is due.
    pub(super) fn run_agenda(&mut self) -> Result<(), NoStack> {
        while let Some(entry) = self.agenda.first_entry() {
            if entry.key().0 > self.clock.now() {
                break;
            }
            let action = entry.remove();
            self.act(action)?;
            self.idle = 0;
            self.jump = US;
        }
        Ok(())
    }

    fn act(&mut self, action: Action) -> Result<(), NoStack> {
        match action {
            Action::Arrive => return self.arrive(),
            Action::Open {
                stack,
                life,
                tag,
                conn,
                open,
            } => self.open(stack, life, tag, (conn, open)),
            Action::Begin {
                stack,
                life,
                tag,
                end,
                role,
            } => self.begin(stack, life, tag, (end, role)),
            Action::Reset { pipe, tag } => self.reset_pipe(pipe, tag),
            Action::Abort(tag, why) => self.abort(tag, why),
            Action::Revive(index) => {
                if self.stacks[index].is_none() {
                    self.bear(index)?;
                }
            }
            Action::Tell { cable, side } => self.tell(cable, side),
            Action::Pause
            | Action::Withhold
            | Action::Crash
            | Action::Stop
            | Action::Freeze
            | Action::Tune => self.befall(action),
        }
        Ok(())
    }

    /// Something befalls a stack, whichever.
    fn befall(&mut self, action: Action) {
        let index = self.numbers.below(self.stacks.len() as u64) as usize;
        let faults = self.options.faults.clone();
        let every = match action {
            Action::Pause => {
                let pause = self.numbers.between(1, faults.pause_max);
                let until = self.now() + pause;
                let (kind, who) = if self.numbers.flip() {
                    ("pause", &mut self.paused_until)
                } else {
                    ("pause of the worker", &mut self.worker_paused_until)
                };
                who[index] = until;
                lock(&self.book).fault(kind, index, || format!("for {pause} ns"));
                faults.pause_every
            }
            Action::Withhold => {
                let until = self.now() + self.numbers.between(1, faults.withhold_max);
                if let Some(stack) = &self.stacks[index] {
                    lock(&stack.adapter).withhold(until);
                    lock(&self.book).fault("completions withheld", index, || {
                        format!("until {until} ns")
                    });
                }
                faults.withhold_every
            }
            Action::Crash => {
                if self.stacks[index].is_some() {
                    self.crash(index);
                    self.revive_later(index);
                }
                faults.crash_every
            }
            Action::Stop => {
                self.stop(index);
                faults.stop_every
            }
            Action::Freeze => {
                self.freeze(index);
                faults.freeze_every
            }
            Action::Tune => {
                let rule = inline_rule(&mut self.numbers);
                if let Some(stack) = &mut self.stacks[index] {
                    stack.set_inline(rule);
                }
                lock(&self.book).fault("inline rule changed", index, || format!("{rule:?}"));
                faults.tune_every
            }
            Action::Arrive
            | Action::Open { .. }
            | Action::Begin { .. }
            | Action::Reset { .. }
            | Action::Abort(..)
            | Action::Revive(_)
            | Action::Tell { .. } => 0,
        };
        self.schedule_next(every, action);
    }

    pub(super) fn revive_later(&mut self, index: usize) {
        let away = self.numbers.between(1, self.options.faults.crash_max);
        self.schedule(away, Action::Revive(index));
    }

    /// A stack dies without a word: its device leaves the fabric first.
    pub(super) fn crash(&mut self, index: usize) {
        let Some(stack) = self.stacks[index].take() else {
            return;
        };
        let life = stack.life;
        lock(&self.net).lose_stack(index);
        drop(stack);
        lock(&self.book).fault("crash", index, || format!("of life {life}"));
        self.bury(index, life, "a stack crashed");
    }

    /// A stack is gone, one way or the other.
    pub(super) fn bury(&mut self, index: usize, life: u32, why: &'static str) {
        lock(&self.board).adapters[index] = None;
        lock(&self.book).lose_stack(index, why);
        self.forget_ends_of(index, life);
    }

    /// A stack stands still for seconds: handshakes run out of time, TEST LINK goes unanswered.
    fn freeze(&mut self, index: usize) {
        let pause = self.numbers.between(S, 45 * S);
        self.paused_until[index] = self.now() + pause;
        let mut book = lock(&self.book);
        book.excuse_stack(index, "a stack stood still for seconds");
        book.fault("freeze", index, || format!("for {} ms", pause / MS));
    }

    /// A stack begins its orderly end.
    fn stop(&mut self, index: usize) {
        let now = self.now();
        let Some(managed) = self.stacks[index]
            .as_mut()
            .and_then(|stack| stack.managed())
        else {
            return;
        };
        managed.stop(now);
        let mut book = lock(&self.book);
        book.excuse_stack(index, "a stack was stopped");
        book.fault("stop", index, String::new);
    }

    fn abort(&mut self, tag: Tag, why: Why) {
        let why = why.text();
        let stack = lock(&self.book).end(tag).stack;
        let is_open = lock(&self.book).end(tag).stage == Stage::Open;
        if let Some(stack) = self.stacks[stack].as_mut().filter(|_| is_open) {
            let mut book = lock(&self.book);
            book.excuse(tag, why);
            book.end(tag).aborted = true;
            book.fault("abort", stack.index, || format!("{tag:?}: {why}"));
            drop(book);
            stack.abort(tag);
        }
    }

    fn reset_pipe(&mut self, pipe: usize, tag: Tag) {
        lock(&self.net).break_pipe(pipe);
        let mut book = lock(&self.book);
        book.excuse(tag, "its TCP connection was reset");
        let stack = book.end(tag).stack;
        book.fault("TCP reset", stack, || {
            format!("connection {}", tag.number())
        });
    }
}
