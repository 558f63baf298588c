//! A byte stream in memory, in place of a TCP connection.

use crate::plane::{HandshakeId, Interest, Stream};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;

/// What flows one way.
#[derive(Debug)]
struct Line {
    bytes: VecDeque<u8>,
    /// Bytes that it takes before it is full.
    room: usize,
    /// Most bytes that one look delivers.
    piece: usize,
    ended: bool,
}

#[derive(Debug)]
struct Wire {
    /// The line of each end's own words.
    lines: [Line; 2],
    watched: [Option<(HandshakeId, Interest)>; 2],
    broken: bool,
}

/// A stream with two ends, as a bystander sees it.
#[derive(Clone, Debug)]
pub(super) struct Cable(Rc<RefCell<Wire>>);

/// One end of a stream.
#[derive(Debug)]
pub(super) struct Pipe {
    wire: Cable,
    end: usize,
}

impl Cable {
    pub(super) fn new() -> (Cable, [Pipe; 2]) {
        let line = || Line {
            bytes: VecDeque::new(),
            room: 4096,
            piece: 4096,
            ended: false,
        };
        let wire = Cable(Rc::new(RefCell::new(Wire {
            lines: [line(), line()],
            watched: [None, None],
            broken: false,
        })));
        let pipe = |end| Pipe {
            wire: wire.clone(),
            end,
        };
        let ends = [pipe(0), pipe(1)];
        (wire, ends)
    }

    /// From now on the stream takes and delivers bytes one by one.
    pub(super) fn narrow(&self) {
        for line in &mut self.0.borrow_mut().lines {
            (line.room, line.piece) = (1, 1);
        }
    }

    /// The words of one end are over, behind what it has said.
    pub(super) fn end(&self, end: usize) {
        self.0.borrow_mut().lines[end].ended = true;
    }

    /// Both directions fail.
    pub(super) fn break_off(&self) {
        self.0.borrow_mut().broken = true;
    }

    /// What an end has said and nobody has taken.
    pub(super) fn in_flight(&self, end: usize) -> Vec<u8> {
        self.0.borrow().lines[end].bytes.iter().copied().collect()
    }

    /// Puts words into the mouth of an end.
    pub(super) fn say(&self, end: usize, bytes: &[u8]) {
        self.0.borrow_mut().lines[end].bytes.extend(bytes);
    }

    /// The handshake of an end that its plane would be told of now.
    pub(super) fn ready(&self, end: usize) -> Option<HandshakeId> {
        let wire = self.0.borrow();
        let (id, interest) = wire.watched[end]?;
        let (own, other) = (&wire.lines[end], &wire.lines[1 - end]);
        let readable = !other.bytes.is_empty() || other.ended || wire.broken;
        let writable = interest == Interest::ReadWrite && own.bytes.len() < own.room;
        (readable || writable).then_some(id)
    }

    /// Whether a plane listens to an end.
    pub(super) fn is_watched(&self, end: usize) -> bool {
        self.0.borrow().watched[end].is_some()
    }
}

impl Pipe {
    fn look(&self, into: &mut [u8]) -> io::Result<usize> {
        let wire = self.wire.0.borrow();
        let line = &wire.lines[1 - self.end];
        if wire.broken {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        if line.bytes.is_empty() && !line.ended {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let len = into.len().min(line.bytes.len()).min(line.piece);
        for (to, from) in into.iter_mut().zip(line.bytes.iter().take(len)) {
            *to = *from;
        }
        Ok(len)
    }
}

impl Stream for Pipe {
    fn peek(&self, into: &mut [u8]) -> io::Result<usize> {
        // A look at the beginning sees all that has come, as of a socket.
        let piece = std::mem::replace(
            &mut self.wire.0.borrow_mut().lines[1 - self.end].piece,
            into.len(),
        );
        let seen = self.look(into);
        self.wire.0.borrow_mut().lines[1 - self.end].piece = piece;
        seen
    }

    fn recv(&self, into: &mut [u8]) -> io::Result<usize> {
        let len = self.look(into)?;
        let mut wire = self.wire.0.borrow_mut();
        wire.lines[1 - self.end].bytes.drain(..len);
        Ok(len)
    }

    fn send(&self, from: &[u8]) -> io::Result<usize> {
        let mut wire = self.wire.0.borrow_mut();
        let line = &mut wire.lines[self.end];
        let len = from.len().min(line.room.saturating_sub(line.bytes.len()));
        if wire.broken {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if len == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        wire.lines[self.end].bytes.extend(&from[..len]);
        Ok(len)
    }

    fn watch(&mut self, id: HandshakeId, interest: Interest) -> io::Result<()> {
        self.wire.0.borrow_mut().watched[self.end] = Some((id, interest));
        Ok(())
    }

    fn unwatch(&mut self) {
        self.wire.0.borrow_mut().watched[self.end] = None;
    }

    fn shutdown(&self) {
        for line in &mut self.wire.0.borrow_mut().lines {
            line.ended = true;
        }
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        self.wire.end(self.end);
        self.unwatch();
    }
}
