//! Connection Layer Control: the handshake messages on the TCP stream (RFC 7609 section 3 and
//! appendix A.2).
//!
//! A receiver peeks [`HEADER_BYTES`], learns the length from [`Header::parse`], reads exactly that
//! many bytes, and gives them to [`Message::parse`] or to the parser of the message it expects.

mod accept_confirm;
mod decline;
mod diagnosis;
mod header;
mod proposal;
mod vendor;

pub use accept_confirm::{
    Accept, Attachment, CONFIRM_GIDS_MAX, Confirm, Endpoint, Extension, FirstContact, host_name,
};
pub use decline::{Decline, DeclineV2, OsType};
pub use diagnosis::Diagnosis;
pub use header::{
    Contact, EyeCatcher, HEADER_BYTES, Header, Kind, MESSAGE_BYTES_MAX, PathCode, Sync,
    TRAILER_BYTES, Version,
};
pub use proposal::{
    Form, IPV6_PREFIXES_MAX, ISM_GIDS_MAX, IpArea, Ipv6Prefix, IsmGid, IsmV1, IsmV2, Proposal,
    SeidUse, UEIDS_MAX, V1Offer, V1Paths, V2Offer, V2Paths,
};
pub use vendor::{Oui, VendorOptions};

use crate::error::Error;

/// Any of the four messages.
#[expect(
    clippy::large_enum_variant,
    reason = "no allocator here, and one lives per handshake"
)]
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message {
    /// See [`Proposal`].
    Proposal(Proposal),
    /// See [`Accept`].
    Accept(Accept),
    /// See [`Confirm`].
    Confirm(Confirm),
    /// See [`Decline`].
    Decline(Decline),
}

impl Message {
    /// Reads one message at the front of `bytes`; what follows it is not looked at.
    pub fn parse(bytes: &[u8]) -> Result<Message, Error> {
        match Header::parse(bytes)?.kind {
            Kind::Proposal => Proposal::parse(bytes).map(Message::Proposal),
            Kind::Accept => Accept::parse(bytes).map(Message::Accept),
            Kind::Confirm => Confirm::parse(bytes).map(Message::Confirm),
            Kind::Decline => Decline::parse(bytes).map(Message::Decline),
        }
    }

    /// Length in bytes, at most [`MESSAGE_BYTES_MAX`].
    pub fn buffer_len(&self) -> usize {
        match self {
            Message::Proposal(proposal) => proposal.buffer_len(),
            Message::Accept(accept) => accept.buffer_len(),
            Message::Confirm(confirm) => confirm.buffer_len(),
            Message::Decline(decline) => decline.buffer_len(),
        }
    }

    /// Writes the message to the front of `out` and returns its length.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, Error> {
        match self {
            Message::Proposal(proposal) => proposal.emit(out),
            Message::Accept(accept) => accept.emit(out),
            Message::Confirm(confirm) => confirm.emit(out),
            Message::Decline(decline) => decline.emit(out),
        }
    }
}
