//! Programs against a small appliance of this test, in one process.

mod appliance;
mod death;
mod event_loop;
mod handshake;
mod hostile;
mod sleep;
mod streams;
mod support;
