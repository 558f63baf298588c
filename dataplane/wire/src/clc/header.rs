//! The eight bytes every CLC message begins with, and the four it ends with.
//!
//! ```text
//! 0 eye catcher (4)   4 type   5 length (16)   7 version (4) | type of v2 (2) | type of v1 (2)
//! ```
//!
//! A receiver reads these eight bytes first and then exactly `length - 8` more: what follows on the
//! TCP stream may already be application data.

use crate::error::{Error, Field};
use crate::field::{array_at, put};

/// Length of the header.
pub const HEADER_BYTES: usize = 8;
/// Length of the trailer.
pub const TRAILER_BYTES: usize = 4;
/// Longest message this crate accepts: the longest legal Proposal (652 bytes) with room to spare.
/// The kernel accepts longer ones and throws the rest away; no known sender makes them.
pub const MESSAGE_BYTES_MAX: usize = 1024;

/// Bit 3 of byte 7 in Accept and Confirm: first contact. In a Decline: out of sync.
const CONTACT_OR_SYNC: u8 = 0x08;

/// EBCDIC mark at the beginning and the end of a CLC message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EyeCatcher {
    /// "SMCR".
    SmcR,
    /// "SMCD": ISM devices, not RDMA.
    SmcD,
}

impl EyeCatcher {
    /// The four bytes.
    pub const fn to_bytes(self) -> [u8; 4] {
        match self {
            EyeCatcher::SmcR => [0xe2, 0xd4, 0xc3, 0xd9],
            EyeCatcher::SmcD => [0xe2, 0xd4, 0xc3, 0xc4],
        }
    }

    /// `None` for any other four bytes. Also the test for a CLC message at the head of a TCP
    /// stream.
    pub const fn from_bytes(bytes: [u8; 4]) -> Option<EyeCatcher> {
        match bytes {
            [0xe2, 0xd4, 0xc3, 0xd9] => Some(EyeCatcher::SmcR),
            [0xe2, 0xd4, 0xc3, 0xc4] => Some(EyeCatcher::SmcD),
            _ => None,
        }
    }
}

/// Which of the four messages.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// Client to server, first message.
    Proposal = 1,
    /// Server to client, answer to a Proposal.
    Accept = 2,
    /// Client to server, answer to an Accept.
    Confirm = 3,
    /// Either side in place of its next message: stay on TCP.
    Decline = 4,
}

impl Kind {
    /// `None` for an unknown type byte.
    pub const fn new(byte: u8) -> Option<Kind> {
        match byte {
            1 => Some(Kind::Proposal),
            2 => Some(Kind::Accept),
            3 => Some(Kind::Confirm),
            4 => Some(Kind::Decline),
            _ => None,
        }
    }

    /// The shortest legal message of this kind, in bytes.
    pub const fn bytes_min(self) -> usize {
        match self {
            Kind::Proposal => 52,
            Kind::Accept | Kind::Confirm => 68,
            Kind::Decline => 28,
        }
    }
}

/// Version of the CLC protocol in the header.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Version {
    /// RFC 7609.
    V1,
    /// SMC-Rv2. Higher numbers are read as this one, as the kernel does.
    V2,
}

impl Version {
    const fn nibble(self) -> u8 {
        match self {
            Version::V1 => 1,
            Version::V2 => 2,
        }
    }
}

/// Two bits that say which kinds of device are offered or chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PathCode {
    /// SMC-R only.
    R = 0,
    /// SMC-D only.
    D = 1,
    /// Neither.
    None = 2,
    /// SMC-R and SMC-D.
    Both = 3,
}

impl PathCode {
    const fn from_bits(bits: u8) -> PathCode {
        match bits & 3 {
            0 => PathCode::R,
            1 => PathCode::D,
            2 => PathCode::None,
            _ => PathCode::Both,
        }
    }
}

/// Whether the handshake creates a link group or uses one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Contact {
    /// A new link group and queue pair.
    First,
    /// An existing link.
    Subsequent,
}

/// Whether the sender of a Decline believes that the link group is in order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Sync {
    /// The usual case.
    InSync,
    /// The receiver ends the link group with all its connections.
    OutOfSync,
}

/// The header's values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// SMC-R or SMC-D.
    pub eye_catcher: EyeCatcher,
    /// Type byte.
    pub kind: Kind,
    /// Length of the whole message in bytes, header and trailer included.
    pub length: u16,
    /// High nibble of byte 7.
    pub version: Version,
    /// Low nibble of byte 7; what it means depends on `kind`.
    pub low_bits: u8,
}

impl Header {
    /// Reads the first eight bytes of a message; more may follow.
    ///
    /// Errors are protocol errors: the handshake cannot go on. The length is checked to be at least
    /// the shortest message of the kind and at most [`MESSAGE_BYTES_MAX`].
    pub fn parse(bytes: &[u8]) -> Result<Header, Error> {
        let [e0, e1, e2, e3, kind, l0, l1, byte7] = array_at::<HEADER_BYTES>(bytes, 0)?;
        let mark = [e0, e1, e2, e3];
        let eye_catcher = EyeCatcher::from_bytes(mark).ok_or(Error::BadEyeCatcher(mark))?;
        let kind = Kind::new(kind).ok_or(Error::UnknownType(kind))?;
        let version = match byte7 >> 4 {
            0 => {
                return Err(Error::BadField {
                    field: Field::Version,
                    value: 0,
                });
            }
            1 => Version::V1,
            _ => Version::V2,
        };
        let length = u16::from_be_bytes([l0, l1]);
        let declared = usize::from(length);
        if declared < kind.bytes_min() {
            return Err(Error::BadLength {
                declared,
                expected: kind.bytes_min(),
            });
        }
        if declared > MESSAGE_BYTES_MAX {
            return Err(Error::BadLength {
                declared,
                expected: MESSAGE_BYTES_MAX,
            });
        }
        Ok(Header {
            eye_catcher,
            kind,
            length,
            version,
            low_bits: byte7 & 0x0f,
        })
    }

    /// First contact bit; meaningful in Accept and Confirm.
    pub const fn contact(&self) -> Contact {
        if self.low_bits & CONTACT_OR_SYNC != 0 {
            Contact::First
        } else {
            Contact::Subsequent
        }
    }

    /// Sync bit; meaningful in a Decline.
    pub const fn sync(&self) -> Sync {
        if self.low_bits & CONTACT_OR_SYNC != 0 {
            Sync::OutOfSync
        } else {
            Sync::InSync
        }
    }

    /// In a Proposal what is offered for SMC version 1; in Accept and Confirm the chosen path.
    pub const fn path_v1(&self) -> PathCode {
        PathCode::from_bits(self.low_bits)
    }

    /// In a Proposal what is offered for SMC version 2.
    pub const fn path_v2(&self) -> PathCode {
        PathCode::from_bits(self.low_bits >> 2)
    }
}

/// The low nibble of Accept and Confirm: path R.
pub(super) const fn contact_bits(contact: Contact) -> u8 {
    match contact {
        Contact::First => CONTACT_OR_SYNC,
        Contact::Subsequent => 0,
    }
}

/// The low nibble of a Decline.
pub(super) const fn sync_bits(sync: Sync) -> u8 {
    match sync {
        Sync::OutOfSync => CONTACT_OR_SYNC,
        Sync::InSync => 0,
    }
}

/// Reads header and frame of a message of one kind: returns exactly the bytes that belong to it.
///
/// The trailer is checked except for a Decline, where the kernel does not look at it either.
pub(super) fn open(bytes: &[u8], expected: Kind) -> Result<(Header, &[u8]), Error> {
    let header = Header::parse(bytes)?;
    if header.kind != expected {
        return Err(Error::UnexpectedType {
            got: header.kind as u8,
            expected: expected as u8,
        });
    }
    let length = usize::from(header.length);
    let short = Error::TooShort {
        need: length,
        got: bytes.len(),
    };
    let message = bytes.get(..length).ok_or(short)?;
    if header.kind != Kind::Decline {
        let mark = array_at(message, length - TRAILER_BYTES)?;
        EyeCatcher::from_bytes(mark).ok_or(Error::BadTrailer(mark))?;
    }
    Ok((header, message))
}

/// Writes header and trailer around a message that fills `message` exactly.
pub(super) fn close(message: &mut [u8], kind: Kind, version: Version, low_bits: u8) {
    let length = message.len();
    let mark = EyeCatcher::SmcR.to_bytes();
    put(message, 0, mark);
    put(message, 4, [kind as u8]);
    put(message, 5, (length as u16).to_be_bytes());
    put(message, 7, [version.nibble() << 4 | low_bits]);
    put(message, length - TRAILER_BYTES, mark);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(kind: u8, length: u16, byte7: u8) -> [u8; 8] {
        let [l0, l1] = length.to_be_bytes();
        [0xe2, 0xd4, 0xc3, 0xd9, kind, l0, l1, byte7]
    }

    #[test]
    fn eight_bytes_tell_the_length_of_the_message() {
        let parsed = Header::parse(&header(2, 160, 0x28)).unwrap();
        assert_eq!(
            (parsed.kind, parsed.length, parsed.version),
            (Kind::Accept, 160, Version::V2)
        );
        assert_eq!(
            (parsed.contact(), parsed.path_v1()),
            (Contact::First, PathCode::R)
        );
    }

    #[test]
    fn byte_seven_names_the_paths_of_both_versions() {
        let table = [
            (0x10, Version::V1, PathCode::R, PathCode::R),
            (0x20, Version::V2, PathCode::R, PathCode::R),
            (0x22, Version::V2, PathCode::None, PathCode::R),
            (0x28, Version::V2, PathCode::R, PathCode::None),
            (0x2f, Version::V2, PathCode::Both, PathCode::Both),
            (0x25, Version::V2, PathCode::D, PathCode::D),
            (0x32, Version::V2, PathCode::None, PathCode::R),
        ];
        for (byte, version, v1, v2) in table {
            let parsed = Header::parse(&header(1, 156, byte)).unwrap();
            assert_eq!(
                (parsed.version, parsed.path_v1(), parsed.path_v2()),
                (version, v1, v2)
            );
        }
    }

    #[test]
    fn lengths_outside_the_limits_of_the_kind_are_refused_before_anything_is_read() {
        for (kind, least) in [(1, 52), (2, 68), (3, 68), (4, 28)] {
            let short = Error::BadLength {
                declared: least - 1,
                expected: least,
            };
            assert_eq!(
                Header::parse(&header(kind, least as u16 - 1, 0x10)),
                Err(short)
            );
            assert!(Header::parse(&header(kind, least as u16, 0x10)).is_ok());
            assert!(Header::parse(&header(kind, 1024, 0x10)).is_ok());
            let long = Error::BadLength {
                declared: 1025,
                expected: 1024,
            };
            assert_eq!(Header::parse(&header(kind, 1025, 0x10)), Err(long));
        }
    }

    #[test]
    fn version_zero_unknown_type_and_foreign_bytes_are_refused() {
        let bad = Error::BadField {
            field: Field::Version,
            value: 0,
        };
        assert_eq!(Header::parse(&header(1, 156, 0x02)), Err(bad));
        assert_eq!(
            Header::parse(&header(5, 156, 0x22)),
            Err(Error::UnknownType(5))
        );
        let http = b"GET / HT";
        assert_eq!(Header::parse(http), Err(Error::BadEyeCatcher(*b"GET ")));
        assert_eq!(
            Header::parse(&http[..7]),
            Err(Error::TooShort { need: 8, got: 7 })
        );
    }
}
