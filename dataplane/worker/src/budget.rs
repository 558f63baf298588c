//! The limits of one pass of the worker's loop, and the relations between them.
//!
//! Every loop inside a pass ends at one of these numbers, so that a pass is bounded whatever the
//! peers and programs do, and no source of work can starve the others.

/// Commands from control taken in one pass.
pub(crate) const COMMANDS_PER_PASS: usize = 8;

/// Completions reaped in one pass. Sixteen amortises the reap over a burst and still lets the
/// other sources of work run every few microseconds.
pub(crate) const COMPLETIONS_PER_PASS: usize = 16;

/// Submissions taken from one program's session in one pass.
pub(crate) const SUBMISSIONS_PER_SESSION: usize = 16;

/// Turns of [`SUBMISSIONS_PER_SESSION`] for what a program left behind at its end: more than its
/// ring holds.
pub(crate) const LAST_SUBMISSION_TURNS: usize = 4096;

/// Connections waiting for their turn that are served in one pass.
pub(crate) const WAITERS_PER_PASS: usize = 32;

/// Transmissions (at most two WRITEs and one CDC each) of one connection before it goes to the
/// end of the queue.
pub(crate) const TRANSMITS_PER_TURN: usize = 4;

/// Most work requests that one transmission needs: two WRITEs and the CDC.
pub(crate) const WORK_REQUESTS_PER_TRANSMIT: u32 = 3;

/// Send slots of a link that data may never take: an LLC message must always find one, or the
/// peer's TEST LINK would go unanswered behind a full queue and the peer would drop the link.
pub(crate) const SEND_SLOTS_FOR_LLC: u32 = 4;

/// Idle passes between two readings of the clock; about half a microsecond of polling. Timers and
/// RNR delays are counted in tens of microseconds, so a staler clock would not be noticed.
pub(crate) const IDLE_PASSES_PER_CLOCK: u32 = 16;

/// Longest LLC message the worker carries for control, in bytes: ADD LINK with one rtoken is 88.
pub const LLC_BYTES_MAX: usize = 96;

/// LLC messages of one link waiting for send slots.
pub(crate) const LLC_BACKLOG: usize = 8;

/// Smallest send queue a link may have.
pub const SEND_QUEUE_MIN: u32 = 2 * (SEND_SLOTS_FOR_LLC + WORK_REQUESTS_PER_TRANSMIT);

// One turn must fit in the smallest queue, or a connection could wait for ever.
const _: () = assert!(SEND_QUEUE_MIN > SEND_SLOTS_FOR_LLC + WORK_REQUESTS_PER_TRANSMIT);
// A pass that reaps a full batch must be able to answer each message with one transmission later.
const _: () = assert!(WAITERS_PER_PASS >= COMPLETIONS_PER_PASS);

/// Table entries copied into an operator's snapshot in one pass.
pub(crate) const SNAPSHOT_PER_PASS: usize = 16;
