//! DELETE LINK: one link or the whole group ends (RFC 7609 appendix A.3.4).

use super::{Direction, Form, Kind, LLC_BYTES, begin, open_as};
use crate::error::Error;
use crate::field::{LinkNumber, be32_at, put, u8_at};

const ALL: u8 = 0x40;
const ORDERLY: u8 = 0x20;

/// The values of a DELETE LINK.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeleteLink {
    /// Request or response. For a whole group Linux sends no responses.
    pub direction: Direction,
    /// What ends.
    pub scope: DeleteScope,
    /// How it ends.
    pub ending: Ending,
    /// Why; in a response an error, or zero.
    pub reason: DeleteReason,
}

/// What a DELETE LINK ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeleteScope {
    /// Every link of the group, and so the group. The link number is not kept: it is zero.
    All,
    /// One link.
    One(LinkNumber),
}

/// The orderly flag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// Work on the link is finished first.
    Orderly,
    /// The link is gone already.
    Abrupt,
}

/// Why a link ends.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DeleteReason(pub u32);

impl DeleteReason {
    /// In a response: done.
    pub const NONE: DeleteReason = DeleteReason(0);
    /// The path is lost.
    pub const LOST_PATH: DeleteReason = DeleteReason(0x0001_0000);
    /// An operator ended it.
    pub const OPERATOR: DeleteReason = DeleteReason(0x0002_0000);
    /// A program ended it; the idle timer of a link group sends this.
    pub const PROGRAM: DeleteReason = DeleteReason(0x0003_0000);
    /// The peer broke the protocol.
    pub const PROTOCOL_VIOLATION: DeleteReason = DeleteReason(0x0004_0000);
    /// An asymmetric link is no longer needed.
    pub const ASYMMETRIC: DeleteReason = DeleteReason(0x0005_0000);
    /// In a response: no such link.
    pub const UNKNOWN_LINK: DeleteReason = DeleteReason(0x0010_0000);
    /// In a response: no such link group.
    pub const UNKNOWN_GROUP: DeleteReason = DeleteReason(0x0020_0000);

    /// The reason in plain words, if it is a known one.
    pub const fn name(self) -> Option<&'static str> {
        match self {
            DeleteReason::NONE => Some("none"),
            DeleteReason::LOST_PATH => Some("lost path"),
            DeleteReason::OPERATOR => Some("operator"),
            DeleteReason::PROGRAM => Some("program"),
            DeleteReason::PROTOCOL_VIOLATION => Some("protocol violation"),
            DeleteReason::ASYMMETRIC => Some("asymmetric link"),
            DeleteReason::UNKNOWN_LINK => Some("unknown link"),
            DeleteReason::UNKNOWN_GROUP => Some("unknown link group"),
            _ => None,
        }
    }
}

impl DeleteLink {
    /// Reads a received message.
    pub fn parse(form: Form, bytes: &[u8]) -> Result<DeleteLink, Error> {
        let (header, message) = open_as(form, bytes, Kind::DeleteLink)?;
        let scope = match header.flags & ALL {
            0 => DeleteScope::One(LinkNumber(u8_at(message, 4)?)),
            _ => DeleteScope::All,
        };
        let ending = match header.flags & ORDERLY {
            0 => Ending::Abrupt,
            _ => Ending::Orderly,
        };
        let reason = DeleteReason(be32_at(message, 5)?);
        Ok(DeleteLink {
            direction: header.direction,
            scope,
            ending,
            reason,
        })
    }

    /// Writes 44 bytes and returns their number.
    pub fn emit(&self, form: Form, out: &mut [u8]) -> Result<usize, Error> {
        let (all, number) = match self.scope {
            DeleteScope::All => (ALL, LinkNumber(0)),
            DeleteScope::One(number) => (0, number),
        };
        let orderly = match self.ending {
            Ending::Orderly => ORDERLY,
            Ending::Abrupt => 0,
        };
        let flags = all | orderly;
        let out = begin(
            form,
            Kind::DeleteLink,
            self.direction,
            flags,
            LLC_BYTES,
            out,
        )?;
        put(out, 4, [number.0]);
        put(out, 5, self.reason.0.to_be_bytes());
        Ok(LLC_BYTES)
    }
}
