//! How one side says that it sleeps, so that the other need not wake it in vain nor forget to.
//!
//! The sleeper raises its flag, then looks for work once more, then sleeps. The other side makes
//! work visible, then looks at the flag. With a full fence between the two steps on both sides at
//! least one of them sees the other, so no wake-up is lost; without either fence both may look
//! before either store is seen.
//!
//! The flag is a word of shared memory that one side stores and the other loads. A hostile sleeper
//! gains nothing but useless wake-ups of itself.

use crate::hint::fence_before_sleep_check;

const AWAKE: u64 = 0;
const ASLEEP: u64 = 1;

/// A word that can be loaded, relaxed.
pub trait WordSource {
    /// The word's value.
    fn load(&self) -> u64;
}

/// A word that can also be stored, relaxed.
pub trait WordSink: WordSource {
    /// Stores a value.
    fn store(&self, value: u64);
}

/// The sleeper's end of a sleep flag.
#[derive(Debug)]
pub struct SleepFlag<W = crate::Word> {
    word: W,
}

impl<W: WordSink> SleepFlag<W> {
    /// A flag in `word`, which nobody else stores.
    pub fn new(word: W) -> SleepFlag<W> {
        SleepFlag { word }
    }

    /// Announces sleep. The caller must look for work once more after this and before sleeping,
    /// and call [`SleepFlag::disarm`] when it is awake again.
    #[inline]
    pub fn arm(&self) {
        self.word.store(ASLEEP);
        fence_before_sleep_check();
    }

    /// Announces the end of sleep.
    #[inline]
    pub fn disarm(&self) {
        self.word.store(AWAKE);
    }
}

/// The waker's end of a sleep flag.
#[derive(Debug)]
pub struct SleepView<W = crate::ReadWord> {
    word: W,
}

impl<W: WordSource> SleepView<W> {
    /// A view of the flag in `word`.
    pub fn new(word: W) -> SleepView<W> {
        SleepView { word }
    }

    /// Whether the other side must be woken to see what the caller has made visible before.
    /// Contains the full fence (about 10 ns): once a batch, not once a message.
    #[inline]
    pub fn must_wake(&self) -> bool {
        fence_before_sleep_check();
        self.word.load() != AWAKE
    }
}
