//! Sleeping and waking: no lost wake-up, no needless one.

use std::time::Duration;

use pollux_provider::{Armed, Device, PollGroup, RemoteSpan, Rkey, Signal, Sleep, WcStatus};

use crate::bed::{Bed, End, Placement, Wish, World};

on_every_bed!(
    sleeper_is_woken_by_a_flush_and_once_only,
    waiting_work_keeps_a_group_awake,
    group_that_never_sleeps_is_never_signalled,
    group_that_sleeps_after_all_is_woken_again,
    requester_that_sleeps_is_woken_by_its_completion,
    sleeper_without_interest_is_not_woken_by_acknowledgements,
    error_wakes_a_sleeping_requester,
    death_of_the_peer_wakes_a_sleeper,
    two_sleepers_never_miss_a_message,
);

/// Arms until the group may sleep; what keeps it awake is taken.
fn asleep<D: Device>(end: &mut End<D>) {
    for _ in 0..10_000_000u64 {
        if end.group.arm(Sleep::May) == Armed::Idle {
            return;
        }
        end.reap(0);
        std::thread::yield_now();
    }
    panic!("it never got tired: {:?}", end.done);
}

fn signalled<D: Device>(end: &End<D>) -> bool {
    end.wake.drain().expect("eventfd")
}

/// Waits for the signal and takes it; gives up only when it was certainly lost.
fn is_signalled<D: Device>(end: &End<D>) -> bool {
    let patience = Some(Duration::from_secs(60));
    end.wake.wait(patience).expect("eventfd") && signalled(end)
}

fn woken<D: Device>(end: &mut End<D>) {
    assert!(is_signalled(end), "a lost wake-up");
    end.group.disarm();
}

fn sleeper_is_woken_by_a_flush_and_once_only<B: Bed>() {
    let mut world = World::<B>::connected(Wish::default());
    (0..4).for_each(|slot| world.b.recv(slot));
    asleep(&mut world.b);
    assert!(!signalled(&world.b));
    world.a.send(1, b"wake", Signal::Unsignaled);
    assert!(!signalled(&world.b), "posting is not ringing");
    world.a.flush();
    assert!(is_signalled(&world.b));
    world.a.send(2, b"up", Signal::Unsignaled);
    world.a.flush();
    assert!(!signalled(&world.b), "one signal for one sleep");
    world.b.group.disarm();
    world.until(|world| world.b.done.len() == 2);
    asleep(&mut world.b);
    world.a.send(3, b"again", Signal::Unsignaled);
    world.a.flush();
    assert!(is_signalled(&world.b));
}

fn waiting_work_keeps_a_group_awake<B: Bed>() {
    let mut world = World::<B>::connected(Wish::default());
    asleep(&mut world.b);
    world.b.group.disarm();
    world.a.send(1, b"no receive", Signal::Unsignaled);
    world.a.flush();
    assert_eq!(
        world.b.group.arm(Sleep::May),
        Armed::Pending,
        "a line is there"
    );
    world.settle();
    assert_eq!(
        world.b.group.arm(Sleep::May),
        Armed::Pending,
        "a timer only polling sees"
    );
    assert!(!signalled(&world.b));
}

fn group_that_never_sleeps_is_never_signalled<B: Bed>() {
    let mut world = World::<B>::connected(Wish::default());
    (0..4).for_each(|slot| world.b.recv(slot));
    asleep(&mut world.b);
    assert_eq!(world.b.group.arm(Sleep::Never), Armed::Pending);
    signalled(&world.b);
    world.a.send(1, b"polled", Signal::Signaled);
    world.a.flush();
    world.until(|world| world.a.done.len() == 1);
    assert!(!signalled(&world.b) && !signalled(&world.a));
}

fn group_that_sleeps_after_all_is_woken_again<B: Bed>() {
    let mut world = World::<B>::connected(Wish::default());
    (0..8).for_each(|slot| world.b.recv(slot));
    for turn in 0..4 {
        asleep(&mut world.b);
        signalled(&world.b);
        world.a.send(2 * turn, b"wake", Signal::Unsignaled);
        world.a.flush();
        assert!(is_signalled(&world.b), "turn {turn}");
        // Polls for ever, from the middle of a sleep on.
        assert_eq!(world.b.group.arm(Sleep::Never), Armed::Pending);
        world.a.send(2 * turn + 1, b"polled", Signal::Unsignaled);
        world.a.flush();
        world.until(|world| world.b.done.len() as u64 == 2 * turn + 2);
        assert!(!signalled(&world.b), "turn {turn}");
    }
}

fn requester_that_sleeps_is_woken_by_its_completion<B: Bed>() {
    let mut world = World::<B>::connected(Wish::default());
    let (from, to) = (world.a.piece(0, 8), world.b.place(0));
    world
        .a
        .write(1, from, to, Placement::Inline, Signal::Signaled);
    world.a.flush();
    asleep(&mut world.a);
    (0..100).for_each(|_| world.b.reap(0));
    assert!(is_signalled(&world.a));
    assert_eq!(
        world.a.group.arm(Sleep::May),
        Armed::Pending,
        "the completion is there"
    );
    world.until(|world| world.a.done.len() == 1);
}

fn sleeper_without_interest_is_not_woken_by_acknowledgements<B: Bed>() {
    let mut world = World::<B>::connected(Wish::default());
    let (from, to) = (world.a.piece(0, 8), world.b.place(0));
    world
        .a
        .write(1, from, to, Placement::Inline, Signal::Unsignaled);
    world.a.flush();
    asleep(&mut world.a);
    (0..100).for_each(|_| world.b.reap(0));
    assert!(!signalled(&world.a));
}

fn error_wakes_a_sleeping_requester<B: Bed>() {
    let mut world = World::<B>::connected(Wish::default());
    let (from, to) = (
        world.a.piece(0, 8),
        RemoteSpan {
            rkey: Rkey(0),
            ..world.b.place(0)
        },
    );
    world
        .a
        .write(1, from, to, Placement::Inline, Signal::Unsignaled);
    world.a.flush();
    asleep(&mut world.a);
    (0..100).for_each(|_| world.b.reap(0));
    // An adapter may have been faster than the sleep.
    if world.a.done.is_empty() {
        woken(&mut world.a);
    }
    world.until(|world| world.a.done.len() == 1);
}

fn death_of_the_peer_wakes_a_sleeper<B: Bed>() {
    let mut world = World::<B>::connected(Wish::default());
    world.a.send(1, b"never received", Signal::Unsignaled);
    world.a.flush();
    asleep(&mut world.a);
    let World { mut a, b, bed, .. } = world;
    drop(b.device);
    woken(&mut a);
    while a.done.is_empty() {
        a.reap(0);
        std::thread::yield_now();
    }
    drop(bed);
}

fn two_sleepers_never_miss_a_message<B: Bed>() {
    const ROUNDS: u64 = 3_000;
    let world = World::<B>::connected(Wish::default());
    let World {
        mut a, mut b, bed, ..
    } = world;
    let play = |end: &mut End<B::Device>, mine: u64| {
        (0..8).for_each(|slot| end.recv(slot));
        let mut turn = 0u64;
        while turn < 2 * ROUNDS {
            if turn % 2 == mine {
                end.send(turn, &turn.to_le_bytes(), Signal::Signaled);
                end.flush();
                turn += 1;
            }
            // Looks a few times, differently often, then sleeps.
            (0..turn % 50).for_each(|_| end.reap(0));
            if end.done.is_empty() && end.group.arm(Sleep::May) == Armed::Idle {
                if turn >= 2 * ROUNDS {
                    break;
                }
                woken(end);
            }
            end.reap(0);
            for done in std::mem::take(&mut end.done) {
                assert_eq!(done.status, WcStatus::Success);
                if done.opcode.is_receive() {
                    assert_eq!(end.received(done.wr_id.0, 8), turn.to_le_bytes());
                    end.recv(done.wr_id.0);
                    turn += 1;
                }
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| play(&mut b, 1));
        play(&mut a, 0);
    });
    drop(bed);
}
