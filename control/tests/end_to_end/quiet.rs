//! What the log says, and what it keeps to itself: a warning is for something that somebody has to
//! look at, and nobody can fill the log.

use rustix::process::Signal;

use crate::support::wire::{Plain, exchange, expect_reset};
use crate::support::{Appliance, Pair, Shape, listener};

/// Lines of a log that ask somebody to look.
fn complaints(appliance: &Appliance) -> Vec<String> {
    let log = appliance.log();
    let lines = log.lines().filter(|line| {
        let mut words = line.split_whitespace();
        words.any(|word| word == "WARN" || word == "ERROR")
    });
    lines.map(str::to_string).collect()
}

/// Connections open while one side stops, on either side of a forward.
fn stop_one(first: impl Fn(&Pair) -> &Appliance, other: impl Fn(&Pair) -> &Appliance, open: usize) {
    let (target, address) = listener();
    let mut pair = Pair::start(&Shape::to(address));
    let mut ends = Vec::new();
    for seed in 0..3 {
        let client = Plain::connect(pair.entry());
        let server = Plain::tcp(target.accept().expect("accept").0);
        if seed < open {
            ends.extend([client, server]);
        } else {
            exchange(&client, &server, 81 + seed as u64, 1 << 16);
        }
    }
    let before = [complaints(&pair.a), complaints(&pair.b)];
    first(&pair).signal(Signal::TERM);
    for end in &ends {
        expect_reset(end);
    }
    drop(ends);
    other(&pair).until_stat("conns.open", 0);
    let links = |appliance: &Appliance| appliance.json(&["show", "links"]);
    crate::support::until("the link is gone", || {
        let links = links(other(&pair));
        links.as_array().is_some_and(Vec::is_empty).then_some(())
    });
    other(&pair).signal(Signal::TERM);
    for appliance in [&mut pair.a, &mut pair.b] {
        assert_eq!(appliance.ended().code(), Some(0), "{}", appliance.log());
    }
    let after = [complaints(&pair.a), complaints(&pair.b)];
    assert_eq!(after, before);
}

#[test]
fn an_orderly_end_of_the_peer_is_no_warning() {
    for open in [0, 2] {
        stop_one(|pair| &pair.a, |pair| &pair.b, open);
        stop_one(|pair| &pair.b, |pair| &pair.a, open);
    }
}
