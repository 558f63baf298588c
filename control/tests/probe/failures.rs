//! Refusals of every kind, errors of some, and nothing left behind by any.

use pollux_control::config::InlineProbe::{Bisect, Ladder};
use pollux_control::view::Found;
use pollux_provider::{Device, Errno, PollGroup, Qp};

use crate::support::{Bench, MODES, trials, wish};

const REFUSALS: [Errno; 4] = [Errno::INVAL, Errno::NOMEM, Errno::NOSPC, Errno::OPNOTSUPP];

#[test]
fn each_of_the_four_refusals_is_answered_by_the_next_size() {
    for errno in REFUSALS {
        let bench = Bench::new("generic");
        bench.device.refuse_creation(1, errno);
        let searched = bench.search(&wish(256, Ladder));
        let (qp, outcome) = searched.result.expect("a queue pair");
        assert_eq!(searched.asked, [256, 240]);
        assert_eq!(trials(&outcome).1, [errno]);
        // This device gives 256 whatever less is asked for.
        assert_eq!((qp.caps().inline_bytes, outcome.found), (256, Found::Steps));
    }
    let bench = Bench::new("irdma-gen3");
    for (nth, errno) in (1..).zip(REFUSALS) {
        bench.device.refuse_creation(nth, errno);
    }
    let searched = bench.search(&wish(256, Ladder));
    assert_eq!(searched.asked, [216, 101, 48, 32, 16]);
    let (_qp, outcome) = searched.result.expect("a queue pair");
    assert_eq!(trials(&outcome).1, REFUSALS);
}

#[test]
fn only_what_was_refused_for_lack_of_room_and_not_granted_after_all_is_a_trade() {
    for (errno, is_trade) in REFUSALS.into_iter().zip([false, true, true, false]) {
        let bench = Bench::new("gives-64");
        bench.device.refuse_creation(1, errno);
        let (_qp, outcome) = bench.search(&wish(256, Ladder)).result.expect("one");
        assert_eq!(outcome.trade().is_some(), is_trade, "{errno}");
        let bench = Bench::new("generic");
        bench.device.refuse_creation(1, errno);
        let (_qp, outcome) = bench.search(&wish(256, Ladder)).result.expect("one");
        assert_eq!(outcome.trade(), None, "{errno}");
    }
}

#[test]
fn any_other_error_ends_the_search_at_once_and_leaves_nothing() {
    let errors = [
        Errno::ACCESS,
        Errno::PERM,
        Errno::NODEV,
        Errno::IO,
        Errno::BUSY,
        Errno::AGAIN,
        Errno::FAULT,
        Errno::NOSYS,
        Errno::NOBUFS,
    ];
    for errno in errors {
        for mode in MODES {
            for nth in 1..=6 {
                let bench = Bench::new("none");
                let before = bench.left();
                bench.device.refuse_creation(nth, errno);
                let searched = bench.search(&wish(256, mode));
                let error = searched.result.map(|_| ()).expect_err("an error");
                assert_eq!(error.error.errno, errno);
                assert_eq!(
                    (error.attempts as u64, searched.asked.len() as u64),
                    (nth, nth)
                );
                assert_eq!(bench.creations(), nth);
                assert!(!error.to_string().contains("lower device"), "{error}");
                assert_eq!(bench.left(), before);
            }
        }
    }
}

#[test]
fn whichever_creation_fails_nothing_is_left_and_the_answer_is_one_that_was_accepted() {
    let devices = [
        "generic",
        "irdma-gen1",
        "irdma-gen2",
        "erdma",
        "none",
        "budget-40960",
    ];
    for personality in devices {
        for mode in MODES {
            for nth in 1..=20 {
                for errno in REFUSALS {
                    let bench = Bench::new(personality);
                    let before = bench.left();
                    bench.device.refuse_creation(nth, errno);
                    let searched = bench.search(&wish(256, mode));
                    let case = format!("{personality}, {mode}, {nth}: {:?}", searched.asked);
                    match &searched.result {
                        Ok((qp, outcome)) => {
                            assert_eq!(bench.device.census().qps, 1, "{case}");
                            assert_eq!(outcome.granted, qp.caps(), "{case}");
                            let last = searched.asked.last();
                            assert_eq!(Some(&outcome.asked_bytes), last, "{case}");
                        }
                        // Only the creation without inline data has no way out.
                        Err(error) => {
                            assert_eq!(searched.asked.last(), Some(&0), "{case}");
                            assert_eq!(error.error.errno, errno, "{case}");
                        }
                    }
                    drop(searched.result);
                    assert_eq!(bench.left(), before, "{case}");
                    // The room in the completion queue is free again as well, once the refusal
                    // that was not met has gone by.
                    while bench.creations() < nth {
                        let spec = wish(0, mode).shape.spec(0);
                        let _ = bench.device.create_qp(bench.group.id(), &spec);
                    }
                    let again = bench.search(&wish(0, Ladder));
                    assert!(again.result.is_ok(), "{case}");
                }
            }
        }
    }
}

#[test]
fn a_size_that_was_accepted_and_is_refused_at_the_end_is_followed_by_less() {
    let bench = Bench::new("budget-49152");
    // 256, 128, 192, 160, 144 and then 128 once more.
    bench.device.refuse_creation(6, Errno::NOMEM);
    bench.device.refuse_creation(7, Errno::NOSPC);
    let searched = bench.search(&wish(256, Bisect));
    assert_eq!(searched.asked, [256, 128, 192, 160, 144, 128, 112, 96]);
    let (_qp, outcome) = searched.result.expect("a queue pair");
    assert_eq!(
        (outcome.granted.inline_bytes, outcome.found),
        (96, Found::Bisect)
    );
}

#[test]
fn a_shape_that_the_device_does_not_have_is_told_with_cause_and_cure() {
    for mode in MODES {
        let bench = Bench::new("budget-16383");
        let before = bench.left();
        let searched = bench.search(&wish(256, mode));
        let error = searched
            .result
            .map(|_| ())
            .expect_err("no room for entries");
        assert_eq!(error.error.errno, Errno::NOMEM);
        assert_eq!(searched.asked.last(), Some(&0));
        let text = error.to_string();
        let refused = format!("{} larger inline sizes", searched.asked.len() - 1);
        for part in [
            "256 sends of 2 pieces, 256 receives of 1, 0 B inline",
            "256 entries of 64 B need 16384 B, a send queue has 16383",
            "device.send_wr",
            &refused,
        ] {
            assert!(text.contains(part), "{part:?} is not in {text:?}");
        }
        assert!(!text.contains('\n'));
        assert_eq!(bench.left(), before);
    }
}

#[test]
fn a_full_completion_queue_is_an_error_in_both_modes_and_free_room_is_enough_for_one() {
    for mode in MODES {
        let bench = Bench::new("none");
        let (first, _) = bench.search(&wish(256, mode)).result.expect("the only one");
        let spec = wish(256, mode).shape.spec(0);
        let full = bench.device.create_qp(bench.group.id(), &spec);
        assert_eq!(full.map(|_| ()).expect_err("full").errno, Errno::INVAL);
        drop(first);
        assert!(bench.search(&wish(256, mode)).result.is_ok());
    }
}
