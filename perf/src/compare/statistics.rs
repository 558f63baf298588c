//! What a comparison is made of: the order of the modes, medians, ratios of pairs, the crossover.
//!
//! The figure of a batch is its median, so that a batch in which a thread lost its core for a while
//! still counts as what it is. Modes are compared within a round only, batch by batch: whatever
//! moves the machine from one round to the next (frequency, placement, other work) moves both
//! sides of a ratio, and the median of the ratios does not see it.

use serde::Serialize;

/// How much slower than by reference is called slower: three parts in a hundred.
pub const SLOWER_RATIO: f64 = 1.03;

/// Two modes that differ by less than one part in a hundred are taken for equally fast: so much do
/// two batches in one mode differ.
const EQUAL_RATIO: f64 = 1.01;

/// The order of three modes in round `round`, counted from 0. Six rounds see each of the six
/// orders once, so that no mode always comes after the same other one.
#[must_use]
pub fn order<M>(modes: [M; 3], round: usize) -> [M; 3] {
    let mut order = modes;
    order.rotate_left(round % 3);
    if (round / 3) % 2 == 1 {
        order.reverse();
    }
    order
}

/// The middle of some values and how far they spread.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The median.
    pub median: f64,
    /// The lower quartile.
    pub p25: f64,
    /// The upper quartile.
    pub p75: f64,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
}

impl Spread {
    /// Of `values`, in any order. `None` without values. Between two values it interpolates.
    #[must_use]
    pub fn of(values: &[f64]) -> Option<Spread> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let place = share * (sorted.len() - 1) as f64;
            let (below, above) = (
                sorted[place.floor() as usize],
                sorted[place.ceil() as usize],
            );
            below + (above - below) * place.fract()
        };
        (!sorted.is_empty()).then(|| Spread {
            median: at(0.5),
            p25: at(0.25),
            p75: at(0.75),
            min: at(0.0),
            max: at(1.0),
        })
    }
}

/// One mode against another, batch against batch of the same round.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Against {
    /// First divided by second; less than 1 where the first is faster.
    pub ratio: Spread,
    /// First minus second, in microseconds.
    pub difference_us: Spread,
}

impl Against {
    /// Compares values that belong together by their place. `None` without a pair.
    #[must_use]
    pub fn of(first: &[f64], second: &[f64]) -> Option<Against> {
        let pairs = || first.iter().zip(second);
        let ratios: Vec<f64> = pairs().map(|(first, second)| first / second).collect();
        let differences: Vec<f64> = pairs().map(|(first, second)| first - second).collect();
        Some(Against {
            ratio: Spread::of(&ratios)?,
            difference_us: Spread::of(&differences)?,
        })
    }

    /// Whether the first was slower beyond doubt: by one per cent or more, and in three quarters
    /// of the rounds at all.
    #[must_use]
    pub fn is_slower(&self) -> bool {
        self.ratio.median >= EQUAL_RATIO && self.ratio.p25 > 1.0
    }
}

/// Up to which size it pays to send the bytes of a stream inline as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Crossover {
    /// No size was measured at which WRITEs go inline.
    NotMeasured,
    /// Inline WRITEs were slower at the smallest size already.
    Never {
        /// That size.
        slower_at: u32,
    },
    /// Inline WRITEs were not slower up to a size, and slower at the next.
    Between {
        /// The largest size up to which they were not slower.
        up_to: u32,
        /// The next size that was measured.
        slower_at: u32,
    },
    /// Inline WRITEs were not slower at any size at which they go inline.
    Always {
        /// The largest of these sizes.
        up_to: u32,
    },
}

/// Finds the crossover. `sizes` are message sizes in ascending order, each with all inline against
/// inline messages, where the WRITE is the only thing that differs; those longer than `threshold`,
/// the longest inline WRITE, say nothing and are left out.
#[must_use]
pub fn crossover<'a>(
    sizes: impl IntoIterator<Item = (u32, &'a Against)>,
    threshold: u32,
) -> Crossover {
    let mut up_to = None;
    for (bytes, against) in sizes {
        if bytes > threshold {
            break;
        }
        if against.is_slower() {
            let slower_at = bytes;
            return match up_to {
                Some(up_to) => Crossover::Between { up_to, slower_at },
                None => Crossover::Never { slower_at },
            };
        }
        up_to = Some(bytes);
    }
    up_to.map_or(Crossover::NotMeasured, |up_to| Crossover::Always { up_to })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use pollux_control::rpc::InlineUse;

    use super::*;
    use crate::modes::MODES;

    #[test]
    fn six_rounds_see_every_order_once_and_each_has_every_mode() {
        let orders: HashSet<[InlineUse; 3]> = (0..6).map(|round| order(MODES, round)).collect();
        assert_eq!(orders.len(), 6);
        for order in orders {
            assert!(MODES.iter().all(|mode| order.contains(mode)), "{order:?}");
        }
        assert_eq!(order(MODES, 6), MODES);
    }

    #[test]
    fn quartiles_lie_where_a_line_through_the_values_has_them() {
        let spread = Spread::of(&[5.0, 1.0, 3.0, 2.0, 4.0]).unwrap();
        let expected = Spread {
            median: 3.0,
            p25: 2.0,
            p75: 4.0,
            min: 1.0,
            max: 5.0,
        };
        assert_eq!(spread, expected);
        let two = Spread::of(&[1.0, 2.0]).unwrap();
        assert_eq!((two.p25, two.median, two.p75), (1.25, 1.5, 1.75));
        assert_eq!(Spread::of(&[7.0]).unwrap().p25, 7.0);
        assert_eq!(Spread::of(&[]), None);
    }

    #[test]
    fn pairs_of_a_round_are_compared_and_not_the_medians_of_all() {
        // The machine becomes slower from round to round by far more than the modes differ.
        let second = [100.0, 200.0, 400.0, 800.0, 1600.0];
        let first = second.map(|value| value * 0.9);
        let against = Against::of(&first, &second).unwrap();
        assert!((against.ratio.median - 0.9).abs() < 1e-12);
        assert!(against.ratio.max - against.ratio.min < 1e-12);
        assert!((against.difference_us.median + 40.0).abs() < 1e-9);
        assert_eq!(Against::of(&[], &[]), None);
    }

    /// Five rounds with this ratio, give or take a little.
    fn against(ratio: f64) -> Against {
        let first = [-0.004, -0.002, 0.0, 0.002, 0.004].map(|noise| ratio + noise);
        Against::of(&first, &[1.0; 5]).unwrap()
    }

    fn found(ratios: &[f64], threshold: u32) -> Crossover {
        let list: Vec<(u32, Against)> = ratios
            .iter()
            .enumerate()
            .map(|(index, ratio)| (1 << index, against(*ratio)))
            .collect();
        crossover(
            list.iter().map(|(bytes, against)| (*bytes, against)),
            threshold,
        )
    }

    #[test]
    fn the_crossover_lies_before_the_first_size_that_is_slower() {
        let found = found(&[0.9, 0.99, 1.001, 1.05, 0.9], 256);
        let expected = Crossover::Between {
            up_to: 4,
            slower_at: 8,
        };
        assert_eq!(found, expected);
    }

    #[test]
    fn slower_means_by_a_part_in_a_hundred_and_most_of_the_time() {
        assert!(against(1.02).is_slower());
        assert!(!against(1.006).is_slower());
        let wild = Against::of(&[0.8, 0.9, 1.2, 1.3], &[1.0; 4]).unwrap();
        assert!(wild.ratio.median > EQUAL_RATIO && !wild.is_slower());
    }

    #[test]
    fn inline_writes_that_never_pay_and_such_that_always_do_are_told_apart() {
        assert_eq!(found(&[1.02, 0.9], 256), Crossover::Never { slower_at: 1 });
        assert_eq!(found(&[0.9, 0.9], 256), Crossover::Always { up_to: 2 });
    }

    #[test]
    fn sizes_that_are_too_long_for_an_inline_write_do_not_count() {
        assert_eq!(found(&[0.9, 0.9, 1.2], 3), Crossover::Always { up_to: 2 });
        let slower = Crossover::Between {
            up_to: 2,
            slower_at: 4,
        };
        assert_eq!(found(&[0.9, 0.9, 1.2], 4), slower, "as long as just fits");
        assert_eq!(found(&[1.2], 0), Crossover::NotMeasured);
        assert_eq!(found(&[], 256), Crossover::NotMeasured);
    }
}
