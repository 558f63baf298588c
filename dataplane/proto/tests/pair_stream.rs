//! Stories of bytes: whatever the sizes and the order of events, what is read is what was written.
#![allow(clippy::disallowed_types, reason = "inside the macros of proptest")]

use std::time::Duration;

use pollux_proto::conn::ConnState;
use pollux_proto::event::EventSet;
use pollux_proto::testing::{Completions, Pair, Side, SideParams, stream_byte};
use proptest::prelude::*;

/// FNV-1a, so that a stream can be compared by one number.
fn digest(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// Reads all there is at `side` into `into`, beside the pair's own check of each byte.
fn drain(pair: &mut Pair, side: Side, into: &mut Vec<u8>) -> u32 {
    let start = pair.read_total(side);
    let bytes = pair.read(side, u32::MAX);
    into.extend((start..start + u64::from(bytes)).map(|p| stream_byte(side.peer(), p)));
    bytes
}

/// What happens next in a random story.
#[derive(Clone, Copy, Debug)]
enum Step {
    Write(Side, u32),
    Read(Side, u32),
    Transmit(Side),
    Deliver(Side),
}

fn side() -> impl Strategy<Value = Side> {
    prop_oneof![Just(Side::Left), Just(Side::Right)]
}

fn step(most: u32) -> impl Strategy<Value = Step> {
    prop_oneof![
        (side(), 1..=most).prop_map(|(side, bytes)| Step::Write(side, bytes)),
        (side(), 1..=most).prop_map(|(side, bytes)| Step::Read(side, bytes)),
        side().prop_map(Step::Transmit),
        side().prop_map(Step::Deliver),
    ]
}

fn habits(ring: impl Strategy<Value = u32> + Clone) -> impl Strategy<Value = SideParams> {
    let completions = prop_oneof![Just(Completions::Prompt), Just(Completions::Never)];
    (ring.clone(), ring, 0..12u32, completions, 0..3u64).prop_map(
        |(sndbuf_bytes, rmbe_bytes, inline_max, completions, delay)| SideParams {
            sndbuf_bytes,
            rmbe_bytes,
            inline_max,
            completions,
            delay: Duration::from_micros(delay),
        },
    )
}

/// Plays the steps, then lets both sides finish; every byte written must be read.
fn play(mut pair: Pair, steps: &[Step]) {
    let mut received = [Vec::new(), Vec::new()];
    for step in steps {
        match *step {
            Step::Write(side, bytes) => {
                pair.write(side, bytes);
            }
            Step::Read(side, bytes) => {
                let start = pair.read_total(side);
                let got = u64::from(pair.read(side, bytes));
                received[side as usize]
                    .extend((start..start + got).map(|p| stream_byte(side.peer(), p)));
            }
            Step::Transmit(side) => {
                pair.transmit_one(side);
            }
            Step::Deliver(side) => {
                if let Some((message, outcome)) = pair.deliver_one(side) {
                    assert_eq!(outcome, Ok(()), "{message:?}");
                }
            }
        }
    }
    loop {
        pair.settle();
        let mut moved = 0;
        for side in Side::BOTH {
            moved += drain(&mut pair, side, &mut received[side as usize]);
        }
        if moved == 0 {
            break;
        }
    }
    for side in Side::BOTH {
        let written = pair.written(side);
        let sent = digest((0..written).map(|position| stream_byte(side, position)));
        let got = &received[side.peer() as usize];
        assert_eq!(got.len() as u64, written, "{side:?}: all arrived");
        assert_eq!(
            digest(got.iter().copied()),
            sent,
            "{side:?}: digests are equal"
        );
        let conn = pair.conn(side);
        assert_eq!(conn.state(), ConnState::Active);
        assert!(!conn.wants_transmit());
        assert!(conn.window() > 0, "{side:?}: the window is open at the end");
    }
}

proptest! {
    #[test]
    fn bytes_survive_any_order_of_events_in_rings_of_one_to_eight(
        left in habits(1..=8u32), right in habits(1..=8u32),
        steps in prop::collection::vec(step(9), 0..300),
    ) {
        play(Pair::new(left, right), &steps);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn bytes_survive_any_order_of_events_in_rings_of_16_kib(
        left in habits(Just(16 << 10)), right in habits(Just(16 << 10)),
        steps in prop::collection::vec(step(20_000), 0..150),
    ) {
        play(Pair::new(left, right), &steps);
    }
}

#[test]
fn a_long_stream_through_a_ring_of_one_byte_passes_both_counters() {
    // Each byte is one lap and one message: laps and sequence numbers go past 65535.
    let mut pair = Pair::equal(SideParams::rings(1));
    for _ in 0..70_000 {
        assert_eq!(pair.write(Side::Left, 1), 1);
        pair.settle();
        assert_eq!(pair.read(Side::Right, 1), 1);
        pair.settle();
    }
    assert_eq!(pair.read_total(Side::Right), 70_000);
}

#[test]
fn a_blocked_writer_is_told_when_there_is_room() {
    let mut pair = Pair::equal(SideParams::rings(4));
    assert_eq!(pair.write(Side::Left, 9), 4, "the sndbuf takes a ring");
    pair.settle();
    assert!(pair.take_events(Side::Left).contains(EventSet::WRITABLE));
    assert_eq!(
        pair.write(Side::Left, 9),
        4,
        "and another, the peer's ring being full"
    );
    pair.settle();
    assert!(!pair.take_events(Side::Left).contains(EventSet::WRITABLE));
    assert_eq!(pair.conn(Side::Left).writable(), 0);
    pair.read(Side::Right, 4);
    pair.settle();
    assert!(pair.take_events(Side::Left).contains(EventSet::WRITABLE));
    assert_eq!(pair.conn(Side::Left).writable(), 4);
}

#[test]
fn without_completions_the_peers_reading_frees_the_send_ring() {
    let params = SideParams {
        completions: Completions::Never,
        ..SideParams::rings(8)
    };
    let mut pair = Pair::equal(params);
    pair.write(Side::Left, 8);
    pair.settle();
    assert_eq!(pair.conn(Side::Left).reclaimed_total(), 0);
    pair.read(Side::Right, 8);
    pair.settle();
    assert_eq!(pair.conn(Side::Left).reclaimed_total(), 8);
}
