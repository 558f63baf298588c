//! What the programs at both ends of a connection see.

use pollux_worker::ConnOutcome;

use crate::book::{Book, Event};
use crate::pattern::{self, Writer};

/// One end of one connection, as its owner is told of it: `number * 2 + side`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord, Hash)]
pub struct Tag(pub u64);

impl Tag {
    /// The end of connection `number` at `side`, 0 or 1.
    #[must_use]
    pub fn new(number: usize, side: usize) -> Tag {
        Tag(number as u64 * 2 + side as u64)
    }

    /// The connection.
    #[must_use]
    pub fn number(self) -> usize {
        (self.0 / 2) as usize
    }

    /// The side.
    #[must_use]
    pub fn side(self) -> usize {
        (self.0 % 2) as usize
    }

    /// The other end.
    #[must_use]
    pub fn peer(self) -> Tag {
        Tag(self.0 ^ 1)
    }
}

/// How far one end has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// Not open yet.
    Coming,
    /// Open.
    Open,
    /// Over.
    Ended(ConnOutcome),
    /// Its stack crashed, or its handshake came to nothing.
    Lost,
}

/// What is known of one end.
#[derive(Clone, Debug)]
pub(crate) struct End {
    pub(crate) stack: usize,
    pub(crate) stage: Stage,
    pub(crate) written: u64,
    pub(crate) read: u64,
    /// It writes no more.
    pub(crate) sealed: bool,
    /// It read everything up to the end of the stream.
    pub(crate) complete: bool,
    /// Control has aborted it: there is nothing to be read any more, and its program hears of it soon.
    pub(crate) aborted: bool,
}

/// The link that a connection uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Route {
    /// This one.
    Cable(usize),
    /// Whichever its handshake chose among those between its two stacks.
    Any,
}

/// Whether both ends of a link keep to the rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Honesty {
    /// Both do.
    Honest,
    /// One of them lies: what the other reads means nothing.
    Hostile,
}

/// What is known of one connection.
#[derive(Clone, Debug)]
pub(crate) struct ConnBook {
    pub(crate) ends: [End; 2],
    pub(crate) route: Route,
    /// Why it may end otherwise than in order.
    pub(crate) excuse: Option<&'static str>,
    pub(crate) honesty: Honesty,
}

impl Book {
    /// A new connection between two stacks; gives its number.
    pub(crate) fn add_conn(&mut self, stacks: [usize; 2], route: Route, honesty: Honesty) -> usize {
        let trouble = self.trouble(stacks, route);
        let end = |stack| End {
            stack,
            stage: Stage::Coming,
            written: 0,
            read: 0,
            sealed: false,
            complete: false,
            aborted: false,
        };
        self.conns.push(ConnBook {
            ends: stacks.map(end),
            route,
            excuse: match honesty {
                Honesty::Honest => trouble,
                Honesty::Hostile => Some("one of its ends lies"),
            },
            honesty,
        });
        self.conns.len() - 1
    }

    pub(crate) fn end(&mut self, tag: Tag) -> &mut End {
        &mut self.conns[tag.number()].ends[tag.side()]
    }

    /// The connection may end otherwise than in order from now on. The first excuse is kept.
    pub(crate) fn excuse(&mut self, tag: Tag, why: &'static str) {
        self.conns[tag.number()].excuse.get_or_insert(why);
    }

    /// An end is open.
    pub(crate) fn opened(&mut self, tag: Tag) {
        self.progress += 1;
        let stack = self.end(tag).stack;
        let stage = self.end(tag).stage;
        if stage != Stage::Coming {
            self.object(|| format!("{tag:?} was opened while {stage:?}"));
        }
        self.end(tag).stage = Stage::Open;
        if self.end(tag.peer()).stage == Stage::Lost {
            self.half_open.push(tag);
        }
        if self.end(tag.peer()).stage != Stage::Coming {
            self.figures.conns += 1;
        }
        self.note(Event::App, stack, &[tag.0], || format!("{tag:?} is open"));
    }

    /// An end has written `count` bytes, that is its worker took them.
    pub(crate) fn wrote(&mut self, tag: Tag, count: u64) {
        self.progress += 1;
        let end = self.end(tag);
        end.written += count;
        let (stack, written, sealed) = (end.stack, end.written, end.sealed);
        if sealed {
            self.object(|| format!("{tag:?} wrote {count} B after it had ended its stream"));
        }
        self.note(Event::App, stack, &[tag.0, count], || {
            format!("{tag:?} wrote {count} B, {written} in all")
        });
    }

    /// An end has read `bytes`.
    pub(crate) fn read(&mut self, tag: Tag, bytes: &[u8]) {
        self.progress += 1;
        let count = bytes.len() as u64;
        let written = self.end(tag.peer()).written;
        let honesty = self.conns[tag.number()].honesty;
        let end = self.end(tag);
        let offset = end.read;
        end.read += count;
        let (stack, read) = (end.stack, end.read);
        self.figures.bytes += count;
        self.note(Event::App, stack, &[tag.0, count, 1], || {
            format!("{tag:?} read {count} B, {read} in all")
        });
        if honesty == Honesty::Hostile {
            return;
        }
        if read > written {
            self.object(|| format!("{tag:?} read {read} B, but only {written} B were written"));
        }
        if let Some(at) = pattern::mismatch(Writer(tag.peer().0), offset, bytes) {
            self.object(|| {
                format!(
                    "{tag:?} read a wrong byte at offset {} of its stream",
                    offset + at as u64
                )
            });
        }
    }

    /// An end writes no more.
    pub(crate) fn sealed(&mut self, tag: Tag) {
        self.end(tag).sealed = true;
    }

    /// An end has seen the end of the stream and has read everything before it.
    pub(crate) fn end_of_stream(&mut self, tag: Tag) {
        self.progress += 1;
        let peer = self.end(tag.peer()).clone();
        let honesty = self.conns[tag.number()].honesty;
        let end = self.end(tag);
        end.complete = true;
        let (stack, read, aborted) = (end.stack, end.read, end.aborted);
        self.note(Event::App, stack, &[tag.0, 2], || {
            format!("{tag:?} is at the end of the stream after {read} B")
        });
        if honesty == Honesty::Honest && !aborted && (!peer.sealed || read != peer.written) {
            self.object(|| {
                format!(
                    "{tag:?} saw the end of the stream after {read} B of {} B written{}",
                    peer.written,
                    if peer.sealed {
                        ""
                    } else {
                        " by a writer that has not ended it"
                    }
                )
            });
        }
    }

    /// An end was told of a reset.
    pub(crate) fn was_reset(&mut self, tag: Tag) {
        self.progress += 1;
        let stack = self.end(tag).stack;
        let excuse = self.conns[tag.number()].excuse;
        self.note(Event::App, stack, &[tag.0, 3], || {
            format!("{tag:?} was reset ({})", excuse.unwrap_or("no cause"))
        });
        if excuse.is_none() {
            self.object(|| format!("{tag:?} was reset without a cause"));
        }
    }

    /// An end is over.
    pub(crate) fn closed(&mut self, tag: Tag, outcome: ConnOutcome) {
        self.progress += 1;
        let excuse = self.conns[tag.number()].excuse;
        let end = self.end(tag);
        let (stack, stage) = (end.stack, end.stage);
        end.stage = Stage::Ended(outcome);
        let ends = &self.conns[tag.number()].ends;
        let over = |end: &End| end.complete && end.stage == Stage::Ended(ConnOutcome::Closed);
        if ends.iter().all(over) {
            self.figures.delivered += 1;
        }
        self.note(Event::App, stack, &[tag.0, 4, outcome as u64], || {
            format!("{tag:?} has ended: {outcome:?}")
        });
        if stage != Stage::Open {
            self.object(|| format!("{tag:?} ended while {stage:?}"));
        }
        if outcome == ConnOutcome::Reset && excuse.is_none() {
            self.object(|| format!("{tag:?} ended by a reset without a cause"));
        }
    }

    /// A connection that is open at a stack.
    pub(crate) fn open_at(&self, stack: usize) -> Option<Tag> {
        let ends = self.conns.iter().enumerate().flat_map(|(number, conn)| {
            let ends = conn.ends.iter().enumerate();
            ends.map(move |(side, end)| (Tag::new(number, side), end))
        });
        let mut open = ends.filter(|(_, end)| end.stack == stack && end.stage == Stage::Open);
        open.next().map(|(tag, _)| tag)
    }

    /// Whether every end of every connection is over.
    pub(crate) fn all_over(&self) -> bool {
        self.conns.iter().all(|conn| {
            conn.ends
                .iter()
                .all(|end| matches!(end.stage, Stage::Ended(_) | Stage::Lost))
        })
    }
}
