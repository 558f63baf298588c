//! JSON-RPC 2.0 over a Unix stream socket, one message a line.
//!
//! [`RpcServer`] is a state machine on the control thread's [`Reactor`](crate::reactor::Reactor):
//! it never blocks, holds bounded memory for each client whatever the client sends, and hands
//! checked [`Request`]s to [`Methods`]. An answer may come later, by [`Ticket`]. [`Client`] is the
//! blocking other end with a time limit. The methods, their parameters and their documentation are
//! one table, [`METHODS`], which `rpc.discover` prints.

mod client;
mod dispatch;
mod error;
mod frame;
mod methods;
mod params;
mod server;

pub use self::client::{CALL_TIMEOUT, Client, ClientError};
pub use self::dispatch::{Call, Methods, Reply, Ticket};
pub use self::error::RpcError;
pub use self::frame::REQUEST_BYTES_MAX;
pub use self::methods::{
    Answer, InlineSetting, InlineUse, LATENCY_BYTES_MAX, LATENCY_SECONDS, LatencyRequest, METHODS,
    Method, MethodSpec, Need, ParamKind, ParamSpec, PollRequest, Request, discover,
};
pub use self::server::{CLIENTS_MAX, RpcServer};
