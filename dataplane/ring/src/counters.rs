//! Numbers with one writer and many readers.
//!
//! Each set lies on cache lines of its own, so that writing one set does not disturb the writer of
//! another. An increment is a plain load and a plain store: nobody else writes. Readers may see two
//! counters of one set at slightly different times.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;

/// A set of `N` counters, all 0: its writer and a reader that can be cloned.
pub fn counters<const N: usize>() -> (CounterWriter<N>, CounterReader<N>) {
    let set = Arc::new(CachePadded::new([const { AtomicU64::new(0) }; N]));
    (
        CounterWriter {
            set: Arc::clone(&set),
            _one_thread_at_a_time: PhantomData,
        },
        CounterReader { set },
    )
}

/// The only writer of a set. It can move to another thread, but not be shared.
#[derive(Debug)]
pub struct CounterWriter<const N: usize> {
    set: Arc<CachePadded<[AtomicU64; N]>>,
    _one_thread_at_a_time: PhantomData<Cell<()>>,
}

impl<const N: usize> CounterWriter<N> {
    /// Adds `amount` to counter `index`, wrapping.
    ///
    /// # Panics
    ///
    /// If `index` is not below `N`: indices are constants of the program.
    #[inline(always)]
    pub fn add(&self, index: usize, amount: u64) {
        let counter = &self.set[index];
        counter.store(
            counter.load(Ordering::Relaxed).wrapping_add(amount),
            Ordering::Relaxed,
        );
    }

    /// Sets counter `index`, for numbers that also fall.
    ///
    /// # Panics
    ///
    /// As [`CounterWriter::add`].
    #[inline(always)]
    pub fn set(&self, index: usize, value: u64) {
        self.set[index].store(value, Ordering::Relaxed);
    }

    /// Counter `index`.
    ///
    /// # Panics
    ///
    /// As [`CounterWriter::add`].
    #[inline(always)]
    pub fn get(&self, index: usize) -> u64 {
        self.set[index].load(Ordering::Relaxed)
    }
}

/// A reader of a set.
#[derive(Debug, Clone)]
pub struct CounterReader<const N: usize> {
    set: Arc<CachePadded<[AtomicU64; N]>>,
}

impl<const N: usize> CounterReader<N> {
    /// Counter `index`.
    ///
    /// # Panics
    ///
    /// If `index` is not below `N`: indices are constants of the program.
    #[inline]
    pub fn get(&self, index: usize) -> u64 {
        self.set[index].load(Ordering::Relaxed)
    }

    /// All counters, read one after the other.
    pub fn snapshot(&self) -> [u64; N] {
        std::array::from_fn(|index| self.get(index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reader_sees_what_the_writer_added_and_set() {
        let (writer, reader) = counters::<3>();
        writer.add(0, 2);
        writer.add(0, 3);
        writer.set(2, 9);
        writer.set(2, 4);
        assert_eq!(reader.snapshot(), [5, 0, 4]);
        assert_eq!(writer.get(0), reader.clone().get(0));
    }

    #[test]
    fn two_sets_never_share_a_cache_line() {
        let (first, _reader) = counters::<1>();
        let (second, _reader) = counters::<1>();
        let line = |writer: &CounterWriter<1>| std::ptr::from_ref(&writer.set[0]) as usize / 64;
        assert_ne!(line(&first), line(&second));
    }

    #[test]
    fn counting_goes_on_in_another_thread_without_loss() {
        let (writer, reader) = counters::<1>();
        let writer = std::thread::spawn(move || {
            (0..10_000).for_each(|_| writer.add(0, 1));
            writer
        })
        .join()
        .expect("writer thread");
        writer.add(0, 1);
        assert_eq!(reader.get(0), 10_001);
    }
}
