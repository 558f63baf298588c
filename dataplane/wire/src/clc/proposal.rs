//! Proposal: what the client can do (RFC 7609 appendix A.2.1 and the version 2 layout of Linux).
//!
//! ```text
//!   0 header   8 peer id   16 GID   32 MAC   38 IP area offset (from 40)
//!  40 block: ISM GID (8), CHID (2), 50 v2 extension offset (from 52), 52 OUI (3), 55 reserved,
//!     56 vendor options (4), 60 reserved (20)
//!   . IP area: subnet (4), length (1), reserved (2), count n (1), n entries of 17
//!   . v2 extension: counts e and g, 3 release, 6 SMC-D offset (from 8), 8 GID, 24 limits,
//!     40 e UEIDs of 32
//!   . SMC-D v2 extension: SEID (32), reserved (16), g entries of 10
//!   . trailer
//! ```
//!
//! Three forms exist: the RFC's (version 1, no block), Linux before version 2 (version 1, with the
//! block), and version 2 (always with the block). The kernel checks lengths and offsets exactly, so
//! this file does.

use arrayvec::ArrayVec;

use super::header::{Kind, PathCode, TRAILER_BYTES, Version, close, open};
use super::vendor::{Oui, VendorOptions};
use crate::error::{Error, Field};
use crate::field::{
    Gid, Mac, PeerId, Ueid, array_at, be16_at, be32_at, be64_at, claim, put, u8_at,
};

/// Most IPv6 prefixes in an IP area.
pub const IPV6_PREFIXES_MAX: usize = 8;
/// Most UEIDs in a Proposal.
pub const UEIDS_MAX: usize = 8;
/// Most ISM GIDs in a Proposal.
pub const ISM_GIDS_MAX: usize = 8;

const BLOCK_AT: usize = 40;
const BLOCK_BYTES: usize = 40;
/// The v2 extension offset is counted from here.
const V2_BASE: usize = 52;
const IP_AREA_BYTES: usize = 8;
const IPV6_PREFIX_BYTES: usize = 17;
const V2_BYTES: usize = 40;
/// The SMC-D v2 extension offset is counted from here, relative to the v2 extension.
const ISM_V2_BASE: usize = 8;
const ISM_V2_BYTES: usize = 48;
const ISM_GID_BYTES: usize = 10;

/// The values of a Proposal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Proposal {
    /// Sender's identity. Zero from a kernel that offers only version 2.
    pub peer_id: PeerId,
    /// Sender's RoCEv1 GID. Zero likewise.
    pub gid: Gid,
    /// Sender's MAC. Zero likewise, but a kernel server on a real adapter addresses its packets to
    /// it.
    pub mac: Mac,
    /// What is offered.
    pub form: Form,
}

/// The three layouts and what each can offer.
#[expect(
    clippy::large_enum_variant,
    reason = "no allocator here, and one lives per handshake"
)]
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Form {
    /// A version 1 header, with or without the block.
    V1 {
        /// What is offered, and where the client is.
        offer: V1Offer,
        /// The ISM fields of the block, if the message has the block.
        ism: Option<IsmV1>,
    },
    /// A version 2 header. This is what Linux sends even if it offers only version 1.
    V2 {
        /// What is offered for version 1.
        v1: Option<V1Offer>,
        /// The ISM fields of the block. Keep them zero: the kernel reads byte 47 as a prefix count.
        ism: IsmV1,
        /// Who defines `options`.
        oui: Oui,
        /// Vendor options.
        options: VendorOptions,
        /// What is offered for version 2.
        v2: Option<V2Offer>,
    },
}

/// The version 1 offer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct V1Offer {
    /// Kinds of device.
    pub paths: V1Paths,
    /// Subnets of the client.
    pub ip: IpArea,
}

/// Kinds of device in a version 1 offer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum V1Paths {
    /// SMC-R.
    R,
    /// SMC-D.
    D,
    /// Either.
    Both,
}

/// Subnets of the client's outgoing interface; version 1 needs a match.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct IpArea {
    /// IPv4 address AND mask; zero for IPv6.
    pub ipv4_subnet: [u8; 4],
    /// IPv4 prefix length in bits.
    pub ipv4_length: u8,
    /// IPv6 prefixes; none means "treat as IPv4".
    pub ipv6: ArrayVec<Ipv6Prefix, IPV6_PREFIXES_MAX>,
}

/// One IPv6 prefix.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ipv6Prefix {
    /// The prefix, low bits zero.
    pub prefix: [u8; 16],
    /// Its length in bits.
    pub length: u8,
}

/// ISM device of the client, version 1. Zero when SMC-D is not offered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IsmV1 {
    /// GID of the device.
    pub gid: u64,
    /// Its channel id.
    pub chid: u16,
}

/// The version 2 offer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct V2Offer {
    /// Kinds of device.
    pub paths: V2Paths,
    /// Names of the domains the client is in, at most 8; SMC-R needs one that the server has too.
    pub ueids: ArrayVec<Ueid, UEIDS_MAX>,
    /// Release of version 2: 1 is SMC-Rv2.1. Four bits.
    pub release: u8,
    /// Whether the SEID counts.
    pub seid: SeidUse,
    /// Client's RoCEv2 GID, IPv4-mapped.
    pub gid: Gid,
    /// Most connections per link group; legal 16..=255. Means something from release 1 on.
    pub max_conns: u8,
    /// Most links per link group; legal 1..=2. Means something from release 1 on.
    pub max_links: u8,
    /// Feature mask; Linux sets 1 (emulated ISM), which means nothing to SMC-R.
    pub features: u16,
}

/// Kinds of device in a version 2 offer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum V2Paths {
    /// SMC-R.
    R,
    /// SMC-D.
    D(IsmV2),
    /// Either.
    Both(IsmV2),
}

/// The SEID-valid bit of the version 2 extension.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SeidUse {
    /// Bit clear; always so outside IBM Z.
    Unused,
    /// Bit set.
    Valid,
}

/// The SMC-D version 2 extension; carried, not interpreted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IsmV2 {
    /// System EID.
    pub seid: [u8; 32],
    /// ISM devices.
    pub gids: ArrayVec<IsmGid, ISM_GIDS_MAX>,
}

/// One ISM device in the SMC-D version 2 extension.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IsmGid {
    /// GID of the device.
    pub gid: u64,
    /// Its channel id.
    pub chid: u16,
}

impl Proposal {
    /// Reads a Proposal of any form. Counts, offsets and the total length must agree exactly.
    pub fn parse(bytes: &[u8]) -> Result<Proposal, Error> {
        let (header, message) = open(bytes, Kind::Proposal)?;
        let (form, end) = match header.version {
            Version::V1 => parse_v1(message, header.path_v1())?,
            Version::V2 => parse_v2(message, header.path_v1(), header.path_v2())?,
        };
        let expected = end + TRAILER_BYTES;
        if message.len() != expected {
            return Err(Error::BadLength {
                declared: message.len(),
                expected,
            });
        }
        Ok(Proposal {
            peer_id: PeerId(array_at(message, 8)?),
            gid: Gid(array_at(message, 16)?),
            mac: Mac(array_at(message, 32)?),
            form,
        })
    }

    /// The version in the header.
    pub const fn version(&self) -> Version {
        match self.form {
            Form::V1 { .. } => Version::V1,
            Form::V2 { .. } => Version::V2,
        }
    }

    /// Length in bytes: 52 for the plain RFC message, at most 652.
    pub fn buffer_len(&self) -> usize {
        let body = match &self.form {
            Form::V1 { offer, ism } => {
                let block = if ism.is_some() { BLOCK_BYTES } else { 0 };
                BLOCK_AT + block + offer.ip.buffer_len()
            }
            Form::V2 { v1, v2, .. } => {
                let ip = v1.as_ref().map_or(0, |offer| offer.ip.buffer_len());
                let extension = v2.as_ref().map_or(0, V2Offer::buffer_len);
                BLOCK_AT + BLOCK_BYTES + ip + extension
            }
        };
        body + TRAILER_BYTES
    }

    /// Writes the message to the front of `out` and returns its length.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, Error> {
        let out = claim(out, self.buffer_len())?;
        put(out, 8, self.peer_id.0);
        put(out, 16, self.gid.0);
        put(out, 32, self.mac.0);
        let low_bits = match &self.form {
            Form::V1 { offer, ism } => {
                let ip_at = if let Some(ism) = ism {
                    put(out, 38, (BLOCK_BYTES as u16).to_be_bytes());
                    ism.emit(out);
                    BLOCK_AT + BLOCK_BYTES
                } else {
                    BLOCK_AT
                };
                offer.ip.emit(out, ip_at);
                offer.paths.code() as u8
            }
            Form::V2 {
                v1,
                ism,
                oui,
                options,
                v2,
            } => {
                ism.emit(out);
                put(out, 52, oui.0);
                put(out, 56, options.0.to_be_bytes());
                let path_v1 = emit_v1_offer(v1.as_ref(), out);
                let path_v2 = emit_v2_offer(v1.as_ref(), v2.as_ref(), out)?;
                (path_v2 as u8) << 2 | path_v1 as u8
            }
        };
        close(out, Kind::Proposal, self.version(), low_bits);
        Ok(out.len())
    }
}

/// The version 1 part of a version 2 header.
fn emit_v1_offer(offer: Option<&V1Offer>, out: &mut [u8]) -> PathCode {
    let Some(offer) = offer else {
        return PathCode::None;
    };
    put(out, 38, (BLOCK_BYTES as u16).to_be_bytes());
    offer.ip.emit(out, BLOCK_AT + BLOCK_BYTES);
    offer.paths.code()
}

/// The version 2 part, behind whatever the version 1 part takes.
fn emit_v2_offer(
    v1: Option<&V1Offer>,
    offer: Option<&V2Offer>,
    out: &mut [u8],
) -> Result<PathCode, Error> {
    let Some(offer) = offer else {
        return Ok(PathCode::None);
    };
    let at = BLOCK_AT + BLOCK_BYTES + v1.map_or(0, |offer| offer.ip.buffer_len());
    put(out, 50, ((at - V2_BASE) as u16).to_be_bytes());
    offer.emit(out, at)?;
    Ok(offer.paths.code())
}

/// A version 1 header: the IP area at offset 40, or at 80 behind the block. Returns where the body
/// ends.
fn parse_v1(message: &[u8], path: PathCode) -> Result<(Form, usize), Error> {
    let paths = V1Paths::new(path).ok_or(Error::BadField {
        field: Field::Path,
        value: path as u64,
    })?;
    let offset = usize::from(be16_at(message, 38)?);
    let ism = match offset {
        0 => None,
        BLOCK_BYTES => Some(IsmV1::parse(message)?),
        _ => {
            return Err(Error::BadField {
                field: Field::IpAreaOffset,
                value: offset as u64,
            });
        }
    };
    let (ip, end) = IpArea::parse(message, BLOCK_AT + offset)?;
    Ok((
        Form::V1 {
            offer: V1Offer { paths, ip },
            ism,
        },
        end,
    ))
}

/// A version 2 header. Returns where the body ends.
fn parse_v2(message: &[u8], path_v1: PathCode, path_v2: PathCode) -> Result<(Form, usize), Error> {
    let mut end = BLOCK_AT + BLOCK_BYTES;
    let offset = be16_at(message, 38)?;
    let bad_offset = Error::BadField {
        field: Field::IpAreaOffset,
        value: offset.into(),
    };
    // Without a version 1 offer nothing stands at the offset, but the kernel still limits it.
    if usize::from(offset) > BLOCK_BYTES {
        return Err(bad_offset);
    }
    let v1 = match V1Paths::new(path_v1) {
        Some(_) if usize::from(offset) != BLOCK_BYTES => return Err(bad_offset),
        Some(paths) => {
            let (ip, ip_end) = IpArea::parse(message, end)?;
            end = ip_end;
            Some(V1Offer { paths, ip })
        }
        None => None,
    };
    let v2 = if path_v2 == PathCode::None {
        None
    } else {
        let offset = be16_at(message, 50)?;
        if usize::from(offset) != end - V2_BASE {
            let field = Field::V2ExtensionOffset;
            return Err(Error::BadField {
                field,
                value: offset.into(),
            });
        }
        let (offer, offer_end) = V2Offer::parse(message, end, path_v2)?;
        end = offer_end;
        Some(offer)
    };
    let form = Form::V2 {
        v1,
        ism: IsmV1::parse(message)?,
        oui: Oui(array_at(message, 52)?),
        options: VendorOptions(be32_at(message, 56)?),
        v2,
    };
    Ok((form, end))
}

impl V1Paths {
    const fn new(code: PathCode) -> Option<V1Paths> {
        match code {
            PathCode::R => Some(V1Paths::R),
            PathCode::D => Some(V1Paths::D),
            PathCode::Both => Some(V1Paths::Both),
            PathCode::None => None,
        }
    }

    const fn code(self) -> PathCode {
        match self {
            V1Paths::R => PathCode::R,
            V1Paths::D => PathCode::D,
            V1Paths::Both => PathCode::Both,
        }
    }

    /// Whether SMC-R is among them.
    pub const fn has_r(self) -> bool {
        match self {
            V1Paths::R | V1Paths::Both => true,
            V1Paths::D => false,
        }
    }
}

impl IsmV1 {
    fn parse(message: &[u8]) -> Result<IsmV1, Error> {
        Ok(IsmV1 {
            gid: be64_at(message, 40)?,
            chid: be16_at(message, 48)?,
        })
    }

    fn emit(self, out: &mut [u8]) {
        put(out, 40, self.gid.to_be_bytes());
        put(out, 48, self.chid.to_be_bytes());
    }
}

impl IpArea {
    /// Length in bytes: 8, and 17 more for each IPv6 prefix.
    pub fn buffer_len(&self) -> usize {
        IP_AREA_BYTES + IPV6_PREFIX_BYTES * self.ipv6.len()
    }

    fn parse(message: &[u8], at: usize) -> Result<(IpArea, usize), Error> {
        let count = u8_at(message, at + 7)?;
        if usize::from(count) > IPV6_PREFIXES_MAX {
            return Err(Error::BadField {
                field: Field::Ipv6PrefixCount,
                value: count.into(),
            });
        }
        let mut ipv6 = ArrayVec::new();
        let mut end = at + IP_AREA_BYTES;
        for _ in 0..count {
            let length = u8_at(message, end + 16)?;
            ipv6.push(Ipv6Prefix {
                prefix: array_at(message, end)?,
                length,
            });
            end += IPV6_PREFIX_BYTES;
        }
        let ipv4_length = u8_at(message, at + 4)?;
        Ok((
            IpArea {
                ipv4_subnet: array_at(message, at)?,
                ipv4_length,
                ipv6,
            },
            end,
        ))
    }

    fn emit(&self, out: &mut [u8], at: usize) {
        put(out, at, self.ipv4_subnet);
        put(out, at + 4, [self.ipv4_length]);
        put(out, at + 7, [self.ipv6.len() as u8]);
        for (index, entry) in self.ipv6.iter().enumerate() {
            let entry_at = at + IP_AREA_BYTES + IPV6_PREFIX_BYTES * index;
            put(out, entry_at, entry.prefix);
            put(out, entry_at + 16, [entry.length]);
        }
    }
}

impl V2Paths {
    const fn code(&self) -> PathCode {
        match self {
            V2Paths::R => PathCode::R,
            V2Paths::D(_) => PathCode::D,
            V2Paths::Both(_) => PathCode::Both,
        }
    }

    /// Whether SMC-R is among them.
    pub const fn has_r(&self) -> bool {
        match self {
            V2Paths::R | V2Paths::Both(_) => true,
            V2Paths::D(_) => false,
        }
    }

    const fn ism(&self) -> Option<&IsmV2> {
        match self {
            V2Paths::R => None,
            V2Paths::D(ism) | V2Paths::Both(ism) => Some(ism),
        }
    }
}

impl V2Offer {
    /// Length in bytes: 40, 32 for each UEID, and the SMC-D extension if there is one.
    pub fn buffer_len(&self) -> usize {
        let ism = self.paths.ism().map_or(0, IsmV2::buffer_len);
        V2_BYTES + Ueid::BYTES * self.ueids.len() + ism
    }

    fn parse(message: &[u8], at: usize, path: PathCode) -> Result<(V2Offer, usize), Error> {
        let count = u8_at(message, at)?;
        if usize::from(count) > UEIDS_MAX {
            return Err(Error::BadField {
                field: Field::UeidCount,
                value: count.into(),
            });
        }
        let mut ueids = ArrayVec::new();
        let mut end = at + V2_BYTES;
        for _ in 0..count {
            ueids.push(Ueid::from_bytes(array_at(message, end)?));
            end += Ueid::BYTES;
        }
        let paths = match path {
            PathCode::R => V2Paths::R,
            PathCode::D => V2Paths::D(IsmV2::parse(message, at, &mut end)?),
            PathCode::Both => V2Paths::Both(IsmV2::parse(message, at, &mut end)?),
            PathCode::None => {
                return Err(Error::BadField {
                    field: Field::Path,
                    value: path as u64,
                });
            }
        };
        let release = u8_at(message, at + 3)?;
        let offer = V2Offer {
            paths,
            ueids,
            release: release >> 4,
            seid: if release & 1 == 1 {
                SeidUse::Valid
            } else {
                SeidUse::Unused
            },
            gid: Gid(array_at(message, at + 8)?),
            max_conns: u8_at(message, at + 24)?,
            max_links: u8_at(message, at + 25)?,
            features: be16_at(message, at + 26)?,
        };
        Ok((offer, end))
    }

    fn emit(&self, out: &mut [u8], at: usize) -> Result<(), Error> {
        if self.release > 15 {
            return Err(Error::BadField {
                field: Field::Release,
                value: self.release.into(),
            });
        }
        let seid = match self.seid {
            SeidUse::Unused => 0,
            SeidUse::Valid => 1,
        };
        put(out, at, [self.ueids.len() as u8]);
        put(out, at + 3, [self.release << 4 | seid]);
        put(out, at + 8, self.gid.0);
        put(out, at + 24, [self.max_conns, self.max_links]);
        put(out, at + 26, self.features.to_be_bytes());
        let mut end = at + V2_BYTES;
        for ueid in &self.ueids {
            put(out, end, ueid.to_bytes());
            end += Ueid::BYTES;
        }
        if let Some(ism) = self.paths.ism() {
            put(out, at + 1, [ism.gids.len() as u8]);
            put(out, at + 6, ((end - at - ISM_V2_BASE) as u16).to_be_bytes());
            ism.emit(out, end);
        }
        Ok(())
    }
}

impl IsmV2 {
    /// Length in bytes: 48, and 10 for each device.
    pub fn buffer_len(&self) -> usize {
        ISM_V2_BYTES + ISM_GID_BYTES * self.gids.len()
    }

    /// Reads the extension that stands at `end` and belongs to the v2 extension at `v2_at`; moves
    /// `end` behind it.
    fn parse(message: &[u8], v2_at: usize, end: &mut usize) -> Result<IsmV2, Error> {
        let count = u8_at(message, v2_at + 1)?;
        if usize::from(count) > ISM_GIDS_MAX {
            return Err(Error::BadField {
                field: Field::IsmGidCount,
                value: count.into(),
            });
        }
        let offset = be16_at(message, v2_at + 6)?;
        if usize::from(offset) != *end - v2_at - ISM_V2_BASE {
            let field = Field::SmcdExtensionOffset;
            return Err(Error::BadField {
                field,
                value: offset.into(),
            });
        }
        let seid = array_at(message, *end)?;
        *end += ISM_V2_BYTES;
        let mut gids = ArrayVec::new();
        for _ in 0..count {
            let gid = be64_at(message, *end)?;
            gids.push(IsmGid {
                gid,
                chid: be16_at(message, *end + 8)?,
            });
            *end += ISM_GID_BYTES;
        }
        Ok(IsmV2 { seid, gids })
    }

    fn emit(&self, out: &mut [u8], at: usize) {
        put(out, at, self.seid);
        for (index, entry) in self.gids.iter().enumerate() {
            let entry_at = at + ISM_V2_BYTES + ISM_GID_BYTES * index;
            put(out, entry_at, entry.gid.to_be_bytes());
            put(out, entry_at + 8, entry.chid.to_be_bytes());
        }
    }
}
