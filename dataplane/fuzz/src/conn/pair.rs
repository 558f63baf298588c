//! Two honest connections: what one application writes the other one reads, or knows why not.
//!
//! The pair of `proto::testing` compares every byte that is read with the byte that was written there,
//! and every write with the free space that it goes to. Beside it runs the simplest model there is, a
//! queue for each direction. At the end everything that was written is read, unless somebody ended
//! the connection, and both sides come to their end.

use std::collections::VecDeque;
use std::time::Duration;

use pollux_proto::conn::{ConnParams, ConnState, UrgentDelivery};
use pollux_proto::event::EventSet;
use pollux_proto::testing::{Completions, Pair, Side, SideParams, stream_byte};
use pollux_wire::cdc::ConnStateFlags;

use super::{Totals, ring};
use crate::Input;

/// How a connection was disturbed, if it was.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// Bytes flow both ways; applications may half close.
    Open,
    /// Somebody closed, aborted, lost the link or ran into a timer: bytes may be lost.
    Ended,
}

/// What one side has been seen to do.
struct Seen {
    params: ConnParams,
    inline_max: u32,
    totals: Totals,
    /// Bytes this side wrote that the other has not read yet.
    unread: VecDeque<u8>,
    written: u64,
    events: EventSet,
    has_shut: bool,
    has_closed: bool,
}

struct World {
    pair: Pair,
    seen: [Seen; 2],
    fate: Fate,
    completions: Completions,
}

/// Drives one target run.
pub(crate) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut world = World::new(&mut input);
    while !input.is_empty() {
        world.step(&mut input);
        world.judge();
    }
    world.finish();
}

fn index(side: Side) -> usize {
    match side {
        Side::Left => 0,
        Side::Right => 1,
    }
}

impl World {
    fn new(input: &mut Input<'_>) -> World {
        let completions = if input.byte() & 1 == 0 {
            Completions::Prompt
        } else {
            Completions::Never
        };
        let mut side = || SideParams {
            sndbuf_bytes: ring(input.byte()),
            rmbe_bytes: ring(input.byte()),
            inline_max: u32::from(input.byte() % 32),
            completions,
            delay: Duration::from_micros(u64::from(input.byte() % 4)),
        };
        let (left, right) = (side(), side());
        let seen = |own: SideParams, peer: SideParams, local_token: u32| Seen {
            params: ConnParams {
                sndbuf_bytes: own.sndbuf_bytes,
                rmbe_bytes: own.rmbe_bytes,
                peer_rmbe_bytes: peer.rmbe_bytes,
                local_token,
                peer_token: 3 - local_token,
            },
            inline_max: own.inline_max,
            totals: Totals::START,
            unread: VecDeque::new(),
            written: 0,
            events: EventSet::NONE,
            has_shut: false,
            has_closed: false,
        };
        World {
            pair: Pair::new(left, right),
            seen: [seen(left, right, 1), seen(right, left, 2)],
            fate: Fate::Open,
            completions,
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let op = input.byte();
        let side = if op & 0x10 == 0 {
            Side::Left
        } else {
            Side::Right
        };
        match op & 0x0f {
            0..=2 => self.write(side, input.byte().into()),
            3 | 4 => self.read(side, input.byte().into()),
            5..=7 => drop(self.transmit(side)),
            8 | 9 => drop(self.deliver(side)),
            10 => self.write_urgent(side, u32::from(input.byte() % 16)),
            11 => {
                let delivery = match op & 0x20 {
                    0 => UrgentDelivery::Inline,
                    _ => UrgentDelivery::OutOfLine,
                };
                self.pair
                    .wish(side, |conn| conn.set_urgent_delivery(delivery));
            }
            12 => {
                self.pair.wish(side, |conn| conn.shutdown_write());
                self.seen[index(side)].has_shut = true;
            }
            13 => self.advance(Duration::from_micros(input.byte().into())),
            14 => self.settle(),
            _ => self.end(side, op >> 5),
        }
    }

    fn write(&mut self, side: Side, bytes: u32) {
        let written = self.pair.write(side, bytes);
        self.note_written(side, written);
    }

    fn write_urgent(&mut self, side: Side, bytes: u32) {
        let writable = self.pair.conn(side).writable();
        if self.pair.write_urgent(side, bytes).is_ok() {
            assert!(bytes > 0 && bytes <= writable);
            self.note_written(side, bytes);
        }
    }

    fn note_written(&mut self, side: Side, bytes: u32) {
        let seen = &mut self.seen[index(side)];
        assert!(bytes == 0 || !seen.has_shut, "written after the end");
        for _ in 0..bytes {
            seen.unread.push_back(stream_byte(side, seen.written));
            seen.written += 1;
        }
    }

    fn read(&mut self, side: Side, bytes: u32) {
        if self.seen[index(side)].has_closed {
            return;
        }
        let before = self.pair.conn(side).consumed_total();
        let read = self.pair.read(side, bytes);
        assert!(self.pair.conn(side).consumed_total() >= before + u64::from(read));
        self.forget_read(side);
    }

    /// What `side` has read, or passed over because it was taken out of line, waits no more.
    fn forget_read(&mut self, side: Side) {
        let consumed = self.pair.conn(side).consumed_total();
        let from = &mut self.seen[index(side.peer())];
        let still = from
            .written
            .checked_sub(consumed)
            .expect("more is read than was written");
        let read = from.unread.len() - still as usize;
        from.unread.drain(..read);
    }

    fn transmit(&mut self, side: Side) -> bool {
        let seen = &mut self.seen[index(side)];
        let conn = self.pair.conn(side);
        let (window, wants) = (conn.window(), conn.wants_transmit());
        let batch = self.pair.transmit_one(side);
        assert_eq!(batch.is_some(), wants);
        let Some(batch) = batch else { return false };
        seen.totals.judge_batch(
            &batch,
            self.pair.conn(side),
            &seen.params,
            window,
            seen.inline_max,
        );
        true
    }

    fn deliver(&mut self, side: Side) -> bool {
        let before = self.pair.conn(side).produced_total();
        let Some((message, outcome)) = self.pair.deliver_one(side) else {
            return false;
        };
        assert_eq!(outcome, Ok(()), "an honest message is refused: {message:?}");
        self.forget_read(side);
        let now = self.pair.conn(side).produced_total();
        assert!(now - before <= self.seen[index(side.peer())].written - before);
        true
    }

    /// Time passes; a timer that expires ends something.
    fn advance(&mut self, time: Duration) {
        let end = self.pair.now().after(time);
        if Side::BOTH
            .iter()
            .any(|side| self.pair.timer(*side).is_some_and(|(_, at)| at <= end))
        {
            self.fate = Fate::Ended;
        }
        self.pair.advance(time);
    }

    /// Everything under way arrives, and what follows from it, until both are silent.
    fn settle(&mut self) {
        for _ in 0..10_000 {
            let mut moved = false;
            for side in Side::BOTH {
                moved |= self.transmit(side);
                moved |= self.deliver(side.peer());
            }
            if !moved {
                let under_way: usize = Side::BOTH
                    .iter()
                    .map(|side| self.pair.in_flight_to(*side))
                    .sum();
                if under_way == 0 {
                    return;
                }
                self.advance(Duration::from_micros(1));
            }
        }
        panic!("the two never fall silent");
    }

    fn end(&mut self, side: Side, how: u8) {
        self.fate = Fate::Ended;
        self.seen[index(side)].has_closed |= how <= 3;
        match how {
            0..=2 => self.pair.wish(side, |conn| conn.close()),
            3 => self.pair.wish(side, |conn| conn.abort()),
            4 => {
                for side in Side::BOTH {
                    self.pair.wish(side, |conn| conn.handle_link_down());
                }
            }
            _ => self.advance(Duration::from_secs(61)),
        }
    }

    fn judge(&mut self) {
        for side in Side::BOTH {
            let seen = &mut self.seen[index(side)];
            seen.totals.judge(self.pair.conn(side), &seen.params);
            let fresh = self.pair.take_events(side);
            if fresh.contains(EventSet::CLOSED) {
                assert!(self.pair.conn(side).is_finished());
            }
            seen.events = seen.events.union(fresh);
        }
    }

    fn finish(&mut self) {
        self.settle();
        self.judge();
        if self.fate == Fate::Open && self.completions == Completions::Prompt {
            self.finish_open();
        }
        for side in Side::BOTH {
            self.seen[index(side)].has_closed = true;
            self.pair.wish(side, |conn| conn.close());
        }
        // The longest way to the end: a drain that stalls, then a reset without an answer.
        for _ in 0..4 {
            self.settle();
            self.judge();
            self.advance(Duration::from_secs(61));
        }
        self.settle();
        for side in Side::BOTH {
            let conn = self.pair.conn(side);
            assert!(conn.is_finished(), "{side:?} is not finished: {conn:?}");
            assert_eq!(conn.state(), ConnState::Closed);
            assert_eq!(conn.timer(), None);
            assert!(!conn.wants_transmit());
        }
    }

    /// Nobody has ended it: everything that was written is read, and the ends of the streams seen.
    fn finish_open(&mut self) {
        for _ in 0..2000 {
            if self.seen.iter().all(|seen| seen.unread.is_empty()) {
                break;
            }
            for side in Side::BOTH {
                self.read(side, u32::MAX);
            }
            self.settle();
            self.judge();
        }
        for side in Side::BOTH {
            let seen = &self.seen[index(side)];
            assert!(seen.unread.is_empty(), "bytes are stuck: {:?}", self.pair);
            assert_eq!(self.pair.conn(side.peer()).consumed_total(), seen.written);
            let peer = &self.seen[index(side.peer())];
            assert_eq!(seen.has_shut, peer.events.contains(EventSet::END_OF_STREAM));
            assert_eq!(
                seen.has_shut,
                seen.totals.said.contains(ConnStateFlags::SENDING_DONE)
            );
            assert_eq!(self.pair.conn(side).abort_reason(), None);
        }
    }
}
