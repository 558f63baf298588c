//! REQUEST ADD LINK: the client names its GIDs and asks for one more link; version 2 only.

use arrayvec::ArrayVec;

use super::{Direction, Form, Kind, LLC_BYTES, begin, open_as};
use crate::error::{Error, Field};
use crate::field::{Gid, array_at, put, u8_at};

/// Most GIDs in the message.
pub const REQUEST_GIDS_MAX: usize = 8;

const GIDS_AT: usize = 28;
const GID_BYTES: usize = 16;

/// The values of a REQUEST ADD LINK.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RequestAddLink {
    /// The client asks, the server answers with an empty list.
    pub direction: Direction,
    /// GIDs the client could use.
    pub gids: ArrayVec<Gid, REQUEST_GIDS_MAX>,
}

impl RequestAddLink {
    /// Reads a received message.
    pub fn parse(form: Form, bytes: &[u8]) -> Result<RequestAddLink, Error> {
        let (header, message) = open_as(form, bytes, Kind::RequestAddLink)?;
        let count = u8_at(message, 24)?;
        if usize::from(count) > REQUEST_GIDS_MAX {
            return Err(Error::BadField {
                field: Field::GidCount,
                value: count.into(),
            });
        }
        let mut gids = ArrayVec::new();
        for index in 0..usize::from(count) {
            gids.push(Gid(array_at(message, GIDS_AT + GID_BYTES * index)?));
        }
        Ok(RequestAddLink {
            direction: header.direction,
            gids,
        })
    }

    /// Length in bytes: `28 + 16 * gids`, at least 44.
    pub fn buffer_len(&self) -> usize {
        (GIDS_AT + GID_BYTES * self.gids.len()).max(LLC_BYTES)
    }

    /// Writes the message to the front of `out` and returns its length; `NotInForm` in version 1.
    pub fn emit(&self, form: Form, out: &mut [u8]) -> Result<usize, Error> {
        let len = self.buffer_len();
        let out = begin(form, Kind::RequestAddLink, self.direction, 0, len, out)?;
        put(out, 24, [self.gids.len() as u8]);
        for (index, gid) in self.gids.iter().enumerate() {
            put(out, GIDS_AT + GID_BYTES * index, gid.0);
        }
        Ok(len)
    }
}
