//! The state machine of a queue pair.

use pollux_provider::{
    Device, ModifyError, PollGroup, PostError, Qp, QpState, RtrAttr, RtsAttr, Signal, WcStatus,
    WrId,
};

use crate::bed::{Bed, CAPS, End, Placement, Wish, World, attr, options, rts, spec};

on_every_bed!(
    steps_out_of_order_are_refused_and_change_nothing,
    attributes_out_of_range_are_named,
    attributes_of_the_last_step_out_of_range_are_named,
    each_state_takes_its_own_work,
    ready_to_receive_receives_and_does_not_send,
    unreachable_peer_is_named_with_the_place,
    either_end_may_be_bound_first,
    messages_wait_for_the_other_end_to_be_bound,
    counters_count,
);

fn end<B: Bed>(bed: &B) -> End<B::Device> {
    End::new(bed.open(options(Wish::default().personality)))
}

fn steps_out_of_order_are_refused_and_change_nothing<B: Bed>() {
    let bed = B::new();
    let (a, b) = (end(&bed), end(&bed));
    let wish = Wish::default();
    let mut qp = a.device.create_qp(a.group.id(), &spec(CAPS)).expect("qp");
    let peer = b.device.create_qp(b.group.id(), &spec(CAPS)).expect("qp");
    let to_peer = attr(b.device.identity().gid, peer.qpn(), &wish);
    let wrong = |result: Result<(), ModifyError>, state| {
        let Err(ModifyError::WrongState { from, .. }) = result else {
            panic!("{result:?}")
        };
        assert_eq!(from, state);
    };
    assert_eq!(qp.state(), QpState::Reset);
    wrong(a.device.to_rtr(&mut qp, &to_peer), QpState::Reset);
    wrong(a.device.to_rts(&mut qp, &rts(&wish)), QpState::Reset);
    a.device.to_init(&mut qp).expect("init");
    wrong(a.device.to_init(&mut qp), QpState::Init);
    wrong(a.device.to_rts(&mut qp, &rts(&wish)), QpState::Init);
    assert_eq!(qp.state(), QpState::Init);
    a.device.to_rtr(&mut qp, &to_peer).expect("rtr");
    wrong(a.device.to_rtr(&mut qp, &to_peer), QpState::Rtr);
    a.device.to_rts(&mut qp, &rts(&wish)).expect("rts");
    assert_eq!(qp.state(), QpState::Rts);
    wrong(a.device.to_rts(&mut qp, &rts(&wish)), QpState::Rts);
    a.device.to_error(&mut qp).expect("error");
    a.device.to_error(&mut qp).expect("error again");
    assert_eq!(qp.state(), QpState::Error);
    wrong(a.device.to_init(&mut qp), QpState::Error);
}

fn attributes_out_of_range_are_named<B: Bed>() {
    let bed = B::new();
    let (a, b) = (end(&bed), end(&bed));
    let wish = Wish::default();
    let mut qp = a.device.create_qp(a.group.id(), &spec(CAPS)).expect("qp");
    let peer = b.device.create_qp(b.group.id(), &spec(CAPS)).expect("qp");
    a.device.to_init(&mut qp).expect("init");
    let good = attr(b.device.identity().gid, peer.qpn(), &wish);
    let wrong = [
        (
            "path_mtu",
            RtrAttr {
                path_mtu: 1500,
                ..good
            },
        ),
        (
            "peer_qpn",
            RtrAttr {
                peer_qpn: 1 << 24,
                ..good
            },
        ),
        (
            "rq_psn",
            RtrAttr {
                rq_psn: 1 << 24,
                ..good
            },
        ),
        (
            "min_rnr_timer",
            RtrAttr {
                min_rnr_timer: 32,
                ..good
            },
        ),
    ];
    for (name, attr) in wrong {
        let refusal = a.device.to_rtr(&mut qp, &attr).expect_err("out of range");
        assert!(refusal.to_string().contains(name), "{refusal}");
        assert_eq!(qp.state(), QpState::Init);
    }
}

fn attributes_of_the_last_step_out_of_range_are_named<B: Bed>() {
    let bed = B::new();
    let (a, b) = (end(&bed), end(&bed));
    let wish = Wish::default();
    let mut qp = a.device.create_qp(a.group.id(), &spec(CAPS)).expect("qp");
    let to_b = attr(b.device.identity().gid, 0x99, &wish);
    a.device.to_init(&mut qp).expect("init");
    a.device.to_rtr(&mut qp, &to_b).expect("rtr");
    let good = rts(&wish);
    let wrong = [
        (
            "sq_psn",
            RtsAttr {
                sq_psn: 1 << 24,
                ..good
            },
        ),
        (
            "timeout",
            RtsAttr {
                timeout: 32,
                ..good
            },
        ),
        (
            "retry_count",
            RtsAttr {
                retry_count: 8,
                ..good
            },
        ),
        (
            "rnr_retry",
            RtsAttr {
                rnr_retry: 8,
                ..good
            },
        ),
    ];
    for (name, attr) in wrong {
        let refusal = a.device.to_rts(&mut qp, &attr).expect_err("out of range");
        assert!(refusal.to_string().contains(name), "{refusal}");
        assert_eq!(qp.state(), QpState::Rtr);
    }
}

fn each_state_takes_its_own_work<B: Bed>() {
    let bed = B::new();
    let (mut a, b) = (end(&bed), end(&bed));
    let wish = Wish::default();
    let qp = a.device.create_qp(a.group.id(), &spec(CAPS)).expect("qp");
    let peer = b.device.create_qp(b.group.id(), &spec(CAPS)).expect("qp");
    let (gid, peer_qpn) = (b.device.identity().gid, peer.qpn());
    let tries = |a: &mut End<B::Device>, qp, state: QpState, may_recv: bool, may_send: bool| {
        a.qp = a.group.adopt(qp).expect("adopt");
        assert_eq!(a.group.state(a.qp), state);
        let (piece, to) = (a.piece(0, 8), a.place(0));
        let (index, how, signal) = (a.qp, Placement::Inline, Signal::Unsignaled);
        let refused = Err(PostError::WrongState(state));
        let expect = |may: bool| if may { Ok(()) } else { refused };
        let received = a.group.post_recv(index, WrId(1), piece);
        assert_eq!(received, expect(may_recv));
        let sent = [
            a.try_send_bytes(1, b"x", signal),
            a.try_send(1, &[piece], how, signal),
            a.try_write(1, &[piece], to, how, signal),
            a.try_write_imm(1, &[piece], (to, 1), how, signal),
        ];
        assert_eq!(sent, [expect(may_send); 4]);
        a.group.release(index).expect("there")
    };
    let mut qp = tries(&mut a, qp, QpState::Reset, false, false);
    a.device.to_init(&mut qp).expect("init");
    let mut qp = tries(&mut a, qp, QpState::Init, true, false);
    a.device
        .to_rtr(&mut qp, &attr(gid, peer_qpn, &wish))
        .expect("rtr");
    let mut qp = tries(&mut a, qp, QpState::Rtr, true, false);
    a.device.to_rts(&mut qp, &rts(&wish)).expect("rts");
    let mut qp = tries(&mut a, qp, QpState::Rts, true, true);
    a.device.to_error(&mut qp).expect("error");
    tries(&mut a, qp, QpState::Error, false, false);
}

fn ready_to_receive_receives_and_does_not_send<B: Bed>() {
    let bed = B::new();
    let (mut a, mut b) = (end(&bed), end(&bed));
    let wish = Wish::default();
    let mut qp_a = a.device.create_qp(a.group.id(), &spec(CAPS)).expect("qp");
    let mut qp_b = b.device.create_qp(b.group.id(), &spec(CAPS)).expect("qp");
    let (gid_a, gid_b) = (a.device.identity().gid, b.device.identity().gid);
    a.device.to_init(&mut qp_a).expect("init");
    b.device.to_init(&mut qp_b).expect("init");
    a.device
        .to_rtr(&mut qp_a, &attr(gid_b, qp_b.qpn(), &wish))
        .expect("rtr");
    b.device
        .to_rtr(&mut qp_b, &attr(gid_a, qp_a.qpn(), &wish))
        .expect("rtr");
    a.device.to_rts(&mut qp_a, &rts(&wish)).expect("rts");
    a.qp = a.group.adopt(qp_a).expect("adopt");
    b.qp = b.group.adopt(qp_b).expect("adopt");
    b.recv(0);
    a.send(1, b"confirm link", Signal::Signaled);
    a.flush();
    let mut world = World { a, b, now: 0, bed };
    world.until(|world| world.b.done.len() == 1 && world.a.done.len() == 1);
    // Now it goes on to RTS and answers.
    let mut qp = world.b.group.release(world.b.qp).expect("there");
    world.b.device.to_rts(&mut qp, &rts(&wish)).expect("rts");
    world.b.qp = world.b.group.adopt(qp).expect("adopt");
    world.a.recv(0);
    world.b.send(2, b"confirmed", Signal::Signaled);
    world.b.flush();
    world.until(|world| world.a.recvs() == [(0, WcStatus::Success)]);
    assert_eq!(world.a.received(0, 9), b"confirmed");
}

fn unreachable_peer_is_named_with_the_place<B: Bed>() {
    let bed = B::new();
    let a = end(&bed);
    let mut qp = a.device.create_qp(a.group.id(), &spec(CAPS)).expect("qp");
    a.device.to_init(&mut qp).expect("init");
    let nobody = attr([0x77; 16], 0x99, &Wish::default());
    let refusal = a
        .device
        .to_rtr(&mut qp, &nobody)
        .expect_err("nobody is there");
    let ModifyError::NoPeer { gid, place, .. } = &refusal else {
        panic!("{refusal:?}")
    };
    assert_eq!(*gid, [0x77; 16]);
    assert!(
        !place.is_empty() && refusal.to_string().contains(&"77".repeat(16)),
        "{refusal}"
    );
    assert_eq!(qp.state(), QpState::Init, "it can be tried again");
}

fn either_end_may_be_bound_first<B: Bed>() {
    for a_first in [true, false] {
        let bed = B::new();
        let (mut a, mut b) = (end(&bed), end(&bed));
        let wish = Wish::default();
        let mut qp_a = a.device.create_qp(a.group.id(), &spec(CAPS)).expect("qp");
        let mut qp_b = b.device.create_qp(b.group.id(), &spec(CAPS)).expect("qp");
        let to_b = attr(b.device.identity().gid, qp_b.qpn(), &wish);
        let to_a = attr(a.device.identity().gid, qp_a.qpn(), &wish);
        a.device.to_init(&mut qp_a).expect("init");
        b.device.to_init(&mut qp_b).expect("init");
        if a_first {
            a.device.to_rtr(&mut qp_a, &to_b).expect("rtr");
            b.device.to_rtr(&mut qp_b, &to_a).expect("rtr");
        } else {
            b.device.to_rtr(&mut qp_b, &to_a).expect("rtr");
            a.device.to_rtr(&mut qp_a, &to_b).expect("rtr");
        }
        a.device.to_rts(&mut qp_a, &rts(&wish)).expect("rts");
        a.qp = a.group.adopt(qp_a).expect("adopt");
        b.qp = b.group.adopt(qp_b).expect("adopt");
        b.recv(0);
        a.send(1, b"x", Signal::Signaled);
        a.flush();
        let mut world = World { a, b, now: 0, bed };
        world.until(|world| world.a.sends() == [(1, WcStatus::Success)]);
    }
}

fn messages_wait_for_the_other_end_to_be_bound<B: Bed>() {
    let bed = B::new();
    let (mut a, mut b) = (end(&bed), end(&bed));
    let wish = Wish::default();
    let mut qp_a = a.device.create_qp(a.group.id(), &spec(CAPS)).expect("qp");
    let mut qp_b = b.device.create_qp(b.group.id(), &spec(CAPS)).expect("qp");
    let (qpn_a, qpn_b) = (qp_a.qpn(), qp_b.qpn());
    let (gid_a, gid_b) = (a.device.identity().gid, b.device.identity().gid);
    a.device.to_init(&mut qp_a).expect("init");
    a.device
        .to_rtr(&mut qp_a, &attr(gid_b, qpn_b, &wish))
        .expect("rtr");
    a.device.to_rts(&mut qp_a, &rts(&wish)).expect("rts");
    a.qp = a.group.adopt(qp_a).expect("adopt");
    for wr in 0..16 {
        a.send(wr, &[wr as u8; 256], Signal::Signaled);
    }
    a.flush();
    (0..100).for_each(|_| a.reap(0));
    assert!(a.done.is_empty());
    b.device.to_init(&mut qp_b).expect("init");
    b.device
        .to_rtr(&mut qp_b, &attr(gid_a, qpn_a, &wish))
        .expect("rtr");
    b.qp = b.group.adopt(qp_b).expect("adopt");
    (0..16).for_each(|slot| b.recv(slot));
    let mut world = World { a, b, now: 0, bed };
    world.until(|world| world.a.done.len() == 16 && world.b.done.len() == 16);
    let expected: Vec<(u64, WcStatus)> = (0..16).map(|slot| (slot, WcStatus::Success)).collect();
    assert_eq!(
        (world.a.sends(), world.b.recvs()),
        (expected.clone(), expected)
    );
    assert_eq!(world.b.received(15, 256), [15; 256]);
}

fn counters_count<B: Bed>() {
    let mut world = World::<B>::connected(Wish::default());
    let (before_a, before_b) = (
        world.a.group.stats(world.a.qp),
        world.b.group.stats(world.b.qp),
    );
    (0..4).for_each(|slot| world.b.recv(slot));
    let (from, to) = (world.a.piece(0, 8), world.b.place(0));
    let (inline, by_reference) = (Placement::Inline, Placement::ByReference);
    let unsignalled = Signal::Unsignaled;
    world.a.write(1, from, to, inline, unsignalled);
    world.a.write(2, from, to, by_reference, unsignalled);
    world.a.write(3, from, to, by_reference, unsignalled);
    let (a, to) = (&mut world.a, (to, 1));
    assert_eq!(a.try_write_imm(4, &[from], to, inline, unsignalled), Ok(()));
    assert_eq!(a.try_send(5, &[from], by_reference, unsignalled), Ok(()));
    world.a.send(6, &[0; 44], unsignalled);
    world.a.flush();
    world.a.flush();
    world.a.send(7, &[0; 44], Signal::Signaled);
    world.a.flush();
    world.until(|world| world.a.done.len() == 1);
    let (after_a, after_b) = (
        world.a.group.stats(world.a.qp),
        world.b.group.stats(world.b.qp),
    );
    assert_eq!(after_a.writes_inline - before_a.writes_inline, 2);
    assert_eq!(
        after_a.writes_by_reference - before_a.writes_by_reference,
        2
    );
    assert_eq!(after_a.writes_with_imm - before_a.writes_with_imm, 1);
    assert_eq!(after_a.sends_inline - before_a.sends_inline, 2);
    assert_eq!(after_a.sends_by_reference - before_a.sends_by_reference, 1);
    assert_eq!(after_a.bytes_posted - before_a.bytes_posted, 5 * 8 + 2 * 44);
    assert_eq!(
        after_a.doorbells - before_a.doorbells,
        2,
        "a flush without work rings nothing"
    );
    assert_eq!(after_a.send_completions - before_a.send_completions, 1);
    assert_eq!(after_b.recvs_posted - before_b.recvs_posted, 4);
    assert_eq!(after_b.recv_completions - before_b.recv_completions, 4);
    assert_eq!((after_a.rnr_naks_received, after_b.rnr_naks_sent), (0, 0));
}
