//! What has to be true in every world, whoever does what.
//!
//! | file | asserts |
//! |---|---|
//! | `stream.rs` | bytes read are a prefix of the bytes written; an end or a reset has a cause |
//! | `links.rs` | which faults excuse which connections |
//! | `cursors.rs` | a message announces exactly the WRITEs posted before it; cursors never go back |
//! | `work.rs` | each work request ends exactly once and in order; memory stays until it is covered |
//!
//! Credits, the census and liveness are judged by the world itself (`world/`), which alone knows
//! when it is quiet.

pub mod cursors;
pub mod links;
pub mod stream;
pub mod work;
