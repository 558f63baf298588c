//! Links, each with the queue pairs of its two ends, and what may become of the connections on them.

use crate::book::{Book, Event};
use crate::checker::stream::{ConnBook, Route, Stage};

/// One end of a link: a stack, and the number of its queue pair.
pub(crate) type EndPoint = (usize, u32);

/// What is known of a link.
#[derive(Clone, Debug)]
pub(crate) struct CableBook {
    pub(crate) ends: [EndPoint; 2],
    /// Why it may fail, and its connections with it.
    pub(crate) broken: Option<&'static str>,
    /// Ends that are given back.
    pub(crate) released: [bool; 2],
}

impl CableBook {
    fn is_over(&self) -> bool {
        self.released == [true; 2]
    }

    fn is_between(&self, pair: [usize; 2]) -> bool {
        let [(first, _), (second, _)] = self.ends;
        pair == [first, second] || pair == [second, first]
    }

    fn has(&self, stack: usize) -> bool {
        self.ends.iter().any(|(of, _)| *of == stack)
    }
}

impl Book {
    /// The link between two queue pairs; it is new when the first of them hears of the other.
    pub(crate) fn connect(&mut self, own: EndPoint, peer: EndPoint) -> usize {
        let same = |cable: &CableBook| cable.ends == [peer, own] && !cable.is_over();
        if let Some(at) = self.cables.iter().rposition(same) {
            return at;
        }
        let number = self.cables.len();
        let pair = [own.0, peer.0];
        self.cables.push(CableBook {
            ends: [own, peer],
            broken: None,
            released: [false; 2],
        });
        self.note(Event::World, own.0, &[number as u64], || {
            format!("link {number} between stacks {pair:?}")
        });
        number
    }

    /// A link is broken: its connections, present and future, may end otherwise than in order.
    pub(crate) fn break_cable(&mut self, number: usize, why: &'static str) {
        let Some(cable) = self.cables.get_mut(number) else {
            return;
        };
        cable.broken.get_or_insert(why);
        let [(first, _), (second, _)] = cable.ends;
        for conn in &mut self.conns {
            let is_on = match conn.route {
                Route::Cable(on) => on == number,
                Route::Any => {
                    let stacks = [conn.ends[0].stack, conn.ends[1].stack];
                    stacks == [first, second] || stacks == [second, first]
                }
            };
            if is_on {
                conn.excuse.get_or_insert(why);
            }
        }
    }

    /// As [`Book::break_cable`], for all there are.
    pub(crate) fn break_all(&mut self, why: &'static str) {
        for number in 0..self.cables.len() {
            self.break_cable(number, why);
        }
    }

    /// Why a new connection may fail, if its link, or any that it might use, is broken.
    pub(crate) fn trouble(&self, stacks: [usize; 2], route: Route) -> Option<&'static str> {
        match route {
            Route::Cable(number) => self.cables.get(number)?.broken,
            Route::Any => self
                .cables
                .iter()
                .filter(|cable| cable.is_between(stacks) && !cable.is_over())
                .find_map(|cable| cable.broken),
        }
    }

    /// An end of a link is given back.
    pub(crate) fn release(&mut self, end: EndPoint) {
        let of_end = |cable: &CableBook| cable.ends.contains(&end) && !cable.is_over();
        if let Some(cable) = self.cables.iter_mut().rev().find(|cable| of_end(cable)) {
            let side = usize::from(cable.ends[1] == end);
            cable.released[side] = true;
        }
    }

    /// No connection of a stack has to end in order any more, and none of its links to last.
    pub(crate) fn excuse_stack(&mut self, stack: usize, why: &'static str) {
        for number in 0..self.cables.len() {
            if self.cables[number].has(stack) {
                self.break_cable(number, why);
            }
        }
        let of_stack = |conn: &&mut ConnBook| conn.ends.iter().any(|end| end.stack == stack);
        for conn in self.conns.iter_mut().filter(of_stack) {
            conn.excuse.get_or_insert(why);
        }
    }

    /// A stack is gone: so are its ends of links and connections, and nothing that had to do with it
    /// has to end in order.
    pub(crate) fn lose_stack(&mut self, stack: usize, why: &'static str) {
        self.excuse_stack(stack, why);
        for cable in &mut self.cables {
            for side in 0..2 {
                cable.released[side] |= cable.ends[side].0 == stack;
            }
        }
        for conn in &mut self.conns {
            if conn.ends.iter().all(|end| end.stack != stack) {
                continue;
            }
            for end in conn.ends.iter_mut().filter(|end| end.stack == stack) {
                if matches!(end.stage, Stage::Coming | Stage::Open) {
                    end.stage = Stage::Lost;
                    end.sealed = true;
                }
            }
        }
        self.progress += 1;
    }
}
