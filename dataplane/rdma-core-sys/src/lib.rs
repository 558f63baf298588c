//! libibverbs, opened at run time: the structs, constants and symbols that the verbs driver uses.
//!
//! Names are those of the C header, so that its manual pages apply. The structs that the library fills or
//! reads are made by [`zeroed`], never field by field: fields that a later header gives a meaning to must
//! be zero. What runs for every message ([`ibv_context_ops::post_send`], `post_recv`, `poll_cq`,
//! `req_notify_cq`) is called through the function table in the context, as the inline functions of the header
//! do; there are no symbols for it.
//!
//! Nothing here is safe to call by itself; the driver wraps it.

mod calls;
#[allow(
    unsafe_code,
    reason = "dlopen and dlvsym, and the casts of what they return"
)]
mod library;
mod types;
#[allow(
    unsafe_code,
    reason = "all bytes zero is a value of each struct that is listed there"
)]
mod zeroed;

pub use calls::{PollCq, PostRecv, PostSend, ReqNotifyCq};
pub use library::{Library, LoadError, SYMBOL_VERSIONS};
pub use types::*;
pub use zeroed::{Zeroable, zeroed};
