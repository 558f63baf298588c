//! The ping-pong: one message goes out, the same bytes come back, and the time between is one
//! sample.
//!
//! The other end is a plain echo; it need not know the size of the messages. The stream is given
//! as a [`Channel`], so that the same loop measures every transport.
//!
//! A sample begins before the first byte is handed over and ends when the last byte has come back;
//! it contains one reading of the clock. What came back is compared with what went out, between the
//! samples: an echo that is quick and wrong fails the run.

use std::io::{self, ErrorKind, Read, Write};
use std::time::Duration;

use pollux_control::hist::Samples;
use quanta::Clock;
use thiserror::Error;

/// Round trips before the first sample of each size: they pay for cold caches, page faults and the
/// slow start of a connection.
pub const WARM_UP: u64 = 100;

/// Bytes that the echo holds at most.
const ECHO_BYTES: usize = 64 * 1024;

/// A byte stream that never blocks in `read` and `write`, and says how to wait.
pub trait Channel: Read + Write {
    /// Called when neither reading nor writing got on. Returns when it is worth trying again: at
    /// once where the mode is to poll.
    ///
    /// # Errors
    ///
    /// What the system says; the run ends with it.
    fn wait(&mut self, wish: Wish) -> io::Result<()>;
}

/// What the ping-pong waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Bytes to read.
    Read,
    /// Room to write.
    Write,
    /// Bytes to read, or room to write.
    ReadOrWrite,
}

/// When the samples of one size are enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// After this long; the round trip under way is finished. At least one sample is taken.
    Time(Duration),
    /// After this many samples.
    Iterations(u64),
}

/// Why a run ended early.
#[derive(Debug, Error)]
pub enum LatError {
    /// The stream failed.
    #[error("the connection failed with {bytes}-byte messages after {iterations} samples: {error}")]
    Stream {
        /// Size of the messages.
        bytes: u32,
        /// Samples of this size until then.
        iterations: u64,
        /// What the stream said.
        error: io::Error,
    },
    /// The other end is no echo.
    #[error(
        "the other end is no echo: byte {at} of a {bytes}-byte message came back as {got:#04x} \
         instead of {sent:#04x}"
    )]
    NoEcho {
        /// Size of the messages.
        bytes: u32,
        /// Index of the first byte that differs.
        at: usize,
        /// The byte that was sent.
        sent: u8,
        /// The byte that came back.
        got: u8,
    },
}

/// Sends messages of `bytes` bytes and waits for each to come back, until `limit`.
///
/// # Errors
///
/// [`LatError`]; the samples until then are lost.
pub fn ping(
    channel: &mut impl Channel,
    clock: &Clock,
    bytes: u32,
    limit: Limit,
) -> Result<Samples, LatError> {
    let mut samples = Samples::new();
    let mut message = vec![0; bytes as usize];
    let mut echo = vec![0; bytes as usize];
    let mut tries = 0;
    let mut begun = clock.raw();
    loop {
        fill(&mut message, tries);
        let sent = clock.raw();
        let result = exchange(channel, &message, &mut echo);
        let back = clock.raw();
        let failed = |error| LatError::Stream {
            bytes,
            iterations: samples.count(),
            error,
        };
        result.map_err(failed)?;
        compare(&message, &echo, bytes)?;
        tries += 1;
        if tries <= WARM_UP {
            begun = back;
            continue;
        }
        samples.record(clock.delta_as_nanos(sent, back));
        let is_enough = match limit {
            Limit::Time(time) => u128::from(clock.delta_as_nanos(begun, back)) >= time.as_nanos(),
            Limit::Iterations(iterations) => samples.count() >= iterations,
        };
        if is_enough {
            return Ok(samples);
        }
    }
}

/// Makes each message another one, so that an old echo is not taken for the new one.
fn fill(message: &mut [u8], number: u64) {
    let stamp = number.to_le_bytes();
    for (byte, stamp) in message.iter_mut().zip(stamp) {
        *byte = stamp;
    }
    if let Some(last) = message.last_mut() {
        *last = stamp[0];
    }
}

/// Writes the whole message and reads as many bytes. Reading goes on while there is still to
/// write, so that an echo whose own buffers are full is never waited for in vain.
fn exchange(channel: &mut impl Channel, message: &[u8], echo: &mut [u8]) -> io::Result<()> {
    let (mut written, mut read) = (0, 0);
    while read < echo.len() {
        let mut got_on = false;
        if written < message.len() {
            let bytes = progress(channel.write(&message[written..]), ErrorKind::WriteZero)?;
            written += bytes;
            got_on |= bytes > 0;
        }
        if read < written {
            let bytes = progress(
                channel.read(&mut echo[read..written]),
                ErrorKind::UnexpectedEof,
            )?;
            read += bytes;
            got_on |= bytes > 0;
        }
        if !got_on {
            let is_written = written == message.len();
            channel.wait(if is_written {
                Wish::Read
            } else {
                Wish::ReadOrWrite
            })?;
        }
    }
    Ok(())
}

/// The bytes that a call moved; none where it only has to be tried again. That a call moves
/// nothing without saying why means the end of the stream.
fn progress(result: io::Result<usize>, at_end: ErrorKind) -> io::Result<usize> {
    match result {
        Ok(0) => Err(io::Error::new(
            at_end,
            "the other end has closed the connection",
        )),
        Ok(bytes) => Ok(bytes),
        Err(error) if is_again(&error) => Ok(0),
        Err(error) => Err(error),
    }
}

/// Whether an error only means that the call has to be tried again later.
fn is_again(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

fn compare(message: &[u8], echo: &[u8], bytes: u32) -> Result<(), LatError> {
    if message == echo {
        return Ok(());
    }
    let mut pairs = message.iter().zip(echo).enumerate();
    match pairs.find(|(_, (sent, got))| sent != got) {
        Some((at, (&sent, &got))) => Err(LatError::NoEcho {
            bytes,
            at,
            sent,
            got,
        }),
        None => Ok(()),
    }
}

/// Sends back what comes until the other end has ended its direction.
///
/// # Errors
///
/// What the stream said.
pub fn echo(channel: &mut impl Channel) -> io::Result<()> {
    let mut held = vec![0; ECHO_BYTES];
    loop {
        let count = match channel.read(&mut held) {
            Ok(0) => return Ok(()),
            Ok(count) => count,
            Err(error) if is_again(&error) => {
                channel.wait(Wish::Read)?;
                continue;
            }
            Err(error) => return Err(error),
        };
        let mut sent = 0;
        while sent < count {
            match channel.write(&held[sent..count]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(bytes) => sent += bytes,
                Err(error) if is_again(&error) => channel.wait(Wish::Write)?,
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// An echo in memory that moves at most `step` bytes at a time and holds at most `room`, and
    /// that refuses every third call.
    struct Fake {
        held: VecDeque<u8>,
        step: usize,
        room: usize,
        calls: u64,
        waits: u64,
        /// After this many bytes one comes back wrong.
        wrong_at: Option<u64>,
        /// After this many bytes the stream is at its end.
        end_at: Option<u64>,
        read: u64,
    }

    impl Fake {
        fn new(step: usize, room: usize) -> Fake {
            Fake {
                held: VecDeque::new(),
                step,
                room,
                calls: 0,
                waits: 0,
                wrong_at: None,
                end_at: None,
                read: 0,
            }
        }

        fn is_refused(&mut self) -> bool {
            self.calls += 1;
            self.calls.is_multiple_of(3)
        }
    }

    impl Write for Fake {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let count = bytes.len().min(self.step).min(self.room - self.held.len());
            if self.is_refused() || count == 0 {
                return Err(ErrorKind::WouldBlock.into());
            }
            self.held.extend(&bytes[..count]);
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Read for Fake {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            if self.end_at.is_some_and(|at| self.read >= at) {
                return Ok(0);
            }
            let count = into.len().min(self.step).min(self.held.len());
            if self.is_refused() || count == 0 {
                return Err(ErrorKind::WouldBlock.into());
            }
            for (byte, held) in into.iter_mut().zip(self.held.drain(..count)) {
                *byte = held;
                if self.wrong_at == Some(self.read) {
                    *byte ^= 0xff;
                }
                self.read += 1;
            }
            Ok(count)
        }
    }

    impl Channel for Fake {
        fn wait(&mut self, wish: Wish) -> io::Result<()> {
            assert!(
                wish == Wish::ReadOrWrite || !self.held.is_empty(),
                "nothing would ever come"
            );
            self.waits += 1;
            Ok(())
        }
    }

    #[test]
    fn every_sample_is_counted_and_the_warm_up_is_not() {
        for (step, room, bytes) in [(1, 1, 1), (3, 7, 100), (100, 1000, 64)] {
            let mut fake = Fake::new(step, room);
            let samples = ping(&mut fake, &Clock::new(), bytes, Limit::Iterations(50)).unwrap();
            assert_eq!(samples.count(), 50);
            assert_eq!(fake.read, u64::from(bytes) * (50 + WARM_UP));
        }
    }

    #[test]
    fn a_message_larger_than_all_buffers_gets_through() {
        let mut fake = Fake::new(16, 64);
        let samples = ping(&mut fake, &Clock::new(), 4096, Limit::Iterations(1)).unwrap();
        assert_eq!(samples.count(), 1);
        assert!(fake.waits > 0);
    }

    #[test]
    fn the_time_limit_is_measured_by_the_clock_that_is_handed_in() {
        let (clock, mock) = Clock::mock();
        struct Slow(Fake, std::sync::Arc<quanta::Mock>);
        impl Write for Slow {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.write(bytes)
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        impl Read for Slow {
            fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
                let count = self.0.read(into)?;
                self.1.increment(2_000);
                Ok(count)
            }
        }
        impl Channel for Slow {
            fn wait(&mut self, wish: Wish) -> io::Result<()> {
                self.0.wait(wish)
            }
        }
        let mut slow = Slow(Fake::new(8, 8), mock);
        let limit = Limit::Time(Duration::from_micros(20));
        let summary = ping(&mut slow, &clock, 8, limit).unwrap().summary();
        assert_eq!(summary.iterations, 10);
        assert_eq!((summary.min, summary.max), (Some(1.0), Some(1.0)));
    }

    #[test]
    fn a_wrong_byte_ends_the_run_and_is_named() {
        let mut fake = Fake::new(64, 64);
        fake.wrong_at = Some(16 * 3 + 5);
        match ping(&mut fake, &Clock::new(), 16, Limit::Iterations(50)) {
            Err(LatError::NoEcho {
                bytes: 16,
                at: 5,
                sent,
                got,
            }) => assert_eq!(sent ^ 0xff, got),
            other => panic!("{:?}", other.map(|samples| samples.count())),
        }
    }

    #[test]
    fn an_end_of_the_stream_ends_the_run() {
        let mut fake = Fake::new(64, 64);
        fake.end_at = Some(16 * (WARM_UP + 2));
        match ping(&mut fake, &Clock::new(), 16, Limit::Iterations(50)) {
            Err(LatError::Stream {
                bytes: 16,
                iterations: 2,
                error,
            }) => {
                assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
            }
            other => panic!("{:?}", other.map(|samples| samples.count())),
        }
    }

    #[test]
    fn consecutive_messages_differ_even_at_one_byte() {
        for bytes in [1, 3, 64] {
            let (mut a, mut b) = (vec![0; bytes], vec![0; bytes]);
            fill(&mut a, 7);
            fill(&mut b, 8);
            assert_ne!(a, b);
        }
    }
}
