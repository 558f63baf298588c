//! Numbers with meaning that travel between the rules and their owner.

/// How much of the stream had been handed out when a transmit was made.
///
/// The owner keeps it beside the work requests of a [`Transmit`](crate::conn::Transmit) and gives
/// it back to [`Conn::handle_completed`](crate::conn::Conn::handle_completed) when a completion
/// covers them. Later marks cover earlier ones, so that the newest completed mark is enough.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct SentMark(pub u64);
