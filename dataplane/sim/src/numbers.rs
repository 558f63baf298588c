//! Random numbers that are the same on every machine: splitmix64, one state word, no table.
//!
//! A dependency would do as well; this is ten lines, and a seed in a regression test has to mean the
//! same world for ever, whatever version of a crate is current.

/// A generator with a seed of its own.
#[derive(Clone, Debug)]
pub struct Numbers(u64);

/// Spreads the bits of a word: equal inputs, equal outputs, and neighbours look unrelated.
#[inline]
#[must_use]
pub fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

impl Numbers {
    /// The sequence of `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Numbers {
        Numbers(mix(seed))
    }

    /// An independent sequence: what is drawn from one does not move the other.
    #[must_use]
    pub fn fork(&mut self, label: u64) -> Numbers {
        Numbers(mix(self.word() ^ mix(label)))
    }

    /// The next word.
    #[inline]
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `limit`, which is at least 1.
    #[inline]
    pub fn below(&mut self, limit: u64) -> u64 {
        debug_assert!(limit > 0, "nothing is below 0");
        // The bias is limit / 2^64: nothing here would notice it.
        ((u128::from(self.word()) * u128::from(limit)) >> 64) as u64
    }

    /// A number from `low` to `high`, both inclusive.
    #[inline]
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// Happens `in_million` times in a million.
    #[inline]
    pub fn chance(&mut self, in_million: u32) -> bool {
        in_million > 0 && self.below(1_000_000) < u64::from(in_million)
    }

    /// Heads or tails.
    pub fn flip(&mut self) -> bool {
        self.word() & 1 == 1
    }

    /// One of `choices`, of which there is at least one.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// An index into `weights`, each as likely as its weight.
    pub fn weighted(&mut self, weights: &[u32]) -> usize {
        let total: u64 = weights.iter().map(|weight| u64::from(*weight)).sum();
        let mut left = self.below(total.max(1));
        for (index, weight) in weights.iter().enumerate() {
            match left.checked_sub(u64::from(*weight)) {
                Some(rest) => left = rest,
                None => return index,
            }
        }
        weights.len() - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_means_the_same_numbers_for_ever() {
        let mut numbers = Numbers::new(1);
        let first: Vec<u64> = (0..4).map(|_| numbers.below(1000)).collect();
        assert_eq!(first, [749, 372, 438, 954]);
    }

    #[test]
    fn a_fork_is_not_moved_by_what_is_drawn_from_its_origin() {
        let mut origin = Numbers::new(7);
        let mut fork = origin.fork(1);
        let mut same = fork.clone();
        origin.word();
        assert_eq!(fork.word(), same.word());
    }

    #[test]
    fn weights_are_kept() {
        let mut numbers = Numbers::new(3);
        let mut seen = [0; 3];
        for _ in 0..10_000 {
            seen[numbers.weighted(&[1, 0, 9])] += 1;
        }
        assert_eq!(seen[1], 0);
        assert!((700..1300).contains(&seen[0]), "{seen:?}");
    }
}
