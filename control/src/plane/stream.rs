//! The TCP connection of a handshake, as the plane sees it.

use super::HandshakeId;
use std::io;

/// What the owner of a stream is to tell the plane of, by [`Plane::handle_ready`].
///
/// [`Plane::handle_ready`]: super::Plane::handle_ready
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interest {
    /// Bytes, or the end, can be read.
    Read,
    /// The same, or bytes can be written.
    ReadWrite,
}

/// A connected byte stream over which a handshake is held.
///
/// No method blocks: where nothing can be read or written now, the answer is
/// [`io::ErrorKind::WouldBlock`]. The other end may be anything; whatever it sends is judged by the
/// plane. In the product this is a TCP socket that may be shared with a program, in tests and
/// simulators a pipe in memory.
pub trait Stream {
    /// Looks at the first bytes without taking them; `Ok(0)` is the end of the stream.
    ///
    /// # Errors
    /// `WouldBlock`, or the reason why the stream is broken.
    fn peek(&self, into: &mut [u8]) -> io::Result<usize>;

    /// Takes bytes; `Ok(0)` is the end of the stream.
    ///
    /// # Errors
    /// `WouldBlock`, or the reason why the stream is broken.
    fn recv(&self, into: &mut [u8]) -> io::Result<usize>;

    /// Sends bytes and says how many were taken.
    ///
    /// # Errors
    /// `WouldBlock`, or the reason why the stream is broken.
    fn send(&self, from: &[u8]) -> io::Result<usize>;

    /// From now on [`Plane::handle_ready`] is to be called with `id` whenever the stream is ready.
    /// Called once at the start and again when the interest changes. Level-triggered: readiness that
    /// was not used up is told again. Needless calls do no harm.
    ///
    /// # Errors
    /// Why the stream cannot be watched.
    ///
    /// [`Plane::handle_ready`]: super::Plane::handle_ready
    fn watch(&mut self, id: HandshakeId, interest: Interest) -> io::Result<()>;

    /// The handshake is over: the plane wants to hear no more of it. Called before the stream is
    /// handed back, kept, or dropped.
    fn unwatch(&mut self);

    /// Ends both directions, since nobody may go on with a stream that has lost bytes.
    fn shutdown(&self);
}
