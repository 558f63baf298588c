//! TEST LINK: is the other side still there (RFC 7609 appendix A.3.8).

use super::{Direction, Form, Kind, LLC_BYTES, begin, open_as};
use crate::error::Error;
use crate::field::{array_at, put};

/// The values of a TEST LINK.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TestLink {
    /// Either side asks, the other repeats the message as its answer.
    pub direction: Direction,
    /// Chosen by the requester, repeated by the other. Linux sends zeros and does not compare.
    pub user_data: [u8; 16],
}

impl TestLink {
    /// Reads a received message.
    pub fn parse(form: Form, bytes: &[u8]) -> Result<TestLink, Error> {
        let (header, message) = open_as(form, bytes, Kind::TestLink)?;
        Ok(TestLink {
            direction: header.direction,
            user_data: array_at(message, 4)?,
        })
    }

    /// Writes 44 bytes and returns their number.
    pub fn emit(&self, form: Form, out: &mut [u8]) -> Result<usize, Error> {
        let out = begin(form, Kind::TestLink, self.direction, 0, LLC_BYTES, out)?;
        put(out, 4, self.user_data);
        Ok(LLC_BYTES)
    }
}
