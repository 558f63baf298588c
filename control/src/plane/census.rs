//! Everything a plane holds, counted.

use super::memory::LinkMemory;
use super::state::PoolId;
use super::{Plane, SlotPool};
use pollux_provider::Device;
use pollux_worker::App;

/// What a plane holds. Two are equal when nothing was left behind in between.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Census {
    /// Handshakes under way.
    pub handshakes: usize,
    /// Connections that are open, or end.
    pub conns: usize,
    /// Places of which the worker still has to forget a handshake that broke off.
    pub forgotten: usize,
    /// Links, in any state.
    pub links: usize,
    /// Link groups, in any state.
    pub groups: usize,
    /// Connections that groups count.
    pub members: usize,
    /// Slots kept because a silent peer may still write into them.
    pub quarantined: usize,
    /// Slots in use, of all pools that are in service.
    pub slots: usize,
    /// Pools that the owner has given up and that are kept for the sake of the peers.
    pub retired_pools: usize,
    /// Registrations of memory: message slots of links, and rings of pools. The rings of a slot stay
    /// registered once they were used.
    pub registrations: usize,
    /// Places taken in the workers' tables of connections.
    pub conn_places: usize,
    /// Places taken in the workers' tables of links.
    pub link_places: usize,
    /// Places taken in the workers' tables of sessions.
    pub session_places: usize,
    /// Orders that wait for room in a worker's ring.
    pub orders: usize,
    /// News that the owner has not taken.
    pub events: usize,
}

impl<D: Device, A: App, S, U> Plane<D, A, S, U> {
    /// Counts everything that is held.
    #[must_use]
    pub fn census(&self) -> Census {
        let mut census = Census {
            handshakes: self.handshakes.len(),
            conns: self.conns.len(),
            forgotten: self.forgotten.len(),
            events: self.events.len(),
            ..Census::default()
        };
        for state in &self.workers {
            let groups = state.groups.iter();
            census.members += groups.map(|(_, group)| group.conns()).sum::<usize>();
            census.groups += state.groups.iter().count();
            census.links += state.links.len();
            census.registrations += state.links.len() * LinkMemory::REGISTRATIONS;
            let links = state.links.values();
            census.quarantined += links.map(|link| link.quarantine.len()).sum::<usize>();
            census.conn_places += state.port.conns.taken();
            census.link_places += state.port.links.taken();
            census.session_places += state.port.sessions.taken();
            census.orders += state.port.backlog();
        }
        let retired = |pool: &&SlotPool| pool.is_retired();
        census.retired_pools = self.pools.values().filter(retired).count();
        let in_service = self.pools.values().filter(|pool| !pool.is_retired());
        census.registrations += self
            .pools
            .values()
            .map(SlotPool::registrations)
            .sum::<usize>();
        census.slots = in_service.map(SlotPool::used).sum();
        census
    }

    /// Slots in use of a pool, or `None` if there is no such pool.
    #[must_use]
    pub fn pool_slots(&self, pool: PoolId) -> Option<usize> {
        self.pools.get(&pool).map(SlotPool::used)
    }
}
