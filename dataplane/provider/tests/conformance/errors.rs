//! Failures: who is told what, and in which order.

use pollux_provider::{
    Access, Armed, Device, DeviceEvent, Payload, PollGroup, PostError, QpState, RemoteSpan, Rkey,
    Sge, Signal, Sleep, WcStatus, WrId,
};

use crate::bed::{Bed, End, Placement, Wish, World, attr, connect, rts, spec, tally};

on_every_bed!(
    write_outside_the_registration_is_refused_by_the_target,
    write_with_a_key_that_does_not_allow_it_is_refused,
    error_flushes_everything_outstanding_in_order,
    posts_before_the_caller_knows_are_flushed_and_later_ones_refused,
    message_longer_than_its_receive_fails_both_ends,
    receive_into_memory_that_is_gone_fails_both_ends,
    source_that_is_gone_fails_the_requester,
    unsignalled_failure_reports,
    death_of_the_peer_device_ends_outstanding_work,
    death_of_the_peer_device_is_news,
    work_after_the_death_of_the_peer_ends_too,
    end_of_the_peer_queue_pair_ends_outstanding_work,
    what_the_peer_sent_before_its_end_arrives,
    unexpected_sequence_number_ends_the_connection,
    to_error_flushes_sends_then_receives,
    unsignalled_successes_do_not_hold_up_a_failing_queue_pair,
    failure_of_one_queue_pair_leaves_others_alone,
    waiting_send_of_a_peer_that_died_does_not_keep_a_group_awake,
);

fn writes_to<B: Bed>(world: &mut World<B>, to: RemoteSpan, len: usize, how: Placement) {
    let from = world.a.piece(0, len);
    world.a.write(50, from, to, how, Signal::Unsignaled);
    world.a.flush();
}

fn write_outside_the_registration_is_refused_by_the_target<B: Bed>() {
    let spans = [
        (4000u64, 97usize),
        (4096, 1),
        (u64::MAX - 7, 8),
        (u64::MAX - 3999, 4001),
    ];
    for how in [Placement::Inline, Placement::ByReference] {
        for (offset, len) in spans {
            let mut world = World::<B>::connected(Wish::default());
            let mr = world
                .b
                .device
                .register(&world.b.shared, 0, 4096, Access::RemoteWrite)
                .expect("mr");
            world.a.fill(0, &vec![0xaa; len]);
            let to = RemoteSpan {
                addr: mr.addr().wrapping_add(offset),
                rkey: mr.rkey(),
            };
            // Up to the last byte it works.
            let last = RemoteSpan {
                addr: mr.addr() + 4000,
                rkey: mr.rkey(),
            };
            writes_to(&mut world, last, 96, how);
            let from = world.a.piece(0, len);
            let how = if len > 256 {
                Placement::ByReference
            } else {
                how
            };
            world.a.write(51, from, to, how, Signal::Unsignaled);
            world.a.flush();
            world.until(|world| !world.a.done.is_empty());
            assert_eq!(
                world.a.sends(),
                [(51, WcStatus::RemoteAccess)],
                "{offset} + {len}"
            );
            assert!(world.b.bytes(4096, 4096).iter().all(|byte| *byte == 0));
        }
    }
}

fn write_with_a_key_that_does_not_allow_it_is_refused<B: Bed>() {
    type Key<D> = fn(&mut End<D>) -> Rkey;
    let wrong: [Key<B::Device>; 5] = [
        |b| Rkey(b.mr.rkey().0 ^ 0x100),
        |b| Rkey(b.mr.lkey().0),
        |b| {
            let mr = b
                .device
                .register(&b.shared, 0, 4096, Access::LocalOnly)
                .expect("mr");
            let rkey = mr.rkey();
            // Lives as long as the test.
            std::mem::forget(mr);
            rkey
        },
        |b| {
            let mr = b
                .device
                .register(&b.shared, 0, 4096, Access::RemoteWrite)
                .expect("mr");
            mr.rkey()
        },
        |_| Rkey(0xffff_ffff),
    ];
    for key in wrong {
        let mut world = World::<B>::connected(Wish::default());
        let rkey = key(&mut world.b);
        let to = RemoteSpan {
            addr: world.b.mr.addr(),
            rkey,
        };
        world.a.fill(0, &[0xaa; 8]);
        writes_to(&mut world, to, 8, Placement::Inline);
        world.until(|world| !world.a.done.is_empty());
        assert_eq!(world.a.sends(), [(50, WcStatus::RemoteAccess)]);
        assert_eq!(world.b.bytes(0, 8), [0; 8]);
    }
}

fn error_flushes_everything_outstanding_in_order<B: Bed>() {
    let mut world = World::<B>::connected(Wish::default());
    (0..3).for_each(|slot| world.a.recv(slot));
    (0..4).for_each(|slot| world.b.recv(slot));
    let (from, good) = (world.a.piece(0, 8), world.b.place(0));
    let bad = RemoteSpan {
        rkey: Rkey(1),
        ..good
    };
    world
        .a
        .write(1, from, good, Placement::Inline, Signal::Signaled);
    world
        .a
        .write(2, from, good, Placement::Inline, Signal::Unsignaled);
    world
        .a
        .write(3, from, bad, Placement::Inline, Signal::Unsignaled);
    world
        .a
        .write(4, from, good, Placement::ByReference, Signal::Unsignaled);
    world.a.send(5, b"never", Signal::Signaled);
    world.a.flush();
    world.a.send(6, b"not even rung", Signal::Unsignaled);
    world.until(|world| world.a.done.len() >= 8 && world.b.done.len() >= 4);
    assert_eq!(
        world.a.sends(),
        [
            (1, WcStatus::Success),
            (3, WcStatus::RemoteAccess),
            (4, WcStatus::WrFlush),
            (5, WcStatus::WrFlush),
            (6, WcStatus::WrFlush),
        ]
    );
    let flushed = |slots: std::ops::Range<u64>| {
        slots
            .map(|slot| (slot, WcStatus::WrFlush))
            .collect::<Vec<_>>()
    };
    assert_eq!(world.a.recvs(), flushed(0..3));
    assert_eq!(world.b.recvs(), flushed(0..4), "the target fails as well");
    assert!(
        world.a.done[5..]
            .iter()
            .all(|done| done.opcode.is_receive()),
        "sends come first"
    );
    world.settle();
    assert_eq!(
        (world.a.done.len(), world.b.done.len()),
        (8, 4),
        "and nothing twice"
    );
    assert_eq!(world.a.group.state(world.a.qp), QpState::Error);
    assert_eq!(world.b.group.state(world.b.qp), QpState::Error);
}

fn posts_before_the_caller_knows_are_flushed_and_later_ones_refused<B: Bed>() {
    let mut world = World::<B>::connected(Wish::default());
    let (from, to) = (world.a.piece(0, 8), world.b.place(0));
    let bad = RemoteSpan {
        rkey: Rkey(1),
        ..to
    };
    world.a.recv(0);
    world
        .a
        .write(1, from, bad, Placement::Inline, Signal::Signaled);
    world.a.flush();
    // The target refuses; the requester's driver may know, its caller does not.
    (0..50).for_each(|_| world.b.reap(0));
    world.a.group.reap(0, &mut []);
    assert_eq!(world.a.group.state(world.a.qp), QpState::Rts);
    world
        .a
        .write(2, from, to, Placement::Inline, Signal::Unsignaled);
    world.a.send(3, b"x", Signal::Signaled);
    world.a.recv(1);
    world.a.flush();
    world.until(|world| world.a.done.len() == 5);
    assert_eq!(
        world.a.sends(),
        [
            (1, WcStatus::RemoteAccess),
            (2, WcStatus::WrFlush),
            (3, WcStatus::WrFlush)
        ]
    );
    assert_eq!(
        world.a.recvs(),
        [(0, WcStatus::WrFlush), (1, WcStatus::WrFlush)]
    );
    let (qp, into) = (world.a.qp, world.a.private_piece(0, 8));
    let refused = Err(PostError::WrongState(QpState::Error));
    assert_eq!(world.a.try_send_bytes(4, b"x", Signal::Signaled), refused);
    let group = &mut world.a.group;
    assert_eq!(group.post_recv(qp, WrId(4), into), refused);
    assert!(group.flush(qp).is_ok());
}

fn message_longer_than_its_receive_fails_both_ends<B: Bed>() {
    let mut world = World::<B>::connected(Wish::default());
    let (qp, into) = (world.b.qp, world.b.private_piece(0, 43));
    world.b.pool.copy_in(0, &[0xee; 64]).expect("inside");
    assert_eq!(world.b.group.post_recv(qp, WrId(7), into), Ok(()));
    world.b.recv(8);
    world.a.send(1, &[1; 44], Signal::Unsignaled);
    world.a.send(2, &[1; 4], Signal::Unsignaled);
    world.a.flush();
    world.until(|world| world.a.done.len() == 2 && world.b.done.len() == 2);
    assert_eq!(
        world.b.recvs(),
        [(7, WcStatus::LocalLength), (8, WcStatus::WrFlush)]
    );
    assert_eq!(
        world.a.sends(),
        [(1, WcStatus::RemoteInvalidRequest), (2, WcStatus::WrFlush)]
    );
    assert_eq!(
        world.b.received(0, 64),
        [0xee; 64],
        "nothing is written beyond or before"
    );
}

fn receive_into_memory_that_is_gone_fails_both_ends<B: Bed>() {
    let mut world = World::<B>::connected(Wish::default());
    let mr = world
        .b
        .device
        .register(&world.b.pool, 0, 64, Access::LocalOnly)
        .expect("mr");
    let into = Sge {
        addr: mr.addr(),
        length: 64,
        lkey: mr.lkey(),
    };
    let qp = world.b.qp;
    assert_eq!(world.b.group.post_recv(qp, WrId(7), into), Ok(()));
    drop(mr);
    world.a.send(1, &[1; 44], Signal::Signaled);
    world.a.flush();
    world.until(|world| world.a.done.len() == 1 && world.b.done.len() == 1);
    assert_eq!(world.b.recvs(), [(7, WcStatus::LocalProtection)]);
    assert_eq!(world.a.sends(), [(1, WcStatus::RemoteOperation)]);
}

fn source_that_is_gone_fails_the_requester<B: Bed>() {
    use pollux_provider::Region;
    use pollux_ring::{Pages, Segment};
    let mut world = World::<B>::connected(Wish::default());
    let region = Region::from(Segment::create("short", 4096, Pages::Off).expect("segment"));
    let mr = world
        .a
        .device
        .register(&region, 0, 4096, Access::LocalOnly)
        .expect("mr");
    let (qp, to) = (world.a.qp, world.b.place(0));
    let from = Sge {
        addr: mr.addr(),
        length: 100,
        lkey: mr.lkey(),
    };
    // It is known to the peer, once.
    world
        .a
        .write(1, from, to, Placement::ByReference, Signal::Signaled);
    world.a.flush();
    world.until(|world| world.a.done.len() == 1);
    let payload = Payload::ByReference(&[from]);
    let posted = world
        .a
        .group
        .post_write(qp, WrId(2), payload, to, Signal::Signaled);
    assert_eq!(posted, Ok(()));
    drop(mr);
    // On a carrier with a thread in between the news may come later than the request.
    drop(region);
    world.a.flush();
    world.until(|world| world.a.done.len() == 2);
    let (wr, status) = world.a.sends()[1];
    assert_eq!(wr, 2);
    assert!(
        matches!(status, WcStatus::LocalProtection | WcStatus::Success),
        "{status:?}"
    );
}

fn unsignalled_failure_reports<B: Bed>() {
    let mut world = World::<B>::connected(Wish::default());
    let to = RemoteSpan {
        rkey: Rkey(0),
        ..world.b.place(0)
    };
    writes_to(&mut world, to, 8, Placement::Inline);
    world.until(|world| world.a.done.len() == 1);
    assert_eq!(world.a.sends(), [(50, WcStatus::RemoteAccess)]);
}

/// A world whose end `b` has died; everything else of it stays.
fn bury<B: Bed>(world: World<B>) -> (End<B::Device>, B) {
    let World { a, b, bed, .. } = world;
    let End {
        device,
        group,
        mr,
        private,
        ..
    } = b;
    drop(device);
    drop((group, mr, private));
    (a, bed)
}

fn reap_until<D: Device>(end: &mut End<D>, count: usize) {
    for _ in 0..20_000_000u64 {
        if end.done.len() >= count {
            return;
        }
        end.reap(0);
        std::thread::yield_now();
    }
    panic!("it never came: {:?}", end.done);
}

fn death_of_the_peer_device_ends_outstanding_work<B: Bed>() {
    let mut world = World::<B>::connected(Wish::default());
    world.a.recv(0);
    world.a.send(1, b"no receive there", Signal::Unsignaled);
    world.a.send(2, b"x", Signal::Signaled);
    world.a.flush();
    let (mut a, _bed) = bury(world);
    reap_until(&mut a, 3);
    assert_eq!(
        a.sends(),
        [(1, WcStatus::RetryExceeded), (2, WcStatus::WrFlush)]
    );
    assert_eq!(a.recvs(), [(0, WcStatus::WrFlush)]);
}

fn death_of_the_peer_device_is_news<B: Bed>() {
    let world = World::<B>::connected(Wish::default());
    let gid = world.b.device.identity().gid;
    let (a, _bed) = bury(world);
    for _ in 0..20_000_000u64 {
        if a.device
            .take_events()
            .contains(&DeviceEvent::PeerGone { gid })
        {
            return;
        }
        std::thread::yield_now();
    }
    panic!("the event never came");
}

fn work_after_the_death_of_the_peer_ends_too<B: Bed>() {
    let world = World::<B>::connected(Wish::default());
    let (mut a, _bed) = bury(world);
    for _ in 0..100 {
        a.reap(0);
    }
    assert_eq!(a.group.state(a.qp), QpState::Rts, "nothing was outstanding");
    a.send(1, b"anybody?", Signal::Unsignaled);
    a.flush();
    reap_until(&mut a, 1);
    assert_eq!(a.sends(), [(1, WcStatus::RetryExceeded)]);
    let refused = a.try_send_bytes(2, b"x", Signal::Unsignaled);
    assert_eq!(refused, Err(PostError::WrongState(QpState::Error)));
}

fn end_of_the_peer_queue_pair_ends_outstanding_work<B: Bed>() {
    let mut world = World::<B>::connected(Wish::default());
    let qp = world.b.group.release(world.b.qp).expect("there");
    world.a.send(1, b"to nobody", Signal::Unsignaled);
    world.a.flush();
    drop(qp);
    world.until(|world| !world.a.done.is_empty());
    assert_eq!(world.a.sends(), [(1, WcStatus::RetryExceeded)]);
}

fn what_the_peer_sent_before_its_end_arrives<B: Bed>() {
    let mut world = World::<B>::connected(Wish::default());
    (0..10).for_each(|slot| world.a.recv(slot));
    // Something of ours is outstanding, which the end of the peer will fail.
    world.a.send(100, b"unanswered", Signal::Unsignaled);
    world.a.flush();
    for wr in 0..10 {
        world.b.send(wr, &[wr as u8; 30], Signal::Unsignaled);
    }
    world.b.flush();
    drop(world.b.group.release(world.b.qp));
    world.until(|world| world.a.done.len() == 11);
    let expected: Vec<(u64, WcStatus)> = (0..10).map(|slot| (slot, WcStatus::Success)).collect();
    assert_eq!(world.a.recvs(), expected);
    assert_eq!(world.a.sends(), [(100, WcStatus::RetryExceeded)]);
    assert_eq!(world.a.received(9, 30), [9; 30]);
}

fn unexpected_sequence_number_ends_the_connection<B: Bed>() {
    let wish = Wish::default();
    let bed = B::new();
    let open = || bed.open(crate::bed::options(wish.personality));
    let (mut a, mut b) = (End::new(open()), End::new(open()));
    let mut qp_a = a
        .device
        .create_qp(a.group.id(), &spec(wish.caps))
        .expect("qp");
    let mut qp_b = b
        .device
        .create_qp(b.group.id(), &spec(wish.caps))
        .expect("qp");
    use pollux_provider::Qp;
    let (qpn_a, qpn_b) = (qp_a.qpn(), qp_b.qpn());
    let (gid_a, gid_b) = (a.device.identity().gid, b.device.identity().gid);
    a.device.to_init(&mut qp_a).expect("init");
    b.device.to_init(&mut qp_b).expect("init");
    a.device
        .to_rtr(&mut qp_a, &attr(gid_b, qpn_b, &wish))
        .expect("rtr");
    b.device
        .to_rtr(&mut qp_b, &attr(gid_a, qpn_a, &wish))
        .expect("rtr");
    let other = pollux_provider::RtsAttr {
        sq_psn: 0x999,
        ..rts(&wish)
    };
    a.device.to_rts(&mut qp_a, &other).expect("rts");
    a.qp = a.group.adopt(qp_a).expect("adopt");
    b.qp = b.group.adopt(qp_b).expect("adopt");
    b.recv(0);
    a.send(1, b"out of sequence", Signal::Signaled);
    a.flush();
    let mut world = World { a, b, now: 0, bed };
    world.until(|world| !world.a.done.is_empty());
    assert_eq!(world.a.sends(), [(1, WcStatus::RetryExceeded)]);
}

fn to_error_flushes_sends_then_receives<B: Bed>() {
    let mut world = World::<B>::connected(Wish::default());
    world.a.recv(0);
    world.a.recv(1);
    world.a.send(5, b"rung, no receive", Signal::Unsignaled);
    world.a.flush();
    world.a.send(6, b"not rung", Signal::Signaled);
    let mut qp = world.a.group.release(world.a.qp).expect("there");
    world.a.device.to_error(&mut qp).expect("error");
    assert_eq!(pollux_provider::Qp::state(&qp), QpState::Error);
    world.a.qp = world.a.group.adopt(qp).expect("adopt");
    world.until(|world| world.a.done.len() == 4);
    assert_eq!(tally(&world.a.done), [(WcStatus::WrFlush, 4)].into());
    let order: Vec<u64> = world.a.done.iter().map(|done| done.wr_id.0).collect();
    assert_eq!(order, [5, 6, 0, 1]);
}

fn unsignalled_successes_do_not_hold_up_a_failing_queue_pair<B: Bed>() {
    let mut world = World::<B>::connected(Wish::default());
    world.a.recv(0);
    world.a.recv(1);
    world.a.fill(0, &[0xaa; 8]);
    let to = world.b.place(0);
    writes_to(&mut world, to, 8, Placement::Inline);
    // It is done, and nothing says so.
    world.until(|world| world.b.bytes(0, 8) == [0xaa; 8]);
    let mut qp = world.a.group.release(world.a.qp).expect("there");
    world.a.device.to_error(&mut qp).expect("error");
    world.a.qp = world.a.group.adopt(qp).expect("adopt");
    world.until(|world| world.a.recvs().len() == 2);
    world.settle();
    assert_eq!(tally(&world.a.done)[&WcStatus::WrFlush], world.a.done.len());
    let last: Vec<u64> = world.a.recvs().iter().map(|(wr, _)| *wr).collect();
    assert_eq!(last, [0, 1]);
}

fn failure_of_one_queue_pair_leaves_others_alone<B: Bed>() {
    let mut world = World::<B>::connected(Wish::default());
    let first = (world.a.qp, world.b.qp);
    connect(&mut world.a, &mut world.b, &Wish::default());
    let second = (world.a.qp, world.b.qp);
    assert_ne!(first.0, second.0);
    (world.a.qp, world.b.qp) = first;
    let to = RemoteSpan {
        rkey: Rkey(0),
        ..world.b.place(0)
    };
    writes_to(&mut world, to, 8, Placement::Inline);
    world.until(|world| world.a.done.len() == 1);
    (world.a.qp, world.b.qp) = second;
    world.b.recv(0);
    world.a.send(9, b"alive", Signal::Signaled);
    world.a.flush();
    world.until(|world| world.a.done.len() == 2 && world.b.done.len() == 1);
    assert_eq!(world.a.sends()[1], (9, WcStatus::Success));
    assert_eq!(world.a.group.state(first.0), QpState::Error);
    assert_eq!(world.a.group.state(second.0), QpState::Rts);
}

fn waiting_send_of_a_peer_that_died_does_not_keep_a_group_awake<B: Bed>() {
    let mut world = World::<B>::connected(Wish::default());
    world.b.send(1, b"no receive here", Signal::Unsignaled);
    world.b.flush();
    world.settle();
    assert_eq!(
        world.a.group.arm(Sleep::May),
        Armed::Pending,
        "its timer runs"
    );
    let (mut a, _bed) = bury(world);
    for now in 0..20_000_000u64 {
        a.reap(now * 1_000_000);
        if a.group.arm(Sleep::May) == Armed::Idle {
            assert!(a.done.is_empty(), "{:?}", a.done);
            return;
        }
        std::thread::yield_now();
    }
    panic!("it never got tired");
}
