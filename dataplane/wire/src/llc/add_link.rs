//! ADD LINK: the offer of one more link, its acceptance or its rejection (RFC 7609 appendix A.3.2).
//!
//! Version 1 is 44 bytes, its rtokens follow in ADD LINK CONT. Version 2 carries them behind byte
//! 72; a version 2 message of 44 bytes (a rejection) has no version 2 part.

use super::{Direction, Form, Kind, LLC_BYTES, begin, open_as};
use crate::clc::Attachment;
use crate::error::{Error, Field};
use crate::field::{
    Gid, LinkNumber, Mac, MtuCode, Psn, Qpn, Rkey, array_at, be32_at, be64_at, le16_at, put, u8_at,
};

const REJECTED: u8 = 0x40;
const RTOKENS_AT: usize = 72;
const RTOKEN_BYTES: usize = 16;
/// Most rtokens a message can carry with its 16-bit length.
const RTOKENS_MAX: usize = (u16::MAX as usize - RTOKENS_AT) / RTOKEN_BYTES;

/// The values of an ADD LINK.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AddLink<'a> {
    /// The server asks (a version 1 client may, as an invitation), the other answers.
    pub direction: Direction,
    /// Whether a response refuses. Meaningful in responses.
    pub answer: Answer,
    /// Sender's MAC on the new link.
    pub mac: Mac,
    /// Sender's GID on the new link.
    pub gid: Gid,
    /// Sender's queue pair for the new link.
    pub qpn: Qpn,
    /// Number of the new link.
    pub link_number: LinkNumber,
    /// Sender's path MTU; `None` (zero on the wire) makes a kernel client refuse at once.
    pub mtu: Option<MtuCode>,
    /// Sender's first packet sequence number on the new link.
    pub psn: Psn,
    /// Receives posted on the new link for the other side; zero without receive-queue credits.
    pub credits: u8,
    /// Version 2 part; `None` in version 1 and in a version 2 rejection. Not written in version 1.
    pub v2: Option<AddLinkV2<'a>>,
}

/// What version 2 adds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AddLinkV2<'a> {
    /// How the sender thinks the hosts are attached.
    pub attachment: Attachment,
    /// The client GID this is meant for. Linux sends its own and ignores it when received.
    pub target_gid: Gid,
    /// The sender's RMBs: [`RtokenPair`]s in their wire form.
    pub rtokens: &'a [[u8; RTOKEN_BYTES]],
}

/// Acceptance or rejection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// Flag 0x40 clear.
    Accepted,
    /// Flag 0x40 set. In version 2 the reason is lost and reads as [`RejectReason::NONE`].
    Rejected(RejectReason),
}

/// Why an ADD LINK was refused, four bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RejectReason(pub u8);

impl RejectReason {
    /// None given.
    pub const NONE: RejectReason = RejectReason(0);
    /// No second path exists.
    pub const NO_ALTERNATE_PATH: RejectReason = RejectReason(1);
    /// The MTU is not acceptable.
    pub const INVALID_MTU: RejectReason = RejectReason(2);
}

/// Keys of one RMB on the link that carries the message and on the new link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RtokenPair {
    /// Key on the carrying link; names the RMB.
    pub rkey: Rkey,
    /// Key on the new link.
    pub new_rkey: Rkey,
    /// Address on the new link.
    pub new_address: u64,
}

impl RtokenPair {
    /// From its wire form.
    pub const fn from_bytes(b: [u8; RTOKEN_BYTES]) -> RtokenPair {
        RtokenPair {
            rkey: Rkey(u32::from_be_bytes([b[0], b[1], b[2], b[3]])),
            new_rkey: Rkey(u32::from_be_bytes([b[4], b[5], b[6], b[7]])),
            new_address: u64::from_be_bytes([b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]]),
        }
    }

    /// To its wire form.
    pub fn to_bytes(self) -> [u8; RTOKEN_BYTES] {
        let mut bytes = [0; RTOKEN_BYTES];
        put(&mut bytes, 0, self.rkey.0.to_be_bytes());
        put(&mut bytes, 4, self.new_rkey.0.to_be_bytes());
        put(&mut bytes, 8, self.new_address.to_be_bytes());
        bytes
    }

    pub(super) fn parse(message: &[u8], at: usize) -> Result<RtokenPair, Error> {
        Ok(RtokenPair {
            rkey: Rkey(be32_at(message, at)?),
            new_rkey: Rkey(be32_at(message, at + 4)?),
            new_address: be64_at(message, at + 8)?,
        })
    }
}

impl<'a> AddLink<'a> {
    /// Reads a received message; the rtokens stay in `bytes`.
    pub fn parse(form: Form, bytes: &'a [u8]) -> Result<AddLink<'a>, Error> {
        let (header, message) = open_as(form, bytes, Kind::AddLink)?;
        let v2 = match form {
            Form::V2 if message.len() > LLC_BYTES => Some(AddLinkV2::parse(message)?),
            Form::V1 | Form::V2 => None,
        };
        let answer = match header.flags & REJECTED {
            0 => Answer::Accepted,
            _ => Answer::Rejected(RejectReason(header.byte2 & 0x0f)),
        };
        Ok(AddLink {
            direction: header.direction,
            answer,
            mac: Mac(array_at(message, 4)?),
            gid: Gid(array_at(message, 12)?),
            qpn: Qpn::from_bytes(array_at(message, 28)?),
            link_number: LinkNumber(u8_at(message, 31)?),
            mtu: MtuCode::from_nibble(u8_at(message, 32)? & 0x0f)?,
            psn: Psn::from_bytes(array_at(message, 33)?),
            credits: u8_at(message, 36)?,
            v2,
        })
    }

    /// Length in bytes: 44, or `72 + 16 * rtokens` with a version 2 part in version 2.
    pub fn buffer_len(&self, form: Form) -> usize {
        match (form, &self.v2) {
            (Form::V2, Some(v2)) => RTOKENS_AT + RTOKEN_BYTES * v2.rtokens.len(),
            (Form::V1, _) | (Form::V2, None) => LLC_BYTES,
        }
    }

    /// Writes the message to the front of `out` and returns its length.
    pub fn emit(&self, form: Form, out: &mut [u8]) -> Result<usize, Error> {
        let rtokens = self.v2.map_or(0, |v2| v2.rtokens.len());
        if rtokens > RTOKENS_MAX {
            return Err(Error::BadField {
                field: Field::RtokenCount,
                value: rtokens as u64,
            });
        }
        let (flags, reason) = match self.answer {
            Answer::Accepted => (0, RejectReason::NONE.0),
            Answer::Rejected(RejectReason(reason)) => (REJECTED, reason),
        };
        if reason > 15 {
            return Err(Error::BadField {
                field: Field::RejectReason,
                value: reason.into(),
            });
        }
        let len = self.buffer_len(form);
        let out = begin(form, Kind::AddLink, self.direction, flags, len, out)?;
        put(out, 4, self.mac.0);
        put(out, 12, self.gid.0);
        put(out, 28, self.qpn.to_bytes());
        put(out, 31, [self.link_number.0, MtuCode::to_nibble(self.mtu)]);
        put(out, 33, self.psn.to_bytes());
        put(out, 36, [self.credits]);
        match (form, &self.v2) {
            (Form::V1, _) => put(out, 2, [reason]),
            (Form::V2, Some(v2)) => v2.emit(out),
            (Form::V2, None) => {}
        }
        Ok(len)
    }
}

impl<'a> AddLinkV2<'a> {
    fn parse(message: &'a [u8]) -> Result<AddLinkV2<'a>, Error> {
        let attachment = match u8_at(message, 44)? & 0x80 {
            0 => Attachment::Indirect,
            _ => Attachment::Direct,
        };
        let target_gid = Gid(array_at(message, 46)?);
        let count = le16_at(message, 70)?;
        let (present, _) = message.get(RTOKENS_AT..).unwrap_or_default().as_chunks();
        let too_many = Error::BadField {
            field: Field::RtokenCount,
            value: count.into(),
        };
        let rtokens = present.get(..usize::from(count)).ok_or(too_many)?;
        Ok(AddLinkV2 {
            attachment,
            target_gid,
            rtokens,
        })
    }

    fn emit(&self, out: &mut [u8]) {
        let direct = match self.attachment {
            Attachment::Direct => 0x80,
            Attachment::Indirect => 0,
        };
        put(out, 44, [direct]);
        put(out, 46, self.target_gid.0);
        put(out, 70, (self.rtokens.len() as u16).to_le_bytes());
        for (index, rtoken) in self.rtokens.iter().enumerate() {
            put(out, RTOKENS_AT + RTOKEN_BYTES * index, *rtoken);
        }
    }
}
