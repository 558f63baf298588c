//! What a post refuses, and what creation grants.

use pollux_provider::soft::Personality;
use pollux_provider::{
    Access, Device, Errno, GroupId, Lkey, Payload, Piece, PollGroup, PollGroupSpec, PostError, Qp,
    QpCaps, Region, Sge, Signal, Wake, WcStatus, WrId,
};
use pollux_ring::{Pages, Pool, Segment};

use crate::bed::{Bed, CAPS, Placement, Wish, World, group, options, spec};

on_every_bed!(
    inline_limit_is_inclusive_at_post,
    inline_over_the_limit_is_refused_at_creation,
    device_that_ignores_the_question_grants_its_own_size,
    failed_post_posts_nothing,
    receive_queue_has_its_size_and_frees_by_completion,
    local_keys_and_bounds_are_checked_at_post,
    inline_pieces_need_bounds_and_no_registration,
    local_key_dies_with_its_registration,
    more_pieces_than_granted_are_refused,
    impossible_sizes_are_refused_at_creation,
    completion_queue_cannot_be_overcommitted,
    queue_pair_is_refused_by_a_foreign_group,
    registration_outside_its_region_is_refused,
);

fn inline_limit_is_inclusive_at_post<B: Bed>() {
    for personality in Personality::NAMED {
        let caps = QpCaps {
            inline_bytes: 0,
            ..CAPS
        };
        let bed = B::new();
        let device = bed.open(options(personality));
        let (group, _wake) = group(&device);
        let granted = device
            .create_qp(group.id(), &spec(caps))
            .expect("qp")
            .caps()
            .inline_bytes;
        let caps = QpCaps {
            inline_bytes: granted,
            ..CAPS
        };
        // Without inline data there is no warm-up by inline sends.
        if granted == 0 {
            continue;
        }
        let mut world = World::<B>::connected(Wish {
            caps,
            personality,
            ..Wish::default()
        });
        let limit = world.a.group.caps(world.a.qp).inline_bytes;
        assert!(limit >= granted, "{personality}");
        world.b.recv(0);
        let exact = world.a.piece(0, limit as usize);
        let over = world.a.piece(0, limit as usize + 1);
        let two = [world.a.piece(0, limit as usize), world.a.piece(9, 1)];
        let (to, how) = (world.b.place(0), Placement::Inline);
        let refused = Err(PostError::InlineTooLong {
            bytes: u64::from(limit) + 1,
            limit,
        });
        assert_eq!(
            world.a.try_write(1, &[over], to, how, Signal::Unsignaled),
            refused
        );
        assert_eq!(
            world.a.try_write(1, &two, to, how, Signal::Unsignaled),
            refused
        );
        assert_eq!(
            world.a.try_send(1, &[over], how, Signal::Unsignaled),
            refused
        );
        let bytes = vec![1; limit as usize + 1];
        assert_eq!(
            world.a.try_send_bytes(1, &bytes, Signal::Unsignaled),
            refused
        );
        assert_eq!(
            world.a.try_write(2, &[exact], to, how, Signal::Unsignaled),
            Ok(())
        );
        let bytes = vec![1; (limit as usize).min(crate::bed::SLOT)];
        assert_eq!(world.a.try_send_bytes(3, &bytes, Signal::Signaled), Ok(()));
        world.a.flush();
        world.until(|world| world.a.done.len() == 1);
        assert_eq!(world.a.sends(), [(3, WcStatus::Success)]);
    }
}

fn inline_over_the_limit_is_refused_at_creation<B: Bed>() {
    let table = [
        (Personality::Generic, 256, Errno::INVAL),
        (Personality::Mlx5Like, 988, Errno::INVAL),
        (Personality::IrdmaGen1, 48, Errno::INVAL),
        (Personality::IrdmaGen2, 101, Errno::INVAL),
        (Personality::IrdmaGen3, 216, Errno::INVAL),
        (Personality::Erdma, 96, Errno::INVAL),
        (Personality::None, 0, Errno::INVAL),
    ];
    let bed = B::new();
    for (personality, limit, errno) in table {
        let device = bed.open(options(personality));
        let (group, _wake) = group(&device);
        let create = |inline_bytes| {
            device.create_qp(
                group.id(),
                &spec(QpCaps {
                    inline_bytes,
                    ..CAPS
                }),
            )
        };
        assert_eq!(
            create(limit).expect("at the limit").caps().inline_bytes,
            limit
        );
        let refusal = create(limit + 1).err().expect("over the limit");
        assert_eq!(refusal.errno, errno, "{personality}");
        assert_eq!(refusal.asked.inline_bytes, limit + 1);
        assert!(refusal.may_be_inline());
        assert!(
            refusal.to_string().contains(&limit.to_string()),
            "{refusal}"
        );
    }
}

fn device_that_ignores_the_question_grants_its_own_size<B: Bed>() {
    let bed = B::new();
    let device = bed.open(options(Personality::AcceptsAllGives(33)));
    let (group, _wake) = group(&device);
    for inline_bytes in [0, 33, 5000] {
        let caps = QpCaps {
            inline_bytes,
            ..CAPS
        };
        let qp = device.create_qp(group.id(), &spec(caps)).expect("qp");
        assert_eq!(
            qp.caps(),
            QpCaps {
                inline_bytes: 33,
                ..CAPS
            }
        );
    }
}

fn failed_post_posts_nothing<B: Bed>() {
    let mut world = World::<B>::connected(Wish::default());
    let before = world.a.group.stats(world.a.qp);
    let bytes = vec![1; 257];
    let qp = world.a.qp;
    assert!(world.a.try_send_bytes(1, &bytes, Signal::Signaled).is_err());
    world.a.flush();
    world.settle();
    assert_eq!(world.a.group.stats(qp), before, "no work, no doorbell");
    assert!(world.a.done.is_empty() && world.b.done.is_empty());
}

fn receive_queue_has_its_size_and_frees_by_completion<B: Bed>() {
    let mut world = World::<B>::connected(Wish::default());
    (0..16).for_each(|slot| world.b.recv(slot));
    let into = world.b.private_piece(0, 8);
    let qp = world.b.qp;
    let full = world.b.group.post_recv(qp, WrId(99), into);
    assert_eq!(full, Err(PostError::RecvQueueFull));
    world.a.send(1, b"one", Signal::Signaled);
    world.a.flush();
    world.until(|world| world.b.done.len() == 1);
    assert_eq!(world.b.group.post_recv(qp, WrId(99), into), Ok(()));
    assert_eq!(
        world.b.group.post_recv(qp, WrId(99), into),
        Err(PostError::RecvQueueFull)
    );
}

fn local_keys_and_bounds_are_checked_at_post<B: Bed>() {
    let mut world = World::<B>::connected(Wish::default());
    let (good, to) = (world.a.piece(0, 8), world.b.place(0));
    let bad_key = Sge {
        // Another registration might differ in any of the low bits.
        lkey: Lkey(good.lkey.0 ^ 1 << 30),
        ..good
    };
    let remote_key = Sge {
        lkey: Lkey(world.a.mr.rkey().0),
        ..good
    };
    let end = world.a.mr.addr() + world.a.mr.len() as u64;
    let behind = Sge {
        addr: end - 7,
        ..good
    };
    let before = Sge {
        addr: world.a.mr.addr() - 1,
        ..good
    };
    let far = Sge {
        addr: u64::MAX - 3,
        ..good
    };
    let (qp, how) = (world.a.qp, Placement::ByReference);
    let mut post = |piece: Sge| {
        let pieces = [good, piece];
        world.a.try_write(1, &pieces, to, how, Signal::Unsignaled)
    };
    assert_eq!(post(bad_key), Err(PostError::BadLkey(bad_key.lkey.0)));
    assert_eq!(post(remote_key), Err(PostError::BadLkey(remote_key.lkey.0)));
    for piece in [behind, before, far] {
        let (addr, length) = (piece.addr, piece.length);
        assert_eq!(post(piece), Err(PostError::OutOfRegion { addr, length }));
    }
    let group = &mut world.a.group;
    assert_eq!(
        group.post_recv(qp, WrId(1), bad_key),
        Err(PostError::BadLkey(bad_key.lkey.0))
    );
    let (addr, length) = (behind.addr, behind.length);
    assert_eq!(
        group.post_recv(qp, WrId(1), behind),
        Err(PostError::OutOfRegion { addr, length })
    );
    let last = Sge {
        addr: end - 8,
        ..good
    };
    let posted = world.a.try_write(2, &[last], to, how, Signal::Signaled);
    assert_eq!(posted, Ok(()), "up to the last byte");
}

fn inline_pieces_need_bounds_and_no_registration<B: Bed>() {
    let mut world = World::<B>::connected(Wish::default());
    let segment = Segment::create("unregistered", 4096, Pages::Off).expect("segment");
    for region in [
        Region::from(segment),
        Region::from(Pool::create(4096, Pages::Off).expect("pool")),
    ] {
        let region_bytes = region.len();
        let piece = |offset, length| Piece {
            region: &region,
            offset,
            length,
        };
        let (qp, to) = (world.a.qp, world.b.place(0));
        let mut post = |pieces: &[Piece<'_>]| {
            let payload = Payload::Inline(pieces);
            let (wr, signal) = (WrId(1), Signal::Signaled);
            world.a.group.post_write(qp, wr, payload, to, signal)
        };
        for (offset, length) in [
            (region_bytes - 7, 8),
            (region_bytes, 1),
            (region_bytes + 1, 0),
            (usize::MAX, 1),
            (usize::MAX - 3, 8),
            (0, u32::MAX),
        ] {
            let outside = Err(PostError::PieceOutOfBounds {
                offset,
                length,
                region_bytes,
            });
            assert_eq!(post(&[piece(offset, length)]), outside);
            assert_eq!(post(&[piece(0, 8), piece(offset, length)]), outside);
            assert_eq!(post(&[piece(offset, length), piece(0, 8)]), outside);
        }
        region.copy_in(region_bytes - 4, b"last").expect("inside");
        region.copy_in(0, b"first").expect("inside");
        assert_eq!(post(&[piece(region_bytes - 4, 4), piece(0, 5)]), Ok(()));
        region.copy_in(0, b"later").expect("inside");
        world.a.flush();
        world.until(|world| world.a.done.len() == 1);
        assert_eq!(world.a.sends(), [(1, WcStatus::Success)]);
        assert_eq!(world.b.bytes(0, 9), b"lastfirst");
        world.a.done.clear();
    }
}

fn local_key_dies_with_its_registration<B: Bed>() {
    let mut world = World::<B>::connected(Wish::default());
    let (qp, to) = (world.a.qp, world.b.place(0));
    let mr = world
        .a
        .device
        .register(&world.a.shared, 0, 64, Access::LocalOnly)
        .expect("mr");
    let piece = Sge {
        addr: mr.addr(),
        length: 8,
        lkey: mr.lkey(),
    };
    let mut post = || {
        let payload = Payload::ByReference(std::slice::from_ref(&piece));
        let (wr, signal) = (WrId(3), Signal::Signaled);
        world.a.group.post_write(qp, wr, payload, to, signal)
    };
    assert_eq!(post(), Ok(()));
    drop(mr);
    assert_eq!(post(), Err(PostError::BadLkey(piece.lkey.0)));
}

fn more_pieces_than_granted_are_refused<B: Bed>() {
    let mut world = World::<B>::connected(Wish::default());
    let (piece, to) = (world.a.piece(0, 1), world.b.place(0));
    let three = [piece; 3];
    let refused = Err(PostError::TooManySges {
        pieces: 3,
        limit: 2,
    });
    let (how, signal) = (Placement::Inline, Signal::Signaled);
    assert_eq!(world.a.try_write(1, &three, to, how, signal), refused);
    assert_eq!(world.a.try_send(1, &three, how, signal), refused);
    let unknown = pollux_provider::QpIndex(9);
    let nobody = Err(PostError::NoSuchQp(unknown));
    let payload = Payload::InlineBytes(&[]);
    assert_eq!(
        world.a.group.post_send(unknown, WrId(1), payload, signal),
        nobody
    );
    assert!(world.a.group.flush(unknown).is_err());
    assert_eq!(world.a.group.caps(unknown).send_wr, 0);
}

fn impossible_sizes_are_refused_at_creation<B: Bed>() {
    let bed = B::new();
    let device = bed.open(options(Personality::Generic));
    let (group, _wake) = group(&device);
    let limits = *device.limits();
    let wrong = [
        QpCaps { send_wr: 0, ..CAPS },
        QpCaps {
            send_wr: limits.send_wr_max + 1,
            ..CAPS
        },
        QpCaps { recv_wr: 0, ..CAPS },
        QpCaps {
            recv_wr: limits.recv_wr_max + 1,
            ..CAPS
        },
        QpCaps {
            send_sge: 0,
            ..CAPS
        },
        QpCaps {
            send_sge: limits.send_sge_max + 1,
            ..CAPS
        },
        QpCaps {
            recv_sge: 0,
            ..CAPS
        },
        QpCaps {
            recv_sge: limits.recv_sge_max + 1,
            ..CAPS
        },
    ];
    for caps in wrong {
        let refusal = device
            .create_qp(group.id(), &spec(caps))
            .err()
            .expect("refused");
        assert_eq!((refusal.errno, refusal.asked), (Errno::INVAL, caps));
    }
    let nowhere = device
        .create_qp(GroupId(4711), &spec(CAPS))
        .err()
        .expect("refused");
    assert_eq!(nowhere.errno, Errno::INVAL);
    assert!(nowhere.to_string().contains("4711"), "{nowhere}");
    for cq_entries in [0, limits.cq_entries_max + 1] {
        let spec = PollGroupSpec {
            cq_entries,
            wake: Wake::new().expect("eventfd"),
        };
        let refusal = device.create_poll_group(&spec).err().expect("refused");
        assert!(
            refusal.to_string().contains(&cq_entries.to_string()),
            "{refusal}"
        );
    }
}

fn completion_queue_cannot_be_overcommitted<B: Bed>() {
    let bed = B::new();
    let device = bed.open(options(Personality::Generic));
    let wake = Wake::new().expect("eventfd");
    let group = device
        .create_poll_group(&PollGroupSpec {
            cq_entries: 70,
            wake,
        })
        .expect("group");
    let create = || device.create_qp(group.id(), &spec(CAPS));
    let (first, _second) = (create().expect("32 of 70"), create().expect("64 of 70"));
    let refusal = create().err().expect("96 of 70");
    assert_eq!(refusal.errno, Errno::INVAL);
    assert!(refusal.to_string().contains("needs 32") && refusal.to_string().contains("has 6 of"));
    drop(first);
    assert!(
        create().is_ok(),
        "a queue pair that is gone gives its entries back"
    );
}

fn queue_pair_is_refused_by_a_foreign_group<B: Bed>() {
    let bed = B::new();
    let device = bed.open(options(Personality::Generic));
    let ((first, _wake), (mut second, _other)) = (group(&device), group(&device));
    assert_ne!(first.id(), second.id());
    let qp = device.create_qp(first.id(), &spec(CAPS)).expect("qp");
    let qpn = qp.qpn();
    assert_eq!(qp.group(), first.id());
    let refusal = second.adopt(qp).expect_err("refused");
    assert_eq!(refusal.qp.qpn(), qpn, "it comes back");
    assert!(qpn <= 0xff_ffff);
}

fn registration_outside_its_region_is_refused<B: Bed>() {
    let world = World::<B>::connected(Wish::default());
    let (device, region) = (&world.a.device, &world.a.shared);
    let all = region.len();
    for (offset, len) in [(0, 0), (0, all + 1), (all, 1), (1, all), (usize::MAX, 2)] {
        assert!(
            device
                .register(region, offset, len, Access::RemoteWrite)
                .is_err()
        );
    }
    let one = device
        .register(region, all - 1, 1, Access::RemoteWrite)
        .expect("the last byte");
    let other = device
        .register(region, all - 1, 1, Access::RemoteWrite)
        .expect("again");
    assert!(
        one.lkey() != other.lkey() && one.rkey() != other.rkey(),
        "keys of their own"
    );
    assert_eq!(one.addr(), region.addr() + all as u64 - 1);
}
