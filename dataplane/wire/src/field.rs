//! Fields: big-endian integers at offsets, and the small value types they become.
//!
//! A type whose every bit pattern is legal has a public field (`Rkey`, `Gid`, `Mac`, `PeerId`); a
//! type that excludes some has a private one and a constructor that says so (`Qpn`, `AlertToken`,
//! `Ueid` ..).

use core::fmt;
use core::net::Ipv4Addr;
use core::num::{NonZeroU8, NonZeroU32};

use crate::error::{Error, Field};

/// Copies `N` bytes at offset `at`; `TooShort` when they are not all there.
pub(crate) fn array_at<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], Error> {
    let short = Error::TooShort {
        need: at.saturating_add(N),
        got: bytes.len(),
    };
    let rest = bytes.get(at..).ok_or(short)?;
    rest.first_chunk::<N>().copied().ok_or(short)
}

pub(crate) fn u8_at(bytes: &[u8], at: usize) -> Result<u8, Error> {
    array_at::<1>(bytes, at).map(|[byte]| byte)
}

pub(crate) fn be16_at(bytes: &[u8], at: usize) -> Result<u16, Error> {
    array_at(bytes, at).map(u16::from_be_bytes)
}

pub(crate) fn le16_at(bytes: &[u8], at: usize) -> Result<u16, Error> {
    array_at(bytes, at).map(u16::from_le_bytes)
}

pub(crate) fn be32_at(bytes: &[u8], at: usize) -> Result<u32, Error> {
    array_at(bytes, at).map(u32::from_be_bytes)
}

pub(crate) fn be64_at(bytes: &[u8], at: usize) -> Result<u64, Error> {
    array_at(bytes, at).map(u64::from_be_bytes)
}

/// Takes the first `len` bytes of an output buffer and zeroes them, so that reserved fields are
/// zero and nothing behind the message can be written.
pub(crate) fn claim(out: &mut [u8], len: usize) -> Result<&mut [u8], Error> {
    let got = out.len();
    let message = out.get_mut(..len).ok_or(Error::NoRoom { need: len, got })?;
    message.fill(0);
    Ok(message)
}

/// Writes `value` at offset `at` of a buffer made by [`claim`]; offsets come from the layout, so
/// running over the end is our own mistake and panics.
pub(crate) fn put<const N: usize>(out: &mut [u8], at: usize, value: [u8; N]) {
    out[at..at + N].copy_from_slice(&value);
}

/// Largest value of the two 24-bit fields.
const U24_MAX: u32 = 0x00ff_ffff;

/// Queue pair number, 24 bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Qpn(u32);

/// Packet sequence number, 24 bits. In CLC and LLC: the first one its sender will use on a link.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Psn(u32);

macro_rules! u24 {
    ($name:ident) => {
        impl $name {
            /// `None` when `value` needs more than 24 bits.
            pub const fn new(value: u32) -> Option<Self> {
                if value <= U24_MAX {
                    Some(Self(value))
                } else {
                    None
                }
            }

            /// Keeps the low 24 bits, for instance of a random number.
            pub const fn from_low_bits(value: u32) -> Self {
                Self(value & U24_MAX)
            }

            /// The number, at most `0xff_ffff`.
            pub const fn get(self) -> u32 {
                self.0
            }

            /// From three big-endian bytes.
            pub const fn from_bytes([high, middle, low]: [u8; 3]) -> Self {
                Self(u32::from_be_bytes([0, high, middle, low]))
            }

            /// As three big-endian bytes.
            pub const fn to_bytes(self) -> [u8; 3] {
                let [_, high, middle, low] = self.0.to_be_bytes();
                [high, middle, low]
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#08x}", self.0)
            }
        }
    };
}

u24!(Qpn);
u24!(Psn);

/// Remote key of an RMB on one link. Opaque.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Rkey(pub u32);

impl fmt::Display for Rkey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// Number of a link in its group, given out by the server. Linux counts from 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct LinkNumber(pub u8);

impl fmt::Display for LinkNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Address of an RDMA port, 16 bytes. RoCEv2 over IPv4 uses the IPv4-mapped form `::ffff:a.b.c.d`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// All zero: "not filled in".
    pub const ZERO: Gid = Gid([0; 16]);

    /// The IPv4-mapped form of an address.
    pub const fn from_ipv4(address: Ipv4Addr) -> Gid {
        Gid(address.to_ipv6_mapped().octets())
    }

    /// The IPv4 address, if this is the IPv4-mapped form; SMC-Rv2 needs it.
    pub const fn to_ipv4(self) -> Option<Ipv4Addr> {
        core::net::Ipv6Addr::from_octets(self.0).to_ipv4_mapped()
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        core::net::Ipv6Addr::from_octets(self.0).fmt(f)
    }
}

/// Ethernet address of an RDMA port.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// All zero: "not filled in".
    pub const ZERO: Mac = Mac([0; 6]);
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// Identity of one running SMC stack: two instance bytes and a MAC in the RFC's form, opaque to
/// receivers. Zero in the Proposal of a kernel that offers only version 2.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct PeerId(pub [u8; 8]);

impl PeerId {
    /// All zero: "not filled in".
    pub const ZERO: PeerId = PeerId([0; 8]);

    /// The RFC's form: two bytes that differ between instances, then the MAC of a port.
    pub const fn from_instance(instance: u16, mac: Mac) -> PeerId {
        let [i, j] = instance.to_be_bytes();
        let [a, b, c, d, e, f] = mac.0;
        PeerId([i, j, a, b, c, d, e, f])
    }
}

impl fmt::Display for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", u64::from_be_bytes(self.0))
    }
}

/// Number by which the receiver of a CDC finds the connection: given out by that receiver, never
/// zero, unique in its link group.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct AlertToken(NonZeroU32);

impl AlertToken {
    /// `None` for zero.
    pub const fn new(value: u32) -> Option<AlertToken> {
        match NonZeroU32::new(value) {
            Some(value) => Some(AlertToken(value)),
            None => None,
        }
    }

    /// The number, never zero.
    pub const fn get(self) -> u32 {
        self.0.get()
    }
}

impl fmt::Display for AlertToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Position of an RMBE in its RMB, one-based as on the wire. Linux always sends 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RmbeIndex(NonZeroU8);

impl RmbeIndex {
    /// The first, and in Linux the only, RMBE of an RMB.
    pub const FIRST: RmbeIndex = RmbeIndex(NonZeroU8::MIN);

    /// From the one-based wire value; `None` for zero.
    pub const fn new(one_based: u8) -> Option<RmbeIndex> {
        match NonZeroU8::new(one_based) {
            Some(value) => Some(RmbeIndex(value)),
            None => None,
        }
    }

    /// The one-based wire value.
    pub const fn get(self) -> u8 {
        self.0.get()
    }

    /// Where this RMBE begins, in bytes from the RMB's address: `(index - 1) * size`.
    pub const fn offset_bytes(self, size: BufferSizeCode) -> u64 {
        (self.0.get() as u64 - 1) * size.bytes() as u64
    }
}

/// Compressed size of an RMBE: code `c` means `16384 << c` bytes. Linux reads all of 0..=15; RFC
/// 7609 stops at 5.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BufferSizeCode(u8);

impl BufferSizeCode {
    /// 16 KiB.
    pub const MIN: BufferSizeCode = BufferSizeCode(0);
    /// 512 MiB.
    pub const MAX: BufferSizeCode = BufferSizeCode(15);

    /// `None` above 15.
    pub const fn new(code: u8) -> Option<BufferSizeCode> {
        if code <= 15 {
            Some(BufferSizeCode(code))
        } else {
            None
        }
    }

    /// The code in the upper half of a byte.
    pub(crate) const fn from_high_nibble(byte: u8) -> BufferSizeCode {
        BufferSizeCode(byte >> 4)
    }

    /// The code, 0..=15.
    pub const fn get(self) -> u8 {
        self.0
    }

    /// The size in bytes, a power of two from 16 KiB to 512 MiB.
    pub const fn bytes(self) -> u32 {
        16384 << self.0
    }

    /// The code of exactly this size; `None` when no code has it.
    pub const fn from_bytes(bytes: u32) -> Option<BufferSizeCode> {
        match BufferSizeCode::holding(bytes) {
            Some(code) if code.bytes() == bytes => Some(code),
            Some(_) | None => None,
        }
    }

    /// The smallest size of at least `bytes`; `None` above 512 MiB.
    pub const fn holding(bytes: u32) -> Option<BufferSizeCode> {
        let units = bytes.div_ceil(16384);
        if units <= 1 {
            return Some(BufferSizeCode::MIN);
        }
        BufferSizeCode::new((u32::BITS - (units - 1).leading_zeros()) as u8)
    }
}

/// Path MTU as verbs and the wire number it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum MtuCode {
    /// Code 1.
    B256 = 1,
    /// Code 2.
    B512 = 2,
    /// Code 3: what a 1500-byte Ethernet gives.
    B1024 = 3,
    /// Code 4.
    B2048 = 4,
    /// Code 5.
    B4096 = 5,
}

impl MtuCode {
    /// `None` for 0 and above 5.
    pub const fn new(code: u8) -> Option<MtuCode> {
        match code {
            1 => Some(MtuCode::B256),
            2 => Some(MtuCode::B512),
            3 => Some(MtuCode::B1024),
            4 => Some(MtuCode::B2048),
            5 => Some(MtuCode::B4096),
            _ => None,
        }
    }

    /// The code, 1..=5.
    pub const fn get(self) -> u8 {
        self as u8
    }

    /// The MTU in bytes.
    pub const fn bytes(self) -> u32 {
        128 << self.get()
    }

    /// Reads the nibble: 0 is "none given", 1..=5 are codes, the rest is an error.
    pub(crate) fn from_nibble(nibble: u8) -> Result<Option<MtuCode>, Error> {
        match (nibble, MtuCode::new(nibble)) {
            (0, _) => Ok(None),
            (_, Some(code)) => Ok(Some(code)),
            (value, None) => Err(Error::BadField {
                field: Field::Mtu,
                value: value.into(),
            }),
        }
    }

    /// The nibble of an optional code.
    pub(crate) const fn to_nibble(code: Option<MtuCode>) -> u8 {
        match code {
            Some(code) => code.get(),
            None => 0,
        }
    }
}

/// User defined enterprise id: the 32-byte name of the domain that two SMC-Rv2 hosts must share.
///
/// A value read from the wire may hold anything; [`Ueid::new`] makes only legal ones.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ueid([u8; Ueid::BYTES]);

impl Ueid {
    /// Length on the wire, padding included.
    pub const BYTES: usize = 32;

    /// From text, padded with blanks. The rules are the kernel's: 1 to 32 of `A-Z 0-9 . -`, and the
    /// first one is a letter or a digit.
    pub fn new(text: &str) -> Result<Ueid, UeidError> {
        let bytes = text.as_bytes();
        if bytes.len() > Self::BYTES {
            return Err(UeidError::TooLong { bytes: bytes.len() });
        }
        let first = *bytes.first().ok_or(UeidError::Empty)?;
        if !(first.is_ascii_uppercase() || first.is_ascii_digit()) {
            return Err(UeidError::BadFirst { byte: first });
        }
        for (index, &byte) in bytes.iter().enumerate() {
            if !matches!(byte, b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-') {
                return Err(UeidError::BadCharacter { index, byte });
            }
        }
        let mut padded = [b' '; Self::BYTES];
        padded[..bytes.len()].copy_from_slice(bytes);
        Ok(Ueid(padded))
    }

    /// Whatever stands on the wire, unjudged: receivers only compare.
    pub const fn from_bytes(bytes: [u8; Self::BYTES]) -> Ueid {
        Ueid(bytes)
    }

    /// The 32 bytes, padding included.
    pub const fn to_bytes(self) -> [u8; Self::BYTES] {
        self.0
    }

    /// The name without its padding, if it is printable ASCII.
    pub fn as_str(&self) -> Option<&str> {
        printable(&self.0)
    }
}

/// The text in a blank-padded field, if all of it is printable ASCII.
pub(crate) fn printable(padded: &[u8]) -> Option<&str> {
    let text = padded.trim_ascii_end();
    let is_printable = text
        .iter()
        .all(|byte| byte.is_ascii_graphic() || *byte == b' ');
    if is_printable {
        core::str::from_utf8(text).ok()
    } else {
        None
    }
}

/// Why a text is no UEID.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UeidError {
    /// No characters at all.
    Empty,
    /// More than 32 bytes.
    TooLong {
        /// Length of the text in bytes.
        bytes: usize,
    },
    /// The first character is not `A-Z` or `0-9`.
    BadFirst {
        /// The character's first byte.
        byte: u8,
    },
    /// A character other than `A-Z 0-9 . -`.
    BadCharacter {
        /// Where, from zero.
        index: usize,
        /// The character's first byte.
        byte: u8,
    },
}

impl fmt::Display for UeidError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            UeidError::Empty => f.write_str("a UEID needs at least one character"),
            UeidError::TooLong { bytes } => {
                write!(
                    f,
                    "a UEID has at most {} characters, this has {bytes}",
                    Ueid::BYTES
                )
            }
            UeidError::BadFirst { byte } => {
                write!(
                    f,
                    "a UEID begins with A-Z or 0-9, not with byte {byte:#04x}"
                )
            }
            UeidError::BadCharacter { index, byte } => write!(
                f,
                "a UEID holds only A-Z, 0-9, '.' and '-'; byte {index} is {byte:#04x}"
            ),
        }
    }
}

impl core::error::Error for UeidError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffer_sizes_round_up_to_the_next_code() {
        let table = [
            (0, Some(0)),
            (1, Some(0)),
            (16384, Some(0)),
            (16385, Some(1)),
            (32768, Some(1)),
            (32769, Some(2)),
            (65536, Some(2)),
            (524_288, Some(5)),
            (1 << 29, Some(15)),
            ((1 << 29) + 1, None),
            (u32::MAX, None),
        ];
        for (bytes, code) in table {
            assert_eq!(
                BufferSizeCode::holding(bytes).map(BufferSizeCode::get),
                code,
                "{bytes}"
            );
        }
        for code in 0..=15 {
            let code = BufferSizeCode::new(code).unwrap();
            assert_eq!(BufferSizeCode::from_bytes(code.bytes()), Some(code));
            assert_eq!(BufferSizeCode::from_bytes(code.bytes() + 1), None);
        }
        assert_eq!(BufferSizeCode::new(16), None);
    }

    #[test]
    fn mtu_codes_double_from_256() {
        let bytes: [u32; 5] = core::array::from_fn(|i| MtuCode::new(i as u8 + 1).unwrap().bytes());
        assert_eq!(bytes, [256, 512, 1024, 2048, 4096]);
        assert_eq!((MtuCode::new(0), MtuCode::new(6)), (None, None));
        assert_eq!(MtuCode::from_nibble(0), Ok(None));
        assert!(MtuCode::from_nibble(6).is_err());
    }

    #[test]
    fn a_ueid_is_upper_case_digits_dot_and_dash_padded_with_blanks() {
        let ueid = Ueid::new("SMCV2-TEST-EID").unwrap();
        assert_eq!(&ueid.to_bytes()[..14], b"SMCV2-TEST-EID");
        assert!(ueid.to_bytes()[14..].iter().all(|byte| *byte == b' '));
        assert_eq!(ueid.as_str(), Some("SMCV2-TEST-EID"));
        assert!(Ueid::new("0A.B-C").is_ok());
        assert!(Ueid::new("ABCDEFGHIJKLMNOPQRSTUVWXYZ012345").is_ok());
    }

    #[test]
    fn an_illegal_ueid_says_what_is_wrong_with_it() {
        assert_eq!(Ueid::new(""), Err(UeidError::Empty));
        assert_eq!(
            Ueid::new(&"A".repeat(33)),
            Err(UeidError::TooLong { bytes: 33 })
        );
        assert_eq!(Ueid::new(".A"), Err(UeidError::BadFirst { byte: b'.' }));
        assert_eq!(Ueid::new("-A"), Err(UeidError::BadFirst { byte: b'-' }));
        assert_eq!(Ueid::new("a"), Err(UeidError::BadFirst { byte: b'a' }));
        assert_eq!(
            Ueid::new("Aa"),
            Err(UeidError::BadCharacter {
                index: 1,
                byte: b'a'
            })
        );
        assert_eq!(
            Ueid::new("A B"),
            Err(UeidError::BadCharacter {
                index: 1,
                byte: b' '
            })
        );
        assert_eq!(
            Ueid::new("AÄ"),
            Err(UeidError::BadCharacter {
                index: 1,
                byte: 0xc3
            })
        );
    }

    #[test]
    fn twenty_four_bit_fields_refuse_more() {
        assert_eq!(Qpn::new(0x0100_0000), None);
        assert_eq!(Psn::from_low_bits(0xff12_3456).get(), 0x12_3456);
        assert_eq!(Qpn::from_bytes([1, 2, 3]).to_bytes(), [1, 2, 3]);
    }

    #[test]
    fn only_mapped_gids_have_an_ipv4_address() {
        let address = Ipv4Addr::new(192, 168, 77, 1);
        assert_eq!(Gid::from_ipv4(address).to_ipv4(), Some(address));
        assert_eq!(Gid::ZERO.to_ipv4(), None);
    }

    #[test]
    fn an_rmbe_index_is_one_based() {
        assert_eq!(RmbeIndex::new(0), None);
        let size = BufferSizeCode::new(2).unwrap();
        assert_eq!(RmbeIndex::FIRST.offset_bytes(size), 0);
        assert_eq!(RmbeIndex::new(255).unwrap().offset_bytes(size), 254 * 65536);
    }
}
