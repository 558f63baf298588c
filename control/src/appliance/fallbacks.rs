//! Which connections stayed on TCP, and why.

use pollux_proto::diagnosis::DecidedBy;
use pollux_proto::link::Role;
use pollux_wire::clc::Diagnosis;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::SystemTime;

/// The newest fallbacks kept one by one; all are counted by their reason.
const KEPT: usize = 256;

/// One connection that stayed on TCP.
#[derive(Clone, Debug)]
pub(crate) struct Fallback {
    pub(crate) at: SystemTime,
    pub(crate) role: Role,
    pub(crate) peer: SocketAddr,
    pub(crate) by: DecidedBy,
    pub(crate) diagnosis: Diagnosis,
    pub(crate) text: String,
}

/// All fallbacks since the start.
#[derive(Debug, Default)]
pub(crate) struct Fallbacks {
    newest: VecDeque<Fallback>,
    counts: BTreeMap<(DecidedBy, u32), u64>,
}

impl Fallbacks {
    pub(crate) fn record(&mut self, fallback: Fallback) {
        *self
            .counts
            .entry((fallback.by, fallback.diagnosis.0))
            .or_default() += 1;
        if self.newest.len() == KEPT {
            self.newest.pop_front();
        }
        self.newest.push_back(fallback);
    }

    /// The newest ones, oldest first.
    pub(crate) fn newest(&self) -> impl Iterator<Item = &Fallback> {
        self.newest.iter()
    }

    /// How often a reason occurred.
    pub(crate) fn count(&self, by: DecidedBy, diagnosis: Diagnosis) -> u64 {
        self.counts.get(&(by, diagnosis.0)).copied().unwrap_or(0)
    }
}
