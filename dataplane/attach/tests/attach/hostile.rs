//! Programs that write what they like, and an appliance that does.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;

use pollux_attach::client::{Blocking, Session, Stream};
use pollux_attach::layout::{Layout, Shape, VERSION};
use pollux_attach::message::{Reply, Request, Role};
use pollux_attach::packet::{self, ReceiveError};
use pollux_attach::shared::{
    ProgramSide, SlotNews, SlotState, Submission, SubmissionOp, Total, Violation, WorkerSide,
};
use pollux_ring::{Access, HeadViolation, LineWriter, Segment, Wake, WakeSender, wake_channel};
use proptest::prelude::*;

use crate::appliance::{Appliance, Plan, Policy};
use crate::support::{echo, session, sleepy, tcp_pair};

const SLOTS: u16 = 3;
const BUFFER: u32 = 4096;
/// Where the documented layout has its words and lines.
const SUBMISSIONS_TAKEN: usize = 384;
const EVENTS_TAKEN: usize = 512;
const SUBMISSIONS: usize = 1024;
const SUBMISSION_LINES: usize = 256;
const EVENTS: usize = SUBMISSIONS + SUBMISSION_LINES * 64;
const EVENT_LINES: usize = 256;

/// A worker's half, and a program that writes lines word by word.
struct Raw {
    segment: Segment,
    layout: Layout,
    side: WorkerSide,
    lines: LineWriter,
}

impl Raw {
    fn new() -> Raw {
        let layout = Layout::of(Shape::new(SLOTS, BUFFER, BUFFER).expect("shape"));
        let segment = layout.create_segment("session").expect("segment");
        let side = WorkerSide::new(segment.clone(), layout).expect("side");
        let lines = LineWriter::new(segment.clone(), SUBMISSIONS, SUBMISSION_LINES).expect("lines");
        Raw {
            segment,
            layout,
            side,
            lines,
        }
    }

    /// With slot 1 open in generation 7, 100 bytes received and 50 reclaimed.
    fn open() -> Raw {
        let mut raw = Raw::new();
        assert!(raw.side.open_slot(1, 7));
        raw.side.publish(
            1,
            &SlotNews {
                produced: 100,
                reclaimed: 50,
                ..SlotNews::default()
            },
        );
        raw
    }

    fn submit(&mut self, op: u64, len: u64, slot: u64, prepared: u64, consumed: u64) {
        let word = op | len << 8 | slot << 16 | 7 << 32;
        self.lines.write(&[word, prepared, consumed, 0, 0, 0, 0]);
    }

    fn poll(&mut self) -> Option<Result<Submission, Violation>> {
        self.side.poll()
    }

    /// Submits one line and expects it to end the session, for good.
    fn violates(&mut self, op: u64, len: u64, slot: u64, totals: [u64; 2]) -> Violation {
        self.submit(op, len, slot, totals[0], totals[1]);
        let violation = self.poll().expect("a line").expect_err("a violation");
        self.submit(1, 0, 1, 0, 0);
        assert_eq!(self.poll(), Some(Err(violation)), "a violation stays");
        assert!(self.side.has_submission());
        violation
    }

    fn accepts(&mut self, op: u64, len: u64, totals: [u64; 2]) -> Submission {
        self.submit(op, len, 1, totals[0], totals[1]);
        let submission = self.poll().expect("a line").expect("accepted");
        assert_eq!(submission.prepared_total, totals[0]);
        assert_eq!(submission.consumed_total, totals[1]);
        submission
    }
}

#[test]
fn slots_that_do_not_exist_are_violations() {
    for slot in [3, 4, 65535] {
        let expected = Violation::SlotOutOfRange {
            slot: slot as u16,
            slots: SLOTS,
        };
        assert_eq!(Raw::open().violates(1, 0, slot, [0, 0]), expected);
    }
}

#[test]
fn first_words_without_meaning_are_violations() {
    for (op, len) in [
        (0, 0),
        (6, 0),
        (255, 0),
        (1, 33),
        (1, 255),
        (1 | 1 << 48, 0),
        (1 | 1 << 63, 0),
    ] {
        let violation = Raw::open().violates(op, len, 1, [50, 0]);
        assert!(
            matches!(violation, Violation::BadEntry { .. }),
            "{violation}"
        );
    }
    // More inline bytes than were prepared since the last line.
    let mut raw = Raw::open();
    raw.accepts(1, 0, [10, 0]);
    let violation = raw.violates(1, 3, 1, [12, 0]);
    assert!(
        matches!(violation, Violation::BadEntry { .. }),
        "{violation}"
    );
}

#[test]
fn totals_never_go_back() {
    let mut raw = Raw::open();
    raw.accepts(1, 0, [10, 20]);
    raw.accepts(1, 0, [10, 20]);
    let back = raw.violates(1, 0, 1, [9, 20]);
    let expected = Violation::TotalWentBack {
        slot: 1,
        total: Total::Prepared,
        was: 10,
        is: 9,
    };
    assert_eq!(back, expected);
    let mut raw = Raw::open();
    raw.accepts(1, 0, [10, 20]);
    let back = raw.violates(1, 0, 1, [10, 0]);
    let expected = Violation::TotalWentBack {
        slot: 1,
        total: Total::Consumed,
        was: 20,
        is: 0,
    };
    assert_eq!(back, expected);
}

#[test]
fn totals_stay_inside_the_rings() {
    let most = u64::from(BUFFER) + 50;
    let mut raw = Raw::open();
    raw.accepts(1, 0, [most, 100]);
    for is in [most + 1, u64::MAX] {
        let beyond = Raw::open().violates(1, 0, 1, [is, 0]);
        let expected = Violation::TotalBeyondRing {
            slot: 1,
            total: Total::Prepared,
            is,
            most,
        };
        assert_eq!(beyond, expected);
    }
    for is in [101, u64::MAX] {
        let beyond = Raw::open().violates(1, 0, 1, [0, is]);
        let expected = Violation::TotalBeyondRing {
            slot: 1,
            total: Total::Consumed,
            is,
            most: 100,
        };
        assert_eq!(beyond, expected);
    }
}

#[test]
fn nothing_is_prepared_after_the_end() {
    let mut raw = Raw::open();
    assert_eq!(raw.accepts(3, 0, [10, 0]).op, SubmissionOp::ShutdownWrite);
    raw.accepts(1, 0, [10, 30]);
    assert_eq!(
        raw.violates(1, 0, 1, [11, 30]),
        Violation::PreparedAfterEnd { slot: 1 }
    );
}

#[test]
fn lines_of_an_old_connection_and_of_a_closed_one_change_nothing() {
    let mut raw = Raw::open();
    raw.accepts(4, 0, [10, 0]);
    raw.submit(5, 0, 1, 4000, u64::MAX);
    let leftover = raw.poll().expect("a line").expect("ignored");
    assert_eq!(
        (leftover.op, leftover.prepared_total),
        (SubmissionOp::Kick, 10)
    );
    raw.side.close_slot(1);
    assert!(raw.side.open_slot(1, 8));
    raw.submit(5, 0, 1, 9, 9);
    let leftover = raw.poll().expect("a line").expect("ignored");
    let expected = Submission {
        op: SubmissionOp::Kick,
        slot: 1,
        generation: 8,
        prepared_total: 0,
        consumed_total: 0,
    };
    assert_eq!(leftover, expected);
    raw.submit(1, 0, 0, 1, 1);
    let never_open = raw.poll().expect("a line").expect("ignored");
    assert_eq!((never_open.slot, never_open.prepared_total), (0, 0));
    assert_eq!(raw.poll(), None);
    assert!(!raw.side.open_slot(SLOTS, 1));
    raw.side.close_slot(u16::MAX);
    raw.side.publish(u16::MAX, &SlotNews::default());
}

#[test]
fn impossible_count_of_events_taken_is_a_violation() {
    let mut raw = Raw::open();
    raw.segment.word(EVENTS_TAKEN).expect("word").store(1000);
    for produced in 0..=EVENT_LINES as u64 {
        raw.side.publish(
            1,
            &SlotNews {
                produced: 100 + produced,
                ..SlotNews::default()
            },
        );
    }
    let written = EVENT_LINES as u64;
    let head = HeadViolation {
        head: 1000,
        accepted: 0,
        written,
    };
    assert_eq!(raw.poll(), Some(Err(Violation::EventHead(head))));
    assert!(raw.side.has_pending());
    let _ = raw.side.flush_events();
}

#[test]
fn inline_bytes_land_in_the_sndbuf_also_across_its_end() {
    let mut raw = Raw::open();
    let base = raw.layout.sndbuf_offset(1).expect("slot");
    let size = BUFFER as usize;
    raw.accepts(1, 0, [u64::from(BUFFER) - 10, 0]);
    let bytes: Vec<u8> = (1..=32).collect();
    let words: Vec<u64> = bytes
        .chunks(8)
        .map(|word| u64::from_ne_bytes(word.try_into().expect("8")))
        .collect();
    let word = 1 | 32 << 8 | 1 << 16 | 7 << 32;
    let prepared = u64::from(BUFFER) + 22;
    raw.lines
        .write(&[word, prepared, 0, words[0], words[1], words[2], words[3]]);
    raw.poll().expect("a line").expect("accepted");
    let mut end = [0; 10];
    raw.segment
        .copy_out(base + size - 10, &mut end)
        .expect("inside");
    let mut start = [0; 23];
    raw.segment.copy_out(base, &mut start).expect("inside");
    assert_eq!(
        (&end[..], &start[..22], start[22]),
        (&bytes[..10], &bytes[10..], 0)
    );
}

#[test]
fn a_program_that_finds_its_memory_damaged_gives_the_session_up() {
    for count in [u64::MAX, 1 << 40, 3] {
        let appliance = Appliance::start(Plan {
            policy: Policy::Echo,
            ..Plan::default()
        });
        let session = session(&appliance);
        let stream = echo(&session);
        let memory = appliance.memory();
        // Twice round, so that the program has seen a count.
        for _ in 0..2 * SUBMISSION_LINES {
            (&stream).write_all(b"x").expect("write");
            (&stream).read_exact(&mut [0]).expect("read");
        }
        stream.set_blocking(Blocking::Never).expect("mode");
        let thaw = appliance.freeze();
        memory
            .copy_in(SUBMISSIONS_TAKEN, &count.to_le_bytes())
            .expect("inside");
        // Fills the ring, so that it looks at the count.
        let mut result = Ok(());
        for _ in 0..SUBMISSION_LINES + 2 {
            result = result.and((&stream).write_all(b"x"));
        }
        assert!(session.is_gone(), "{count} lines taken");
        result.expect_err("nobody takes it");
        stream.set_blocking(Blocking::Wait).expect("mode");
        let other = session.upgrade(tcp_pair().0, Role::Client);
        other.expect_err("no session");
        drop((stream, thaw));
    }
}

#[test]
fn full_event_ring_merges_news_and_delivers_the_last_of_each_slot() {
    let mut raw = Raw::new();
    let mut program = ProgramSide::open(&raw.segment).expect("program");
    for slot in 0..SLOTS {
        assert!(raw.side.open_slot(slot, 1));
    }
    let rounds = EVENT_LINES as u64 * 3;
    let news = |slot: u16, round: u64| SlotNews {
        produced: round + u64::from(slot),
        reclaimed: round,
        state: SlotState::OPEN,
    };
    for round in 1..=rounds {
        for slot in 0..SLOTS {
            raw.side.publish(slot, &news(slot, round));
        }
        let _ = raw.side.flush_events();
    }
    assert!(raw.side.has_pending());
    let mut last = [SlotNews::default(); SLOTS as usize];
    let mut events = 0;
    loop {
        while let Some(event) = program.events.take() {
            let before = &mut last[usize::from(event.slot)];
            assert!(event.news.produced > before.produced);
            *before = event.news;
            events += 1;
        }
        if !raw.side.has_pending() {
            break;
        }
        let _ = raw.side.flush_events();
    }
    assert_eq!(events, EVENT_LINES + usize::from(SLOTS));
    assert_eq!(last, [0, 1, 2].map(|slot| news(slot, rounds)));
}

/// A first word that often means something.
fn first_word() -> impl Strategy<Value = u64> {
    prop_oneof![
        6 => (0u64..7, 0u64..40, 0u64..4, 6u64..9)
            .prop_map(|(op, len, slot, generation)| op | len << 8 | slot << 16 | generation << 32),
        1 => any::<u64>(),
    ]
}

fn total() -> impl Strategy<Value = u64> {
    prop_oneof![6 => 0u64..9000, 1 => any::<u64>(), 1 => Just(u64::MAX)]
}

#[derive(Debug, Clone)]
enum Step {
    Line(u64, u64, u64),
    Scribble(usize, u64),
    Poll,
    Publish(u16, u64, u64),
    Flush,
    Open(u16, u16),
    Close(u16),
}

fn step() -> impl Strategy<Value = Step> {
    let control_words = (EVENTS + EVENT_LINES * 64) / 8;
    prop_oneof![
        6 => (first_word(), total(), total()).prop_map(|(word, a, b)| Step::Line(word, a, b)),
        1 => (0..control_words, prop_oneof![any::<u64>(), 0u64..300])
            .prop_map(|(word, value)| Step::Scribble(word, value)),
        6 => Just(Step::Poll),
        3 => (0u16..5, 0u64..9000, 0u64..9000).prop_map(|(s, a, b)| Step::Publish(s, a, b)),
        1 => Just(Step::Flush),
        1 => (0u16..5, 6u16..9).prop_map(|(slot, generation)| Step::Open(slot, generation)),
        1 => (0u16..5).prop_map(Step::Close),
    ]
}

proptest! {
    #[test]
    fn worker_never_panics_and_accepts_only_what_the_rules_allow(
        steps in prop::collection::vec(step(), 1..300),
    ) {
        let mut raw = Raw::open();
        let mut news = [SlotNews::default(); 5];
        news[1] = SlotNews { produced: 100, reclaimed: 50, ..SlotNews::default() };
        let mut totals = [[0; 2]; 5];
        for step in steps {
            match step {
                Step::Line(word, prepared, consumed) if raw.lines.free() > 0 => {
                    raw.lines.write(&[word, prepared, consumed, 1, 2, 3, 4]);
                }
                Step::Line(..) => {
                    // A program that writes over lines that nobody has read yet.
                    raw.lines.refresh(raw.lines.written()).expect("the writer's own count");
                }
                Step::Scribble(word, value) => {
                    raw.segment.word(word * 8).expect("inside").store(value);
                }
                Step::Poll => {
                    if let Some(Ok(submission)) = raw.poll() {
                        let slot = usize::from(submission.slot);
                        prop_assert!(submission.slot < SLOTS);
                        let [prepared, consumed] = totals[slot];
                        prop_assert!(submission.prepared_total >= prepared);
                        prop_assert!(submission.consumed_total >= consumed);
                        totals[slot] = [submission.prepared_total, submission.consumed_total];
                    }
                }
                Step::Publish(slot, more, reclaimed) => {
                    let of_slot = &mut news[usize::from(slot)];
                    of_slot.produced += more;
                    of_slot.reclaimed += reclaimed.min(totals[usize::from(slot)][0]);
                    raw.side.publish(slot, of_slot);
                }
                Step::Flush => {
                    let _ = raw.side.flush_events();
                }
                Step::Open(slot, generation) => {
                    if raw.side.open_slot(slot, generation) {
                        news[usize::from(slot)] = SlotNews::default();
                        totals[usize::from(slot)] = [0; 2];
                    }
                }
                Step::Close(slot) => raw.side.close_slot(slot),
            }
        }
    }
}

/// A program without the library.
struct RawProgram {
    control: OwnedFd,
    segment: Segment,
    wake: Wake,
}

impl RawProgram {
    fn join(appliance: &Appliance) -> RawProgram {
        let control = packet::connect(appliance.path()).expect("connect");
        let hello = Request::Hello {
            version: VERSION,
            slots: SLOTS,
            sndbuf_bytes: BUFFER,
            rmbe_bytes: BUFFER,
            name: "hostile".to_owned(),
        };
        packet::send(&control, &hello.emit(), &[]).expect("hello");
        let welcome = loop {
            match packet::receive(&control) {
                Ok(packet) => break packet,
                Err(ReceiveError::WouldBlock) => std::thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        };
        let mut fds = welcome.fds.into_iter();
        let segment = fds.next().expect("segment");
        let segment = Segment::from_fd(segment, Access::ReadWrite, 1 << 30).expect("mapping");
        let wake = Wake::from_fd(fds.next().expect("eventfd"));
        RawProgram {
            control,
            segment,
            wake,
        }
    }
}

#[test]
fn program_that_broke_a_rule_loses_its_session_and_nothing_else() {
    let appliance = Appliance::start(Plan {
        policy: Policy::Echo,
        ..Plan::default()
    });
    let honest = session(&appliance);
    let mut bystander = echo(&honest);
    let hostile = RawProgram::join(&appliance);
    let mut lines =
        LineWriter::new(hostile.segment.clone(), SUBMISSIONS, SUBMISSION_LINES).expect("lines");
    lines.write(&[u64::MAX; 7]);
    hostile.wake.signal().expect("signal");
    let ended = loop {
        match packet::receive(&hostile.control) {
            Ok(packet) => panic!("{packet:?}"),
            Err(ReceiveError::WouldBlock) => std::thread::yield_now(),
            Err(error) => break error,
        }
    };
    assert!(matches!(ended, ReceiveError::Closed), "{ended}");
    let violations = appliance.report().violations;
    assert_eq!(violations, [Violation::BadEntry { word: u64::MAX }]);
    bystander.write_all(b"unharmed").expect("write");
    let mut bytes = [0; 8];
    bystander.read_exact(&mut bytes).expect("read");
    assert_eq!(&bytes, b"unharmed");
}

/// An appliance that the test plays by hand: its end of the socket and the session's memory.
fn appliance_by_hand() -> (OwnedFd, Segment, WakeSender, Session) {
    let (here, there) = packet::pair().expect("pair");
    let layout = Layout::of(Shape::new(SLOTS, BUFFER, BUFFER).expect("shape"));
    let segment = layout.create_segment("session").expect("segment");
    let (sender, receiver) = wake_channel().expect("pipe");
    let wake = Wake::new().expect("eventfd");
    let welcome = Reply::Welcome {
        version: VERSION,
        session: 1,
    }
    .emit();
    let fds = [segment.fd(), wake.fd(), receiver.fd()];
    packet::send(&there, &welcome, &fds).expect("welcome");
    let session = Session::open_connected(here, &sleepy()).expect("session");
    (there, segment, sender, session)
}

fn stream_by_hand(control: &OwnedFd, session: &Session) -> Stream {
    let accelerated = Reply::Accelerated {
        request: 0,
        slot: 1,
        generation: 7,
    };
    packet::send(control, &accelerated.emit(), &[]).expect("answer");
    session
        .upgrade_start(tcp_pair().0, Role::Client)
        .expect("request");
    // The answer was there before the question, which the library must survive too.
    let mut events = Vec::new();
    let _ = session.arm();
    session.poll_events(&mut events);
    match events.pop() {
        Some(pollux_attach::client::StreamEvent::Upgraded { stream, .. }) => {
            stream.expect("accelerated")
        }
        other => panic!("{other:?}"),
    }
}

#[derive(Debug, Clone)]
enum Nonsense {
    Event(u64, u64, u64),
    Scribble(usize, u64),
    Reply(Reply),
    Bytes(Vec<u8>),
}

fn nonsense() -> impl Strategy<Value = Nonsense> {
    let number = || 0u32..4;
    let slot = || prop_oneof![0u16..5, any::<u16>()];
    let reply = prop_oneof![
        (number(), slot(), 6u16..9).prop_map(|(request, slot, generation)| {
            Reply::Accelerated {
                request,
                slot,
                generation,
            }
        }),
        (number(), any::<u32>()).prop_map(|(request, code)| Reply::Fallback {
            request,
            code,
            text: String::new()
        }),
        (number(), any::<i32>()).prop_map(|(request, errno)| Reply::Failed {
            request,
            errno,
            text: String::new()
        }),
        (slot(), 6u16..9).prop_map(|(slot, generation)| Reply::Released { slot, generation }),
        Just(Reply::Refused {
            text: "again".to_owned()
        }),
    ];
    let word =
        (0u64..40, 0u64..4, 6u64..9, any::<u16>()).prop_map(|(len, slot, generation, state)| {
            len << 8 | slot << 16 | generation << 32 | u64::from(state) << 48
        });
    prop_oneof![
        8 => (word, total(), total()).prop_map(|(word, a, b)| Nonsense::Event(word, a, b)),
        2 => (0..(EVENTS + EVENT_LINES * 64) / 8, any::<u64>())
            .prop_map(|(word, value)| Nonsense::Scribble(word, value)),
        2 => reply.prop_map(Nonsense::Reply),
        1 => prop::collection::vec(any::<u8>(), 1..40).prop_map(Nonsense::Bytes),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn program_never_panics_whatever_the_appliance_says(
        says in prop::collection::vec(nonsense(), 1..60),
    ) {
        let (control, segment, _wake, session) = appliance_by_hand();
        let stream = stream_by_hand(&control, &session);
        stream.set_blocking(Blocking::Never).expect("mode");
        stream.watch(1);
        let mut lines = LineWriter::new(segment.clone(), EVENTS, EVENT_LINES).expect("lines");
        let mut bytes = vec![0; 10_000];
        let mut events = Vec::new();
        let mut others = Vec::new();
        for said in says {
            match said {
                Nonsense::Event(word, produced, reclaimed) => {
                    lines.write(&[word, produced, reclaimed, 1, 2, 3, 4]);
                    let _ = lines.refresh(lines.written());
                }
                Nonsense::Scribble(word, value) => {
                    segment.word(word * 8).expect("inside").store(value);
                }
                Nonsense::Reply(reply) => {
                    let _ = packet::send(&control, &reply.emit(), &[]);
                }
                Nonsense::Bytes(bytes) => {
                    let _ = packet::send(&control, &bytes, &[]);
                }
            }
            let _ = (&stream).read(&mut bytes);
            let _ = stream.peek(&mut bytes[..7]);
            let _ = (&stream).write(&bytes[..5000]);
            let _ = (&stream).write(&bytes[..5]);
            let _ = stream.readiness();
            if let Ok(request) = session.upgrade_start(tcp_pair().0, Role::Server) {
                others.push(request);
            }
            let _ = session.arm();
            session.poll_events(&mut events);
        }
        drop(stream);
    }
}
