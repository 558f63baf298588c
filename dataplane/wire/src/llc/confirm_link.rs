//! CONFIRM LINK: first message on a new link, and its answer (RFC 7609 appendix A.3.1).

use super::{Direction, Form, Kind, LLC_BYTES, begin, open_as};
use crate::error::Error;
use crate::field::{Gid, LinkNumber, Mac, Qpn, array_at, be32_at, put, u8_at};

/// Flag bits that say "no eye catcher"; Linux sets both and asks for either.
const NO_EYE_CATCHER: u8 = 0x03;

/// Whether the sender's RMBEs begin with a four-byte eye catcher.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RmbeMark {
    /// No eye catcher: cursors start at 0. Linux accepts only this.
    Absent,
    /// Eye catcher as in RFC 7609: cursors start at 4 and wrap to 4.
    Present,
}

/// The values of a CONFIRM LINK.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConfirmLink {
    /// The server asks, the client answers.
    pub direction: Direction,
    /// Sender's RMBE form, for the whole link group.
    pub mark: RmbeMark,
    /// Sender's MAC.
    pub mac: Mac,
    /// Sender's GID.
    pub gid: Gid,
    /// Sender's queue pair.
    pub qpn: Qpn,
    /// Given by the server, repeated by the client.
    pub link_number: LinkNumber,
    /// Names the link in the sender's logs. Opaque.
    pub link_user_id: u32,
    /// Most links per link group; informational.
    pub max_links: u8,
    /// Most connections per link group; informational.
    pub max_conns: u8,
}

impl ConfirmLink {
    /// Reads a received message.
    pub fn parse(form: Form, bytes: &[u8]) -> Result<ConfirmLink, Error> {
        let (header, message) = open_as(form, bytes, Kind::ConfirmLink)?;
        let has_mark = header.flags & NO_EYE_CATCHER == 0;
        Ok(ConfirmLink {
            direction: header.direction,
            mark: if has_mark {
                RmbeMark::Present
            } else {
                RmbeMark::Absent
            },
            mac: Mac(array_at(message, 4)?),
            gid: Gid(array_at(message, 10)?),
            qpn: Qpn::from_bytes(array_at(message, 26)?),
            link_number: LinkNumber(u8_at(message, 29)?),
            link_user_id: be32_at(message, 30)?,
            max_links: u8_at(message, 34)?,
            max_conns: u8_at(message, 35)?,
        })
    }

    /// Writes 44 bytes and returns their number.
    pub fn emit(&self, form: Form, out: &mut [u8]) -> Result<usize, Error> {
        let flags = match self.mark {
            RmbeMark::Absent => NO_EYE_CATCHER,
            RmbeMark::Present => 0,
        };
        let out = begin(
            form,
            Kind::ConfirmLink,
            self.direction,
            flags,
            LLC_BYTES,
            out,
        )?;
        put(out, 4, self.mac.0);
        put(out, 10, self.gid.0);
        put(out, 26, self.qpn.to_bytes());
        put(out, 29, [self.link_number.0]);
        put(out, 30, self.link_user_id.to_be_bytes());
        put(out, 34, [self.max_links, self.max_conns]);
        Ok(LLC_BYTES)
    }
}
