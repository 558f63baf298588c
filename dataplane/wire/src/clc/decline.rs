//! Decline: the sender stays on TCP (RFC 7609 appendix A.2.4).
//!
//! Version 1 is 28 bytes, version 2 is 44. After it the TCP stream carries plain data in both
//! directions; the receiver does not answer.

use super::diagnosis::Diagnosis;
use super::header::{Kind, Sync, Version, close, open, sync_bits};
use crate::error::{Error, Field};
use crate::field::{PeerId, array_at, be32_at, claim, put, u8_at};

/// Length of a Decline of one version.
const fn bytes_of(version: Version) -> usize {
    match version {
        Version::V1 => 28,
        Version::V2 => 44,
    }
}

/// Operating system of the sender, four bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct OsType(pub u8);

impl OsType {
    /// z/OS.
    pub const ZOS: OsType = OsType(1);
    /// Linux.
    pub const LINUX: OsType = OsType(2);
    /// AIX.
    pub const AIX: OsType = OsType(3);

    /// The value, if it fits its nibble.
    pub(super) fn nibble(self) -> Result<u8, Error> {
        if self.0 > 15 {
            return Err(Error::BadField {
                field: Field::OsType,
                value: self.0.into(),
            });
        }
        Ok(self.0)
    }
}

/// The values of a Decline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Decline {
    /// Whether the receiver has to end the link group.
    pub sync: Sync,
    /// Sender's identity.
    pub peer_id: PeerId,
    /// Why.
    pub diagnosis: Diagnosis,
    /// What version 2 adds; `None` is a version 1 message.
    pub v2: Option<DeclineV2>,
}

/// Fields that only a version 2 Decline has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DeclineV2 {
    /// Sender's operating system.
    pub os: OsType,
    /// Four more diagnosis words; zero in Linux.
    pub more: [u32; 4],
}

impl Decline {
    /// Reads a Decline of either version. The length must be that of the version; the trailer is
    /// not looked at, as in the kernel.
    pub fn parse(bytes: &[u8]) -> Result<Decline, Error> {
        let (header, message) = open(bytes, Kind::Decline)?;
        let expected = bytes_of(header.version);
        if message.len() != expected {
            return Err(Error::BadLength {
                declared: message.len(),
                expected,
            });
        }
        let v2 = match header.version {
            Version::V1 => None,
            Version::V2 => Some(parse_v2(message)?),
        };
        Ok(Decline {
            sync: header.sync(),
            peer_id: PeerId(array_at(message, 8)?),
            diagnosis: Diagnosis(be32_at(message, 16)?),
            v2,
        })
    }

    /// The version of the message.
    pub const fn version(&self) -> Version {
        match self.v2 {
            Some(_) => Version::V2,
            None => Version::V1,
        }
    }

    /// Length in bytes: 28 or 44.
    pub const fn buffer_len(&self) -> usize {
        bytes_of(self.version())
    }

    /// Writes the message to the front of `out` and returns its length.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, Error> {
        let out = claim(out, self.buffer_len())?;
        if let Some(v2) = self.v2 {
            put(out, 20, [v2.os.nibble()? << 4]);
            for (index, word) in v2.more.iter().enumerate() {
                put(out, 24 + 4 * index, word.to_be_bytes());
            }
        }
        put(out, 8, self.peer_id.0);
        put(out, 16, self.diagnosis.0.to_be_bytes());
        close(out, Kind::Decline, self.version(), sync_bits(self.sync));
        Ok(out.len())
    }
}

fn parse_v2(message: &[u8]) -> Result<DeclineV2, Error> {
    let mut more = [0; 4];
    for (index, word) in more.iter_mut().enumerate() {
        *word = be32_at(message, 24 + 4 * index)?;
    }
    Ok(DeclineV2 {
        os: OsType(u8_at(message, 20)? >> 4),
        more,
    })
}
