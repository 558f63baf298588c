//! The application inside every simulated worker: it reads and writes as its script says.
//!
//! A player that stops although it could go on (it is lazy, or its script has it read a little at a
//! time) owes itself a turn: the world gives it one later ([`Order::Turn`]). One that has read and
//! written as much as went is *not* looked at again before the worker tells it of news. So a wake-up
//! that gets lost shows as a connection that never ends.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;

use pollux_proto::event::EventSet;
use pollux_worker::{App, ConnId, ConnOutcome, Io};

use crate::book::{Book, Shared, lock};
use crate::checker::stream::Tag;
use crate::numbers::Numbers;
use crate::pattern::{self, Writer};

/// How an end leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// Writes everything, half closes, reads to the end of the stream, closes.
    Patient,
    /// Writes everything and reads to the end of the stream, then closes; so somebody else has to
    /// begin. When the world winds up it becomes patient.
    Waiting,
    /// Closes as soon as everything is written, whatever there is to be read.
    Hasty,
    /// Closes once this many bytes have been read and written together.
    Abrupt(u64),
}

/// What one end of a connection does.
#[derive(Clone, Debug)]
pub struct Script {
    /// Bytes to write.
    pub total: u64,
    /// Most bytes of one write and of one read.
    pub chunks: (usize, usize),
    /// Chance, in a million, that a turn ends before its time.
    pub laziness: u32,
    /// How it leaves.
    pub ending: Ending,
}

/// What a world orders.
#[derive(Debug)]
pub enum Order {
    /// Take a turn that was left out.
    Turn(Tag),
    /// From now on nobody is lazy, and everybody comes to an end.
    WindUp,
}

#[derive(Debug)]
struct Part {
    conn: ConnId,
    script: Script,
    written: u64,
    /// The end of the stream was announced.
    ended: bool,
    complete: bool,
    /// The peer takes no more.
    gone: bool,
    half_closed: bool,
    closed: bool,
}

/// What ends that are not open yet are going to do.
pub(crate) type Scripts = Shared<BTreeMap<Tag, Script>>;

/// Whether a turn goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mood {
    Willing,
    Weary,
}

/// The application of one stack.
#[derive(Debug)]
pub struct Player {
    book: Shared<Book>,
    numbers: Numbers,
    scripts: Scripts,
    parts: BTreeMap<Tag, Part>,
    owes: BTreeSet<Tag>,
    winds_up: bool,
    bytes: Vec<u8>,
}

impl Player {
    pub(crate) fn new(book: Shared<Book>, scripts: Scripts, numbers: Numbers) -> Player {
        Player {
            book,
            numbers,
            scripts,
            parts: BTreeMap::new(),
            owes: BTreeSet::new(),
            winds_up: false,
            bytes: Vec::new(),
        }
    }

    /// Ends that stopped although they could go on.
    pub(crate) fn owes(&self) -> impl Iterator<Item = Tag> {
        self.owes.iter().copied()
    }

    fn mood(&mut self, laziness: u32) -> Mood {
        if !self.winds_up && self.numbers.chance(laziness) {
            Mood::Weary
        } else {
            Mood::Willing
        }
    }

    /// Takes a turn: reads, writes, leaves if it is time.
    fn turn<I: Io>(&mut self, tag: Tag, io: &mut I) {
        self.owes.remove(&tag);
        let Some(mut part) = self.parts.remove(&tag) else {
            return;
        };
        if !part.closed {
            let mood = self.play(tag, &mut part, io);
            if mood == Mood::Weary && !part.closed {
                self.owes.insert(tag);
            }
        }
        self.parts.insert(tag, part);
    }

    fn play<I: Io>(&mut self, tag: Tag, part: &mut Part, io: &mut I) -> Mood {
        let laziness = part.script.laziness;
        if self.mood(laziness) == Mood::Weary {
            return Mood::Weary;
        }
        let reads_first = self.numbers.flip();
        let mood = if reads_first {
            self.read(tag, part, io).max(self.write(tag, part, io))
        } else {
            self.write(tag, part, io).max(self.read(tag, part, io))
        };
        self.leave(tag, part, io);
        mood
    }

    fn read<I: Io>(&mut self, tag: Tag, part: &mut Part, io: &mut I) -> Mood {
        loop {
            if self.abruptly(part, tag) {
                return Mood::Willing;
            }
            let most = self.numbers.between(1, part.script.chunks.1 as u64) as usize;
            self.bytes.resize(most, 0);
            let readable = io.readable(part.conn);
            let got = io.read(part.conn, &mut self.bytes[..most]);
            if got != readable.min(most) {
                lock(&self.book).object(|| {
                    format!("{tag:?} could read {readable} B, asked for {most} B and got {got} B")
                });
            }
            if got == 0 {
                break;
            }
            lock(&self.book).read(tag, &self.bytes[..got]);
            if self.mood(part.script.laziness) == Mood::Weary {
                return Mood::Weary;
            }
        }
        if part.ended && !part.complete {
            part.complete = true;
            lock(&self.book).end_of_stream(tag);
        }
        Mood::Willing
    }

    fn write<I: Io>(&mut self, tag: Tag, part: &mut Part, io: &mut I) -> Mood {
        while part.written < part.script.total
            && !part.half_closed
            && !part.gone
            && !self.abruptly(part, tag)
        {
            let left = part.script.total - part.written;
            let most = left.min(self.numbers.between(1, part.script.chunks.0 as u64)) as usize;
            self.bytes.resize(most, 0);
            pattern::fill(Writer(tag.0), part.written, &mut self.bytes[..most]);
            let writable = io.writable(part.conn);
            let taken = io.write(part.conn, &self.bytes[..most]);
            if taken != writable.min(most) {
                lock(&self.book).object(|| {
                    format!("{tag:?}: {most} B with room for {writable} B, taken were {taken} B")
                });
            }
            if taken > 0 {
                part.written += taken as u64;
                lock(&self.book).wrote(tag, taken as u64);
            }
            if taken < most {
                break;
            }
            if self.mood(part.script.laziness) == Mood::Weary {
                return Mood::Weary;
            }
        }
        Mood::Willing
    }

    /// Whether it is time for an abrupt end.
    fn abruptly(&self, part: &Part, tag: Tag) -> bool {
        match part.script.ending {
            Ending::Abrupt(after) => lock(&self.book).end(tag).read + part.written >= after,
            Ending::Patient | Ending::Waiting | Ending::Hasty => false,
        }
    }

    /// Ends what is to be ended.
    fn leave<I: Io>(&mut self, tag: Tag, part: &mut Part, io: &mut I) {
        let wrote_all = part.written >= part.script.total || part.gone;
        let close = match part.script.ending {
            Ending::Patient => {
                if wrote_all && !part.half_closed {
                    part.half_closed = true;
                    lock(&self.book).sealed(tag);
                    io.shutdown_write(part.conn);
                }
                wrote_all && part.complete
            }
            Ending::Waiting => wrote_all && part.complete,
            Ending::Hasty => wrote_all,
            Ending::Abrupt(_) => self.abruptly(part, tag) || part.complete,
        };
        if close {
            self.close(tag, part, io);
        }
    }

    fn close<I: Io>(&mut self, tag: Tag, part: &mut Part, io: &mut I) {
        let mut book = lock(&self.book);
        book.sealed(tag);
        if !part.complete {
            book.excuse(tag, "an end closed before the end of the stream");
        }
        drop(book);
        part.closed = true;
        io.close(part.conn);
    }

    /// Waiters begin to end, so that everybody comes to an end.
    fn wind_up<I: Io>(&mut self, io: &mut I) {
        self.winds_up = true;
        let tags: Vec<Tag> = self.parts.keys().copied().collect();
        for tag in tags {
            if let Some(part) = self.parts.get_mut(&tag) {
                hurry(&mut part.script);
            }
            self.turn(tag, io);
        }
    }
}

fn hurry(script: &mut Script) {
    match script.ending {
        Ending::Waiting | Ending::Abrupt(_) => script.ending = Ending::Patient,
        Ending::Patient | Ending::Hasty => {}
    }
}

impl Mood {
    fn max(self, other: Mood) -> Mood {
        if self == Mood::Weary { self } else { other }
    }
}

impl App for Player {
    type Order = Order;
    type Report = Infallible;

    fn order<I: Io>(&mut self, order: Order, io: &mut I) -> Option<Infallible> {
        match order {
            Order::Turn(tag) => self.turn(tag, io),
            Order::WindUp => self.wind_up(io),
        }
        None
    }

    fn opened<I: Io>(&mut self, conn: ConnId, tag: u64, io: &mut I) {
        let tag = Tag(tag);
        lock(&self.book).opened(tag);
        let script = lock(&self.scripts).remove(&tag);
        let Some(mut script) = script else {
            return lock(&self.book).object(|| format!("{tag:?} was opened and has no script"));
        };
        if self.winds_up {
            hurry(&mut script);
        }
        self.parts.insert(
            tag,
            Part {
                conn,
                script,
                written: 0,
                ended: false,
                complete: false,
                gone: false,
                half_closed: false,
                closed: false,
            },
        );
        self.turn(tag, io);
    }

    fn ready<I: Io>(
        &mut self,
        conn: ConnId,
        tag: u64,
        events: EventSet,
        io: &mut I,
    ) -> Option<Infallible> {
        let tag = Tag(tag);
        let Some(part) = self.parts.get_mut(&tag) else {
            lock(&self.book).object(|| format!("{tag:?} has news ({events:?}) and is not open"));
            return None;
        };
        if part.conn != conn {
            lock(&self.book).object(|| format!("{tag:?} is {:?} and {conn:?}", part.conn));
        }
        if events.contains(EventSet::RESET) {
            lock(&self.book).was_reset(tag);
            if !part.closed {
                part.closed = true;
                lock(&self.book).sealed(tag);
                io.close(conn);
            }
            return None;
        }
        part.ended |= events.contains(EventSet::END_OF_STREAM);
        part.gone |= events.contains(EventSet::PEER_CLOSED);
        self.turn(tag, io);
        None
    }

    fn closed(&mut self, conn: ConnId, tag: u64, outcome: ConnOutcome) -> Option<Infallible> {
        let tag = Tag(tag);
        self.owes.remove(&tag);
        let part = self.parts.remove(&tag);
        if part.is_none_or(|part| part.conn != conn) {
            lock(&self.book).object(|| format!("{tag:?} ends and was not open as {conn:?}"));
        }
        lock(&self.book).closed(tag, outcome);
        None
    }
}
