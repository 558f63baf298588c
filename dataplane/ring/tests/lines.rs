//! The line ring against a queue, with liars, between threads and between processes.
#![cfg(not(loom))]

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

use pollux_ring::{
    Access, HeadViolation, LINE_BYTES, LineReader, LineWriter, Pages, Segment, spsc,
};
use proptest::prelude::*;

const LINES: usize = 8;
const RING_AT: usize = 128;
const HEAD_AT: usize = 0;

fn segment() -> Segment {
    Segment::create("lines", 4096, Pages::Off).expect("segment")
}

fn read_only(segment: &Segment) -> Segment {
    let fd: OwnedFd = segment.fd().try_clone_to_owned().expect("duplicate");
    Segment::from_fd(fd, Access::ReadOnly, 1 << 30).expect("mapping")
}

fn line(number: u64) -> [u64; 7] {
    std::array::from_fn(|word| {
        number
            .wrapping_mul(0x9e37_79b9)
            .rotate_left(word as u32 * 9)
    })
}

#[derive(Debug, Clone)]
enum Step {
    Write,
    Read(usize),
    PeekAt(usize),
    Refresh,
    Demote,
    SkipDemotion,
    Prefetch,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => Just(Step::Write),
        3 => (1usize..=LINES).prop_map(Step::Read),
        1 => (0usize..=LINES).prop_map(Step::PeekAt),
        2 => Just(Step::Refresh),
        1 => Just(Step::Demote),
        1 => Just(Step::SkipDemotion),
        1 => Just(Step::Prefetch),
    ]
}

proptest! {
    #[test]
    fn ring_behaves_as_a_bounded_queue(steps in prop::collection::vec(step(), 1..400)) {
        let memory = segment();
        let mut writer = LineWriter::new(memory.clone(), RING_AT, LINES).expect("writer");
        let mut reader = LineReader::new(read_only(&memory), RING_AT, LINES).expect("reader");
        let mut queue = VecDeque::new();
        let mut known_head = 0;
        for step in steps {
            let written = writer.written();
            prop_assert_eq!(writer.free(), LINES - (written - known_head) as usize);
            match step {
                Step::Write if writer.free() > 0 => {
                    writer.write(&line(written));
                    queue.push_back(line(written));
                }
                Step::Read(count) => {
                    let count = count.min(queue.len());
                    for ahead in 0..count {
                        prop_assert_eq!(reader.peek_at(ahead), queue.get(ahead).copied());
                    }
                    reader.advance(count);
                    queue.drain(..count);
                    prop_assert_eq!(reader.peek(), queue.front().copied());
                }
                Step::PeekAt(ahead) => {
                    prop_assert_eq!(reader.peek_at(ahead), queue.get(ahead).copied());
                }
                Step::Refresh => {
                    known_head = reader.read_count();
                    prop_assert_eq!(writer.refresh(known_head), Ok(()));
                }
                Step::Demote => writer.demote_last(),
                Step::SkipDemotion => writer.skip_demotion(),
                Step::Prefetch | Step::Write => writer.prefetch_next(),
            }
        }
    }

    #[test]
    fn scribbled_ring_never_panics_and_only_expected_sequence_numbers_are_lines(
        scribbles in prop::collection::vec((0usize..LINES * 8, any::<u64>()), 0..40),
        sequences in prop::collection::vec((0usize..LINES, 0u64..20), 0..20),
        start in 0usize..20,
    ) {
        let memory = segment();
        for (word, value) in scribbles {
            memory.word(RING_AT + word * 8).expect("word").store(value);
        }
        for (line, value) in sequences {
            memory.word(RING_AT + line * LINE_BYTES + 56).expect("word").store(value);
        }
        let mut reader = LineReader::new(read_only(&memory), RING_AT, LINES).expect("reader");
        reader.advance(start);
        for ahead in [0, 1, LINES, 3 * LINES, usize::MAX] {
            let position = (start as u64).wrapping_add(ahead as u64);
            let at = RING_AT + (position as usize % LINES) * LINE_BYTES;
            let sequence = memory.word(at + 56).expect("word").load();
            let words = std::array::from_fn(|word| memory.word(at + word * 8).expect("word").load());
            let expected = (sequence == position.wrapping_add(1)).then_some(words);
            prop_assert_eq!(reader.peek_at(ahead), expected);
        }
    }

    #[test]
    fn impossible_heads_are_refused_and_change_nothing(
        written in 0u64..=LINES as u64, accepted in 0u64..=LINES as u64, head in prop_oneof![
            0u64..20, any::<u64>(), Just(u64::MAX),
        ],
    ) {
        let accepted = accepted.min(written);
        let mut writer = LineWriter::new(segment(), RING_AT, LINES).expect("writer");
        for number in 0..written {
            writer.write(&line(number));
        }
        writer.refresh(accepted).expect("honest");
        let free = writer.free();
        let answer = writer.refresh(head);
        if (accepted..=written).contains(&head) {
            prop_assert_eq!(answer, Ok(()));
            prop_assert_eq!(writer.free(), LINES - (written - head) as usize);
        } else {
            prop_assert_eq!(answer, Err(HeadViolation { head, accepted, written }));
            prop_assert_eq!(writer.free(), free);
        }
    }
}

#[test]
fn fresh_memory_is_an_empty_ring() {
    let reader = LineReader::new(segment(), RING_AT, LINES).expect("reader");
    assert!((0..LINES).all(|ahead| reader.peek_at(ahead).is_none()));
    assert_eq!(reader.capacity(), LINES);
}

#[test]
fn ring_of_one_line_works() {
    let memory = segment();
    let mut writer = LineWriter::new(memory.clone(), RING_AT, 1).expect("writer");
    let mut reader = LineReader::new(memory, RING_AT, 1).expect("reader");
    for number in 0..100 {
        assert_eq!((writer.free(), reader.peek()), (1, None));
        writer.write(&line(number));
        assert_eq!((writer.free(), reader.peek()), (0, Some(line(number))));
        reader.advance(1);
        writer.refresh(reader.read_count()).expect("honest");
    }
}

/// Reads lines until `count` have been right, publishing the count.
fn read_all(memory: &Segment, heads: &Segment, count: u64) {
    let mut reader = LineReader::new(memory.clone(), RING_AT, LINES).expect("reader");
    let head = heads.word(HEAD_AT).expect("head");
    while reader.read_count() < count {
        match reader.peek() {
            Some(words) => {
                assert_eq!(words, line(reader.read_count()));
                reader.advance(1);
                head.store_release(reader.read_count());
            }
            None => std::thread::yield_now(),
        }
    }
}

/// Writes `count` lines, waiting for room.
fn write_all(memory: &Segment, heads: &Segment, count: u64) {
    let mut writer = LineWriter::new(memory.clone(), RING_AT, LINES).expect("writer");
    let head = heads.read_word(HEAD_AT).expect("head");
    while writer.written() < count {
        writer.refresh(head.load_acquire()).expect("honest");
        if writer.free() == 0 {
            std::thread::yield_now();
        }
        for _ in 0..writer.free().min((count - writer.written()) as usize) {
            writer.write(&line(writer.written()));
        }
        writer.demote_last();
    }
}

#[test]
fn every_line_arrives_whole_and_in_order_between_threads_with_two_mappings() {
    const COUNT: u64 = 50_000;
    let (memory, heads) = (segment(), segment());
    let (theirs, their_heads) = (read_only(&memory), heads.clone());
    let thread = std::thread::spawn(move || read_all(&theirs, &their_heads, COUNT));
    write_all(&memory, &heads, COUNT);
    thread.join().expect("reader");
}

const CHILD: &str = "POLLUX_RING_TEST_CHILD";
const PROCESS_COUNT: u64 = 10_000;

/// The other process of the next test: its segments are descriptors of the parent.
#[test]
fn reader_in_another_process() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let open = |number: u32, write: bool| {
        let path = format!("/proc/{}/fd/{number}", std::os::unix::process::parent_id());
        let file = std::fs::OpenOptions::new()
            .read(true)
            .write(write)
            .open(path)
            .expect("segment");
        let access = if write {
            Access::ReadWrite
        } else {
            Access::ReadOnly
        };
        Segment::from_fd(file.into(), access, 1 << 30).expect("mapping")
    };
    let mut numbers = [0; 8];
    std::io::stdin().read_exact(&mut numbers).expect("numbers");
    let [a, b, c, d, e, f, g, h] = numbers;
    let memory = open(u32::from_ne_bytes([a, b, c, d]), false);
    let heads = open(u32::from_ne_bytes([e, f, g, h]), true);
    read_all(&memory, &heads, PROCESS_COUNT);
}

#[test]
fn every_line_arrives_whole_and_in_order_between_processes() {
    use std::os::fd::AsRawFd;
    let memory = Segment::create_owner_writes("lines", 4096, Pages::Off).expect("segment");
    let heads = segment();
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "reader_in_another_process", "--nocapture"])
        .env(CHILD, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("child");
    let mut stdin = child.stdin.take().expect("stdin");
    for segment in [&memory, &heads] {
        stdin
            .write_all(&segment.fd().as_raw_fd().to_ne_bytes())
            .expect("number");
    }
    drop(stdin);
    let ours = memory.clone();
    let our_heads = heads.clone();
    // A child that failed never takes all lines: its end is what the test waits for.
    let writer = std::thread::spawn(move || write_all(&ours, &our_heads, PROCESS_COUNT));
    assert!(child.wait().expect("child").success());
    writer.join().expect("writer");
}

#[test]
fn spsc_gives_back_what_does_not_fit_and_tells_who_is_gone() {
    let (mut producer, mut consumer) = spsc::channel(2);
    assert_eq!((producer.slots(), consumer.slots()), (2, 0));
    producer.push("a").expect("room");
    producer.push("b").expect("room");
    assert_eq!(producer.push("c"), Err(spsc::Full("c")));
    assert_eq!(consumer.peek(), Some(&"a"));
    assert_eq!(consumer.pop(), Some("a"));
    producer.push("c").expect("room");
    assert!(!producer.is_abandoned() && !consumer.is_abandoned());
    drop(producer);
    assert!(consumer.is_abandoned());
    assert_eq!(
        [consumer.pop(), consumer.pop(), consumer.pop()],
        [Some("b"), Some("c"), None]
    );
}

#[test]
fn spsc_keeps_order_between_threads() {
    let (mut producer, mut consumer) = spsc::channel(16);
    let thread = std::thread::spawn(move || {
        let mut next = 0u32;
        while next < 100_000 {
            match producer.push(next) {
                Ok(()) => next += 1,
                Err(spsc::Full(_)) => std::thread::yield_now(),
            }
        }
    });
    let mut expected = 0;
    while expected < 100_000 {
        match consumer.pop() {
            Some(value) => {
                assert_eq!(value, expected);
                expected += 1;
            }
            None => std::thread::yield_now(),
        }
    }
    thread.join().expect("producer");
}
