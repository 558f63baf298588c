//! The ping-pong over plain TCP: what a stream costs when nothing accelerates it, and the echo
//! that answers at the other end.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};

use rustix::event::{PollFd, PollFlags, poll};
use thiserror::Error;

use crate::lat::{Channel, Wish};
use crate::table::Mode;

/// How an end over TCP waits. (A worker has a third way, to poll for a while.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcpWait {
    /// Tries again at once, for as long as it takes.
    Busy,
    /// Sleeps in `poll(2)` until the socket is ready.
    Interrupt,
}

impl From<TcpWait> for Mode {
    fn from(wait: TcpWait) -> Mode {
        match wait {
            TcpWait::Busy => Mode::Busy,
            TcpWait::Interrupt => Mode::Interrupt,
        }
    }
}

/// One end of a connection.
pub struct TcpChannel {
    stream: TcpStream,
    wait: TcpWait,
}

/// Why there is no connection.
#[derive(Debug, Error)]
pub enum TcpError {
    /// The text is no address.
    #[error("`{text}` is no address: {error}; write HOST:PORT, such as 192.0.2.7:7000")]
    Address {
        /// The text.
        text: String,
        /// What is wrong with it.
        error: io::Error,
    },
    /// Nobody could be reached.
    #[error(
        "cannot connect to {text}: {error}; is `pollux-perf lat --tcp --listen {text}` running there?"
    )]
    Connect {
        /// The address as given.
        text: String,
        /// What the system said about the last of its addresses.
        error: io::Error,
    },
    /// The address cannot be listened on.
    #[error("cannot listen on {text}: {error}")]
    Listen {
        /// The address as given.
        text: String,
        /// What the system said.
        error: io::Error,
    },
    /// The socket could not be set up.
    #[error("cannot set {option} of the socket: {error}")]
    Option {
        /// What was to be set.
        option: &'static str,
        /// What the system said.
        error: io::Error,
    },
}

impl TcpChannel {
    /// Connects to `address`, a `HOST:PORT`.
    ///
    /// # Errors
    ///
    /// [`TcpError`].
    pub fn connect(address: &str, wait: TcpWait) -> Result<TcpChannel, TcpError> {
        let addresses = resolve(address)?;
        let stream =
            TcpStream::connect(addresses.as_slice()).map_err(|error| TcpError::Connect {
                text: address.to_owned(),
                error,
            })?;
        TcpChannel::new(stream, wait)
    }

    fn new(stream: TcpStream, wait: TcpWait) -> Result<TcpChannel, TcpError> {
        // Without this a small message would wait for the acknowledgement of the one before.
        stream.set_nodelay(true).map_err(|error| TcpError::Option {
            option: "TCP_NODELAY",
            error,
        })?;
        stream
            .set_nonblocking(true)
            .map_err(|error| TcpError::Option {
                option: "O_NONBLOCK",
                error,
            })?;
        Ok(TcpChannel { stream, wait })
    }
}

impl Read for TcpChannel {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.stream.read(into)
    }
}

impl Write for TcpChannel {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

impl Channel for TcpChannel {
    fn wait(&mut self, wish: Wish) -> io::Result<()> {
        if self.wait == TcpWait::Busy {
            return Ok(());
        }
        let flags = match wish {
            Wish::Read => PollFlags::IN,
            Wish::Write => PollFlags::OUT,
            Wish::ReadOrWrite => PollFlags::IN | PollFlags::OUT,
        };
        match poll(&mut [PollFd::new(&self.stream, flags)], None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Listens on `address`, a `HOST:PORT`; port 0 lets the system choose.
///
/// # Errors
///
/// [`TcpError`].
pub fn listen(address: &str) -> Result<TcpListener, TcpError> {
    let addresses = resolve(address)?;
    TcpListener::bind(addresses.as_slice()).map_err(|error| TcpError::Listen {
        text: address.to_owned(),
        error,
    })
}

pub(crate) fn resolve(address: &str) -> Result<Vec<SocketAddr>, TcpError> {
    let addresses = address.to_socket_addrs();
    addresses
        .map(Iterator::collect)
        .map_err(|error| TcpError::Address {
            text: address.to_owned(),
            error,
        })
}

/// Sends back what comes over one connection until its end.
///
/// # Errors
///
/// [`TcpError`] where the socket cannot be set up, else what the socket said, inside of it.
pub fn echo(stream: TcpStream, wait: TcpWait) -> io::Result<()> {
    let mut channel = TcpChannel::new(stream, wait).map_err(io::Error::other)?;
    crate::lat::echo(&mut channel)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use quanta::Clock;

    use super::*;
    use crate::lat::{Limit, ping};

    fn round_trips(wait: TcpWait) {
        let listener = listen("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let other = thread::spawn(move || echo(listener.accept().unwrap().0, wait));
        let mut channel = TcpChannel::connect(&address, wait).unwrap();
        for bytes in [1, 100_000] {
            let samples = ping(&mut channel, &Clock::new(), bytes, Limit::Iterations(5)).unwrap();
            assert_eq!(samples.count(), 5);
        }
        drop(channel);
        other.join().unwrap().unwrap();
    }

    #[test]
    fn messages_come_back_to_an_end_that_sleeps() {
        round_trips(TcpWait::Interrupt);
    }

    #[test]
    fn messages_come_back_to_an_end_that_polls() {
        round_trips(TcpWait::Busy);
    }

    #[test]
    fn an_address_without_a_port_is_refused_with_the_form() {
        let error = TcpChannel::connect("nowhere", TcpWait::Busy)
            .err()
            .unwrap()
            .to_string();
        assert!(
            error.contains("`nowhere`") && error.contains("HOST:PORT"),
            "{error}"
        );
    }

    #[test]
    fn a_refused_connection_names_the_address() {
        // The port is taken and given back, so that nobody listens on it.
        let address = listen("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .to_string();
        let error = TcpChannel::connect(&address, TcpWait::Busy)
            .err()
            .unwrap()
            .to_string();
        assert!(error.contains(&address), "{error}");
    }

    #[test]
    fn an_address_in_use_is_named() {
        let first = listen("127.0.0.1:0").unwrap();
        let address = first.local_addr().unwrap().to_string();
        let error = listen(&address).unwrap_err().to_string();
        assert!(error.contains(&address), "{error}");
    }
}
