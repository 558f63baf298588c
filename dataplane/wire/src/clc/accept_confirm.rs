//! Accept and Confirm: each side tells the other its queue pair and its RMB (RFC 7609 appendix
//! A.2.2, A.2.3, and the version 2 layout of Linux).
//!
//! ```text
//!   0 header   8 peer id   16 GID   32 MAC   38 QPN (24)   41 rkey (32)
//!  45 RMBE index   46 alert token (32)
//!  50 size code (4) | MTU code (4)   51 credits   52 RMB address (64)   60 reserved   61 PSN (24)
//!  64 version 1: trailer
//!  64 version 2: EID (32)   96 reserved (8)
//! 104 first contact: direct bit   105 os (4) | release (4)   108 host name (32)   140 limits
//!     142 features   144 vendor options   148 reserved (8)
//! 156 Confirm of a first contact: count (1), reserved (3), GIDs of 16
//!   . trailer
//! ```

use arrayvec::ArrayVec;

use super::decline::OsType;
use super::header::{
    Contact, Header, Kind, PathCode, TRAILER_BYTES, Version, close, contact_bits, open,
};
use super::vendor::VendorOptions;
use crate::error::{Error, Field};
use crate::field::{
    AlertToken, BufferSizeCode, Gid, Mac, MtuCode, PeerId, Psn, Qpn, Rkey, RmbeIndex, Ueid,
    array_at, be16_at, be32_at, be64_at, claim, put, u8_at,
};

/// Most GIDs kept from a Confirm.
pub const CONFIRM_GIDS_MAX: usize = 8;

/// End of the part that both versions share.
const ENDPOINT_END: usize = 64;
const V1_BYTES: usize = ENDPOINT_END + TRAILER_BYTES;
/// Where the first contact extension begins.
const FIRST_AT: usize = 104;
const V2_BYTES_MIN: usize = FIRST_AT + TRAILER_BYTES;
/// First contact extension since SMC-Rv2.1.
const FIRST_BYTES: usize = 52;
/// First contact extension of SMC-Rv2.0: without limits, features and vendor options.
const FIRST_V20_BYTES: usize = 36;
const GID_LIST_BYTES: usize = 4;
const GID_BYTES: usize = 16;

/// The values of an Accept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Accept {
    /// Server's queue pair and RMB.
    pub endpoint: Endpoint,
    /// What depends on version and contact.
    pub extension: Extension,
}

/// The values of a Confirm.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Confirm {
    /// Client's queue pair and RMB.
    pub endpoint: Endpoint,
    /// What depends on version and contact. The EID, release and limits repeat those of the Accept.
    pub extension: Extension,
    /// GIDs the client could use for more links. Only in version 2 on first contact; elsewhere not
    /// written. Linux counts the one in use too. A longer list is cut to 8 when read.
    pub gids: ArrayVec<Gid, CONFIRM_GIDS_MAX>,
}

/// What Accept and Confirm share: the sender's queue pair and its RMB for the new connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Endpoint {
    /// Sender's identity.
    pub peer_id: PeerId,
    /// Sender's GID on this link; IPv4-mapped in version 2.
    pub gid: Gid,
    /// Sender's MAC.
    pub mac: Mac,
    /// Sender's queue pair.
    pub qpn: Qpn,
    /// Key of the sender's RMB on this link.
    pub rkey: Rkey,
    /// Position of the connection's RMBE in the RMB.
    pub rmbe_index: RmbeIndex,
    /// What the receiver has to put into its CDC messages for this connection.
    pub alert_token: AlertToken,
    /// Size of the RMBE.
    pub rmbe_size: BufferSizeCode,
    /// Path MTU: the server's own in an Accept, the smaller of both in a Confirm. `None` if the
    /// nibble is zero.
    pub mtu: Option<MtuCode>,
    /// Receives posted for the other side. Zero: no receive-queue credits.
    pub credits: u8,
    /// Address of the RMB (not of the RMBE). Opaque.
    pub rmb_address: u64,
    /// First packet sequence number of the sender. Means nothing on subsequent contact.
    pub psn: Psn,
}

/// What depends on version and contact.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Extension {
    /// Version 1.
    V1 {
        /// The first contact bit.
        contact: Contact,
    },
    /// Version 2.
    V2 {
        /// The UEID both hosts share.
        eid: Ueid,
        /// Present exactly on first contact.
        first: Option<FirstContact>,
    },
}

/// First contact extension of version 2.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FirstContact {
    /// How the sender thinks the hosts are attached.
    pub attachment: Attachment,
    /// Sender's operating system.
    pub os: OsType,
    /// Agreed release, four bits: 1 is SMC-Rv2.1.
    pub release: u8,
    /// Sender's host name, ASCII padded with blanks.
    pub host_name: [u8; 32],
    /// Agreed most connections per link group. From release 1 on; release 0 has neither this nor what
    /// follows: it reads as zero, and anything else is refused when written.
    pub max_conns: u8,
    /// Agreed most links per link group. Likewise.
    pub max_links: u8,
    /// Feature mask. Likewise.
    pub features: u16,
    /// Agreed vendor options. Likewise.
    pub options: VendorOptions,
}

/// Whether the peer is in the same layer 2 subnet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Attachment {
    /// Next hop is the peer's MAC.
    Direct,
    /// Next hop is a gateway.
    Indirect,
}

impl Extension {
    /// First or subsequent contact.
    pub const fn contact(&self) -> Contact {
        match self {
            Extension::V1 { contact } => *contact,
            Extension::V2 { first: Some(_), .. } => Contact::First,
            Extension::V2 { first: None, .. } => Contact::Subsequent,
        }
    }

    /// Version of the message.
    pub const fn version(&self) -> Version {
        match self {
            Extension::V1 { .. } => Version::V1,
            Extension::V2 { .. } => Version::V2,
        }
    }

    /// Length of the message without a GID list.
    const fn message_bytes(&self) -> usize {
        match self {
            Extension::V1 { .. } => V1_BYTES,
            Extension::V2 { first: None, .. } => V2_BYTES_MIN,
            Extension::V2 { first: Some(_), .. } => V2_BYTES_MIN + FIRST_BYTES,
        }
    }

    fn parse(header: &Header, message: &[u8]) -> Result<Extension, Error> {
        if header.version == Version::V1 {
            return Ok(Extension::V1 {
                contact: header.contact(),
            });
        }
        let first = match header.contact() {
            Contact::First => Some(FirstContact::parse(message)?),
            Contact::Subsequent => None,
        };
        Ok(Extension::V2 {
            eid: Ueid::from_bytes(array_at(message, ENDPOINT_END)?),
            first,
        })
    }

    fn emit(&self, out: &mut [u8]) -> Result<(), Error> {
        match self {
            Extension::V1 { .. } => Ok(()),
            Extension::V2 { eid, first } => {
                put(out, ENDPOINT_END, eid.to_bytes());
                first.map_or(Ok(()), |first| first.emit(out))
            }
        }
    }
}

impl Accept {
    /// Reads an Accept for SMC-R. Version 1 is exactly 68 bytes, version 2 at least 108; bytes
    /// between the known part and the trailer are skipped, as in the kernel.
    pub fn parse(bytes: &[u8]) -> Result<Accept, Error> {
        let (header, message) = open_checked(bytes, Kind::Accept)?;
        Ok(Accept {
            endpoint: Endpoint::parse(message)?,
            extension: Extension::parse(&header, message)?,
        })
    }

    /// Length in bytes: 68 in version 1; 108 or on first contact 160 in version 2.
    pub const fn buffer_len(&self) -> usize {
        self.extension.message_bytes()
    }

    /// Writes the message to the front of `out` and returns its length.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, Error> {
        let out = claim(out, self.buffer_len())?;
        self.endpoint.emit(out);
        self.extension.emit(out)?;
        let low_bits = contact_bits(self.extension.contact());
        close(out, Kind::Accept, self.extension.version(), low_bits);
        Ok(out.len())
    }
}

impl Confirm {
    /// Reads a Confirm for SMC-R; lengths as for [`Accept::parse`]. A missing GID list reads as
    /// empty.
    pub fn parse(bytes: &[u8]) -> Result<Confirm, Error> {
        let (header, message) = open_checked(bytes, Kind::Confirm)?;
        let extension = Extension::parse(&header, message)?;
        let gids = match &extension {
            Extension::V2 {
                first: Some(first), ..
            } => parse_gids(message, first)?,
            Extension::V1 { .. } | Extension::V2 { first: None, .. } => ArrayVec::new(),
        };
        Ok(Confirm {
            endpoint: Endpoint::parse(message)?,
            extension,
            gids,
        })
    }

    /// Length in bytes: 68 in version 1; 108 or on first contact `164 + 16 * gids` in version 2.
    pub fn buffer_len(&self) -> usize {
        let list = match self.extension {
            Extension::V2 { first: Some(_), .. } => GID_LIST_BYTES + GID_BYTES * self.gids.len(),
            Extension::V1 { .. } | Extension::V2 { first: None, .. } => 0,
        };
        self.extension.message_bytes() + list
    }

    /// Writes the message to the front of `out` and returns its length.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, Error> {
        let out = claim(out, self.buffer_len())?;
        self.endpoint.emit(out);
        self.extension.emit(out)?;
        if let Extension::V2 { first: Some(_), .. } = self.extension {
            let list_at = FIRST_AT + FIRST_BYTES;
            put(out, list_at, [self.gids.len() as u8]);
            for (index, gid) in self.gids.iter().enumerate() {
                put(out, list_at + GID_LIST_BYTES + GID_BYTES * index, gid.0);
            }
        }
        let low_bits = contact_bits(self.extension.contact());
        close(out, Kind::Confirm, self.extension.version(), low_bits);
        Ok(out.len())
    }
}

/// Opens the frame and checks path and length.
fn open_checked(bytes: &[u8], kind: Kind) -> Result<(Header, &[u8]), Error> {
    let (header, message) = open(bytes, kind)?;
    match header.path_v1() {
        PathCode::R => {}
        path @ (PathCode::D | PathCode::None | PathCode::Both) => {
            return Err(Error::BadField {
                field: Field::Path,
                value: path as u64,
            });
        }
    }
    let declared = message.len();
    match header.version {
        Version::V1 if declared != V1_BYTES => Err(Error::BadLength {
            declared,
            expected: V1_BYTES,
        }),
        Version::V2 if declared < V2_BYTES_MIN => Err(Error::BadLength {
            declared,
            expected: V2_BYTES_MIN,
        }),
        Version::V1 | Version::V2 => Ok((header, message)),
    }
}

/// Length of the first contact extension in a message. Only release 0 has the short form, and only
/// when the message length leaves no room for the long one: with or without a GID list of its own.
fn first_bytes(message: &[u8]) -> Result<usize, Error> {
    if u8_at(message, FIRST_AT + 1)? & 0x0f != 0 {
        return Ok(FIRST_BYTES);
    }
    let short_end = FIRST_AT + FIRST_V20_BYTES;
    let without_list = short_end + TRAILER_BYTES;
    let count = usize::from(u8_at(message, short_end)?);
    let with_list = without_list + GID_LIST_BYTES + GID_BYTES * count;
    let is_short = message.len() == without_list || message.len() == with_list;
    Ok(if is_short {
        FIRST_V20_BYTES
    } else {
        FIRST_BYTES
    })
}

/// Reads the GID list behind the first contact extension, if there is one.
fn parse_gids(
    message: &[u8],
    first: &FirstContact,
) -> Result<ArrayVec<Gid, CONFIRM_GIDS_MAX>, Error> {
    let mut gids = ArrayVec::new();
    let extension_bytes = if first.release == 0 {
        first_bytes(message)?
    } else {
        FIRST_BYTES
    };
    let list_at = FIRST_AT + extension_bytes;
    if message.len() < list_at + GID_LIST_BYTES + TRAILER_BYTES {
        return Ok(gids);
    }
    let count = usize::from(u8_at(message, list_at)?);
    let end = list_at + GID_LIST_BYTES + GID_BYTES * count;
    if message.len() < end + TRAILER_BYTES {
        return Err(Error::BadLength {
            declared: message.len(),
            expected: end + TRAILER_BYTES,
        });
    }
    for index in 0..count.min(CONFIRM_GIDS_MAX) {
        gids.push(Gid(array_at(
            message,
            list_at + GID_LIST_BYTES + GID_BYTES * index,
        )?));
    }
    Ok(gids)
}

impl Endpoint {
    fn parse(message: &[u8]) -> Result<Endpoint, Error> {
        let index = u8_at(message, 45)?;
        let bad_index = Error::BadField {
            field: Field::RmbeIndex,
            value: index.into(),
        };
        let token = be32_at(message, 46)?;
        let bad_token = Error::BadField {
            field: Field::AlertToken,
            value: token.into(),
        };
        let sizes = u8_at(message, 50)?;
        Ok(Endpoint {
            peer_id: PeerId(array_at(message, 8)?),
            gid: Gid(array_at(message, 16)?),
            mac: Mac(array_at(message, 32)?),
            qpn: Qpn::from_bytes(array_at(message, 38)?),
            rkey: Rkey(be32_at(message, 41)?),
            rmbe_index: RmbeIndex::new(index).ok_or(bad_index)?,
            alert_token: AlertToken::new(token).ok_or(bad_token)?,
            rmbe_size: BufferSizeCode::from_high_nibble(sizes),
            mtu: MtuCode::from_nibble(sizes & 0x0f)?,
            credits: u8_at(message, 51)?,
            rmb_address: be64_at(message, 52)?,
            psn: Psn::from_bytes(array_at(message, 61)?),
        })
    }

    fn emit(&self, out: &mut [u8]) {
        put(out, 8, self.peer_id.0);
        put(out, 16, self.gid.0);
        put(out, 32, self.mac.0);
        put(out, 38, self.qpn.to_bytes());
        put(out, 41, self.rkey.0.to_be_bytes());
        put(out, 45, [self.rmbe_index.get()]);
        put(out, 46, self.alert_token.get().to_be_bytes());
        put(
            out,
            50,
            [
                self.rmbe_size.get() << 4 | MtuCode::to_nibble(self.mtu),
                self.credits,
            ],
        );
        put(out, 52, self.rmb_address.to_be_bytes());
        put(out, 61, self.psn.to_bytes());
    }
}

impl FirstContact {
    fn parse(message: &[u8]) -> Result<FirstContact, Error> {
        let declared = message.len();
        let least = FIRST_AT + FIRST_V20_BYTES + TRAILER_BYTES;
        if declared < least {
            return Err(Error::BadLength {
                declared,
                expected: least,
            });
        }
        let length = first_bytes(message)?;
        if declared < FIRST_AT + length + TRAILER_BYTES {
            let expected = FIRST_AT + length + TRAILER_BYTES;
            return Err(Error::BadLength { declared, expected });
        }
        let os_release = u8_at(message, 105)?;
        let mut first = FirstContact {
            attachment: match u8_at(message, FIRST_AT)? & 0x80 {
                0 => Attachment::Indirect,
                _ => Attachment::Direct,
            },
            os: OsType(os_release >> 4),
            release: os_release & 0x0f,
            host_name: array_at(message, 108)?,
            max_conns: 0,
            max_links: 0,
            features: 0,
            options: VendorOptions::NONE,
        };
        // Release 0 knows none of these, and may have the count of its GID list in their place.
        if first.release > 0 {
            first.max_conns = u8_at(message, 140)?;
            first.max_links = u8_at(message, 141)?;
            first.features = be16_at(message, 142)?;
            first.options = VendorOptions(be32_at(message, 144)?);
        }
        Ok(first)
    }

    /// Writes the 52-byte form, which Linux uses for every release.
    fn emit(&self, out: &mut [u8]) -> Result<(), Error> {
        if self.release > 15 {
            return Err(Error::BadField {
                field: Field::Release,
                value: self.release.into(),
            });
        }
        let limits = (self.max_conns, self.max_links, self.features, self.options);
        if self.release == 0 && limits != (0, 0, 0, VendorOptions::NONE) {
            return Err(Error::BadField {
                field: Field::ReleaseLimits,
                value: self.release.into(),
            });
        }
        let direct = match self.attachment {
            Attachment::Direct => 0x80,
            Attachment::Indirect => 0,
        };
        put(
            out,
            FIRST_AT,
            [direct, self.os.nibble()? << 4 | self.release],
        );
        put(out, 108, self.host_name);
        put(out, 140, [self.max_conns, self.max_links]);
        put(out, 142, self.features.to_be_bytes());
        put(out, 144, self.options.0.to_be_bytes());
        Ok(())
    }
}

/// A host name in the form of [`FirstContact::host_name`]: the first 32 bytes, padded with blanks.
pub fn host_name(name: &str) -> [u8; 32] {
    let mut padded = [b' '; 32];
    for (to, from) in padded.iter_mut().zip(name.bytes()) {
        *to = from;
    }
    padded
}
