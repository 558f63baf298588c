//! Free places of a worker's tables, handed out by control.

use std::collections::VecDeque;

/// Hands out the indices `0..count`. The index given back longest ago is handed out first, so
/// that a late message for an earlier use of a place finds it unused as long as possible.
#[derive(Debug)]
pub(crate) struct Places {
    free: VecDeque<u16>,
    generations: Vec<u16>,
}

impl Places {
    /// `count` free places.
    pub(crate) fn new(count: u16) -> Self {
        Places {
            free: (0..count).collect(),
            generations: vec![0; usize::from(count)],
        }
    }

    /// Takes a place with the number of its new life, or `None` when all are in use.
    pub(crate) fn take(&mut self) -> Option<(u16, u16)> {
        let index = self.free.pop_front()?;
        let generation = &mut self.generations[usize::from(index)];
        *generation = generation.wrapping_add(1);
        Some((index, *generation))
    }

    /// Gives a place back.
    pub(crate) fn put(&mut self, index: u16) {
        debug_assert!(
            !self.free.contains(&index),
            "place {index} given back twice"
        );
        self.free.push_back(index);
    }

    /// Places in use.
    pub(crate) fn taken(&self) -> usize {
        self.generations.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_come_back_last_and_with_another_generation() {
        let mut places = Places::new(2);
        assert_eq!(places.take(), Some((0, 1)));
        assert_eq!(places.take(), Some((1, 1)));
        assert_eq!(places.take(), None);
        places.put(1);
        places.put(0);
        assert_eq!(places.take(), Some((1, 2)));
        assert_eq!(places.take(), Some((0, 2)));
        assert_eq!(places.take(), None);
    }
}
