//! A hashed timer wheel with one timer per connection.
//!
//! Timers guard the end of connections (a peer that never answers a close) and are therefore
//! coarse: a timer fires at the first tick at or after its deadline. Arming and cancelling are
//! O(1) and nothing is allocated after construction.

/// Length of a tick in nanoseconds (about 1 ms): close guards are counted in seconds.
const TICK_NS: u64 = 1 << 20;
/// Buckets of the wheel; longer deadlines go round more than once.
const BUCKETS: usize = 256;
/// "No neighbour" in the bucket lists.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Entry {
    previous: u32,
    next: u32,
    deadline_tick: u64,
    bucket: Bucket,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Bucket {
    Unarmed,
    Armed(u16),
}

/// The wheel; timers are named by the index of their connection.
pub(crate) struct TimerWheel {
    heads: Box<[u32]>,
    entries: Box<[Entry]>,
    current_tick: u64,
    armed: usize,
}

impl TimerWheel {
    /// A wheel for `timers` timers whose time starts at `now` nanoseconds.
    pub(crate) fn new(timers: usize, now: u64) -> Self {
        let unarmed = Entry {
            previous: NONE,
            next: NONE,
            deadline_tick: 0,
            bucket: Bucket::Unarmed,
        };
        TimerWheel {
            heads: vec![NONE; BUCKETS].into_boxed_slice(),
            entries: vec![unarmed; timers].into_boxed_slice(),
            current_tick: now / TICK_NS,
            armed: 0,
        }
    }

    /// Arms (or re-arms) the timer of `index` for `deadline` nanoseconds. A deadline in the past
    /// fires with the next tick.
    pub(crate) fn arm(&mut self, index: u32, deadline: u64) {
        self.cancel(index);
        let tick = deadline.div_ceil(TICK_NS).max(self.current_tick + 1);
        let bucket = (tick % BUCKETS as u64) as usize;
        let head = self.heads[bucket];
        self.entries[index as usize] = Entry {
            previous: NONE,
            next: head,
            deadline_tick: tick,
            bucket: Bucket::Armed(bucket as u16),
        };
        if head != NONE {
            self.entries[head as usize].previous = index;
        }
        self.heads[bucket] = index;
        self.armed += 1;
    }

    /// Disarms the timer of `index`; nothing happens when it is not armed.
    pub(crate) fn cancel(&mut self, index: u32) {
        let entry = self.entries[index as usize];
        let Bucket::Armed(bucket) = entry.bucket else {
            return;
        };
        if entry.previous == NONE {
            self.heads[usize::from(bucket)] = entry.next;
        } else {
            self.entries[entry.previous as usize].next = entry.next;
        }
        if entry.next != NONE {
            self.entries[entry.next as usize].previous = entry.previous;
        }
        self.entries[index as usize].bucket = Bucket::Unarmed;
        self.armed -= 1;
    }

    /// Takes one timer that is due at `now`, or `None` when none is (left). At most one whole
    /// turn of the wheel is looked at per call, however far the clock jumped.
    pub(crate) fn pop_due(&mut self, now: u64) -> Option<u32> {
        let now_tick = now / TICK_NS;
        if self.armed == 0 {
            self.current_tick = self.current_tick.max(now_tick);
            return None;
        }
        // A jump of more than one turn visits each bucket once: every entry is in some bucket.
        let first = self
            .current_tick
            .max(now_tick.saturating_sub(BUCKETS as u64 - 1));
        for tick in first..=now_tick {
            let mut index = self.heads[(tick % BUCKETS as u64) as usize];
            while index != NONE {
                let entry = self.entries[index as usize];
                if entry.deadline_tick <= now_tick {
                    self.cancel(index);
                    return Some(index);
                }
                index = entry.next;
            }
            self.current_tick = tick;
        }
        None
    }

    /// Nanoseconds from `now` until the wheel should be looked at again, `None` when no timer is
    /// armed. A sleeping worker may sleep that long; the value is a lower bound on the deadline.
    pub(crate) fn idle_ns(&self, now: u64) -> Option<u64> {
        if self.armed == 0 {
            return None;
        }
        let now_tick = now / TICK_NS;
        let until = (now_tick..now_tick + BUCKETS as u64)
            .find(|tick| self.heads[(tick % BUCKETS as u64) as usize] != NONE)
            .unwrap_or(now_tick);
        Some(((until + 1) * TICK_NS).saturating_sub(now).max(TICK_NS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn drain(wheel: &mut TimerWheel, now: u64) -> Vec<u32> {
        let mut due: Vec<u32> = std::iter::from_fn(|| wheel.pop_due(now)).collect();
        due.sort_unstable();
        due
    }

    #[test]
    fn timers_fire_not_before_and_within_a_tick_of_their_deadline() {
        let mut wheel = TimerWheel::new(4, 0);
        wheel.arm(0, 5 * TICK_NS);
        wheel.arm(1, 5 * TICK_NS + 1);
        wheel.arm(2, 2000 * TICK_NS);
        assert_eq!(drain(&mut wheel, 5 * TICK_NS - 1), []);
        assert_eq!(drain(&mut wheel, 5 * TICK_NS), [0]);
        assert_eq!(drain(&mut wheel, 6 * TICK_NS), [1]);
        assert_eq!(drain(&mut wheel, 1999 * TICK_NS), []);
        assert_eq!(drain(&mut wheel, 2000 * TICK_NS), [2]);
    }

    #[test]
    fn random_operations_agree_with_an_ordered_map() {
        let mut wheel = TimerWheel::new(64, 0);
        let mut model: BTreeMap<u32, u64> = BTreeMap::new();
        let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = move || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed
        };
        let mut now_tick = 0_u64;
        for _ in 0..200_000 {
            let index = (next() % 64) as u32;
            match next() % 4 {
                0 | 1 => {
                    let tick = now_tick + next() % 700;
                    wheel.arm(index, tick * TICK_NS);
                    model.insert(index, tick.max(now_tick + 1));
                }
                2 => {
                    wheel.cancel(index);
                    model.remove(&index);
                }
                _ => {
                    now_tick += next() % 600;
                    let mut expected: Vec<u32> = model
                        .iter()
                        .filter(|e| *e.1 <= now_tick)
                        .map(|e| *e.0)
                        .collect();
                    expected.sort_unstable();
                    model.retain(|_, tick| *tick > now_tick);
                    assert_eq!(drain(&mut wheel, now_tick * TICK_NS), expected);
                    assert_eq!(
                        wheel.idle_ns(now_tick * TICK_NS).is_some(),
                        !model.is_empty()
                    );
                }
            }
        }
    }
}
