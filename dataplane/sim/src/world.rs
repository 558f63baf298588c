//! One world: stacks on a fabric inside this process, a clock that the world moves, an agenda of what
//! is to happen, and the end at which everything has to have come to an end.
//!
//! ```text
//!   faults happen, connections come and go      until the options' time is over
//!   everybody is calm; nobody is lazy           until every connection has ended
//!   links are taken back                        until none is left
//!   the census is taken
//! ```
//!
//! A step is one pass of one worker, chosen by the seed. When nobody has anything to do the clock
//! jumps, further each time, at most to the next entry of the agenda.

mod agenda;
mod ending;
mod handshakes;
mod links;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use pollux_provider::soft::{DeviceOptions, Fabric, Personality};
use pollux_worker::{Clock, Progress};

use crate::book::{Book, Detail, Event, Figures, Shared, Violation, lock};
use crate::checker::stream::Stage;
use crate::clock::SimClock;
use crate::device::{SimDevice, gid};
use crate::faults::{Adapter, Board, Temper};
use crate::net::Net;
use crate::numbers::Numbers;
use crate::options::{Control as Kind, MS, Ns, Options, US};
use crate::player::{Order, Player, Scripts};
use crate::stack::{Control, Direct, Managed, NoStack, Stack, Word};

use agenda::Action;
use links::Cable;

/// The longest jump of the clock while nobody has anything to do.
const JUMP_MAX: Ns = 250 * MS;
/// Steps after which a world that has not ended is wrong, whatever it does.
const STEPS_MAX: u64 = 4_000_000;
/// Credits are counted in the midst of a world at most this often.
const CREDIT_CHECKS_MAX: u32 = 4;

/// What became of a world.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// One number for everything that happened.
    pub digest: u64,
    /// What was counted.
    pub figures: Figures,
    /// What was wrong, if anything.
    pub violation: Option<Violation>,
    /// The story, if it was asked for.
    pub story: Vec<String>,
}

/// A world.
pub struct World {
    options: Options,
    numbers: Numbers,
    clock: SimClock,
    fabric: Fabric,
    book: Shared<Book>,
    board: Shared<Board>,
    net: Shared<Net>,
    scripts: Scripts,
    stacks: Vec<Option<Stack>>,
    lives: Vec<u32>,
    paused_until: Vec<Ns>,
    /// Until then the worker has no core, while control goes on.
    worker_paused_until: Vec<Ns>,
    /// When control next looks at its news.
    control_at: Vec<Ns>,
    agenda: BTreeMap<(Ns, u64), Action>,
    agenda_count: u64,
    cables: Vec<Cable>,
    winds_up: bool,
    /// Every stack is being stopped.
    ends: bool,
    /// Stacks that had nothing to do since somebody had.
    idle: u64,
    jump: Ns,
    progress_at: Ns,
    progress: u64,
    credit_checks: u32,
}

impl World {
    /// The world of these options before its first step.
    ///
    /// # Errors
    /// [`NoStack`]: the system refuses memory or descriptors.
    pub fn new(options: Options, detail: Detail) -> Result<World, NoStack> {
        let mut numbers = Numbers::new(options.seed).fork(2);
        let count = options.stacks.len();
        let clock = SimClock::default();
        let book = Arc::new(Mutex::new(Book::new(detail)));
        let faults = &options.faults;
        let net = Net::new(
            (book.clone(), clock.clone()),
            numbers.fork(3),
            options.net,
            (faults.liar, faults.lie_chance),
        );
        let board = Board {
            stacks: options.stacks.clone(),
            liar: faults.liar,
            adapters: vec![None; count],
        };
        let mut world = World {
            clock,
            fabric: Fabric::with_seed(numbers.word()),
            book,
            board: Arc::new(Mutex::new(board)),
            net: Arc::new(Mutex::new(net)),
            scripts: Scripts::default(),
            stacks: (0..count).map(|_| None).collect(),
            lives: vec![0; count],
            paused_until: vec![0; count],
            worker_paused_until: vec![0; count],
            control_at: vec![0; count],
            agenda: BTreeMap::new(),
            agenda_count: 0,
            cables: Vec::new(),
            winds_up: false,
            ends: false,
            idle: 0,
            jump: US,
            progress_at: 0,
            progress: 0,
            credit_checks: 0,
            numbers,
            options,
        };
        for index in 0..count {
            world.bear(index)?;
        }
        world.schedule_all();
        Ok(world)
    }

    /// Runs a world to its end.
    ///
    /// # Errors
    /// [`NoStack`]: the system refuses memory or descriptors. What is wrong with the world is in the
    /// outcome.
    pub fn run(options: Options, detail: Detail) -> Result<Outcome, NoStack> {
        let mut world = World::new(options, detail)?;
        world.live()?;
        Ok(world.outcome())
    }

    /// The book of this world, for whoever has to read it after a panic.
    #[must_use]
    pub fn book(&self) -> Shared<Book> {
        self.book.clone()
    }

    /// Runs until the end or until something is wrong.
    ///
    /// # Errors
    /// [`NoStack`]: the system refuses memory or descriptors.
    pub fn live(&mut self) -> Result<(), NoStack> {
        while !self.is_wrong() && !self.may_wind_up() {
            self.step()?;
        }
        if !self.is_wrong() {
            self.wind_up();
        }
        while !self.is_wrong() && !self.all_over() {
            self.step()?;
            self.check_liveness();
        }
        self.end()
    }

    /// What became of it.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        let book = lock(&self.book);
        let mut figures = book.figures.clone();
        figures.worlds = 1;
        Outcome {
            digest: book.digest(),
            figures,
            violation: book.violation().cloned(),
            story: book.story().map(str::to_owned).collect(),
        }
    }

    fn now(&self) -> Ns {
        self.clock.now()
    }

    fn is_wrong(&self) -> bool {
        lock(&self.book).violation().is_some()
    }

    fn all_over(&self) -> bool {
        lock(&self.book).all_over() && !self.agenda.values().any(Action::opens)
    }

    fn note(&self, values: &[u64], text: impl FnOnce() -> String) {
        lock(&self.book).note(Event::World, 0, values, text);
    }

    /// A stack begins a life.
    fn bear(&mut self, index: usize) -> Result<(), NoStack> {
        self.lives[index] += 1;
        let life = self.lives[index];
        let label = (index as u64) << 32 | u64::from(life);
        let adapter = Adapter::new(
            index,
            (self.book.clone(), self.board.clone()),
            self.clock.clone(),
            self.numbers.fork(label),
            &self.options.faults,
        );
        if self.winds_up {
            lock(&adapter).set_temper(Temper::Calm);
        }
        let player = Player::new(
            self.book.clone(),
            self.scripts.clone(),
            self.numbers.fork(label ^ 1),
        );
        let options = &self.options.stacks[index];
        let device_options = DeviceOptions {
            personality: Personality::AcceptsAllGives(options.inline_bytes),
            ..DeviceOptions::new(gid(index))
        };
        let soft = self
            .fabric
            .open(device_options)
            .map_err(NoStack::of("a device"))?;
        let device = SimDevice::new(soft, adapter.clone());
        let inside = (player, self.clock.clone());
        let (control, worker) = match self.options.control {
            Kind::Direct => {
                let book = self.book.clone();
                let made = Direct::new((index, life), device, inside, options, book);
                let (direct, worker) = made?;
                (Control::Direct(Box::new(direct)), worker)
            }
            Kind::Managed => {
                let around = (
                    self.book.clone(),
                    self.net.clone(),
                    self.numbers.fork(label ^ 2),
                );
                let made = Managed::new((index, life), device, inside, options, around);
                let (managed, worker) = made?;
                (Control::Managed(Box::new(managed)), worker)
            }
        };
        lock(&self.board).adapters[index] = Some(adapter.clone());
        let stack = Stack::new((control, worker), (index, life), adapter, self.book.clone());
        self.stacks[index] = Some(stack);
        self.paused_until[index] = 0;
        self.worker_paused_until[index] = 0;
        Ok(())
    }

    /// The stack in that life, if it lives.
    fn stack_in(&mut self, index: usize, life: u32) -> Option<&mut Stack> {
        self.stacks[index]
            .as_mut()
            .filter(|stack| stack.life == life)
    }

    fn is_awake(&self, index: usize) -> bool {
        self.stacks[index].is_some() && self.paused_until[index] <= self.now()
    }

    /// One pass of one stack, and what is due before it.
    fn step(&mut self) -> Result<(), NoStack> {
        self.run_agenda()?;
        self.give_half_open_up();
        {
            let mut book = lock(&self.book);
            book.step += 1;
            book.now = self.clock.now();
            let step = book.step;
            if step > STEPS_MAX {
                let awake = self.stacks.iter().flatten().map(Stack::state);
                let awake: Vec<String> = awake.collect();
                book.object(|| format!("no end after {step} steps: {awake:?}"));
            }
        }
        let awake: Vec<usize> = (0..self.stacks.len())
            .filter(|index| self.is_awake(*index))
            .collect();
        if awake.is_empty() {
            self.jump_on();
            return Ok(());
        }
        let index = self.numbers.pick(&awake);
        let was_busy = self.turn(index);
        let (low, high) = self.options.pass;
        self.clock.advance(self.numbers.between(low, high));
        if was_busy {
            self.idle = 0;
            self.jump = US;
        } else {
            self.idle |= 1 << index;
        }
        if awake.iter().all(|index| self.idle & (1 << index) != 0) {
            self.idle = 0;
            self.at_rest()?;
            self.jump_on();
        }
        Ok(())
    }

    /// A stack's worker, its control and its player, each if it is their turn; whether anybody had
    /// something to do.
    fn turn(&mut self, index: usize) -> bool {
        let now = self.now();
        let Some(stack) = self.stacks[index].as_mut() else {
            return false;
        };
        let stirred = lock(&self.book).stirred;
        let runs = self.worker_paused_until[index] <= now;
        // The others have had their turns since the last pass: what they did is for the last look.
        let chance = self.options.stacks[index].sleep_chance;
        let progress = if !runs {
            Progress::Idle
        } else if stack.may_sleep() && self.numbers.chance(chance) {
            stack.fall_asleep(now)
        } else {
            stack.pass(now)
        };
        let mut was_busy = progress == Progress::Busy;
        was_busy |= lock(&self.book).stirred != stirred;
        let mut words = Vec::new();
        if now >= self.control_at[index] {
            was_busy |= stack.has_mail(now);
            let most = self.numbers.between(1, 8) as usize;
            words = stack.control(now, most);
            let delay = self.options.faults.control_delay;
            if delay > 0 && !self.winds_up {
                self.control_at[index] = now + self.numbers.below(delay);
            }
        }
        let owed = stack.owed();
        if !owed.is_empty() && self.numbers.chance(300_000) {
            was_busy = true;
            stack.order(Order::Turn(self.numbers.pick(&owed)));
        }
        for word in words {
            was_busy = true;
            self.handle_word(index, word);
        }
        was_busy
    }

    fn handle_word(&mut self, index: usize, word: Word) {
        match word {
            Word::LinkUp(cable) => self.link_is_up(index, cable),
            Word::LinkDown(cable) => self.link_is_down(index, cable),
            Word::LinkGone(cable) => self.link_is_gone(index, cable),
            Word::Refused(tag, why) => self.refused(tag, &why),
            Word::Stopped => self.has_stopped(index),
            // Only asked for while the world holds its breath (`ending.rs`).
            Word::Snapshot(_) => {}
        }
    }

    /// The clock goes on to the next thing that happens by itself, but not too far at once: drivers
    /// and workers have timers of their own.
    fn jump_on(&mut self) {
        let now = self.now();
        let agenda = self.agenda.keys().next().map(|(due, _)| *due);
        let pauses = self.paused_until.iter().chain(&self.worker_paused_until);
        let pauses = pauses.copied();
        let living =
            (0..self.stacks.len()).filter_map(|index| Some((index, self.stacks[index].as_ref()?)));
        let control = living
            .clone()
            .filter(|(_, stack)| stack.has_mail(now))
            .map(|(index, _)| self.control_at[index]);
        let themselves = living.filter_map(|(_, stack)| stack.next_due());
        let next = agenda
            .into_iter()
            .chain(pauses)
            .chain(control)
            .chain(themselves)
            .filter(|due| *due > now)
            .min();
        let jump = next.map_or(self.jump, |next| self.jump.min(next - now));
        self.clock.advance(jump);
        self.jump = (self.jump * 2).min(JUMP_MAX);
    }

    /// Notes whether something useful has happened; objects when nothing has for too long.
    fn check_liveness(&mut self) {
        let mut book = lock(&self.book);
        if book.progress != self.progress {
            self.progress = book.progress;
            self.progress_at = self.clock.now();
            return;
        }
        let waited = self.clock.now() - self.progress_at;
        let is_open = |stage| matches!(stage, Stage::Coming | Stage::Open);
        let stuck = book
            .conns
            .iter()
            .position(|conn| conn.ends.iter().any(|end| is_open(end.stage)));
        let Some(stuck) = stuck else { return };
        let needs_no_patience = book.conns.iter().position(|conn| {
            conn.excuse.is_none() && conn.ends.iter().any(|end| is_open(end.stage))
        });
        let (stuck, limit) = match needs_no_patience {
            Some(conn) => (conn, ending::PATIENCE),
            None => (stuck, ending::GUARD_PATIENCE),
        };
        if waited > limit {
            let conn = book.conns[stuck].clone();
            book.object(|| format!("nothing moves for {} ms: {conn:?}", waited / MS));
        }
    }
}
