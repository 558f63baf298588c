//! Pools of ring buffers: slots given out, taken back, and kept as long as a peer may write into
//! them.

use super::memory::{BufferPool, ConnBuffers, MemoryError, MemoryNote};
use super::state::{GroupKey, Place, PoolId};
use super::{Event, Plane, Stream};
use pollux_attach::layout::{Layout, Shape};
use pollux_attach::slots::{NotHeld, SlotRef, SlotTable};
use pollux_provider::Device;
use pollux_ring::Segment;
use pollux_wire::clc::Diagnosis;
use pollux_worker::App;

/// Who has to be done with a slot before it is given out again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sharing {
    /// The worker, and the peer.
    Worker,
    /// The program as well, which says so by [`Plane::program_done`].
    Program,
}

/// Whether slots of a pool are given out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Service {
    Open,
    /// The owner has given the pool up; it is kept because a peer may still write into it.
    Retired,
}

/// Buffers, and who has them.
pub(crate) struct SlotPool {
    table: SlotTable,
    buffers: BufferPool,
    sharing: Sharing,
    service: Service,
}

impl SlotPool {
    fn new(buffers: BufferPool, slots: u16, sharing: Sharing) -> Self {
        SlotPool {
            table: SlotTable::new(slots),
            buffers,
            sharing,
            service: Service::Open,
        }
    }

    /// Slots in use.
    pub(super) fn used(&self) -> usize {
        self.table.used()
    }

    pub(super) fn registrations(&self) -> usize {
        self.buffers.registrations()
    }

    pub(super) fn is_retired(&self) -> bool {
        self.service == Service::Retired
    }
}

impl<D: Device, A: App, S: Stream, U: Copy> Plane<D, A, S, U> {
    /// Adds a pool of ring buffers over a segment, which has the layout beside it.
    ///
    /// # Errors
    /// [`MemoryError::Register`]: the device refused the registration of the send buffers.
    /// [`MemoryError::PoolInUse`]: there is such a pool.
    pub fn add_pool(
        &mut self,
        id: PoolId,
        (segment, layout): (Segment, Layout),
        sharing: Sharing,
    ) -> Result<(), MemoryError> {
        if self.pools.contains_key(&id) {
            return Err(MemoryError::PoolInUse { pool: id });
        }
        let buffers = BufferPool::create(&self.device, segment, layout)?;
        let pool = SlotPool::new(buffers, layout.shape().slots(), sharing);
        self.pools.insert(id, pool);
        Ok(())
    }

    /// Gives a pool up: none of its slots is given out any more. Its memory stays registered until no
    /// connection and no peer can reach it. Without effect if there is no such pool.
    pub fn retire_pool(&mut self, id: PoolId) {
        if let Some(pool) = self.pools.get_mut(&id) {
            pool.service = Service::Retired;
            self.sweep_pools();
        }
    }

    /// Bytes of the pools that were given up and are kept for the sake of the peers.
    #[must_use]
    pub fn retired_bytes(&self) -> u64 {
        let retired = self.pools.values().filter(|pool| pool.is_retired());
        let bytes = retired.map(|pool| pool.buffers.note(String::new()).bytes as u64);
        bytes.sum()
    }

    /// The program is done with a slot of a pool that it shares.
    ///
    /// # Errors
    /// [`NotHeld`]: it does not hold this slot; a program that says so breaks the protocol.
    pub fn program_done(&mut self, id: PoolId, released: SlotRef) -> Result<(), NotHeld> {
        let SlotRef { slot, generation } = released;
        let pool = self.pools.get_mut(&id);
        let pool = pool.ok_or(NotHeld { slot, generation })?;
        pool.table.program_done(released).map(|_| ())
    }

    /// What `show memory` says of a pool.
    pub(crate) fn pool_note(&self, id: PoolId, purpose: &str) -> Option<MemoryNote> {
        let pool = self.pools.get(&id)?;
        Some(pool.buffers.note(purpose.to_string()))
    }

    /// Takes a free slot with its buffers, into which the peer of `group` will write.
    pub(super) fn take_slot(
        &mut self,
        id: PoolId,
        group: GroupKey,
    ) -> Result<(Place, ConnBuffers), Diagnosis> {
        if let PoolId::Worker(_) = id {
            self.make_worker_pool(id)?;
        }
        let pool = self.pools.get_mut(&id).filter(|pool| !pool.is_retired());
        let pool = pool.ok_or(Diagnosis::INTERR)?;
        let slot = pool.table.take().ok_or(Diagnosis::MEM)?;
        match pool.buffers.buffers(&self.device, slot.slot, group) {
            Ok(Some(buffers)) => Ok((Place { pool: id, slot }, buffers)),
            Ok(None) => {
                pool.table.put_back(slot);
                Err(Diagnosis::INTERR)
            }
            Err(error) => {
                tracing::error!(%error, "no buffers for a connection");
                pool.table.put_back(slot);
                Err(Diagnosis::MEM)
            }
        }
    }

    /// The buffers of a worker's own application, made when first needed.
    fn make_worker_pool(&mut self, id: PoolId) -> Result<(), Diagnosis> {
        if self.pools.contains_key(&id) {
            return Ok(());
        }
        let rings = self.config.app_rings;
        let failed = |error: &dyn std::fmt::Display| {
            tracing::error!(%error, "no buffers for connections inside the worker");
            Diagnosis::MEM
        };
        let shape = Shape::new(rings.slots, rings.sndbuf_bytes, rings.rmbe_bytes)
            .map_err(|error| failed(&error))?;
        let layout = Layout::of(shape);
        let segment = Segment::create("pollux-app", layout.bytes(), self.config.pages)
            .map_err(|error| failed(&error))?;
        self.add_pool(id, (segment, layout), Sharing::Worker)
            .map_err(|error| failed(&error))
    }

    /// Gives back a slot of which nobody has heard.
    pub(super) fn put_back_slot(&mut self, place: Place) {
        if let Some(pool) = self.pools.get_mut(&place.pool) {
            pool.table.put_back(place.slot);
        }
        self.sweep_pools();
    }

    /// The worker and the peer are done with a slot.
    pub(super) fn worker_is_done(&mut self, place: Place) {
        let Place { pool: id, slot } = place;
        let Some(pool) = self.pools.get_mut(&id) else {
            return;
        };
        match pool.sharing {
            Sharing::Worker => pool.table.put_back(slot),
            Sharing::Program => {
                pool.table.worker_done(slot.slot);
                if !pool.is_retired() {
                    self.events.push_back(Event::Released { pool: id, slot });
                }
            }
        }
        self.sweep_pools();
    }

    /// Frees the memory of retired pools that nobody can reach any more.
    pub(super) fn sweep_pools(&mut self) {
        if self.kept.is_some() || !self.pools.values().any(SlotPool::is_retired) {
            return;
        }
        let mut reachable: Vec<PoolId> = Vec::new();
        let links = self.workers.iter().flat_map(|state| state.links.values());
        reachable.extend(
            links
                .flat_map(|link| &link.quarantine)
                .map(|(_, place)| place.pool),
        );
        reachable.extend(self.conns.values().map(|record| record.place.pool));
        reachable.extend(self.forgotten.values().map(|gone| gone.place.pool));
        let handshakes = self.handshakes.values();
        let reserved = handshakes.filter_map(|handshake| handshake.reserved.as_ref());
        reachable.extend(reserved.map(|reserved| reserved.place.pool));
        self.pools
            .retain(|id, pool| !pool.is_retired() || reachable.contains(id));
    }
}
