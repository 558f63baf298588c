//! The helper thread's work without the thread.

use std::os::fd::OwnedFd;

use super::{FabricThread, Incoming};

impl FabricThread {
    /// Takes a connection as if it had been accepted.
    pub(in crate::soft) fn visit(&mut self, socket: OwnedFd) {
        self.incoming.push(Incoming { socket, peer: None });
    }

    /// Takes what has come on every connection, as far as one turn of the thread does.
    pub(in crate::soft) fn turn(&mut self) {
        let all = vec![true; self.incoming.len()];
        self.take_messages(&all);
    }

    /// Connections from peers.
    pub(in crate::soft) fn connections(&self) -> usize {
        self.incoming.len()
    }
}
