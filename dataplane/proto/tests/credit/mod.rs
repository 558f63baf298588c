//! What the proof of the credit rules is made of.

pub(crate) mod graph;
pub(crate) mod world;
