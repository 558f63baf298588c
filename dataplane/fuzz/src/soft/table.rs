//! The tables of exports, as their owner changes them or as a peer says, and what readers know of them.
//!
//! Beside the table runs the plainest model: a list of places with a tag and perhaps a value, of which
//! a reader has a copy from when it last caught up.

use std::collections::VecDeque;

use pollux_provider::soft::testing::{Exports, Known};

use crate::Input;

const VIEWS: usize = 2;
/// Places that a table here can have.
const LIMIT: u32 = 12;

/// A place: its tag and value.
type Place = (u8, Option<u64>);

struct World {
    exports: Exports,
    places: Vec<Place>,
    /// Freed places, the oldest first.
    free: VecDeque<u32>,
    views: [Vec<Place>; VIEWS],
    limit: u32,
    value: u64,
}

/// Drives one target run.
pub(crate) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let how = input.byte();
    let limit = u32::from(how >> 1) % LIMIT + 1;
    let mut world = World {
        exports: Exports::new(limit, input.byte().into(), VIEWS),
        places: Vec::new(),
        free: VecDeque::new(),
        views: [const { Vec::new() }; VIEWS],
        limit,
        value: 0,
    };
    while !input.is_empty() {
        let op = input.byte();
        let view = usize::from(op >> 7);
        match op & 7 {
            // A table is its owner's or a peer's, never both.
            0 | 1 if how & 1 == 0 => world.insert(),
            0 | 1 => world.mirror(input.byte(), input.byte()),
            2 | 3 if how & 1 == 0 => world.remove(input.byte(), op >> 3 & 7),
            2 | 3 => world.unmirror(input.byte(), input.byte()),
            4 => {
                world.exports.refresh(view);
                world.views[view] = world.places.clone();
            }
            5 => {
                world.exports.rest(view);
                world.views[view].clear();
            }
            _ => world.look(view, input.byte(), input.byte()),
        }
        world.judge();
    }
}

fn id(index: u32, tag: u8) -> u32 {
    index << 8 | u32::from(tag)
}

impl World {
    fn insert(&mut self) {
        self.value += 1;
        let given = self.exports.insert(self.value);
        let expected = match self.free.pop_front() {
            Some(index) => Some((index, self.places[index as usize].0.wrapping_add(1))),
            None if self.places.len() < self.limit as usize => {
                // The first tag of a place comes from the seed.
                given.map(|given| (self.places.len() as u32, given as u8))
            }
            None => None,
        };
        assert_eq!(given, expected.map(|(index, tag)| id(index, tag)));
        let Some((index, tag)) = expected else { return };
        if index as usize == self.places.len() {
            self.places.push((tag, None));
        }
        self.places[index as usize] = (tag, Some(self.value));
    }

    /// Takes out the value in a place; `off` makes it an id of another life of the place.
    fn remove(&mut self, index: u8, off: u8) {
        let index = u32::from(index) % (self.limit + 1);
        let Some(place) = self.places.get_mut(index as usize) else {
            return self.exports.remove(id(index, off));
        };
        self.exports.remove(id(index, place.0.wrapping_sub(off)));
        if off == 0 && place.1.take().is_some() {
            self.free.push_back(index);
        }
    }

    fn mirror(&mut self, index: u8, tag: u8) {
        self.value += 1;
        let index = u32::from(index) % (LIMIT + 2);
        let is_taken = self.exports.mirror(id(index, tag), self.value);
        assert_eq!(is_taken, index < self.limit);
        if !is_taken {
            return;
        }
        while self.places.len() <= index as usize {
            self.places.push((tag.wrapping_sub(1), None));
        }
        self.places[index as usize] = (tag, Some(self.value));
    }

    fn unmirror(&mut self, index: u8, tag: u8) {
        let index = u32::from(index) % (LIMIT + 2);
        self.exports.unmirror(id(index, tag));
        if let Some(place) = self.places.get_mut(index as usize)
            && place.0 == tag
        {
            place.1 = None;
        }
    }

    /// What a reader knows of an id is what its copy says.
    fn look(&self, view: usize, index: u8, tag: u8) {
        let index = u32::from(index) % (LIMIT + 2);
        let expected = match self.views[view].get(index as usize) {
            None => Known::Unknown,
            Some((known, value)) => match (tag.wrapping_sub(*known) as i8, value) {
                (0, Some(value)) => Known::Live(*value),
                (1.., _) => Known::Unknown,
                (0, None) | (..0, _) => Known::Withdrawn,
            },
        };
        assert_eq!(self.exports.get(view, id(index, tag)), expected);
    }

    fn judge(&self) {
        let live = self.places.iter().filter(|place| place.1.is_some()).count();
        assert_eq!(self.exports.live(), live);
        for view in 0..VIEWS {
            for (index, place) in (0..).zip(&self.views[view]) {
                self.look(view, index, place.0);
            }
        }
    }
}
