//! The proof of the credit rules: every state of two sides of a link, whatever the workers, the
//! control threads and the wire do first, and whichever post fails.
//!
//! In every state credits are conserved and no message is under way for which the peer has no
//! receive. Every run ends, and it ends with everything delivered and both sides at rest. That is
//! more than delivery under a fair scheduler, and it holds because the graph of states has no circle
//! and no end in which something is left to be sent. An explorer that keeps the edges is needed for
//! that, so the tests bring their own.
//!
//! The rules are those that links run, [`Credits`], not a model of them.

mod credit;

use credit::graph::{Fault, Graph};
use credit::world::{DEADLOCK, Occasion, Plan, STEPS, Step, World};
use pollux_proto::credit::{Credits, Kind, RECEIVES_MIN, RESERVE};
use pollux_proto::testing::Side;
use proptest::collection::vec;
use proptest::prelude::*;

/// The steps of a way, one a line, and where it leads.
fn tell<const KEPT: u32>(what: &str, way: &[World<KEPT>]) -> String {
    let mut text = format!("{what}, after\n");
    for pair in way.windows(2) {
        text += &format!("  {}\n", pair[0].explain(&pair[1]));
    }
    if let Some(last) = way.last() {
        text += &format!("{last:#?}");
    }
    text
}

/// Explores to the end. The number of states, or the first thing that is wrong.
fn explore<const KEPT: u32>(start: World<KEPT>) -> Result<usize, Fault<World<KEPT>>> {
    let graph = Graph::explore(start, World::visit)?;
    match graph.circle() {
        None => Ok(graph.len()),
        Some(way) => Err(Fault {
            what: "a run without end".into(),
            way,
        }),
    }
}

/// Explores what must be right; the number of states.
fn prove(start: World<RESERVE>) -> usize {
    match explore(start) {
        Ok(states) => states,
        Err(Fault { what, way }) => panic!("{}", tell(&what, &way)),
    }
}

#[test]
fn the_explorer_tells_a_circle_from_ways_that_meet() {
    let explore = |edges: &'static [(u8, u8)]| {
        Graph::explore(0, |state: &u8, successors: &mut Vec<u8>| {
            let leaves = edges.iter().filter(|(from, _)| from == state);
            successors.extend(leaves.map(|(_, to)| *to));
            (*state != 9).then_some(()).ok_or("nine".to_owned())
        })
    };
    let meeting = explore(&[(0, 1), (0, 2), (1, 3), (2, 3), (2, 4)]).expect("no nine");
    assert_eq!((meeting.len(), meeting.circle()), (5, None));
    let round = explore(&[(0, 1), (1, 2), (2, 3), (3, 1), (3, 4)]).expect("no nine");
    assert_eq!(round.circle(), Some(vec![0, 1, 2, 3, 1]));
    let itself = explore(&[(0, 1), (1, 1)]).expect("no nine");
    assert_eq!(itself.circle(), Some(vec![0, 1, 1]));
    let fault = explore(&[(0, 1), (1, 2), (2, 9), (1, 9)])
        .err()
        .map(|fault| fault.way);
    assert_eq!(fault, Some(vec![0, 1, 9]), "the shortest way");
}

/// So many CDC and LLC messages, and nothing goes wrong.
fn smooth(cdc: u16, llc: u16) -> Plan {
    Plan {
        cdc,
        llc,
        failures: 0,
        shortages: 0,
    }
}

/// The same, but a post fails and once there is no room for an announcement.
fn rough(cdc: u16, llc: u16) -> Plan {
    Plan {
        failures: 1,
        shortages: 1,
        ..smooth(cdc, llc)
    }
}

#[test]
fn every_run_of_two_sides_delivers_everything_and_comes_to_rest() {
    let worlds = [
        ([3, 3], [rough(1, 2), rough(2, 1)]),
        ([3, 3], [rough(0, 4), rough(3, 0)]),
        ([3, 4], [smooth(2, 2), rough(0, 4)]),
        ([4, 4], [smooth(0, 5), rough(0, 5)]),
        ([3, 6], [smooth(0, 7), smooth(1, 0)]),
        ([12, 3], [smooth(0, 0), smooth(0, 15)]),
    ];
    let mut states = 0;
    for (receives, plans) in worlds {
        states += prove(World::new(receives, plans));
    }
    // Fewer would be another proof than the one that was made.
    assert!(states >= 1_000_000, "{states} states");
}

#[test]
fn without_the_reserve_both_sides_hold_all_credits_of_the_other_and_wait_for_ever() {
    let plans = [smooth(0, 5); 2];
    for receives in [[3, 3], [3, 4], [4, 4]] {
        let Err(Fault { what, way }) = explore(World::<0>::new(receives, plans)) else {
            panic!("no deadlock without a reserve of {receives:?}");
        };
        let last = way.last().expect("a way has its start");
        assert_eq!(what, DEADLOCK, "{}", tell(&what, &way));
        for end in &last.ends {
            assert_eq!(end.credits.held(), 0, "{}", tell(&what, &way));
            assert!(end.plan.llc > 0, "{}", tell(&what, &way));
        }
        let returns = last.ends.each_ref().map(|end| end.credits.to_return());
        assert_eq!(returns, receives.map(u32::from), "{}", tell(&what, &way));
        prove(World::new(receives, plans));
    }
}

#[test]
fn a_worker_that_forgets_to_look_after_any_of_three_events_waits_for_ever() {
    for occasion in [
        Occasion::ReceivePosted,
        Occasion::GivenBack,
        Occasion::CalledOff,
    ] {
        let world = || World::new([3, 3], [smooth(0, 4), rough(0, 0)]);
        prove(world());
        match explore(world().forgetting(occasion)) {
            Ok(states) => panic!("{occasion:?} does not matter in {states} states"),
            Err(Fault { what, way }) => assert_eq!(what, DEADLOCK, "{}", tell(&what, &way)),
        }
    }
}

/// Two sides of any size that have a lot to send.
fn any_world() -> impl Strategy<Value = World<RESERVE>> {
    let receives = || {
        (RECEIVES_MIN..=u8::MAX, 0..3).prop_map(|(receives, size)| match size {
            0 => receives.min(12),
            1 => u8::MAX,
            _ => receives,
        })
    };
    let plan = || {
        (0..=300_u16, 0..=300_u16, 0..=20_u8, 0..=20_u8).prop_map(
            |(cdc, llc, failures, shortages)| Plan {
                cdc,
                llc,
                failures,
                shortages,
            },
        )
    };
    ([receives(), receives()], [plan(), plan()])
        .prop_map(|(receives, plans)| World::new(receives, plans))
}

/// A number below 24 for each step on each side.
fn bit_of(option: &(Side, Step)) -> usize {
    let (side, step) = option;
    let number = STEPS.iter().position(|known| known == step);
    2 * number.expect("a known step") + *side as usize
}

/// Makes one of the steps that may be made, and checks what holds everywhere.
fn walk_on(world: &mut World<RESERVE>, options: &[(Side, Step)], choice: usize) {
    let (side, step) = options[choice % options.len()];
    let made = world.make(side, step).and_then(|()| world.check());
    assert_eq!(made, Ok(()), "{side:?}: {step:?} leads to {world:#?}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Long walks with as many receives as a byte counts. Each piece of a walk prefers some steps,
    /// so that queues fill up; in the end the two do what they owe until nothing is left.
    #[test]
    fn walks_with_many_receives_keep_the_rules_and_come_to_rest(
        mut world in any_world(),
        pieces in vec((any::<u32>(), any::<u64>(), 1..400_u32), 0..12),
        last_choice in any::<usize>(),
    ) {
        for (preferred, choices, steps) in pieces {
            for number in 0..steps {
                let mut options = world.options();
                let is_liked = |option: &(Side, Step)| preferred >> bit_of(option) & 1 == 1;
                if options.iter().any(is_liked) {
                    options.retain(is_liked);
                }
                if options.is_empty() {
                    break;
                }
                walk_on(&mut world, &options, (choices.rotate_left(number) % 1021) as usize);
            }
        }
        // A message takes five steps, an announcement eight, and there are fewer of these.
        let mut steps_left = 20_000;
        loop {
            let mut options = world.options();
            options.retain(|(side, step)| world.is_owed(*side, *step));
            if options.is_empty() {
                break;
            }
            walk_on(&mut world, &options, last_choice);
            steps_left -= 1;
            prop_assert!(steps_left > 0, "never at rest: {world:#?}");
        }
        prop_assert!(world.is_done(), "{world:#?}");
    }

    /// Receives that were posted beyond those announced are returned too, a byte at a time.
    #[test]
    fn any_number_of_returns_is_carried_in_full(posted in 0..2000_u32, failures in any::<u16>()) {
        let mut side = Credits::new(u8::MAX, u8::MAX).expect("enough receives");
        for _ in 0..posted {
            side.handle_receive_posted();
        }
        let mut carried = 0;
        for message in 0..16 {
            let taken = side.take(Kind::Cdc).expect("a credit");
            if failures >> message & 1 == 1 {
                side.give_back(taken);
            } else {
                carried += u32::from(taken.carried);
            }
            prop_assert_eq!(carried + side.to_return(), posted);
        }
        if failures.count_zeros() >= 8 {
            prop_assert_eq!(side.to_return(), 0);
        }
    }
}
