//! A descriptor kept for the moment when there is no other one left.
//!
//! A client in the queue of a listener that nobody takes wakes an event loop without end. So one
//! descriptor is given up to take it, and to close it at once.

use std::fs::File;
use std::os::fd::AsFd;

use rustix::net::{SocketFlags, accept_with};

/// The descriptor.
#[derive(Debug)]
pub(crate) struct Spare(Option<File>);

impl Spare {
    /// Takes one, if there is one.
    pub(crate) fn new() -> Spare {
        Spare(File::open("/dev/null").ok())
    }

    /// Takes the next client of a listener although no descriptor is left, and closes it.
    pub(crate) fn turn_away(&mut self, listener: impl AsFd) {
        self.0 = None;
        if let Ok(socket) = accept_with(listener, SocketFlags::CLOEXEC) {
            drop(socket);
        }
        self.0 = File::open("/dev/null").ok();
    }
}
