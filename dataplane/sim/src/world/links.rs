//! Links between stacks and the connections on them, set up as a handshake would leave them.

use pollux_worker::{Command, ConnId, OpenConn};

use super::World;
use super::agenda::{Action, Why};
use crate::book::lock;
use crate::checker::stream::{Route, Stage, Tag};
use crate::options::{Control, Ns, US};
use crate::player::{Ending, Script};
use crate::stack::{Direct, NoStack, Stack};

/// How one end of a link is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum EndState {
    /// Handed to the worker.
    Joining,
    /// Its receives are posted.
    Up,
    /// Failed, or on its way back.
    Down,
    /// Nothing is left of it.
    Gone,
}

/// One end of a link.
#[derive(Clone, Copy, Debug)]
pub(super) struct CableEnd {
    pub(super) stack: usize,
    pub(super) life: u32,
    pub(super) link: u16,
    pub(super) state: EndState,
}

/// A link between two stacks; it has the same number in the book.
#[derive(Clone, Debug)]
pub(super) struct Cable {
    pub(super) ends: [CableEnd; 2],
}

impl Cable {
    pub(super) fn is(&self, state: EndState) -> bool {
        self.ends.iter().all(|end| end.state == state)
    }

    fn is_between(&self, pair: [usize; 2]) -> bool {
        self.ends.map(|end| end.stack) == pair
    }

    /// Whether it carries connections or soon will.
    fn is_alive(&self) -> bool {
        let alive = |end: &CableEnd| matches!(end.state, EndState::Joining | EndState::Up);
        self.ends.iter().all(alive)
    }
}

/// How long after a fruitless attempt a connection is tried again.
const RETRY: Ns = 50 * US;

impl World {
    /// A connection is wanted, between whichever two stacks.
    pub(super) fn arrive(&mut self) -> Result<(), NoStack> {
        if self.winds_up {
            return Ok(());
        }
        let count = self.stacks.len() as u64;
        let first = self.numbers.below(count) as usize;
        let second = (first + 1 + self.numbers.below(count - 1) as usize) % count as usize;
        match self.options.control {
            Control::Direct => self.arrive_directly([first.min(second), first.max(second)]),
            Control::Managed => {
                self.connect([first, second]);
                Ok(())
            }
        }
    }

    fn arrive_directly(&mut self, pair: [usize; 2]) -> Result<(), NoStack> {
        self.make_cables(pair)?;
        let usable: Vec<usize> = (0..self.cables.len())
            .filter(|at| {
                let cable = &self.cables[*at];
                cable.is_between(pair) && cable.is(EndState::Up)
            })
            .collect();
        if usable.is_empty() || !self.reserve(&usable) {
            self.schedule(RETRY, Action::Arrive);
        }
        Ok(())
    }

    fn direct(&mut self, index: usize) -> Option<&mut Direct> {
        self.stacks[index].as_mut()?.direct()
    }

    /// Direct control of a stack in that life, if it lives.
    fn direct_in(&mut self, index: usize, life: u32) -> Option<&mut Direct> {
        self.stack_in(index, life)?.direct()
    }

    /// Makes the links between two stacks that are missing.
    fn make_cables(&mut self, pair: [usize; 2]) -> Result<(), NoStack> {
        let alive = |cable: &&Cable| cable.is_between(pair) && cable.is_alive();
        let missing =
            (self.options.cables as usize).saturating_sub(self.cables.iter().filter(alive).count());
        for _ in 0..missing {
            self.make_cable(pair)?;
        }
        Ok(())
    }

    fn make_cable(&mut self, pair: [usize; 2]) -> Result<(), NoStack> {
        let number = self.cables.len();
        let mut made = Vec::new();
        for (side, index) in pair.into_iter().enumerate() {
            let life = self.lives[index];
            let Some(direct) = self.direct(index) else {
                break;
            };
            let Some((link, qpn)) = direct.make_link(number, pair[1 - side])? else {
                break;
            };
            made.push((life, link, qpn));
        }
        let [first, second] = made[..] else {
            // One is dead or has no link left: what was made goes.
            if let (Some((_, link, _)), Some(direct)) = (made.first(), self.direct(pair[0])) {
                direct.unmake_link(*link);
            }
            return Ok(());
        };
        let options = pair.map(|index| self.options.stacks[index].clone());
        for (side, (own, peer)) in [(first, second), (second, first)].into_iter().enumerate() {
            if let Some(direct) = self.direct(pair[side]) {
                direct.connect(own.1, peer.2, &options[1 - side])?;
            }
        }
        let end = |side: usize, (life, link, _): (u32, u16, u32)| CableEnd {
            stack: pair[side],
            life,
            link,
            state: EndState::Joining,
        };
        self.cables.push(Cable {
            ends: [end(0, first), end(1, second)],
        });
        debug_assert_eq!(lock(&self.book).cables.len(), self.cables.len());
        Ok(())
    }

    /// Reserves a connection on one of the links; `false` if there is no place for it now.
    fn reserve(&mut self, usable: &[usize]) -> bool {
        let number = self.numbers.pick(usable);
        let ends = self.cables[number].ends;
        for end in ends {
            if !self
                .direct(end.stack)
                .is_some_and(|direct| direct.has_place())
            {
                return false;
            }
        }
        let stacks = ends.map(|end| end.stack);
        let honesty = self.honesty(stacks);
        let conn = lock(&self.book).add_conn(stacks, Route::Cable(number), honesty);
        let tags = [Tag::new(conn, 0), Tag::new(conn, 1)];
        let mut offers = Vec::new();
        for (end, tag) in ends.iter().zip(tags) {
            let script = self.script();
            lock(&self.scripts).insert(tag, script);
            let direct = self.direct(end.stack);
            offers.extend(direct.and_then(|direct| direct.reserve(tag, end.link)));
        }
        let [first, second] = offers[..] else {
            return false;
        };
        self.note(&[conn as u64, number as u64], || {
            format!("connection {conn} on link {number} between stacks {stacks:?}")
        });
        // Whoever has the other's announcement may open at once; a slow one takes its time.
        let slow = self.numbers.pick(&[1, 5 * US, 300 * US]);
        for (side, (own, peer)) in [(first, second), (second, first)].into_iter().enumerate() {
            let end = ends[side];
            let tag = tags[side];
            let Some(direct) = self.direct(end.stack) else {
                continue;
            };
            let action = Action::Open {
                stack: end.stack,
                life: end.life,
                tag,
                conn: own.conn,
                open: direct.conn(tag, &own, &peer),
            };
            let after = self.numbers.below(slow);
            self.schedule(after, action);
        }
        self.maybe_abort(tags);
        true
    }

    /// Control may abort a connection at some time.
    pub(super) fn maybe_abort(&mut self, tags: [Tag; 2]) {
        if self.numbers.chance(self.options.faults.abort_chance) {
            let tag = self.numbers.pick(&tags);
            let after = self.numbers.below(self.options.faults_until);
            self.schedule(after, Action::Abort(tag, Why::Wish));
        }
    }

    pub(super) fn script(&mut self) -> Script {
        let most = self.options.bytes_max;
        let total = match self.numbers.below(6) {
            0 => 0,
            1 => self.numbers.below(10.min(most)),
            2 => most,
            _ => self.numbers.below(most + 1),
        };
        let chunk = |numbers: &mut crate::numbers::Numbers| {
            numbers.pick(&[1, 2, 7, 64, 300, 5_000, 70_000])
        };
        let ending = match self.numbers.weighted(&[6, 2, 2, 1]) {
            0 => Ending::Patient,
            1 => Ending::Waiting,
            2 => Ending::Hasty,
            _ => Ending::Abrupt(self.numbers.below(2 * total + 2)),
        };
        Script {
            total,
            chunks: (chunk(&mut self.numbers), chunk(&mut self.numbers)),
            laziness: self.numbers.pick(&[0, 0, 50_000, 500_000]),
            ending,
        }
    }

    /// One end of a connection is opened, unless its stack has died meanwhile.
    pub(super) fn open(
        &mut self,
        index: usize,
        life: u32,
        tag: Tag,
        (conn, open): (ConnId, Box<OpenConn>),
    ) {
        let (is_lost, peer) = {
            let mut book = lock(&self.book);
            let peer = book.end(tag.peer());
            (peer.stage == Stage::Lost, peer.stack)
        };
        let gives_up = is_lost && self.numbers.flip();
        let waits = |direct: &mut Direct| direct.has_orders();
        if self.direct(peer).is_some_and(waits) {
            // The peer's reservation may not have been carried out, so it has not announced its token.
            let (stack, after) = (index, US);
            let action = Action::Open {
                stack,
                life,
                tag,
                conn,
                open,
            };
            return self.schedule(after, action);
        }
        let Some(direct) = self.direct_in(index, life) else {
            return;
        };
        if gives_up {
            // The handshake broke off.
            direct.send(Command::AbortConn(conn));
            lock(&self.book).end(tag).stage = Stage::Lost;
            return;
        }
        direct.send(Command::OpenConn { conn, open });
    }

    fn end_mut(&mut self, index: usize, cable: usize) -> Option<&mut CableEnd> {
        let ends = &mut self.cables.get_mut(cable)?.ends;
        ends.iter_mut().find(|end| end.stack == index)
    }

    pub(super) fn link_is_up(&mut self, index: usize, cable: usize) {
        if let Some(end) = self.end_mut(index, cable)
            && end.state == EndState::Joining
        {
            end.state = EndState::Up;
        }
    }

    /// A link has failed at one end: somebody else than the worker must have done something to it.
    pub(super) fn link_is_down(&mut self, index: usize, cable: usize) {
        if let Some(end) = self.end_mut(index, cable) {
            end.state = EndState::Down;
        }
        let mut book = lock(&self.book);
        if book.cables[cable].broken.is_none() {
            book.object(|| format!("stack {index}: link {cable} failed without a cause"));
        }
    }

    /// Nothing is left at one end; the other learns of it, as by a TEST LINK that is not answered.
    pub(super) fn link_is_gone(&mut self, index: usize, cable: usize) {
        let Some(end) = self.end_mut(index, cable) else {
            return;
        };
        end.state = EndState::Gone;
        let side = usize::from(self.cables[cable].ends[0].stack == index);
        if self.cables[cable].ends[side].state != EndState::Gone {
            let after = self.numbers.below(200 * US);
            self.schedule(after, Action::Tell { cable, side });
        }
    }

    pub(super) fn tell(&mut self, cable: usize, side: usize) {
        self.release(cable, side);
        let end = &mut self.cables[cable].ends[side];
        if end.state != EndState::Gone {
            end.state = EndState::Down;
        }
    }

    /// Takes one end of a link back.
    pub(super) fn release(&mut self, cable: usize, side: usize) {
        let end = self.cables[cable].ends[side];
        if let Some(direct) = self.direct_in(end.stack, end.life) {
            direct.release_link(end.link);
        }
    }

    /// Links that are not gone, at all stacks.
    pub(super) fn links_left(&mut self) -> usize {
        let direct = self.stacks.iter_mut().flatten().filter_map(Stack::direct);
        direct.map(|direct| direct.link_count()).sum()
    }

    /// A stack has died: so have its ends of links.
    pub(super) fn forget_ends_of(&mut self, index: usize, life: u32) {
        for cable in &mut self.cables {
            for end in &mut cable.ends {
                if end.stack == index && end.life == life {
                    end.state = EndState::Gone;
                }
            }
        }
    }
}
