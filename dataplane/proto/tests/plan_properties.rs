//! A plan covers exactly its span: each byte once, in order, in as few writes and pieces as the
//! rings allow.
#![allow(clippy::disallowed_types, reason = "inside the macros of proptest")]

use pollux_proto::plan::{Placement, Spot, Write, cut};
use proptest::prelude::*;

/// Checks one plan against a byte by byte account.
fn check(len: u32, source: Spot, target: Spot, inline_max: u32) {
    let writes = cut(len, source, target, inline_max);
    let mut done = 0u32;
    for write in &writes {
        let expected_target = (u64::from(target.offset) + u64::from(done)) % u64::from(target.ring);
        assert_eq!(u64::from(write.to_offset), expected_target);
        let target_end = u64::from(write.to_offset) + u64::from(write.len);
        assert!(target_end <= u64::from(target.ring), "{write:?}");
        let mut in_write = 0;
        for piece in &write.pieces {
            assert!(piece.len > 0);
            let expected = (u64::from(source.offset) + u64::from(done)) % u64::from(source.ring);
            assert_eq!(u64::from(piece.offset), expected);
            let end = u64::from(piece.offset) + u64::from(piece.len);
            assert!(end <= u64::from(source.ring), "{piece:?}");
            done += piece.len;
            in_write += piece.len;
        }
        assert_eq!(in_write, write.len);
        let inline = write.len <= inline_max;
        assert_eq!(
            write.placement == Placement::Inline,
            inline,
            "{write:?} {inline_max}"
        );
    }
    assert_eq!(done, len);
    let target_wraps = u64::from(target.offset) + u64::from(len) > u64::from(target.ring);
    assert_eq!(
        writes.len(),
        usize::from(len > 0) + usize::from(target_wraps)
    );
    let pieces: usize = writes.iter().map(|write| write.pieces.len()).sum();
    assert!(pieces <= 3, "the source ring ends once at most");
}

#[test]
fn every_span_in_every_pair_of_small_rings_is_covered() {
    for source_ring in 1..=5 {
        for target_ring in 1..=5 {
            for source_offset in 0..source_ring {
                for target_offset in 0..target_ring {
                    for len in 0..=source_ring.min(target_ring) {
                        for inline_max in 0..=5 {
                            let source = Spot {
                                offset: source_offset,
                                ring: source_ring,
                            };
                            let target = Spot {
                                offset: target_offset,
                                ring: target_ring,
                            };
                            check(len, source, target, inline_max);
                        }
                    }
                }
            }
        }
    }
}

/// The placements of the writes of a span of 5 that the target ring cuts into 3 and 2.
fn placements(inline_max: u32) -> Vec<Placement> {
    let ring = Spot { offset: 5, ring: 8 };
    let writes = cut(5, Spot { offset: 0, ring: 8 }, ring, inline_max);
    writes.iter().map(|write| write.placement).collect()
}

#[test]
fn each_chunk_is_inline_iff_it_fits_and_the_limit_is_inclusive() {
    use Placement::{ByReference, Inline};
    assert_eq!(placements(0), [ByReference, ByReference]);
    assert_eq!(placements(1), [ByReference, ByReference]);
    assert_eq!(placements(2), [ByReference, Inline]);
    assert_eq!(placements(3), [Inline, Inline]);
    assert_eq!(placements(u32::MAX), [Inline, Inline]);
    // The other way round: a short chunk before a long one.
    let late = Spot { offset: 6, ring: 8 };
    let writes = cut(5, Spot { offset: 0, ring: 8 }, late, 2);
    let order: Vec<_> = writes.iter().map(|write| write.placement).collect();
    assert_eq!(order, [Inline, ByReference]);
}

#[test]
fn both_rings_may_end_in_one_span() {
    let source = Spot { offset: 6, ring: 8 };
    let target = Spot {
        offset: 12,
        ring: 16,
    };
    let writes: Vec<Write> = cut(8, source, target, 4).into_iter().collect();
    let shape: Vec<(u32, Vec<(u32, u32)>)> = writes
        .iter()
        .map(|w| {
            (
                w.to_offset,
                w.pieces.iter().map(|p| (p.offset, p.len)).collect(),
            )
        })
        .collect();
    assert_eq!(shape, [(12, vec![(6, 2), (0, 2)]), (0, vec![(2, 4)])]);
}

fn spot() -> impl Strategy<Value = Spot> {
    (1..=u32::MAX).prop_flat_map(|ring| (0..ring).prop_map(move |offset| Spot { offset, ring }))
}

proptest! {
    #[test]
    fn any_span_in_rings_of_any_size_is_covered(
        source in spot(), target in spot(), share in 0..=u32::MAX, inline_max in 0..=u32::MAX,
    ) {
        let most = u64::from(source.ring.min(target.ring)) + 1;
        check((u64::from(share) % most) as u32, source, target, inline_max);
    }
}
