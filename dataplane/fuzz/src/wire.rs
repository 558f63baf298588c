//! The messages of SMC-R: any bytes in, and what was accepted written and read again.
//!
//! For each message that a parser accepts:
//!
//! 1. it is written into exactly `buffer_len` bytes, and not a byte behind them;
//! 2. it is not written into one byte less;
//! 3. what was written reads as the same value, and is written as the same bytes;
//! 4. what follows the message changes nothing, and what is cut off makes it an error;
//! 5. it prints as one line.
//!
//! Nothing that the kernel ignores is compared: reserved fields are zero when written. Where every
//! bit means something, the written bytes are the ones received.

use std::fmt::{Debug, Display};

use pollux_wire::Error;
use pollux_wire::cdc::{self, CDC_BYTES};
use pollux_wire::clc::{self, EyeCatcher, HEADER_BYTES, Kind, MESSAGE_BYTES_MAX};
use pollux_wire::imm::Immediate;
use pollux_wire::llc::{self, Form, LLC_BYTES};

/// What stands behind a message and must still stand there afterwards.
const GUARD: u8 = 0xa5;
/// Room for the longest message that can be received here.
const ROOM: usize = 2048;

/// Writes a message to the front of a buffer.
type Emit<M> = fn(&M, &mut [u8]) -> Result<usize, Error>;

/// A message that can be written.
struct Written<'a, M> {
    message: &'a M,
    len: usize,
    emit: Emit<M>,
}

impl<M: Debug + PartialEq> Written<'_, M> {
    /// The bytes, after checks 1 and 2.
    fn bytes(&self) -> Vec<u8> {
        let (message, len) = (self.message, self.len);
        assert!(len < ROOM, "{message:?} takes {len} bytes");
        let mut out = [GUARD; ROOM];
        assert_eq!((self.emit)(message, &mut out), Ok(len), "{message:?}");
        assert!(
            out[len..].iter().all(|byte| *byte == GUARD),
            "{message:?} is written over its end"
        );
        let mut short = [GUARD; ROOM];
        let got = len - 1;
        let refused = (self.emit)(message, &mut short[..got]);
        assert_eq!(refused, Err(Error::NoRoom { need: len, got }));
        assert!(short.iter().all(|byte| *byte == GUARD));
        out[..len].to_vec()
    }

    /// Check 3, with `parse` as the reader.
    fn reads_back(&self, parse: impl Fn(&[u8]) -> Result<M, Error>) -> Vec<u8> {
        let bytes = self.bytes();
        let again = parse(&bytes);
        assert_eq!(again.as_ref(), Ok(self.message), "written as {bytes:02x?}");
        if let Ok(again) = &again {
            let second = Written {
                message: again,
                len: self.len,
                emit: self.emit,
            };
            assert_eq!(second.bytes(), bytes);
        }
        bytes
    }
}

/// Check 5.
fn prints_one_line(what: &impl Display) {
    let text = what.to_string();
    assert!(!text.is_empty());
    assert!(!text.contains(|c: char| c.is_control()), "{text:?}");
}

/// A place inside `bytes` that depends on all of them, to cut there.
fn some_place(bytes: &[u8]) -> usize {
    let sum = bytes
        .iter()
        .fold(0_usize, |sum, byte| sum.rotate_left(5) ^ usize::from(*byte));
    sum % bytes.len().max(1)
}

/// CLC: the header, and each of the four messages.
pub(crate) fn clc(bytes: &[u8]) {
    let header = clc::Header::parse(bytes);
    let message = clc::Message::parse(bytes);
    let header = match header {
        Ok(header) => header,
        Err(error) => {
            assert_eq!(message, Err(error), "a message without a header");
            return prints_one_line(&error);
        }
    };
    let length = usize::from(header.length);
    assert!((header.kind.bytes_min()..=MESSAGE_BYTES_MAX).contains(&length));
    assert!(bytes.len() >= HEADER_BYTES);
    only_its_own_kind_reads(header.kind, bytes);
    let message = match message {
        Ok(message) => message,
        Err(error) => return prints_one_line(&error),
    };
    prints_one_line(&message);
    assert!(length <= bytes.len());
    let own = &bytes[..length];
    assert_eq!(clc::Message::parse(own).as_ref(), Ok(&message));
    assert!(clc::Message::parse(&own[..some_place(own)]).is_err());
    let written = Written {
        message: &message,
        len: message.buffer_len(),
        emit: clc::Message::emit,
    };
    let written = written.reads_back(clc::Message::parse);
    let mark = EyeCatcher::SmcR.to_bytes();
    assert!(written.starts_with(&mark) && written.ends_with(&mark));
    assert_eq!(written[4], header.kind as u8);
}

/// A parser of one kind takes what the parser of all takes, and nothing else.
fn only_its_own_kind_reads(kind: Kind, bytes: &[u8]) {
    let any = clc::Message::parse(bytes);
    let one_by_one = [
        (
            Kind::Proposal,
            clc::Proposal::parse(bytes).map(clc::Message::Proposal),
        ),
        (
            Kind::Accept,
            clc::Accept::parse(bytes).map(clc::Message::Accept),
        ),
        (
            Kind::Confirm,
            clc::Confirm::parse(bytes).map(clc::Message::Confirm),
        ),
        (
            Kind::Decline,
            clc::Decline::parse(bytes).map(clc::Message::Decline),
        ),
    ];
    for (of, parsed) in one_by_one {
        if of == kind {
            assert_eq!(parsed, any);
        } else {
            let (got, expected) = (kind as u8, of as u8);
            assert_eq!(parsed, Err(Error::UnexpectedType { got, expected }));
        }
    }
}

/// LLC: both versions.
pub(crate) fn llc(bytes: &[u8]) {
    let mut accepted = 0;
    for form in [Form::V1, Form::V2] {
        match llc::Message::parse(form, bytes) {
            Ok(message) => {
                accepted += usize::from(message.kind() != llc::Kind::AnnounceCredits);
                llc_accepted(form, bytes, &message);
            }
            Err(error) => prints_one_line(&error),
        }
    }
    // The credit announcement alone is the same in both.
    assert!(
        accepted <= 1,
        "{bytes:02x?} means something in both versions"
    );
}

fn llc_accepted(form: Form, bytes: &[u8], message: &llc::Message<'_>) {
    prints_one_line(message);
    let kind = message.kind();
    assert_eq!(kind.type_byte(form), bytes.first().copied());
    let length = match bytes {
        [type_byte, low, high, ..] if type_byte & 0x20 != 0 => {
            usize::from(u16::from_le_bytes([*low, *high]))
        }
        _ => LLC_BYTES,
    };
    let own = &bytes[..length];
    assert_eq!(llc::Message::parse(form, own).as_ref(), Ok(message));
    assert!(llc::Message::parse(form, &own[..some_place(own)]).is_err());
    let len = message.buffer_len(form);
    assert!(
        (LLC_BYTES..=length.max(LLC_BYTES)).contains(&len),
        "{len} of {length}"
    );
    let mut out = [GUARD; ROOM];
    assert_eq!(message.emit(form, &mut out), Ok(len));
    assert!(out[len..].iter().all(|byte| *byte == GUARD));
    let mut short = [GUARD; ROOM];
    let got = len - 1;
    let refused = message.emit(form, &mut short[..got]);
    assert_eq!(refused, Err(Error::NoRoom { need: len, got }));
    let written = &out[..len];
    let again = llc::Message::parse(form, written);
    assert_eq!(again.as_ref(), Ok(message), "written as {written:02x?}");
    let mut second = [GUARD; ROOM];
    assert_eq!(
        again.map(|again| again.emit(form, &mut second)),
        Ok(Ok(len))
    );
    assert_eq!(&second[..len], written);
    let other = match form {
        Form::V1 => Form::V2,
        Form::V2 => Form::V1,
    };
    if kind.type_byte(other).is_none() {
        let refused = Err(Error::NotInForm { kind: kind as u8 });
        assert_eq!(message.emit(other, &mut second), refused);
    }
}

/// CDC, and the words that replace it: the input once as a message and once as words.
pub(crate) fn cdc(bytes: &[u8]) {
    match cdc::Repr::parse(bytes) {
        Ok(message) => {
            prints_one_line(&message);
            let mut out = [GUARD; CDC_BYTES];
            message.emit(&mut out);
            assert_eq!(cdc::Repr::parse(&out), Ok(message));
            // Bytes 8, 9, 16, 17 and those from 27 on are reserved; all others mean something.
            for at in (0..8).chain(10..16).chain(18..27) {
                assert_eq!(out[at], bytes[at], "byte {at}");
            }
            for at in (8..10).chain(16..18).chain(27..CDC_BYTES) {
                assert_eq!(out[at], 0, "byte {at} is reserved");
            }
            assert!(cdc::Repr::parse(&bytes[..CDC_BYTES - 1]).is_err());
        }
        Err(error) => prints_one_line(&error),
    }
    for word in bytes.as_chunks::<4>().0 {
        immediate(u32::from_be_bytes(*word));
    }
}

fn immediate(word: u32) {
    match Immediate::parse(word) {
        Ok(immediate) => {
            prints_one_line(&immediate);
            // The opcode says which bits are reserved.
            let reserved: u32 = match word >> 21 & 7 {
                0 => 0,
                1 => 1 << 17,
                2 => 0x1f << 16,
                _ => 0,
            };
            assert_eq!(immediate.emit(), Ok(word & !reserved), "{word:#010x}");
            assert_eq!(Immediate::parse(word & !reserved), Ok(immediate));
        }
        Err(error) => prints_one_line(&error),
    }
}
