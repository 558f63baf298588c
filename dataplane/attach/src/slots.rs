//! Which slots of a session are in use, for the side that gives them out.
//!
//! A slot carries one connection after the other. It may be given out again only when the worker
//! has closed it ([`SlotTable::worker_done`]) and the program has sent Released
//! ([`SlotTable::program_done`]): either may still touch its memory before. Each time it is given
//! out it gets the next generation, by which leftovers of the connection before are recognised.

use thiserror::Error;

/// A slot given out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotRef {
    /// Index of the slot.
    pub slot: u16,
    /// Which of its connections.
    pub generation: u16,
}

/// What a release has brought about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Released {
    /// The slot can be given out again.
    Free,
    /// The other side is not done yet.
    Waiting,
}

/// A program has released a slot that it does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("slot {slot} generation {generation} was released, but is not in use by the program")]
pub struct NotHeld {
    /// The slot named.
    pub slot: u16,
    /// The generation named.
    pub generation: u16,
}

/// Who still uses a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Users {
    Nobody,
    Both,
    Program,
    Worker,
}

#[derive(Debug, Clone, Copy)]
struct Place {
    users: Users,
    generation: u16,
}

/// The slots of a session.
#[derive(Debug)]
pub struct SlotTable {
    places: Box<[Place]>,
    /// Slots that can be given out, the most recently used last.
    free: Vec<u16>,
}

impl SlotTable {
    /// A table of free slots.
    pub fn new(slots: u16) -> SlotTable {
        let place = Place {
            users: Users::Nobody,
            generation: 0,
        };
        SlotTable {
            places: vec![place; usize::from(slots)].into_boxed_slice(),
            free: (0..slots).rev().collect(),
        }
    }

    /// Gives out a slot, `None` if all are in use.
    pub fn take(&mut self) -> Option<SlotRef> {
        let slot = self.free.pop()?;
        let place = self.places.get_mut(usize::from(slot))?;
        place.users = Users::Both;
        place.generation = place.generation.wrapping_add(1);
        Some(SlotRef {
            slot,
            generation: place.generation,
        })
    }

    /// Takes back a slot of which neither the program nor the worker has heard.
    pub fn put_back(&mut self, given: SlotRef) {
        if let Some(place) = self.places.get_mut(usize::from(given.slot))
            && place.generation == given.generation
            && place.users == Users::Both
        {
            place.users = Users::Nobody;
            self.free.push(given.slot);
        }
    }

    /// The program has released a slot.
    ///
    /// # Errors
    ///
    /// [`NotHeld`]: a program that says so breaks the protocol.
    pub fn program_done(&mut self, released: SlotRef) -> Result<Released, NotHeld> {
        let SlotRef { slot, generation } = released;
        let place = self
            .places
            .get_mut(usize::from(slot))
            .filter(|place| place.generation == generation)
            .ok_or(NotHeld { slot, generation })?;
        match place.users {
            Users::Both => {
                place.users = Users::Worker;
                Ok(Released::Waiting)
            }
            Users::Program => {
                place.users = Users::Nobody;
                self.free.push(slot);
                Ok(Released::Free)
            }
            Users::Worker | Users::Nobody => Err(NotHeld { slot, generation }),
        }
    }

    /// The worker has closed a slot.
    pub fn worker_done(&mut self, slot: u16) -> Released {
        let Some(place) = self.places.get_mut(usize::from(slot)) else {
            return Released::Waiting;
        };
        match place.users {
            Users::Both => {
                place.users = Users::Program;
                Released::Waiting
            }
            Users::Worker => {
                place.users = Users::Nobody;
                self.free.push(slot);
                Released::Free
            }
            Users::Program => Released::Waiting,
            Users::Nobody => Released::Free,
        }
    }

    /// Slots in use.
    pub fn used(&self) -> usize {
        self.places.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_given_out_once_until_both_sides_are_done() {
        let mut table = SlotTable::new(2);
        let first = table.take().expect("free");
        let second = table.take().expect("free");
        assert_ne!(first.slot, second.slot);
        assert_eq!((table.take(), table.used()), (None, 2));
        assert_eq!(table.program_done(first), Ok(Released::Waiting));
        assert_eq!(table.take(), None);
        assert_eq!(table.worker_done(first.slot), Released::Free);
        let again = table.take().expect("free");
        assert_eq!(
            again,
            SlotRef {
                slot: first.slot,
                generation: first.generation + 1
            }
        );
        assert_eq!(table.worker_done(second.slot), Released::Waiting);
        assert_eq!(table.program_done(second), Ok(Released::Free));
        assert_eq!(table.used(), 1);
    }

    #[test]
    fn program_can_release_only_what_it_holds_and_only_once() {
        let mut table = SlotTable::new(1);
        let stranger = SlotRef {
            slot: 1,
            generation: 0,
        };
        assert_eq!(
            table.program_done(stranger),
            Err(NotHeld {
                slot: 1,
                generation: 0
            })
        );
        let never = SlotRef {
            slot: 0,
            generation: 0,
        };
        assert!(table.program_done(never).is_err());
        let held = table.take().expect("free");
        let old = SlotRef {
            generation: held.generation.wrapping_sub(1),
            ..held
        };
        assert!(table.program_done(old).is_err());
        assert_eq!(table.program_done(held), Ok(Released::Waiting));
        assert!(table.program_done(held).is_err());
    }

    #[test]
    fn slot_that_nobody_heard_of_is_put_back() {
        let mut table = SlotTable::new(1);
        let held = table.take().expect("free");
        table.put_back(held);
        table.put_back(held);
        assert_eq!(table.used(), 0);
        assert_eq!(table.take().map(|given| given.slot), Some(0));
        assert_eq!(table.take(), None);
    }

    #[test]
    fn generations_go_round_without_panic() {
        let mut table = SlotTable::new(1);
        for _ in 0..70_000 {
            let held = table.take().expect("free");
            assert_eq!(table.worker_done(0), Released::Waiting);
            assert_eq!(table.program_done(held), Ok(Released::Free));
        }
    }
}
