//! Link Layer Control: messages on the queue pair that manage links and RMBs (RFC 7609 section 4.5
//! and appendix A.3).
//!
//! One SEND carries one message of 44 bytes; in version 2, ADD LINK, REQUEST ADD LINK and DELETE
//! RKEY may be longer.
//!
//! ```text
//!            0 type         1 length   2                      3 flags
//! version 1  0x01 .. 0x0a   44         ADD LINK: reason (4)   0x80 response, others by type
//! version 2  0x20 + type    length, 16 bits, sender's order   the same
//! ```
//!
//! Linux writes the version 2 length (and the rtoken count of ADD LINK) in host byte order; this
//! crate reads and writes little endian, the order of x86 and Arm. ANNOUNCE CREDITS keeps its
//! version 1 header in both versions.
//!
//! Which form a message has was agreed in CLC, not by the message: the parser takes the [`Form`]
//! and knows only that form's type bytes. Receivers ignore [`Error::UnknownType`].

mod add_link;
mod add_link_cont;
mod announce_credits;
mod confirm_link;
mod confirm_rkey;
mod confirm_rkey_cont;
mod delete_link;
mod delete_rkey;
mod request_add_link;
mod test_link;

pub use add_link::{AddLink, AddLinkV2, Answer, RejectReason, RtokenPair};
pub use add_link_cont::AddLinkCont;
pub use announce_credits::AnnounceCredits;
pub use confirm_link::{ConfirmLink, RmbeMark};
pub use confirm_rkey::{ConfirmRkey, LinkRtoken, RkeyAnswer};
pub use confirm_rkey_cont::ConfirmRkeyCont;
pub use delete_link::{DeleteLink, DeleteReason, DeleteScope, Ending};
pub use delete_rkey::{DELETE_RKEYS_MAX, DeleteRkey, Verdict};
pub use request_add_link::{REQUEST_GIDS_MAX, RequestAddLink};
pub use test_link::TestLink;

use crate::clc;
use crate::error::Error;
use crate::field::{array_at, claim, put};

/// Length of every LLC message but the long ones of version 2.
pub const LLC_BYTES: usize = 44;

/// Response flag, the same in every message.
const RESPONSE: u8 = 0x80;
/// Added to the type number in version 2.
const V2_BASE: u8 = 0x20;

/// Version of the LLC layouts: that of the link group, as agreed in CLC.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Form {
    /// RFC 7609.
    V1,
    /// SMC-Rv2.
    V2,
}

impl From<clc::Version> for Form {
    fn from(version: clc::Version) -> Form {
        match version {
            clc::Version::V1 => Form::V1,
            clc::Version::V2 => Form::V2,
        }
    }
}

/// Whether a message asks or answers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Direction {
    /// Flag 0x80 clear.
    Request,
    /// Flag 0x80 set.
    Response,
}

/// Type number of a message, without the version.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// See [`ConfirmLink`].
    ConfirmLink = 1,
    /// See [`AddLink`].
    AddLink = 2,
    /// See [`AddLinkCont`]; version 1 only.
    AddLinkCont = 3,
    /// See [`DeleteLink`].
    DeleteLink = 4,
    /// See [`RequestAddLink`]; version 2 only.
    RequestAddLink = 5,
    /// See [`ConfirmRkey`].
    ConfirmRkey = 6,
    /// See [`TestLink`].
    TestLink = 7,
    /// See [`ConfirmRkeyCont`]; version 1 only.
    ConfirmRkeyCont = 8,
    /// See [`DeleteRkey`].
    DeleteRkey = 9,
    /// See [`AnnounceCredits`]; an extension, with a version 1 header in both versions.
    AnnounceCredits = 10,
}

impl Kind {
    const ALL: [Kind; 10] = [
        Kind::ConfirmLink,
        Kind::AddLink,
        Kind::AddLinkCont,
        Kind::DeleteLink,
        Kind::RequestAddLink,
        Kind::ConfirmRkey,
        Kind::TestLink,
        Kind::ConfirmRkeyCont,
        Kind::DeleteRkey,
        Kind::AnnounceCredits,
    ];

    /// The type byte in a form; `None` if the message does not exist there.
    pub const fn type_byte(self, form: Form) -> Option<u8> {
        match form {
            Form::V1 => match self {
                Kind::RequestAddLink => None,
                Kind::ConfirmLink
                | Kind::AddLink
                | Kind::AddLinkCont
                | Kind::DeleteLink
                | Kind::ConfirmRkey
                | Kind::TestLink
                | Kind::ConfirmRkeyCont
                | Kind::DeleteRkey
                | Kind::AnnounceCredits => Some(self as u8),
            },
            Form::V2 => match self {
                Kind::AddLinkCont | Kind::ConfirmRkeyCont => None,
                Kind::AnnounceCredits => Some(self as u8),
                Kind::ConfirmLink
                | Kind::AddLink
                | Kind::DeleteLink
                | Kind::RequestAddLink
                | Kind::ConfirmRkey
                | Kind::TestLink
                | Kind::DeleteRkey => Some(self as u8 + V2_BASE),
            },
        }
    }

    /// The message a type byte announces in a form; `None` for all others, which receivers ignore.
    pub fn from_type_byte(form: Form, byte: u8) -> Option<Kind> {
        Kind::ALL
            .into_iter()
            .find(|kind| kind.type_byte(form) == Some(byte))
    }
}

/// The four bytes in front, judged.
#[derive(Clone, Copy)]
struct Header {
    kind: Kind,
    direction: Direction,
    /// Byte 2 in version 1; zero in version 2, where it belongs to the length.
    byte2: u8,
    /// Byte 3 without the response flag.
    flags: u8,
}

/// Reads the header and returns exactly the bytes of the message: 44, or what a version 2 header
/// says.
fn open(form: Form, bytes: &[u8]) -> Result<(Header, &[u8]), Error> {
    let [type_byte, byte1, byte2, flags] = array_at::<4>(bytes, 0)?;
    let kind = Kind::from_type_byte(form, type_byte).ok_or(Error::UnknownType(type_byte))?;
    if bytes.len() < LLC_BYTES {
        return Err(Error::TooShort {
            need: LLC_BYTES,
            got: bytes.len(),
        });
    }
    let is_v2_header = type_byte & V2_BASE != 0;
    let declared = match is_v2_header {
        true => usize::from(u16::from_le_bytes([byte1, byte2])),
        false => usize::from(byte1),
    };
    if declared < LLC_BYTES || (!is_v2_header && declared != LLC_BYTES) {
        return Err(Error::BadLength {
            declared,
            expected: LLC_BYTES,
        });
    }
    let short = Error::TooShort {
        need: declared,
        got: bytes.len(),
    };
    let message = bytes.get(..declared).ok_or(short)?;
    let direction = if flags & RESPONSE != 0 {
        Direction::Response
    } else {
        Direction::Request
    };
    let byte2 = if is_v2_header { 0 } else { byte2 };
    Ok((
        Header {
            kind,
            direction,
            byte2,
            flags: flags & !RESPONSE,
        },
        message,
    ))
}

/// [`open`] for a parser that expects one kind.
fn open_as(form: Form, bytes: &[u8], kind: Kind) -> Result<(Header, &[u8]), Error> {
    let (header, message) = open(form, bytes)?;
    if header.kind != kind {
        let got = bytes.first().copied().unwrap_or_default();
        let expected = kind.type_byte(form).unwrap_or_default();
        return Err(Error::UnexpectedType { got, expected });
    }
    Ok((header, message))
}

/// Claims `len` zeroed bytes of `out` and writes the header there.
fn begin(
    form: Form,
    kind: Kind,
    direction: Direction,
    flags: u8,
    len: usize,
    out: &mut [u8],
) -> Result<&mut [u8], Error> {
    let type_byte = kind
        .type_byte(form)
        .ok_or(Error::NotInForm { kind: kind as u8 })?;
    let out = claim(out, len)?;
    let response = match direction {
        Direction::Request => 0,
        Direction::Response => RESPONSE,
    };
    if type_byte & V2_BASE != 0 {
        put(out, 1, (len as u16).to_le_bytes());
    } else {
        put(out, 1, [len as u8]);
    }
    put(out, 0, [type_byte]);
    put(out, 3, [response | flags]);
    Ok(out)
}

/// Any LLC message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message<'a> {
    /// See [`ConfirmLink`].
    ConfirmLink(ConfirmLink),
    /// See [`AddLink`].
    AddLink(AddLink<'a>),
    /// See [`AddLinkCont`].
    AddLinkCont(AddLinkCont),
    /// See [`DeleteLink`].
    DeleteLink(DeleteLink),
    /// See [`RequestAddLink`].
    RequestAddLink(RequestAddLink),
    /// See [`ConfirmRkey`].
    ConfirmRkey(ConfirmRkey),
    /// See [`TestLink`].
    TestLink(TestLink),
    /// See [`ConfirmRkeyCont`].
    ConfirmRkeyCont(ConfirmRkeyCont),
    /// See [`DeleteRkey`].
    DeleteRkey(DeleteRkey),
    /// See [`AnnounceCredits`].
    AnnounceCredits(AnnounceCredits),
}

impl<'a> Message<'a> {
    /// Reads one received message; bytes behind its declared length are not looked at.
    pub fn parse(form: Form, bytes: &'a [u8]) -> Result<Message<'a>, Error> {
        let (header, _) = open(form, bytes)?;
        match header.kind {
            Kind::ConfirmLink => ConfirmLink::parse(form, bytes).map(Message::ConfirmLink),
            Kind::AddLink => AddLink::parse(form, bytes).map(Message::AddLink),
            Kind::AddLinkCont => AddLinkCont::parse(form, bytes).map(Message::AddLinkCont),
            Kind::DeleteLink => DeleteLink::parse(form, bytes).map(Message::DeleteLink),
            Kind::RequestAddLink => RequestAddLink::parse(form, bytes).map(Message::RequestAddLink),
            Kind::ConfirmRkey => ConfirmRkey::parse(form, bytes).map(Message::ConfirmRkey),
            Kind::TestLink => TestLink::parse(form, bytes).map(Message::TestLink),
            Kind::ConfirmRkeyCont => {
                ConfirmRkeyCont::parse(form, bytes).map(Message::ConfirmRkeyCont)
            }
            Kind::DeleteRkey => DeleteRkey::parse(form, bytes).map(Message::DeleteRkey),
            Kind::AnnounceCredits => {
                AnnounceCredits::parse(form, bytes).map(Message::AnnounceCredits)
            }
        }
    }

    /// Length in bytes: 44, or more for the long messages of version 2.
    pub fn buffer_len(&self, form: Form) -> usize {
        match self {
            Message::AddLink(message) => message.buffer_len(form),
            Message::RequestAddLink(message) => message.buffer_len(),
            Message::ConfirmLink(_)
            | Message::AddLinkCont(_)
            | Message::DeleteLink(_)
            | Message::ConfirmRkey(_)
            | Message::TestLink(_)
            | Message::ConfirmRkeyCont(_)
            | Message::DeleteRkey(_)
            | Message::AnnounceCredits(_) => LLC_BYTES,
        }
    }

    /// Writes the message to the front of `out` and returns its length; `NotInForm` if it does not
    /// exist there.
    pub fn emit(&self, form: Form, out: &mut [u8]) -> Result<usize, Error> {
        match self {
            Message::ConfirmLink(message) => message.emit(form, out),
            Message::AddLink(message) => message.emit(form, out),
            Message::AddLinkCont(message) => message.emit(form, out),
            Message::DeleteLink(message) => message.emit(form, out),
            Message::RequestAddLink(message) => message.emit(form, out),
            Message::ConfirmRkey(message) => message.emit(form, out),
            Message::TestLink(message) => message.emit(form, out),
            Message::ConfirmRkeyCont(message) => message.emit(form, out),
            Message::DeleteRkey(message) => message.emit(form, out),
            Message::AnnounceCredits(message) => message.emit(form, out),
        }
    }

    /// Which message this is.
    pub const fn kind(&self) -> Kind {
        match self {
            Message::ConfirmLink(_) => Kind::ConfirmLink,
            Message::AddLink(_) => Kind::AddLink,
            Message::AddLinkCont(_) => Kind::AddLinkCont,
            Message::DeleteLink(_) => Kind::DeleteLink,
            Message::RequestAddLink(_) => Kind::RequestAddLink,
            Message::ConfirmRkey(_) => Kind::ConfirmRkey,
            Message::TestLink(_) => Kind::TestLink,
            Message::ConfirmRkeyCont(_) => Kind::ConfirmRkeyCont,
            Message::DeleteRkey(_) => Kind::DeleteRkey,
            Message::AnnounceCredits(_) => Kind::AnnounceCredits,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_type_tables_are_those_of_the_kernel_and_the_credit_extension() {
        let known = |form| -> std::vec::Vec<u8> {
            (0..=255)
                .filter(|byte| Kind::from_type_byte(form, *byte).is_some())
                .collect()
        };
        assert_eq!(
            known(Form::V1),
            [0x01, 0x02, 0x03, 0x04, 0x06, 0x07, 0x08, 0x09, 0x0a]
        );
        assert_eq!(
            known(Form::V2),
            [0x0a, 0x21, 0x22, 0x24, 0x25, 0x26, 0x27, 0x29]
        );
    }

    #[test]
    fn short_messages_and_wrong_lengths_are_refused_by_version() {
        let mut bytes = [0; 60];
        bytes[0] = 0x07;
        bytes[1] = 45;
        let bad = Error::BadLength {
            declared: 45,
            expected: 44,
        };
        assert_eq!(Message::parse(Form::V1, &bytes), Err(bad));
        bytes[0] = 0x27;
        assert!(Message::parse(Form::V2, &bytes).is_ok());
        bytes[1] = 43;
        let bad = Error::BadLength {
            declared: 43,
            expected: 44,
        };
        assert_eq!(Message::parse(Form::V2, &bytes), Err(bad));
        bytes[1] = 61;
        let short = Error::TooShort { need: 61, got: 60 };
        assert_eq!(Message::parse(Form::V2, &bytes), Err(short));
        let short = Error::TooShort { need: 44, got: 43 };
        assert_eq!(Message::parse(Form::V2, &bytes[..43]), Err(short));
    }

    #[test]
    fn a_message_of_the_other_form_is_unknown() {
        let mut bytes = [0; 44];
        bytes[..2].copy_from_slice(&[0x27, 44]);
        assert_eq!(
            Message::parse(Form::V1, &bytes),
            Err(Error::UnknownType(0x27))
        );
        bytes[0] = 0x07;
        assert_eq!(
            Message::parse(Form::V2, &bytes),
            Err(Error::UnknownType(0x07))
        );
    }
}
