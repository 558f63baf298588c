//! The program at the other end: takes connections and sends everything back.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::path::Path;

use anyhow::{Context, Result, bail};
use pollux_attach::client::{
    Armed, Blocking, Listener, NoDelay, Session, SessionOptions, Stream, StreamEvent,
};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::SLOTS;

/// Bytes taken from a stream at once.
const PIECE: usize = 4096;
/// Fruitless looks before a session sleeps.
const LOOKS: u32 = 64;

/// A connection, and what could not be sent back yet.
struct Conn {
    stream: Stream,
    owed: Vec<u8>,
}

/// Attaches to the appliance at `socket`, with a session for each `sessions`, prints the address on
/// which each listens, and serves until it is killed.
///
/// # Errors
///
/// The appliance does not take it, or is gone.
pub fn serve(socket: &Path, sessions: u32) -> Result<()> {
    let mut threads = Vec::new();
    let mut addresses = Vec::new();
    for _ in 0..sessions {
        let session = Session::open(socket, &options("pollux-perf echo"))?;
        let listener = session.listen("127.0.0.1:0")?;
        listener.set_blocking(Blocking::Never);
        addresses.push(listener.local_addr()?);
        threads.push(std::thread::spawn(move || {
            Server::new(session, listener).run()
        }));
    }
    {
        let mut out = io::stdout().lock();
        for address in addresses {
            writeln!(out, "{address}")?;
        }
        out.flush()?;
    }
    for thread in threads {
        match thread.join() {
            Ok(ended) => ended?,
            Err(_) => bail!("a thread of the echo program panicked; this is a defect"),
        }
    }
    Ok(())
}

/// How both programs open their sessions.
pub(super) fn options(name: &str) -> SessionOptions {
    SessionOptions {
        name: name.to_owned(),
        slots: SLOTS,
        ..SessionOptions::default()
    }
}

struct Server {
    session: Session,
    listener: Listener,
    conns: HashMap<u64, Conn>,
    next: u64,
}

impl Server {
    fn new(session: Session, listener: Listener) -> Server {
        Server {
            session,
            listener,
            conns: HashMap::new(),
            next: 0,
        }
    }

    fn run(mut self) -> Result<()> {
        let mut events = Vec::new();
        let mut fruitless = 0;
        loop {
            let accepted = self.accept()?;
            self.session.poll_events(&mut events);
            if accepted || !events.is_empty() {
                fruitless = 0;
            }
            for event in events.drain(..) {
                match event {
                    StreamEvent::Ready { token, .. } => self.answer(token)?,
                    StreamEvent::Upgraded { .. } => {}
                    StreamEvent::Gone => bail!("the appliance is gone"),
                }
            }
            fruitless += 1;
            if fruitless > LOOKS {
                self.rest()?;
            }
        }
    }

    fn accept(&mut self) -> Result<bool> {
        let mut any = false;
        loop {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(any),
                Err(error) => return Err(error).context("cannot accept"),
            };
            any = true;
            stream.set_nodelay(NoDelay::On)?;
            stream.set_blocking(Blocking::Never)?;
            let token = self.next;
            self.next += 1;
            stream.watch(token);
            self.conns.insert(
                token,
                Conn {
                    stream,
                    owed: Vec::new(),
                },
            );
            self.answer(token)?;
        }
    }

    /// Sends back what has come; ends with the peer.
    fn answer(&mut self, token: u64) -> Result<()> {
        let Some(conn) = self.conns.get_mut(&token) else {
            return Ok(());
        };
        let mut bytes = [0; PIECE];
        loop {
            while !conn.owed.is_empty() {
                match conn.stream.write(&conn.owed) {
                    Ok(count) => drop(conn.owed.drain(..count)),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                    Err(error) => return Err(error).context("cannot answer"),
                }
            }
            match conn.stream.read(&mut bytes) {
                Ok(0) => {
                    self.conns.remove(&token);
                    return Ok(());
                }
                Ok(count) => conn.owed.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error).context("cannot read a request"),
            }
        }
    }

    /// Sleeps until something happens.
    fn rest(&self) -> Result<()> {
        if self.session.arm() == Armed::Pending {
            return Ok(());
        }
        let mut fds = [
            PollFd::from_borrowed_fd(self.session.event_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.listener.tcp_fd(), PollFlags::IN),
        ];
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(io::Error::from(error)).context("cannot sleep"),
        }
    }
}
