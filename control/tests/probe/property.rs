//! Any device that accepts every size below one that it accepts.

use pollux_control::config::InlineProbe::{self, Bisect, Ladder};
use pollux_control::probe::{Outcome, ProbeError, search, steps};
use pollux_control::view::InlineView;
use pollux_provider::{CreateQpError, Errno, GroupId, Qp, QpCaps, QpState};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::support::wish;

/// A queue pair that is only its sizes.
struct Made(QpCaps);

impl Qp for Made {
    fn qpn(&self) -> u32 {
        1
    }

    fn caps(&self) -> QpCaps {
        self.0
    }

    fn state(&self) -> QpState {
        QpState::Reset
    }

    fn group(&self) -> GroupId {
        GroupId(0)
    }
}

/// A device that accepts sizes up to `accepts`, and gives something of its own.
#[derive(Clone, Copy, Debug)]
struct Any {
    accepts: u32,
    /// Multiplied with what is asked for, in sixteenths, before `more` is added.
    sixteenths: u32,
    more: u32,
    errno: Errno,
    depth: u32,
}

impl Any {
    fn create(&self, caps: QpCaps) -> Result<Made, CreateQpError> {
        if caps.inline_bytes > self.accepts {
            return Err(CreateQpError {
                errno: self.errno,
                asked: caps,
                hint: "too much".to_string(),
            });
        }
        Ok(Made(QpCaps {
            inline_bytes: caps.inline_bytes * self.sixteenths / 16 + self.more,
            send_wr: self.depth,
            ..caps
        }))
    }

    fn search(&self, limits: &[u32], first: u32, mode: InlineProbe) -> Result<Outcome, ProbeError> {
        let wish = wish(first, mode);
        let create = |bytes| self.create(wish.shape.spec(bytes).caps);
        search(&wish, limits, create).map(|(_, outcome)| outcome)
    }
}

fn any() -> impl Strategy<Value = Any> {
    let errno = prop::sample::select(vec![
        Errno::INVAL,
        Errno::NOMEM,
        Errno::NOSPC,
        Errno::OPNOTSUPP,
    ]);
    let depth = prop::sample::select(vec![256_u32, 512]);
    (0..=300_u32, 0..=40_u32, 0..=64_u32, errno, depth).prop_map(
        |(accepts, sixteenths, more, errno, depth)| Any {
            accepts,
            sixteenths,
            more,
            errno,
            depth,
        },
    )
}

proptest! {
    #[test]
    fn both_ways_reach_the_largest_accepted_step_and_halves_need_six_creations(
        device in any(),
        limits in vec(1..=300_u32, 0..6),
        first in 0..=256_u32,
    ) {
        let ladder = device.search(&limits, first, Ladder).expect("none is accepted");
        let bisect = device.search(&limits, first, Bisect).expect("none is accepted");
        prop_assert_eq!(ladder.asked_bytes, bisect.asked_bytes);
        prop_assert_eq!(ladder.granted, bisect.granted);
        let steps = steps(&limits, first);
        let best = steps.iter().map(|step| step.bytes).find(|bytes| *bytes <= device.accepts);
        prop_assert_eq!(Some(ladder.asked_bytes), best);
        prop_assert!(bisect.trials.len() <= 6 || limits.len() > 1, "{:?}", bisect.trials);
        let bound = bound(steps.len());
        prop_assert!(bisect.trials.len() <= bound, "{} > {bound}", bisect.trials.len());
        prop_assert!(ladder.trials.len() <= steps.len());
        prop_assert_eq!(ladder.other_depths().is_some(), device.depth != 256);
        let view = InlineView::from(&bisect);
        prop_assert_eq!(view.attempts as usize, view.tries.len());
    }

    #[test]
    fn steps_run_downwards_from_the_wish_or_the_largest_limit_to_none(
        limits in vec(1..=1024_u32, 0..6),
        first in 0..=1024_u32,
    ) {
        let steps: Vec<u32> = steps(&limits, first).iter().map(|step| step.bytes).collect();
        let largest = limits.iter().copied().max().unwrap_or(u32::MAX);
        prop_assert_eq!(steps[0], first.min(largest));
        prop_assert!(steps.is_sorted_by(|a, b| a > b));
        prop_assert_eq!(steps.last(), Some(&0));
        for pair in steps.windows(2) {
            let next = limits.iter().copied().filter(|limit| *limit < pair[0]).max();
            prop_assert_eq!(pair[1], next.unwrap_or(pair[0].saturating_sub(16)));
        }
    }
}

/// Most creations that halves need for so many sizes.
fn bound(steps: usize) -> usize {
    match steps {
        1 => 1,
        steps => 2 + (steps - 1).next_power_of_two().ilog2() as usize,
    }
}

#[test]
fn queues_of_another_depth_than_asked_for_are_told() {
    let device = Any {
        accepts: 256,
        sixteenths: 16,
        more: 0,
        errno: Errno::INVAL,
        depth: 512,
    };
    let outcome = device.search(&[], 256, Ladder).expect("a queue pair");
    assert_eq!(
        InlineView::from(&outcome).notes(),
        [
            "queues of 256 sends and 256 receives were asked for (device.send_wr, device.recv_wr), \
             512 and 256 granted"
        ]
    );
}
