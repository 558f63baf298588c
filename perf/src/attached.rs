//! The ping-pong over an appliance that runs, through the client library: what a program sees.

use std::io::{self, Read, Write};
use std::path::Path;
use std::time::Duration;

use pollux_attach::client::{
    Blocking, Listener, NoDelay, OpenError, Session, SessionOptions, Stream, StreamEvent,
};
use pollux_control::config::PollMode;
use pollux_control::measure;
use pollux_control::rpc::{CALL_TIMEOUT, Client, Method};
use pollux_control::view::LinkView;
use rustix::event::{PollFd, PollFlags, poll};
use serde_json::json;
use thiserror::Error;

use crate::lat::{Channel, Wish};
use crate::table::Transport;

/// How long a program polls before it sleeps in adaptive mode.
const SPIN: Duration = Duration::from_micros(50);
/// How long a sleep lasts at most, should an event be missed.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// The token of the only stream.
const TOKEN: u64 = 1;

/// Why there is no stream.
#[derive(Debug, Error)]
pub enum AttachedError {
    /// The appliance did not take this program.
    #[error("cannot attach: {0}")]
    Open(#[from] OpenError),
    /// There is no connection.
    #[error("cannot connect to {address}: {error}")]
    Connect {
        /// The address as given.
        address: String,
        /// What the library said.
        error: io::Error,
    },
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// The address as given.
        address: String,
        /// What the library said.
        error: io::Error,
    },
    /// The stream could not be set up.
    #[error("cannot set up the stream: {0}")]
    Option(io::Error),
}

/// Joins the appliance at `socket`.
///
/// # Errors
///
/// [`AttachedError::Open`].
pub fn open(socket: &Path, mode: PollMode) -> Result<Session, AttachedError> {
    let spin = match mode {
        PollMode::Busy | PollMode::Adaptive => SPIN,
        PollMode::Interrupt => Duration::ZERO,
    };
    let options = SessionOptions {
        name: "pollux-perf".to_owned(),
        slots: 16,
        spin,
        ..SessionOptions::default()
    };
    Ok(Session::open(socket, &options)?)
}

/// Listens through the appliance.
///
/// # Errors
///
/// [`AttachedError::Listen`].
pub fn listen(session: &Session, address: &str) -> Result<Listener, AttachedError> {
    session
        .listen(address)
        .map_err(|error| AttachedError::Listen {
            address: address.to_owned(),
            error,
        })
}

/// Inline size of the appliance's links, if its control socket lies beside its attach socket and
/// it has a link.
#[must_use]
pub fn inline_bytes(socket: &Path) -> Option<u32> {
    let control = socket.with_file_name("control.sock");
    let mut client = Client::connect(&control, CALL_TIMEOUT).ok()?;
    let links = client
        .call(Method::LinkList, json!({}), CALL_TIMEOUT)
        .ok()?;
    let links: Vec<LinkView> = measure::typed(Method::LinkList, links).ok()?;
    links.iter().map(|link| link.inline.granted_bytes).max()
}

/// One end of a connection.
pub struct AttachedChannel {
    session: Session,
    stream: Stream,
    mode: PollMode,
    events: Vec<StreamEvent>,
}

impl AttachedChannel {
    /// Connects through the appliance.
    ///
    /// # Errors
    ///
    /// [`AttachedError`].
    pub fn connect(
        session: &Session,
        address: &str,
        mode: PollMode,
    ) -> Result<AttachedChannel, AttachedError> {
        let stream = session
            .connect(address)
            .map_err(|error| AttachedError::Connect {
                address: address.to_owned(),
                error,
            })?;
        AttachedChannel::new(session, stream, mode)
    }

    /// Uses a stream that was accepted.
    ///
    /// # Errors
    ///
    /// [`AttachedError::Option`].
    pub fn new(
        session: &Session,
        stream: Stream,
        mode: PollMode,
    ) -> Result<AttachedChannel, AttachedError> {
        stream
            .set_nodelay(NoDelay::On)
            .and_then(|()| stream.set_blocking(Blocking::Never))
            .map_err(AttachedError::Option)?;
        stream.watch(TOKEN);
        Ok(AttachedChannel {
            session: session.clone(),
            stream,
            mode,
            events: Vec::new(),
        })
    }

    /// What carries the bytes.
    #[must_use]
    pub fn transport(&self) -> Transport {
        match self.stream.fallback_reason() {
            None => Transport::SmcR,
            Some(reason) => Transport::Fallback {
                reason: reason.text.clone(),
            },
        }
    }
}

impl Read for AttachedChannel {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.stream.read(into)
    }
}

impl Write for AttachedChannel {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

impl Channel for AttachedChannel {
    fn wait(&mut self, wish: Wish) -> io::Result<()> {
        match self.mode {
            PollMode::Busy => Ok(()),
            PollMode::Adaptive | PollMode::Interrupt if self.stream.is_accelerated() => {
                self.events.clear();
                self.session.wait(&mut self.events, Some(SLEEP_MAX))
            }
            PollMode::Adaptive | PollMode::Interrupt => {
                let flags = match wish {
                    Wish::Read => PollFlags::IN,
                    Wish::Write => PollFlags::OUT,
                    Wish::ReadOrWrite => PollFlags::IN | PollFlags::OUT,
                };
                match poll(&mut [PollFd::new(self.stream.tcp(), flags)], None) {
                    Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
                    Err(error) => Err(error.into()),
                }
            }
        }
    }
}
