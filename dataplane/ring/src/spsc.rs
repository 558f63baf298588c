//! A bounded ring of values between two threads of one process, with one producer and one consumer.
//!
//! Wait-free: neither end ever blocks, allocates after creation or makes a system call. Made by
//! `rtrb`; this is the part of it that we promise to need. For memory that another process sees
//! there is [`crate::LineWriter`]: this ring trusts its indices.

use thiserror::Error;

/// The value that did not fit: the ring is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the ring is full; try again when the consumer has taken something")]
pub struct Full<T>(
    /// The value, given back.
    pub T,
);

/// A ring for at most `capacity` values at a time.
pub fn channel<T>(capacity: usize) -> (Producer<T>, Consumer<T>) {
    let (producer, consumer) = rtrb::RingBuffer::new(capacity);
    (Producer { ring: producer }, Consumer { ring: consumer })
}

/// The end that puts values in.
#[derive(Debug)]
pub struct Producer<T> {
    ring: rtrb::Producer<T>,
}

impl<T> Producer<T> {
    /// Puts a value in.
    ///
    /// # Errors
    ///
    /// [`Full`] with the value.
    #[inline]
    pub fn push(&mut self, value: T) -> Result<(), Full<T>> {
        self.ring
            .push(value)
            .map_err(|rtrb::PushError::Full(value)| Full(value))
    }

    /// Values that fit for certain; more may fit by the time it is used.
    #[inline]
    pub fn slots(&self) -> usize {
        self.ring.slots()
    }

    /// Whether the consumer is gone, so that nobody will ever take a value again.
    #[inline]
    pub fn is_abandoned(&self) -> bool {
        self.ring.is_abandoned()
    }
}

/// The end that takes values out.
#[derive(Debug)]
pub struct Consumer<T> {
    ring: rtrb::Consumer<T>,
}

impl<T> Consumer<T> {
    /// Takes the oldest value out.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        self.ring.pop().ok()
    }

    /// The oldest value, left inside.
    #[inline]
    pub fn peek(&self) -> Option<&T> {
        self.ring.peek().ok()
    }

    /// Values that are there for certain; more may come by the time it is used.
    #[inline]
    pub fn slots(&self) -> usize {
        self.ring.slots()
    }

    /// Whether the producer is gone: what is inside is all that will ever come.
    #[inline]
    pub fn is_abandoned(&self) -> bool {
        self.ring.is_abandoned()
    }
}
