//! Two connections joined by queues (feature `testing`): real byte rings, a clock that jumps, no
//! driver.
//!
//! A [`Pair`] plays application, adapter and fabric for two [`Conn`]s. Each direction is a queue
//! that keeps its order, as a reliable connection does. Inline chunks are copied when they are
//! posted; chunks by reference are read from the sndbuf only when they arrive, so that a ring that
//! frees them too early is caught as corrupted bytes. Every write is checked against the receiver's
//! free space.
//!
//! What the applications write is a fixed function of the position in the stream, so that every
//! read checks itself.

use std::collections::{HashSet, VecDeque};
use std::hash::{Hash, Hasher};
use std::time::Duration;

use pollux_wire::cdc;

use crate::conn::{Conn, ConnParams, ConnTimer, Placement, Transmit, Write};
use crate::cursor::offset_advanced;
use crate::error::{AbortReason, Misuse};
use crate::event::EventSet;
use crate::time::Instant;
use crate::units::SentMark;

/// One of the two machines.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Side {
    /// Alert token 1.
    Left,
    /// Alert token 2.
    Right,
}

impl Side {
    /// Both.
    pub const BOTH: [Side; 2] = [Side::Left, Side::Right];

    /// The other one.
    #[must_use]
    pub fn peer(self) -> Side {
        match self {
            Side::Left => Side::Right,
            Side::Right => Side::Left,
        }
    }

    fn token(self) -> u32 {
        match self {
            Side::Left => 1,
            Side::Right => 2,
        }
    }
}

/// Whether the adapter reports completions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Completions {
    /// As soon as a batch has arrived.
    Prompt,
    /// Never: the peer's reading alone frees the send ring. A writer stalls if its sndbuf is not
    /// larger than half of the peer's RMBE.
    Never,
}

/// Sizes and habits of one machine. Bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SideParams {
    /// Size of its sndbuf.
    pub sndbuf_bytes: u32,
    /// Size of its RMBE.
    pub rmbe_bytes: u32,
    /// What its adapter takes inline.
    pub inline_max: u32,
    /// Whether its adapter reports completions.
    pub completions: Completions,
    /// Time a batch takes from it to the peer.
    pub delay: Duration,
}

impl SideParams {
    /// Both rings of `ring` bytes, nothing inline, prompt completions, no delay.
    #[must_use]
    pub fn rings(ring: u32) -> SideParams {
        SideParams {
            sndbuf_bytes: ring,
            rmbe_bytes: ring,
            inline_max: 0,
            completions: Completions::Prompt,
            delay: Duration::ZERO,
        }
    }
}

/// Bytes of a write on their way.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Cargo {
    /// Copied at post.
    Copied(Vec<u8>),
    /// Still in the sender's sndbuf, at these offsets.
    Referenced(Vec<u32>),
}

/// A batch on its way.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Batch {
    arrives: Instant,
    writes: Vec<(u32, Cargo)>,
    cdc: cdc::Repr,
    mark: SentMark,
}

impl Hash for Batch {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.arrives.hash(state);
        self.writes.hash(state);
        self.mark.hash(state);
        let cdc = &self.cdc;
        (cdc.seq, cdc.producer_flags, cdc.state_flags).hash(state);
        (cdc.producer.wrap, cdc.producer.count).hash(state);
        (cdc.consumer.wrap, cdc.consumer.count).hash(state);
    }
}

/// One machine.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Machine {
    params: SideParams,
    conn: Conn,
    sndbuf: Vec<u8>,
    rmbe: Vec<u8>,
    /// Batches from this machine to its peer.
    outbox: VecDeque<Batch>,
    timer: Option<(ConnTimer, Instant)>,
    /// Bytes its application wrote and read, an urgent byte taken out of line not among the latter.
    written: u64,
    read: u64,
    /// Bytes that the peer's writes have brought into the RMBE.
    landed: u64,
    events: EventSet,
    urgent: Vec<u8>,
}

/// Two machines with one connection.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Pair {
    now: Instant,
    machines: [Machine; 2],
}

/// The byte at `position` of the stream that `from` writes.
#[must_use]
pub fn stream_byte(from: Side, position: u64) -> u8 {
    let mixed = position.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(from.token());
    (mixed >> 32) as u8 ^ position as u8
}

impl Pair {
    /// Two machines after the handshake.
    #[must_use]
    pub fn new(left: SideParams, right: SideParams) -> Pair {
        let machine = |side: Side, own: SideParams, peer: SideParams| Machine {
            params: own,
            conn: Conn::new(&ConnParams {
                sndbuf_bytes: own.sndbuf_bytes,
                rmbe_bytes: own.rmbe_bytes,
                peer_rmbe_bytes: peer.rmbe_bytes,
                local_token: side.token(),
                peer_token: side.peer().token(),
            }),
            sndbuf: vec![0; own.sndbuf_bytes as usize],
            rmbe: vec![0; own.rmbe_bytes as usize],
            outbox: VecDeque::new(),
            timer: None,
            written: 0,
            read: 0,
            landed: 0,
            events: EventSet::NONE,
            urgent: Vec::new(),
        };
        Pair {
            now: Instant(0),
            machines: [
                machine(Side::Left, left, right),
                machine(Side::Right, right, left),
            ],
        }
    }

    /// Two equal machines.
    #[must_use]
    pub fn equal(params: SideParams) -> Pair {
        Pair::new(params, params)
    }

    fn machine(&self, side: Side) -> &Machine {
        &self.machines[side.token() as usize - 1]
    }

    fn machine_mut(&mut self, side: Side) -> &mut Machine {
        &mut self.machines[side.token() as usize - 1]
    }

    /// The connection of `side`.
    #[must_use]
    pub fn conn(&self, side: Side) -> &Conn {
        &self.machine(side).conn
    }

    /// The connection of `side`, for wishes and news that the pair does not play.
    pub fn conn_mut(&mut self, side: Side) -> &mut Conn {
        &mut self.machine_mut(side).conn
    }

    /// The clock.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Bytes the application of `side` has written.
    #[must_use]
    pub fn written(&self, side: Side) -> u64 {
        self.machine(side).written
    }

    /// Bytes the application of `side` has read from the stream.
    #[must_use]
    pub fn read_total(&self, side: Side) -> u64 {
        self.machine(side).read
    }

    /// Urgent bytes that `side` took out of line.
    #[must_use]
    pub fn urgent(&self, side: Side) -> &[u8] {
        &self.machine(side).urgent
    }

    /// The events of `side` since the last call.
    pub fn take_events(&mut self, side: Side) -> EventSet {
        self.collect(side);
        std::mem::take(&mut self.machine_mut(side).events)
    }

    /// Does what an owner does after each call: takes events, copies an urgent byte, runs the
    /// timer.
    fn collect(&mut self, side: Side) {
        let now = self.now;
        let machine = self.machine_mut(side);
        machine.events.raise(machine.conn.take_events());
        if let Some(offset) = machine.conn.take_urgent() {
            machine.urgent.push(machine.rmbe[offset as usize]);
            machine.events.raise(machine.conn.take_events());
        }
        let wanted = machine.conn.timer();
        if wanted != machine.timer.map(|(timer, _)| timer) {
            machine.timer = wanted.map(|timer| (timer, now.after(timer.duration())));
        }
    }

    /// The application of `side` writes up to `bytes` bytes; returns how many fitted.
    pub fn write(&mut self, side: Side, bytes: u32) -> u32 {
        let bytes = bytes.min(self.conn(side).writable());
        if bytes == 0 {
            return 0;
        }
        self.fill(side, bytes);
        let machine = self.machine_mut(side);
        machine.conn.prepare(bytes).expect("within writable");
        machine.written += u64::from(bytes);
        self.collect(side);
        bytes
    }

    /// The application of `side` writes `bytes` bytes, the last of them urgent.
    ///
    /// # Errors
    ///
    /// What the connection says.
    pub fn write_urgent(&mut self, side: Side, bytes: u32) -> Result<(), Misuse> {
        if bytes <= self.conn(side).writable() {
            self.fill(side, bytes);
        }
        let machine = self.machine_mut(side);
        machine.conn.prepare_urgent(bytes)?;
        machine.written += u64::from(bytes);
        self.collect(side);
        Ok(())
    }

    /// Copies the next `bytes` of the stream into the sndbuf.
    fn fill(&mut self, side: Side, bytes: u32) {
        let machine = self.machine_mut(side);
        let ring = machine.params.sndbuf_bytes;
        for i in 0..bytes {
            let at = offset_advanced(machine.conn.write_offset(), i, ring);
            machine.sndbuf[at as usize] = stream_byte(side, machine.written + u64::from(i));
        }
    }

    /// The application of `side` reads up to `bytes` bytes and checks them; returns how many there
    /// were.
    ///
    /// # Panics
    ///
    /// If a byte is not the one that the peer wrote at this position.
    pub fn read(&mut self, side: Side, bytes: u32) -> u32 {
        let machine = self.machine_mut(side);
        let bytes = bytes.min(machine.conn.readable());
        let start = machine.conn.consumed_total();
        for i in 0..bytes {
            let at = offset_advanced(machine.conn.read_offset(), i, machine.params.rmbe_bytes);
            let position = start + u64::from(i);
            let expected = stream_byte(side.peer(), position);
            let got = machine.rmbe[at as usize];
            assert_eq!(got, expected, "{side:?} reads position {position}");
        }
        machine.conn.consume(bytes).expect("within readable");
        machine.read += u64::from(bytes);
        self.collect(side);
        bytes
    }

    /// The application of `side` wishes; events and timers follow.
    pub fn wish(&mut self, side: Side, wish: impl FnOnce(&mut Conn)) {
        wish(self.conn_mut(side));
        self.collect(side);
    }

    /// Puts the next batch of `side` on its way and returns the order; `None` if it has nothing to
    /// send.
    pub fn transmit_one(&mut self, side: Side) -> Option<Transmit> {
        let now = self.now;
        let machine = self.machine_mut(side);
        let transmit = machine.conn.poll_transmit(machine.params.inline_max)?;
        let writes = transmit
            .writes
            .iter()
            .map(|write| (write.to_offset, load(write, &machine.sndbuf)))
            .collect();
        machine.outbox.push_back(Batch {
            arrives: now.after(machine.params.delay),
            writes,
            cdc: transmit.cdc,
            mark: transmit.mark,
        });
        self.collect(side);
        Some(transmit)
    }

    /// Puts everything that `side` wants to send on its way; returns the number of batches.
    pub fn transmit(&mut self, side: Side) -> usize {
        std::iter::from_fn(|| self.transmit_one(side)).count()
    }

    /// Batches on their way to `side`.
    #[must_use]
    pub fn in_flight_to(&self, side: Side) -> usize {
        self.machine(side.peer()).outbox.len()
    }

    /// Delivers the oldest batch on its way to `side`, if its time has come; its message, and what
    /// the connection said of it.
    pub fn deliver_one(&mut self, side: Side) -> Option<(cdc::Repr, Result<(), AbortReason>)> {
        let now = self.now;
        let sender = self.machine_mut(side.peer());
        if sender.outbox.front()?.arrives > now {
            return None;
        }
        let batch = sender.outbox.pop_front()?;
        let landed: Vec<(u32, Vec<u8>)> = batch
            .writes
            .into_iter()
            .map(|(offset, cargo)| (offset, cargo.unload(&sender.sndbuf)))
            .collect();
        if sender.params.completions == Completions::Prompt {
            sender.conn.handle_completed(batch.mark);
        }
        self.collect(side.peer());
        let receiver = self.machine_mut(side);
        let ring = u64::from(receiver.params.rmbe_bytes);
        let end = receiver.conn.consumed_total() + ring;
        for (offset, bytes) in landed {
            let next = receiver.landed % ring;
            assert_eq!(u64::from(offset), next, "write lands in order");
            receiver.landed += bytes.len() as u64;
            let landed = receiver.landed;
            assert!(landed <= end, "{side:?}: unread bytes are overwritten");
            let offset = offset as usize;
            receiver.rmbe[offset..offset + bytes.len()].copy_from_slice(&bytes);
        }
        let outcome = receiver.conn.handle_cdc(&batch.cdc);
        self.collect(side);
        Some((batch.cdc, outcome))
    }

    /// Delivers every batch to `side` whose time has come; returns their number.
    ///
    /// # Panics
    ///
    /// If the connection refuses a message: both sides are honest.
    pub fn deliver(&mut self, side: Side) -> usize {
        std::iter::from_fn(|| self.deliver_one(side))
            .inspect(|(message, outcome)| assert_eq!(*outcome, Ok(()), "{message:?}"))
            .count()
    }

    /// Transmits, delivers and jumps over delays until nothing is on its way. Timers do not run.
    pub fn settle(&mut self) {
        loop {
            let mut moved = 0;
            for side in Side::BOTH {
                moved += self.transmit(side) + self.deliver(side.peer());
            }
            let next = self.machines.iter().filter_map(|m| m.outbox.front());
            match next.map(|batch| batch.arrives).min() {
                Some(arrives) => self.now = self.now.max(arrives),
                None if moved == 0 => return,
                None => {}
            }
        }
    }

    /// The timer of `side` that runs, and when it expires.
    #[must_use]
    pub fn timer(&self, side: Side) -> Option<(ConnTimer, Instant)> {
        self.machine(side).timer
    }

    /// Jumps `wait` ahead. Timers whose time comes expire, each once and the earlier first.
    pub fn advance(&mut self, wait: Duration) {
        let end = self.now.after(wait);
        let mut due: Vec<(Instant, Side)> = Side::BOTH
            .into_iter()
            .filter_map(|side| Some((self.timer(side)?.1, side)))
            .filter(|(at, _)| *at <= end)
            .collect();
        due.sort_by_key(|(at, _)| *at);
        for (at, side) in due {
            self.now = self.now.max(at);
            let machine = self.machine_mut(side);
            machine.timer = None;
            machine.conn.handle_timeout();
            self.collect(side);
        }
        self.now = end;
    }
}

/// The bytes of a write as they leave: copied, or where they lie.
fn load(write: &Write, sndbuf: &[u8]) -> Cargo {
    let offsets = write
        .pieces
        .iter()
        .flat_map(|piece| piece.offset..piece.offset + piece.len);
    let cargo = match write.placement {
        Placement::Inline => Cargo::Copied(offsets.map(|at| sndbuf[at as usize]).collect()),
        Placement::ByReference => Cargo::Referenced(offsets.collect()),
    };
    assert_eq!(cargo.len(), write.len as usize, "pieces add up");
    cargo
}

impl Cargo {
    fn len(&self) -> usize {
        match self {
            Cargo::Copied(bytes) => bytes.len(),
            Cargo::Referenced(offsets) => offsets.len(),
        }
    }

    fn unload(self, sndbuf: &[u8]) -> Vec<u8> {
        match self {
            Cargo::Copied(bytes) => bytes,
            Cargo::Referenced(offsets) => {
                offsets.into_iter().map(|at| sndbuf[at as usize]).collect()
            }
        }
    }
}

/// Visits every state that can be reached from `start`, breadth first; returns how many there are.
///
/// `next` gives the successors of a state. `check` sees each state once, with the number of its
/// successors: 0 for a state in which nothing can happen any more.
///
/// # Panics
///
/// If there are more than `most` states: something goes round without end.
pub fn explore<S: Clone + Eq + Hash>(
    start: S,
    most: usize,
    next: impl Fn(&S) -> Vec<S>,
    mut check: impl FnMut(&S, usize),
) -> usize {
    let mut seen = HashSet::from([start.clone()]);
    let mut queue = VecDeque::from([start]);
    while let Some(state) = queue.pop_front() {
        let successors = next(&state);
        check(&state, successors.len());
        for successor in successors {
            if !seen.contains(&successor) {
                seen.insert(successor.clone());
                queue.push_back(successor);
            }
        }
        assert!(seen.len() <= most, "more than {most} states");
    }
    seen.len()
}
