//! A bounded queue of plain values whose places are named by positions that count on for ever.
//!
//! The queues of a queue pair are of this kind: fixed memory, and a position stays the same name for a work
//! request from its post to its completion.

/// At most as many values as it was made for, rounded up to a power of two.
#[derive(Debug)]
pub(crate) struct Fifo<T> {
    places: Box<[T]>,
    first: u64,
    end: u64,
}

impl<T: Copy> Fifo<T> {
    /// An empty queue; `filler` is never seen.
    pub(crate) fn new(capacity: usize, filler: T) -> Fifo<T> {
        let places = vec![filler; capacity.next_power_of_two()].into_boxed_slice();
        Fifo {
            places,
            first: 0,
            end: 0,
        }
    }

    /// Position of the oldest value, or of the next one if there is none.
    #[inline(always)]
    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    /// Position of the next value to be pushed.
    #[inline(always)]
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        (self.end - self.first) as usize
    }

    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.first == self.end
    }

    /// Values that can be pushed.
    #[inline(always)]
    pub(crate) fn room(&self) -> usize {
        self.places.len() - self.len()
    }

    #[inline(always)]
    fn place(&self, position: u64) -> usize {
        position as usize & (self.places.len() - 1)
    }

    /// The value at a position, if it is in the queue.
    #[inline(always)]
    pub(crate) fn get(&self, position: u64) -> Option<&T> {
        if position < self.first || position >= self.end {
            return None;
        }
        self.places.get(self.place(position))
    }

    /// The value at a position, to be changed.
    #[inline(always)]
    pub(crate) fn get_mut(&mut self, position: u64) -> Option<&mut T> {
        if position < self.first || position >= self.end {
            return None;
        }
        let place = self.place(position);
        self.places.get_mut(place)
    }

    /// The oldest value.
    #[inline(always)]
    pub(crate) fn front(&self) -> Option<&T> {
        self.get(self.first)
    }

    /// Appends a place, which still holds some earlier value. The caller has checked that there is room.
    #[inline(always)]
    pub(crate) fn claim(&mut self) -> &mut T {
        debug_assert!(self.room() > 0, "the queue is full");
        let place = self.place(self.end);
        self.end += 1;
        &mut self.places[place]
    }

    /// Appends a value. The caller has checked that there is room.
    #[inline(always)]
    pub(crate) fn push(&mut self, value: T) {
        *self.claim() = value;
    }

    /// Takes the oldest value.
    #[inline(always)]
    pub(crate) fn pop(&mut self) -> Option<T> {
        let value = *self.front()?;
        self.first += 1;
        Some(value)
    }

    /// Starts again at the first place if the queue is empty, so that a queue that is mostly empty stays in the
    /// same few cache lines. Only for queues whose positions nobody keeps.
    #[inline(always)]
    pub(crate) fn rewind(&mut self) {
        if self.is_empty() {
            self.first = 0;
            self.end = 0;
        }
    }

    /// Drops every value before a position.
    #[inline(always)]
    pub(crate) fn drop_before(&mut self, position: u64) {
        debug_assert!((self.first..=self.end).contains(&position));
        self.first = position;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::Fifo;

    proptest! {
        #[test]
        fn behaves_like_a_deque_with_positions(ops in proptest::collection::vec(0..4u8, 0..300)) {
            let mut fifo = Fifo::new(5, 0u32);
            let mut model = VecDeque::new();
            let mut pushed = 0u32;
            for op in ops {
                match op {
                    0 | 1 if fifo.room() > 0 => {
                        fifo.push(pushed);
                        model.push_back(pushed);
                        pushed += 1;
                    }
                    2 => prop_assert_eq!(fifo.pop(), model.pop_front()),
                    _ => {
                        let position = fifo.first + fifo.len() as u64 / 2;
                        fifo.drop_before(position);
                        model.drain(..model.len() / 2);
                    }
                }
                prop_assert_eq!(fifo.len(), model.len());
                prop_assert_eq!(fifo.room(), 8 - model.len());
                prop_assert_eq!(fifo.end(), u64::from(pushed));
                for (at, value) in model.iter().enumerate() {
                    prop_assert_eq!(fifo.get(fifo.first + at as u64), Some(value));
                }
                prop_assert_eq!(fifo.get(fifo.end()), None);
            }
        }
    }
}
