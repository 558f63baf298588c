//! Every pair of cursors in rings of 1 to 8 bytes, at both edges of the 16-bit lap counter.

use pollux_proto::cursor::{Cursor, Place, Step, offset_advanced, offset_before};
use pollux_proto::seq::CdcSeq;

/// Laps from which the counter is watched: at its start, in its middle, and over its end.
const EDGES: [u16; 4] = [0, 0x7ffe, 0xfffd, 0xffff];

/// The position `total` bytes after lap `start_lap` began, by division instead of by steps.
fn at(start_lap: u16, total: u64, ring: u32) -> Cursor {
    let laps = (total / u64::from(ring)) as u16;
    Cursor::new(
        start_lap.wrapping_add(laps),
        (total % u64::from(ring)) as u32,
    )
}

#[test]
fn advancing_by_every_length_agrees_with_division() {
    for ring in 1..=8u32 {
        for lap in EDGES {
            for from in 0..u64::from(3 * ring) {
                for by in 0..=ring {
                    let mut place = Place {
                        cursor: at(lap, from, ring),
                        total: from,
                    };
                    place.advance(by, ring);
                    let expected = at(lap, from + u64::from(by), ring);
                    assert_eq!(place.cursor, expected, "ring {ring} {from}+{by}");
                    assert_eq!(place.total, from + u64::from(by));
                    assert!(place.cursor.count() < ring);
                    let offset = offset_advanced(at(lap, from, ring).count(), by, ring);
                    assert_eq!(offset, expected.count());
                }
            }
        }
    }
}

#[test]
fn every_pair_of_cursors_is_judged_by_its_distance() {
    for ring in 1..=8u32 {
        for lap in EDGES {
            for from in 0..u64::from(4 * ring) {
                for to in 0..u64::from(4 * ring) {
                    let (old, new) = (at(lap, from, ring), at(lap, to, ring));
                    let laps = (to / u64::from(ring)) as i64 - (from / u64::from(ring)) as i64;
                    let expected = match laps {
                        _ if to < from => Step::Stale,
                        0 | 1 => Step::Forward(to - from),
                        laps => Step::Skips(laps as u16),
                    };
                    assert_eq!(
                        old.step_to(new, ring),
                        expected,
                        "ring {ring} {from} -> {to}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_full_ring_and_an_empty_ring_are_told_apart_in_every_ring() {
    for ring in 1..=8u32 {
        for lap in EDGES {
            for from in 0..u64::from(ring) {
                let consumer = at(lap, from, ring);
                assert_eq!(consumer.step_to(consumer, ring), Step::Forward(0));
                let full = consumer.advanced(ring, ring);
                assert_eq!(full.count(), consumer.count());
                assert_eq!(full.wrap(), lap.wrapping_add(1));
                assert_eq!(consumer.step_to(full, ring), Step::Forward(u64::from(ring)));
                assert_eq!(full.step_to(consumer, ring), Step::Stale);
            }
        }
    }
}

#[test]
fn every_count_outside_the_ring_is_refused() {
    for ring in 1..=8u32 {
        for old in 0..ring {
            for lap in EDGES {
                for count in [ring, ring + 1, u32::MAX] {
                    for ahead in [0u16, 1, 2, 0xffff] {
                        let new = Cursor::new(lap.wrapping_add(ahead), count);
                        assert_eq!(Cursor::new(lap, old).step_to(new, ring), Step::OutsideRing);
                    }
                }
            }
        }
    }
}

#[test]
fn every_lap_distance_has_its_verdict() {
    let old = Cursor::new(0xfff0, 3);
    for ahead in 0..=u16::MAX {
        let new = Cursor::new(old.wrap().wrapping_add(ahead), 2);
        let expected = match ahead {
            0 => Step::Stale,
            1 => Step::Forward(7),
            2..=0x7fff => Step::Skips(ahead),
            0x8000..=0xffff => Step::Stale,
        };
        assert_eq!(old.step_to(new, 8), expected, "{ahead} laps");
    }
}

#[test]
fn the_largest_ring_does_not_overflow() {
    let ring = u32::MAX;
    let last = Cursor::new(0xffff, ring - 1);
    assert_eq!(last.advanced(1, ring), Cursor::new(0, 0));
    assert_eq!(last.advanced(ring, ring), Cursor::new(0, ring - 1));
    let step = Cursor::START.step_to(Cursor::new(1, ring - 1), ring);
    assert_eq!(step, Step::Forward(2 * u64::from(ring) - 1));
}

#[test]
fn the_byte_before_the_start_of_the_ring_is_its_last() {
    for ring in 1..=8u32 {
        for offset in 0..ring {
            let before = offset_before(offset, ring);
            assert_eq!(offset_advanced(before, 1, ring), offset);
        }
    }
}

#[test]
fn message_numbers_go_round() {
    let mut seq = CdcSeq::NONE;
    for expected in (1..=u16::MAX).chain([0, 1]) {
        let next = seq.next();
        assert_eq!(next.0, expected);
        assert!(seq.is_before(next) && !next.is_before(seq));
        seq = next;
    }
}
