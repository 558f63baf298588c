//! Segments: sizes, seals, bounds, and what a hostile descriptor can and cannot do.
#![cfg(not(loom))]

use std::os::fd::{AsFd, OwnedFd};

use pollux_ring::{
    Access, AccessError, HUGEPAGE_BYTES, PageKind, Pages, Pool, Region, Segment, SegmentError,
};
use proptest::prelude::*;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;

fn segment(bytes: usize) -> Segment {
    Segment::create("test", bytes, Pages::Off).expect("segment")
}

fn duplicate(segment: &Segment) -> OwnedFd {
    segment.fd().try_clone_to_owned().expect("duplicate")
}

fn mapped_again(segment: &Segment, access: Access) -> Segment {
    Segment::from_fd(duplicate(segment), access, usize::MAX).expect("second mapping")
}

#[test]
fn size_is_rounded_up_to_pages_and_bytes_are_zero() {
    for bytes in [1, 4095, 4096, 4097, 100_000] {
        let segment = segment(bytes);
        assert!(segment.len() >= bytes && segment.len() - bytes < 4096);
        let mut read = vec![1; segment.len()];
        segment.copy_out(0, &mut read).expect("all of it");
        assert!(read.iter().all(|&byte| byte == 0));
        assert_eq!(segment.addr() % 4096, 0);
    }
}

#[test]
fn impossible_sizes_and_names_are_refused_with_the_value() {
    for bytes in [0, (1 << 47) + 1, usize::MAX] {
        let error = Segment::create("test", bytes, Pages::Off).expect_err("refused");
        assert_eq!(error, SegmentError::Size { bytes });
    }
    for name in ["a\0b", &"x".repeat(250)] {
        let error = Segment::create(name, 1, Pages::Off).expect_err("refused");
        assert_eq!(
            error,
            SegmentError::Name {
                name: name.to_owned()
            }
        );
    }
    Segment::create(&"x".repeat(249), 1, Pages::Off).expect("longest name");
}

#[test]
fn nobody_can_change_the_size_or_the_seals() {
    let segment = segment(8192);
    for size in [0, 4096, 8191, 8193, 1 << 20] {
        assert_eq!(
            rustix::fs::ftruncate(segment.fd(), size),
            Err(Errno::PERM),
            "{size}"
        );
    }
    let more = rustix::fs::fcntl_add_seals(segment.fd(), SealFlags::WRITE);
    assert_eq!(more, Err(Errno::PERM));
}

#[test]
fn segment_that_only_its_owner_writes_cannot_be_written_through_its_descriptor() {
    let segment = Segment::create_owner_writes("test", 8192, Pages::Off).expect("segment");
    segment.copy_in(0, b"owner").expect("the owner writes");
    let writable = Segment::from_fd(duplicate(&segment), Access::ReadWrite, 8192);
    let refused = SegmentError::System {
        step: "map",
        bytes: 8192,
        errno: Errno::PERM,
    };
    assert_eq!(writable.expect_err("refused"), refused);
    assert_eq!(rustix::io::pwrite(segment.fd(), b"x", 0), Err(Errno::PERM));
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    assert_eq!(
        rustix::fs::fallocate(segment.fd(), punch, 0, 4096),
        Err(Errno::PERM)
    );
    let reader = mapped_again(&segment, Access::ReadOnly);
    segment
        .copy_in(0, b"OWNER")
        .expect("the owner still writes");
    let mut read = [0; 5];
    reader.copy_out(0, &mut read).expect("inside");
    assert_eq!(&read, b"OWNER");
}

#[test]
fn hole_punched_into_base_pages_reads_as_zeros() {
    let segment = segment(8192);
    segment.copy_in(0, &[7; 8192]).expect("inside");
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(segment.fd(), punch, 0, 4096).expect("hole");
    let mut read = [1; 2];
    segment.copy_out(4095, &mut read).expect("inside");
    assert_eq!(read, [0, 7]);
    segment.copy_in(0, &[9]).expect("inside");
}

#[test]
fn descriptors_that_could_shrink_are_refused() {
    let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC;
    let missing_one = [
        SealFlags::empty(),
        SealFlags::SHRINK | SealFlags::GROW,
        SealFlags::SHRINK | SealFlags::SEAL,
        SealFlags::GROW | SealFlags::SEAL,
    ];
    for seals in missing_one {
        let fd = rustix::fs::memfd_create("hostile", flags).expect("memfd");
        rustix::fs::ftruncate(&fd, 4096).expect("size");
        rustix::fs::fcntl_add_seals(&fd, seals).expect("seals");
        let error = Segment::from_fd(fd, Access::ReadOnly, 4096).expect_err("refused");
        assert_eq!(
            error,
            SegmentError::NotSealed {
                seals: seals.bits()
            }
        );
    }
}

#[test]
fn descriptors_of_other_kinds_are_refused() {
    let file = OwnedFd::from(std::fs::File::open("/proc/self/exe").expect("file"));
    let null = OwnedFd::from(std::fs::File::open("/dev/null").expect("device"));
    let (pipe, _other) = rustix::pipe::pipe().expect("pipe");
    for fd in [file, null, pipe] {
        let error = Segment::from_fd(fd, Access::ReadOnly, usize::MAX).expect_err("refused");
        assert!(matches!(error, SegmentError::NotSealed { .. }), "{error}");
    }
}

#[test]
fn sealed_descriptors_of_a_wrong_size_are_refused() {
    let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    for (bytes, bytes_max) in [
        (0, 4096),
        (1, 4096),
        (4097, 8192),
        (8192, 4096),
        (1 << 50, 1 << 51),
    ] {
        let fd = rustix::fs::memfd_create("hostile", flags).expect("memfd");
        rustix::fs::ftruncate(&fd, bytes).expect("size");
        rustix::fs::fcntl_add_seals(&fd, seals).expect("seals");
        let error = Segment::from_fd(fd, Access::ReadOnly, bytes_max).expect_err("refused");
        assert_eq!(
            error,
            SegmentError::WrongSize {
                bytes,
                page_bytes: 4096,
                bytes_max
            }
        );
    }
}

#[test]
fn read_only_mapping_refuses_everything_that_writes() {
    let segment = segment(4096);
    let reader = mapped_again(&segment, Access::ReadOnly);
    assert_eq!(reader.access(), Access::ReadOnly);
    assert_eq!(reader.copy_in(0, b"x"), Err(AccessError::ReadOnly));
    assert_eq!(
        reader.copy_from(0, &segment, 0, 1),
        Err(AccessError::ReadOnly)
    );
    assert_eq!(
        reader.atomic_u64(0).expect_err("refused"),
        AccessError::ReadOnly
    );
    assert_eq!(reader.word(0).expect_err("refused"), AccessError::ReadOnly);
    assert_eq!(
        reader.lines(0, 1).expect_err("refused"),
        AccessError::ReadOnly
    );
    segment.word(8).expect("word").store_release(77);
    assert_eq!(reader.read_word(8).expect("word").load_acquire(), 77);
}

#[test]
fn words_and_lines_must_be_aligned_and_inside() {
    let segment = segment(4096);
    let misaligned = |alignment| AccessError::Misaligned {
        offset: 4,
        alignment,
    };
    assert_eq!(segment.atomic_u64(4).expect_err("refused"), misaligned(8));
    assert_eq!(segment.lines(4, 1).expect_err("refused"), misaligned(64));
    assert_eq!(
        segment.lines(0, 3).expect_err("refused"),
        AccessError::LineCount { lines: 3 }
    );
    assert_eq!(
        segment.lines(0, 0).expect_err("refused"),
        AccessError::LineCount { lines: 0 }
    );
    for offset in [4096, 4089, usize::MAX] {
        let refused = segment.read_word(offset).expect_err("refused");
        assert_eq!(
            refused,
            AccessError::OutOfBounds {
                offset,
                len: 8,
                memory: 4096
            }
        );
    }
    for (offset, lines) in [(0, 128), (64, 64), (1 << 63, 1), (0, 1 << 63)] {
        let refused = segment.read_lines(offset, lines).expect_err("refused");
        assert!(
            matches!(refused, AccessError::OutOfBounds { .. }),
            "{offset} {lines}"
        );
    }
    segment.lines(0, 64).expect("all lines");
    segment.atomic_u64(4088).expect("last word");
}

#[test]
fn handles_keep_the_memory_mapped() {
    let segment = segment(4096);
    let reader = mapped_again(&segment, Access::ReadOnly);
    let word = segment.word(64).expect("word");
    let read = reader.read_word(64).expect("word");
    drop((segment, reader));
    word.store(5);
    assert_eq!(read.load(), 5);
}

#[test]
fn required_gives_hugepages_or_says_how_many_are_missing() {
    let bytes = HUGEPAGE_BYTES + 1;
    match Segment::create("test", bytes, Pages::Required) {
        Ok(segment) => {
            assert_eq!(segment.page_kind(), PageKind::Huge2M);
            assert_eq!(segment.len(), 2 * HUGEPAGE_BYTES);
            segment.copy_in(segment.len() - 1, &[1]).expect("last byte");
            let again = mapped_again(&segment, Access::ReadOnly);
            assert_eq!(again.page_kind(), PageKind::Huge2M);
            assert_eq!(rustix::fs::ftruncate(segment.fd(), 0), Err(Errno::PERM));
        }
        Err(error) => {
            let SegmentError::HugepagesMissing { need: 2, have, .. } = error else {
                panic!("{error}");
            };
            assert!(have < 2);
            assert!(
                error.to_string().contains("need 2 pages of 2 MiB"),
                "{error}"
            );
        }
    }
}

#[test]
fn auto_always_gives_memory() {
    let large = Segment::create("test", 2 * HUGEPAGE_BYTES, Pages::Auto).expect("segment");
    large.copy_in(large.len() - 1, &[1]).expect("last byte");
    let small = Segment::create("test", 100, Pages::Auto).expect("segment");
    assert_eq!((small.page_kind(), small.len()), (PageKind::Base, 4096));
}

#[test]
fn clones_share_a_mapping_and_other_mappings_share_the_bytes() {
    let segment = segment(4096);
    let clone = segment.clone();
    let other = mapped_again(&segment, Access::ReadWrite);
    assert!(segment.is_same_mapping(&clone) && !segment.is_same_mapping(&other));
    assert_eq!(segment.addr(), clone.addr());
    other.copy_in(9, b"seen").expect("inside");
    let mut read = [0; 4];
    clone.copy_out(9, &mut read).expect("inside");
    assert_eq!(&read, b"seen");
    assert!(rustix::io::fcntl_getfd(other.fd().as_fd()).is_ok());
}

const BYTES: usize = 4096;

/// A copy as a test makes it: lengths around every branch, anywhere.
fn span() -> impl Strategy<Value = (usize, usize, usize)> {
    let len = prop_oneof![0usize..=70, 0usize..=BYTES, Just(BYTES)];
    len.prop_flat_map(|len| (Just(len), 0..=BYTES - len, 0..=BYTES - len))
}

proptest! {
    #[test]
    fn copies_of_every_length_and_alignment_match_a_model(
        (len, at, from) in span(), seed in any::<u8>(),
    ) {
        let mut model: Vec<u8> = (0..BYTES).map(|index| (index as u8).wrapping_mul(31) ^ seed).collect();
        let shared = segment(BYTES);
        shared.copy_in(0, &model).expect("inside");
        let pool = Pool::create(BYTES, Pages::Off).expect("pool");
        pool.copy_in(0, &model).expect("inside");

        let bytes: Vec<u8> = (0..len).map(|index| (index as u8) ^ 0x5a).collect();
        shared.copy_in(at, &bytes).expect("inside");
        model[at..at + len].copy_from_slice(&bytes);
        let mut read = vec![0; len];
        shared.copy_out(at, &mut read).expect("inside");
        prop_assert_eq!(&read, &bytes);

        // Within one segment, with overlap.
        shared.copy_from(at, &shared, from, len).expect("inside");
        model.copy_within(from..from + len, at);
        let mut all = vec![0; BYTES];
        shared.copy_out(0, &mut all).expect("inside");
        prop_assert_eq!(&all, &model);

        // From one kind of region to the other.
        let (private, shared) = (Region::from(pool), Region::from(shared));
        private.copy_from(from, &shared, at, len).expect("inside");
        let mut read = vec![0; len];
        private.copy_out(from, &mut read).expect("inside");
        prop_assert_eq!(&read, &model[at..at + len]);
    }

    #[test]
    fn copies_outside_touch_nothing(
        offset in prop_oneof![0..=BYTES, BYTES..usize::MAX, Just(usize::MAX)], len in 0usize..200,
    ) {
        let outside = offset.checked_add(len).is_none_or(|end| end > BYTES);
        let memory = segment(BYTES);
        let source = segment(BYTES);
        source.copy_in(0, &[1; BYTES]).expect("inside");
        let error = AccessError::OutOfBounds { offset, len, memory: BYTES };
        let expected = if outside { Err(error) } else { Ok(()) };
        prop_assert_eq!(memory.copy_in(offset, &vec![1; len]), expected);
        prop_assert_eq!(memory.copy_from(offset, &source, 0, len), expected);
        prop_assert_eq!(memory.copy_from(0, &source, offset, len), expected);
        let mut read = vec![9; len];
        prop_assert_eq!(memory.copy_out(offset, &mut read), expected);
        if outside {
            prop_assert!(read.iter().all(|&byte| byte == 9));
            let mut all = vec![1; BYTES];
            memory.copy_out(0, &mut all).expect("inside");
            prop_assert!(all.iter().all(|&byte| byte == 0));
        }
    }
}
