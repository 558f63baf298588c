//! ANNOUNCE CREDITS: receives given back without a CDC to carry them. An extension, not in mainline
//! Linux.
//!
//! Send it only after credits were agreed in CLC; it takes a receive at the other side itself. The
//! header is that of version 1 in both versions.

use super::{Direction, Form, Kind, LLC_BYTES, begin, open_as};
use crate::error::Error;
use crate::field::{put, u8_at};

/// The values of an ANNOUNCE CREDITS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AnnounceCredits {
    /// Known senders set the response flag, receivers take both; there is no answer.
    pub direction: Direction,
    /// Receives given back.
    pub credits: u8,
}

impl AnnounceCredits {
    /// Reads a received message.
    pub fn parse(form: Form, bytes: &[u8]) -> Result<AnnounceCredits, Error> {
        let (header, message) = open_as(form, bytes, Kind::AnnounceCredits)?;
        Ok(AnnounceCredits {
            direction: header.direction,
            credits: u8_at(message, 4)?,
        })
    }

    /// Writes 44 bytes and returns their number.
    pub fn emit(&self, form: Form, out: &mut [u8]) -> Result<usize, Error> {
        let out = begin(
            form,
            Kind::AnnounceCredits,
            self.direction,
            0,
            LLC_BYTES,
            out,
        )?;
        put(out, 4, [self.credits]);
        Ok(LLC_BYTES)
    }
}
