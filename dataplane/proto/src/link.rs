//! One link: which side we are, its two ends, and the RMBs the peer may name on it.
//!
//! The message exchanges on a link are in [`llc`](crate::llc); how links belong to peers is in
//! [`group`](crate::group).

use pollux_wire::field::{Gid, LinkNumber, Mac, Qpn, Rkey};

/// Who opened the TCP connection. Two hosts that connect in both directions have two link groups,
/// one for each role.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Role {
    /// We connected.
    Client,
    /// We accepted.
    Server,
}

impl core::fmt::Display for Role {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Role::Client => "client",
            Role::Server => "server",
        })
    }
}

/// The number a server gives to the first link of a group, as Linux does.
pub const FIRST_LINK: LinkNumber = LinkNumber(1);

/// One end of a link, as it is announced.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LinkEnd {
    /// Ethernet address of the port.
    pub mac: Mac,
    /// GID of the port.
    pub gid: Gid,
    /// Queue pair.
    pub qpn: Qpn,
}

/// Key and address of one RMB on one link.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RToken {
    /// Remote key.
    pub rkey: Rkey,
    /// Address of the RMB's first byte, opaque.
    pub address: u64,
}

/// Most RMBs a peer may announce in one group, as in Linux.
pub const PEER_RTOKENS_MAX: usize = 255;

/// What became of an announced RMB.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Learned {
    /// It was new.
    Added,
    /// The same key and address were known already.
    Known,
    /// 255 are known and this is none of them.
    Full,
}

/// The RMBs a peer has announced, by CONFIRM RKEY or in its Accept or Confirm, and not deleted.
#[derive(Clone, Default, Debug)]
pub struct PeerRTokens {
    entries: Vec<RToken>,
}

impl PeerRTokens {
    /// An empty table with room for all entries, so that learning never allocates.
    #[must_use]
    pub fn new() -> PeerRTokens {
        PeerRTokens {
            entries: Vec::with_capacity(PEER_RTOKENS_MAX),
        }
    }

    /// Adds an RMB unless it is known.
    pub fn learn(&mut self, rtoken: RToken) -> Learned {
        if self.entries.contains(&rtoken) {
            return Learned::Known;
        }
        if self.entries.len() >= PEER_RTOKENS_MAX {
            return Learned::Full;
        }
        self.entries.push(rtoken);
        Learned::Added
    }

    /// Deletes the first entry with this key, whatever its address: a DELETE RKEY carries no
    /// address, and this is what Linux does. `None` if there is none.
    pub fn delete(&mut self, rkey: Rkey) -> Option<RToken> {
        let index = self.entries.iter().position(|entry| entry.rkey == rkey)?;
        Some(self.entries.remove(index))
    }

    /// Whether this RMB is known.
    #[must_use]
    pub fn contains(&self, rtoken: RToken) -> bool {
        self.entries.contains(&rtoken)
    }

    /// Number of known RMBs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether none is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rtoken(rkey: u32, address: u64) -> RToken {
        RToken {
            rkey: Rkey(rkey),
            address,
        }
    }

    #[test]
    fn the_first_entry_with_a_key_is_deleted_whatever_its_address() {
        let mut table = PeerRTokens::new();
        assert_eq!(table.learn(rtoken(1, 10)), Learned::Added);
        assert_eq!(table.learn(rtoken(1, 20)), Learned::Added);
        assert_eq!(table.learn(rtoken(1, 10)), Learned::Known);
        assert_eq!(table.delete(Rkey(1)), Some(rtoken(1, 10)));
        assert!(table.contains(rtoken(1, 20)) && !table.contains(rtoken(1, 10)));
        assert_eq!(table.delete(Rkey(2)), None);
    }

    #[test]
    fn the_table_holds_255_and_never_grows() {
        let mut table = PeerRTokens::new();
        let room = table.entries.capacity();
        for rkey in 0..255 {
            assert_eq!(table.learn(rtoken(rkey, 0)), Learned::Added);
        }
        assert_eq!(table.learn(rtoken(255, 0)), Learned::Full);
        assert_eq!(table.learn(rtoken(7, 0)), Learned::Known);
        assert_eq!((table.len(), table.entries.capacity()), (255, room));
        table.delete(Rkey(7));
        assert_eq!(table.learn(rtoken(255, 0)), Learned::Added);
    }
}
