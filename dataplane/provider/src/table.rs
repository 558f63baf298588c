//! Tables that control changes and workers read without a lock.
//!
//! The table proper sits behind a mutex that only slow-path threads take. Each reader (a poll group, or a
//! link of a queue pair) has a [`View`]: a private copy, brought up to date when the device's epoch says that
//! something changed. So a lookup is an index into private memory.
//!
//! A value that is removed stays in the table's list of retired values until every view has caught up;
//! it is dropped by the next slow-path change. So a worker never drops the last handle of a mapping (which
//! would be a system call), and never reads memory that is gone.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use crate::lock::lock;

/// Retired values that are no reason to wake anybody.
const RETIRED_MANY: usize = 32;

/// Names a value: a place in the table, and how often the place was used before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Id {
    pub(crate) index: u32,
    pub(crate) tag: u8,
}

impl Id {
    /// Indices are 24 bits, so that an id fits into 32.
    const INDEX_MAX: u32 = 0xff_ffff;

    pub(crate) fn to_bits(self) -> u32 {
        self.index << 8 | u32::from(self.tag)
    }

    pub(crate) fn from_bits(bits: u32) -> Id {
        Id {
            index: bits >> 8,
            tag: bits as u8,
        }
    }
}

/// All places are taken, or the id given lies outside the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoPlace;

#[derive(Debug)]
struct Slot<T> {
    tag: u8,
    changed: u64,
    value: Option<T>,
}

#[derive(Debug)]
struct Slots<T> {
    slots: Vec<Slot<T>>,
    free: VecDeque<u32>,
    live: usize,
    retired: Vec<(u64, T)>,
    readers: Vec<Weak<AtomicU64>>,
}

/// The table that control owns. At most `limit` places.
#[derive(Debug)]
pub(crate) struct Table<T> {
    generation: AtomicU64,
    limit: u32,
    seed: u64,
    slots: Mutex<Slots<T>>,
}

impl<T: Clone> Table<T> {
    pub(crate) fn new(limit: u32, seed: u64) -> Table<T> {
        let limit = limit.min(Id::INDEX_MAX);
        let slots = Slots {
            slots: Vec::new(),
            free: VecDeque::new(),
            live: 0,
            retired: Vec::new(),
            readers: Vec::new(),
        };
        Table {
            generation: AtomicU64::new(0),
            limit,
            seed,
            slots: Mutex::new(slots),
        }
    }

    /// Puts the value that `make` builds for its id into a free place.
    pub(crate) fn insert(&self, make: impl FnOnce(Id) -> T) -> Result<Id, NoPlace> {
        let mut slots = lock(&self.slots);
        let index = match slots.free.pop_front() {
            Some(index) => index,
            None if slots.slots.len() < self.limit as usize => {
                let index = slots.slots.len() as u32;
                // A start that depends on the seed: keys of one run mean nothing in another.
                let tag = mix(self.seed ^ u64::from(index)) as u8;
                slots.slots.push(Slot {
                    tag,
                    changed: 0,
                    value: None,
                });
                index
            }
            None => return Err(NoPlace),
        };
        let slot = &mut slots.slots[index as usize];
        slot.tag = slot.tag.wrapping_add(1);
        let id = Id {
            index,
            tag: slot.tag,
        };
        self.put(&mut slots, id, make(id));
        Ok(id)
    }

    /// Puts a value where somebody else's table has it. A value already there is retired.
    pub(crate) fn mirror(&self, id: Id, value: T) -> Result<(), NoPlace> {
        if id.index >= self.limit {
            return Err(NoPlace);
        }
        let mut slots = lock(&self.slots);
        while slots.slots.len() <= id.index as usize {
            // Never named by anybody: older than whatever comes first.
            slots.slots.push(Slot {
                tag: id.tag.wrapping_sub(1),
                changed: 0,
                value: None,
            });
        }
        self.take(&mut slots, id.index);
        slots.slots[id.index as usize].tag = id.tag;
        self.put(&mut slots, id, value);
        Ok(())
    }

    /// Takes a value out and frees its place. Ids of earlier users of the place do nothing.
    pub(crate) fn remove(&self, id: Id) {
        let mut slots = lock(&self.slots);
        if self.take_named(&mut slots, id) {
            slots.free.push_back(id.index);
        }
    }

    /// Takes a value out that was [`Table::mirror`]ed.
    pub(crate) fn unmirror(&self, id: Id) {
        self.take_named(&mut lock(&self.slots), id);
    }

    fn take_named(&self, slots: &mut Slots<T>, id: Id) -> bool {
        let named = slots.slots.get(id.index as usize);
        let live = named.is_some_and(|slot| slot.tag == id.tag && slot.value.is_some());
        if live {
            self.take(slots, id.index);
            sweep(slots);
        }
        live
    }

    /// All values with their ids.
    pub(crate) fn all(&self) -> Vec<(Id, T)> {
        let slots = lock(&self.slots);
        let of = |(index, slot): (usize, &Slot<T>)| {
            let id = Id {
                index: index as u32,
                tag: slot.tag,
            };
            slot.value.clone().map(|value| (id, value))
        };
        slots.slots.iter().enumerate().filter_map(of).collect()
    }

    /// Values in the table.
    pub(crate) fn live(&self) -> usize {
        lock(&self.slots).live
    }

    /// Whether many retired values wait for readers: time to wake those that sleep.
    pub(crate) fn is_crowded(&self) -> bool {
        lock(&self.slots).retired.len() >= RETIRED_MANY
    }

    /// A private copy for one reader, empty and at rest until its first refresh.
    pub(crate) fn view(self: &Arc<Self>) -> View<T> {
        let seen = Arc::new(AtomicU64::new(u64::MAX));
        lock(&self.slots).readers.push(Arc::downgrade(&seen));
        View {
            table: Arc::clone(self),
            seen,
            slots: Vec::new(),
        }
    }

    fn put(&self, slots: &mut Slots<T>, id: Id, value: T) {
        let generation = self.generation.load(Ordering::Relaxed) + 1;
        let slot = &mut slots.slots[id.index as usize];
        slot.changed = generation;
        slot.value = Some(value);
        slots.live += 1;
        sweep(slots);
        self.generation.store(generation, Ordering::Release);
    }

    fn take(&self, slots: &mut Slots<T>, index: u32) {
        let generation = self.generation.load(Ordering::Relaxed) + 1;
        let slot = &mut slots.slots[index as usize];
        if let Some(value) = slot.value.take() {
            slot.changed = generation;
            slots.live -= 1;
            slots.retired.push((generation, value));
            self.generation.store(generation, Ordering::Release);
        }
    }
}

/// Drops retired values that no view has any more.
fn sweep<T>(slots: &mut Slots<T>) {
    slots.readers.retain(|reader| reader.strong_count() > 0);
    let seen_by_all = slots
        .readers
        .iter()
        .filter_map(Weak::upgrade)
        .map(|seen| seen.load(Ordering::Acquire))
        .min()
        .unwrap_or(u64::MAX);
    slots
        .retired
        .retain(|(generation, _)| *generation > seen_by_all);
}

/// One reader's copy of a [`Table`].
#[derive(Debug)]
pub(crate) struct View<T> {
    table: Arc<Table<T>>,
    seen: Arc<AtomicU64>,
    slots: Vec<(u8, Option<T>)>,
}

/// What a view knows about an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lookup<T> {
    /// Here it is.
    Live(T),
    /// Not seen yet; it may come.
    Unknown,
    /// Was there, and was taken out.
    Withdrawn,
}

impl<T: Clone> View<T> {
    /// Catches up with the table. Takes its mutex if something changed: not for every pass.
    pub(crate) fn refresh(&mut self) {
        if self.table.generation.load(Ordering::Acquire) != self.seen.load(Ordering::Relaxed) {
            self.copy_changes();
        }
    }

    /// Forgets everything, so that the table need not wait for this reader. The next refresh
    /// brings all of it back.
    pub(crate) fn rest(&mut self) {
        self.slots.clear();
        self.seen.store(u64::MAX, Ordering::Release);
    }

    /// The value in place `index`, whatever its tag.
    #[inline(always)]
    pub(crate) fn at(&self, index: u32) -> Option<&T> {
        self.slots.get(index as usize)?.1.as_ref()
    }

    /// The value named `id`.
    #[inline]
    pub(crate) fn get(&self, id: Id) -> Lookup<&T> {
        let Some((tag, value)) = self.slots.get(id.index as usize) else {
            return Lookup::Unknown;
        };
        match (id.tag.wrapping_sub(*tag) as i8, value) {
            (0, Some(value)) => Lookup::Live(value),
            (1.., _) => Lookup::Unknown,
            (0, None) | (..0, _) => Lookup::Withdrawn,
        }
    }

    fn copy_changes(&mut self) {
        let slots = lock(&self.table.slots);
        let seen = self.seen.load(Ordering::Relaxed);
        // After a rest everything has to come again.
        let newer_than = if self.slots.is_empty() { 0 } else { seen };
        for (index, slot) in slots.slots.iter().enumerate() {
            if index == self.slots.len() {
                self.slots.push((slot.tag, slot.value.clone()));
            } else if slot.changed > newer_than {
                self.slots[index] = (slot.tag, slot.value.clone());
            }
        }
        // Stored under the lock: a sweep sees either the old copies and the old number or the new ones.
        self.seen.store(
            self.table.generation.load(Ordering::Acquire),
            Ordering::Release,
        );
    }
}

/// Spreads a seed over all bits (the finaliser of splitmix64).
pub(crate) fn mix(seed: u64) -> u64 {
    let mut bits = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{Id, Lookup, NoPlace, Table, View};

    fn table(limit: u32) -> Arc<Table<Arc<String>>> {
        Arc::new(Table::new(limit, 7))
    }

    fn fresh(table: &Arc<Table<Arc<String>>>) -> View<Arc<String>> {
        let mut view = table.view();
        view.refresh();
        view
    }

    fn text(text: &str) -> Arc<String> {
        Arc::new(text.to_owned())
    }

    #[test]
    fn view_sees_insertions_and_removals_after_a_refresh_only() {
        let table = table(4);
        let mut view = fresh(&table);
        let first = table.insert(|_| text("first")).unwrap();
        assert_eq!(view.get(first), Lookup::Unknown);
        view.refresh();
        assert_eq!(view.get(first), Lookup::Live(&text("first")));
        table.remove(first);
        assert_eq!(view.get(first), Lookup::Live(&text("first")));
        view.refresh();
        assert_eq!(view.get(first), Lookup::Withdrawn);
    }

    #[test]
    fn reused_place_has_another_id_and_the_old_one_stays_withdrawn() {
        let table = table(1);
        let old = table.insert(|_| text("old")).unwrap();
        let mut view = fresh(&table);
        table.remove(old);
        let new = table.insert(|_| text("new")).unwrap();
        assert_eq!(old.index, new.index);
        assert_ne!(old.tag, new.tag);
        assert_eq!(
            view.get(new),
            Lookup::Unknown,
            "not seen yet is not withdrawn"
        );
        view.refresh();
        assert_eq!(view.get(new), Lookup::Live(&text("new")));
        assert_eq!(view.get(old), Lookup::Withdrawn);
        table.remove(old);
        assert_eq!(table.live(), 1, "an old id does not remove the new value");
    }

    #[test]
    fn removed_value_lives_until_every_view_caught_up_or_rests() {
        let table = table(4);
        let value = text("value");
        let id = table.insert(|_| Arc::clone(&value)).unwrap();
        let (mut quick, mut slow) = (fresh(&table), fresh(&table));
        table.remove(id);
        quick.refresh();
        table.insert(|_| text("another")).unwrap();
        assert_eq!(
            Arc::strong_count(&value),
            3,
            "here, the slow view, the table's retired list"
        );
        slow.rest();
        table.insert(|_| text("and another")).unwrap();
        assert_eq!(Arc::strong_count(&value), 1);
        slow.refresh();
        assert_eq!(slow.get(id), Lookup::Withdrawn);
    }

    #[test]
    fn table_is_crowded_when_a_reader_sleeps_through_many_removals() {
        let table = table(4);
        let mut sleeper = fresh(&table);
        for round in 0..40 {
            assert_eq!(table.is_crowded(), round >= 32);
            table.remove(table.insert(|_| text("short")).unwrap());
        }
        sleeper.refresh();
        table.remove(table.insert(|_| text("short")).unwrap());
        assert!(!table.is_crowded());
    }

    #[test]
    fn rested_view_gets_everything_back() {
        let table = table(4);
        let ids: Vec<Id> = (0..3)
            .map(|_| table.insert(|_| text("x")).unwrap())
            .collect();
        let mut view = fresh(&table);
        view.rest();
        assert_eq!(view.get(ids[0]), Lookup::Unknown);
        view.refresh();
        assert!(
            ids.iter()
                .all(|id| matches!(view.get(*id), Lookup::Live(_)))
        );
    }

    #[test]
    fn full_table_refuses_and_has_room_after_a_removal() {
        let table = table(2);
        let first = table.insert(|_| text("a")).unwrap();
        table.insert(|_| text("b")).unwrap();
        assert_eq!(table.insert(|_| text("c")), Err(NoPlace));
        table.remove(first);
        assert!(table.insert(|_| text("c")).is_ok());
    }

    #[test]
    fn mirror_takes_ids_as_they_come_and_refuses_those_outside() {
        let table = table(8);
        let mut view = table.view();
        let id = Id { index: 5, tag: 250 };
        assert_eq!(table.mirror(id, text("five")), Ok(()));
        assert_eq!(
            table.mirror(Id { index: 8, tag: 0 }, text("out")),
            Err(NoPlace)
        );
        view.refresh();
        assert_eq!(view.get(id), Lookup::Live(&text("five")));
        assert_eq!(view.get(Id { index: 5, tag: 251 }), Lookup::Unknown);
        assert_eq!(Id::from_bits(id.to_bits()), id);
    }
}
