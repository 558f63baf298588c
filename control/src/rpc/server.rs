//! The sockets of the JSON-RPC server, on the control thread's reactor.
//!
//! Nothing blocks: what cannot be written waits in the client's outbox. A client whose outbox is
//! full, or which waits for many answers, is not read from until that changes, so a client bounds
//! its own memory here. A client that is gone costs nothing, whatever it asked for.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;

use pollux_ring::neighbour;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketFlags, accept_with, recv, send};
use serde_json::Value;

use super::RpcError;
use super::dispatch::{ClientId, Dispatch, Methods, Ticket};
use super::frame::{Frame, Frames, REQUEST_BYTES_MAX};
use crate::reactor::{Event, Interest, Reactor};
use crate::spare::Spare;

/// Clients connected at a time.
pub const CLIENTS_MAX: usize = 32;

/// Bytes that wait for a slow client before it is not read from any more.
const OUTBOX_BYTES_MAX: usize = 4 << 20;

/// Answers that a client may wait for at a time.
const WAITING_MAX: usize = 16;

/// Bytes taken from a client for one event; the others have their turn then.
const READ_BYTES: usize = 64 << 10;

/// Requests of a client carried out for one event; the others have their turn then.
const REQUESTS_MAX: usize = 16;

/// Clients accepted for one event.
const ACCEPTS_MAX: usize = 16;

/// The server: a listening socket and its clients.
#[derive(Debug)]
pub struct RpcServer {
    listener: OwnedFd,
    /// Token of the listener; client number n has the n-th after it.
    first_token: u64,
    clients: BTreeMap<u64, Client>,
    dispatch: Dispatch,
    /// Clients accepted so far.
    accepted: u64,
    /// Events handled so far, by which clients are told apart that were silent for long.
    events: u64,
    spare: Spare,
}

#[derive(Debug)]
struct Client {
    id: ClientId,
    socket: OwnedFd,
    frames: Frames,
    outbox: Vec<u8>,
    /// The event at which it was last heard of.
    heard_at: u64,
    /// It has sent everything that it will send.
    input_over: bool,
    interest: Interest,
}

/// Whether a client stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Stays,
    Gone,
}

impl RpcServer {
    /// A server on a listening, non-blocking stream socket. Uses the tokens from `first_token` up
    /// to `first_token + CLIENTS_MAX`.
    #[must_use]
    pub fn new(listener: OwnedFd, first_token: u64) -> RpcServer {
        RpcServer {
            listener,
            first_token,
            clients: BTreeMap::new(),
            dispatch: Dispatch::default(),
            accepted: 0,
            events: 0,
            spare: Spare::new(),
        }
    }

    /// Begins to accept clients.
    ///
    /// # Errors
    /// The reactor's refusal.
    pub fn start(&mut self, reactor: &Reactor) -> io::Result<()> {
        reactor.add(&self.listener, Interest::Read, self.first_token)
    }

    /// Ends accepting; clients that are connected stay.
    ///
    /// # Errors
    /// The reactor's refusal.
    pub fn stop_accepting(&mut self, reactor: &Reactor) -> io::Result<()> {
        reactor.remove(&self.listener)
    }

    /// Whether an event with this token is the server's.
    #[must_use]
    pub fn owns(&self, token: u64) -> bool {
        (self.first_token..=self.first_token + CLIENTS_MAX as u64).contains(&token)
    }

    /// Clients connected now.
    #[must_use]
    pub fn client_count(&self) -> usize {
        self.clients.len()
    }

    /// Handles an event that the server owns.
    pub fn handle(&mut self, reactor: &Reactor, event: &Event, methods: &mut dyn Methods) {
        if event.token == self.first_token {
            self.accept(reactor);
            return;
        }
        let token = event.token;
        self.events += 1;
        let Some(client) = self.clients.get_mut(&token) else {
            // An event of the same wait that closed the client.
            return;
        };
        client.heard_at = self.events;
        let mut fate = Fate::Stays;
        if event.readable {
            fate = client.read();
        }
        if fate == Fate::Stays {
            fate = client.carry_out(&mut self.dispatch, methods);
        }
        if event.closed && client.input_over {
            // Both directions are over: nobody can read what is still to be said.
            fate = Fate::Gone;
        }
        self.settle(reactor, token, fate, Some(methods));
    }

    /// Hands in an answer that was promised by [`Reply::Later`](super::Reply::Later). Does nothing
    /// when the asker is gone.
    pub fn complete(&mut self, reactor: &Reactor, ticket: Ticket, result: Result<Value, RpcError>) {
        let Some((id, reply)) = self.dispatch.complete(ticket, result) else {
            return;
        };
        let Some((&token, client)) = self.clients.iter_mut().find(|(_, c)| c.id == id) else {
            return;
        };
        if let Some(reply) = reply {
            client.say(&reply);
        }
        match client.write() {
            // Requests that were held back go on with the next event, which the interest in
            // writing brings at once.
            Fate::Stays => self.settle(reactor, token, Fate::Stays, None),
            // What else it waits for must be abandoned, which needs the methods: the next event
            // finds the same error and does it.
            Fate::Gone => {
                let wanted = Interest::ReadWrite;
                if reactor.modify(&client.socket, wanted, token).is_ok() {
                    client.interest = wanted;
                }
            }
        }
    }

    /// Whether every reply has been handed to the kernel and no answer is missing.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.clients
            .values()
            .all(|client| client.outbox.is_empty() && self.dispatch.waiting(client.id) == 0)
    }

    fn accept(&mut self, reactor: &Reactor) {
        for _ in 0..ACCEPTS_MAX {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let socket = match accept_with(&self.listener, flags) {
                Ok(socket) => socket,
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(Errno::MFILE | Errno::NFILE) => {
                    tracing::warn!("no file descriptor is left for a client of the control socket");
                    self.spare.turn_away(&self.listener);
                    continue;
                }
                Err(Errno::AGAIN) => return,
                Err(error) => {
                    tracing::warn!("cannot accept a client on the control socket: {error}");
                    return;
                }
            };
            self.admit(reactor, socket);
        }
    }

    fn admit(&mut self, reactor: &Reactor, socket: OwnedFd) {
        // The socket's mode keeps others out; this holds when somebody has changed it.
        if let Err(stranger) = neighbour::trusted(&socket) {
            tracing::warn!("refused a client on the control socket: {stranger}");
            return;
        }
        let mut tokens = self.first_token + 1..=self.first_token + CLIENTS_MAX as u64;
        let free = tokens.find(|token| !self.clients.contains_key(token));
        let free = free.or_else(|| self.make_room());
        self.accepted += 1;
        self.events += 1;
        let mut client = Client {
            id: ClientId(self.accepted),
            socket,
            frames: Frames::default(),
            outbox: Vec::new(),
            heard_at: self.events,
            input_over: false,
            interest: Interest::Read,
        };
        let Some(token) = free else {
            client.say(&Dispatch::no_room(CLIENTS_MAX));
            // A fresh socket has room for a line; if not, the client sees the end alone.
            let _ = client.write();
            return;
        };
        match reactor.add(&client.socket, client.interest, token) {
            Ok(()) => {
                self.clients.insert(token, client);
            }
            Err(error) => tracing::warn!("cannot watch a client of the control socket: {error}"),
        }
    }

    /// Lets the client go that was silent for longest, of those for whom nothing is under way: clients
    /// that were forgotten must not keep an operator out. Gives its token.
    fn make_room(&mut self) -> Option<u64> {
        let dispatch = &self.dispatch;
        let idle = self.clients.iter().filter(|(_, client)| {
            client.frames.len() == 0 && client.outbox.is_empty() && dispatch.waiting(client.id) == 0
        });
        let (&token, _) = idle.min_by_key(|(_, client)| client.heard_at)?;
        let mut client = self.clients.remove(&token)?;
        tracing::info!("a silent client of the control socket makes room for another one");
        client.say(&Dispatch::makes_room(CLIENTS_MAX));
        // Its socket has taken all that was said before; if not this, the client sees the end alone.
        let _ = client.write();
        let gone = self.dispatch.forget(client.id);
        debug_assert!(gone.is_empty(), "nothing was under way for it");
        Some(token)
    }

    /// Watches the client for what it waits for now, or lets it go.
    fn settle(
        &mut self,
        reactor: &Reactor,
        token: u64,
        fate: Fate,
        methods: Option<&mut dyn Methods>,
    ) {
        let Some(client) = self.clients.get_mut(&token) else {
            return;
        };
        let waiting = self.dispatch.waiting(client.id);
        let done = client.input_over
            && client.outbox.is_empty()
            && client.frames.len() == 0
            && waiting == 0;
        if fate == Fate::Stays && !done {
            let wanted = client.wanted(waiting);
            if wanted == client.interest || reactor.modify(&client.socket, wanted, token).is_ok() {
                client.interest = wanted;
                return;
            }
        }
        if let Some(client) = self.clients.remove(&token) {
            // Closing takes it out of the reactor: there is no duplicate.
            let gone = self.dispatch.forget(client.id);
            if let Some(methods) = methods {
                for ticket in gone {
                    methods.abandoned(ticket);
                }
            }
        }
    }
}

impl Client {
    /// Takes what has arrived.
    fn read(&mut self) -> Fate {
        if self.input_over {
            return Fate::Stays;
        }
        let mut bytes = vec![0; READ_BYTES];
        match recv(&self.socket, &mut bytes, RecvFlags::DONTWAIT) {
            Ok((_, 0)) => self.input_over = true,
            Ok((_, count)) => self.frames.push(&bytes[..count]),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => return Fate::Gone,
        }
        Fate::Stays
    }

    /// Carries out the requests that are complete, as far as the client's limits go.
    fn carry_out(&mut self, dispatch: &mut Dispatch, methods: &mut dyn Methods) -> Fate {
        for _ in 0..REQUESTS_MAX {
            if self.write() == Fate::Gone {
                return Fate::Gone;
            }
            if !self.may_ask(dispatch.waiting(self.id)) {
                return Fate::Stays;
            }
            let frame = match self.frames.next() {
                None if self.input_over => self.frames.rest(),
                frame => frame,
            };
            match frame {
                None => return Fate::Stays,
                Some(Frame::TooLong) => self.say(&Dispatch::too_long(REQUEST_BYTES_MAX)),
                Some(Frame::Line(line)) => {
                    if let Some(reply) = dispatch.line(self.id, &line, methods) {
                        self.say(&reply);
                    }
                }
            }
        }
        // More may be there: a writable socket brings the next event at once.
        self.write()
    }

    fn may_ask(&self, waiting: usize) -> bool {
        self.outbox.len() < OUTBOX_BYTES_MAX && waiting < WAITING_MAX
    }

    /// What the reactor should watch for.
    fn wanted(&self, waiting: usize) -> Interest {
        let may_ask = self.may_ask(waiting);
        let read = may_ask && !self.input_over;
        // Held requests that may go on now: a writable socket brings the event to do so.
        let held = self.frames.has_line() || (self.input_over && self.frames.len() > 0);
        let write = !self.outbox.is_empty() || (may_ask && held);
        match (read, write) {
            (true, true) => Interest::ReadWrite,
            (true, false) => Interest::Read,
            (false, true) => Interest::Write,
            (false, false) => Interest::Nothing,
        }
    }

    fn say(&mut self, line: &[u8]) {
        self.outbox.extend_from_slice(line);
        self.outbox.push(b'\n');
    }

    /// Writes as much of the outbox as the kernel takes.
    fn write(&mut self) -> Fate {
        let mut written = 0;
        let fate = loop {
            if written == self.outbox.len() {
                break Fate::Stays;
            }
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match send(&self.socket, &self.outbox[written..], flags) {
                Ok(count) => written += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break Fate::Stays,
                Err(_) => break Fate::Gone,
            }
        };
        self.outbox.drain(..written);
        fate
    }
}

#[cfg(test)]
mod tests;
