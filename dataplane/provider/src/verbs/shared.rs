//! What the parts of one device share: registrations, groups with their places, and failures to be told.
//!
//! Everything here is slow path, but for the table of registrations, of which groups have copies.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use pollux_ring::Wake;

use super::attributes::{Source, error};
use super::ffi::{Context, Cq, Pd, QueuePair};
use super::name::LIVES;
use super::status::{Failed, device_event};
use super::waker::Waker;
use crate::lock::lock;
use crate::table::{Id, Table, View};
use crate::{
    CreateQpError, DeviceEvent, DeviceIdentity, DeviceLimits, Errno, GroupId, Lkey, QpCaps,
};

/// Failures kept until control asks. More queue pairs than that fail only with their device.
const FAILURES_MAX: usize = 256;
/// Events read at a time, so that an adapter that says the same for ever does not keep control.
const EVENTS_PER_CALL: usize = 256;
/// Places of a group: as many as there are indices.
const PLACES_MAX: usize = u16::MAX as usize;
/// Turns a place of the table into a key that no adapter gives out: theirs are places of tables too, and
/// small. So a key that is used on the wrong side is refused.
const LKEY_MARK: u32 = 0xa500_0000;

/// One registration as groups see it.
#[derive(Debug, Clone, Copy)]
pub(super) struct MrEntry {
    lkey: Lkey,
    /// The adapter's key.
    pub(super) adapter_lkey: u32,
    addr: u64,
    len: u64,
}

impl MrEntry {
    pub(super) fn new(id: Id, adapter_lkey: u32, addr: u64, len: u64) -> MrEntry {
        MrEntry {
            lkey: lkey(id),
            adapter_lkey,
            addr,
            len,
        }
    }

    /// Whether `len` bytes at `addr` lie in it.
    #[inline(always)]
    pub(super) fn holds(&self, addr: u64, len: u64) -> bool {
        addr.checked_sub(self.addr)
            .is_some_and(|inside| inside <= self.len && len <= self.len - inside)
    }
}

/// The key of a place.
pub(super) fn lkey(id: Id) -> Lkey {
    Lkey(id.to_bits() ^ LKEY_MARK)
}

/// The registration that local work names.
#[inline(always)]
pub(super) fn by_lkey(mrs: &View<MrEntry>, lkey: Lkey) -> Option<&MrEntry> {
    mrs.at((lkey.0 ^ LKEY_MARK) >> 8)
        .filter(|mr| mr.lkey == lkey)
}

#[derive(Debug, Default)]
struct PlaceEntry {
    /// Who has it, or had it last.
    life: u16,
    /// Taken as long as there is something here, whether it still lives or not.
    qp: Option<Weak<QueuePair>>,
}

#[derive(Debug)]
struct GroupEntry {
    cq: Arc<Cq>,
    cq_entries: u32,
    cq_committed: u32,
    places: Vec<PlaceEntry>,
}

/// A device.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) identity: DeviceIdentity,
    pub(super) limits: DeviceLimits,
    pub(super) source: Source,
    pub(super) mrs: Arc<Table<MrEntry>>,
    /// Bytes registered.
    pub(super) registered: AtomicU64,
    groups: Mutex<HashMap<GroupId, GroupEntry>>,
    next_group: AtomicU32,
    failures: Mutex<VecDeque<Failed>>,
    waker: Waker,
    pub(super) pd: Arc<Pd>,
    pub(super) context: Arc<Context>,
}

impl Shared {
    pub(super) fn new(
        (context, pd): (Arc<Context>, Arc<Pd>),
        identity: DeviceIdentity,
        limits: DeviceLimits,
        source: Source,
    ) -> Result<Shared, Errno> {
        let seed = u64::from(std::process::id());
        Ok(Shared {
            identity,
            limits,
            source,
            mrs: Arc::new(Table::new(limits.mr_max, seed)),
            registered: AtomicU64::new(0),
            groups: Mutex::new(HashMap::new()),
            next_group: AtomicU32::new(0),
            failures: Mutex::new(VecDeque::with_capacity(FAILURES_MAX)),
            waker: Waker::start()?,
            pd,
            context,
        })
    }

    /// A completion queue of its own for a new group.
    pub(super) fn add_group(
        &self,
        cq_entries: u32,
        wake: Wake,
        armed: &Arc<AtomicBool>,
    ) -> Result<(GroupId, Arc<Cq>), Errno> {
        // Each queue pair, which takes two entries at least, may have a marker as well.
        let cq = Cq::new(&self.context, cq_entries + cq_entries / 2 + 1)?;
        let id = GroupId(self.next_group.fetch_add(1, Ordering::Relaxed));
        self.waker.add(id, &cq, wake, armed)?;
        let entry = GroupEntry {
            cq: Arc::clone(&cq),
            cq_entries,
            cq_committed: 0,
            places: Vec::new(),
        };
        lock(&self.groups).insert(id, entry);
        Ok((id, cq))
    }

    pub(super) fn remove_group(&self, id: GroupId) {
        self.waker.remove(id);
        let gone = lock(&self.groups).remove(&id);
        // The queue may go with it: not under the lock.
        drop(gone);
    }

    /// Takes a place in a group for a queue pair of these sizes.
    pub(super) fn take_seat(
        self: &Arc<Self>,
        group: GroupId,
        caps: &QpCaps,
    ) -> Result<(Seat, Arc<Cq>), CreateQpError> {
        let refused = |hint| {
            let (errno, asked) = (Errno::INVAL, *caps);
            CreateQpError { errno, asked, hint }
        };
        let mut groups = lock(&self.groups);
        let Some(entry) = groups.get_mut(&group) else {
            return Err(refused(format!("there is no poll group {}", group.0)));
        };
        let (entries, free) = (
            caps.send_wr + caps.recv_wr,
            entry.cq_entries - entry.cq_committed,
        );
        if entries > free {
            return Err(refused(format!(
                "the completion queue of poll group {} needs {entries} free entries for it and has \
                 {free} of {}",
                group.0, entry.cq_entries
            )));
        }
        let unused = |place: &PlaceEntry| place.qp.is_none();
        let at = entry.places.iter().position(unused);
        let at = at.unwrap_or(entry.places.len());
        if at == PLACES_MAX {
            let full = format!("poll group {} holds {PLACES_MAX} queue pairs", group.0);
            return Err(refused(full));
        }
        if at == entry.places.len() {
            entry.places.push(PlaceEntry::default());
        }
        let place = &mut entry.places[at];
        place.life = (place.life + 1) % LIVES;
        place.qp = Some(Weak::new());
        entry.cq_committed += entries;
        let seat = Seat {
            shared: Arc::clone(self),
            group,
            place: at as u16,
            life: place.life,
            entries,
        };
        Ok((seat, Arc::clone(&entry.cq)))
    }

    /// Tells control of a failure.
    #[cold]
    pub(super) fn failed(&self, failed: Failed) {
        let mut failures = lock(&self.failures);
        if failures.len() < FAILURES_MAX {
            failures.push_back(failed);
        }
    }

    pub(super) fn take_events(&self) -> Vec<DeviceEvent> {
        let failures = std::mem::take(&mut *lock(&self.failures));
        let told = failures.into_iter().flat_map(Failed::events);
        let asynchronous = std::iter::from_fn(|| self.context.next_event())
            .take(EVENTS_PER_CALL)
            .filter_map(|(event, subject)| device_event(event, subject));
        told.chain(asynchronous).collect()
    }

    /// The device goes: all its queue pairs fail, whoever has them.
    pub(super) fn bury_all(&self) {
        let alive: Vec<Arc<QueuePair>> = lock(&self.groups)
            .values()
            .flat_map(|group| &group.places)
            .filter_map(|place| place.qp.as_ref()?.upgrade())
            .collect();
        for qp in alive {
            // A device that refuses is broken already.
            let _ = qp.modify(&error());
        }
    }
}

/// A queue pair's place in its group, and its share of the completion queue.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) shared: Arc<Shared>,
    pub(super) group: GroupId,
    pub(super) place: u16,
    pub(super) life: u16,
    entries: u32,
}

impl Seat {
    /// Says who sits there.
    pub(super) fn occupy(&self, qp: &Arc<QueuePair>) {
        let mut groups = lock(&self.shared.groups);
        let places = groups.get_mut(&self.group).map(|group| &mut group.places);
        if let Some(place) = places.and_then(|places| places.get_mut(usize::from(self.place))) {
            place.qp = Some(Arc::downgrade(qp));
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut groups = lock(&self.shared.groups);
        // The group may have gone first.
        let Some(group) = groups.get_mut(&self.group) else {
            return;
        };
        group.cq_committed -= self.entries;
        if let Some(place) = group.places.get_mut(usize::from(self.place)) {
            place.qp = None;
        }
    }
}
