//! What all threads of the program may know about a slot without a lock.

use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};

use crate::shared::{SlotNews, SlotState};

/// Totals and state of a slot's connection.
///
/// `produced`, `reclaimed`, `state`, `generation`, `consumed` and `read_ended` are stored under the
/// inbound lock, `prepared`, `told` and `write_ended` under the outbound lock. Each only grows within
/// a generation, so an old value is never wrong, only late.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct SlotCell {
    generation: AtomicU16,
    state: AtomicU16,
    produced: AtomicU64,
    reclaimed: AtomicU64,
    consumed: AtomicU64,
    prepared: AtomicU64,
    told: AtomicU64,
    read_ended: AtomicBool,
    write_ended: AtomicBool,
}

impl SlotCell {
    pub(super) fn generation(&self) -> u16 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Begins a connection. Under the inbound lock.
    pub(super) fn begin(&self, generation: u16) {
        self.set_news(&SlotNews::default());
        self.state.store(0, Ordering::Relaxed);
        self.consumed.store(0, Ordering::Relaxed);
        self.read_ended.store(false, Ordering::Relaxed);
        self.generation.store(generation, Ordering::Release);
    }

    /// Begins the outgoing direction. Under the outbound lock.
    pub(super) fn begin_outgoing(&self) {
        self.prepared.store(0, Ordering::Relaxed);
        self.told.store(0, Ordering::Relaxed);
        self.write_ended.store(false, Ordering::Relaxed);
    }

    /// Takes note of what the worker says. Under the inbound lock.
    #[inline]
    pub(super) fn set_news(&self, news: &SlotNews) {
        self.reclaimed.store(news.reclaimed, Ordering::Release);
        self.produced.store(news.produced, Ordering::Release);
        // Last, because whoever sees the end of the stream must also see all of it. The end of the
        // connection may have been learned on the control socket and is not taken back.
        let closed = self.state.load(Ordering::Relaxed) & SlotState::CLOSED.bits();
        self.state
            .store(news.state.bits() | closed, Ordering::Release);
    }

    /// The connection is over. Under the inbound lock.
    pub(super) fn set_closed(&self) {
        self.state
            .fetch_or(SlotState::CLOSED.bits(), Ordering::Release);
    }

    #[inline]
    pub(super) fn state(&self) -> SlotState {
        SlotState::from_bits(self.state.load(Ordering::Acquire))
    }

    /// Nothing will be read any more. Under the inbound lock.
    pub(super) fn end_reading(&self) {
        self.read_ended.store(true, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn is_read_ended(&self) -> bool {
        self.read_ended.load(Ordering::Relaxed)
    }

    /// Nothing will be written any more. Under the outbound lock.
    pub(super) fn end_writing(&self) {
        self.write_ended.store(true, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn is_write_ended(&self) -> bool {
        self.write_ended.load(Ordering::Relaxed)
    }

    /// Bytes that can be read from an RMBE of `size` bytes.
    #[inline]
    pub(super) fn readable(&self, size: u32) -> u64 {
        let consumed = self.consumed.load(Ordering::Relaxed);
        let produced = self.produced.load(Ordering::Acquire);
        // A worker that says more is mistaken; the ring is still the limit.
        produced.saturating_sub(consumed).min(u64::from(size))
    }

    /// Bytes that can be written into a sndbuf of `size` bytes.
    #[inline]
    pub(super) fn writable(&self, size: u32) -> u64 {
        let prepared = self.prepared.load(Ordering::Relaxed);
        let end = self
            .reclaimed
            .load(Ordering::Acquire)
            .saturating_add(u64::from(size));
        // A worker that reclaims more than was prepared is mistaken; the ring is still the limit.
        end.saturating_sub(prepared).min(u64::from(size))
    }

    #[inline]
    pub(super) fn consumed(&self) -> u64 {
        self.consumed.load(Ordering::Acquire)
    }

    /// Under the inbound lock.
    #[inline]
    pub(super) fn set_consumed(&self, consumed: u64) {
        self.consumed.store(consumed, Ordering::Release);
    }

    #[inline]
    pub(super) fn prepared(&self) -> u64 {
        self.prepared.load(Ordering::Relaxed)
    }

    /// Under the outbound lock.
    #[inline]
    pub(super) fn set_prepared(&self, prepared: u64) {
        self.prepared.store(prepared, Ordering::Relaxed);
    }

    /// The consumed total that the worker was last told.
    #[inline]
    pub(super) fn told(&self) -> u64 {
        self.told.load(Ordering::Relaxed)
    }

    /// Under the outbound lock.
    #[inline]
    pub(super) fn set_told(&self, told: u64) {
        self.told.store(told, Ordering::Relaxed);
    }
}
