//! The embedded driver: a reliable connection in shared memory, without an adapter.

mod personality;

pub use personality::{INLINE_BYTES_MAX, Personality, UnknownPersonality};
