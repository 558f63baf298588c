//! ADD LINK CONT: rtokens of a new link, two at a time; version 1 only (RFC 7609 appendix A.3.3).

use super::add_link::RtokenPair;
use super::{Direction, Form, Kind, LLC_BYTES, begin, open_as};
use crate::error::Error;
use crate::field::{LinkNumber, put, u8_at};

/// The values of an ADD LINK CONT.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AddLinkCont {
    /// The server asks, the client answers; they alternate until neither has rtokens left.
    pub direction: Direction,
    /// Number of the new link.
    pub link_number: LinkNumber,
    /// Rtokens the sender still has, those in this message included.
    pub rtokens_left: u8,
    /// The next two; unused ones are zero.
    pub rtokens: [RtokenPair; 2],
}

impl AddLinkCont {
    /// Reads a received message.
    pub fn parse(form: Form, bytes: &[u8]) -> Result<AddLinkCont, Error> {
        let (header, message) = open_as(form, bytes, Kind::AddLinkCont)?;
        Ok(AddLinkCont {
            direction: header.direction,
            link_number: LinkNumber(u8_at(message, 4)?),
            rtokens_left: u8_at(message, 5)?,
            rtokens: [
                RtokenPair::parse(message, 8)?,
                RtokenPair::parse(message, 24)?,
            ],
        })
    }

    /// Writes 44 bytes and returns their number; `NotInForm` in version 2.
    pub fn emit(&self, form: Form, out: &mut [u8]) -> Result<usize, Error> {
        let out = begin(form, Kind::AddLinkCont, self.direction, 0, LLC_BYTES, out)?;
        put(out, 4, [self.link_number.0, self.rtokens_left]);
        put(out, 8, self.rtokens[0].to_bytes());
        put(out, 24, self.rtokens[1].to_bytes());
        Ok(LLC_BYTES)
    }
}
