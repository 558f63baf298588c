//! What is to happen at a time: connections, pauses, crashes.

use pollux_worker::{Clock, OpenConn};

use super::World;
use crate::book::lock;
use crate::checker::stream::{Stage, Tag};
use crate::options::{Ns, US};
use crate::stack::NoStack;

/// Something that happens at a time.
#[derive(Debug)]
pub(super) enum Action {
    /// A connection is wanted.
    Arrive,
    /// One end of a reserved connection is opened.
    Open {
        stack: usize,
        life: u32,
        tag: Tag,
        conn: pollux_worker::ConnId,
        open: Box<OpenConn>,
    },
    /// Control resets a connection.
    Abort(Tag),
    /// A stack is not polled for a while.
    Pause,
    /// An adapter keeps completions to itself for a while.
    Withhold,
    /// A stack dies.
    Crash,
    /// A stack that died comes back.
    Revive(usize),
    /// One end of a link learns that the other is gone.
    Tell { cable: usize, side: usize },
}

impl Action {
    /// Whether a connection comes to life by it.
    pub(super) fn opens(&self) -> bool {
        match self {
            Action::Open { .. } | Action::Arrive => true,
            Action::Abort(_)
            | Action::Pause
            | Action::Withhold
            | Action::Crash
            | Action::Revive(_)
            | Action::Tell { .. } => false,
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
        let faults = self.options.faults.clone();
        match action {
            Action::Arrive => return self.arrive(),
            Action::Open {
                stack,
                life,
                tag,
                conn,
                open,
            } => self.open(stack, life, tag, (conn, open)),
            Action::Abort(tag) => self.abort(tag),
            Action::Pause => {
                let index = self.any_stack();
                let pause = self.numbers.between(1, faults.pause_max);
                self.paused_until[index] = self.now() + pause;
                lock(&self.book).fault("pause", index, || format!("for {pause} ns"));
                self.schedule_next(faults.pause_every, Action::Pause);
            }
            Action::Withhold => {
                let index = self.any_stack();
                let until = self.now() + self.numbers.between(1, faults.withhold_max);
                if let Some(stack) = &self.stacks[index] {
                    lock(&stack.adapter).withhold(until);
                    lock(&self.book).fault("completions withheld", index, || {
                        format!("until {until} ns")
                    });
                }
                self.schedule_next(faults.withhold_every, Action::Withhold);
            }
            Action::Crash => {
                let index = self.any_stack();
                if self.stacks[index].is_some() {
                    self.crash(index);
                    let away = self.numbers.between(1, faults.crash_max);
                    self.schedule(away, Action::Revive(index));
                }
                self.schedule_next(faults.crash_every, Action::Crash);
            }
            Action::Revive(index) => {
                if self.stacks[index].is_none() {
                    self.bear(index)?;
                }
            }
            Action::Tell { cable, side } => self.tell(cable, side),
        }
        Ok(())
    }

    fn any_stack(&mut self) -> usize {
        self.numbers.below(self.stacks.len() as u64) as usize
    }

    /// A stack dies without a word: its device leaves the fabric first.
    pub(super) fn crash(&mut self, index: usize) {
        let Some(stack) = self.stacks[index].take() else {
            return;
        };
        let life = stack.life;
        drop(stack);
        let mut book = lock(&self.book);
        book.fault("crash", index, || format!("of life {life}"));
        book.progress += 1;
        for (number, cable) in self.cables.iter().enumerate() {
            if cable.is_of(index, life) {
                book.break_cable(number, "a stack crashed");
            }
        }
        let lives = self.cables.iter().map(|cable| cable.is_of(index, life));
        let of_life: Vec<bool> = lives.collect();
        for conn in &mut book.conns {
            if !of_life[conn.cable] {
                continue;
            }
            for end in &mut conn.ends {
                if end.stack == index && matches!(end.stage, Stage::Coming | Stage::Open) {
                    end.stage = Stage::Lost;
                    end.sealed = true;
                }
            }
        }
        drop(book);
        self.forget_ends_of(index, life);
    }

    fn abort(&mut self, tag: Tag) {
        let stack = lock(&self.book).end(tag).stack;
        let is_open = lock(&self.book).end(tag).stage == Stage::Open;
        if let Some(stack) = self.stacks[stack].as_mut().filter(|_| is_open) {
            let mut book = lock(&self.book);
            book.excuse(tag, "control aborted it");
            book.fault("abort", stack.index, || format!("{tag:?}"));
            drop(book);
            stack.abort(tag);
        }
    }
}
