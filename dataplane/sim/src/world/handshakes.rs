//! Connections by handshakes: the world opens TCP connections and hands their ends to control.

use pollux_proto::link::Role;

use super::World;
use super::agenda::{Action, Why};
use crate::book::lock;
use crate::checker::stream::{Honesty, Route, Stage, Tag};
use crate::net::{End, Net};
use crate::options::US;
use crate::stack::Stack;

impl World {
    /// A program of one stack has connected to a program of the other.
    pub(super) fn connect(&mut self, pair: [usize; 2]) {
        let lives = pair.map(|index| self.stacks[index].as_ref().map(|stack| stack.life));
        let [Some(client_life), Some(server_life)] = lives else {
            // Nobody listens, or nobody is there to connect.
            return;
        };
        let honesty = self.honesty(pair);
        let conn = lock(&self.book).add_conn(pair, Route::Any, honesty);
        let tags = [Tag::new(conn, 0), Tag::new(conn, 1)];
        for tag in tags {
            let script = self.script();
            lock(&self.scripts).insert(tag, script);
        }
        for index in pair {
            let managed = self.stacks[index].as_mut().and_then(Stack::managed);
            if managed.is_some_and(|managed| managed.stops()) {
                lock(&self.book).excuse(tags[0], "a stack was stopped");
            }
        }
        let (pipe, [client, server]) = Net::connect(&self.net, pair);
        self.note(&[conn as u64, pair[0] as u64, pair[1] as u64], || {
            format!(
                "connection {conn}: stack {} connects to stack {}",
                pair[0], pair[1]
            )
        });
        let slow = self.numbers.pick(&[1, 20 * US, 500 * US]);
        let begins = [
            (0, client_life, client, Role::Client),
            (1, server_life, server, Role::Server),
        ];
        for (side, life, end, role) in begins {
            let (stack, tag) = (pair[side], tags[side]);
            let action = Action::Begin {
                stack,
                life,
                tag,
                end,
                role,
            };
            let after = self.numbers.below(slow);
            self.schedule(after, action);
        }
        let tag = self.numbers.pick(&tags);
        if self.numbers.chance(self.options.faults.reset_chance) {
            let most = self.numbers.pick(&[50 * US, self.options.faults_until]);
            let after = self.numbers.below(most);
            self.schedule(after, Action::Reset { pipe, tag });
        }
        self.maybe_abort(tags);
    }

    pub(super) fn honesty(&self, pair: [usize; 2]) -> Honesty {
        if pair
            .iter()
            .any(|index| Some(*index) == self.options.faults.liar)
        {
            Honesty::Hostile
        } else {
            Honesty::Honest
        }
    }

    /// One end of a TCP connection is handed to control, unless its stack has died meanwhile.
    pub(super) fn begin(&mut self, index: usize, life: u32, tag: Tag, (end, role): (End, Role)) {
        let now = self.now();
        let stack = self.stack_in(index, life);
        if let Some(managed) = stack.and_then(|stack| stack.managed()) {
            managed.begin(now, end, tag, role);
        }
    }

    /// A handshake led to no connection.
    pub(super) fn refused(&mut self, tag: Tag, why: &str) {
        let is_ample = self.options.is_ample();
        let mut book = lock(&self.book);
        book.progress += 1;
        book.figures.refused += 1;
        let stage = book.end(tag).stage;
        book.end(tag).stage = Stage::Lost;
        book.end(tag).sealed = true;
        if stage != Stage::Coming {
            book.object(|| format!("{tag:?} was refused ({why}) while {stage:?}"));
        }
        let excuse = book.conns[tag.number()].excuse;
        if excuse.is_none() && is_ample {
            book.object(|| format!("{tag:?} was refused without a cause: {why}"));
        }
        if book.end(tag.peer()).stage == Stage::Open {
            book.half_open.push(tag.peer());
        }
    }

    /// The other end of a connection came to nothing, and this one is open: its program hears it from
    /// TCP sooner or later, and gives up.
    pub(super) fn give_half_open_up(&mut self) {
        let half_open = std::mem::take(&mut lock(&self.book).half_open);
        for tag in half_open {
            let after = self.numbers.below(200 * US);
            self.schedule(after, Action::Abort(tag, Why::HalfOpen));
        }
    }
}
