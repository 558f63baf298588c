//! Order, visibility, and what a completion says.

use pollux_provider::{Completion, PollGroup, PostError, Signal, WcOpcode, WcStatus, WrId};

use crate::bed::{Bed, Placement, SLOT, Wish, World, only_recv};

on_every_bed!(
    write_is_in_memory_when_the_send_behind_it_arrives,
    nothing_is_seen_before_the_flush,
    unsignalled_work_is_covered_by_the_next_signalled_one,
    completions_name_the_work_and_its_bytes,
    by_reference_bytes_are_read_from_both_pieces,
    wrapped_writes_of_two_pieces_land_in_two_places,
    long_inline_messages_continue_over_many_lines,
    write_with_immediate_uses_a_receive_and_leaves_its_memory,
    memory_registered_on_a_live_connection_is_usable_at_once,
    private_memory_by_reference_arrives,
    small_reap_arrays_lose_nothing,
    released_queue_pair_keeps_its_work,
    empty_messages_arrive,
);

fn write_is_in_memory_when_the_send_behind_it_arrives<B: Bed>() {
    let mut world = World::<B>::connected(Wish::default());
    let sizes = [1, 7, 40, 41, 96, 97, 200, 256];
    for round in 0..3_000usize {
        let len = sizes[round % sizes.len()];
        let how = if round % 3 == 0 {
            Placement::ByReference
        } else {
            Placement::Inline
        };
        let bytes: Vec<u8> = (0..len).map(|at| (round * 7 + at) as u8).collect();
        world.a.fill(0, &bytes);
        world.b.recv((round % 16) as u64);
        let (from, to) = (world.a.piece(0, len), world.b.place(1000 + round % 777));
        world.a.write(1, from, to, how, Signal::Unsignaled);
        world
            .a
            .send(round as u64, &[round as u8; 44], Signal::Signaled);
        world.a.flush();
        while world.b.done.is_empty() {
            world.b.reap(0);
        }
        let done = only_recv(&world.b.done);
        assert_eq!((done.status, done.byte_len), (WcStatus::Success, 44));
        assert_eq!(
            world.b.bytes(1000 + round % 777, len),
            bytes,
            "round {round}, {how:?}"
        );
        assert_eq!(world.b.received(done.wr_id.0, 44), [round as u8; 44]);
        world.until(|world| !world.a.done.is_empty());
        world.a.done.clear();
        world.b.done.clear();
    }
}

fn nothing_is_seen_before_the_flush<B: Bed>() {
    let mut world = World::<B>::connected(Wish::default());
    world.b.recv(0);
    let (from, to) = (world.a.piece(0, 4), world.b.place(8));
    world.a.fill(0, b"ring");
    world
        .a
        .write(1, from, to, Placement::Inline, Signal::Unsignaled);
    world.a.send(2, b"bell", Signal::Signaled);
    world.settle();
    assert_eq!(world.b.bytes(8, 4), [0; 4]);
    assert!(world.a.done.is_empty() && world.b.done.is_empty());
    world.a.flush();
    world.until(|world| world.b.done.len() == 1 && world.a.done.len() == 1);
    assert_eq!(world.b.bytes(8, 4), b"ring");
    assert_eq!(world.b.received(0, 4), b"bell");
}

fn unsignalled_work_is_covered_by_the_next_signalled_one<B: Bed>() {
    let mut world = World::<B>::connected(Wish::default());
    let write = |world: &mut World<B>, wr: u64, signal| {
        let (from, to) = (world.a.piece(0, 8), world.b.place(0));
        world
            .a
            .try_write(wr, &[from], to, Placement::Inline, signal)
    };
    for wr in 0..15 {
        assert_eq!(write(&mut world, wr, Signal::Unsignaled), Ok(()));
    }
    world.a.flush();
    world.settle();
    assert!(world.a.done.is_empty(), "unsignalled success is silent");
    assert_eq!(write(&mut world, 15, Signal::Signaled), Ok(()));
    assert_eq!(
        write(&mut world, 16, Signal::Unsignaled),
        Err(PostError::SendQueueFull)
    );
    world.a.flush();
    assert_eq!(
        write(&mut world, 16, Signal::Unsignaled),
        Err(PostError::SendQueueFull)
    );
    world.until(|world| !world.a.done.is_empty());
    assert_eq!(
        world.a.sends(),
        [(15, WcStatus::Success)],
        "it covers the fifteen before it"
    );
    for wr in 16..32 {
        assert_eq!(
            write(&mut world, wr, Signal::Unsignaled),
            Ok(()),
            "all slots are free"
        );
    }
    assert_eq!(
        write(&mut world, 32, Signal::Unsignaled),
        Err(PostError::SendQueueFull)
    );
}

fn completions_name_the_work_and_its_bytes<B: Bed>() {
    let mut world = World::<B>::connected(Wish::default());
    world.b.recv(3);
    let (from, to) = (world.a.piece(0, 100), world.b.place(0));
    world
        .a
        .write(70, from, to, Placement::ByReference, Signal::Signaled);
    world.a.send(71, &[1; 33], Signal::Signaled);
    world.a.flush();
    world.until(|world| world.a.done.len() == 2 && world.b.done.len() == 1);
    let qp = world.a.qp;
    let expected = |wr, opcode, byte_len| Completion {
        wr_id: WrId(wr),
        qp,
        status: WcStatus::Success,
        opcode,
        byte_len,
        imm: None,
    };
    assert_eq!(
        world.a.done,
        [
            expected(70, WcOpcode::Write, 100),
            expected(71, WcOpcode::Send, 33)
        ]
    );
    let qp = world.b.qp;
    let expected = Completion {
        qp,
        ..expected(3, WcOpcode::Recv, 33)
    };
    assert_eq!(world.b.done, [expected]);
}

fn by_reference_bytes_are_read_from_both_pieces<B: Bed>() {
    let mut world = World::<B>::connected(Wish::default());
    let long: Vec<u8> = (0..100_000u32).map(|at| ((at * 31) >> 3) as u8).collect();
    world.a.fill(0, &long);
    let pieces = [world.a.piece(40_000, 60_000), world.a.piece(0, 40_000)];
    let to = world.b.place(5);
    let how = Placement::ByReference;
    let posted = world.a.try_write(1, &pieces, to, how, Signal::Signaled);
    assert_eq!(posted, Ok(()));
    world.b.recv(0);
    let pieces = [world.a.piece(9, 3), world.a.piece(100, 5)];
    let sent = world.a.try_send(2, &pieces, how, Signal::Signaled);
    assert_eq!(sent, Ok(()));
    world.a.flush();
    world.until(|world| world.a.done.len() == 2);
    let arrived = world.b.bytes(5, 100_000);
    assert!(arrived[..60_000] == long[40_000..] && arrived[60_000..] == long[..40_000]);
    assert_eq!(only_recv(&world.b.done).byte_len, 8);
    assert_eq!(
        world.b.received(0, 8),
        [&long[9..12], &long[100..105]].concat()
    );
}

fn wrapped_writes_of_two_pieces_land_in_two_places<B: Bed>() {
    let mut world = World::<B>::connected(Wish::default());
    // A span that wraps in both rings: two chunks, of which the first has two pieces.
    world.a.fill(1000, b"abcde");
    world.a.fill(0, b"fghij");
    for how in [Placement::Inline, Placement::ByReference] {
        world.b.fill(0, &[0; 300]);
        let first = [world.a.piece(1000, 5), world.a.piece(0, 2)];
        let (to_first, to_second) = (world.b.place(200), world.b.place(0));
        let second = [world.a.piece(2, 3)];
        assert_eq!(
            world
                .a
                .try_write(1, &first, to_first, how, Signal::Unsignaled),
            Ok(())
        );
        assert_eq!(
            world
                .a
                .try_write(2, &second, to_second, how, Signal::Signaled),
            Ok(())
        );
        world.a.flush();
        world.until(|world| world.a.done.len() == 1);
        world.a.done.clear();
        assert_eq!(world.b.bytes(200, 8), b"abcdefg\0");
        assert_eq!(world.b.bytes(0, 4), b"hij\0");
    }
}

fn long_inline_messages_continue_over_many_lines<B: Bed>() {
    let caps = pollux_provider::QpCaps {
        inline_bytes: 0,
        ..crate::bed::CAPS
    };
    let personality = pollux_provider::soft::Personality::AcceptsAllGives(1500);
    let mut world = World::<B>::connected(Wish {
        caps,
        personality,
        ..Wish::default()
    });
    let bytes: Vec<u8> = (0..1500u32).map(|at| (at * 13) as u8).collect();
    world.a.fill(0, &bytes);
    for len in [0, 1, 39, 40, 41, 95, 96, 97, 152, 153, 1500] {
        world.b.fill(0, &[0xee; 1600]);
        let (from, to) = (world.a.piece(0, len), world.b.place(1));
        world
            .a
            .write(1, from, to, Placement::Inline, Signal::Signaled);
        world.a.flush();
        world.until(|world| world.a.done.len() == 1);
        world.a.done.clear();
        let arrived = world.b.bytes(0, 1600);
        assert_eq!(arrived[0], 0xee);
        assert!(arrived[1..=len] == bytes[..len], "{len}");
        assert!(arrived[len + 1..].iter().all(|byte| *byte == 0xee), "{len}");
    }
}

fn write_with_immediate_uses_a_receive_and_leaves_its_memory<B: Bed>() {
    let mut world = World::<B>::connected(Wish::default());
    world.b.pool.copy_in(0, &[0xee; SLOT]).expect("inside");
    for (slot, how) in [(0, Placement::Inline), (1, Placement::ByReference)] {
        world.b.recv(slot);
        world.a.fill(0, b"immediately");
        let (from, to) = (world.a.piece(0, 11), world.b.place(500));
        let imm = 0xdead_beef;
        let to = (to, imm);
        let posted = world.a.try_write_imm(9, &[from], to, how, Signal::Signaled);
        assert_eq!(posted, Ok(()));
        world.a.flush();
        world.until(|world| world.a.done.len() == 1 && world.b.done.len() == 1);
        assert_eq!(world.b.bytes(500, 11), b"immediately");
        let done = world.b.done[0];
        assert_eq!(
            (done.wr_id, done.imm, done.byte_len),
            (WrId(slot), Some(imm), 11)
        );
        assert_eq!(done.opcode, WcOpcode::RecvWithImm);
        assert_eq!(world.a.done[0].opcode, WcOpcode::Write);
        world.a.done.clear();
        world.b.done.clear();
    }
    assert_eq!(world.b.received(0, SLOT), [0xee; SLOT]);
}

fn memory_registered_on_a_live_connection_is_usable_at_once<B: Bed>() {
    use pollux_provider::{Access, Device, Region, RemoteSpan, Sge};
    use pollux_ring::{Pages, Segment};
    let mut world = World::<B>::connected(Wish::default());
    for round in 0..20u8 {
        let region = |name| Region::from(Segment::create(name, 4096, Pages::Off).expect("segment"));
        let (source, target) = (region("source"), region("target"));
        let from = world
            .a
            .device
            .register(&source, 100, 50, Access::LocalOnly)
            .expect("mr");
        let to = world
            .b
            .device
            .register(&target, 10, 50, Access::RemoteWrite)
            .expect("mr");
        source.copy_in(100, &[round; 50]).expect("inside");
        let piece = Sge {
            addr: from.addr(),
            length: 50,
            lkey: from.lkey(),
        };
        let place = RemoteSpan {
            addr: to.addr(),
            rkey: to.rkey(),
        };
        world
            .a
            .write(1, piece, place, Placement::ByReference, Signal::Signaled);
        world.a.flush();
        world.until(|world| world.a.done.len() == 1);
        assert_eq!(world.a.sends(), [(1, WcStatus::Success)]);
        world.a.done.clear();
        let mut arrived = [0xee; 52];
        target.copy_out(9, &mut arrived).expect("inside");
        assert_eq!(arrived[1..51], [round; 50]);
        assert_eq!((arrived[0], arrived[51]), (0, 0));
    }
}

fn private_memory_by_reference_arrives<B: Bed>() {
    let mut world = World::<B>::connected(Wish::default());
    let message: Vec<u8> = (0..8192u32).map(|at| ((at * 3) >> 2) as u8).collect();
    world.a.pool.copy_in(0, &message).expect("inside");
    let pieces = [
        world.a.private_piece(4000, 4192),
        world.a.private_piece(0, 4000),
    ];
    let to = world.b.place(0);
    for _ in 0..4 {
        let how = Placement::ByReference;
        let posted = world.a.try_write(1, &pieces, to, how, Signal::Signaled);
        assert_eq!(posted, Ok(()));
        world.a.flush();
        world.until(|world| world.a.done.len() == 1);
        assert_eq!(world.a.sends(), [(1, WcStatus::Success)]);
        world.a.done.clear();
        let arrived = world.b.bytes(0, 8192);
        assert!(arrived[..4192] == message[4000..] && arrived[4192..] == message[..4000]);
    }
}

fn small_reap_arrays_lose_nothing<B: Bed>() {
    let mut world = World::<B>::connected(Wish::default());
    for slot in 0..10 {
        world.b.recv(slot);
        world.a.send(slot, &[slot as u8; 20], Signal::Signaled);
    }
    world.a.flush();
    let mut one = [Completion::EMPTY; 1];
    while world.b.done.len() < 10 {
        assert_eq!(world.b.group.reap(0, &mut []), 0);
        let count = world.b.group.reap(0, &mut one);
        world.b.done.extend_from_slice(&one[..count]);
    }
    while world.a.done.len() < 10 {
        let count = world.a.group.reap(0, &mut one);
        world.a.done.extend_from_slice(&one[..count]);
    }
    let expected: Vec<(u64, WcStatus)> = (0..10).map(|slot| (slot, WcStatus::Success)).collect();
    assert_eq!(world.a.sends(), expected);
    assert_eq!(world.b.recvs(), expected);
}

fn released_queue_pair_keeps_its_work<B: Bed>() {
    let mut world = World::<B>::connected(Wish::default());
    world.b.recv(4);
    world.a.send(1, b"while nobody looks", Signal::Signaled);
    world.a.flush();
    let qp = world.b.group.release(world.b.qp).expect("it is there");
    assert!(world.b.group.release(world.b.qp).is_none(), "once");
    world.settle();
    // Whether the message was taken meanwhile is the driver's affair.
    assert!(world.b.done.is_empty());
    let from = world.b.piece(0, 1);
    let nobody = world.b.group.post_recv(world.b.qp, WrId(1), from);
    assert_eq!(nobody, Err(PostError::NoSuchQp(world.b.qp)));
    world.b.qp = world.b.group.adopt(qp).expect("adopt");
    world.until(|world| world.a.done.len() == 1 && world.b.done.len() == 1);
    assert_eq!(world.b.received(4, 18), b"while nobody looks");
    // And by reference, since the view of the peer's segments was put to rest.
    let (from, to) = (world.a.piece(0, 64), world.b.place(64));
    world
        .a
        .write(2, from, to, Placement::ByReference, Signal::Signaled);
    world.a.flush();
    world.until(|world| world.a.done.len() == 2);
    assert_eq!(world.a.sends()[1], (2, WcStatus::Success));
}

fn empty_messages_arrive<B: Bed>() {
    let mut world = World::<B>::connected(Wish::default());
    world.b.recv(0);
    world.b.recv(1);
    world.a.send(1, &[], Signal::Signaled);
    let how = Placement::ByReference;
    let sent = world.a.try_send(2, &[], how, Signal::Signaled);
    assert_eq!(sent, Ok(()));
    world.a.flush();
    world.until(|world| world.a.done.len() == 2 && world.b.done.len() == 2);
    assert!(world.b.done.iter().all(|done| done.byte_len == 0));
}
