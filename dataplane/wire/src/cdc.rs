//! Connection Data Control: the 44-byte message that moves cursors (RFC 7609 section 4.3 and
//! appendix A.4).
//!
//! ```text
//!  0 type 0xfe   1 length 44   2 sequence (16)          4 alert token (32)
//!  8 reserved   10 producer wrap (16)                  12 producer count (32)
//! 16 reserved   18 consumer wrap (16)                  20 consumer count (32)
//! 24 producer flags   25 connection state flags   26 credits   27 reserved up to 44
//! ```
//!
//! This is the hot path: both directions work on one array of known length, without a branch per
//! field.

use crate::error::Error;

/// Length of every CDC message.
pub const CDC_BYTES: usize = 44;
/// Type byte of every CDC message.
pub const CDC_TYPE: u8 = 0xfe;

/// A position in a ring: how many laps were made, and where in the ring, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RingCursor {
    /// Laps, wrapping at 16 bits.
    pub wrap: u16,
    /// Bytes from the start of the ring.
    pub count: u32,
}

macro_rules! flag_byte {
    ($name:ident) => {
        impl $name {
            /// No flag.
            pub const EMPTY: $name = $name(0);

            /// Whether every flag of `flags` is set here.
            #[inline]
            pub const fn contains(self, flags: $name) -> bool {
                self.0 & flags.0 == flags.0
            }

            /// The flags set in either.
            #[inline]
            pub const fn union(self, flags: $name) -> $name {
                $name(self.0 | flags.0)
            }

            /// These flags, those of `flags` cleared.
            #[inline]
            pub const fn without(self, flags: $name) -> $name {
                $name(self.0 & !flags.0)
            }

            /// Whether no flag is set.
            #[inline]
            pub const fn is_empty(self) -> bool {
                self.0 == 0
            }
        }
    };
}

/// Byte 24: what the sender of data says about its side of the stream. Levels, not edges.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ProducerFlags(pub u8);

flag_byte!(ProducerFlags);

impl ProducerFlags {
    /// The sender has at least as much data as window: report consumption early.
    pub const WRITE_BLOCKED: ProducerFlags = ProducerFlags(0x80);
    /// Urgent data will come and is not yet in the RMBE.
    pub const URGENT_PENDING: ProducerFlags = ProducerFlags(0x40);
    /// The last byte before the producer cursor is the urgent byte.
    pub const URGENT_PRESENT: ProducerFlags = ProducerFlags(0x20);
    /// Send a CDC with the current consumer cursor.
    pub const CURSOR_UPDATE_REQUESTED: ProducerFlags = ProducerFlags(0x10);
    /// First message after moving to another link; carries the last confirmed sequence number.
    pub const FAILOVER_VALIDATION: ProducerFlags = ProducerFlags(0x08);
}

/// Byte 25: how far the sender has come in ending the connection. Levels: they accumulate and never
/// clear.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ConnStateFlags(pub u8);

flag_byte!(ConnStateFlags);

impl ConnStateFlags {
    /// Half close: no data after the producer cursor.
    pub const SENDING_DONE: ConnStateFlags = ConnStateFlags(0x80);
    /// The sender closed normally.
    pub const CLOSED: ConnStateFlags = ConnStateFlags(0x40);
    /// Reset.
    pub const ABNORMAL_CLOSE: ConnStateFlags = ConnStateFlags(0x20);
}

/// The values of one CDC message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Repr {
    /// Sequence number of the connection: first is 1, wraps from `0xffff` to 0.
    pub seq: u16,
    /// The alert token which the receiver of this message gave out.
    pub token: u32,
    /// Next byte the sender will write, in the receiver's RMBE.
    pub producer: RingCursor,
    /// Next byte the sender will read, in its own RMBE.
    pub consumer: RingCursor,
    /// Byte 24.
    pub producer_flags: ProducerFlags,
    /// Byte 25.
    pub state_flags: ConnStateFlags,
    /// Byte 26: receives given back to the receiver of this message. Zero unless credits were
    /// agreed.
    pub credits: u8,
}

impl Repr {
    /// Reads a received message by the kernel's rules: type `0xfe`, length byte 44, reserved bytes
    /// ignored.
    ///
    /// Fails with `TooShort` below 44 bytes, `UnknownType` when it is no CDC, and `BadLength`; the
    /// receiver ignores such a message. Bytes behind the 44th are not looked at.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Repr, Error> {
        let short = Error::TooShort {
            need: CDC_BYTES,
            got: bytes.len(),
        };
        let b: &[u8; CDC_BYTES] = bytes.first_chunk().ok_or(short)?;
        if b[0] != CDC_TYPE {
            return Err(Error::UnknownType(b[0]));
        }
        if b[1] as usize != CDC_BYTES {
            return Err(Error::BadLength {
                declared: b[1].into(),
                expected: CDC_BYTES,
            });
        }
        Ok(Repr {
            seq: u16::from_be_bytes([b[2], b[3]]),
            token: u32::from_be_bytes([b[4], b[5], b[6], b[7]]),
            producer: RingCursor {
                wrap: u16::from_be_bytes([b[10], b[11]]),
                count: u32::from_be_bytes([b[12], b[13], b[14], b[15]]),
            },
            consumer: RingCursor {
                wrap: u16::from_be_bytes([b[18], b[19]]),
                count: u32::from_be_bytes([b[20], b[21], b[22], b[23]]),
            },
            producer_flags: ProducerFlags(b[24]),
            state_flags: ConnStateFlags(b[25]),
            credits: b[26],
        })
    }

    /// Writes all 44 bytes, reserved ones as zero.
    #[inline]
    pub fn emit(&self, out: &mut [u8; CDC_BYTES]) {
        let [s0, s1] = self.seq.to_be_bytes();
        let [t0, t1, t2, t3] = self.token.to_be_bytes();
        let [pw0, pw1] = self.producer.wrap.to_be_bytes();
        let [p0, p1, p2, p3] = self.producer.count.to_be_bytes();
        let [cw0, cw1] = self.consumer.wrap.to_be_bytes();
        let [c0, c1, c2, c3] = self.consumer.count.to_be_bytes();
        let head = [
            CDC_TYPE,
            CDC_BYTES as u8,
            s0,
            s1,
            t0,
            t1,
            t2,
            t3,
            0,
            0,
            pw0,
            pw1,
            p0,
            p1,
            p2,
            p3,
            0,
            0,
            cw0,
            cw1,
            c0,
            c1,
            c2,
            c3,
            self.producer_flags.0,
            self.state_flags.0,
            self.credits,
        ];
        *out = [0; CDC_BYTES];
        out[..head.len()].copy_from_slice(&head);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_combine_and_clear() {
        let flags = ConnStateFlags::SENDING_DONE.union(ConnStateFlags::CLOSED);
        assert_eq!(flags.0, 0xc0);
        assert!(flags.contains(ConnStateFlags::CLOSED));
        assert!(!flags.contains(ConnStateFlags::ABNORMAL_CLOSE.union(ConnStateFlags::CLOSED)));
        assert_eq!(
            flags.without(ConnStateFlags::CLOSED),
            ConnStateFlags::SENDING_DONE
        );
        assert!(flags.without(flags).is_empty());
        assert_eq!(ProducerFlags::default(), ProducerFlags::EMPTY);
    }

    #[test]
    fn the_kernel_receive_rules_refuse_short_foreign_and_mislabelled_messages() {
        let mut bytes = [0; CDC_BYTES];
        assert_eq!(
            Repr::parse(&bytes[..43]),
            Err(Error::TooShort { need: 44, got: 43 })
        );
        assert_eq!(Repr::parse(&bytes), Err(Error::UnknownType(0)));
        bytes[0] = CDC_TYPE;
        assert_eq!(
            Repr::parse(&bytes),
            Err(Error::BadLength {
                declared: 0,
                expected: 44
            })
        );
        bytes[1] = 44;
        assert!(Repr::parse(&bytes).is_ok());
    }

    #[test]
    fn reserved_bytes_are_ignored_when_read_and_zero_when_written() {
        let mut bytes = [0xff; CDC_BYTES + 4];
        bytes[0] = CDC_TYPE;
        bytes[1] = 44;
        let repr = Repr::parse(&bytes).unwrap();
        let mut out = [0xaa; CDC_BYTES];
        repr.emit(&mut out);
        assert_eq!((out[8], out[9], out[16], out[17]), (0, 0, 0, 0));
        assert!(out[27..].iter().all(|byte| *byte == 0));
        assert_eq!(Repr::parse(&out), Ok(repr));
    }
}
