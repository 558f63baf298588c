//! Ways in for the fuzz targets (feature `testing`): the formats and tables that peers reach, which are
//! nobody else's affair. Nothing here is used by the driver.

use std::sync::Arc;

use super::line_format::{self, Chain, EMPTY_LINE, Entry, Form, LineBytes, Source};
use crate::fifo::Fifo;
use crate::table::{Id, Lookup, Table, View};

pub use super::rendezvous::testing::packet_again;
pub use super::shm::testing::Host;

/// A line of a port, without its sequence number.
pub type Words = [u64; 7];

/// Lines of a port's ring begin here.
pub const RING_AT: usize = 512;

/// Longest message that lines carry, in bytes.
pub const CARRIED_BYTES_MAX: u32 = line_format::CARRIED_BYTES_MAX;

/// What the first line of a request says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Said {
    /// Bytes of the message.
    pub len: u32,
    /// Lines of the request.
    pub lines: usize,
    /// The same line, written again over itself.
    pub again: Words,
}

/// Reads the first line of a request, or a notice, and writes it again; `None` if it means nothing.
#[must_use]
pub fn line_again(words: &Words) -> Option<Said> {
    let mut bytes = EMPTY_LINE;
    for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    let request = match line_format::parse(words).ok()? {
        Entry::Notice => {
            let again = to_words(&line_format::NOTICE_LINE);
            return Some(Said {
                len: 0,
                lines: 1,
                again,
            });
        }
        Entry::Request(request) => request,
    };
    let lines = request.lines();
    let mut staged: Fifo<LineBytes> = Fifo::new(lines, bytes);
    match request.form {
        Form::Carried => {
            let start = request.verb.head_bytes();
            let mut payload = &bytes[start..];
            line_format::emit_carried(request.verb, request.len as usize, &mut staged, |place| {
                // The first line's bytes are known; those of the others are not part of it.
                let known = place.len().min(payload.len());
                place[..known].copy_from_slice(&payload[..known]);
                payload = &[];
            });
        }
        Form::Referenced { pieces } => {
            let sources: Vec<Source> = line_format::sources(words, pieces).collect();
            line_format::emit_referenced(request.verb, &sources, staged.claim());
        }
    }
    debug_assert_eq!(staged.len(), lines);
    let mut first = staged.pop()?;
    if request.chain == Chain::More {
        line_format::continue_chain(&mut first);
    }
    Some(Said {
        len: request.len,
        lines,
        again: to_words(&first),
    })
}

fn to_words(bytes: &LineBytes) -> Words {
    let mut words = Words::default();
    for (word, place) in words.iter_mut().zip(bytes.as_chunks().0) {
        *word = u64::from_le_bytes(*place);
    }
    words
}

/// What a reader knows of an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// This value.
    Live(u64),
    /// Nothing yet.
    Unknown,
    /// It was taken out.
    Withdrawn,
}

/// A table of exports with its readers. Ids are the 32 bits that travel.
#[derive(Debug)]
pub struct Exports {
    table: Arc<Table<Arc<u64>>>,
    views: Vec<View<Arc<u64>>>,
}

impl Exports {
    /// A table of at most `limit` places, and so many readers at rest.
    #[must_use]
    pub fn new(limit: u32, seed: u64, views: usize) -> Exports {
        let table = Arc::new(Table::new(limit, seed));
        let views = (0..views).map(|_| table.view()).collect();
        Exports { table, views }
    }

    /// Puts a value into a free place.
    pub fn insert(&self, value: u64) -> Option<u32> {
        self.table.insert(|_| Arc::new(value)).ok().map(Id::to_bits)
    }

    /// Takes a value out and frees its place.
    pub fn remove(&self, id: u32) {
        self.table.remove(Id::from_bits(id));
    }

    /// Puts a value where a peer has it; whether there is such a place.
    pub fn mirror(&self, id: u32, value: u64) -> bool {
        self.table
            .mirror(Id::from_bits(id), Arc::new(value))
            .is_ok()
    }

    /// Takes a mirrored value out.
    pub fn unmirror(&self, id: u32) {
        self.table.unmirror(Id::from_bits(id));
    }

    /// Values in the table.
    #[must_use]
    pub fn live(&self) -> usize {
        self.table.live()
    }

    /// A reader catches up.
    pub fn refresh(&mut self, view: usize) {
        self.views[view].refresh();
    }

    /// A reader forgets everything.
    pub fn rest(&mut self, view: usize) {
        self.views[view].rest();
    }

    /// What a reader knows.
    #[must_use]
    pub fn get(&self, view: usize, id: u32) -> Known {
        match self.views[view].get(Id::from_bits(id)) {
            Lookup::Live(value) => Known::Live(**value),
            Lookup::Unknown => Known::Unknown,
            Lookup::Withdrawn => Known::Withdrawn,
        }
    }
}
