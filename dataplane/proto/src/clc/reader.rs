//! Takes one CLC message from the TCP stream, and not a byte more.

use pollux_wire::Error;
use pollux_wire::clc::{HEADER_BYTES, Header, MESSAGE_BYTES_MAX};

/// Whether a message is complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// More bytes are wanted.
    More,
    /// [`Reader::message`] has it.
    Complete,
}

/// Assembles one message: first its eight-byte header, then as many bytes as the header says.
///
/// The owner reads from the stream into [`Reader::space`], however little arrives, and reports it
/// with [`Reader::filled`]. What follows the message stays in the stream, where it may be
/// application data.
#[derive(Clone, Debug)]
pub struct Reader {
    bytes: [u8; MESSAGE_BYTES_MAX],
    filled: usize,
    goal: usize,
}

impl Default for Reader {
    fn default() -> Reader {
        Reader::new()
    }
}

impl Reader {
    /// Waits for a header.
    #[must_use]
    pub const fn new() -> Reader {
        Reader {
            bytes: [0; MESSAGE_BYTES_MAX],
            filled: 0,
            goal: HEADER_BYTES,
        }
    }

    /// Where the next bytes of the stream go. Empty exactly when the message is complete.
    pub fn space(&mut self) -> &mut [u8] {
        &mut self.bytes[self.filled..self.goal]
    }

    /// The first `count` bytes of [`Reader::space`] were filled.
    ///
    /// Fails as soon as the header shows that this is no CLC message or one of an impossible
    /// length; the handshake has then failed, and the reader is of no further use.
    ///
    /// # Panics
    ///
    /// If `count` exceeds the space.
    pub fn filled(&mut self, count: usize) -> Result<Progress, Error> {
        assert!(
            count <= self.goal - self.filled,
            "{count} bytes filled beyond the space"
        );
        self.filled += count;
        if self.filled < self.goal {
            return Ok(Progress::More);
        }
        if self.goal == HEADER_BYTES {
            // At least 28 and at most the size of `bytes`, by the header's own checks.
            self.goal = Header::parse(&self.bytes[..HEADER_BYTES])?.length.into();
            return Ok(Progress::More);
        }
        Ok(Progress::Complete)
    }

    /// The complete message.
    #[must_use]
    pub fn message(&self) -> Option<&[u8]> {
        let is_complete = self.goal > HEADER_BYTES && self.filled == self.goal;
        is_complete.then(|| &self.bytes[..self.goal])
    }

    /// Whether the stream ended inside a message rather than between two.
    #[must_use]
    pub const fn is_inside(&self) -> bool {
        self.filled > 0 && !(self.goal > HEADER_BYTES && self.filled == self.goal)
    }

    /// Waits for the next header.
    pub fn restart(&mut self) {
        self.filled = 0;
        self.goal = HEADER_BYTES;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DECLINE: [u8; 28] = [
        0xe2, 0xd4, 0xc3, 0xd9, 4, 0, 28, 0x10, 1, 2, 3, 4, 5, 6, 7, 8, 3, 3, 0, 0, 0, 0, 0, 0,
        0xe2, 0xd4, 0xc3, 0xd9,
    ];

    /// Feeds the reader from a stream in pieces of at most `piece` bytes; returns what is left.
    fn feed<'a>(reader: &mut Reader, mut stream: &'a [u8], piece: usize) -> &'a [u8] {
        loop {
            let space = reader.space();
            let count = space.len().min(piece).min(stream.len());
            space[..count].copy_from_slice(&stream[..count]);
            stream = &stream[count..];
            if reader.filled(count) == Ok(Progress::Complete) {
                return stream;
            }
        }
    }

    #[test]
    fn a_message_is_taken_and_what_follows_stays_in_the_stream() {
        let mut stream = DECLINE.to_vec();
        stream.extend(b"application data");
        for piece in 1..=stream.len() {
            let mut reader = Reader::new();
            assert_eq!(feed(&mut reader, &stream, piece), b"application data");
            assert_eq!(reader.message(), Some(&DECLINE[..]));
            assert!(reader.space().is_empty() && !reader.is_inside());
            reader.restart();
            assert_eq!(reader.message(), None);
            assert_eq!(reader.space().len(), HEADER_BYTES);
        }
    }

    #[test]
    fn foreign_bytes_are_refused_at_the_eighth() {
        let mut reader = Reader::new();
        reader.space().copy_from_slice(b"GET / HT");
        assert_eq!(reader.filled(7), Ok(Progress::More));
        assert!(reader.is_inside());
        assert_eq!(reader.filled(1), Err(Error::BadEyeCatcher(*b"GET ")));
    }

    #[test]
    fn a_length_beyond_every_message_is_refused_before_it_is_read() {
        let mut reader = Reader::new();
        let mut header = DECLINE;
        header[5] = 0xff;
        reader.space().copy_from_slice(&header[..8]);
        let refused = Err(Error::BadLength {
            declared: 0xff1c,
            expected: MESSAGE_BYTES_MAX,
        });
        assert_eq!(reader.filled(8), refused);
        assert_eq!(reader.message(), None);
    }
}
