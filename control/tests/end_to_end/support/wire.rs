//! Plain sockets of clients and targets, and streams of bytes that can be checked.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;

/// Longest single wait of a socket: a test that hangs fails instead, with the place where.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A plain socket of either family.
pub(crate) enum Plain {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Plain {
    /// A connected TCP socket.
    pub(crate) fn tcp(stream: TcpStream) -> Plain {
        stream.set_nodelay(true).expect("option");
        stream.set_read_timeout(Some(TIMEOUT)).expect("option");
        stream.set_write_timeout(Some(TIMEOUT)).expect("option");
        Plain::Tcp(stream)
    }

    /// A connected Unix socket.
    pub(crate) fn unix(stream: UnixStream) -> Plain {
        stream.set_read_timeout(Some(TIMEOUT)).expect("option");
        stream.set_write_timeout(Some(TIMEOUT)).expect("option");
        Plain::Unix(stream)
    }

    /// Connects to a TCP address.
    pub(crate) fn connect(address: SocketAddr) -> Plain {
        Plain::tcp(TcpStream::connect(address).expect("connect"))
    }

    /// Connects to a Unix socket.
    pub(crate) fn connect_unix(path: &Path) -> Plain {
        Plain::unix(UnixStream::connect(path).expect("connect"))
    }

    /// Ends the outgoing direction.
    pub(crate) fn end(&self) {
        let ended = match self {
            Plain::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Plain::Unix(stream) => stream.shutdown(Shutdown::Write),
        };
        ended.expect("shutdown");
    }

    /// Resets a TCP connection. A Unix socket has no such thing.
    pub(crate) fn reset(self) {
        if let Plain::Tcp(stream) = &self {
            set_socket_linger(stream, Some(Duration::ZERO)).expect("option");
        }
        drop(self);
    }
}

impl Read for &Plain {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Plain::Tcp(stream) => (&mut &*stream).read(into),
            Plain::Unix(stream) => (&mut &*stream).read(into),
        }
    }
}

impl Write for &Plain {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Plain::Tcp(stream) => (&mut &*stream).write(from),
            Plain::Unix(stream) => (&mut &*stream).write(from),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Seeded numbers (xorshift64*).
pub(crate) struct Numbers(u64);

impl Numbers {
    pub(crate) fn new(seed: u64) -> Numbers {
        Numbers(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let number = self.next().to_le_bytes();
            chunk.copy_from_slice(&number[..chunk.len()]);
        }
    }
}

/// Bytes that a stream is generated and compared in.
const BLOCK: usize = 64 << 10;
/// Longest single write.
const WRITE_MAX: usize = 300 << 10;

/// Writes the stream of `seed`, `total` bytes long, in writes of 1 byte to 300 KiB.
pub(crate) fn write_stream(mut to: impl Write, seed: u64, total: usize) -> io::Result<()> {
    let mut content = Numbers::new(seed);
    let mut sizes = Numbers::new(seed ^ 0x5157);
    let mut ready: Vec<u8> = Vec::new();
    let mut left = total;
    while left > 0 {
        // As many small ones as large ones: the exponent is what is uniform.
        let magnitude = sizes.next() % 20;
        let size = 1 + (sizes.next() as usize % (1 << magnitude)).min(WRITE_MAX - 1);
        let size = size.min(left);
        while ready.len() < size {
            let from = ready.len();
            ready.resize(from + BLOCK, 0);
            content.fill(&mut ready[from..]);
        }
        to.write_all(&ready[..size])?;
        ready.drain(..size);
        left -= size;
    }
    Ok(())
}

/// Reads to the end of the stream and checks every byte against the stream of `seed`; returns
/// how many there were.
pub(crate) fn read_stream(mut from: impl Read, seed: u64) -> io::Result<usize> {
    let mut content = Numbers::new(seed);
    let mut expected = vec![0; BLOCK];
    let mut got = vec![0; BLOCK];
    let mut total = 0;
    loop {
        let mut filled = 0;
        while filled < BLOCK {
            let count = from.read(&mut got[filled..])?;
            if count == 0 {
                break;
            }
            filled += count;
        }
        content.fill(&mut expected);
        if got[..filled] != expected[..filled] {
            let differs = got.iter().zip(&expected).position(|(a, b)| a != b);
            let at = total + differs.unwrap_or(0);
            panic!("stream {seed} is wrong from byte {at} on");
        }
        total += filled;
        if filled < BLOCK {
            return Ok(total);
        }
    }
}

/// Sends `total` bytes each way at the same time; each direction ends by a half close, and both
/// readers check every byte up to the end.
pub(crate) fn exchange(one: &Plain, other: &Plain, seed: u64, total: usize) {
    std::thread::scope(|scope| {
        for (to, seed) in [(one, seed), (other, seed + 1)] {
            scope.spawn(move || {
                write_stream(to, seed, total).expect("write");
                to.end();
            });
        }
        scope.spawn(move || assert_eq!(read_stream(other, seed).expect("read"), total));
        assert_eq!(read_stream(one, seed + 1).expect("read"), total);
    });
}

/// Reads until an error comes, which must be a reset.
pub(crate) fn expect_reset(mut from: impl Read) {
    let mut bytes = [0; 4096];
    loop {
        match from.read(&mut bytes) {
            Ok(0) => panic!("an orderly end instead of a reset"),
            Ok(_) => {}
            Err(error) => {
                let kind = error.kind();
                assert_eq!(kind, io::ErrorKind::ConnectionReset, "{error}");
                return;
            }
        }
    }
}
