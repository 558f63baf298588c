//! Every order of events in small rings: two peers always make progress, and every byte comes
//! through.
//!
//! The applications write and read any number of bytes at any time, messages and completions may be
//! as late as they like. In a state where nothing can happen any more, everything written must have
//! been read.

use pollux_proto::conn::UrgentDelivery;
use pollux_proto::testing::{Completions, Pair, Side, SideParams, explore};
use pollux_wire::cdc::ProducerFlags;

/// A way from one state to the next; `None` if nothing happens that way.
fn step(pair: &Pair, happen: impl FnOnce(&mut Pair) -> bool) -> Option<Pair> {
    let mut pair = pair.clone();
    if !happen(&mut pair) {
        return None;
    }
    for side in Side::BOTH {
        // Who asks for events, and when, changes nothing.
        pair.take_events(side);
    }
    Some(pair)
}

/// All that can happen next, each side writing `total` bytes of its own in the end.
fn successors(pair: &Pair, total: [u64; 2]) -> Vec<Pair> {
    let mut next = Vec::new();
    for side in Side::BOTH {
        let left = total[side as usize] - pair.written(side);
        let writable = u64::from(pair.conn(side).writable()).min(left) as u32;
        for bytes in 1..=writable {
            next.extend(step(pair, |pair| pair.write(side, bytes) > 0));
        }
        for bytes in 1..=pair.conn(side).readable() {
            next.extend(step(pair, |pair| pair.read(side, bytes) > 0));
        }
        next.extend(step(pair, |pair| transmit(pair, side)));
        next.extend(step(pair, |pair| match pair.deliver_one(side) {
            None => false,
            Some((message, outcome)) => {
                assert_eq!(outcome, Ok(()), "{message:?}");
                true
            }
        }));
    }
    next
}

/// One batch, which must keep what the reader relies on: a closed window was announced as blocked.
fn transmit(pair: &mut Pair, side: Side) -> bool {
    let Some(batch) = pair.transmit_one(side) else {
        return false;
    };
    let blocked = batch
        .cdc
        .producer_flags
        .contains(ProducerFlags::WRITE_BLOCKED);
    assert!(blocked || pair.conn(side).window() > 0, "{batch:?}");
    true
}

/// Explores one configuration to its end.
fn explore_all(left: SideParams, right: SideParams, total: [u64; 2]) -> usize {
    let start = Pair::new(left, right);
    let mut ends = 0;
    let states = explore(
        start,
        400_000,
        |pair| successors(pair, total),
        |pair, ways| {
            if ways == 0 {
                ends += 1;
                for side in Side::BOTH {
                    let expected = total[side as usize];
                    assert_eq!(pair.written(side), expected, "the writer stalls: {pair:?}");
                    assert_eq!(
                        pair.read_total(side.peer()),
                        expected,
                        "bytes stall: {pair:?}"
                    );
                }
            }
        },
    );
    assert!(ends > 0);
    states
}

fn params(sndbuf: u32, rmbe: u32, inline_max: u32, completions: Completions) -> SideParams {
    SideParams {
        sndbuf_bytes: sndbuf,
        rmbe_bytes: rmbe,
        inline_max,
        completions,
        ..SideParams::rings(1)
    }
}

#[test]
fn one_way_streams_in_all_rings_up_to_four_always_end() {
    for sndbuf in 1..=4 {
        for rmbe in 1..=4 {
            let side = params(sndbuf, rmbe, 1, Completions::Prompt);
            explore_all(side, side, [6, 0]);
            if sndbuf >= rmbe {
                // Then the peer's reading alone is enough.
                let side = params(sndbuf, rmbe, 1, Completions::Never);
                explore_all(side, side, [6, 0]);
            }
        }
    }
}

#[test]
fn without_completions_a_small_sndbuf_stalls_which_is_why_they_must_come() {
    let side = params(2, 4, 0, Completions::Never);
    let mut pair = Pair::equal(side);
    pair.write(Side::Left, 2);
    pair.settle();
    pair.read(Side::Right, 2);
    pair.settle();
    assert_eq!(
        pair.conn(Side::Left).window(),
        2,
        "the reader keeps half a ring to itself"
    );
    assert_eq!(pair.write(Side::Left, 1), 0);
}

#[test]
fn two_way_streams_in_rings_of_one_and_two_always_end() {
    for (left, right) in [(1, 1), (1, 2), (2, 2)] {
        let left = params(left, right, 0, Completions::Prompt);
        let right = params(right, left.sndbuf_bytes, 9, Completions::Prompt);
        let total = if left.rmbe_bytes == 2 { [2, 3] } else { [3, 3] };
        explore_all(left, right, total);
    }
}

/// Explores one way with `total` bytes, of which any may be sent as urgent; the number of states.
fn explore_urgent(ring: u32, total: u64, delivery: UrgentDelivery) -> usize {
    let (writer, reader) = (Side::Left, Side::Right);
    let mut start = Pair::equal(params(ring, ring, 0, Completions::Prompt));
    start.conn_mut(reader).set_urgent_delivery(delivery);
    let ways = |pair: &Pair| {
        let mut next = successors(pair, [total, 0]);
        if pair.written(writer) < total && pair.conn(writer).writable() > 0 {
            next.extend(step(pair, |pair| pair.write_urgent(writer, 1).is_ok()));
        }
        next
    };
    explore(start, 100_000, ways, |pair, ways| {
        if ways == 0 {
            let taken = pair.urgent(reader).len() as u64;
            let read = pair.read_total(reader) + taken;
            assert_eq!((pair.written(writer), read), (total, total), "{pair:?}");
            assert!(delivery == UrgentDelivery::OutOfLine || taken == 0);
        }
    })
}

#[test]
fn urgent_bytes_anywhere_in_the_stream_never_stall_it() {
    for delivery in [UrgentDelivery::Inline, UrgentDelivery::OutOfLine] {
        for ring in 1..=3 {
            explore_urgent(ring, 4, delivery);
        }
    }
}
