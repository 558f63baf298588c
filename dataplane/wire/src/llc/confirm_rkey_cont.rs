//! CONFIRM RKEY CONT: more links of a CONFIRM RKEY; version 1 only, ignored by Linux (RFC 7609
//! appendix A.3.6).

use super::confirm_rkey::{LinkRtoken, RkeyAnswer};
use super::{Direction, Form, Kind, LLC_BYTES, begin, open_as};
use crate::error::Error;
use crate::field::{put, u8_at};

const ENTRIES_AT: usize = 5;

/// The values of a CONFIRM RKEY CONT.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConfirmRkeyCont {
    /// Request or response.
    pub direction: Direction,
    /// Meaningful in responses.
    pub answer: RkeyAnswer,
    /// Entries still to come, those in this message included.
    pub entries_left: u8,
    /// The next three; unused ones are zero.
    pub entries: [LinkRtoken; 3],
}

impl ConfirmRkeyCont {
    /// Reads a received message.
    pub fn parse(form: Form, bytes: &[u8]) -> Result<ConfirmRkeyCont, Error> {
        let (header, message) = open_as(form, bytes, Kind::ConfirmRkeyCont)?;
        Ok(ConfirmRkeyCont {
            direction: header.direction,
            answer: RkeyAnswer::from_flags(header.flags),
            entries_left: u8_at(message, 4)?,
            entries: [
                LinkRtoken::parse(message, ENTRIES_AT)?,
                LinkRtoken::parse(message, ENTRIES_AT + LinkRtoken::BYTES)?,
                LinkRtoken::parse(message, ENTRIES_AT + 2 * LinkRtoken::BYTES)?,
            ],
        })
    }

    /// Writes 44 bytes and returns their number; `NotInForm` in version 2.
    pub fn emit(&self, form: Form, out: &mut [u8]) -> Result<usize, Error> {
        let (kind, flags) = (Kind::ConfirmRkeyCont, self.answer.flags());
        let out = begin(form, kind, self.direction, flags, LLC_BYTES, out)?;
        put(out, 4, [self.entries_left]);
        for (index, entry) in self.entries.into_iter().enumerate() {
            entry.emit(out, ENTRIES_AT + index * LinkRtoken::BYTES);
        }
        Ok(LLC_BYTES)
    }
}
