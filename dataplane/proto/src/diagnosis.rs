//! Why a connection stayed on TCP, in words, and which code stands for a failure of ours.

use core::fmt;

use pollux_wire::clc::{Diagnosis, Sync};

/// Who decided.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum DecidedBy {
    /// We sent the Decline, or never offered anything.
    Local,
    /// The peer sent it.
    Peer,
}

/// The TCP connection carries the bytes itself, from its next byte on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fallback {
    /// Why.
    pub diagnosis: Diagnosis,
    /// Who decided.
    pub by: DecidedBy,
    /// [`Sync::OutOfSync`]: the link group this handshake named must end, with all its connections.
    pub sync: Sync,
}

impl fmt::Display for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by = match self.by {
            DecidedBy::Local => "declined here",
            DecidedBy::Peer => "declined by the peer",
        };
        write!(f, "{by}: {}: {}", self.diagnosis, explain(self.diagnosis))
    }
}

/// What a diagnosis means and what an operator can do about it, seen from the side that learns it.
#[must_use]
pub const fn explain(diagnosis: Diagnosis) -> &'static str {
    match diagnosis {
        Diagnosis::MEM => "out of memory; free some or lower the ring sizes",
        Diagnosis::TIMEOUT_CL => {
            "no CONFIRM LINK came over the new link; check that the fabric connects both GIDs"
        }
        Diagnosis::TIMEOUT_AL => "no ADD LINK came in time",
        Diagnosis::CNFERR => "configuration error; see the log of the declining side",
        Diagnosis::PEERNOSMC => "no version of SMC-R was offered; enable one at the client",
        Diagnosis::IPSEC => "the TCP connection uses IPsec, which RDMA would bypass",
        Diagnosis::NOSMCDEV | Diagnosis::NOSMCRDEV => {
            "no usable RDMA device; check that both sides have one in the path of the connection \
             and share a UEID"
        }
        Diagnosis::NOSMCDDEV | Diagnosis::NOISM2SUPP | Diagnosis::NOSMCD2DEV => {
            "no usable ISM device; SMC-D is not spoken here"
        }
        Diagnosis::NOV2EXT => "the Proposal lacks its version 2 extension; update the client",
        Diagnosis::NOV2DEXT => "the Proposal lacks its SMC-D extension; update the client",
        Diagnosis::NOSEID => "the Proposal lacks a system EID; SMC-D is not spoken here",
        Diagnosis::NOUEID => "the client has no UEID; give both sides a common one",
        Diagnosis::RELEASEERR => "the two sides disagree on the release of SMC-Rv2",
        Diagnosis::MAXCONNERR => {
            "connections per link group: below 16, or not the agreed number; set 16 to 255"
        }
        Diagnosis::MAXLINKERR => "links per link group: not 1 or 2, or not the agreed number",
        Diagnosis::VENDORERR => "the Confirm does not repeat the agreed vendor options",
        Diagnosis::MODEUNSUPP => "the server chose a path or version that was not offered",
        Diagnosis::RMBE_EC => {
            "the peer wants an eye catcher in receive rings; Linux has none either"
        }
        Diagnosis::OPTUNSUPP => "the socket has an option that SMC does not support (fast open)",
        Diagnosis::DIFFPREFIX => "the hosts are in different subnets; use version 2 with a UEID",
        Diagnosis::GETVLANERR | Diagnosis::ISMVLANERR => "the VLAN of the connection is not usable",
        Diagnosis::NOACTLINK => "the link group has no active link; it will be replaced",
        Diagnosis::NOSRVLINK => "the link the server named is not in the link group",
        Diagnosis::VERSMISMAT => "the Confirm has another version than the Accept",
        Diagnosis::NOROUTE => "there is no route to the peer's GID; check addresses of the port",
        Diagnosis::NOINDIRECT => "one side sees a gateway between the hosts, the other does not",
        Diagnosis::SYNCERR => {
            "one side no longer knows the link group; it ends, the next connection makes a new one"
        }
        Diagnosis::INTERR => "internal error; see the log of the declining side",
        Diagnosis::ERR_RTOK => "the table of remote memory is full; close connections",
        Diagnosis::ERR_RDYLNK => "the queue pair could not be made ready; see the log",
        Diagnosis::ERR_REGBUF => "a receive ring could not be registered or confirmed",
        Diagnosis::CREDITSERR => "receive-queue credits failed between the two sides",
        _ => "the declining side's documentation or log explains this code",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fallback_says_who_what_and_what_to_do() {
        let fallback = Fallback {
            diagnosis: Diagnosis::NOUEID,
            by: DecidedBy::Peer,
            sync: Sync::InSync,
        };
        assert_eq!(
            fallback.to_string(),
            "declined by the peer: 0x03030008 (NOUEID): the client has no UEID; give both sides a \
             common one"
        );
    }

    #[test]
    fn an_unknown_code_is_explained_as_such() {
        assert!(explain(Diagnosis(0xdead_beef)).contains("documentation"));
    }
}
