//! The end of a world: everybody is calm, every connection ends, everything is given back. And the
//! moments in which it holds its breath, to count the credits.

use std::collections::BTreeMap;

use pollux_worker::{CreditFigures, Snapshot};

use super::links::EndState;
use super::{CREDIT_CHECKS_MAX, World};
use crate::book::lock;
use crate::checker::stream::Stage;
use crate::faults::Temper;
use crate::options::{Control, MS, Ns, S};
use crate::player::Order;
use crate::stack::{NoStack, Stack, Word};

/// Nothing moves for that long, though somebody has work to do and nothing has gone wrong: a wake-up
/// was lost. RNR timers, the slowest thing that an undisturbed link waits for, are 1 ms at most.
pub(super) const PATIENCE: Ns = 3 * S;
/// After faults the guard timers of `proto::conn::close` may have to end something: 60 s each.
pub(super) const GUARD_PATIENCE: Ns = 150 * S;
/// A handshake takes three times the longest wait for a message, 6 s each, at most.
const HANDSHAKE_PATIENCE: Ns = 20 * S;
/// Groups idle for ten minutes at a server and a little longer at a client.
const IDLE_PATIENCE: Ns = 700 * S;
/// Worlds, in a million, that wait for that.
const IDLING_WORLDS: u32 = 60_000;
/// Passes in which a snapshot has to come.
const SNAPSHOT_PASSES: usize = 400;

impl World {
    /// Whether the time of faults is over.
    pub(super) fn may_wind_up(&self) -> bool {
        let limit = self.options.faults_until.max(self.options.arrivals_within);
        self.now() >= limit || self.all_over()
    }

    /// From now on nothing goes wrong any more and nobody is lazy. A liar dies.
    pub(super) fn wind_up(&mut self) {
        self.winds_up = true;
        self.note(&[], || "the time of faults is over".to_owned());
        self.agenda.retain(|_, action| action.is_needed());
        lock(&self.net).calm();
        if let Some(liar) = self.options.faults.liar {
            self.crash(liar);
        }
        self.paused_until.fill(0);
        self.worker_paused_until.fill(0);
        self.control_at.fill(0);
        for stack in self.stacks.iter_mut().flatten() {
            lock(&stack.adapter).set_temper(Temper::Calm);
            stack.order(Order::WindUp);
        }
        self.progress_at = self.now();
    }

    /// Nobody has anything to do: a moment to count the credits, now and then.
    pub(super) fn at_rest(&mut self) -> Result<(), NoStack> {
        let is_quiet = self.jump >= MS
            && self
                .paused_until
                .iter()
                .chain(&self.worker_paused_until)
                .all(|until| *until <= self.now())
            && self.stacks.iter().flatten().all(|stack| {
                lock(&stack.adapter).next_due().is_none()
                    && !stack.has_mail(self.now())
                    && stack.is_serving()
            });
        if is_quiet && self.credit_checks < CREDIT_CHECKS_MAX {
            self.credit_checks += 1;
            self.count_credits();
        }
        Ok(())
    }

    /// Takes the links back and counts what is left.
    pub(super) fn end(&mut self) -> Result<(), NoStack> {
        if self.is_wrong() {
            return Ok(());
        }
        self.note(&[], || "every connection has ended".to_owned());
        self.settle()?;
        self.count_credits();
        lock(&self.book).break_all("the world ends");
        match self.options.control {
            Control::Direct => self.take_links_back()?,
            Control::Managed => self.stop_all()?,
        }
        for stack in self.stacks.iter().flatten() {
            if let Some(left) = stack.leftovers() {
                lock(&self.book).object(|| format!("not everything was given back: {left}"));
            }
        }
        Ok(())
    }

    fn take_links_back(&mut self) -> Result<(), NoStack> {
        for cable in 0..self.cables.len() {
            for side in 0..2 {
                if self.cables[cable].ends[side].state != EndState::Gone {
                    self.release(cable, side);
                }
            }
        }
        let begun = self.now();
        while !self.is_wrong() && self.links_left() > 0 {
            self.step()?;
            if self.now() - begun > PATIENCE {
                lock(&self.book).object(|| "links are not given back".to_owned());
            }
        }
        Ok(())
    }

    /// Every stack comes to an orderly end; in some worlds the groups have ended by themselves before,
    /// because nobody used them.
    fn stop_all(&mut self) -> Result<(), NoStack> {
        let idles = self.numbers.chance(IDLING_WORLDS);
        let begun = self.now();
        while idles && !self.is_wrong() && self.groups_left() > 0 {
            self.step()?;
            if self.now() - begun > IDLE_PATIENCE {
                lock(&self.book).object(|| "groups that nobody uses do not end".to_owned());
            }
        }
        let begun = self.now();
        let now = self.now();
        for managed in self.stacks.iter_mut().flatten().filter_map(Stack::managed) {
            managed.stop(now);
        }
        self.ends = true;
        while !self.is_wrong() && self.stacks.iter().any(Option::is_some) {
            self.step()?;
            if self.now() - begun > HANDSHAKE_PATIENCE {
                lock(&self.book).object(|| "a stack does not stop".to_owned());
            }
        }
        Ok(())
    }

    fn groups_left(&mut self) -> usize {
        let managed = self.stacks.iter_mut().flatten().filter_map(Stack::managed);
        managed.map(|managed| managed.groups()).sum()
    }

    /// A stack has come to its orderly end: nothing may be left of it.
    pub(super) fn has_stopped(&mut self, index: usize) {
        let Some(stack) = self.stacks[index].take() else {
            return;
        };
        if let Some(left) = stack.leftovers() {
            lock(&self.book).object(|| format!("not everything was given back: {left}"));
        }
        let (life, open) = (stack.life, lock(&self.book).open_at(index));
        if let Some(tag) = open {
            lock(&self.book).object(|| format!("{tag:?} is open after the end of its stack"));
        }
        drop(stack);
        self.bury(index, life, "a stack was stopped");
        if !self.winds_up {
            self.revive_later(index);
        }
    }

    /// Lets everything that is under way arrive.
    fn settle(&mut self) -> Result<(), NoStack> {
        let begun = self.now();
        while !self.is_wrong() && self.now() - begun < 20 * MS {
            self.step()?;
        }
        Ok(())
    }

    /// Credits that one end holds and those that the other keeps back are all there are: nothing is
    /// under way now.
    fn count_credits(&mut self) {
        let posts = lock(&self.book).figures.posts;
        let mut counted: BTreeMap<usize, Vec<CreditFigures>> = BTreeMap::new();
        for index in 0..self.stacks.len() {
            let snapshot = self.snapshot(index);
            let Some(stack) = &self.stacks[index] else {
                continue;
            };
            for link in snapshot.iter().flat_map(|snapshot| &snapshot.links) {
                let cable = lock(&stack.adapter).cable(link.qp);
                if let (Some(cable), Some(credits)) = (cable, link.credits) {
                    counted.entry(cable).or_default().push(credits);
                }
            }
        }
        let mut book = lock(&self.book);
        if book.figures.posts != posts {
            // A timer of control has said something meanwhile, which is under way.
            return;
        }
        for (number, ends) in counted {
            let cable = book.cables[number].clone();
            let [first, second] = ends[..] else {
                continue;
            };
            if cable.broken.is_some() {
                continue;
            }
            book.figures.credit_checks += 1;
            for (own, peer) in [(first, second), (second, first)] {
                if own.held + peer.to_return != own.initial {
                    book.object(|| {
                        format!(
                            "credits are not conserved on {cable:?}: held {} of {}, the peer keeps {}",
                            own.held, own.initial, peer.to_return
                        )
                    });
                }
            }
        }
    }

    fn snapshot(&mut self, index: usize) -> Option<Box<Snapshot>> {
        let now = self.now();
        let stack = self.stacks[index]
            .as_mut()
            .filter(|stack| stack.is_serving())?;
        stack.ask_snapshot();
        let mut words = Vec::new();
        for _ in 0..SNAPSHOT_PASSES {
            stack.pass(now);
            words.extend(stack.control(now, 8));
            let taken = words
                .iter()
                .position(|word| matches!(word, Word::Snapshot(_)));
            if let Some(at) = taken {
                let Word::Snapshot(snapshot) = words.swap_remove(at) else {
                    continue;
                };
                for word in words {
                    self.handle_word(index, word);
                }
                return Some(snapshot);
            }
        }
        lock(&self.book).object(|| format!("stack {index} gives no snapshot"));
        None
    }

    /// Connections that are not over, for whoever tells the story.
    #[must_use]
    pub fn unfinished(&self) -> Vec<String> {
        let book = lock(&self.book);
        let is_open = |stage| matches!(stage, Stage::Coming | Stage::Open);
        book.conns
            .iter()
            .enumerate()
            .filter(|(_, conn)| conn.ends.iter().any(|end| is_open(end.stage)))
            .map(|(number, conn)| format!("connection {number}: {conn:?}"))
            .collect()
    }
}
