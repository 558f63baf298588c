//! CONFIRM RKEY: the sender will use one more RMB (RFC 7609 appendix A.3.5).

use super::{Direction, Form, Kind, LLC_BYTES, begin, open_as};
use crate::error::Error;
use crate::field::{LinkNumber, Rkey, be32_at, be64_at, put, u8_at};

const NEGATIVE: u8 = 0x20;
const RETRY: u8 = 0x10;
const ENTRIES_AT: usize = 17;

/// The values of a CONFIRM RKEY.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConfirmRkey {
    /// Either side asks; the other repeats the message as its answer.
    pub direction: Direction,
    /// Meaningful in responses.
    pub answer: RkeyAnswer,
    /// Key of the RMB on the link that carries the message.
    pub rkey: Rkey,
    /// Address of the RMB on that link.
    pub address: u64,
    /// How many other links follow; zero with a single link. More than 2 is answered with
    /// [`RkeyAnswer::Retry`], so a bad count is kept, not refused.
    pub others_count: u8,
    /// The RMB on other links; entries beyond the count are zero.
    pub others: [LinkRtoken; 2],
}

/// The answer to a CONFIRM RKEY.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RkeyAnswer {
    /// Flag 0x20 clear; also what a request has.
    Positive,
    /// Refused.
    Negative,
    /// Refused for now: try again.
    Retry,
}

impl RkeyAnswer {
    pub(super) const fn from_flags(flags: u8) -> RkeyAnswer {
        match (flags & NEGATIVE, flags & RETRY) {
            (0, _) => RkeyAnswer::Positive,
            (_, 0) => RkeyAnswer::Negative,
            (_, _) => RkeyAnswer::Retry,
        }
    }

    pub(super) const fn flags(self) -> u8 {
        match self {
            RkeyAnswer::Positive => 0,
            RkeyAnswer::Negative => NEGATIVE,
            RkeyAnswer::Retry => NEGATIVE | RETRY,
        }
    }
}

/// Key and address of an RMB on a link other than the carrying one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LinkRtoken {
    /// Which link.
    pub link_number: LinkNumber,
    /// Key of the RMB there.
    pub rkey: Rkey,
    /// Address of the RMB there.
    pub address: u64,
}

impl LinkRtoken {
    /// Length of an entry.
    pub(super) const BYTES: usize = 13;

    pub(super) fn parse(message: &[u8], at: usize) -> Result<LinkRtoken, Error> {
        Ok(LinkRtoken {
            link_number: LinkNumber(u8_at(message, at)?),
            rkey: Rkey(be32_at(message, at + 1)?),
            address: be64_at(message, at + 5)?,
        })
    }

    pub(super) fn emit(self, out: &mut [u8], at: usize) {
        put(out, at, [self.link_number.0]);
        put(out, at + 1, self.rkey.0.to_be_bytes());
        put(out, at + 5, self.address.to_be_bytes());
    }
}

impl ConfirmRkey {
    /// Reads a received message.
    pub fn parse(form: Form, bytes: &[u8]) -> Result<ConfirmRkey, Error> {
        let (header, message) = open_as(form, bytes, Kind::ConfirmRkey)?;
        Ok(ConfirmRkey {
            direction: header.direction,
            answer: RkeyAnswer::from_flags(header.flags),
            rkey: Rkey(be32_at(message, 5)?),
            address: be64_at(message, 9)?,
            others_count: u8_at(message, 4)?,
            others: [
                LinkRtoken::parse(message, ENTRIES_AT)?,
                LinkRtoken::parse(message, ENTRIES_AT + LinkRtoken::BYTES)?,
            ],
        })
    }

    /// Writes 44 bytes and returns their number.
    pub fn emit(&self, form: Form, out: &mut [u8]) -> Result<usize, Error> {
        let flags = self.answer.flags();
        let out = begin(
            form,
            Kind::ConfirmRkey,
            self.direction,
            flags,
            LLC_BYTES,
            out,
        )?;
        put(out, 4, [self.others_count]);
        put(out, 5, self.rkey.0.to_be_bytes());
        put(out, 9, self.address.to_be_bytes());
        self.others[0].emit(out, ENTRIES_AT);
        self.others[1].emit(out, ENTRIES_AT + LinkRtoken::BYTES);
        Ok(LLC_BYTES)
    }
}
