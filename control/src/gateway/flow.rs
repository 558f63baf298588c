//! Moving bytes from one end of a connection to the other.
//!
//! # What is known about an end
//!
//! Nothing is asked twice: an end remembers what it was told. Kernel sockets are watched
//! edge-triggered, so that neither a full sink nor a slow reader costs a change of the epoll set
//! for each message; streams in shared memory report changes anyway. So both are alike:
//!
//! - *readable* is set by an event and cleared by a read that gives less than was asked for. What
//!   comes after that read is a new event.
//! - *writable* is cleared by a write that takes less than was offered, and set by an event.
//! - *fate* is set by an event and never taken back. With the end ahead, a short read is not the
//!   last one: the end itself has to be read.
//!
//! # What is kept
//!
//! An end keeps what it did not take, at most one read. While it keeps something, nothing is read
//! for it.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use pollux_attach::client::Readiness;
use pollux_attach::shared::SlotState;
use rustix::event::epoll::{self, EventFlags};
use rustix::io::Errno;

use super::socket::Socket;

/// Bytes of one read: a whole ring of a stream at its default size, and enough that the cost of
/// the system call does not count.
pub(super) const READ_BYTES: usize = 64 << 10;

/// Bytes that one direction of a connection may move before others get their turn.
const TURN_BYTES: u64 = 4 * READ_BYTES as u64;

/// Buffers that are kept for the next end in need.
const SPARE_MAX: usize = 32;

/// What moving bytes needs, shared by all connections.
#[derive(Debug)]
pub(super) struct Means {
    pub(super) epoll: OwnedFd,
    scratch: Box<[u8]>,
    spare: Vec<Vec<u8>>,
}

/// How an end will end, as far as it has been told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    Open,
    /// There is an end of the stream behind the bytes.
    Ending,
    /// There is an error behind the bytes.
    Broken,
}

/// Which events of a kernel socket are wanted besides arriving bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    Reads,
    ReadsAndWrites,
}

/// Whether a direction has come to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Open,
    Ended,
}

/// One end of a connection that is forwarded.
#[derive(Debug)]
pub(super) struct End {
    socket: Socket,
    token: u64,
    readable: bool,
    writable: bool,
    fate: Fate,
    incoming: Direction,
    outgoing: Direction,
    wanted: Wanted,
    kept: Kept,
}

/// Bytes that an end has yet to take.
#[derive(Debug, Default)]
struct Kept {
    bytes: Vec<u8>,
    taken: usize,
}

/// Whether a direction has something left to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Nothing before the next event.
    Waits,
    /// It has only used up its turn.
    More,
}

impl Means {
    pub(super) fn new() -> io::Result<Means> {
        Ok(Means {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            scratch: vec![0; READ_BYTES].into_boxed_slice(),
            spare: Vec::new(),
        })
    }

    fn take_back(&mut self, kept: &mut Kept) {
        let mut bytes = std::mem::take(&mut kept.bytes);
        kept.taken = 0;
        if bytes.capacity() > 0 && self.spare.len() < SPARE_MAX {
            bytes.clear();
            self.spare.push(bytes);
        }
    }
}

impl Kept {
    fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    fn keep(&mut self, bytes: &[u8], spare: &mut Vec<Vec<u8>>) {
        debug_assert!(
            self.is_empty(),
            "nothing is read for an end that keeps something"
        );
        self.bytes = spare
            .pop()
            .unwrap_or_else(|| Vec::with_capacity(READ_BYTES));
        self.bytes.extend_from_slice(bytes);
    }
}

impl Wanted {
    fn flags(self) -> EventFlags {
        let reads = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
        match self {
            Wanted::Reads => reads,
            Wanted::ReadsAndWrites => reads | EventFlags::OUT,
        }
    }
}

/// Adds a socket that is not yet forwarded, to learn when its connection attempt is decided.
pub(super) fn watch_dialed(epoll: &OwnedFd, fd: BorrowedFd<'_>, token: u64) -> io::Result<()> {
    let data = epoll::EventData::new_u64(token);
    Ok(epoll::add(
        epoll,
        fd,
        data,
        EventFlags::OUT | EventFlags::ET,
    )?)
}

/// Takes a socket out of the set; necessary even before it is closed, because another process or
/// thread may still hold a duplicate.
pub(super) fn unwatch(epoll: &OwnedFd, socket: &Socket) {
    if let Some(fd) = socket.kernel_fd() {
        // One that was never added is not there, as wanted.
        let _ = epoll::delete(epoll, fd);
    }
}

impl End {
    /// Begins to forward a connected socket; its events come under `token`.
    ///
    /// # Errors
    /// The kernel's refusal to watch the socket, which comes back.
    pub(super) fn begin(
        socket: Socket,
        token: u64,
        epoll: &OwnedFd,
    ) -> Result<End, (Socket, io::Error)> {
        let wanted = Wanted::Reads;
        if let Some(fd) = socket.kernel_fd() {
            let data = epoll::EventData::new_u64(token);
            if let Err(errno) = epoll::add(epoll, fd, data, wanted.flags()) {
                return Err((socket, errno.into()));
            }
        }
        if let Some(stream) = socket.accelerated() {
            stream.watch(token);
        }
        Ok(End {
            socket,
            token,
            readable: false,
            writable: true,
            fate: Fate::Open,
            incoming: Direction::Open,
            outgoing: Direction::Open,
            wanted,
            kept: Kept::default(),
        })
    }

    /// Whether the end lives in the session's memory.
    pub(super) fn is_accelerated(&self) -> bool {
        self.socket.accelerated().is_some()
    }

    /// Whether everything that will ever be written to the end was written.
    pub(super) fn is_done(&self) -> bool {
        self.outgoing == Direction::Ended
    }

    /// Whether the end has failed in a way that matters: an error behind the end of both
    /// directions does not.
    fn is_broken(&self) -> bool {
        let over = self.incoming == Direction::Ended && self.outgoing == Direction::Ended;
        self.fate == Fate::Broken && !over
    }

    /// Takes note of an event of the session, in the kernel's words. Returns whether there is
    /// something to do.
    #[inline]
    pub(super) fn hear_session(&mut self, readiness: &Readiness) -> bool {
        let state = readiness.state;
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN, readiness.readable > 0);
        flags.set(EventFlags::OUT, readiness.writable > 0);
        flags.set(EventFlags::RDHUP, state.contains(SlotState::END_OF_STREAM));
        flags.set(EventFlags::HUP, state.contains(SlotState::CLOSED));
        flags.set(EventFlags::ERR, state.contains(SlotState::RESET));
        self.hear(flags)
    }

    /// Takes note of an event. Returns whether there is something to do.
    #[inline]
    pub(super) fn hear(&mut self, flags: EventFlags) -> bool {
        let fate = if flags.contains(EventFlags::ERR) {
            Fate::Broken
        } else if flags.intersects(EventFlags::RDHUP | EventFlags::HUP) {
            Fate::Ending
        } else {
            Fate::Open
        };
        let news = fate > self.fate;
        self.fate = self.fate.max(fate);
        let readable = flags.contains(EventFlags::IN) || news;
        // An attempt to write tells what is wrong.
        let writable = flags.intersects(EventFlags::OUT | EventFlags::HUP | EventFlags::ERR);
        self.readable |= readable;
        self.writable |= writable;
        news || readable || (writable && !self.kept.is_empty())
    }

    /// A read has given `bytes` of at most `asked`.
    #[inline]
    fn has_read(&mut self, bytes: usize, asked: usize) {
        if bytes == 0 {
            self.incoming = Direction::Ended;
        }
        if bytes < asked && self.fate == Fate::Open {
            self.readable = false;
        }
    }

    /// Writes what is offered, as far as it is taken.
    #[inline]
    fn write(&mut self, from: &[u8], epoll: &OwnedFd) -> io::Result<usize> {
        let mut taken = 0;
        while taken < from.len() {
            match self.socket.write(&from[taken..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                // A stream takes what there is room for up to the end of its ring.
                Ok(bytes) => taken += bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.writable = false;
                    self.want(Wanted::ReadsAndWrites, epoll)?;
                    break;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(taken)
    }

    /// Changes which events of a kernel socket are told. One that is there already is told again.
    fn want(&mut self, wanted: Wanted, epoll: &OwnedFd) -> io::Result<()> {
        if self.wanted != wanted
            && let Some(fd) = self.socket.kernel_fd()
        {
            self.wanted = wanted;
            let data = epoll::EventData::new_u64(self.token);
            epoll::modify(epoll, fd, data, wanted.flags())?;
        }
        Ok(())
    }

    /// Writes what was kept. Returns whether nothing is kept any more.
    fn write_kept(&mut self, means: &mut Means, moved: &mut u64) -> io::Result<bool> {
        if !self.writable {
            return Ok(false);
        }
        let mut kept = std::mem::take(&mut self.kept);
        let taken = self.write(&kept.bytes[kept.taken..], &means.epoll);
        let bytes = *taken.as_ref().unwrap_or(&0);
        kept.taken += bytes;
        *moved += bytes as u64;
        if kept.taken < kept.bytes.len() {
            self.kept = kept;
            return taken.map(|_| false);
        }
        means.take_back(&mut kept);
        self.want(Wanted::Reads, &means.epoll)?;
        Ok(true)
    }

    /// Ends the outgoing direction, behind everything that was written.
    fn end_outgoing(&mut self) -> io::Result<()> {
        if self.outgoing == Direction::Open {
            self.outgoing = Direction::Ended;
            self.socket.shutdown_write()?;
        }
        Ok(())
    }

    /// Takes leave of the socket and gives the buffer back.
    fn leave(mut self, means: &mut Means) -> Socket {
        means.take_back(&mut self.kept);
        unwatch(&means.epoll, &self.socket);
        self.socket
    }

    /// Closes an end of which both directions are over.
    pub(super) fn close(self, means: &mut Means) {
        drop(self.leave(means));
    }

    /// Resets the end.
    pub(super) fn reset(self, means: &mut Means) {
        self.leave(means).reset();
    }
}

/// Moves bytes of one direction until nothing is there, nothing is taken, or the turn is used up.
/// `moved` is increased by the bytes written.
///
/// # Errors
/// One of the ends is reset or has failed; the connection cannot go on.
#[inline]
pub(super) fn pump(
    from: &mut End,
    to: &mut End,
    means: &mut Means,
    moved: &mut u64,
) -> io::Result<Progress> {
    let limit = *moved + TURN_BYTES;
    loop {
        if !to.kept.is_empty() && !to.write_kept(means, moved)? {
            // What is kept may never be taken; the reset is not to wait for it.
            return waits(from);
        }
        if from.incoming == Direction::Ended {
            to.end_outgoing()?;
            return waits(from);
        }
        if !from.readable {
            return Ok(Progress::Waits);
        }
        if *moved >= limit {
            return Ok(Progress::More);
        }
        let bytes = match from.socket.read(&mut means.scratch) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                from.readable = false;
                continue;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        from.has_read(bytes, means.scratch.len());
        let taken = to.write(&means.scratch[..bytes], &means.epoll)?;
        *moved += taken as u64;
        if taken < bytes {
            to.kept.keep(&means.scratch[taken..bytes], &mut means.spare);
        }
    }
}

/// Waits for the next event, unless an error is the last one.
fn waits(from: &End) -> io::Result<Progress> {
    if from.is_broken() {
        Err(Errno::CONNRESET.into())
    } else {
        Ok(Progress::Waits)
    }
}
