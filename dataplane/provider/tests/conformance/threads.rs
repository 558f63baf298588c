//! Two threads, each polling its own end.

use std::time::Instant;

use pollux_provider::{Signal, WcStatus};

use crate::bed::{Bed, End, Placement, Wish, World};

on_every_bed!(
    both_directions_stream_at_once_without_loss,
    two_queue_pairs_share_a_group_fairly,
);

const MESSAGES: u64 = 8_000;

/// Sends its messages and takes the peer's, each checked: a WRITE with the number, then a SEND that says
/// where it went.
fn stream<D: pollux_provider::Device>(
    end: &mut End<D>,
    peer: impl Fn(usize) -> pollux_provider::RemoteSpan,
) {
    let clock = Instant::now();
    let (mut sent, mut received, mut open) = (0u64, 0u64, 0u64);
    (0..16).for_each(|slot| end.recv(slot));
    while received < MESSAGES || sent < MESSAGES || open > 0 {
        // One signalled SEND in four covers eight slots.
        while sent < MESSAGES && open < 2 {
            for _ in 0..4 {
                let number = sent + 1;
                let len = 8 + (number % 30) as usize * 8;
                let place = (number % 64) as usize * 256;
                let bytes: Vec<u8> = number.to_le_bytes().repeat(len / 8);
                let from = 100_000 + place;
                end.fill(from, &bytes);
                let how = if number % 5 == 0 {
                    Placement::ByReference
                } else {
                    Placement::Inline
                };
                let from = end.piece(from, len);
                end.write(number, from, peer(place), how, Signal::Unsignaled);
                let last = number % 4 == 0;
                let signal = if last {
                    Signal::Signaled
                } else {
                    Signal::Unsignaled
                };
                end.send(
                    number,
                    &[number.to_le_bytes(), (len as u64).to_le_bytes()].concat(),
                    signal,
                );
                sent = number;
            }
            end.flush();
            open += 1;
        }
        end.reap(clock.elapsed().as_nanos() as u64);
        if end.done.is_empty() {
            // The other thread may need this processor.
            std::thread::yield_now();
        }
        for done in std::mem::take(&mut end.done) {
            assert_eq!(done.status, WcStatus::Success);
            if !done.opcode.is_receive() {
                open -= 1;
                continue;
            }
            received += 1;
            let message = end.received(done.wr_id.0, 16);
            assert_eq!(message[..8], received.to_le_bytes(), "in order");
            let len = u64::from(message[8]) + u64::from(message[9]) * 256;
            // At most 32 messages are under way, and there are 64 places.
            let place = (received % 64) as usize * 256;
            let bytes = end.bytes(place, len as usize);
            assert!(
                bytes.chunks(8).all(|word| word == received.to_le_bytes()),
                "{received}"
            );
            end.recv(done.wr_id.0);
        }
    }
}

fn both_directions_stream_at_once_without_loss<B: Bed>() {
    let World {
        mut a, mut b, bed, ..
    } = World::<B>::connected(Wish::default());
    let (to_a, to_b) = (a.place(0), b.place(0));
    let at = |base: pollux_provider::RemoteSpan| {
        move |offset: usize| pollux_provider::RemoteSpan {
            addr: base.addr + offset as u64,
            ..base
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| stream(&mut b, at(to_a)));
        stream(&mut a, at(to_b));
    });
    drop(bed);
}

fn two_queue_pairs_share_a_group_fairly<B: Bed>() {
    let mut world = World::<B>::connected(Wish::default());
    let first = (world.a.qp, world.b.qp);
    world.connect_again(&Wish::default());
    let second = (world.a.qp, world.b.qp);
    for (qp_a, qp_b) in [first, second] {
        (world.a.qp, world.b.qp) = (qp_a, qp_b);
        for slot in 0..16 {
            world.b.recv(slot);
            world.a.send(slot, &[1; 8], Signal::Unsignaled);
        }
        world.a.flush();
    }
    // Eight at a time: neither waits until the other is through.
    while world.b.done.len() < 16 {
        world.b.reap(0);
    }
    for qp in [first.1, second.1] {
        let share = world.b.done[..16]
            .iter()
            .filter(|done| done.qp == qp)
            .count();
        assert!((4..=12).contains(&share), "{share} of 16");
    }
    world.until(|world| world.b.done.len() == 32);
}
