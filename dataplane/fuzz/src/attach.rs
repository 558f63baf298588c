//! What a program and the appliance share: messages, memory, and the library on top of it.

pub(crate) mod message;
pub(crate) mod program;
pub(crate) mod worker;

use pollux_attach::layout::{Layout, Shape};

/// Connections of a session here, and bytes of each buffer.
const SLOTS: u16 = 3;
const BUFFER: u32 = 4096;
/// Where the documented layout has its lines and words (see `pollux_attach::layout`).
const EVENTS_TAKEN: usize = 512;
const SUBMISSIONS: usize = 1024;
const SUBMISSION_LINES: usize = 256;
const EVENTS: usize = SUBMISSIONS + SUBMISSION_LINES * 64;
const EVENT_LINES: usize = 256;
const LINES_END: usize = EVENTS + EVENT_LINES * 64;

fn layout() -> Layout {
    Layout::of(Shape::new(SLOTS, BUFFER, BUFFER).expect("a shape"))
}
