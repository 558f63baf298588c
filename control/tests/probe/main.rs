//! The search for the inline size, against soft devices of every personality.

mod failures;
mod memory;
mod property;
mod sequences;
mod support;
