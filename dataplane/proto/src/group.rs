//! The table of link groups: which one a new connection joins, who is in it, and when it has idled
//! too long.
//!
//! A group is one relation between us in one role and one peer process; with a single link it is
//! also one queue pair. A connection is in a group from before its alert token is announced until
//! both sides are done with it.
//!
//! | we are | a new connection joins the active group with |
//! |---|---|
//! | server | the peer id and GID of the Proposal, the version chosen, and room for one more |
//! | client | the peer id, GID, version and queue pair of the Accept; the server chose |
//!
//! In version 1 the MAC must match too. A group that no connection uses is kept for ten minutes, so
//! that the next one is quick; the client keeps it ten seconds longer, so that the server ends it.

use core::time::Duration;

use pollux_wire::clc::Version;
use pollux_wire::field::{AlertToken, Gid, Mac, PeerId, Qpn};
use thiserror::Error;

use crate::clc::{Candidate, PeerEndpoint};
use crate::link::Role;
use crate::time::Instant;

/// How long a server keeps a group without connections.
pub const SERVER_IDLE: Duration = Duration::from_secs(600);
/// How long a client does.
pub const CLIENT_IDLE: Duration = Duration::from_secs(610);

/// Names a group; never given out twice by one table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GroupId {
    slot: u32,
    generation: u32,
}

impl core::fmt::Display for GroupId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}.{}", self.slot, self.generation)
    }
}

/// Limits of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupLimits {
    /// Most groups, and so most links.
    pub groups_max: usize,
    /// How long a group in which we are the server may idle.
    pub server_idle: Duration,
    /// How long a group in which we are the client may idle.
    pub client_idle: Duration,
}

impl GroupLimits {
    /// Linux's times, and this many groups.
    #[must_use]
    pub const fn new(groups_max: usize) -> GroupLimits {
        GroupLimits {
            groups_max,
            server_idle: SERVER_IDLE,
            client_idle: CLIENT_IDLE,
        }
    }
}

/// Which peer a group connects to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PeerKey {
    /// Version of the handshake.
    pub version: Version,
    /// Peer's identity as it was in its first message: zero for some Linux clients.
    pub peer_id: PeerId,
    /// Peer's GID.
    pub gid: Gid,
    /// Peer's MAC; part of the key in version 1 only.
    pub mac: Mac,
}

impl PeerKey {
    /// At a server, from an offer.
    #[must_use]
    pub const fn of_candidate(candidate: &Candidate) -> PeerKey {
        let Candidate {
            version,
            peer_id,
            gid,
            mac,
            ..
        } = *candidate;
        PeerKey {
            version,
            peer_id,
            gid,
            mac,
        }
    }

    /// At a client, from an Accept.
    #[must_use]
    pub const fn of_server(version: Version, peer: &PeerEndpoint) -> PeerKey {
        let PeerEndpoint {
            peer_id, gid, mac, ..
        } = *peer;
        PeerKey {
            version,
            peer_id,
            gid,
            mac,
        }
    }

    fn matches(&self, other: &PeerKey) -> bool {
        let same_mac = match self.version {
            Version::V1 => self.mac == other.mac,
            Version::V2 => true,
        };
        same_mac
            && (self.version, self.peer_id, self.gid) == (other.version, other.peer_id, other.gid)
    }
}

/// How far a group has come.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum GroupState {
    /// Its first handshake is under way; only that connection is in it.
    Forming,
    /// Its link was confirmed.
    Active,
    /// It ends: no connection may join any more.
    Ending,
}

/// One link group.
#[derive(Clone, Debug)]
pub struct Group {
    role: Role,
    key: PeerKey,
    peer_qpn: Option<Qpn>,
    max_conns: u8,
    state: GroupState,
    /// Tokens we gave out, one per connection.
    tokens: Vec<AlertToken>,
    /// When it becomes idle too long; only while it has no connections.
    idle_until: Option<Instant>,
}

impl Group {
    /// Which side we are.
    #[must_use]
    pub const fn role(&self) -> Role {
        self.role
    }

    /// The peer.
    #[must_use]
    pub const fn key(&self) -> &PeerKey {
        &self.key
    }

    /// The peer's queue pair, once known.
    #[must_use]
    pub const fn peer_qpn(&self) -> Option<Qpn> {
        self.peer_qpn
    }

    /// Most connections.
    #[must_use]
    pub const fn max_conns(&self) -> u8 {
        self.max_conns
    }

    /// Connections in it.
    #[must_use]
    pub fn conns(&self) -> usize {
        self.tokens.len()
    }

    /// How far it has come.
    #[must_use]
    pub const fn state(&self) -> GroupState {
        self.state
    }

    fn has_room(&self) -> bool {
        self.tokens.len() < usize::from(self.max_conns)
    }
}

/// Why a group could not be made or joined.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Error)]
pub enum GroupError {
    /// The table is full.
    #[error("{groups_max} link groups exist already, the most allowed; raise the limit of links")]
    TooManyGroups {
        /// The limit.
        groups_max: usize,
    },
    /// There is no such group (any more).
    #[error("link group {0} does not exist any more")]
    NoSuchGroup(GroupId),
    /// It is about to end.
    #[error("link group {0} is ending; make a new one")]
    Ending(GroupId),
    /// It has all the connections that were agreed on.
    #[error("link group {group} has {max_conns} connections, the most agreed on")]
    Full {
        /// Which group.
        group: GroupId,
        /// The limit.
        max_conns: u8,
    },
    /// Its first handshake is not over.
    #[error("link group {0} is still being made")]
    Forming(GroupId),
    /// The token is in use in this group.
    #[error("alert token {token} is in use in link group {group}")]
    TokenInUse {
        /// Which group.
        group: GroupId,
        /// The token.
        token: AlertToken,
    },
}

#[derive(Clone, Debug, Default)]
struct Slot {
    generation: u32,
    group: Option<Group>,
}

/// All link groups of this process.
#[derive(Clone, Debug)]
pub struct Groups {
    limits: GroupLimits,
    slots: Vec<Slot>,
}

impl Groups {
    /// An empty table.
    #[must_use]
    pub fn new(limits: GroupLimits) -> Groups {
        Groups {
            limits,
            slots: vec![Slot::default(); limits.groups_max],
        }
    }

    /// Makes a group for a first contact. At a server the peer's queue pair is not known yet.
    pub fn create(
        &mut self,
        role: Role,
        key: PeerKey,
        peer_qpn: Option<Qpn>,
        max_conns: u8,
    ) -> Result<GroupId, GroupError> {
        let free = self.slots.iter().position(|slot| slot.group.is_none());
        let groups_max = self.limits.groups_max;
        let index = free.ok_or(GroupError::TooManyGroups { groups_max })?;
        let slot = &mut self.slots[index];
        slot.generation += 1;
        slot.group = Some(Group {
            role,
            key,
            peer_qpn,
            max_conns,
            state: GroupState::Forming,
            tokens: Vec::with_capacity(max_conns.into()),
            idle_until: None,
        });
        Ok(GroupId {
            slot: index as u32,
            generation: slot.generation,
        })
    }

    /// The group that a server puts a client into, if there is one with room.
    #[must_use]
    pub fn find_as_server(&self, key: &PeerKey) -> Option<GroupId> {
        let mut found = self.active(Role::Server);
        found
            .find(|(_, group)| group.key.matches(key) && group.has_room())
            .map(|(id, _)| id)
    }

    /// The group that a server's Accept means, if we know it. Without one the client declines with
    /// SYNCERR.
    #[must_use]
    pub fn find_as_client(&self, key: &PeerKey, peer_qpn: Qpn) -> Option<GroupId> {
        let mut found = self.active(Role::Client);
        let matches = |group: &Group| group.key.matches(key) && group.peer_qpn == Some(peer_qpn);
        found.find(|(_, group)| matches(group)).map(|(id, _)| id)
    }

    /// Puts a connection into a group, under the token we give out for it. While the group is
    /// forming, that is the connection of its first handshake.
    pub fn join(&mut self, id: GroupId, token: AlertToken) -> Result<(), GroupError> {
        let group = self.get_mut(id).ok_or(GroupError::NoSuchGroup(id))?;
        match group.state {
            GroupState::Ending => return Err(GroupError::Ending(id)),
            GroupState::Forming if !group.tokens.is_empty() => return Err(GroupError::Forming(id)),
            GroupState::Forming | GroupState::Active => {}
        }
        if !group.has_room() {
            return Err(GroupError::Full {
                group: id,
                max_conns: group.max_conns,
            });
        }
        if group.tokens.contains(&token) {
            return Err(GroupError::TokenInUse { group: id, token });
        }
        group.tokens.push(token);
        group.idle_until = None;
        Ok(())
    }

    /// Takes a connection out of its group; without effect if the group or the connection is gone.
    /// The idle time of an active group starts with its last connection.
    pub fn leave(&mut self, now: Instant, id: GroupId, token: AlertToken) {
        let idle = self.idle_wait(id);
        let Some(group) = self.get_mut(id) else {
            return;
        };
        group.tokens.retain(|held| *held != token);
        if group.tokens.is_empty() && group.state == GroupState::Active {
            group.idle_until = group.idle_until.or(Some(now.after(idle)));
        }
    }

    /// The link of a forming group was confirmed; `peer_qpn` is where it leads.
    pub fn activate(&mut self, now: Instant, id: GroupId, peer_qpn: Qpn) {
        let idle = self.idle_wait(id);
        let Some(group) = self.get_mut(id) else {
            return;
        };
        if group.state == GroupState::Forming {
            group.state = GroupState::Active;
            group.peer_qpn = Some(peer_qpn);
            if group.tokens.is_empty() {
                group.idle_until = Some(now.after(idle));
            }
        }
    }

    /// No connection may join any more: the group is out of sync or being deleted.
    pub fn retire(&mut self, id: GroupId) {
        if let Some(group) = self.get_mut(id) {
            group.state = GroupState::Ending;
            group.idle_until = None;
        }
    }

    /// Forgets a group. Its id stays invalid for ever.
    pub fn remove(&mut self, id: GroupId) -> Option<Group> {
        let slot = self.slots.get_mut(id.slot as usize)?;
        if slot.generation == id.generation {
            slot.group.take()
        } else {
            None
        }
    }

    /// A group, if it exists.
    #[must_use]
    pub fn get(&self, id: GroupId) -> Option<&Group> {
        let slot = self.slots.get(id.slot as usize)?;
        slot.group
            .as_ref()
            .filter(|_| slot.generation == id.generation)
    }

    /// All groups.
    pub fn iter(&self) -> impl Iterator<Item = (GroupId, &Group)> {
        self.slots.iter().enumerate().filter_map(|(index, slot)| {
            let id = GroupId {
                slot: index as u32,
                generation: slot.generation,
            };
            slot.group.as_ref().map(|group| (id, group))
        })
    }

    /// When [`Groups::take_idle`] has something to give.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.iter().filter_map(|(_, group)| group.idle_until).min()
    }

    /// Retires and names one group that has idled too long, until there is none: delete it with the
    /// reason "program", orderly, and remove it.
    pub fn take_idle(&mut self, now: Instant) -> Option<GroupId> {
        let is_over = |group: &Group| group.idle_until.is_some_and(|until| until <= now);
        let (id, _) = self.iter().find(|(_, group)| is_over(group))?;
        self.retire(id);
        Some(id)
    }

    fn active(&self, role: Role) -> impl Iterator<Item = (GroupId, &Group)> {
        let is_usable =
            move |group: &Group| group.state == GroupState::Active && group.role == role;
        self.iter().filter(move |(_, group)| is_usable(group))
    }

    fn idle_wait(&self, id: GroupId) -> Duration {
        match self.get(id).map(Group::role) {
            Some(Role::Server) | None => self.limits.server_idle,
            Some(Role::Client) => self.limits.client_idle,
        }
    }

    fn get_mut(&mut self, id: GroupId) -> Option<&mut Group> {
        let slot = self.slots.get_mut(id.slot as usize)?;
        if slot.generation == id.generation {
            slot.group.as_mut()
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant(1_000_000_000);

    fn key(peer: u8) -> PeerKey {
        PeerKey {
            version: Version::V2,
            peer_id: PeerId([peer; 8]),
            gid: Gid([peer; 16]),
            mac: Mac([peer; 6]),
        }
    }

    fn qpn(number: u32) -> Qpn {
        Qpn::from_low_bits(number)
    }

    fn token(number: u32) -> AlertToken {
        AlertToken::new(number).unwrap()
    }

    fn table() -> Groups {
        Groups::new(GroupLimits::new(3))
    }

    /// An active group with one connection, token 1.
    fn active(groups: &mut Groups, role: Role, peer: u8, max_conns: u8) -> GroupId {
        let id = groups.create(role, key(peer), None, max_conns).unwrap();
        groups.join(id, token(1)).unwrap();
        groups.activate(NOW, id, qpn(peer.into()));
        id
    }

    #[test]
    fn a_server_finds_the_group_by_peer_role_and_room() {
        let mut groups = table();
        let id = active(&mut groups, Role::Server, 1, 2);
        assert_eq!(groups.find_as_server(&key(1)), Some(id));
        assert_eq!(groups.find_as_server(&key(2)), None);
        assert_eq!(
            groups.find_as_server(&PeerKey {
                gid: Gid::ZERO,
                ..key(1)
            }),
            None
        );
        assert_eq!(
            groups.find_as_server(&PeerKey {
                version: Version::V1,
                ..key(1)
            }),
            None
        );
        assert_eq!(groups.find_as_client(&key(1), qpn(1)), None);
        groups.join(id, token(2)).unwrap();
        assert_eq!(groups.find_as_server(&key(1)), None);
        assert_eq!(
            groups.join(id, token(3)),
            Err(GroupError::Full {
                group: id,
                max_conns: 2
            })
        );
        groups.leave(NOW, id, token(1));
        assert_eq!(groups.find_as_server(&key(1)), Some(id));
    }

    #[test]
    fn a_client_finds_the_group_by_peer_role_and_queue_pair_even_if_it_is_full() {
        let mut groups = table();
        let id = active(&mut groups, Role::Client, 7, 1);
        assert_eq!(groups.find_as_client(&key(7), qpn(7)), Some(id));
        assert_eq!(groups.find_as_client(&key(7), qpn(8)), None);
        assert_eq!(groups.find_as_server(&key(7)), None);
    }

    #[test]
    fn the_mac_belongs_to_the_key_in_version_1_only() {
        let other = |key| PeerKey {
            mac: Mac([9; 6]),
            ..key
        };
        assert!(key(1).matches(&other(key(1))));
        let v1 = PeerKey {
            version: Version::V1,
            ..key(1)
        };
        assert!(v1.matches(&v1) && !v1.matches(&other(v1)));
    }

    #[test]
    fn a_forming_or_ending_group_is_not_found_and_not_joined() {
        let mut groups = table();
        let id = groups.create(Role::Server, key(1), None, 16).unwrap();
        groups.join(id, token(1)).unwrap();
        assert_eq!(groups.find_as_server(&key(1)), None);
        assert_eq!(groups.join(id, token(2)), Err(GroupError::Forming(id)));
        groups.activate(NOW, id, qpn(1));
        assert_eq!(groups.find_as_server(&key(1)), Some(id));
        groups.retire(id);
        assert_eq!(groups.find_as_server(&key(1)), None);
        assert_eq!(groups.join(id, token(2)), Err(GroupError::Ending(id)));
        groups.activate(NOW, id, qpn(1));
        assert_eq!(groups.get(id).map(Group::state), Some(GroupState::Ending));
    }

    #[test]
    fn a_token_is_given_out_once_per_group_and_again_after_its_connection_left() {
        let mut groups = table();
        let id = active(&mut groups, Role::Server, 1, 16);
        let other = active(&mut groups, Role::Server, 2, 16);
        let taken = GroupError::TokenInUse {
            group: id,
            token: token(1),
        };
        assert_eq!(groups.join(id, token(1)), Err(taken));
        groups.join(other, token(2)).unwrap();
        groups.leave(NOW, id, token(1));
        assert_eq!(groups.join(id, token(1)), Ok(()));
        assert_eq!(groups.get(id).map(Group::conns), Some(1));
    }

    #[test]
    fn a_group_idles_from_its_last_connection_and_a_new_one_stops_the_clock() {
        let mut groups = table();
        let server = active(&mut groups, Role::Server, 1, 16);
        let client = active(&mut groups, Role::Client, 2, 16);
        assert_eq!(groups.poll_timeout(), None);
        groups.leave(NOW, server, token(1));
        groups.leave(NOW, client, token(1));
        assert_eq!(groups.poll_timeout(), Some(NOW.after(SERVER_IDLE)));
        groups.join(server, token(2)).unwrap();
        assert_eq!(groups.poll_timeout(), Some(NOW.after(CLIENT_IDLE)));
        groups.leave(NOW.after(SERVER_IDLE), server, token(2));
        assert_eq!(groups.take_idle(NOW.after(SERVER_IDLE)), None);
        assert_eq!(groups.take_idle(NOW.after(CLIENT_IDLE)), Some(client));
        assert_eq!(groups.take_idle(NOW.after(CLIENT_IDLE)), None);
        assert_eq!(
            groups.join(client, token(3)),
            Err(GroupError::Ending(client))
        );
    }

    #[test]
    fn a_connection_that_leaves_twice_does_not_prolong_the_idle_time() {
        let mut groups = table();
        let id = active(&mut groups, Role::Server, 1, 16);
        groups.leave(NOW, id, token(1));
        groups.leave(NOW.after(Duration::from_secs(1)), id, token(1));
        assert_eq!(groups.poll_timeout(), Some(NOW.after(SERVER_IDLE)));
    }

    #[test]
    fn a_removed_group_leaves_an_id_that_names_nothing_even_after_its_place_is_reused() {
        let mut groups = table();
        let old = active(&mut groups, Role::Server, 1, 16);
        assert!(groups.remove(old).is_some());
        let new = active(&mut groups, Role::Server, 1, 16);
        assert_ne!(old, new);
        assert!(groups.get(old).is_none() && groups.remove(old).is_none());
        assert_eq!(
            groups.join(old, token(5)),
            Err(GroupError::NoSuchGroup(old))
        );
        groups.leave(NOW, old, token(1));
        assert_eq!(groups.get(new).map(Group::conns), Some(1));
    }

    #[test]
    fn a_full_table_says_how_many_groups_there_may_be() {
        let mut groups = table();
        for peer in 0..3 {
            active(&mut groups, Role::Server, peer, 16);
        }
        let full = GroupError::TooManyGroups { groups_max: 3 };
        assert_eq!(groups.create(Role::Server, key(9), None, 16), Err(full));
        assert_eq!(groups.iter().count(), 3);
    }
}
