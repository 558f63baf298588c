//! The program's half of a session's memory.
//!
//! Two ends that share nothing, so that a thread may write while another one reads.

use pollux_ring::{
    LineReader, LineWriter, Lines, ReadLines, ReadWord, Segment, SleepFlag, SleepView, Word,
};
use thiserror::Error;

use super::entry::{Inline, RawEvent, RawSubmission};
use super::{SlotNews, Submission, WakeNeeded};
use crate::layout::{
    EVENTS_TAKEN, HeaderError, Layout, PROGRAM_SLEEPS, SUBMISSIONS_TAKEN, WORKER_SLEEPS,
};

/// The program's half: both ends and where the buffers are.
#[derive(Debug)]
pub struct ProgramSide {
    /// Program to worker.
    pub submitter: Submitter,
    /// Worker to program.
    pub events: EventReader,
    /// Where the buffers are.
    pub layout: Layout,
}

impl ProgramSide {
    /// The program's half of memory that the appliance has sent.
    ///
    /// # Errors
    ///
    /// [`HeaderError`] if it is not the memory of a session of this version.
    pub fn open(segment: &Segment) -> Result<ProgramSide, HeaderError> {
        let layout = Layout::read(segment)?;
        let (submissions_at, submission_lines) = layout.submission_lines();
        let (events_at, event_lines) = layout.event_lines();
        Ok(ProgramSide {
            submitter: Submitter {
                lines: LineWriter::new(segment.clone(), submissions_at, submission_lines)?,
                taken: segment.read_word(SUBMISSIONS_TAKEN)?,
                damaged: false,
                worker_sleeps: SleepView::new(segment.read_word(WORKER_SLEEPS)?),
            },
            events: EventReader {
                lines: LineReader::new(segment.clone(), events_at, event_lines)?,
                taken: segment.word(EVENTS_TAKEN)?,
                program_sleeps: SleepFlag::new(segment.word(PROGRAM_SLEEPS)?),
            },
            layout,
        })
    }
}

/// The worker has not yet taken enough submissions; nothing was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the submission ring is full; try again when the worker has taken something")]
pub struct SubmissionRingFull;

/// The end that submits.
#[derive(Debug)]
pub struct Submitter {
    lines: LineWriter<Lines>,
    taken: ReadWord,
    damaged: bool,
    worker_sleeps: SleepView<ReadWord>,
}

impl Submitter {
    /// Submits, with the last bytes prepared in the line itself unless they stand in the sndbuf.
    ///
    /// # Errors
    ///
    /// [`SubmissionRingFull`].
    #[inline]
    pub fn push(
        &mut self,
        submission: &Submission,
        inline: Inline,
    ) -> Result<(), SubmissionRingFull> {
        if self.lines.free() == 0 && !self.refresh() {
            return Err(SubmissionRingFull);
        }
        let raw = RawSubmission {
            op: submission.op,
            slot: submission.slot,
            generation: submission.generation,
            prepared: submission.prepared_total,
            consumed: submission.consumed_total,
            inline,
        };
        self.lines.write(&raw.emit());
        Ok(())
    }

    /// Hints that the worker will soon read the last submissions: for a message that is answered.
    #[inline]
    pub fn demote_last(&mut self) {
        self.lines.demote_last();
    }

    /// Lets [`Submitter::demote_last`] pass over what was pushed so far: for a stream.
    #[inline]
    pub fn skip_demotion(&mut self) {
        self.lines.skip_demotion();
    }

    /// Whether the worker must be woken to see what was pushed. Contains a full fence.
    #[inline]
    pub fn must_wake(&self) -> WakeNeeded {
        if self.worker_sleeps.must_wake() {
            WakeNeeded::Yes
        } else {
            WakeNeeded::No
        }
    }

    /// Whether a count of the worker was found that cannot be: the memory was written over, by a
    /// mistake of the program or of the appliance. The ring stays full then, for good or until the
    /// count is right again.
    pub fn is_damaged(&self) -> bool {
        self.damaged
    }

    #[cold]
    fn refresh(&mut self) -> bool {
        self.damaged = self.lines.refresh(self.taken.load_acquire()).is_err();
        !self.damaged && self.lines.free() > 0
    }
}

/// What a worker says about a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// The slot.
    pub slot: u16,
    /// Which of the slot's connections is meant.
    pub generation: u16,
    /// The news.
    pub news: SlotNews,
    /// The last bytes received, if they came in the line. They stand in the RMBE too.
    pub inline: Inline,
}

/// The end that takes events.
#[derive(Debug)]
pub struct EventReader {
    lines: LineReader<ReadLines>,
    taken: Word,
    program_sleeps: SleepFlag<Word>,
}

impl EventReader {
    /// Takes the next event.
    #[inline]
    pub fn take(&mut self) -> Option<Event> {
        let raw = RawEvent::parse(&self.lines.peek()?);
        self.lines.advance(1);
        self.taken.store_release(self.lines.read_count());
        let RawEvent {
            slot,
            generation,
            state,
            produced,
            reclaimed,
            inline,
        } = raw;
        Some(Event {
            slot,
            generation,
            news: SlotNews {
                produced,
                reclaimed,
                state,
            },
            inline,
        })
    }

    /// Whether there is an event. For the look between arming and sleeping.
    #[inline]
    pub fn has_event(&self) -> bool {
        self.lines.peek().is_some()
    }

    /// Announces that the program sleeps: the worker wakes it from now on. The program must look
    /// at [`EventReader::has_event`] after this and before sleeping.
    #[inline]
    pub fn arm(&self) {
        self.program_sleeps.arm();
    }

    /// Announces that the program polls again.
    #[inline]
    pub fn disarm(&self) {
        self.program_sleeps.disarm();
    }
}
