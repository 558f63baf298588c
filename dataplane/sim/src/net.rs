//! Simulated TCP connections for handshakes: bytes take their time, come in pieces, and may not come
//! at all.

use std::collections::VecDeque;
use std::io;

use pollux_control::plane::{HandshakeId, Interest, Stream};
use pollux_worker::Clock;

use crate::book::{Book, Event, Shared, lock};
use crate::clock::SimClock;
use crate::numbers::Numbers;
use crate::options::{NetOptions, Ns};

/// What flows one way.
#[derive(Debug, Default)]
struct Line {
    /// Pieces with the time at which they arrive.
    pieces: VecDeque<(Ns, VecDeque<u8>)>,
    /// When the end arrives, once it was sent.
    ends_at: Option<Ns>,
}

impl Line {
    /// Bytes that have not arrived: they take up the sender's room.
    fn under_way(&self, now: Ns) -> usize {
        let on_the_way = self.pieces.iter().filter(|(due, _)| *due > now);
        on_the_way.map(|(_, bytes)| bytes.len()).sum()
    }

    /// When the first of these arrives.
    fn room_due(&self, now: Ns) -> Option<Ns> {
        let on_the_way = self.pieces.iter().map(|(due, _)| *due);
        on_the_way.filter(|due| *due > now).min()
    }

    /// Takes so many bytes away.
    fn take(&mut self, mut count: usize) {
        while let Some((_, bytes)) = self.pieces.front_mut() {
            let now = bytes.len().min(count);
            bytes.drain(..now);
            count -= now;
            if !bytes.is_empty() {
                break;
            }
            self.pieces.pop_front();
        }
    }

    /// When the last piece arrives.
    fn last(&self) -> Ns {
        self.pieces.back().map_or(0, |(due, _)| *due)
    }

    /// When there is something to be read.
    fn next_due(&self) -> Option<Ns> {
        let first = self.pieces.front().map(|(due, _)| *due);
        first.or(self.ends_at)
    }
}

#[derive(Debug)]
struct Pipe {
    stacks: [usize; 2],
    /// The line of each end's own words.
    lines: [Line; 2],
    watched: [Option<(HandshakeId, Interest)>; 2],
    /// Ends that somebody holds.
    held: [bool; 2],
    /// The connection was reset.
    broken: bool,
}

/// All simulated TCP connections of a world.
#[derive(Debug)]
pub(crate) struct Net {
    clock: SimClock,
    book: Shared<Book>,
    numbers: Numbers,
    options: NetOptions,
    liar: Option<usize>,
    lie_chance: u32,
    pipes: Vec<Option<Pipe>>,
}

/// One end of a simulated TCP connection.
#[derive(Debug)]
pub(crate) struct End {
    net: Shared<Net>,
    pipe: usize,
    side: usize,
}

impl Net {
    pub(crate) fn new(
        (book, clock): (Shared<Book>, SimClock),
        numbers: Numbers,
        options: NetOptions,
        (liar, lie_chance): (Option<usize>, u32),
    ) -> Net {
        Net {
            clock,
            book,
            numbers,
            options,
            liar,
            lie_chance,
            pipes: Vec::new(),
        }
    }

    /// A new connection between two stacks; its number and its ends.
    pub(crate) fn connect(net: &Shared<Net>, stacks: [usize; 2]) -> (usize, [End; 2]) {
        let mut pipes = lock(net);
        let pipe = pipes.pipes.len();
        pipes.pipes.push(Some(Pipe {
            stacks,
            lines: [Line::default(), Line::default()],
            watched: [None, None],
            held: [true; 2],
            broken: false,
        }));
        let end = |side| End {
            net: net.clone(),
            pipe,
            side,
        };
        (pipe, [end(0), end(1)])
    }

    /// Resets a connection.
    pub(crate) fn break_pipe(&mut self, pipe: usize) {
        if let Some(Some(pipe)) = self.pipes.get_mut(pipe) {
            pipe.broken = true;
        }
    }

    /// A stack has died: its peers' kernels hear of it.
    pub(crate) fn lose_stack(&mut self, stack: usize) {
        let of_stack = |pipe: &&mut Pipe| pipe.stacks.contains(&stack);
        for pipe in self.pipes.iter_mut().flatten().filter(of_stack) {
            pipe.broken = true;
        }
    }

    /// From now on nothing is altered any more.
    pub(crate) fn calm(&mut self) {
        self.lie_chance = 0;
    }

    /// Handshakes of a stack whose stream can be read or written.
    pub(crate) fn ready(&self, stack: usize) -> Vec<HandshakeId> {
        let now = self.clock.now();
        self.ends_of(stack)
            .filter(|(pipe, side)| self.is_ready(pipe, *side, now))
            .filter_map(|(pipe, side)| pipe.watched[side].map(|(id, _)| id))
            .collect()
    }

    fn ends_of(&self, stack: usize) -> impl Iterator<Item = (&Pipe, usize)> {
        let pipes = self.pipes.iter().flatten();
        pipes.flat_map(move |pipe| {
            let sides = (0..2).filter(move |side| pipe.stacks[*side] == stack);
            sides.map(move |side| (pipe, side))
        })
    }

    fn is_ready(&self, pipe: &Pipe, side: usize, now: Ns) -> bool {
        let Some((_, interest)) = pipe.watched[side] else {
            return false;
        };
        let readable = || {
            pipe.lines[1 - side]
                .next_due()
                .is_some_and(|due| due <= now)
        };
        let writable = || pipe.lines[side].under_way(now) < self.options.room;
        let wanted = match interest {
            Interest::Nothing => false,
            Interest::Read => readable(),
            Interest::Write => writable(),
            Interest::ReadWrite => readable() || writable(),
        };
        wanted || pipe.broken
    }

    /// When a stream of a stack is ready next.
    pub(crate) fn next_due(&self, stack: usize) -> Option<Ns> {
        let now = self.clock.now();
        self.ends_of(stack)
            .filter_map(|(pipe, side)| {
                let (_, interest) = pipe.watched[side]?;
                let readable = pipe.lines[1 - side].next_due();
                let writable = pipe.lines[side].room_due(now);
                match interest {
                    _ if pipe.broken => Some(0),
                    Interest::Nothing => None,
                    Interest::Read => readable,
                    Interest::Write => writable,
                    Interest::ReadWrite => readable.into_iter().chain(writable).min(),
                }
            })
            .min()
    }

    fn pipe(&mut self, pipe: usize) -> io::Result<&mut Pipe> {
        let gone = || io::Error::from(io::ErrorKind::NotConnected);
        let pipe = self.pipes.get_mut(pipe).and_then(Option::as_mut);
        let pipe = pipe.ok_or_else(gone)?;
        if pipe.broken {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        Ok(pipe)
    }

    /// Bytes for one end: a look, or a bite.
    fn read(
        &mut self,
        (pipe, side): (usize, usize),
        into: &mut [u8],
        how: Read,
    ) -> io::Result<usize> {
        let now = self.clock.now();
        let most = match how {
            Read::Look => into.len(),
            Read::Take => into
                .len()
                .min(self.numbers.between(1, self.options.piece) as usize),
        };
        let line = &mut self.pipe(pipe)?.lines[1 - side];
        let arrived = line.pieces.iter().take_while(|(due, _)| *due <= now);
        let bytes = arrived.flat_map(|(_, bytes)| bytes.iter().copied());
        let mut count = 0;
        for (place, byte) in into[..most].iter_mut().zip(bytes) {
            *place = byte;
            count += 1;
        }
        if how == Read::Take {
            line.take(count);
        }
        let is_at_end = line.pieces.is_empty() && line.ends_at.is_some_and(|due| due <= now);
        if count == 0 && !is_at_end {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(count)
    }

    fn write(&mut self, (pipe, side): (usize, usize), from: &[u8]) -> io::Result<usize> {
        let now = self.clock.now();
        let room = self.options.room;
        let most = self.numbers.between(1, self.options.piece) as usize;
        let delay = self.numbers.below(self.options.delay_max + 1);
        let stack = self.pipe(pipe)?.stacks[side];
        let lies = self.liar == Some(stack) && self.numbers.chance(self.lie_chance);
        if !self.pipe(pipe)?.held[1 - side] {
            // Nobody is there any more: as TCP answers.
            self.break_pipe(pipe);
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        let line = &mut self.pipe(pipe)?.lines[side];
        let count = from
            .len()
            .min(room.saturating_sub(line.under_way(now)))
            .min(most);
        if count == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut bytes: VecDeque<u8> = from[..count].iter().copied().collect();
        // One line: what was written first arrives first.
        let due = (now + delay).max(line.last());
        if lies {
            let at = self.numbers.below(count as u64) as usize;
            bytes[at] ^= 1 << self.numbers.below(8);
            lock(&self.book).fault("lie on TCP", stack, || format!("at byte {at} of {count}"));
        }
        let values = [pipe as u64, count as u64];
        lock(&self.book).note(Event::Net, stack, &values, || {
            format!("{count} B on TCP connection {pipe}")
        });
        self.pipe(pipe)?.lines[side].pieces.push_back((due, bytes));
        Ok(count)
    }

    /// An end says no more.
    fn end(&mut self, (pipe, side): (usize, usize)) {
        let now = self.clock.now();
        let delay = self.numbers.below(self.options.delay_max + 1);
        if let Ok(pipe) = self.pipe(pipe) {
            let line = &mut pipe.lines[side];
            line.ends_at = line.ends_at.or(Some((now + delay).max(line.last())));
        }
    }
}

/// Whether bytes stay.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Read {
    Look,
    Take,
}

impl End {
    fn place(&self) -> (usize, usize) {
        (self.pipe, self.side)
    }
}

impl Stream for End {
    fn peek(&self, into: &mut [u8]) -> io::Result<usize> {
        lock(&self.net).read(self.place(), into, Read::Look)
    }

    fn recv(&self, into: &mut [u8]) -> io::Result<usize> {
        lock(&self.net).read(self.place(), into, Read::Take)
    }

    fn send(&self, from: &[u8]) -> io::Result<usize> {
        lock(&self.net).write(self.place(), from)
    }

    fn watch(&mut self, id: HandshakeId, interest: Interest) -> io::Result<()> {
        let (pipe, side) = self.place();
        if let Some(Some(pipe)) = lock(&self.net).pipes.get_mut(pipe) {
            pipe.watched[side] = Some((id, interest));
        }
        Ok(())
    }

    fn unwatch(&mut self) {
        let (pipe, side) = self.place();
        if let Some(Some(pipe)) = lock(&self.net).pipes.get_mut(pipe) {
            pipe.watched[side] = None;
        }
    }

    fn shutdown(&self) {
        let net = &mut *lock(&self.net);
        net.end((self.pipe, 0));
        net.end((self.pipe, 1));
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let (number, side) = self.place();
        let net = &mut *lock(&self.net);
        net.end((number, side));
        let Some(place) = net.pipes.get_mut(number) else {
            return;
        };
        if let Some(pipe) = place {
            pipe.watched[side] = None;
            pipe.held[side] = false;
            // What was not read is lost, and the peer is told.
            pipe.broken |= !pipe.lines[1 - side].pieces.is_empty();
            if pipe.held == [false; 2] {
                *place = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::book::Detail;
    use std::sync::{Arc, Mutex};

    fn net(options: NetOptions) -> (Shared<Net>, SimClock) {
        let clock = SimClock::default();
        let book = Arc::new(Mutex::new(Book::new(Detail::None)));
        let net = Net::new((book, clock.clone()), Numbers::new(5), options, (None, 0));
        (Arc::new(Mutex::new(net)), clock)
    }

    #[test]
    fn bytes_arrive_late_in_pieces_and_in_order_and_then_the_end() {
        let (net, clock) = net(NetOptions {
            delay_max: 1000,
            piece: 3,
            room: 64,
        });
        let (_, [first, second]) = Net::connect(&net, [0, 1]);
        let mut sent = 0;
        while sent < 50 {
            sent += first.send(&[sent as u8; 50][..50 - sent]).unwrap();
        }
        drop(first);
        let mut got = 0;
        loop {
            let mut bytes = [0; 10];
            match second.recv(&mut bytes) {
                Ok(0) => break,
                Ok(count) => got += count,
                Err(error) => {
                    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                    clock.advance(100);
                }
            }
        }
        assert_eq!(got, 50);
    }

    #[test]
    fn a_connection_whose_stack_died_is_reset_and_is_ready() {
        let (net, _) = net(NetOptions {
            delay_max: 0,
            piece: 3,
            room: 64,
        });
        let (_, [_first, mut second]) = Net::connect(&net, [0, 1]);
        second.watch(HandshakeId(4), Interest::Read).unwrap();
        assert_eq!(lock(&net).ready(1), []);
        lock(&net).lose_stack(0);
        assert_eq!(lock(&net).ready(1), [HandshakeId(4)]);
        let error = second.recv(&mut [0; 4]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }
}
