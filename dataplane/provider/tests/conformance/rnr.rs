//! Receiver not ready: waiting, repeating, giving up.

use pollux_provider::{PollGroup, QpState, Signal, WcStatus, rnr_timer_ns};

use crate::bed::{Bed, Placement, Wish, World, connect};

on_every_bed!(
    send_without_receive_waits_for_the_timer_and_then_arrives,
    work_behind_a_waiting_send_waits_too,
    requester_gives_up_after_its_retries,
    no_retries_means_the_first_refusal_is_the_last,
    seven_retries_are_for_ever,
    target_stays_usable_as_far_as_it_knows_when_the_requester_gives_up,
    retries_start_anew_for_the_next_message,
    write_with_immediate_needs_a_receive_too,
);

const CODE: u8 = 5;

fn timer() -> u64 {
    rnr_timer_ns(CODE).expect("code 5")
}

fn world<B: Bed>(rnr_retry: u8) -> World<B> {
    World::connected(Wish {
        rnr_retry,
        min_rnr_timer: CODE,
        ..Wish::default()
    })
}

fn send_without_receive_waits_for_the_timer_and_then_arrives<B: Bed>() {
    let mut world = world::<B>(7);
    world.a.send(1, b"patience", Signal::Signaled);
    world.a.flush();
    world.settle();
    assert_eq!(
        world.b.group.stats(world.b.qp).rnr_naks_sent,
        1,
        "one refusal per timer"
    );
    world.b.recv(0);
    world.now = timer() - 1;
    world.settle();
    assert!(
        world.b.done.is_empty(),
        "the requester repeats only after its timer"
    );
    world.now = timer();
    world.until(|world| world.a.done.len() == 1 && world.b.done.len() == 1);
    assert_eq!(world.b.received(0, 8), b"patience");
    assert_eq!(world.b.group.stats(world.b.qp).rnr_naks_sent, 1);
    assert_eq!(world.a.group.stats(world.a.qp).rnr_naks_received, 1);
}

fn work_behind_a_waiting_send_waits_too<B: Bed>() {
    let mut world = world::<B>(7);
    world.a.send(1, b"first", Signal::Unsignaled);
    world.a.fill(0, b"after");
    let (from, to) = (world.a.piece(0, 5), world.b.place(0));
    world
        .a
        .write(2, from, to, Placement::Inline, Signal::Signaled);
    world.a.flush();
    world.settle();
    assert_eq!(world.b.bytes(0, 5), [0; 5]);
    world.b.recv(0);
    world.now += timer();
    world.until(|world| world.a.done.len() == 1);
    assert_eq!(world.b.bytes(0, 5), b"after");
}

fn requester_gives_up_after_its_retries<B: Bed>() {
    let mut world = world::<B>(2);
    world.a.recv(0);
    world.a.send(1, b"in vain", Signal::Unsignaled);
    world.a.send(2, b"in vain", Signal::Unsignaled);
    world.a.flush();
    for refusals in 1..=2 {
        world.settle();
        assert_eq!(world.b.group.stats(world.b.qp).rnr_naks_sent, refusals);
        assert!(world.a.done.is_empty());
        world.now += timer();
    }
    world.until(|world| world.a.done.len() == 3);
    assert_eq!(
        world.a.sends(),
        [(1, WcStatus::RnrRetryExceeded), (2, WcStatus::WrFlush)]
    );
    assert_eq!(world.a.recvs(), [(0, WcStatus::WrFlush)]);
    assert_eq!(world.b.group.stats(world.b.qp).rnr_naks_sent, 3);
    assert_eq!(world.a.group.stats(world.a.qp).rnr_naks_received, 3);
}

fn no_retries_means_the_first_refusal_is_the_last<B: Bed>() {
    let mut world = world::<B>(0);
    world.a.send(1, b"in vain", Signal::Signaled);
    world.a.flush();
    world.until(|world| world.a.done.len() == 1);
    assert_eq!(world.a.sends(), [(1, WcStatus::RnrRetryExceeded)]);
}

fn seven_retries_are_for_ever<B: Bed>() {
    let mut world = world::<B>(7);
    world.a.send(1, b"still here", Signal::Signaled);
    world.a.flush();
    for refusals in 1..=100 {
        world.until(|world| world.b.group.stats(world.b.qp).rnr_naks_sent == refusals);
        world.now += timer();
    }
    assert!(world.a.done.is_empty());
    world.b.recv(0);
    world.now += timer();
    world.until(|world| world.a.done.len() == 1);
    assert_eq!(world.a.sends(), [(1, WcStatus::Success)]);
}

fn target_stays_usable_as_far_as_it_knows_when_the_requester_gives_up<B: Bed>() {
    let mut world = world::<B>(0);
    world.a.send(1, b"in vain", Signal::Signaled);
    world.a.flush();
    world.until(|world| world.a.done.len() == 1);
    world.settle();
    assert_eq!(world.b.group.state(world.b.qp), QpState::Rts);
    assert!(world.b.done.is_empty());
    world
        .b
        .send(5, b"to a queue pair in error", Signal::Unsignaled);
    world.b.flush();
    world.until(|world| world.b.done.len() == 1);
    assert_eq!(world.b.sends(), [(5, WcStatus::RetryExceeded)]);
    // And a new connection between the two devices is none the worse.
    connect(&mut world.a, &mut world.b, &Wish::default());
    world.b.recv(0);
    world.a.send(6, b"again", Signal::Signaled);
    world.a.flush();
    world.until(|world| world.b.recvs() == [(0, WcStatus::Success)]);
}

fn retries_start_anew_for_the_next_message<B: Bed>() {
    let mut world = world::<B>(1);
    for round in 0..5 {
        world.a.send(round, b"twice", Signal::Signaled);
        world.a.flush();
        world.settle();
        world.b.recv(round);
        world.now += timer();
        world.until(|world| world.a.done.len() == round as usize + 1);
    }
    assert!(
        world
            .a
            .done
            .iter()
            .all(|done| done.status == WcStatus::Success)
    );
}

fn write_with_immediate_needs_a_receive_too<B: Bed>() {
    let mut world = world::<B>(7);
    world.a.fill(0, b"imm");
    let (from, to) = (world.a.piece(0, 3), world.b.place(0));
    let (how, signal) = (Placement::Inline, Signal::Signaled);
    assert_eq!(
        world.a.try_write_imm(1, &[from], (to, 4), how, signal),
        Ok(())
    );
    world.a.flush();
    world.settle();
    assert_eq!(world.b.group.stats(world.b.qp).rnr_naks_sent, 1);
    assert_eq!(world.b.bytes(0, 3), [0; 3]);
    world.b.recv(0);
    world.now += timer();
    world.until(|world| world.b.done.len() == 1);
    assert_eq!(
        (world.b.done[0].imm, world.b.bytes(0, 3)),
        (Some(4), b"imm".to_vec())
    );
}
