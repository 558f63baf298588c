//! A connection, over shared memory or over TCP.

use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::SendFlags;

use super::error::UpgradeError;
use super::inbound::{Answer, Interest, ReadStep, Readiness};
use super::outbound::{Pieces, Written};
use super::session::{CLOSE_PATIENCE, PUSH_PATIENCE, Patience, Shared};
use super::slot::SlotCell;
use super::wait::{Spin, Waited};
use crate::shared::{SlotState, SubmissionOp};

/// Part of the RMBE that may be consumed before the worker is told by a message of its own. Until
/// then the news travels with the next write. The peer can be stuck for want of room only while
/// there are more unread bytes than this, so reading on always tells.
const TELL_DIVISOR: u64 = 4;

/// Polls of a read before it lets go of the lock: about 1.5 us, twice a round trip over the soft
/// fabric.
const POLLS_IN_PLACE: u32 = 150;

/// Whether calls wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blocking {
    /// They wait until there is something to read or room to write.
    Wait,
    /// They return `WouldBlock`.
    Never,
}

/// The TCP option of that name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoDelay {
    /// Send small messages at once; the only way of accelerated streams.
    On,
    /// Let TCP collect them.
    Off,
}

/// Why a stream stays on TCP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FallbackReason {
    /// Diagnosis code of the CLC Decline (RFC 7609), 0 if there was none.
    pub code: u32,
    /// The reason in words.
    pub text: String,
}

/// A connection. Reads and writes also work through a shared reference, from several threads.
///
/// Semantics are those of a TCP socket: a read gives 0 at the end of the stream, after all data;
/// after a reset by the peer, or when the appliance is gone, reads fail with `ConnectionReset` once
/// the data is read, and writes at once; writes after the end of the own direction fail with
/// `BrokenPipe`. Dropping a stream closes it: what was written is still sent, and unread data makes
/// it a reset.
#[derive(Debug)]
pub struct Stream {
    carrier: Carrier,
}

#[derive(Debug)]
enum Carrier {
    Shared(Accelerated),
    Tcp {
        tcp: TcpStream,
        reason: FallbackReason,
    },
}

/// A stream over shared memory.
#[derive(Debug)]
struct Accelerated {
    shared: Arc<Shared>,
    slot: u16,
    /// Kept for its addresses; the bytes do not go there.
    tcp: TcpStream,
    nonblocking: AtomicBool,
    timeouts: Mutex<Timeouts>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Timeouts {
    read: Option<Duration>,
    write: Option<Duration>,
}

impl Stream {
    pub(super) fn from_answer(
        shared: &Arc<Shared>,
        tcp: TcpStream,
        answer: Answer,
    ) -> Result<Stream, UpgradeError> {
        let carrier = match answer {
            Answer::Accelerated { slot } => Carrier::Shared(Accelerated {
                shared: Arc::clone(shared),
                slot,
                tcp,
                nonblocking: AtomicBool::new(false),
                timeouts: Mutex::new(Timeouts::default()),
            }),
            Answer::Fallback { code, text } => Carrier::Tcp {
                tcp,
                reason: FallbackReason { code, text },
            },
            Answer::Failed(error) => return Err(error),
        };
        Ok(Stream { carrier })
    }

    /// Whether the bytes go over shared memory.
    pub fn is_accelerated(&self) -> bool {
        match &self.carrier {
            Carrier::Shared(_) => true,
            Carrier::Tcp { .. } => false,
        }
    }

    /// Why the bytes go over TCP, `None` if they do not.
    pub fn fallback_reason(&self) -> Option<&FallbackReason> {
        match &self.carrier {
            Carrier::Shared(_) => None,
            Carrier::Tcp { reason, .. } => Some(reason),
        }
    }

    /// The TCP socket: it carries the bytes of a stream that is not accelerated and can be polled
    /// then; of an accelerated one it has only addresses and options.
    pub fn tcp(&self) -> &TcpStream {
        match &self.carrier {
            Carrier::Shared(stream) => &stream.tcp,
            Carrier::Tcp { tcp, .. } => tcp,
        }
    }

    /// The TCP socket's descriptor; see [`Stream::tcp`].
    pub fn tcp_fd(&self) -> BorrowedFd<'_> {
        self.tcp().as_fd()
    }

    /// Address of the other end.
    ///
    /// # Errors
    ///
    /// Those of getpeername(2).
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.tcp().peer_addr()
    }

    /// Address of this end.
    ///
    /// # Errors
    ///
    /// Those of getsockname(2).
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp().local_addr()
    }

    /// Says whether calls wait.
    ///
    /// # Errors
    ///
    /// Those of fcntl(2), on TCP.
    pub fn set_blocking(&self, blocking: Blocking) -> io::Result<()> {
        let nonblocking = match blocking {
            Blocking::Wait => false,
            Blocking::Never => true,
        };
        match &self.carrier {
            Carrier::Shared(stream) => {
                stream.nonblocking.store(nonblocking, Ordering::Relaxed);
                Ok(())
            }
            Carrier::Tcp { tcp, .. } => tcp.set_nonblocking(nonblocking),
        }
    }

    /// Sets the TCP option. An accelerated stream never delays, whatever is asked.
    ///
    /// # Errors
    ///
    /// Those of setsockopt(2).
    pub fn set_nodelay(&self, nodelay: NoDelay) -> io::Result<()> {
        self.tcp().set_nodelay(match nodelay {
            NoDelay::On => true,
            NoDelay::Off => false,
        })
    }

    /// Whether small messages are sent at once.
    ///
    /// # Errors
    ///
    /// Those of getsockopt(2), on TCP.
    pub fn nodelay(&self) -> io::Result<bool> {
        match &self.carrier {
            Carrier::Shared(_) => Ok(true),
            Carrier::Tcp { tcp, .. } => tcp.nodelay(),
        }
    }

    /// Limits how long a read waits; it then fails with `WouldBlock`. `None` is for ever.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for a time of zero.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        match &self.carrier {
            Carrier::Shared(stream) => stream.set_timeouts(timeout, |all| &mut all.read),
            Carrier::Tcp { tcp, .. } => tcp.set_read_timeout(timeout),
        }
    }

    /// Limits how long a write waits; it then fails with `WouldBlock`. `None` is for ever.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for a time of zero.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        match &self.carrier {
            Carrier::Shared(stream) => stream.set_timeouts(timeout, |all| &mut all.write),
            Carrier::Tcp { tcp, .. } => tcp.set_write_timeout(timeout),
        }
    }

    /// Ends one or both directions. Ending the outgoing one is told to the peer; ending the
    /// incoming one is a local affair: reads give 0 from then on.
    ///
    /// # Errors
    ///
    /// Those of shutdown(2), on TCP.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        match &self.carrier {
            Carrier::Shared(stream) => {
                stream.shutdown(how);
                Ok(())
            }
            Carrier::Tcp { tcp, .. } => tcp.shutdown(how),
        }
    }

    /// Reads without consuming.
    ///
    /// # Errors
    ///
    /// As a read.
    pub fn peek(&self, into: &mut [u8]) -> io::Result<usize> {
        match &self.carrier {
            Carrier::Shared(stream) => stream.read(into, Consume::No),
            Carrier::Tcp { tcp, .. } => tcp.peek(into),
        }
    }

    /// Writes bytes of which the last one is urgent (RFC 7609; `MSG_OOB` of TCP).
    ///
    /// # Errors
    ///
    /// As a write.
    pub fn write_urgent(&self, from: &[u8]) -> io::Result<usize> {
        match &self.carrier {
            Carrier::Shared(stream) => {
                stream.write(&Pieces(&[IoSlice::new(from)]), SubmissionOp::Urgent)
            }
            Carrier::Tcp { tcp, .. } => {
                let flags = SendFlags::OOB | SendFlags::NOSIGNAL;
                Ok(rustix::net::send(tcp, from, flags)?)
            }
        }
    }

    /// What could be done now, `None` on TCP, where the kernel knows.
    pub fn readiness(&self) -> Option<Readiness> {
        match &self.carrier {
            Carrier::Shared(stream) => Some(stream.readiness()),
            Carrier::Tcp { .. } => None,
        }
    }

    /// Has [`super::Session::poll_events`] report the stream by `token`, the first time at once.
    /// Events come when something has changed, not while it stays so. Nothing happens on TCP: poll
    /// [`Stream::tcp_fd`] there.
    pub fn watch(&self, token: u64) {
        match &self.carrier {
            Carrier::Shared(stream) => {
                stream
                    .shared
                    .inbound()
                    .watch(&stream.shared, stream.slot, token);
            }
            Carrier::Tcp { .. } => {}
        }
    }

    /// Resets the connection: what was not sent is thrown away and the peer gets an error.
    pub fn abort(self) {
        match &self.carrier {
            Carrier::Shared(stream) => {
                let mut outbound = stream.shared.outbound();
                outbound.abort(stream.slot, stream.cell());
                stream.shared.wake_worker(outbound);
            }
            Carrier::Tcp { tcp, .. } => {
                // Without the option the stream is closed in the ordinary way.
                let _ = rustix::net::sockopt::set_socket_linger(tcp, Some(Duration::ZERO));
            }
        }
    }
}

/// Whether a read takes the bytes away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Consume {
    Yes,
    No,
}

impl Accelerated {
    fn cell(&self) -> &SlotCell {
        // A slot that the session does not have is refused when the appliance names it.
        &self.shared.cells[usize::from(self.slot)]
    }

    fn set_timeouts(
        &self,
        timeout: Option<Duration>,
        which: impl FnOnce(&mut Timeouts) -> &mut Option<Duration>,
    ) -> io::Result<()> {
        if timeout == Some(Duration::ZERO) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut timeouts = self.timeouts.lock().unwrap_or_else(PoisonError::into_inner);
        *which(&mut timeouts) = timeout;
        Ok(())
    }

    fn timeouts(&self) -> Timeouts {
        *self.timeouts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a direction, or says why it does not.
    fn wait(
        &self,
        interest: Interest,
        timeout: Option<Duration>,
        deadline: &mut Option<Instant>,
    ) -> io::Result<()> {
        if deadline.is_none() {
            *deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        }
        match self.shared.wait(interest, Spin::First, None, *deadline)? {
            Waited::Ready => Ok(()),
            Waited::TimedOut => Err(Errno::AGAIN.into()),
        }
    }

    /// A call that would have to wait must not.
    fn would_block(&self) -> io::Error {
        self.shared.push_held_now();
        if self.shared.is_time_to_look() {
            self.shared.inbound().pump_control(&self.shared);
        }
        Errno::AGAIN.into()
    }

    fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(Ordering::Relaxed)
    }

    fn read(&self, into: &mut [u8], consume: Consume) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        let mut deadline = None;
        loop {
            if self.cell().is_read_ended() {
                return Ok(0);
            }
            // Known before the ring is looked at: what the state says is behind all data.
            let state = self.state();
            match self.try_read(into, consume, self.polls_in_place()) {
                ReadStep::Bytes(bytes) => return Ok(bytes),
                ReadStep::Copy { .. } | ReadStep::Busy => {
                    rustix::thread::sched_yield();
                    continue;
                }
                ReadStep::Empty => {}
            }
            if state.contains(SlotState::RESET) {
                return Err(Errno::CONNRESET.into());
            }
            if state.contains(SlotState::END_OF_STREAM) {
                return Ok(0);
            }
            if state.contains(SlotState::CLOSED) {
                return Err(Errno::CONNRESET.into());
            }
            if state != self.state() {
                continue;
            }
            if self.is_nonblocking() {
                return Err(self.would_block());
            }
            self.wait(
                Interest::Readable(self.slot),
                self.timeouts().read,
                &mut deadline,
            )?;
        }
    }

    /// The connection's state, with the end of the appliance as a reset.
    fn state(&self) -> SlotState {
        let state = self.cell().state();
        if self.shared.is_gone() {
            state | SlotState::RESET
        } else {
            state
        }
    }

    /// Reads what is there. If nothing is, polls in place so many times: an answer that is on its
    /// way is then taken under the lock that found it.
    #[inline]
    fn try_read(&self, into: &mut [u8], consume: Consume, mut polls: u32) -> ReadStep {
        let (shared, cell, slot) = (&self.shared, self.cell(), self.slot);
        let rmbe_bytes = shared.layout.shape().rmbe_bytes();
        let mut inbound = shared.inbound();
        inbound.pump(shared);
        while polls > 0 && !inbound.is_ready(shared, Interest::Readable(slot)) {
            std::hint::spin_loop();
            inbound.pump(shared);
            polls -= 1;
        }
        let bytes = match inbound.read(cell, slot, rmbe_bytes, into) {
            ReadStep::Bytes(bytes) => bytes,
            ReadStep::Copy { from, bytes } => {
                if inbound.is_copying(slot) {
                    drop(inbound);
                    self.copy_out(from, &mut into[..bytes]);
                    inbound = shared.inbound();
                    inbound.finish_copy(slot);
                } else {
                    self.copy_out(from, &mut into[..bytes]);
                }
                bytes
            }
            step @ (ReadStep::Empty | ReadStep::Busy) => return step,
        };
        if consume == Consume::Yes {
            let consumed = cell.consumed() + bytes as u64;
            cell.set_consumed(consumed);
            drop(inbound);
            let untold = consumed.saturating_sub(cell.told());
            if untold >= u64::from(rmbe_bytes) / TELL_DIVISOR {
                let mut outbound = shared.outbound();
                outbound.kick(slot, cell);
                shared.wake_worker(outbound);
            }
        }
        ReadStep::Bytes(bytes)
    }

    /// Copies received bytes from total `from` on out of the RMBE.
    fn copy_out(&self, from: u64, into: &mut [u8]) {
        let Some(base) = self.shared.layout.rmbe_offset(self.slot) else {
            return;
        };
        let size = self.shared.layout.shape().rmbe_bytes() as usize;
        let start = from as usize & (size - 1);
        let (first, second) = into.split_at_mut(into.len().min(size - start));
        let segment = &self.shared.segment;
        let copied = segment
            .copy_out(base + start, first)
            .and_then(|()| segment.copy_out(base, second));
        debug_assert_eq!(copied, Ok(()), "the layout lies inside the segment");
    }

    fn write(&self, pieces: &Pieces<'_>, op: SubmissionOp) -> io::Result<usize> {
        if pieces.bytes() == 0 {
            return Ok(0);
        }
        let mut deadline = None;
        let mut fresh = Fresh::No;
        loop {
            let state = self.state();
            if state.contains(SlotState::RESET) {
                return Err(Errno::CONNRESET.into());
            }
            if state.contains(SlotState::CLOSED) {
                return Err(Errno::PIPE.into());
            }
            match self.try_write(pieces, op) {
                Written::Bytes(bytes) => return Ok(bytes),
                Written::Ended => return Err(Errno::PIPE.into()),
                Written::Copy(_) | Written::Busy => {
                    rustix::thread::sched_yield();
                    continue;
                }
                Written::Full => {}
            }
            if fresh == Fresh::No {
                // Room may have been announced in the ring.
                self.shared.inbound().pump(&self.shared);
                fresh = Fresh::Yes;
                continue;
            }
            if self.is_nonblocking() {
                return Err(self.would_block());
            }
            self.wait(
                Interest::Writable(self.slot),
                self.timeouts().write,
                &mut deadline,
            )?;
        }
    }

    #[inline]
    fn try_write(&self, pieces: &Pieces<'_>, op: SubmissionOp) -> Written {
        let (shared, cell, slot) = (&self.shared, self.cell(), self.slot);
        let target = shared.target(slot, cell);
        let mut outbound = shared.outbound();
        let bytes = match outbound.write(&target, pieces, op) {
            Written::Bytes(bytes) => bytes,
            Written::Copy(bytes) => {
                drop(outbound);
                target.copy_in(cell.prepared(), pieces, bytes);
                outbound = shared.outbound();
                outbound.finish_copy(slot, cell, bytes, op);
                bytes
            }
            step @ (Written::Full | Written::Busy | Written::Ended) => return step,
        };
        let held = outbound.has_held();
        shared.wake_worker(outbound);
        if held {
            shared.push_held(self.patience());
        }
        Written::Bytes(bytes)
    }

    fn shutdown(&self, how: Shutdown) {
        if matches!(how, Shutdown::Read | Shutdown::Both) {
            let mut inbound = self.shared.inbound();
            self.cell().end_reading();
            inbound.notify_slot(&self.shared, self.slot);
        }
        if matches!(how, Shutdown::Write | Shutdown::Both) {
            self.end_writing();
            self.shared.push_held(self.patience());
            self.shared.inbound().notify_slot(&self.shared, self.slot);
        }
    }

    /// Ends the outgoing direction behind what another thread may be writing.
    fn end_writing(&self) {
        loop {
            let mut outbound = self.shared.outbound();
            if !outbound.is_copying(self.slot) {
                outbound.end(self.slot, self.cell());
                self.shared.wake_worker(outbound);
                return;
            }
            drop(outbound);
            rustix::thread::sched_yield();
        }
    }

    /// How often a read polls before it lets go of the lock.
    fn polls_in_place(&self) -> u32 {
        let shared = &self.shared;
        if self.is_nonblocking() || shared.is_single_core() || shared.spin.is_zero() {
            0
        } else {
            POLLS_IN_PLACE
        }
    }

    /// How long writes stand by for room in the submission ring.
    fn patience(&self) -> Patience {
        if self.is_nonblocking() {
            return Patience::For(PUSH_PATIENCE);
        }
        self.timeouts()
            .write
            .map_or(Patience::UntilDone, Patience::For)
    }

    fn readiness(&self) -> Readiness {
        self.shared.inbound().pump(&self.shared);
        let mut readiness = self.shared.readiness(self.slot);
        if self.cell().is_read_ended() {
            readiness.readable = 0;
            readiness.state |= SlotState::END_OF_STREAM;
        }
        readiness
    }
}

/// Whether the ring of events was looked at since the call began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fresh {
    Yes,
    No,
}

impl Drop for Accelerated {
    fn drop(&mut self) {
        self.shared.inbound().unwatch(self.slot);
        self.shared.release(self.slot, SubmissionOp::Close);
        self.shared
            .push_held(Patience::For(if self.is_nonblocking() {
                PUSH_PATIENCE
            } else {
                CLOSE_PATIENCE
            }));
    }
}

impl Read for &Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match &self.carrier {
            Carrier::Shared(stream) => stream.read(into, Consume::Yes),
            Carrier::Tcp { tcp, .. } => (&*tcp).read(into),
        }
    }
}

impl Write for &Stream {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match &self.carrier {
            Carrier::Shared(stream) => {
                stream.write(&Pieces(&[IoSlice::new(from)]), SubmissionOp::Kick)
            }
            Carrier::Tcp { tcp, .. } => (&*tcp).write(from),
        }
    }

    fn write_vectored(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        match &self.carrier {
            Carrier::Shared(stream) => stream.write(&Pieces(from), SubmissionOp::Kick),
            Carrier::Tcp { tcp, .. } => (&*tcp).write_vectored(from),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        (&*self).read(into)
    }
}

impl Write for Stream {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        (&*self).write(from)
    }

    fn write_vectored(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        (&*self).write_vectored(from)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
