//! The 32-bit immediate of an RDMA write that replaces a CDC message (Anolis extension).
//!
//! ```text
//! opcode  31..24  23..21  20        19       18       17..0
//! 0       token   0       consumer step (21 bits)
//! 1       token   1       blocked   pending  present  reserved (1), consumer step (17 bits)
//! 2       token   2       reserved (5), producer flags (8), connection state flags (8)
//! 6       token   6       credits (8), consumer step (13 bits)
//! 7       token   7       blocked   pending  present  credits (8), consumer step (10 bits)
//! ```
//!
//! The producer cursor moves by the byte count of the write; the consumer cursor by a step since
//! the last message. Use it only after both Accept and Confirm carried
//! [`VendorOptions::WRITE_IMMEDIATE`](crate::clc::VendorOptions::WRITE_IMMEDIATE).

use crate::cdc::{ConnStateFlags, ProducerFlags};
use crate::error::{Error, Field};

/// The three producer flags that opcodes 1 and 7 carry, in bits 20 to 18.
const DATA_FLAGS: ProducerFlags = ProducerFlags::WRITE_BLOCKED
    .union(ProducerFlags::URGENT_PENDING)
    .union(ProducerFlags::URGENT_PRESENT);
/// From bits 7..5 of the producer flags to bits 20..18.
const DATA_FLAGS_SHIFT: u32 = 13;

/// Eight-bit alert token: receivers that agreed to write with immediate give out 1 to 255.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ImmediateToken(core::num::NonZeroU8);

impl ImmediateToken {
    /// `None` for zero.
    pub const fn new(token: u8) -> Option<ImmediateToken> {
        match core::num::NonZeroU8::new(token) {
            Some(token) => Some(ImmediateToken(token)),
            None => None,
        }
    }

    /// The token, never zero.
    pub const fn get(self) -> u8 {
        self.0.get()
    }
}

/// One immediate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Immediate {
    /// Token the receiver gave out.
    pub token: ImmediateToken,
    /// What it says.
    pub news: News,
}

/// What an immediate says. Flags that a form does not carry are cleared at the receiver: all are
/// levels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum News {
    /// Opcode 0.
    Data {
        /// Bytes consumed since the last message, at most [`News::DATA_STEP_MAX`].
        step: u32,
    },
    /// Opcode 1.
    DataFlags {
        /// Write blocked, urgent pending, urgent present; no other.
        flags: ProducerFlags,
        /// Bytes consumed since the last message, at most [`News::DATA_FLAGS_STEP_MAX`].
        step: u32,
    },
    /// Opcode 2: any flag, but no consumer step.
    Control {
        /// As byte 24 of a CDC.
        producer_flags: ProducerFlags,
        /// As byte 25 of a CDC.
        state_flags: ConnStateFlags,
    },
    /// Opcode 6.
    DataCredits {
        /// Receives given back.
        credits: u8,
        /// Bytes consumed since the last message, at most [`News::DATA_CREDITS_STEP_MAX`].
        step: u32,
    },
    /// Opcode 7.
    DataFlagsCredits {
        /// Write blocked, urgent pending, urgent present; no other.
        flags: ProducerFlags,
        /// Receives given back.
        credits: u8,
        /// Bytes consumed since the last message, at most [`News::DATA_FLAGS_CREDITS_STEP_MAX`].
        step: u32,
    },
}

impl News {
    /// Largest consumer step of [`News::Data`], 21 bits.
    pub const DATA_STEP_MAX: u32 = (1 << 21) - 1;
    /// Largest consumer step of [`News::DataFlags`], 17 bits.
    pub const DATA_FLAGS_STEP_MAX: u32 = (1 << 17) - 1;
    /// Largest consumer step of [`News::DataCredits`], 13 bits.
    pub const DATA_CREDITS_STEP_MAX: u32 = (1 << 13) - 1;
    /// Largest consumer step of [`News::DataFlagsCredits`], 10 bits.
    pub const DATA_FLAGS_CREDITS_STEP_MAX: u32 = (1 << 10) - 1;
}

impl Immediate {
    /// Reads the immediate of a completion, in host order after the driver's conversion from big
    /// endian.
    #[inline]
    pub fn parse(word: u32) -> Result<Immediate, Error> {
        let [token, ..] = word.to_be_bytes();
        let token = ImmediateToken::new(token).ok_or(Error::BadField {
            field: Field::ImmediateToken,
            value: 0,
        })?;
        let flags = ProducerFlags((word >> DATA_FLAGS_SHIFT) as u8 & DATA_FLAGS.0);
        let news = match (word >> 21) & 7 {
            0 => News::Data {
                step: word & News::DATA_STEP_MAX,
            },
            1 => News::DataFlags {
                flags,
                step: word & News::DATA_FLAGS_STEP_MAX,
            },
            2 => News::Control {
                producer_flags: ProducerFlags((word >> 8) as u8),
                state_flags: ConnStateFlags(word as u8),
            },
            6 => News::DataCredits {
                credits: (word >> 13) as u8,
                step: word & News::DATA_CREDITS_STEP_MAX,
            },
            7 => News::DataFlagsCredits {
                flags,
                credits: (word >> 10) as u8,
                step: word & News::DATA_FLAGS_CREDITS_STEP_MAX,
            },
            opcode => {
                let field = Field::ImmediateOpcode;
                return Err(Error::BadField {
                    field,
                    value: opcode.into(),
                });
            }
        };
        Ok(Immediate { token, news })
    }

    /// The word to post, in host order. Fails when a step does not fit its form or a flag is not
    /// one it carries.
    #[inline]
    pub fn emit(&self) -> Result<u32, Error> {
        let body = match self.news {
            News::Data { step } => fit(step, News::DATA_STEP_MAX)?,
            News::DataFlags { flags, step } => {
                1 << 21 | data_flags(flags)? | fit(step, News::DATA_FLAGS_STEP_MAX)?
            }
            News::Control {
                producer_flags,
                state_flags,
            } => 2 << 21 | u32::from(producer_flags.0) << 8 | u32::from(state_flags.0),
            News::DataCredits { credits, step } => {
                6 << 21 | u32::from(credits) << 13 | fit(step, News::DATA_CREDITS_STEP_MAX)?
            }
            News::DataFlagsCredits {
                flags,
                credits,
                step,
            } => {
                let step = fit(step, News::DATA_FLAGS_CREDITS_STEP_MAX)?;
                7 << 21 | data_flags(flags)? | u32::from(credits) << 10 | step
            }
        };
        Ok(u32::from(self.token.get()) << 24 | body)
    }
}

fn fit(step: u32, limit: u32) -> Result<u32, Error> {
    if step > limit {
        return Err(Error::BadField {
            field: Field::ImmediateStep,
            value: step.into(),
        });
    }
    Ok(step)
}

fn data_flags(flags: ProducerFlags) -> Result<u32, Error> {
    if !flags.without(DATA_FLAGS).is_empty() {
        return Err(Error::BadField {
            field: Field::ImmediateFlags,
            value: flags.0.into(),
        });
    }
    Ok(u32::from(flags.0) << DATA_FLAGS_SHIFT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(news: News) -> Result<u32, Error> {
        Immediate {
            token: ImmediateToken::new(0xab).unwrap(),
            news,
        }
        .emit()
    }

    #[test]
    fn every_form_has_its_bits_where_the_table_says() {
        let blocked = ProducerFlags::WRITE_BLOCKED;
        let table = [
            (News::Data { step: 0x1f_ffff }, 0xab1f_ffff),
            (
                News::DataFlags {
                    flags: blocked,
                    step: 0x1_ffff,
                },
                0xab31_ffff,
            ),
            (
                News::DataFlags {
                    flags: ProducerFlags::URGENT_PENDING,
                    step: 0,
                },
                0xab28_0000,
            ),
            (
                News::DataFlags {
                    flags: ProducerFlags::URGENT_PRESENT,
                    step: 0,
                },
                0xab24_0000,
            ),
            (
                News::Control {
                    producer_flags: ProducerFlags::CURSOR_UPDATE_REQUESTED,
                    state_flags: ConnStateFlags::CLOSED,
                },
                0xab40_1040,
            ),
            (
                News::DataCredits {
                    credits: 0xff,
                    step: 0,
                },
                0xabdf_e000,
            ),
            (
                News::DataCredits {
                    credits: 1,
                    step: 0x1fff,
                },
                0xabc0_3fff,
            ),
            (
                News::DataFlagsCredits {
                    flags: blocked,
                    credits: 0xff,
                    step: 0,
                },
                0xabf3_fc00,
            ),
            (
                News::DataFlagsCredits {
                    flags: blocked,
                    credits: 0,
                    step: 0x3ff,
                },
                0xabf0_03ff,
            ),
        ];
        for (news, expected) in table {
            assert_eq!(word(news), Ok(expected), "{news:?}");
            assert_eq!(
                Immediate::parse(expected).map(|immediate| immediate.news),
                Ok(news)
            );
        }
    }

    #[test]
    fn steps_and_flags_that_do_not_fit_are_refused() {
        let blocked = ProducerFlags::WRITE_BLOCKED;
        let too_far = |value| {
            Err(Error::BadField {
                field: Field::ImmediateStep,
                value,
            })
        };
        assert_eq!(word(News::Data { step: 1 << 21 }), too_far(1 << 21));
        assert_eq!(
            word(News::DataFlags {
                flags: blocked,
                step: 1 << 17
            }),
            too_far(1 << 17)
        );
        assert_eq!(
            word(News::DataCredits {
                credits: 0,
                step: 1 << 13
            }),
            too_far(1 << 13)
        );
        let news = News::DataFlagsCredits {
            flags: blocked,
            credits: 0,
            step: 1 << 10,
        };
        assert_eq!(word(news), too_far(1 << 10));
        let flags = ProducerFlags::CURSOR_UPDATE_REQUESTED;
        let refused = Err(Error::BadField {
            field: Field::ImmediateFlags,
            value: 0x10,
        });
        assert_eq!(word(News::DataFlags { flags, step: 0 }), refused);
        assert_eq!(
            word(News::DataFlagsCredits {
                flags,
                credits: 0,
                step: 0
            }),
            refused
        );
    }

    #[test]
    fn reserved_opcodes_and_token_zero_are_refused() {
        for opcode in 3..=5 {
            let refused = Err(Error::BadField {
                field: Field::ImmediateOpcode,
                value: opcode,
            });
            assert_eq!(
                Immediate::parse(0x0100_0000 | (opcode as u32) << 21),
                refused
            );
        }
        let refused = Err(Error::BadField {
            field: Field::ImmediateToken,
            value: 0,
        });
        assert_eq!(Immediate::parse(0x0000_0001), refused);
    }
}
