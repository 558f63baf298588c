//! What is remembered of a device, and when it is not.

use pollux_control::config::InlineProbe::{self, Ladder};
use pollux_control::probe::{Memory, Wish};
use pollux_control::view::{Found, InlineView};
use pollux_provider::{Errno, PollGroup, Qp};

use crate::support::{Bench, MODES, trials, wish};

/// Creates one and drops it: sizes asked, granted, how found.
fn create(memory: &mut Memory, bench: &Bench, wish: &Wish) -> (Vec<u32>, u32, Found) {
    let before = bench.creations();
    let (qp, outcome) = memory
        .create(&bench.device, bench.group.id(), wish)
        .expect("a queue pair");
    let asked = trials(&outcome).0;
    assert_eq!(bench.creations() - before, asked.len() as u64);
    (asked, qp.caps().inline_bytes, outcome.found)
}

#[test]
fn the_second_queue_pair_of_a_shape_is_one_creation() {
    for mode in MODES {
        for (personality, ask, granted) in [
            ("generic", 256, 256),
            ("mlx5", 256, 476),
            ("irdma-gen1", 48, 48),
            ("erdma", 96, 96),
            ("gives-64", 256, 64),
            ("none", 0, 0),
            ("budget-40960", 96, 96),
        ] {
            let (bench, mut memory) = (Bench::new(personality), Memory::default());
            create(&mut memory, &bench, &wish(256, mode));
            for _ in 0..3 {
                let again = create(&mut memory, &bench, &wish(256, mode));
                assert_eq!(
                    again,
                    (vec![ask], granted, Found::Remembered),
                    "{personality}"
                );
            }
        }
    }
}

#[test]
fn a_remembered_size_that_is_refused_is_searched_for_anew_and_remembered_again() {
    let (bench, mut memory) = (Bench::new("irdma-gen2"), Memory::default());
    let wish = wish(256, Ladder);
    create(&mut memory, &bench, &wish);
    bench.device.refuse_creation(1, Errno::NOMEM);
    bench.device.refuse_creation(3, Errno::NOMEM);
    assert_eq!(
        create(&mut memory, &bench, &wish),
        (vec![101, 216, 101, 48], 101, Found::VendorLadder)
    );
    let again = create(&mut memory, &bench, &wish);
    assert_eq!(again, (vec![48], 101, Found::Remembered));
}

#[test]
fn a_failure_for_another_reason_is_told_and_forgets_nothing() {
    for (personality, ask, errno) in [
        ("irdma-gen2", 101, Errno::ACCESS),
        ("none", 0, Errno::NOMEM),
    ] {
        let (bench, mut memory) = (Bench::new(personality), Memory::default());
        let wish = wish(256, Ladder);
        create(&mut memory, &bench, &wish);
        let before = bench.left();
        bench.device.refuse_creation(1, errno);
        let failed = memory.create(&bench.device, bench.group.id(), &wish);
        let error = failed.map(|_| ()).expect_err("an error");
        assert_eq!((error.error.errno, error.attempts), (errno, 1));
        assert_eq!(bench.left(), before);
        assert_eq!(create(&mut memory, &bench, &wish).0, [ask]);
    }
}

#[test]
fn a_failed_search_is_not_remembered() {
    let (bench, mut memory) = (Bench::new("erdma"), Memory::default());
    let wish = wish(256, InlineProbe::Bisect);
    let before = bench.left();
    // 96, 48, 16 and none.
    for nth in 1..=4 {
        bench.device.refuse_creation(nth, Errno::INVAL);
    }
    let failed = memory.create(&bench.device, bench.group.id(), &wish);
    assert_eq!(failed.map(|_| ()).expect_err("no more sizes").attempts, 4);
    assert_eq!(bench.left(), before);
    let found = create(&mut memory, &bench, &wish);
    assert_eq!(found, (vec![96], 96, Found::VendorLadder));
}

#[test]
fn another_shape_another_wish_and_another_device_are_searched_for_on_their_own() {
    let (bench, mut memory) = (Bench::new("irdma-gen2"), Memory::default());
    let usual = wish(256, Ladder);
    create(&mut memory, &bench, &usual);
    let mut others = [usual; 6];
    others[0].shape.send_wr = 128;
    others[1].shape.recv_wr = 128;
    others[2].shape.send_sge = 1;
    others[3].shape.cq_entries = 1024;
    others[4].inline_bytes = 200;
    others[5].inline_bytes = 1024;
    for other in &others {
        assert_eq!(create(&mut memory, &bench, other).0.len(), 2, "{other:?}");
        assert_eq!(create(&mut memory, &bench, other).2, Found::Remembered);
    }
    let twin = Bench::with_gid("irdma-gen1", 2);
    let asked = create(&mut memory, &twin, &usual).0;
    assert_eq!(asked, [216, 101, 48]);
    assert_eq!(create(&mut memory, &twin, &usual).0, [48]);
    assert_eq!(create(&mut memory, &bench, &usual).0, [101]);
}

#[test]
fn the_view_has_every_try_and_the_trade() {
    let (bench, mut memory) = (Bench::new("budget-73728"), Memory::default());
    let wish = wish(256, Ladder);
    let (_qp, outcome) = memory
        .create(&bench.device, bench.group.id(), &wish)
        .expect("a queue pair");
    let view = InlineView::from(&outcome);
    assert_eq!(view.to_string(), "224 of 256 (steps, 3 tries)");
    let tries: Vec<_> = view
        .tries
        .iter()
        .map(|one| (one.asked_bytes, one.granted_bytes, one.errno.as_deref()))
        .collect();
    assert_eq!(
        tries,
        [
            (256, None, Some("ENOMEM")),
            (240, None, Some("ENOMEM")),
            (224, Some(224), None)
        ]
    );
    assert_eq!(
        view.notes(),
        [
            "no room for 256 bytes inline at a depth of 256 (ENOMEM): 224 granted; a smaller \
             device.send_wr may allow more"
        ]
    );
}
