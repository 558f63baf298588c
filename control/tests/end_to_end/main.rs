//! Two appliances on one host, as their users meet them: what goes through, what ends, what stays.
//!
//! Each test starts processes of its own in a folder of its own, with ports that the kernel
//! chooses, so that the tests do not disturb each other.

mod capture;
mod death;
mod fallback;
mod floods;
mod hostile;
mod kills;
mod limits;
mod modes;
mod order;
mod quiet;
mod redis;
mod redis_server;
mod scribble;
mod streams;
mod support;
