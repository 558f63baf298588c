//! Applications that live inside a worker: called in its thread, run to completion.
//!
//! They are the shortest way to the data plane: no other core is involved on this host. The
//! price is that they share the worker's time, so a call must return within microseconds and
//! may neither block nor allocate.

use crate::mailbox::{ConnId, ConnOutcome};
use pollux_proto::event::EventSet;

/// What an application may do with its connections during a call.
pub trait Io {
    /// Nanoseconds of the worker's clock, read anew.
    fn now(&self) -> u64;
    /// Bytes that [`Io::read`] would deliver now; 0 for a connection that is not the application's.
    fn readable(&self, conn: ConnId) -> usize;
    /// Bytes that [`Io::write`] would take now.
    fn writable(&self, conn: ConnId) -> usize;
    /// Takes up to `into.len()` received bytes and returns how many there were.
    fn read(&mut self, conn: ConnId, into: &mut [u8]) -> usize;
    /// Queues up to `from.len()` bytes for sending and returns how many found room.
    fn write(&mut self, conn: ConnId, from: &[u8]) -> usize;
    /// Ends the outgoing direction after what has been written (half close).
    fn shutdown_write(&mut self, conn: ConnId);
    /// Closes the connection; unread bytes make it a reset, as in the kernel.
    fn close(&mut self, conn: ConnId);
}

/// An application inside a worker.
pub trait App: Send {
    /// What control can ask of it.
    type Order: Send + std::fmt::Debug;
    /// What it tells control.
    type Report: Send + std::fmt::Debug;

    /// Control has sent an order. At most one report may be returned by a call.
    fn order<I: Io>(&mut self, order: Self::Order, io: &mut I) -> Option<Self::Report>;
    /// A connection of its own is open; `tag` is what control gave it.
    fn opened<I: Io>(&mut self, conn: ConnId, tag: u64, io: &mut I);
    /// Something happened on a connection.
    fn ready<I: Io>(
        &mut self,
        conn: ConnId,
        tag: u64,
        events: EventSet,
        io: &mut I,
    ) -> Option<Self::Report>;
    /// A connection has ended; its identifier may be given to another one after this call.
    fn closed(&mut self, conn: ConnId, tag: u64, outcome: ConnOutcome) -> Option<Self::Report>;
}
