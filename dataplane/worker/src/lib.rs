//! The worker: one pinned thread, one loop, and everything in it.
//!
//! A worker owns a poll group of the provider with its queue pairs, the connections that run on
//! them, their timers, and the sessions of the programs it serves. It shares nothing: control
//! speaks to it over two single-producer rings of fixed-size values ([`Command`], [`Report`]),
//! programs over the shared memory of `pollux-attach`.
//!
//! Where to start reading: [`Worker::run`] is the loop, `pass.rs` one turn of it, `receive.rs`
//! leads from a completion to a connection and `transmit.rs` from a connection to work requests.
//!
//! On the way of a message there is no lock, no allocation, no system call and no log line; the
//! tests `no_alloc` and `no_syscall` prove it. Work per pass is bounded by `budget.rs` and does
//! not depend on the number of idle connections.

#![forbid(unsafe_code)]

mod app;
mod budget;
mod builtin;
mod clock;
mod commands;
mod conn;
mod core;
mod link;
mod mailbox;
mod pass;
mod receive;
mod session;
mod snapshot;
mod timers;
mod transmit;
mod wait;
mod worker;

pub use app::{App, Io};
pub use budget::{LLC_BYTES_MAX, SEND_QUEUE_MIN};
pub use builtin::{Builtin, PING_BYTES_MAX, PingEnd, PingRun, TAG_ECHO, TAG_PING};
pub use clock::{Clock, Tsc};
pub use conn::OpenConn;
pub use core::{Commands, Mailbox, Reports, WorkerLimits};
pub use link::{CreditFigures, FlowControl, Link};
pub use mailbox::{
    BufferSpan, Command, ConnId, ConnOutcome, ConnSpec, InlineRule, LinkId, LlcBytes, MessageSlots,
    Owner, PeerDone, PollMode, Report, SessionId, alert_token,
};
pub use pass::Progress;
pub use session::ServedSession;
pub use snapshot::{ConnFigures, LinkFigures, Snapshot, WorkerFigures};
pub use wait::{Rest, WaitSpec};
pub use worker::Worker;
