//! Every order of ends: two sides that write, read, half close, close and reset at any time always
//! finish, and a stream that ends in order ends complete.

use pollux_proto::conn::{Conn, ConnState};
use pollux_proto::testing::{Pair, Side, SideParams, explore};

/// How far an application has come with ending.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum End {
    Open,
    Half,
    Closed,
}

/// Whether the applications may reset.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Resets {
    Never,
    Anytime,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct World {
    pair: Pair,
    ends: [End; 2],
    /// Bytes that each application writes at most.
    total: [u64; 2],
    resets: Resets,
}

impl World {
    fn step(&self, happen: impl FnOnce(&mut World) -> bool) -> Option<World> {
        let mut world = self.clone();
        if !happen(&mut world) {
            return None;
        }
        for side in Side::BOTH {
            world.pair.take_events(side);
        }
        Some(world)
    }

    fn end(&mut self, side: Side, end: End, wish: fn(&mut Conn)) -> bool {
        self.pair.wish(side, wish);
        self.ends[side as usize] = end;
        true
    }

    fn successors(&self) -> Vec<World> {
        let mut next = Vec::new();
        for side in Side::BOTH {
            let end = self.ends[side as usize];
            if self.pair.written(side) < self.total[side as usize] {
                next.extend(self.step(|w| w.pair.write(side, 1) > 0));
            }
            if end != End::Closed {
                next.extend(self.step(|w| w.pair.read(side, 1) > 0));
                next.extend(self.step(|w| w.end(side, End::Closed, Conn::close)));
                if self.resets == Resets::Anytime {
                    next.extend(self.step(|w| w.end(side, End::Closed, Conn::abort)));
                }
            }
            if end == End::Open {
                next.extend(self.step(|w| w.end(side, End::Half, Conn::shutdown_write)));
            }
            next.extend(self.step(|w| w.pair.transmit_one(side).is_some()));
            next.extend(self.step(|w| match w.pair.deliver_one(side) {
                None => false,
                Some((message, outcome)) => {
                    assert_eq!(outcome, Ok(()), "{message:?}");
                    true
                }
            }));
        }
        next
    }

    /// What holds everywhere: who sees an orderly end has got everything that was written.
    fn check(&self) {
        for side in Side::BOTH {
            let conn = self.pair.conn(side);
            let orderly = conn.peer_is_done() && conn.abort_reason().is_none();
            if orderly && self.ends[side as usize] != End::Closed {
                let written = self.pair.written(side.peer());
                assert_eq!(conn.produced_total(), written, "truncated: {self:?}");
            }
        }
    }

    /// What holds when nothing can happen any more: both have closed, so both finish, the last by a
    /// timer.
    fn check_end(&self) -> usize {
        assert_eq!(self.ends, [End::Closed; 2], "{self:?}");
        let mut pair = self.pair.clone();
        let mut expired = 0;
        while let Some((timer, _)) = Side::BOTH.iter().find_map(|side| pair.timer(*side)) {
            pair.advance(timer.duration());
            pair.settle();
            expired += 1;
            assert!(expired < 4, "timers go on: {self:?}");
        }
        for side in Side::BOTH {
            let conn = pair.conn(side);
            assert_eq!(conn.state(), ConnState::Closed, "{side:?}: {self:?}");
            assert!(conn.is_finished(), "{side:?}: {self:?}");
        }
        expired
    }
}

/// Explores to the end; how many ends needed a timer, and how many did not.
fn explore_ends(ring: u32, total: [u64; 2], resets: Resets) -> (usize, usize) {
    let start = World {
        pair: Pair::equal(SideParams::rings(ring)),
        ends: [End::Open; 2],
        total,
        resets,
    };
    let (mut by_timer, mut alone) = (0, 0);
    explore(start, 400_000, World::successors, |world, ways| {
        world.check();
        if ways == 0 {
            match world.check_end() {
                0 => alone += 1,
                _ => by_timer += 1,
            }
        }
    });
    (by_timer, alone)
}

#[test]
fn every_order_of_writes_reads_and_closes_finishes() {
    let (by_timer, alone) = explore_ends(1, [2, 0], Resets::Never);
    assert!(alone > 0);
    assert_eq!(
        by_timer, 0,
        "only with both rings full two closers wait for each other"
    );
}

#[test]
fn with_room_for_everything_no_end_without_a_reset_needs_a_timer() {
    let (by_timer, alone) = explore_ends(4, [1, 1], Resets::Never);
    assert!(alone > 0);
    assert_eq!(by_timer, 0);
}

#[test]
fn every_order_of_writes_reads_closes_and_resets_finishes() {
    let (by_timer, alone) = explore_ends(1, [1, 0], Resets::Anytime);
    assert!(alone > 0);
    assert_eq!(by_timer, 0, "a reset is always confirmed by an honest peer");
}
