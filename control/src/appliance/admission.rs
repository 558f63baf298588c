//! Which handshakes may begin: bounded for each program, for each peer address and in all, so that
//! neither a program in a loop nor a storm of connections takes the place of everybody else.
//!
//! Beyond a bound no SMC is offered. A peer that offers it has already sent bytes which only an answer
//! removes from the stream, so it is declined; that takes a handshake as well, of which there are at
//! most twice as many as the configuration allows. Beyond that connections are closed.

use crate::config::HandshakeConfig;
use pollux_proto::link::Role;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Names a handshake while it is counted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Ask(u64);

/// What becomes of somebody who wants a handshake.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// It begins.
    Welcome,
    /// SMC is not offered, or declined when it is offered, for this reason.
    StayOnTcp(String),
    /// The connection is closed, for this reason.
    Close(String),
}

/// The program that asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Program {
    /// Its session.
    pub(crate) session: u32,
    /// Connections that the session may have.
    pub(crate) slots: u16,
}

/// Handshakes under way, by who wants them and with whom they are.
#[derive(Debug)]
pub(crate) struct Admission {
    per_peer_max: usize,
    under_way_max: usize,
    asks: BTreeMap<Ask, (IpAddr, Option<u32>)>,
    per_peer: BTreeMap<IpAddr, usize>,
    per_session: BTreeMap<u32, usize>,
    count: u64,
    refused: u64,
}

fn give_back<K: Ord>(counts: &mut BTreeMap<K, usize>, key: K) {
    if let Some(count) = counts.get_mut(&key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&key);
        }
    }
}

impl Admission {
    pub(crate) fn new(config: &HandshakeConfig) -> Self {
        Admission {
            per_peer_max: usize::from(config.per_peer_max),
            under_way_max: usize::from(config.under_way_max),
            asks: BTreeMap::new(),
            per_peer: BTreeMap::new(),
            per_session: BTreeMap::new(),
            count: 0,
            refused: 0,
        }
    }

    /// Handshakes under way.
    pub(crate) fn under_way(&self) -> usize {
        self.asks.len()
    }

    /// Handshakes that a bound has kept from beginning as they should.
    pub(crate) fn refused(&self) -> u64 {
        self.refused
    }

    /// Begins to count refusals anew.
    pub(crate) fn clear(&mut self) {
        self.refused = 0;
    }

    /// Judges a connection with `peer`, and counts it if it is refused.
    pub(crate) fn judge(&mut self, role: Role, peer: IpAddr, program: Option<Program>) -> Verdict {
        let Some(bound) = self.bound(peer, program) else {
            return Verdict::Welcome;
        };
        self.refused += 1;
        if role == Role::Server && self.asks.len() >= 2 * self.under_way_max {
            return Verdict::Close(bound);
        }
        Verdict::StayOnTcp(bound)
    }

    /// The bound that is reached, in words.
    fn bound(&self, peer: IpAddr, program: Option<Program>) -> Option<String> {
        let with_peer = self.per_peer.get(&peer).copied().unwrap_or(0);
        if self.asks.len() >= self.under_way_max {
            return Some(format!(
                "{} handshakes are under way; raise handshake.under_way_max, or connect fewer at a \
                 time",
                self.asks.len()
            ));
        }
        if with_peer >= self.per_peer_max {
            return Some(format!(
                "{with_peer} handshakes with {peer} are under way; raise handshake.per_peer_max, or \
                 connect fewer at a time"
            ));
        }
        let Program { session, slots } = program?;
        let of_program = self.per_session.get(&session).copied().unwrap_or(0);
        (of_program >= 2 * usize::from(slots)).then(|| {
            format!(
                "{of_program} handshakes of this program are under way, twice the connections of its \
                 session; ask for more slots (at most attach.slots), or connect fewer at a time"
            )
        })
    }

    /// Counts a handshake until [`Admission::end`].
    pub(crate) fn begin(&mut self, peer: IpAddr, program: Option<Program>) -> Ask {
        self.count += 1;
        let ask = Ask(self.count);
        let session = program.map(|program| program.session);
        *self.per_peer.entry(peer).or_default() += 1;
        if let Some(session) = session {
            *self.per_session.entry(session).or_default() += 1;
        }
        self.asks.insert(ask, (peer, session));
        ask
    }

    /// A handshake is over; without effect for one that was over before.
    pub(crate) fn end(&mut self, ask: Ask) {
        let Some((peer, session)) = self.asks.remove(&ask) else {
            return;
        };
        give_back(&mut self.per_peer, peer);
        if let Some(session) = session {
            give_back(&mut self.per_session, session);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admission(per_peer_max: u16, under_way_max: u16) -> Admission {
        Admission::new(&HandshakeConfig {
            per_peer_max,
            under_way_max,
            ..HandshakeConfig::default()
        })
    }

    fn peer(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    fn stays(verdict: &Verdict, why: &str) -> bool {
        matches!(verdict, Verdict::StayOnTcp(text) if text.contains(why))
    }

    #[test]
    fn a_peer_at_its_bound_keeps_no_other_out_and_comes_in_again() {
        let mut admission = admission(2, 100);
        let first = admission.begin(peer(1), None);
        admission.begin(peer(1), None);
        for role in [Role::Client, Role::Server] {
            let verdict = admission.judge(role, peer(1), None);
            assert!(
                stays(&verdict, "2 handshakes with 192.0.2.1"),
                "{verdict:?}"
            );
            assert_eq!(admission.judge(role, peer(2), None), Verdict::Welcome);
        }
        assert_eq!((admission.under_way(), admission.refused()), (2, 2));
        admission.end(first);
        admission.end(first);
        assert_eq!(
            admission.judge(Role::Server, peer(1), None),
            Verdict::Welcome
        );
        assert_eq!(admission.under_way(), 1);
    }

    #[test]
    fn a_program_has_twice_its_slots_and_leaves_no_count_behind() {
        let mut admission = admission(100, 100);
        let program = Some(Program {
            session: 7,
            slots: 1,
        });
        let other = Some(Program {
            session: 8,
            slots: 1,
        });
        let asks = [1, 2].map(|last| admission.begin(peer(last), program));
        let verdict = admission.judge(Role::Client, peer(3), program);
        assert!(stays(&verdict, "attach.slots"), "{verdict:?}");
        assert_eq!(
            admission.judge(Role::Client, peer(3), other),
            Verdict::Welcome
        );
        for ask in asks {
            admission.end(ask);
        }
        assert!(admission.per_session.is_empty() && admission.per_peer.is_empty());
    }

    #[test]
    fn a_server_declines_as_many_again_as_it_serves_and_closes_the_rest() {
        let mut admission = admission(100, 2);
        for last in 0..4 {
            let verdict = admission.judge(Role::Server, peer(last), None);
            assert_eq!(stays(&verdict, "handshake.under_way_max"), last >= 2);
            admission.begin(peer(last), None);
        }
        let verdict = admission.judge(Role::Server, peer(9), None);
        assert!(matches!(verdict, Verdict::Close(_)), "{verdict:?}");
        // A client has sent nothing: it simply does not offer SMC.
        let verdict = admission.judge(Role::Client, peer(9), None);
        assert!(matches!(verdict, Verdict::StayOnTcp(_)), "{verdict:?}");
    }
}
