//! What the parts of one soft device share: tables, doors of queue pairs, peers, and the epoch.
//!
//! Everything here is slow path. The only thing a worker looks at each pass is the **epoch**: one word that
//! grows with every change that may concern it. When it has grown, the group catches up under the locks.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use pollux_ring::{Region, Segment, Wake};

use super::barrier::{self, Fence};
use super::personality::Personality;
use crate::lock::lock;
use crate::table::mix;
use crate::table::{Id, NoPlace, Table, View};
use crate::{
    Access, CreateQpError, DeviceEvent, DeviceIdentity, DeviceLimits, Errno, GidHex, GroupId, Lkey,
    QpCaps, Rkey,
};

/// Exports of one device at a time: distinct segments with live registrations.
pub(crate) const EXPORTS_MAX: u32 = 4096;
/// Offers kept for a queue pair that is not bound yet. More can only come from peers that err.
const OFFERS_MAX: usize = 8;
/// Events kept until somebody takes them.
const EVENTS_MAX: usize = 256;

/// One registration.
#[derive(Debug, Clone)]
pub(crate) struct MrEntry {
    pub(crate) lkey: Lkey,
    pub(crate) rkey: Rkey,
    pub(crate) region: Region,
    /// Virtual address of the first registered byte.
    pub(crate) addr: u64,
    pub(crate) len: u64,
    pub(crate) access: Access,
    /// Under which name peers have the segment mapped; none for private memory.
    pub(crate) export: Option<Id>,
}

impl MrEntry {
    /// Offset in the region of `len` bytes at `addr`, if the registration holds them.
    #[inline(always)]
    pub(crate) fn offset(&self, addr: u64, len: u64) -> Option<usize> {
        let inside = addr.checked_sub(self.addr)?;
        // Written so that nothing can overflow, whatever a peer says.
        (inside <= self.len && len <= self.len - inside)
            .then(|| (addr - self.region.addr()) as usize)
    }
}

/// Keys carry the place in the table, so that finding a registration is an index and a comparison.
pub(crate) fn keys(id: Id) -> (Lkey, Rkey) {
    let lkey = Id {
        index: id.index,
        tag: id.tag << 1,
    }
    .to_bits();
    (Lkey(lkey), Rkey(lkey | 1))
}

/// The registration that local work names.
#[inline(always)]
pub(crate) fn by_lkey(mrs: &View<MrEntry>, lkey: Lkey) -> Option<&MrEntry> {
    mrs.at(lkey.0 >> 8).filter(|mr| mr.lkey == lkey)
}

/// The registration that a peer's WRITE names.
#[inline(always)]
pub(crate) fn by_rkey(mrs: &View<MrEntry>, rkey: u32) -> Option<&MrEntry> {
    let mr = mrs.at(rkey >> 8).filter(|mr| mr.rkey.0 == rkey)?;
    (mr.access == Access::RemoteWrite).then_some(mr)
}

/// A peer device, in one of its lives.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) gid: [u8; 16],
    /// Tells two lives of one address apart.
    pub(crate) incarnation: u64,
    /// The segments it exports, as mapped here.
    pub(crate) exports: Arc<Table<Region>>,
    gone: AtomicBool,
}

impl Peer {
    pub(crate) fn new(gid: [u8; 16], incarnation: u64, exports: Arc<Table<Region>>) -> Peer {
        Peer {
            gid,
            incarnation,
            exports,
            gone: AtomicBool::new(false),
        }
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }
}

/// The port of a peer's queue pair, offered to one of ours.
#[derive(Debug)]
pub(crate) struct Offer {
    pub(crate) peer: Arc<Peer>,
    pub(crate) qpn: u32,
    pub(crate) port: Segment,
    pub(crate) wake: Wake,
}

/// Where offers for a queue pair wait until it is bound and polled.
#[derive(Debug)]
pub(crate) struct Door {
    pub(crate) qpn: u32,
    offers: Mutex<VecDeque<Offer>>,
}

impl Door {
    /// Takes the offer of the peer's queue pair that this one is bound to.
    pub(crate) fn take(&self, peer: &Arc<Peer>, qpn: u32) -> Option<Offer> {
        let mut offers = lock(&self.offers);
        let wanted = |offer: &Offer| Arc::ptr_eq(&offer.peer, peer) && offer.qpn == qpn;
        let at = offers.iter().position(wanted)?;
        offers.remove(at)
    }
}

/// What a device knows about one of its poll groups.
#[derive(Debug)]
struct GroupEntry {
    cq_entries: u64,
    cq_committed: u64,
    wake: Wake,
    armed: Arc<AtomicBool>,
}

#[derive(Debug)]
struct ExportUse {
    id: Id,
    users: u32,
}

/// Live objects of a device, for tests and diagnostics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Census {
    /// Poll groups.
    pub groups: usize,
    /// Queue pairs.
    pub qps: usize,
    /// Registrations.
    pub mrs: usize,
    /// Segments exported to peers.
    pub exports: usize,
    /// Peer devices in reach.
    pub peers: usize,
    /// Calls of `create_qp` so far, refused ones too.
    pub create_qp_calls: u64,
}

#[derive(Debug, Default)]
struct State {
    doors: HashMap<u32, Arc<Door>>,
    groups: HashMap<GroupId, GroupEntry>,
    peers: HashMap<[u8; 16], Arc<Peer>>,
    /// By address of the segment's first byte.
    export_uses: HashMap<u64, ExportUse>,
    events: VecDeque<DeviceEvent>,
    next_qpn: u32,
    next_group: u32,
    create_qp_calls: u64,
    /// Injected refusals that are still to come, by the number of the creation.
    refuse_creation: BTreeMap<u64, Errno>,
}

/// The shared part of a soft device.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) identity: DeviceIdentity,
    pub(crate) limits: DeviceLimits,
    pub(crate) personality: Personality,
    pub(crate) incarnation: u64,
    pub(crate) mrs: Arc<Table<MrEntry>>,
    pub(crate) exports: Arc<Table<Region>>,
    /// Whether requesters may leave out the fence while their peer never sleeps.
    pub(crate) fence: Fence,
    epoch: AtomicU64,
    state: Mutex<State>,
}

impl Shared {
    pub(crate) fn new(
        identity: DeviceIdentity,
        limits: DeviceLimits,
        personality: Personality,
        seed: u64,
    ) -> Shared {
        // Never 0 or the first few: those mean something on real adapters.
        let state = State {
            next_qpn: mix(seed) as u32 | 0x10,
            ..State::default()
        };
        Shared {
            mrs: Arc::new(Table::new(limits.mr_max, mix(seed ^ 1))),
            exports: Arc::new(Table::new(EXPORTS_MAX, mix(seed ^ 2))),
            identity,
            limits,
            personality,
            incarnation: mix(seed ^ 3),
            fence: barrier::join(),
            epoch: AtomicU64::new(0),
            state: Mutex::new(state),
        }
    }

    /// Grows with every change that a group has to look at.
    #[inline(always)]
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Makes groups catch up with a table at their next call; wakes those that sleep through too much.
    pub(crate) fn table_changed<T: Clone>(&self, table: &Table<T>) {
        if table.is_crowded() {
            self.news();
        } else {
            self.epoch.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Makes groups catch up, and wakes those that sleep: something happened to queue pairs.
    pub(crate) fn news(&self) {
        self.epoch.fetch_add(1, Ordering::SeqCst);
        for group in lock(&self.state).groups.values() {
            if group.armed.load(Ordering::SeqCst) {
                // An eventfd that cannot take a signal holds one already.
                let _ = group.wake.signal();
            }
        }
    }

    pub(crate) fn event(&self, event: DeviceEvent) {
        let events = &mut lock(&self.state).events;
        if events.len() == EVENTS_MAX {
            events.pop_front();
        }
        events.push_back(event);
    }

    pub(crate) fn take_events(&self) -> Vec<DeviceEvent> {
        lock(&self.state).events.drain(..).collect()
    }

    pub(crate) fn census(&self) -> Census {
        let (mrs, exports) = (self.mrs.live(), self.exports.live());
        let state = lock(&self.state);
        Census {
            groups: state.groups.len(),
            qps: state.doors.len(),
            mrs,
            exports,
            peers: state.peers.values().filter(|peer| !peer.is_gone()).count(),
            create_qp_calls: state.create_qp_calls,
        }
    }

    /// Lets the `nth` creation of a queue pair from now on (1 = the next) fail with `errno`, besides
    /// those that were told before.
    pub(crate) fn refuse_creation(&self, nth: u64, errno: Errno) {
        let mut state = lock(&self.state);
        let at = state.create_qp_calls + nth;
        state.refuse_creation.insert(at, errno);
    }

    /// Counts a creation; the injected refusal if it is its turn.
    pub(crate) fn count_creation(&self, asked: QpCaps) -> Result<(), CreateQpError> {
        let mut state = lock(&self.state);
        state.create_qp_calls += 1;
        let this = state.create_qp_calls;
        match state.refuse_creation.remove(&this) {
            Some(errno) => Err(CreateQpError {
                errno,
                asked,
                hint: "this refusal was asked for".to_owned(),
            }),
            None => Ok(()),
        }
    }

    // --- groups and queue pairs ---

    pub(crate) fn add_group(&self, cq_entries: u32, wake: Wake, armed: Arc<AtomicBool>) -> GroupId {
        let mut state = lock(&self.state);
        let id = GroupId(state.next_group);
        state.next_group += 1;
        let cq_entries = u64::from(cq_entries);
        state.groups.insert(
            id,
            GroupEntry {
                cq_entries,
                cq_committed: 0,
                wake,
                armed,
            },
        );
        id
    }

    pub(crate) fn remove_group(&self, id: GroupId) {
        lock(&self.state).groups.remove(&id);
    }

    /// The group's wake, for the peers of its queue pairs.
    pub(crate) fn group_wake(&self, id: GroupId) -> Result<Wake, Errno> {
        let state = lock(&self.state);
        let group = state.groups.get(&id).ok_or(Errno::INVAL)?;
        group.wake.try_clone().map_err(|error| error.errno)
    }

    /// Reserves a number and room for completions.
    pub(crate) fn add_qp(&self, group: GroupId, caps: &QpCaps) -> Result<Arc<Door>, CreateQpError> {
        let refused = |errno, hint| CreateQpError {
            errno,
            asked: *caps,
            hint,
        };
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        let limit = self.limits.qp_max as usize;
        if state.doors.len() >= limit {
            return Err(refused(
                Errno::NOMEM,
                format!("all {limit} queue pairs are in use"),
            ));
        }
        let Some(entry) = state.groups.get_mut(&group) else {
            return Err(refused(
                Errno::INVAL,
                format!("there is no poll group {}", group.0),
            ));
        };
        let wanted = completions(caps);
        let left = entry.cq_entries - entry.cq_committed;
        if wanted > left {
            let hint = format!(
                "it needs {wanted} completion queue entries, the poll group has {left} of {} left",
                entry.cq_entries
            );
            return Err(refused(Errno::INVAL, hint));
        }
        entry.cq_committed += wanted;
        let qpn = loop {
            state.next_qpn = (state.next_qpn + 1) & 0xff_ffff;
            if state.next_qpn >= 0x10 && !state.doors.contains_key(&state.next_qpn) {
                break state.next_qpn;
            }
        };
        let door = Arc::new(Door {
            qpn,
            offers: Mutex::default(),
        });
        state.doors.insert(qpn, Arc::clone(&door));
        Ok(door)
    }

    pub(crate) fn remove_qp(&self, qpn: u32, group: GroupId, caps: &QpCaps) {
        let mut state = lock(&self.state);
        state.doors.remove(&qpn);
        if let Some(entry) = state.groups.get_mut(&group) {
            entry.cq_committed -= completions(caps);
        }
    }

    // --- peers ---

    /// The peer with this address and life; makes it known if it is new, and buries an earlier life.
    pub(crate) fn peer(
        &self,
        gid: [u8; 16],
        incarnation: u64,
        exports: impl FnOnce() -> Arc<Table<Region>>,
    ) -> Arc<Peer> {
        let (peer, earlier) = {
            let mut state = lock(&self.state);
            match state.peers.get(&gid) {
                Some(peer) if peer.incarnation == incarnation && !peer.is_gone() => {
                    return Arc::clone(peer);
                }
                Some(_) | None => {}
            }
            let peer = Arc::new(Peer::new(gid, incarnation, exports()));
            let earlier = state.peers.insert(gid, Arc::clone(&peer));
            (peer, earlier)
        };
        if let Some(earlier) = earlier {
            self.bury(&earlier);
        }
        self.event(DeviceEvent::PeerJoined { gid });
        peer
    }

    /// Notes that a peer's life has ended; queue pairs to it fail.
    pub(crate) fn bury(&self, peer: &Arc<Peer>) {
        if peer.gone.swap(true, Ordering::AcqRel) {
            return;
        }
        {
            let mut state = lock(&self.state);
            if state
                .peers
                .get(&peer.gid)
                .is_some_and(|known| Arc::ptr_eq(known, peer))
            {
                state.peers.remove(&peer.gid);
            }
        }
        self.event(DeviceEvent::PeerGone { gid: peer.gid });
        self.news();
    }

    /// Like [`Shared::bury`], if that life is known.
    pub(crate) fn bury_life(&self, gid: &[u8; 16], incarnation: u64) {
        let peer = lock(&self.state).peers.get(gid).cloned();
        if let Some(peer) = peer.filter(|peer| peer.incarnation == incarnation) {
            self.bury(&peer);
        }
    }

    /// All peers are out of reach: the device itself goes.
    pub(crate) fn bury_all(&self) {
        let peers: Vec<Arc<Peer>> = lock(&self.state).peers.values().cloned().collect();
        peers.iter().for_each(|peer| self.bury(peer));
    }

    /// Brings an offer to the door of queue pair `qpn`. One for a number that nobody has is dropped.
    pub(crate) fn deliver(&self, qpn: u32, offer: Offer) {
        let door = lock(&self.state).doors.get(&qpn).cloned();
        match door {
            Some(door) => {
                let mut offers = lock(&door.offers);
                offers.retain(|old| old.peer.gid != offer.peer.gid || old.qpn != offer.qpn);
                if offers.len() == OFFERS_MAX {
                    offers.pop_front();
                }
                offers.push_back(offer);
                drop(offers);
                self.news();
            }
            None => self.event(DeviceEvent::PeerRefused {
                what: format!(
                    "device {} offers a connection to queue pair {qpn:#08x}, which does not exist",
                    GidHex(offer.peer.gid)
                ),
            }),
        }
    }

    // --- exports ---

    /// Counts one more registration of a segment. The flag says whether it is the first.
    pub(crate) fn export(&self, segment: &Segment) -> Result<(Id, FirstUse), NoPlace> {
        let mut state = lock(&self.state);
        if let Some(export) = state.export_uses.get_mut(&segment.addr()) {
            export.users += 1;
            return Ok((export.id, FirstUse::No));
        }
        let id = self.exports.insert(|_| Region::Shared(segment.clone()))?;
        state
            .export_uses
            .insert(segment.addr(), ExportUse { id, users: 1 });
        Ok((id, FirstUse::Yes))
    }

    /// Counts one registration of a segment less; the id if it was the last.
    pub(crate) fn unexport(&self, segment_addr: u64) -> Option<Id> {
        let mut state = lock(&self.state);
        let export = state.export_uses.get_mut(&segment_addr)?;
        export.users -= 1;
        if export.users > 0 {
            return None;
        }
        let id = export.id;
        state.export_uses.remove(&segment_addr);
        self.exports.remove(id);
        Some(id)
    }
}

/// Whether peers have to be told of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FirstUse {
    Yes,
    No,
}

fn completions(caps: &QpCaps) -> u64 {
    u64::from(caps.send_wr) + u64::from(caps.recv_wr)
}
