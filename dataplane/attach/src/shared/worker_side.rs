//! The worker's half of a session's memory: copy, then judge.

use pollux_ring::{
    AccessError, LineReader, LineWriter, Lines, ReadLines, ReadWord, Segment, SleepFlag, SleepView,
    Word,
};

use super::entry::{INLINE_BYTES, Inline, RawEvent, RawSubmission};
use super::{SlotNews, SlotState, Submission, SubmissionOp, Total, Violation, WakeNeeded};
use crate::layout::{EVENTS_TAKEN, Layout, PROGRAM_SLEEPS, SUBMISSIONS_TAKEN, WORKER_SLEEPS};

/// Events written between two looks at the sleep flag up to which the lines are hinted outwards:
/// a few are a message somebody waits for, many are a stream, where the hint costs.
const DEMOTE_LINES_MAX: u64 = 2;

/// The worker's half. Control makes it and moves it to the worker; no call allocates, locks, or
/// makes a system call.
#[derive(Debug)]
pub struct WorkerSide {
    segment: Segment,
    layout: Layout,
    submissions: LineReader<ReadLines>,
    submissions_taken: Word,
    events: LineWriter<Lines>,
    events_taken: ReadWord,
    program_sleeps: SleepView<ReadWord>,
    worker_sleeps: SleepFlag<Word>,
    slots: Box<[WorkerSlot]>,
    /// A bit for each slot whose news did not fit into the event ring.
    pending: Box<[u64]>,
    pending_count: usize,
    /// Event lines written when the sleep flag was last looked at.
    flushed: u64,
    fault: Option<Violation>,
}

/// A slot as the worker sees it.
#[derive(Debug, Clone, Copy)]
struct WorkerSlot {
    life: Life,
    generation: u16,
    /// Totals of the last submission.
    prepared: u64,
    consumed: u64,
    /// The last news, whether the program has been told or not.
    news: SlotNews,
    /// Bytes received that the program has been told of.
    told_produced: u64,
}

/// What a slot's connection may still do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    /// No connection; lines that name the slot are leftovers.
    Vacant,
    /// The program may prepare and consume.
    Open,
    /// The program has ended its direction and may only consume.
    WriteEnded,
    /// The program has closed; nothing of it is expected any more.
    Ended,
}

const VACANT: WorkerSlot = WorkerSlot {
    life: Life::Vacant,
    generation: 0,
    prepared: 0,
    consumed: 0,
    news: SlotNews {
        produced: 0,
        reclaimed: 0,
        state: SlotState::OPEN,
    },
    told_produced: 0,
};

impl WorkerSide {
    /// The worker's half of fresh memory made by [`Layout::create_segment`].
    ///
    /// The header is not read again: the layout is what control has decided.
    ///
    /// # Errors
    ///
    /// [`AccessError`] if the segment does not have this layout.
    pub fn new(segment: Segment, layout: Layout) -> Result<WorkerSide, AccessError> {
        let bytes = layout.bytes();
        if segment.len() < bytes {
            let memory = segment.len();
            return Err(AccessError::OutOfBounds {
                offset: 0,
                len: bytes,
                memory,
            });
        }
        let (submissions_at, submission_lines) = layout.submission_lines();
        let (events_at, event_lines) = layout.event_lines();
        let slots = usize::from(layout.shape().slots());
        Ok(WorkerSide {
            submissions: LineReader::new(segment.clone(), submissions_at, submission_lines)?,
            submissions_taken: segment.word(SUBMISSIONS_TAKEN)?,
            events: LineWriter::new(segment.clone(), events_at, event_lines)?,
            events_taken: segment.read_word(EVENTS_TAKEN)?,
            program_sleeps: SleepView::new(segment.read_word(PROGRAM_SLEEPS)?),
            worker_sleeps: SleepFlag::new(segment.word(WORKER_SLEEPS)?),
            slots: vec![VACANT; slots].into_boxed_slice(),
            pending: vec![0; slots.div_ceil(64)].into_boxed_slice(),
            pending_count: 0,
            flushed: 0,
            fault: None,
            segment,
            layout,
        })
    }

    /// The layout of the memory.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The memory, for its buffers.
    pub fn segment(&self) -> &Segment {
        &self.segment
    }

    /// Begins a connection in a slot, with all totals at 0. `generation` is what the program is
    /// told with the slot, and differs from that of the slot's last connection.
    ///
    /// Returns `false` for a slot that the session does not have.
    pub fn open_slot(&mut self, slot: u16, generation: u16) -> bool {
        self.forget_pending(slot);
        match self.slots.get_mut(usize::from(slot)) {
            Some(place) => {
                *place = WorkerSlot {
                    life: Life::Open,
                    generation,
                    ..VACANT
                };
                true
            }
            None => false,
        }
    }

    /// Ends a slot's connection after its last news was published. News that waits for room in the
    /// event ring is still delivered.
    pub fn close_slot(&mut self, slot: u16) {
        if let Some(place) = self.slots.get_mut(usize::from(slot)) {
            place.life = Life::Vacant;
        }
    }

    /// Takes the next submission.
    ///
    /// A submission of a connection that is over comes as a [`SubmissionOp::Kick`] with the totals
    /// known already, which changes nothing; so the caller's budget also bounds leftovers.
    ///
    /// # Errors
    ///
    /// A [`Violation`] ends the session: every later call gives it again.
    #[inline]
    pub fn poll(&mut self) -> Option<Result<Submission, Violation>> {
        if let Some(violation) = self.fault {
            return Some(Err(violation));
        }
        let words = self.submissions.peek()?;
        let judged = RawSubmission::parse(&words).and_then(|raw| self.judge(&raw));
        match judged {
            Ok(submission) => {
                self.submissions.advance(1);
                self.submissions_taken
                    .store_release(self.submissions.read_count());
                Some(Ok(submission))
            }
            Err(violation) => {
                self.fault = Some(violation);
                Some(Err(violation))
            }
        }
    }

    /// Whether [`WorkerSide::poll`] would give something. For the look between arming and sleeping.
    #[inline]
    pub fn has_submission(&self) -> bool {
        self.fault.is_some() || self.submissions.peek().is_some()
    }

    fn judge(&mut self, raw: &RawSubmission) -> Result<Submission, Violation> {
        let slots = self.layout.shape().slots();
        let slot = raw.slot;
        let Some(place) = self.slots.get_mut(usize::from(slot)) else {
            return Err(Violation::SlotOutOfRange { slot, slots });
        };
        let leftover = raw.generation != place.generation
            || match place.life {
                Life::Vacant | Life::Ended => true,
                Life::Open | Life::WriteEnded => false,
            };
        if leftover {
            return Ok(place.submission(SubmissionOp::Kick, slot));
        }
        place.check_totals(raw, self.layout.shape().sndbuf_bytes())?;
        let fresh = raw.prepared - place.prepared;
        let inline = raw.inline;
        if inline.len() as u64 > fresh {
            return Err(Violation::BadEntry {
                word: raw.emit()[0],
            });
        }
        place.prepared = raw.prepared;
        place.consumed = raw.consumed;
        place.life = match raw.op {
            SubmissionOp::Kick | SubmissionOp::Urgent => place.life,
            SubmissionOp::ShutdownWrite => Life::WriteEnded,
            SubmissionOp::Close | SubmissionOp::Abort => Life::Ended,
        };
        let submission = place.submission(raw.op, slot);
        if inline.len() > 0 {
            self.store_inline(slot, raw.prepared - inline.len() as u64, &inline);
        }
        Ok(submission)
    }

    /// Puts bytes that came in a line where the adapter finds them.
    #[inline]
    fn store_inline(&self, slot: u16, from: u64, inline: &Inline) {
        let size = self.layout.shape().sndbuf_bytes() as usize;
        let Some(base) = self.layout.sndbuf_offset(slot) else {
            return;
        };
        let start = from as usize & (size - 1);
        let bytes = inline.as_slice();
        let (first, second) = bytes.split_at(bytes.len().min(size - start));
        let stored = self
            .segment
            .copy_in(base + start, first)
            .and_then(|()| self.segment.copy_in(base, second));
        debug_assert_eq!(stored, Ok(()), "the layout lies inside the segment");
    }

    /// Tells the program about a slot. Without room in the event ring the news is kept, merged with
    /// later news of the slot, and written by a later call or [`WorkerSide::flush_events`].
    #[inline]
    pub fn publish(&mut self, slot: u16, news: &SlotNews) {
        let Some(place) = self.slots.get_mut(usize::from(slot)) else {
            return;
        };
        place.news = *news;
        if self.pending_count == 0 && self.has_event_room() {
            self.write_event(slot);
        } else {
            self.keep_pending(slot);
        }
    }

    /// Writes what was kept as far as there is room, and tells whether the program must be woken.
    /// To be called after the last [`WorkerSide::publish`] of a pass, and in later passes while
    /// [`WorkerSide::has_pending`]. Contains a full fence.
    #[inline]
    pub fn flush_events(&mut self) -> WakeNeeded {
        if self.pending_count > 0 {
            self.write_pending();
        }
        let written = self.events.written();
        if written - self.flushed <= DEMOTE_LINES_MAX {
            self.events.demote_last();
        } else {
            self.events.skip_demotion();
        }
        self.flushed = written;
        if self.program_sleeps.must_wake() {
            WakeNeeded::Yes
        } else {
            WakeNeeded::No
        }
    }

    /// Whether news waits for room in the event ring.
    #[inline]
    pub fn has_pending(&self) -> bool {
        self.pending_count > 0
    }

    /// Announces that the worker sleeps: programs wake it from now on. The worker must look at
    /// [`WorkerSide::has_submission`] of each session after this and before sleeping.
    #[inline]
    pub fn arm(&self) {
        self.worker_sleeps.arm();
    }

    /// Announces that the worker polls again.
    #[inline]
    pub fn disarm(&self) {
        self.worker_sleeps.disarm();
    }

    #[inline]
    fn has_event_room(&mut self) -> bool {
        self.events.free() > 0 || self.refresh_event_room()
    }

    #[cold]
    fn refresh_event_room(&mut self) -> bool {
        match self.events.refresh(self.events_taken.load_acquire()) {
            Ok(()) => self.events.free() > 0,
            Err(violation) => {
                self.fault.get_or_insert(Violation::EventHead(violation));
                false
            }
        }
    }

    #[inline]
    fn write_event(&mut self, slot: u16) {
        let Some(place) = self.slots.get(usize::from(slot)) else {
            return;
        };
        let SlotNews {
            produced,
            reclaimed,
            state,
        } = place.news;
        let generation = place.generation;
        let inline = self.load_inline(slot, place.told_produced, produced);
        let event = RawEvent {
            slot,
            generation,
            state,
            produced,
            reclaimed,
            inline,
        };
        self.events.write(&event.emit());
        if let Some(place) = self.slots.get_mut(usize::from(slot)) {
            place.told_produced = produced;
        }
    }

    /// The bytes from `from` to `to` of a slot's stream if they fit into a line.
    #[inline]
    fn load_inline(&self, slot: u16, from: u64, to: u64) -> Inline {
        let len = to.saturating_sub(from);
        if len == 0 || len > INLINE_BYTES as u64 {
            return Inline::NONE;
        }
        let len = len as usize;
        let size = self.layout.shape().rmbe_bytes() as usize;
        let Some(base) = self.layout.rmbe_offset(slot) else {
            return Inline::NONE;
        };
        let start = from as usize & (size - 1);
        let first = len.min(size - start);
        let mut bytes = [0; INLINE_BYTES];
        let (head, rest) = bytes.split_at_mut(first);
        let loaded = self
            .segment
            .copy_out(base + start, head)
            .and_then(|()| self.segment.copy_out(base, &mut rest[..len - first]));
        debug_assert_eq!(loaded, Ok(()), "the layout lies inside the segment");
        Inline::from_slice(&bytes[..len]).unwrap_or(Inline::NONE)
    }

    #[cold]
    fn keep_pending(&mut self, slot: u16) {
        let (word, bit) = (usize::from(slot) / 64, 1 << (slot % 64));
        if let Some(word) = self.pending.get_mut(word)
            && *word & bit == 0
        {
            *word |= bit;
            self.pending_count += 1;
        }
    }

    fn forget_pending(&mut self, slot: u16) {
        let (word, bit) = (usize::from(slot) / 64, 1 << (slot % 64));
        if let Some(word) = self.pending.get_mut(word)
            && *word & bit != 0
        {
            *word &= !bit;
            self.pending_count -= 1;
        }
    }

    #[cold]
    fn write_pending(&mut self) {
        for index in 0..self.pending.len() {
            while let Some(bits) = self.pending.get(index).copied()
                && bits != 0
            {
                if !self.has_event_room() {
                    return;
                }
                let slot = (index * 64) as u16 + bits.trailing_zeros() as u16;
                self.forget_pending(slot);
                self.write_event(slot);
            }
        }
    }
}

impl WorkerSlot {
    #[inline]
    fn submission(&self, op: SubmissionOp, slot: u16) -> Submission {
        Submission {
            op,
            slot,
            generation: self.generation,
            prepared_total: self.prepared,
            consumed_total: self.consumed,
        }
    }

    #[inline]
    fn check_totals(&self, raw: &RawSubmission, sndbuf_bytes: u32) -> Result<(), Violation> {
        let slot = raw.slot;
        let prepared_max = self.news.reclaimed.saturating_add(u64::from(sndbuf_bytes));
        let totals = [
            (Total::Prepared, self.prepared, raw.prepared, prepared_max),
            (
                Total::Consumed,
                self.consumed,
                raw.consumed,
                self.news.produced,
            ),
        ];
        for (total, was, is, most) in totals {
            if is < was {
                return Err(Violation::TotalWentBack {
                    slot,
                    total,
                    was,
                    is,
                });
            }
            if is > most {
                return Err(Violation::TotalBeyondRing {
                    slot,
                    total,
                    is,
                    most,
                });
            }
        }
        if self.life == Life::WriteEnded && raw.prepared != self.prepared {
            return Err(Violation::PreparedAfterEnd { slot });
        }
        Ok(())
    }
}
