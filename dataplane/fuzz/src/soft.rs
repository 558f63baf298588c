//! The embedded fabric: what a peer writes into the memory that it shares, and says on its sockets.

pub(crate) mod fabric;
pub(crate) mod format;
pub(crate) mod peer;
pub(crate) mod table;

use pollux_provider::soft::testing::RING_AT;
use pollux_ring::LINE_BYTES;

/// Lines of the ring of a queue pair as it is made here.
const RING_LINES: u64 = 256;
/// Bytes of its port.
const PORT_BYTES: usize = RING_AT + RING_LINES as usize * LINE_BYTES;
/// Memory of an honest device: what its peer may write, then what nobody may, then receive slots.
const MEMORY_BYTES: usize = 8192;
const OPEN: std::ops::Range<usize> = 1024..2048;
const SLOTS_AT: usize = 4096;
const SLOT_BYTES: u32 = 64;
const SLOTS: u64 = 16;
/// Most requests that one pass executes for one queue pair.
const REQUESTS_PER_PASS: u64 = 64;

/// A place in or next to the open memory, from its beginning: half of the numbers lie about one of its
/// edges.
fn place(number: u16) -> i64 {
    let (near, small) = (i64::from(number >> 9) - 64, i64::from(number & 0x1ff));
    match number & 3 {
        0 => near,
        1 => OPEN.len() as i64 + near,
        _ => small * 2,
    }
}

/// Offset in a port of the line at a position of its ring.
fn line_at(position: u64) -> usize {
    RING_AT + (position % RING_LINES) as usize * LINE_BYTES
}

/// A line as it stands in the ring at a position.
fn line_bytes(words: &[u64; 7], position: u64) -> Vec<u8> {
    let sequence = [position + 1];
    words
        .iter()
        .chain(&sequence)
        .flat_map(|word| word.to_le_bytes())
        .collect()
}
