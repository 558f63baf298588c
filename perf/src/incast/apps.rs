//! Both applications: one asks on every connection and waits for each answer, one answers.

use std::time::Duration;

use pollux_control::hist::Samples;
use pollux_proto::event::EventSet;
use pollux_worker::{App, ConnId, ConnOutcome, Io};

use crate::lat::Limit;

/// Round trips before the first one that counts: so many for each connection, and a least number.
const WARM_UP_EACH: u64 = 5;
const WARM_UP_MIN: u64 = 200;

/// The only order: go.
#[derive(Clone, Copy, Debug)]
pub(super) struct Start;

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// Every request was answered.
    Done,
    /// An answer had another byte than its request.
    Wrong {
        /// The connection.
        conn: u16,
        /// Which request of the connection, from 0.
        number: u64,
        /// Which byte.
        at: usize,
    },
    /// A connection was reset.
    Reset {
        /// The connection.
        conn: u16,
    },
}

/// What the connections of a client are up to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// A request is due.
    Due,
    /// A request waits for its answer.
    Asked,
    /// Nothing more is asked.
    Over,
}

#[derive(Clone, Copy, Debug)]
struct Turn {
    phase: Phase,
    /// Requests so far.
    number: u64,
    /// When the request became due, in nanoseconds.
    since: u64,
}

/// Asks.
pub(super) struct Client {
    turns: Box<[Turn]>,
    /// A request as it is made and an answer as it is read; both as long as a request.
    request: Box<[u8]>,
    answer: Box<[u8]>,
    limit: Limit,
    warm_up: u64,
    answers: u64,
    /// Requests that may still be made.
    left: u64,
    /// Connections that are not over.
    open: usize,
    started: u64,
    ended: u64,
    samples: Samples,
}

impl Client {
    pub(super) fn new(conns: u16, bytes: u32, limit: Limit) -> Client {
        let idle = Turn {
            phase: Phase::Due,
            number: 0,
            since: 0,
        };
        let warm_up = WARM_UP_MIN.max(WARM_UP_EACH * u64::from(conns));
        let buffer = vec![0; bytes as usize].into_boxed_slice();
        Client {
            turns: vec![idle; usize::from(conns)].into_boxed_slice(),
            request: buffer.clone(),
            answer: buffer,
            limit,
            warm_up,
            answers: 0,
            left: match limit {
                Limit::Time(_) => u64::MAX,
                Limit::Iterations(count) => warm_up.saturating_add(count),
            },
            open: usize::from(conns),
            started: 0,
            ended: 0,
            samples: Samples::new(),
        }
    }

    /// Answers so far, those of the warm-up included.
    pub(super) fn answers(&self) -> u64 {
        self.answers
    }

    /// The round trips that count.
    pub(super) fn samples(&self) -> &Samples {
        &self.samples
    }

    /// From the end of the warm-up to the last answer.
    pub(super) fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.ended.saturating_sub(self.started))
    }

    fn start<I: Io>(&mut self, io: &mut I) -> Option<Word> {
        let now = io.now();
        for index in 0..self.turns.len() {
            self.turns[index].since = now;
            let word = self.go_on(ConnId(index as u16), io);
            if word.is_some() {
                return word;
            }
        }
        None
    }

    fn go_on<I: Io>(&mut self, conn: ConnId, io: &mut I) -> Option<Word> {
        let index = usize::from(conn.0);
        loop {
            let bytes = self.request.len();
            match self.turns.get(index)?.phase {
                Phase::Over => return None,
                Phase::Due if io.writable(conn) < bytes => return None,
                Phase::Due => self.ask(conn, io),
                Phase::Asked if io.readable(conn) < bytes => return None,
                Phase::Asked => {
                    if let Some(word) = self.take(conn, io) {
                        return Some(word);
                    }
                }
            }
        }
    }

    fn ask<I: Io>(&mut self, conn: ConnId, io: &mut I) {
        let turn = &mut self.turns[usize::from(conn.0)];
        fill(&mut self.request, conn, turn.number);
        io.write(conn, &self.request);
        turn.phase = Phase::Asked;
        self.left = self.left.saturating_sub(1);
    }

    /// Takes an answer; says so if it was wrong or the last one.
    fn take<I: Io>(&mut self, conn: ConnId, io: &mut I) -> Option<Word> {
        let turn = &mut self.turns[usize::from(conn.0)];
        io.read(conn, &mut self.answer);
        fill(&mut self.request, conn, turn.number);
        if self.answer != self.request {
            let mut pairs = self.answer.iter().zip(&self.request);
            return Some(Word::Wrong {
                conn: conn.0,
                number: turn.number,
                at: pairs.position(|(got, sent)| got != sent).unwrap_or(0),
            });
        }
        let now = io.now();
        if self.answers >= self.warm_up {
            self.samples.record(now.saturating_sub(turn.since));
            self.ended = now;
        }
        self.answers += 1;
        if self.answers == self.warm_up {
            self.started = now;
        }
        turn.number += 1;
        turn.since = now;
        turn.phase = Phase::Due;
        if self.is_over(now) {
            self.turns[usize::from(conn.0)].phase = Phase::Over;
            self.open -= 1;
        }
        (self.open == 0).then_some(Word::Done)
    }

    fn is_over(&self, now: u64) -> bool {
        match self.limit {
            Limit::Iterations(_) => self.left == 0,
            Limit::Time(time) => {
                self.answers > self.warm_up
                    && now.saturating_sub(self.started) >= time.as_nanos() as u64
            }
        }
    }
}

/// Makes the bytes of each request differ from those of the one before and of other connections.
fn fill(request: &mut [u8], conn: ConnId, number: u64) {
    let first = 31 * u64::from(conn.0) + number;
    for (byte, value) in request.iter_mut().zip(first..) {
        *byte = value as u8;
    }
}

/// Answers every request with the same bytes.
pub(super) struct Server {
    request: Box<[u8]>,
    work_ns: u64,
}

impl Server {
    pub(super) fn new(bytes: u32, work: Duration) -> Server {
        Server {
            request: vec![0; bytes as usize].into_boxed_slice(),
            work_ns: work.as_nanos() as u64,
        }
    }

    fn go_on<I: Io>(&mut self, conn: ConnId, io: &mut I) {
        let bytes = self.request.len();
        while io.readable(conn) >= bytes && io.writable(conn) >= bytes {
            io.read(conn, &mut self.request);
            if self.work_ns > 0 {
                let begun = io.now();
                while io.now() - begun < self.work_ns {
                    std::hint::spin_loop();
                }
            }
            io.write(conn, &self.request);
        }
    }
}

/// The application of either worker.
pub(super) enum Side {
    /// Asks.
    Client(Box<Client>),
    /// Answers.
    Server(Server),
}

impl App for Side {
    type Order = Start;
    type Report = Word;

    fn order<I: Io>(&mut self, Start: Start, io: &mut I) -> Option<Word> {
        match self {
            Side::Client(client) => client.start(io),
            Side::Server(_) => None,
        }
    }

    fn opened<I: Io>(&mut self, _: ConnId, _: u64, _: &mut I) {}

    fn ready<I: Io>(&mut self, conn: ConnId, _: u64, events: EventSet, io: &mut I) -> Option<Word> {
        if events.contains(EventSet::RESET) {
            return Some(Word::Reset { conn: conn.0 });
        }
        match self {
            Side::Client(client) => client.go_on(conn, io),
            Side::Server(server) => {
                server.go_on(conn, io);
                None
            }
        }
    }

    fn closed(&mut self, conn: ConnId, _: u64, _: ConnOutcome) -> Option<Word> {
        Some(Word::Reset { conn: conn.0 })
    }
}
