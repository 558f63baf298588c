//! Which inline sizes a device is asked for.

/// The inline sizes that adapters are known to have: vendor id as verbs reports it, limits in
/// bytes from the largest to the smallest. A maker is one line.
pub const VENDORS: &[(u32, &[u32])] = &[
    (0x8086, &[216, 101, 48]), // Intel: irdma, from the third generation to the first
    (0x1ded, &[96]),           // Alibaba: erdma
];

/// How much less is asked for where no limit is known, in bytes: the unit of which the work queue
/// entries of many adapters are made.
const STEP_BYTES: u32 = 16;

/// The known limits of a maker, largest first; empty for all others.
#[must_use]
pub fn limits_of(vendor_id: u32) -> &'static [u32] {
    let known = VENDORS.iter().find(|(vendor, _)| *vendor == vendor_id);
    known.map_or(&[], |(_, limits)| limits)
}

/// Why a size is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// It is the one wished for.
    Wish,
    /// It is a known limit of the maker.
    VendorLimit,
    /// It is 16 bytes less than the size before, or none.
    Less,
}

/// One size to ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The size in bytes.
    pub bytes: u32,
    /// Why this one.
    pub origin: Origin,
}

/// The sizes to ask for, largest first, the last one 0: first the one wished for, cut to the
/// largest of the maker's `limits`; after each the next smaller limit, and where there is none,
/// 16 bytes less.
#[must_use]
pub fn steps(limits: &[u32], wished_bytes: u32) -> Vec<Step> {
    let mut step = match limits.iter().max() {
        Some(&largest) if largest < wished_bytes => Step {
            bytes: largest,
            origin: Origin::VendorLimit,
        },
        Some(_) | None => Step {
            bytes: wished_bytes,
            origin: Origin::Wish,
        },
    };
    let mut steps = vec![step];
    while step.bytes > 0 {
        let smaller = limits.iter().filter(|limit| **limit < step.bytes).max();
        step = match smaller {
            Some(&bytes) => Step {
                bytes,
                origin: Origin::VendorLimit,
            },
            None => Step {
                bytes: step.bytes.saturating_sub(STEP_BYTES),
                origin: Origin::Less,
            },
        };
        steps.push(step);
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(vendor_id: u32, wished_bytes: u32) -> Vec<u32> {
        let steps = steps(limits_of(vendor_id), wished_bytes);
        steps.iter().map(|step| step.bytes).collect()
    }

    #[test]
    fn an_unknown_maker_is_asked_for_sixteen_bytes_less_each_time_down_to_none() {
        let all: Vec<u32> = (0..=16).rev().map(|step| step * 16).collect();
        assert_eq!(asked(0xff_ffff, 256), all);
        assert_eq!(asked(0x02c9, 40), [40, 24, 8, 0]);
        assert_eq!(asked(0x02c9, 0), [0]);
    }

    #[test]
    fn a_known_maker_is_asked_for_its_limits_then_for_sixteen_bytes_less() {
        assert_eq!(asked(0x8086, 256), [216, 101, 48, 32, 16, 0]);
        assert_eq!(asked(0x1ded, 256), [96, 80, 64, 48, 32, 16, 0]);
    }

    #[test]
    fn a_wish_below_the_largest_limit_is_asked_for_as_it_is() {
        assert_eq!(asked(0x8086, 216), [216, 101, 48, 32, 16, 0]);
        assert_eq!(asked(0x8086, 200), [200, 101, 48, 32, 16, 0]);
        assert_eq!(asked(0x8086, 101), [101, 48, 32, 16, 0]);
        assert_eq!(asked(0x8086, 40), [40, 24, 8, 0]);
        assert_eq!(asked(0x1ded, 0), [0]);
        let origins = |wished_bytes| {
            let steps = steps(&[48], wished_bytes);
            steps.iter().map(|step| step.origin).collect::<Vec<_>>()
        };
        assert_eq!(origins(48)[..2], [Origin::Wish, Origin::Less]);
        assert_eq!(origins(49)[..2], [Origin::VendorLimit, Origin::Less]);
    }

    #[test]
    fn the_known_limits_run_downwards_and_each_maker_stands_once() {
        for (index, (vendor, limits)) in VENDORS.iter().enumerate() {
            assert!(limits.is_sorted_by(|a, b| a > b) && !limits.contains(&0));
            assert_eq!(limits_of(*vendor), *limits);
            let others = &VENDORS[..index];
            assert!(
                others.iter().all(|(other, _)| other != vendor),
                "{vendor:#x}"
            );
        }
    }
}
