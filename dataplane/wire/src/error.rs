//! What can be wrong with bytes: one small value, with the offending number in it.

use core::fmt;

/// Why bytes could not be read as a message, or a message could not be written as bytes.
///
/// Every variant carries the value that was wrong. None of them says what to do with the
/// connection: that is decided by the rules (`pollux-proto`). A CLC error ends the handshake (the
/// kernel answers `EPROTO` and does not fall back); an LLC or CDC error means that the message is
/// ignored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Error {
    /// The input ends before the field that was to be read.
    TooShort {
        /// Bytes that must be there.
        need: usize,
        /// Bytes that are there.
        got: usize,
    },
    /// The output buffer is shorter than the message's `buffer_len`. Nothing was written.
    NoRoom {
        /// Bytes the message takes.
        need: usize,
        /// Bytes the caller offered.
        got: usize,
    },
    /// A CLC message begins with neither EBCDIC "SMCR" nor EBCDIC "SMCD".
    BadEyeCatcher([u8; 4]),
    /// A CLC message ends with neither EBCDIC "SMCR" nor EBCDIC "SMCD".
    BadTrailer([u8; 4]),
    /// The length a message declares is not the one its content adds up to.
    BadLength {
        /// The length that stands in the message.
        declared: usize,
        /// The length it should be (for a range: the limit that was missed).
        expected: usize,
    },
    /// The type byte is not in the table of the negotiated version. LLC receivers ignore these.
    UnknownType(u8),
    /// A known type byte, but not that of the message which the caller asked for.
    UnexpectedType {
        /// The type byte in the message.
        got: u8,
        /// The type byte of the message asked for.
        expected: u8,
    },
    /// One field holds a value that is not legal.
    BadField {
        /// Which field.
        field: Field,
        /// The value found.
        value: u64,
    },
    /// This LLC message does not exist in the asked-for version, so it cannot be written.
    NotInForm {
        /// The LLC type number, 1 to 10.
        kind: u8,
    },
}

/// Names of the fields that [`Error::BadField`] can point to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Field {
    /// CLC header, byte 7, high nibble: 0 is no version.
    Version,
    /// CLC header, byte 7: a path that this message cannot carry or that is not SMC-R.
    Path,
    /// Proposal, byte 38: where the IP area begins.
    IpAreaOffset,
    /// Proposal, IP area: number of IPv6 prefixes, at most 8.
    Ipv6PrefixCount,
    /// Proposal, byte 50: where the version 2 extension begins.
    V2ExtensionOffset,
    /// Proposal, version 2 extension: number of UEIDs, at most 8.
    UeidCount,
    /// Proposal, version 2 extension: number of ISM GIDs, at most 8.
    IsmGidCount,
    /// Proposal, version 2 extension: where the SMC-D version 2 extension begins.
    SmcdExtensionOffset,
    /// A release number above 15, which does not fit its nibble.
    Release,
    /// Accept and Confirm: limits, features or vendor options beside release 0, which has none.
    ReleaseLimits,
    /// An operating system type above 15, which does not fit its nibble.
    OsType,
    /// Accept and Confirm, byte 45: the RMBE index is one-based.
    RmbeIndex,
    /// Accept and Confirm, byte 46: an alert token is never zero.
    AlertToken,
    /// A path MTU code above 5.
    Mtu,
    /// CONFIRM RKEY CONT: number of rkeys.
    RkeyCount,
    /// REQUEST ADD LINK: number of GIDs, at most 8.
    GidCount,
    /// ADD LINK: number of rtokens, limited by the message length.
    RtokenCount,
    /// ADD LINK, byte 2: a reject reason above 15, which does not fit its nibble.
    RejectReason,
    /// Write with immediate: an opcode that is reserved.
    ImmediateOpcode,
    /// Write with immediate: the token is eight bits and never zero.
    ImmediateToken,
    /// Write with immediate: a consumer step too large for its field.
    ImmediateStep,
    /// Write with immediate: producer flags that this opcode cannot carry.
    ImmediateFlags,
}

impl Field {
    /// The field's name in plain words.
    pub const fn name(self) -> &'static str {
        match self {
            Field::Version => "version",
            Field::Path => "path",
            Field::IpAreaOffset => "IP area offset",
            Field::Ipv6PrefixCount => "IPv6 prefix count",
            Field::V2ExtensionOffset => "version 2 extension offset",
            Field::UeidCount => "UEID count",
            Field::IsmGidCount => "ISM GID count",
            Field::SmcdExtensionOffset => "SMC-D extension offset",
            Field::Release => "release",
            Field::ReleaseLimits => "limits, features or options of release 0, the release being",
            Field::OsType => "operating system type",
            Field::RmbeIndex => "RMBE index",
            Field::AlertToken => "alert token",
            Field::Mtu => "MTU code",
            Field::RkeyCount => "rkey count",
            Field::GidCount => "GID count",
            Field::RtokenCount => "rtoken count",
            Field::RejectReason => "reject reason",
            Field::ImmediateOpcode => "immediate opcode",
            Field::ImmediateToken => "immediate token",
            Field::ImmediateStep => "immediate consumer step",
            Field::ImmediateFlags => "immediate producer flags",
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Error::TooShort { need, got } => {
                write!(f, "message too short: {need} bytes needed, {got} present")
            }
            Error::NoRoom { need, got } => {
                write!(
                    f,
                    "output buffer too small: {need} bytes needed, {got} offered"
                )
            }
            Error::BadEyeCatcher(bytes) => {
                write!(
                    f,
                    "not a CLC message: it begins with {:08x}",
                    u32::from_be_bytes(bytes)
                )
            }
            Error::BadTrailer(bytes) => {
                write!(
                    f,
                    "CLC message ends with {:08x} in place of its eye catcher",
                    { u32::from_be_bytes(bytes) }
                )
            }
            Error::BadLength { declared, expected } => {
                write!(
                    f,
                    "message declares {declared} bytes, its content asks for {expected}"
                )
            }
            Error::UnknownType(byte) => write!(f, "unknown message type {byte:#04x}"),
            Error::UnexpectedType { got, expected } => {
                write!(f, "message type {got:#04x} in place of {expected:#04x}")
            }
            Error::BadField { field, value } => {
                write!(f, "illegal {}: {value} ({value:#x})", field.name())
            }
            Error::NotInForm { kind } => {
                write!(
                    f,
                    "LLC message type {kind} does not exist in the negotiated version"
                )
            }
        }
    }
}

impl core::error::Error for Error {}
