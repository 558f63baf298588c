//! Exactly which sizes each device is asked for.

use pollux_control::config::InlineProbe::{self, Bisect, Ladder};
use pollux_control::view::Found::{self, FirstTry, Nothing, Steps, VendorLadder};
use pollux_provider::{Errno, Qp};

use crate::support::{Bench, MODES, Searched, trials, wish};

/// Personality, first size, mode, sizes asked, granted, how found.
type Case = (&'static str, u32, InlineProbe, &'static [u32], u32, Found);

const DOWN: &[u32] = &[
    256, 240, 224, 208, 192, 176, 160, 144, 128, 112, 96, 80, 64, 48, 32, 16, 0,
];

#[rustfmt::skip]
const CASES: &[Case] = &[
    // One creation each, whatever the mode.
    ("generic", 256, Ladder, &[256], 256, FirstTry),
    ("generic", 256, Bisect, &[256], 256, FirstTry),
    ("irdma-gen3", 256, Ladder, &[216], 216, VendorLadder),
    ("irdma-gen3", 256, Bisect, &[216], 216, VendorLadder),
    ("erdma", 256, Ladder, &[96], 96, VendorLadder),
    ("erdma", 256, Bisect, &[96], 96, VendorLadder),
    ("mlx5", 256, Ladder, &[256], 476, FirstTry),
    ("mlx5", 256, Bisect, &[256], 476, FirstTry),
    ("gives-64", 256, Ladder, &[256], 64, FirstTry),
    ("gives-64", 256, Bisect, &[256], 64, FirstTry),
    ("gives-0", 256, Ladder, &[256], 0, Nothing),
    ("gives-0", 256, Bisect, &[256], 0, Nothing),
    ("gives-4096", 256, Ladder, &[256], 4096, FirstTry),
    // Known makers.
    ("irdma-gen2", 256, Ladder, &[216, 101], 101, VendorLadder),
    ("irdma-gen2", 256, Bisect, &[216, 32, 48, 101], 101, Found::Bisect),
    ("irdma-gen1", 256, Ladder, &[216, 101, 48], 48, VendorLadder),
    ("irdma-gen1", 256, Bisect, &[216, 32, 48, 101, 48], 48, Found::Bisect),
    // Unknown makers.
    ("none", 256, Ladder, DOWN, 0, Nothing),
    ("none", 256, Bisect, &[256, 128, 64, 32, 16, 0], 0, Nothing),
    ("budget-40960", 256, Ladder, &[256, 240, 224, 208, 192, 176, 160, 144, 128, 112, 96], 96, Steps),
    ("budget-40960", 256, Bisect, &[256, 128, 64, 96, 112, 96], 96, Found::Bisect),
    ("budget-49152", 256, Ladder, &[256, 240, 224, 208, 192, 176, 160, 144, 128], 128, Steps),
    ("budget-49152", 256, Bisect, &[256, 128, 192, 160, 144, 128], 128, Found::Bisect),
    ("budget-16384", 256, Ladder, DOWN, 0, Nothing),
    // Other first sizes: cut to the maker's largest, or below it; more than a device has.
    ("irdma-gen3", 1024, Ladder, &[216], 216, VendorLadder),
    ("irdma-gen3", 216, Ladder, &[216], 216, FirstTry),
    ("irdma-gen3", 200, Ladder, &[200], 216, FirstTry),
    ("irdma-gen2", 200, Ladder, &[200, 101], 101, VendorLadder),
    ("irdma-gen1", 101, Ladder, &[101, 48], 48, VendorLadder),
    ("erdma", 1024, Ladder, &[96], 96, VendorLadder),
    ("generic", 300, Ladder, &[300, 284, 268, 252], 256, Steps),
    ("mlx5", 1024, Ladder, &[1024, 1008, 992, 976], 988, Steps),
    ("mlx5", 1024, Bisect, &[1024, 512, 768, 896, 960, 992, 976], 988, Found::Bisect),
    // None wished for: what the device gives still counts.
    ("generic", 0, Ladder, &[0], 256, FirstTry),
    ("irdma-gen1", 0, Bisect, &[0], 48, FirstTry),
    ("none", 0, Ladder, &[0], 0, Nothing),
    ("gives-0", 0, Bisect, &[0], 0, Nothing),
];

#[test]
fn each_device_is_asked_exactly_for_the_sizes_of_the_table() {
    for &(personality, first, mode, asked, granted, found) in CASES {
        let case = format!("{personality} from {first}, {mode}");
        let bench = Bench::new(personality);
        let before = bench.left();
        let searched = bench.search(&wish(first, mode));
        let (qp, outcome) = searched.result.expect(&case);
        assert_eq!(searched.asked, asked, "{case}");
        assert_eq!(trials(&outcome).0, asked, "{case}");
        assert_eq!(bench.creations(), asked.len() as u64, "{case}");
        assert_eq!(qp.caps().inline_bytes, granted, "{case}");
        assert_eq!(
            (outcome.granted, outcome.found),
            (qp.caps(), found),
            "{case}"
        );
        assert_eq!(Some(&outcome.asked_bytes), asked.last(), "{case}");
        drop(qp);
        assert_eq!(bench.left(), before, "{case}");
    }
}

#[test]
fn both_ways_reach_the_same_size_on_every_device_and_halves_need_six_creations_at_most() {
    let devices = [
        "generic",
        "mlx5",
        "irdma-gen1",
        "irdma-gen2",
        "irdma-gen3",
        "erdma",
        "none",
        "gives-0",
        "gives-17",
        "budget-16384",
        "budget-20480",
        "budget-40960",
        "budget-81919",
        "budget-81920",
    ];
    for personality in devices {
        for first in [0, 15, 16, 96, 97, 240, 255, 256] {
            let results = MODES.map(|mode| {
                let bench = Bench::new(personality);
                let Searched { asked, result } = bench.search(&wish(first, mode));
                let (_qp, outcome) = result.expect(personality);
                assert!(
                    mode == Ladder || asked.len() <= 6,
                    "{personality}: {asked:?}"
                );
                (outcome.asked_bytes, outcome.granted)
            });
            assert_eq!(results[0], results[1], "{personality} from {first}");
        }
    }
}

#[test]
fn halves_from_a_kibibyte_on_need_eight_creations_at_most() {
    for budget in (64..=64 + 1024).map(|entry_bytes| 256 * entry_bytes) {
        let bench = Bench::new(&format!("budget-{budget}"));
        let Searched { asked, result } = bench.search(&wish(1024, Bisect));
        assert!(result.is_ok() && asked.len() <= 8, "{budget}: {asked:?}");
    }
}

#[test]
fn lack_of_room_at_this_depth_is_a_trade_and_a_size_that_does_not_exist_is_none() {
    let trade = |personality: &str, first, mode| {
        let bench = Bench::new(personality);
        let (_qp, outcome) = bench.search(&wish(first, mode)).result.expect(personality);
        outcome.trade()
    };
    for mode in MODES {
        let traded = trade("budget-40960", 256, mode).expect("a trade");
        assert_eq!(
            (traded.send_wr, traded.refused_bytes, traded.errno),
            (256, 256, Errno::NOMEM)
        );
        assert_eq!(trade("budget-81920", 256, mode), None);
        assert_eq!(trade("none", 256, mode), None);
        assert_eq!(trade("irdma-gen1", 256, mode), None);
        assert_eq!(trade("mlx5", 1024, mode), None, "no entry is so long");
    }
}

#[test]
fn a_deep_queue_gets_less_inline() {
    // 4096 entries of 256 + 64 bytes do not fit, of 32 + 64 they do.
    for mode in MODES {
        let bench = Bench::deep("budget-393216");
        let mut wish = wish(256, mode);
        wish.shape.send_wr = 4096;
        wish.shape.cq_entries = bench.cq_entries;
        let (qp, outcome) = bench.search(&wish).result.expect("a queue pair");
        assert_eq!((qp.caps().send_wr, qp.caps().inline_bytes), (4096, 32));
        let trade = outcome.trade().expect("a trade");
        assert_eq!((trade.send_wr, trade.refused_bytes), (4096, 256));
    }
}
