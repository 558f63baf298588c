//! The client library: TCP connections of a program, carried by the appliance.
//!
//! [`Session::open`] joins the appliance; [`Session::connect`], [`Session::upgrade`] and
//! [`Session::listen`] give [`Stream`]s. A stream that the peer or the appliance does not want to
//! accelerate stays on TCP behind the same type.
//!
//! # Threads
//!
//! A session may be used by any number of threads. Two locks protect it: one on what comes in, one
//! on what goes out; where both are held, the one on what comes in was taken first. No lock is held
//! over a large copy or a sleep.
//!
//! # Waiting
//!
//! A thread that has to wait polls shared memory for [`SessionOptions::spin`], yielding the core
//! now and then, and distributes whatever comes for other threads. Then it sleeps. One sleeper, the
//! leader, raises the flag that makes the worker wake the program, and polls the descriptors of the
//! session; the others wait for the leader. Whoever takes an event out of the ring wakes the
//! sleepers it concerns; a leader that is done wakes the next one to lead.
//!
//! # Event loops
//!
//! One thread can serve many streams without blocking: [`Stream::watch`] gives a stream a token,
//! [`Session::poll_events`] tells what happened, and before the thread sleeps on
//! [`Session::event_fd`] it calls [`Session::arm`]. [`Session::upgrade_start`] begins an upgrade
//! whose answer comes as an event.

mod error;
mod inbound;
mod listener;
mod outbound;
mod session;
mod slot;
mod stream;
mod wait;

pub use error::{OpenError, UpgradeError};
pub use inbound::{Readiness, StreamEvent};
pub use listener::Listener;
pub use session::{Armed, RequestId, Session, SessionOptions};
pub use stream::{Blocking, FallbackReason, NoDelay, Stream};
