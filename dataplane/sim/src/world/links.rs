//! Links between stacks and the connections on them, set up as a handshake would leave them.

use super::World;
use super::agenda::Action;
use crate::book::lock;
use crate::checker::stream::{Honesty, Stage, Tag};
use crate::options::{Ns, US};
use crate::player::{Ending, Script};
use crate::stack::{NoStack, Stack, counts_credits};

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

/// A link between two stacks.
#[derive(Clone, Debug)]
pub(super) struct Cable {
    pub(super) ends: [CableEnd; 2],
}

impl Cable {
    pub(super) fn is_of(&self, stack: usize, life: u32) -> bool {
        self.ends
            .iter()
            .any(|end| end.stack == stack && end.life == life)
    }

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
        let pair = [first.min(second), first.max(second)];
        self.make_cables(pair)?;
        let usable: Vec<usize> = (0..self.cables.len())
            .filter(|at| {
                let cable = &self.cables[*at];
                cable.is_between(pair) && cable.is(EndState::Up)
            })
            .collect();
        if usable.is_empty() || !self.reserve(usable) {
            self.schedule(RETRY, Action::Arrive);
        }
        Ok(())
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
            let Some(stack) = self.stacks[index].as_mut() else {
                break;
            };
            let Some((link, qpn)) = stack.make_link(number, pair[1 - side])? else {
                break;
            };
            made.push((stack.life, link, qpn));
        }
        let [first, second] = made[..] else {
            // One is dead or has no link left: what was made goes.
            if let (Some((_, link, _)), Some(stack)) = (made.first(), &mut self.stacks[pair[0]]) {
                stack.unmake_link(*link);
            }
            return Ok(());
        };
        let options = pair.map(|index| self.options.stacks[index].clone());
        let honest = pair
            .iter()
            .all(|index| Some(*index) != self.options.faults.liar);
        let counted = counts_credits(&options[0], &options[1]) && honest;
        let adapters = pair.map(|index| self.stacks[index].as_ref().map(|s| s.adapter.clone()));
        for (side, (own, peer)) in [(first, second), (second, first)].into_iter().enumerate() {
            if let (Some(stack), Some(other)) = (&mut self.stacks[pair[side]], &adapters[1 - side])
            {
                let of_peer = honest.then(|| (other.clone(), peer.2));
                lock(&stack.adapter).name(own.2, (number, counted), of_peer);
                stack.connect(own.1, peer.2, &options[1 - side])?;
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
        if !honest {
            lock(&self.book).break_cable(number, "one of its ends lies");
        }
        self.note(&[number as u64], || {
            format!("link {number} between stacks {pair:?}")
        });
        Ok(())
    }

    /// Reserves a connection on one of the links; `false` if there is no place for it now.
    fn reserve(&mut self, usable: Vec<usize>) -> bool {
        let number = self.numbers.pick(&usable);
        let ends = self.cables[number].ends;
        let has_place = |end: &super::links::CableEnd| {
            let stack = self.stacks[end.stack].as_ref();
            stack.is_some_and(|stack| stack.has_place())
        };
        if !ends.iter().all(has_place) {
            return false;
        }
        let liar = self.options.faults.liar;
        let honesty = if ends.iter().any(|end| Some(end.stack) == liar) {
            Honesty::Hostile
        } else {
            Honesty::Honest
        };
        let stacks = ends.map(|end| end.stack);
        let conn = lock(&self.book).add_conn(stacks, number, honesty);
        let tags = [Tag::new(conn, 0), Tag::new(conn, 1)];
        let mut offers = Vec::new();
        for (end, tag) in ends.iter().zip(tags) {
            let script = self.script();
            lock(&self.scripts).insert(tag, script);
            let stack = self.stacks[end.stack].as_mut();
            offers.extend(stack.and_then(|stack| stack.reserve(tag, end.link)));
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
            let Some(stack) = self.stacks[end.stack].as_ref() else {
                continue;
            };
            let open = stack.conn(tags[side], &own, &peer);
            let action = Action::Open {
                stack: end.stack,
                life: end.life,
                tag: tags[side],
                conn: own.conn,
                open,
            };
            let after = self.numbers.below(slow);
            self.schedule(after, action);
        }
        if self.numbers.chance(self.options.faults.abort_chance) {
            let tag = self.numbers.pick(&tags);
            let after = self.numbers.below(self.options.faults_until);
            self.schedule(after, Action::Abort(tag));
        }
        true
    }

    fn script(&mut self) -> Script {
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
        (conn, open): (pollux_worker::ConnId, Box<pollux_worker::OpenConn>),
    ) {
        let is_lost = lock(&self.book).end(tag.peer()).stage == Stage::Lost;
        let gives_up = is_lost && self.numbers.flip();
        let peer = lock(&self.book).end(tag.peer()).stack;
        if self.stacks[peer].as_ref().is_some_and(Stack::has_backlog) {
            // The peer's reservation is not in its mailbox yet, so it has not announced its token.
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
        let Some(stack) = self.stack_in(index, life) else {
            return;
        };
        if gives_up {
            // The handshake broke off.
            stack.send(pollux_worker::Command::AbortConn(conn));
            lock(&self.book).end(tag).stage = Stage::Lost;
            return;
        }
        stack.send(pollux_worker::Command::OpenConn { conn, open });
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
        if !book.broken_cables.contains_key(&cable) {
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
        let end = self.cables[cable].ends[side];
        if let Some(stack) = self.stack_in(end.stack, end.life) {
            stack.release_link(end.link);
        }
        let end = &mut self.cables[cable].ends[side];
        if end.state != EndState::Gone {
            end.state = EndState::Down;
        }
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
