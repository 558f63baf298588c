//! This side: opens connections, asks on some of them, and closes them.

use std::cell::Cell;
use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use pollux_attach::client::{Blocking, NoDelay, RequestId, Session, Stream, StreamEvent};
use pollux_attach::message::Role;
use pollux_control::hist::Samples;

use super::appliance::{Appliances, sessions_for};
use super::{SESSION_CONNS, echo};

/// Upgrades under way while connections are opened in numbers.
const UPGRADES: usize = 64;
/// How long nothing may happen before a run is given up.
const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes of the request on a connection that is used once.
const ONE_REQUEST: usize = 64;

/// Which sessions get connections first: so that active and idle ones do not share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fill {
    FromFirst,
    FromLast,
}

/// An open connection; closed with the value.
pub(super) struct Conn {
    stream: Stream,
    /// Requests made on it.
    asked: u64,
    _place: Place,
}

/// A connection's share of its session.
struct Place(Rc<Cell<u16>>);

impl Place {
    fn take(used: &Rc<Cell<u16>>) -> Place {
        used.set(used.get() + 1);
        Place(Rc::clone(used))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// The program that asks: one session for each of the echo program's.
pub(super) struct Client {
    sessions: Vec<Session>,
    addresses: Vec<SocketAddr>,
    /// Connections of each session.
    used: Vec<Rc<Cell<u16>>>,
    events: Vec<StreamEvent>,
}

impl Client {
    pub(super) fn start(appliances: &Appliances, conns: u32) -> Result<Client> {
        let mut sessions = Vec::new();
        for _ in 0..sessions_for(conns) {
            let options = echo::options("pollux-perf conns");
            sessions.push(Session::open(appliances.attach_socket(), &options)?);
        }
        Ok(Client {
            used: sessions.iter().map(|_| Rc::default()).collect(),
            sessions,
            addresses: appliances.addresses.clone(),
            events: Vec::new(),
        })
    }

    /// Opens `count` connections, some at a time.
    pub(super) fn open(&mut self, fill: Fill, count: u32) -> Result<Vec<Conn>> {
        self.open_with(fill, count, UPGRADES)
    }

    /// Opens `count` connections all at once.
    pub(super) fn open_at_once(&mut self, count: u32) -> Result<Vec<Conn>> {
        self.open_with(Fill::FromFirst, count, count as usize)
    }

    fn open_with(&mut self, fill: Fill, count: u32, at_once: usize) -> Result<Vec<Conn>> {
        let mut waiting: HashMap<(usize, RequestId), Place> = HashMap::new();
        let mut conns = Vec::with_capacity(count as usize);
        let mut begun = 0;
        let mut last = Instant::now();
        while conns.len() < count as usize {
            while begun < count && waiting.len() < at_once {
                let (session, request, place) = self.begin(fill)?;
                waiting.insert((session, request), place);
                begun += 1;
            }
            let mut any = false;
            for session in 0..self.sessions.len() {
                self.sessions[session].poll_events(&mut self.events);
                for event in self.events.drain(..) {
                    any = true;
                    match event {
                        StreamEvent::Upgraded { request, stream } => {
                            let place = waiting.remove(&(session, request));
                            let place = place.context("an answer that nobody asked for")?;
                            conns.push(ready(stream?, place)?);
                        }
                        StreamEvent::Ready { .. } => {}
                        StreamEvent::Gone => bail!("the appliance is gone"),
                    }
                }
            }
            if any {
                last = Instant::now();
            } else {
                ensure!(
                    last.elapsed() < PATIENCE,
                    "{} connections are not decided on",
                    waiting.len()
                );
                std::thread::yield_now();
            }
        }
        Ok(conns)
    }

    /// Begins a connection on a session that has room.
    fn begin(&mut self, fill: Fill) -> Result<(usize, RequestId, Place)> {
        let has_room = |used: &Rc<Cell<u16>>| used.get() < SESSION_CONNS;
        let session = match fill {
            Fill::FromFirst => self.used.iter().position(has_room),
            Fill::FromLast => self.used.iter().rposition(has_room),
        };
        let session = session.context("no session has room left")?;
        let address = self.addresses[session];
        let tcp =
            TcpStream::connect(address).with_context(|| format!("cannot connect to {address}"))?;
        let request = self.sessions[session].upgrade_start(tcp, Role::Client)?;
        Ok((session, request, Place::take(&self.used[session])))
    }

    /// Makes requests of `size` bytes on all of `conns`, one at a time on each, for `time`, and adds
    /// what each took to `samples`. Returns how long it took until the last answer.
    pub(super) fn exchange(
        &mut self,
        conns: &mut [Conn],
        (size, time): (usize, Duration),
        samples: &mut Samples,
    ) -> Result<Duration> {
        for (index, conn) in conns.iter().enumerate() {
            conn.stream.watch(index as u64);
        }
        let mut flights: Vec<Flight> = conns.iter().map(|_| Flight::new(size)).collect();
        let started = Instant::now();
        for (conn, flight) in conns.iter_mut().zip(&mut flights) {
            flight.ask(conn)?;
        }
        let mut under_way = conns.len();
        let mut last = started;
        while under_way > 0 {
            let mut any = false;
            for session in 0..self.sessions.len() {
                self.sessions[session].poll_events(&mut self.events);
                for event in self.events.drain(..) {
                    let StreamEvent::Ready { token, .. } = event else {
                        bail!("something other than an answer came");
                    };
                    any = true;
                    let index = token as usize;
                    let (conn, flight) = (&mut conns[index], &mut flights[index]);
                    if !flight.take(conn)? {
                        continue;
                    }
                    let now = Instant::now();
                    samples.record((now - flight.asked).as_nanos() as u64);
                    if now - started < time {
                        flight.ask(conn)?;
                    } else {
                        under_way -= 1;
                    }
                }
            }
            if any {
                last = Instant::now();
            } else {
                ensure!(last.elapsed() < PATIENCE, "{under_way} answers do not come");
                std::thread::yield_now();
            }
        }
        Ok(started.elapsed())
    }

    /// One request on each connection.
    pub(super) fn ask_each(&mut self, conns: &mut [Conn]) -> Result<()> {
        let once = (ONE_REQUEST, Duration::ZERO);
        self.exchange(conns, once, &mut Samples::new()).map(drop)
    }

    /// Opens, uses and closes `count` connections, one after the other. How long it took.
    pub(super) fn cycle(&mut self, count: u32) -> Result<Duration> {
        let started = Instant::now();
        for number in 0..count {
            let mut conns = self
                .open(Fill::FromFirst, 1)
                .with_context(|| format!("connection {number} of {count}"))?;
            self.ask_each(&mut conns)?;
        }
        Ok(started.elapsed())
    }
}

/// A connection is what was asked for: accelerated, not blocking.
fn ready(stream: Stream, place: Place) -> Result<Conn> {
    if let Some(reason) = stream.fallback_reason() {
        bail!("a connection stayed on TCP: {}", reason.text);
    }
    stream.set_nodelay(NoDelay::On)?;
    stream.set_blocking(Blocking::Never)?;
    Ok(Conn {
        stream,
        asked: 0,
        _place: place,
    })
}

/// How far the request of a connection is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Awaiting {
    Answer,
    Nothing,
}

/// The requests of a connection, one after the other.
struct Flight {
    awaiting: Awaiting,
    bytes: Vec<u8>,
    answer: Vec<u8>,
    received: usize,
    asked: Instant,
}

impl Flight {
    fn new(size: usize) -> Flight {
        Flight {
            awaiting: Awaiting::Nothing,
            bytes: vec![0; size],
            answer: vec![0; size],
            received: 0,
            asked: Instant::now(),
        }
    }

    fn ask(&mut self, conn: &mut Conn) -> Result<()> {
        conn.asked += 1;
        self.bytes.fill(conn.asked as u8);
        self.received = 0;
        self.awaiting = Awaiting::Answer;
        self.asked = Instant::now();
        let written = conn.stream.write(&self.bytes).context("cannot ask")?;
        ensure!(
            written == self.bytes.len(),
            "a ring without anything in it took {written} of {} bytes",
            self.bytes.len()
        );
        Ok(())
    }

    /// Takes what has come; whether it completes the answer that is waited for. Word of a stream may
    /// come more often than bytes.
    fn take(&mut self, conn: &mut Conn) -> Result<bool> {
        if self.awaiting == Awaiting::Nothing {
            return Ok(false);
        }
        while self.received < self.answer.len() {
            match conn.stream.read(&mut self.answer[self.received..]) {
                Ok(0) => bail!("the peer has closed a connection"),
                Ok(count) => self.received += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error).context("cannot read an answer"),
            }
        }
        ensure!(self.answer == self.bytes, "an answer is not what was asked");
        self.awaiting = Awaiting::Nothing;
        Ok(true)
    }
}
