//! DELETE RKEY: the sender no longer uses some RMBs (RFC 7609 appendix A.3.7).
//!
//! A version 1 response repeats the list and marks the bad ones in a bit mask; a Linux version 2
//! response keeps the count, clears the list, and counts the bad ones.

use arrayvec::ArrayVec;

use super::{Direction, Form, Kind, LLC_BYTES, begin, open_as};
use crate::error::{Error, Field};
use crate::field::{Rkey, be32_at, put, u8_at};

/// Most rkeys in one message. Version 2 could carry more; no known sender does.
pub const DELETE_RKEYS_MAX: usize = 8;

const NEGATIVE: u8 = 0x20;
const RKEYS_AT: usize = 8;

/// The values of a DELETE RKEY.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeleteRkey {
    /// Either side asks, the other answers.
    pub direction: Direction,
    /// Meaningful in responses.
    pub verdict: Verdict,
    /// In responses: version 1 a mask of the bad rkeys (bit 7 is the first), version 2 their
    /// number.
    pub errors: u8,
    /// Keys on the link that carries the message.
    pub rkeys: ArrayVec<Rkey, DELETE_RKEYS_MAX>,
}

/// Whether all rkeys were known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Flag 0x20 clear; also what a request has.
    Positive,
    /// At least one was unknown.
    Negative,
}

impl DeleteRkey {
    /// Reads a received message; more than 8 rkeys are refused.
    pub fn parse(form: Form, bytes: &[u8]) -> Result<DeleteRkey, Error> {
        let (header, message) = open_as(form, bytes, Kind::DeleteRkey)?;
        let count = u8_at(message, 4)?;
        if usize::from(count) > DELETE_RKEYS_MAX {
            return Err(Error::BadField {
                field: Field::RkeyCount,
                value: count.into(),
            });
        }
        let mut rkeys = ArrayVec::new();
        for index in 0..usize::from(count) {
            rkeys.push(Rkey(be32_at(message, RKEYS_AT + 4 * index)?));
        }
        let verdict = match header.flags & NEGATIVE {
            0 => Verdict::Positive,
            _ => Verdict::Negative,
        };
        Ok(DeleteRkey {
            direction: header.direction,
            verdict,
            errors: u8_at(message, 5)?,
            rkeys,
        })
    }

    /// Writes 44 bytes and returns their number.
    pub fn emit(&self, form: Form, out: &mut [u8]) -> Result<usize, Error> {
        let flags = match self.verdict {
            Verdict::Positive => 0,
            Verdict::Negative => NEGATIVE,
        };
        let out = begin(
            form,
            Kind::DeleteRkey,
            self.direction,
            flags,
            LLC_BYTES,
            out,
        )?;
        put(out, 4, [self.rkeys.len() as u8, self.errors]);
        for (index, rkey) in self.rkeys.iter().enumerate() {
            put(out, RKEYS_AT + 4 * index, rkey.0.to_be_bytes());
        }
        Ok(LLC_BYTES)
    }
}
