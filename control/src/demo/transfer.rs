//! Random bytes in both directions at once, and whether they arrive.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use pollux_attach::client::Stream;

use crate::exit::{ExitStatus, Fatal};

/// Longest write, in bytes: several rings.
const WRITE_BYTES_MAX: usize = 300 << 10;
/// Bytes read at a time.
const READ_BYTES: usize = 64 << 10;
/// How long an end may wait for the other.
const PATIENCE: Duration = Duration::from_secs(20);

/// What went one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sum {
    /// How many bytes.
    pub(super) bytes: u64,
    /// Digest of all of them, FNV-1a with 64 bits.
    pub(super) digest: u64,
}

impl Sum {
    fn new() -> Sum {
        Sum {
            bytes: 0,
            digest: 0xcbf2_9ce4_8422_2325,
        }
    }

    fn add(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        for byte in bytes {
            self.digest = multiply(self.digest ^ u64::from(*byte), 0x0100_0000_01b3);
        }
    }
}

/// The low half of a product.
fn multiply(a: u64, b: u64) -> u64 {
    (u128::from(a) * u128::from(b)) as u64
}

/// Pseudo-random numbers (xorshift64*), the same for the same seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        multiply(self.0, 0x2545_f491_4f6c_dd1d)
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let word = self.next().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }
}

/// The outcome of [`both_ways`].
pub(super) struct Transfer {
    /// From the connecting side to the accepting one.
    pub(super) there: Sum,
    /// The other way.
    pub(super) back: Sum,
    /// How long it took.
    pub(super) elapsed: Duration,
}

/// Sends `bytes` random bytes from each end to the other at once, in writes of random sizes, ends
/// both directions, and compares what left with what arrived.
///
/// # Errors
/// Bytes were lost or changed, or a stream failed.
pub(super) fn both_ways(near: &Stream, far: &Stream, bytes: u64) -> Result<Transfer, Fatal> {
    for stream in [near, far] {
        stream
            .set_read_timeout(Some(PATIENCE))
            .and_then(|()| stream.set_write_timeout(Some(PATIENCE)))
            .map_err(|error| Fatal::os(format!("demo: cannot set a time limit: {error}")))?;
    }
    let started = Instant::now();
    let (sent, arrived) = std::thread::scope(|scope| {
        let writers = [(near, 1), (far, 2)]
            .map(|(stream, seed)| scope.spawn(move || send(stream, bytes, Random(seed))));
        let readers = [far, near].map(|stream| scope.spawn(move || receive(stream)));
        let outcome = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|_| {
                Err("a thread stopped before its time; this is a defect".to_string())
            })
        };
        (writers.map(outcome), readers.map(outcome))
    });
    let elapsed = started.elapsed();
    let failed = |text: String| Fatal::new(ExitStatus::Failure, format!("demo: {text}"));
    let [there_sent, back_sent] = sent;
    let [there, back] = arrived;
    let check = |way: &str, sent: Result<Sum, String>, arrived: Result<Sum, String>| {
        let (sent, arrived) = (sent.map_err(failed)?, arrived.map_err(failed)?);
        if sent == arrived {
            return Ok(sent);
        }
        Err(failed(format!(
            "{way}: {} bytes with digest {:016x} were sent, but {} bytes with digest {:016x} \
             arrived",
            sent.bytes, sent.digest, arrived.bytes, arrived.digest
        )))
    };
    Ok(Transfer {
        there: check("a to b", there_sent, there)?,
        back: check("b to a", back_sent, back)?,
        elapsed,
    })
}

fn send(mut stream: &Stream, bytes: u64, mut random: Random) -> Result<Sum, String> {
    let mut sum = Sum::new();
    let mut piece = vec![0; WRITE_BYTES_MAX];
    while sum.bytes < bytes {
        let left = usize::try_from(bytes - sum.bytes).unwrap_or(usize::MAX);
        // As many short writes as long ones.
        let longest = 1_u64 << (random.next() % 19);
        let len = (1 + random.next() % longest) as usize;
        let piece = &mut piece[..len.min(left).min(WRITE_BYTES_MAX)];
        random.fill(piece);
        stream
            .write_all(piece)
            .map_err(|error| format!("a write failed after {} bytes: {error}", sum.bytes))?;
        sum.add(piece);
    }
    stream
        .shutdown(Shutdown::Write)
        .map_err(|error| format!("cannot end a direction: {error}"))?;
    Ok(sum)
}

fn receive(mut stream: &Stream) -> Result<Sum, String> {
    let mut sum = Sum::new();
    let mut piece = vec![0; READ_BYTES];
    loop {
        match stream.read(&mut piece) {
            Ok(0) => return Ok(sum),
            Ok(count) => sum.add(&piece[..count]),
            Err(error) => {
                return Err(format!("a read failed after {} bytes: {error}", sum.bytes));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_depends_on_the_bytes_and_not_on_the_pieces() {
        let mut bytes = [0; 100];
        Random(7).fill(&mut bytes);
        let (mut whole, mut parts, mut other) = (Sum::new(), Sum::new(), Sum::new());
        whole.add(&bytes);
        parts.add(&bytes[..33]);
        parts.add(&bytes[33..]);
        assert_eq!(whole, parts);
        bytes[50] ^= 1;
        other.add(&bytes);
        assert_ne!(whole, other);
    }

    #[test]
    fn the_digest_is_the_known_one() {
        let mut sum = Sum::new();
        sum.add(b"foobar");
        assert_eq!(sum.digest, 0x8594_4171_f739_67e8);
    }
}
