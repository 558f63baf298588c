//! The worker's half of a session's memory, and a program that writes into it whatever and whenever it
//! likes: lines that mean something, lines that do not, and single words anywhere between two steps.
//!
//! 1. What is accepted keeps the rules: the slot exists, totals never go back, what was prepared fits
//!    behind what was reclaimed, what was consumed was received, nothing is prepared after the end, and
//!    a connection that is over asks for nothing.
//! 2. The first line that breaks one ends the session for good.
//! 3. In the buffers the worker changes nothing but what a line of that slot brought, in that slot's
//!    place for it.
//! 4. A program that only reads is told the last news of every slot, with the bytes that belong to it.

use std::cell::RefCell;

use pollux_attach::layout::Layout;
use pollux_attach::shared::{
    EventReader, ProgramSide, SlotNews, SlotState, Submission, SubmissionOp, Violation, WorkerSide,
};
use pollux_ring::{LineWriter, Segment};

use super::{
    BUFFER, EVENT_LINES, EVENTS_TAKEN, LINES_END, SLOTS, SUBMISSION_LINES, SUBMISSIONS, layout,
};
use crate::Input;

/// Words of the memory before the buffers that a program can scribble over.
const WORDS: u64 = LINES_END as u64 / 8;

thread_local! {
    /// The memory is made once; each run starts with it as it was.
    static MEMORY: RefCell<Option<(Segment, Vec<u8>)>> = const { RefCell::new(None) };
}

/// Drives one target run.
pub(crate) fn run(bytes: &[u8]) {
    let (segment, fresh) = MEMORY.with_borrow_mut(|memory| {
        let (segment, fresh) = memory.get_or_insert_with(|| {
            let segment = layout().create_segment("fuzz").expect("memory");
            let mut fresh = vec![0; layout().bytes()];
            segment.copy_out(0, &mut fresh).expect("inside");
            (segment, fresh)
        });
        (segment.clone(), fresh.clone())
    });
    segment.copy_in(0, &fresh).expect("inside");
    let mut input = Input::new(bytes);
    let mut world = World::new(segment, fresh);
    while !input.is_empty() {
        world.step(&mut input);
    }
    world.finish();
}

/// A slot as the rules see it.
#[derive(Clone, Copy, Default)]
struct Slot {
    is_open: bool,
    generation: u16,
    /// The program ended its direction, or everything.
    has_shut: bool,
    has_ended: bool,
    prepared: u64,
    consumed: u64,
    news: SlotNews,
}

struct World {
    segment: Segment,
    layout: Layout,
    side: WorkerSide,
    lines: LineWriter,
    events: EventReader,
    slots: [Slot; SLOTS as usize],
    /// What the buffers must hold.
    buffers: Vec<u8>,
    buffers_at: usize,
    fault: Option<Violation>,
    /// The program has written where only the worker writes, or has lied about what it took.
    has_scribbled: bool,
    has_scribbled_buffers: bool,
    /// The last news that the program was told, with its generation.
    told: [Option<(u16, SlotNews)>; SLOTS as usize],
}

impl World {
    fn new(segment: Segment, fresh: Vec<u8>) -> World {
        let layout = layout();
        let side = WorkerSide::new(segment.clone(), layout).expect("the worker's half");
        let lines = LineWriter::new(segment.clone(), SUBMISSIONS, SUBMISSION_LINES);
        let program = ProgramSide::open(&segment).expect("the program's half");
        let (buffers_at, _) = layout.sndbufs();
        World {
            side,
            lines: lines.expect("lines"),
            events: program.events,
            slots: [Slot::default(); SLOTS as usize],
            buffers: fresh[buffers_at..].to_vec(),
            buffers_at,
            fault: None,
            has_scribbled: false,
            has_scribbled_buffers: false,
            told: [None; SLOTS as usize],
            segment,
            layout,
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let op = input.byte();
        let slot = u16::from(op >> 4 & 3);
        match op & 0x0f {
            0..=2 => self.write_line(slot, input),
            3..=6 => self.poll(),
            7 | 8 => self.publish(slot, input),
            9 => {
                let _ = self.side.flush_events();
                assert!(!self.side.has_pending() || self.events_are_full());
            }
            10 => self.take_events(1 + usize::from(op >> 4)),
            11 => self.open(slot, input.u16() & 3),
            12 => {
                self.side.close_slot(slot);
                if let Some(slot) = self.slots.get_mut(usize::from(slot)) {
                    slot.is_open = false;
                }
            }
            13 => self.scribble(input),
            14 => self.scribble_buffer(input),
            _ => match op >> 4 & 1 {
                0 => self.side.arm(),
                _ => self.side.disarm(),
            },
        }
    }

    /// A line that is mostly next to what is legal.
    fn write_line(&mut self, slot: u16, input: &mut Input<'_>) {
        let (how, len) = (input.byte(), input.byte());
        let of = self
            .slots
            .get(usize::from(slot))
            .copied()
            .unwrap_or_default();
        let op = u64::from(how & 7);
        let generation = of.generation.wrapping_add(u16::from(how >> 6 == 3));
        let mut word =
            op | u64::from(len % 36) << 8 | u64::from(slot) << 16 | u64::from(generation) << 32;
        if how & 0x38 == 0x38 {
            word ^= 1 << (len & 63);
        }
        let (prepared, consumed) = (input.number(), input.number());
        // Half of the numbers are steps from where the slot stands.
        let near = |base: u64, number: u64| {
            if how & 8 == 0 {
                base.wrapping_add(number)
            } else {
                number
            }
        };
        let mut line = [
            word,
            near(of.prepared, prepared),
            near(of.consumed, consumed),
            0,
            0,
            0,
            0,
        ];
        for (index, word) in line[3..].iter_mut().enumerate() {
            *word = u64::from_ne_bytes([how.wrapping_add(index as u8); 8]);
        }
        if self.lines.free() == 0 {
            // The library would wait; this one writes over lines that nobody has read.
            self.lines
                .refresh(self.lines.written())
                .expect("our own count");
        }
        self.lines.write(&line);
    }

    fn poll(&mut self) {
        let has = self.side.has_submission();
        let polled = self.side.poll();
        assert_eq!(polled.is_some(), has);
        let Some(judged) = polled else { return };
        match judged {
            Err(violation) => {
                assert!(!violation.to_string().is_empty());
                assert_eq!(*self.fault.get_or_insert(violation), violation);
            }
            Ok(submission) => {
                assert_eq!(self.fault, None, "a session goes on after a violation");
                self.judge(&submission);
            }
        }
    }

    fn judge(&mut self, submission: &Submission) {
        let index = submission.slot;
        let slot = &mut self.slots[usize::from(index)];
        let (before, is_over) = (slot.prepared, !slot.is_open || slot.has_ended);
        assert_eq!(submission.generation, slot.generation);
        assert!(submission.prepared_total >= slot.prepared, "{submission:?}");
        assert!(submission.consumed_total >= slot.consumed, "{submission:?}");
        assert!(
            submission.consumed_total <= slot.news.produced,
            "{submission:?}"
        );
        let most = slot.news.reclaimed.saturating_add(BUFFER.into());
        assert!(submission.prepared_total <= most, "{submission:?}");
        if is_over || slot.has_shut {
            assert_eq!(submission.prepared_total, before, "{submission:?}");
        }
        if is_over {
            assert_eq!(submission.op, SubmissionOp::Kick);
            assert_eq!(submission.consumed_total, slot.consumed);
        }
        slot.prepared = submission.prepared_total;
        slot.consumed = submission.consumed_total;
        match submission.op {
            SubmissionOp::Kick | SubmissionOp::Urgent => {}
            SubmissionOp::ShutdownWrite => slot.has_shut = true,
            SubmissionOp::Close | SubmissionOp::Abort => slot.has_ended = true,
        }
        // Of what was prepared, the line may have brought the last bytes.
        let inline = (submission.prepared_total - before).min(32);
        for total in submission.prepared_total - inline..submission.prepared_total {
            let base = self.layout.sndbuf_offset(index).expect("a slot");
            let at = base + (total % u64::from(BUFFER)) as usize;
            let mut byte = [0];
            self.segment.copy_out(at, &mut byte).expect("inside");
            self.buffers[at - self.buffers_at] = byte[0];
        }
    }

    /// Bytes arrive in the RMBE, others leave the sndbuf.
    fn publish(&mut self, index: u16, input: &mut Input<'_>) {
        let (more, reclaimed, state) = (input.byte() % 48, input.byte(), input.byte());
        let Some(slot) = self.slots.get_mut(usize::from(index)) else {
            return self.side.publish(index, &SlotNews::default());
        };
        let base = self.layout.rmbe_offset(index).expect("a slot");
        for total in slot.news.produced..slot.news.produced + u64::from(more) {
            let at = base + (total % u64::from(BUFFER)) as usize;
            let byte = [total as u8 ^ 0x5a];
            self.segment.copy_in(at, &byte).expect("inside");
            self.buffers[at - self.buffers_at] = byte[0];
        }
        slot.news.produced += u64::from(more);
        let outstanding = slot.prepared - slot.news.reclaimed;
        slot.news.reclaimed += outstanding.min(u64::from(reclaimed) * 32);
        slot.news.state |= SlotState::from_bits(u16::from(state & 0x1f));
        let news = slot.news;
        self.side.publish(index, &news);
    }

    fn open(&mut self, index: u16, step: u16) {
        let generation = self
            .slots
            .get(usize::from(index))
            .map_or(0, |slot| slot.generation.wrapping_add(step + 1));
        let is_open = self.side.open_slot(index, generation);
        assert_eq!(is_open, index < SLOTS);
        if let Some(slot) = self.slots.get_mut(usize::from(index)) {
            *slot = Slot {
                is_open,
                generation,
                ..Slot::default()
            };
            self.told[usize::from(index)] = None;
        }
    }

    /// A word anywhere before the buffers, also those that only the worker writes.
    fn scribble(&mut self, input: &mut Input<'_>) {
        let at = match input.byte() {
            0..=0x3f => EVENTS_TAKEN as u64,
            0x40..=0x7f => SUBMISSIONS as u64 + u64::from(input.byte() % 64) * 8,
            _ => u64::from(input.u16()) % WORDS * 8,
        };
        let value = input.number();
        self.segment.word(at as usize).expect("inside").store(value);
        self.has_scribbled = true;
    }

    fn scribble_buffer(&mut self, input: &mut Input<'_>) {
        self.has_scribbled_buffers = true;
        let bytes = [input.byte(); 8];
        let at = usize::from(input.u16()) % (self.buffers.len() - 8);
        self.segment
            .copy_in(self.buffers_at + at, &bytes)
            .expect("inside");
        self.buffers[at..at + 8].copy_from_slice(&bytes);
    }

    fn events_are_full(&self) -> bool {
        // Only then may news be kept; a scribbled count of events taken is a violation.
        self.has_scribbled || self.events.has_event()
    }

    fn take_events(&mut self, count: usize) {
        for _ in 0..count {
            let Some(event) = self.events.take() else {
                return;
            };
            if self.has_scribbled {
                continue;
            }
            let index = usize::from(event.slot);
            let slot = &self.slots[index];
            if event.generation != slot.generation {
                continue;
            }
            if let Some((_, last)) = self.told[index] {
                assert!(event.news.produced >= last.produced);
                assert!(event.news.reclaimed >= last.reclaimed);
            }
            assert!(event.news.produced <= slot.news.produced);
            self.judge_inline(&event);
            self.told[index] = Some((event.generation, event.news));
        }
    }

    /// Bytes in a line are those that arrived last before it was written.
    fn judge_inline(&self, event: &pollux_attach::shared::Event) {
        let bytes = event.inline.as_slice();
        let from = event.news.produced - bytes.len() as u64;
        if self.has_scribbled_buffers {
            return;
        }
        for (total, byte) in (from..).zip(bytes) {
            assert_eq!(*byte, total as u8 ^ 0x5a, "byte {total} of {event:?}");
        }
    }

    fn finish(mut self) {
        for _ in 0..=SUBMISSION_LINES {
            if !self.side.has_submission() || self.fault.is_some() {
                break;
            }
            self.poll();
        }
        if !self.has_scribbled {
            for _ in 0..=EVENT_LINES {
                self.take_events(EVENT_LINES);
                let _ = self.side.flush_events();
                if !self.side.has_pending() && !self.events.has_event() {
                    break;
                }
            }
            assert!(
                !self.side.has_pending(),
                "news is kept although there is room"
            );
            for (slot, told) in self.slots.iter().zip(self.told) {
                let (_, news) = told.unwrap_or_default();
                // News of a slot that was published is told; what never changed need not be.
                let is_told = news == slot.news || told.is_none() && slot.news.produced == 0;
                assert!(is_told, "{news:?} was told last, {:?} is true", slot.news);
            }
        }
        let mut now = vec![0; self.buffers.len()];
        self.segment
            .copy_out(self.buffers_at, &mut now)
            .expect("inside");
        let changed = now
            .iter()
            .zip(&self.buffers)
            .position(|(now, must)| now != must);
        assert_eq!(
            changed, None,
            "a byte of the buffers that nobody may change"
        );
    }
}
