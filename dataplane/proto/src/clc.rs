//! The handshake over TCP (CLC) as two state machines over bytes: [`Client`] and [`Server`].
//!
//! Both are driven alike. The owner reads the TCP stream through a [`Reader`], which never takes a
//! byte too many; hands each message to `handle_message`; runs the timer of `poll_timeout`; and
//! after every call takes orders with `poll_output` until there are none. Some orders are questions
//! (make a queue pair, look up a link group); the owner answers when it can, later or at once. The
//! last order is [`Output::Done`].
//!
//! ```text
//! client                                     server
//!   Send(Proposal)          ---------------->
//!                                              Ask(Choose): group and queue pair?
//!                           <----------------  Send(Accept)            after accept()
//!   Ask(agreed): queue pair, RMB
//!   Send(Confirm)           ---------------->                          after provide()
//!   subsequent contact: Done(Connected)        subsequent contact: Done(Connected)
//!   first contact: the link is confirmed (`llc`)   Ask(Connect), then the same
//!   Done(Connected)                            Done(Connected)       after handle_link_confirmed()
//! ```
//!
//! Either side may send a Decline in place of its next message: [`Outcome::Fallback`], and TCP
//! carries the bytes. A broken message, silence, or the end of the stream is no fallback, because
//! the other side may be anywhere: [`Outcome::Failed`], as in Linux.
//!
//! What is agreed on: SMC-R version 2 (release 0 or 1), or version 1 where [`Local::v1`] allows it,
//! always with a single link.

mod client;
mod handshake;
mod reader;
mod server;

use core::time::Duration;

use arrayvec::ArrayVec;
use pollux_wire::clc::{
    Attachment, Contact, Decline, DeclineV2, Diagnosis, Endpoint, Extension, FirstContact, IpArea,
    Kind, MESSAGE_BYTES_MAX, OsType, Sync, UEIDS_MAX, VendorOptions, Version,
};
use pollux_wire::field::{
    AlertToken, BufferSizeCode, Gid, Mac, MtuCode, PeerId, Psn, Qpn, RmbeIndex, Ueid,
};
use pollux_wire::llc;
use thiserror::Error;

pub use self::client::{Client, ClientSide};
pub use self::handshake::{Handshake, Side};
pub use self::reader::{Progress, Reader};
pub use self::server::{Candidate, Question, Server, ServerSide};
use crate::diagnosis::Fallback;
use crate::link::RToken;

/// How long each side of Linux waits for the other's next message; the value for [`Local::wait`].
pub const MESSAGE_WAIT: Duration = Duration::from_secs(6);
/// How long a side whose link was not confirmed waits for a Decline before it sends one.
pub const DECLINE_WAIT: Duration = Duration::from_secs(1);
/// Links per group: always one.
pub const LINKS_MAX: u8 = 1;
/// The release of SMC-Rv2 spoken here: 2.1.
pub const RELEASE: u8 = 1;
/// Connections per group where the number is not negotiated: version 1 and release 0.
pub const DEFAULT_MAX_CONNS: u8 = 255;
/// Least legal number of connections per group.
const MAX_CONNS_LEAST: u8 = 16;

/// A CLC message to be written to the TCP stream.
pub type Bytes = ArrayVec<u8, MESSAGE_BYTES_MAX>;

/// Most connections per link group, 16 to 255.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct MaxConns(u8);

impl MaxConns {
    /// 32, the number that Linux and its Anolis variant both accept.
    pub const COMMON: MaxConns = MaxConns(32);
    /// 255, Linux's default.
    pub const MAX: MaxConns = MaxConns(255);

    /// `None` below 16, which Linux refuses.
    #[must_use]
    pub const fn new(count: u8) -> Option<MaxConns> {
        if count >= MAX_CONNS_LEAST {
            Some(MaxConns(count))
        } else {
            None
        }
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }
}

/// What a host brings to every handshake.
#[derive(Clone, Debug)]
pub struct Local {
    /// Identity of this process; must differ between processes, or a server takes one for the
    /// other.
    pub peer_id: PeerId,
    /// RoCEv2 GID of the port.
    pub gid: Gid,
    /// MAC of the port.
    pub mac: Mac,
    /// Path MTU of the port.
    pub mtu: MtuCode,
    /// Host name, blank padded; see [`pollux_wire::clc::host_name`].
    pub host_name: [u8; 32],
    /// Domains this host is in, best first. Empty: version 2 is not spoken.
    pub ueids: ArrayVec<Ueid, UEIDS_MAX>,
    /// Most connections per link group.
    pub max_conns: MaxConns,
    /// Which GIDs version 2 may use.
    pub gid_rule: GidRule,
    /// Vendor options offered or agreed to: [`VendorOptions::NONE`], or [`VendorOptions::VALID`]
    /// and more.
    pub options: VendorOptions,
    /// Whether credits may be agreed by byte 51 alone.
    pub bare_credits: BareCredits,
    /// How long to wait for each message of the peer; [`MESSAGE_WAIT`] as in Linux.
    pub wait: Duration,
    /// What version 1 needs; `None`: not spoken.
    pub v1: Option<V1Local>,
}

/// What a host brings to a handshake of version 1.
#[derive(Clone, Debug)]
pub struct V1Local {
    /// RoCEv1 GID of the port.
    pub gid: Gid,
    /// Subnets of the interface of the TCP connection. The two hosts must share one.
    pub subnets: IpArea,
}

/// Which GIDs a handshake of version 2 may use.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum GidRule {
    /// Only IPv4-mapped ones, as Linux does.
    Ipv4Mapped,
    /// Any, for a fabric of our own.
    Any,
}

/// Receive-queue credits without the vendor word, as in the January 2022 patches for Linux: a
/// nonzero byte 51 in both Accept and Confirm turns them on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BareCredits {
    /// Byte 51 is used only after the vendor word agreed to it.
    Off,
    /// Offer and accept it.
    On,
}

impl Local {
    /// Whether version 2 can be offered or accepted.
    fn speaks_v2(&self) -> bool {
        !self.ueids.is_empty() && self.gid_rule.allows(self.gid)
    }

    /// The GID for a version.
    fn gid_for(&self, version: Version) -> Gid {
        match (version, &self.v1) {
            (Version::V1, Some(v1)) => v1.gid,
            (Version::V1, None) | (Version::V2, _) => self.gid,
        }
    }

    /// The endpoint to announce.
    fn endpoint(&self, version: Version, own: &LocalEndpoint, mtu: MtuCode) -> Endpoint {
        Endpoint {
            peer_id: self.peer_id,
            gid: self.gid_for(version),
            mac: self.mac,
            qpn: own.qpn,
            rkey: own.rtoken.rkey,
            rmbe_index: own.rmbe_index,
            alert_token: own.alert_token,
            rmbe_size: own.rmbe_size,
            mtu: Some(mtu),
            credits: 0,
            rmb_address: own.rtoken.address,
            psn: own.psn,
        }
    }

    /// What an Accept or Confirm says beside the endpoint.
    fn extension(&self, terms: &Terms, own: &LocalEndpoint) -> Extension {
        let contact = terms.contact;
        let Some(eid) = terms.eid else {
            return Extension::V1 { contact };
        };
        let limits = if terms.release == 0 {
            (0, 0)
        } else {
            (terms.max_conns, terms.max_links)
        };
        let first = FirstContact {
            attachment: own.attachment,
            os: OsType::LINUX,
            release: terms.release,
            host_name: self.host_name,
            max_conns: limits.0,
            max_links: limits.1,
            features: 0,
            options: terms.options,
        };
        match contact {
            Contact::First => Extension::V2 {
                eid,
                first: Some(first),
            },
            Contact::Subsequent => Extension::V2 { eid, first: None },
        }
    }

    fn decline(&self, version: Version, diagnosis: Diagnosis) -> Decline {
        Decline {
            sync: sync_of(diagnosis),
            peer_id: self.peer_id,
            diagnosis,
            v2: match version {
                Version::V1 => None,
                Version::V2 => Some(DeclineV2 {
                    os: OsType::LINUX,
                    more: [0; 4],
                }),
            },
        }
    }
}

impl GidRule {
    fn allows(self, gid: Gid) -> bool {
        match self {
            GidRule::Ipv4Mapped => gid.to_ipv4().is_some(),
            GidRule::Any => gid != Gid::ZERO,
        }
    }
}

/// The sync bit belongs to this one diagnosis.
fn sync_of(diagnosis: Diagnosis) -> Sync {
    if diagnosis == Diagnosis::SYNCERR {
        Sync::OutOfSync
    } else {
        Sync::InSync
    }
}

/// Our queue pair and RMB for one connection, made by the owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LocalEndpoint {
    /// Our queue pair: new on first contact, that of the link on subsequent contact.
    pub qpn: Qpn,
    /// First packet sequence number we will send; random on first contact.
    pub psn: Psn,
    /// The RMB of the connection on this link. It must be registered already: the peer may write at
    /// once.
    pub rtoken: RToken,
    /// Which RMBE of the RMB.
    pub rmbe_index: RmbeIndex,
    /// What the peer shall put into its CDC messages for this connection; unique in the link group.
    pub alert_token: AlertToken,
    /// Size of the RMBE.
    pub rmbe_size: BufferSizeCode,
    /// Receives posted on the queue pair, the peer's initial credits should they be agreed. Never
    /// more than are posted.
    pub receives: u8,
    /// Whether our route to the peer's GID goes through a gateway. Counts on first contact of
    /// version 2.
    pub attachment: Attachment,
}

/// The peer's queue pair and RMBE for one connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerEndpoint {
    /// Peer's identity. Together with the GID (and, at a client, the QPN) it names the link group.
    pub peer_id: PeerId,
    /// Peer's GID.
    pub gid: Gid,
    /// Peer's MAC.
    pub mac: Mac,
    /// Peer's queue pair.
    pub qpn: Qpn,
    /// First packet sequence number it will send. Means nothing on subsequent contact.
    pub psn: Psn,
    /// Path MTU to program: the smaller of both sides'.
    pub mtu: MtuCode,
    /// Key and address of its RMB.
    pub rtoken: RToken,
    /// Address of the first byte of its RMBE.
    pub rmbe_address: u64,
    /// Size of its RMBE in bytes.
    pub rmbe_bytes: u32,
    /// What our CDC messages for this connection carry.
    pub alert_token: AlertToken,
}

impl PeerEndpoint {
    /// Judges a received endpoint. `gid`, `mac` and `peer_id` are those of the endpoint itself.
    fn new(
        endpoint: &Endpoint,
        contact: Contact,
        own_mtu: MtuCode,
    ) -> Result<PeerEndpoint, HandshakeError> {
        let mtu = match (endpoint.mtu, contact) {
            (Some(mtu), _) => mtu.min(own_mtu),
            (None, Contact::Subsequent) => own_mtu,
            (None, Contact::First) => return Err(HandshakeError::NoMtu),
        };
        let (index, size) = (endpoint.rmbe_index, endpoint.rmbe_size);
        let start = endpoint.rmb_address.checked_add(index.offset_bytes(size));
        let rmbe_address = start
            .filter(|start| start.checked_add(size.bytes().into()).is_some())
            .ok_or(HandshakeError::RmbeOutside {
                address: endpoint.rmb_address,
            })?;
        Ok(PeerEndpoint {
            peer_id: endpoint.peer_id,
            gid: endpoint.gid,
            mac: endpoint.mac,
            qpn: endpoint.qpn,
            psn: endpoint.psn,
            mtu,
            rtoken: RToken {
                rkey: endpoint.rkey,
                address: endpoint.rmb_address,
            },
            rmbe_address,
            rmbe_bytes: size.bytes(),
            alert_token: endpoint.alert_token,
        })
    }
}

/// What both sides agreed on for a link group. On subsequent contact only version and EID are new;
/// the rest is then a placeholder, and what the group was made with holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms {
    /// Version of CLC.
    pub version: Version,
    /// First or subsequent contact.
    pub contact: Contact,
    /// Shared domain; version 2 only.
    pub eid: Option<Ueid>,
    /// Release of version 2; 0 for version 1.
    pub release: u8,
    /// Most connections in the group.
    pub max_conns: u8,
    /// Most links in the group. We keep to one whatever this says.
    pub max_links: u8,
    /// Agreed vendor options.
    pub options: VendorOptions,
}

impl Terms {
    /// Version of LLC messages in the group.
    #[must_use]
    pub fn form(&self) -> llc::Form {
        self.version.into()
    }
}

/// A handshake's result, or what is known of it before its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Agreed {
    /// Terms of the link group.
    pub terms: Terms,
    /// The peer's side.
    pub peer: PeerEndpoint,
    /// Receives the peer has posted for us: our initial credits on a new link. `None`: no credits
    /// are used. On subsequent contact always `None`; the link goes on as it was.
    pub peer_receives: Option<u8>,
    /// How the peer has introduced itself: on first contact of version 2.
    pub peer_host: Option<PeerHost>,
}

/// What a first contact of version 2 tells of the peer's host, for operators.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerHost {
    /// Its operating system. Pollux says Linux, as what it runs on.
    pub os: OsType,
    /// Its host name, as it said it: any bytes, padded with blanks.
    pub name: [u8; 32],
}

impl PeerHost {
    fn new(extension: &Extension) -> Option<PeerHost> {
        match extension {
            Extension::V2 {
                first: Some(first), ..
            } => Some(PeerHost {
                os: first.os,
                name: first.host_name,
            }),
            Extension::V1 { .. } | Extension::V2 { first: None, .. } => None,
        }
    }
}

/// An order to the owner of a handshake. `Q` is the question the side asks.
#[expect(
    clippy::large_enum_variant,
    reason = "one lives per handshake, and boxing it would allocate"
)]
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Output<Q> {
    /// Write this to the TCP stream.
    Send(Bytes),
    /// Do something and answer.
    Ask(Q),
    /// The handshake is over; nothing follows.
    Done(Outcome),
}

/// How a handshake ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// SMC-R carries the bytes.
    Connected(Agreed),
    /// TCP carries them, from its next byte on.
    Fallback(Fallback),
    /// Neither: the connection is broken and must be reset.
    Failed(HandshakeError),
}

/// What a side was waiting for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Waiting {
    /// The client's first message.
    Proposal,
    /// The server's answer.
    Accept,
    /// The client's second message.
    Confirm,
    /// Nothing but a Decline.
    Decline,
}

impl Waiting {
    /// The message that ends the wait.
    const fn kind(self) -> Kind {
        match self {
            Waiting::Proposal => Kind::Proposal,
            Waiting::Accept => Kind::Accept,
            Waiting::Confirm => Kind::Confirm,
            Waiting::Decline => Kind::Decline,
        }
    }
}

impl core::fmt::Display for Waiting {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Waiting::Proposal => "Proposal",
            Waiting::Accept => "Accept",
            Waiting::Confirm => "Confirm",
            Waiting::Decline => "Decline",
        })
    }
}

/// Why a handshake broke. There is no way back to TCP: bytes may be lost in the stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum HandshakeError {
    /// A message that cannot be read.
    #[error(
        "the peer's handshake message is malformed: {0}; it does not speak SMC-R as RFC 7609 has it"
    )]
    Malformed(pollux_wire::Error),
    /// A message out of turn.
    #[error("the peer sent a handshake message of type {} while a {waiting} was due", *.got as u8)]
    OutOfTurn {
        /// What came.
        got: Kind,
        /// What was due.
        waiting: Waiting,
    },
    /// Nothing came.
    #[error("no {waiting} came within {wait:?}; the peer hangs or does not speak SMC")]
    TimedOut {
        /// What was due.
        waiting: Waiting,
        /// How long we waited.
        wait: Duration,
    },
    /// The TCP stream ended.
    #[error("the peer closed the TCP connection while a {waiting} was due")]
    Ended {
        /// What was due.
        waiting: Waiting,
    },
    /// The Confirm and the Accept disagree on the first contact bit.
    #[error("the peer's Confirm is for another contact ({got:?}) than the Accept")]
    ContactMismatch {
        /// What the Confirm says.
        got: Contact,
    },
    /// First contact with an MTU code of zero.
    #[error("the peer announced no path MTU for a new link")]
    NoMtu,
    /// An RMBE that would lie beyond the end of the address space.
    #[error("the peer's RMB at {address:#x} does not fit into its address space")]
    RmbeOutside {
        /// Announced address of the RMB.
        address: u64,
    },
}

impl From<pollux_wire::Error> for HandshakeError {
    fn from(error: pollux_wire::Error) -> HandshakeError {
        HandshakeError::Malformed(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_than_sixteen_connections_per_group_are_not_a_number() {
        assert_eq!(MaxConns::new(15), None);
        assert_eq!(MaxConns::new(16).map(MaxConns::get), Some(16));
    }

    #[test]
    fn mapped_gids_satisfy_both_rules_and_others_only_one() {
        let mapped = Gid::from_ipv4([10, 0, 0, 1].into());
        let other = Gid([0xfd; 16]);
        assert!(GidRule::Ipv4Mapped.allows(mapped) && GidRule::Any.allows(mapped));
        assert!(!GidRule::Ipv4Mapped.allows(other) && GidRule::Any.allows(other));
        assert!(!GidRule::Any.allows(Gid::ZERO));
    }
}
