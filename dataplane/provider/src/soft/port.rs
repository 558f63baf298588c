//! The port segment of a queue pair: what its owner tells its peer.
//!
//! Written only by the owner (the kernel refuses every other writable mapping), mapped read-only by the peer.
//! Groups of words that change at different times lie 128 B apart, since processors fetch lines in pairs.
//!
//! ```text
//!    0  fixed       word 0 magic and version   1 lines of the ring   2 queue pair number
//!                   3 run: bit 63 sending, bits 32..35 rnr_retry, bits 0..24 first PSN   (at RTS)
//!  128  answers     word 0 lines consumed   1 verdict   2 "receiver not ready" answers
//!  256  sleep       word 0 may sleep   1 sleep: count << 2 | wants acknowledgements << 1 | asleep
//!  512  requests    the line ring
//! ```
//!
//! The answers are about the *peer's* ring: how many of its lines were executed, and, if the owner has
//! stopped for good, why. The verdict is stored after the last change of the count.

use pollux_ring::{
    AccessError, HeadViolation, LINE_BYTES, LineReader, LineSink, LineSource, LineWriter, Lines,
    Pages, ReadWord, Segment, SegmentError, Word,
};

use super::line_format::LineBytes;
use crate::{Sleep, WcStatus};

const MAGIC: u64 = 0x0001_7274_7070_6c78; // version 1 in the upper half
const RING_OFFSET: usize = 512;
const LINES_MIN: usize = 256;
const LINES_MAX: usize = 1024;

/// Largest port segment that is mapped for a peer, bytes; with room for rounding to large pages.
pub(crate) const PORT_BYTES_MAX: usize = 1 << 20;
const _: () = assert!(RING_OFFSET + LINES_MAX * LINE_BYTES <= PORT_BYTES_MAX / 2);

const fn fixed(word: usize) -> usize {
    word * 8
}
const fn answers(word: usize) -> usize {
    128 + word * 8
}
const fn sleep(word: usize) -> usize {
    256 + word * 8
}

/// Why the owner does not execute anything any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The request behind the last consumed line was refused; its requester reports this.
    Refused(WcStatus),
    /// The queue pair is in the error state or gone.
    Closed,
}

/// Statuses a target may give, by their code in the verdict word.
const REFUSALS: [WcStatus; 6] = [
    WcStatus::RemoteAccess,
    WcStatus::RemoteInvalidRequest,
    WcStatus::RemoteOperation,
    WcStatus::RnrRetryExceeded,
    WcStatus::LocalProtection,
    WcStatus::RetryExceeded,
];
const CLOSED: u64 = 1;
const FIRST_REFUSAL: u64 = 2;

impl Verdict {
    fn to_word(self) -> u64 {
        match self {
            Verdict::Closed => CLOSED,
            Verdict::Refused(status) => {
                let code = REFUSALS.iter().position(|known| *known == status);
                debug_assert!(code.is_some(), "{status:?} is no answer of a target");
                FIRST_REFUSAL + code.unwrap_or(1) as u64
            }
        }
    }

    /// Any unknown word is a contradiction, which a requester reports as such.
    fn from_word(word: u64) -> Option<Verdict> {
        let refusal = || {
            REFUSALS
                .get(usize::try_from(word - FIRST_REFUSAL).ok()?)
                .copied()
        };
        match word {
            0 => None,
            CLOSED => Some(Verdict::Closed),
            _ => Some(Verdict::Refused(refusal().unwrap_or(WcStatus::General))),
        }
    }
}

/// What a requester tells its target when it starts to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) psn: u32,
    pub(crate) rnr_retry: u8,
}

impl Run {
    const SENDING: u64 = 1 << 63;

    fn to_word(self) -> u64 {
        Self::SENDING | u64::from(self.rnr_retry & 7) << 32 | u64::from(self.psn & 0xff_ffff)
    }

    fn from_word(word: u64) -> Option<Run> {
        let run = Run {
            psn: word as u32 & 0xff_ffff,
            rnr_retry: (word >> 32) as u8 & 7,
        };
        (word & Self::SENDING != 0).then_some(run)
    }
}

/// Lines whose payload has been copied in as a whole when they are announced: a few wide stores instead of a
/// word at a time. The announcement is the release store of the sequence number, as in every line ring.
#[derive(Debug)]
struct Announcer(Lines);

impl LineSource for Announcer {
    #[inline(always)]
    fn lines(&self) -> usize {
        self.0.lines()
    }

    #[inline(always)]
    fn load(&self, position: u64, word: usize) -> u64 {
        self.0.load(position, word)
    }
}

impl LineSink for Announcer {
    /// The payload is there already.
    #[inline(always)]
    fn store(&self, _position: u64, _word: usize, _value: u64) {}

    #[inline(always)]
    fn store_release(&self, position: u64, word: usize, value: u64) {
        self.0.store_release(position, word, value);
    }

    #[inline(always)]
    fn demote(&self, position: u64) {
        self.0.demote(position);
    }

    #[inline(always)]
    fn prefetch(&self, position: u64) {
        self.0.prefetch(position);
    }
}

/// The owner's half.
#[derive(Debug)]
pub(crate) struct Port {
    segment: Segment,
    lines: LineWriter<Announcer>,
    run: Word,
    consumed: Word,
    verdict: Word,
    rnr_naks: Word,
    may_sleep: Word,
    sleep: Word,
}

/// Why a port could not be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PortError {
    #[error(transparent)]
    Segment(#[from] SegmentError),
    #[error(transparent)]
    Access(#[from] AccessError),
}

impl Port {
    /// A port of a fresh queue pair; its ring has room for at least `lines` lines if that is possible.
    pub(crate) fn create(qpn: u32, lines: usize) -> Result<Port, PortError> {
        let lines = lines.next_power_of_two().clamp(LINES_MIN, LINES_MAX);
        let bytes = RING_OFFSET + lines * LINE_BYTES;
        let segment = Segment::create_owner_writes("pollux-port", bytes, Pages::Off)?;
        segment.word(fixed(0))?.store(MAGIC);
        segment.word(fixed(1))?.store(lines as u64);
        segment.word(fixed(2))?.store(u64::from(qpn));
        let port = Port {
            lines: LineWriter::over(Announcer(segment.lines(RING_OFFSET, lines)?)),
            run: segment.word(fixed(3))?,
            consumed: segment.word(answers(0))?,
            verdict: segment.word(answers(1))?,
            rnr_naks: segment.word(answers(2))?,
            may_sleep: segment.word(sleep(0))?,
            sleep: segment.word(sleep(1))?,
            segment,
        };
        // Until a group that never sleeps adopts it, peers have to assume the worst.
        port.publish_may_sleep(Sleep::May);
        Ok(port)
    }

    /// The memory, for the peer.
    pub(crate) fn segment(&self) -> &Segment {
        &self.segment
    }

    /// Lines that may be written now, as far as we know.
    #[inline(always)]
    pub(crate) fn free_lines(&self) -> usize {
        self.lines.free()
    }

    /// Lines written since the beginning.
    #[inline(always)]
    pub(crate) fn written_lines(&self) -> u64 {
        self.lines.written()
    }

    /// Takes note of how many lines the peer has consumed, unless that is impossible.
    #[inline]
    pub(crate) fn refresh_lines(&mut self, consumed: u64) -> Result<(), HeadViolation> {
        self.lines.refresh(consumed)
    }

    /// Writes a line; the peer can see it at once. There must be a free one.
    #[inline(always)]
    pub(crate) fn write_line(&mut self, line: &LineBytes) {
        let offset = line_offset(self.lines.written(), self.lines.capacity());
        let copied = self.segment.copy_in(offset, line);
        debug_assert!(copied.is_ok(), "{copied:?}");
        self.lines.write(&[0; 7]);
    }

    /// The end of a chain: hints that the peer will read, and we write on behind it.
    #[inline(always)]
    pub(crate) fn end_of_chain(&mut self) {
        self.lines.demote_last();
        self.lines.prefetch_next();
    }

    pub(crate) fn publish_run(&self, run: Run) {
        self.run.store_release(run.to_word());
    }

    #[inline(always)]
    pub(crate) fn publish_consumed(&self, lines: u64) {
        self.consumed.store_release(lines);
    }

    /// The first verdict stands. Returns whether this was it.
    pub(crate) fn publish_verdict(&self, verdict: Verdict) -> bool {
        let first = self.verdict.load() == 0;
        if first {
            self.verdict.store_release(verdict.to_word());
        }
        first
    }

    /// Says how many there were. The count is the caller's: what stands in the port is for the peer.
    pub(crate) fn publish_rnr_naks(&self, total: u64) {
        self.rnr_naks.store(total);
    }

    pub(crate) fn publish_may_sleep(&self, sleep: Sleep) {
        self.may_sleep.store_release(match sleep {
            Sleep::May => 1,
            Sleep::Never => 0,
        });
    }

    pub(crate) fn publish_asleep(&self, count: u64, wants: Wants) {
        let wants_acks = match wants {
            Wants::RequestsOnly => 0,
            Wants::Acks => 2,
        };
        self.sleep.store(count << 2 | wants_acks | 1);
    }

    pub(crate) fn publish_awake(&self, count: u64) {
        self.sleep.store(count << 2);
    }
}

/// What a sleeper is to be woken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wants {
    /// New lines of the peer's ring.
    RequestsOnly,
    /// Also consumption of its own lines.
    Acks,
}

/// Whether and how the peer sleeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PeerSleep(u64);

impl PeerSleep {
    pub(crate) fn asleep(self) -> bool {
        self.0 & 1 != 0
    }

    pub(crate) fn wants_acks(self) -> bool {
        self.0 & 2 != 0
    }

    /// Differs between two sleeps.
    pub(crate) fn count(self) -> u64 {
        self.0 >> 2
    }
}

/// The peer's half: reads only. Nothing in it is believed.
#[derive(Debug)]
pub(crate) struct PeerPort {
    run: ReadWord,
    consumed: ReadWord,
    verdict: ReadWord,
    rnr_naks: ReadWord,
    may_sleep: ReadWord,
    sleep: ReadWord,
}

/// Offset in a port of the line at `position` of its ring.
#[inline(always)]
pub(crate) fn line_offset(position: u64, lines: usize) -> usize {
    RING_OFFSET + (position as usize & (lines - 1)) * LINE_BYTES
}

/// Why a segment is no port.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotAPort {
    #[error("a port has magic {expected:#x}, this segment has {found:#x}")]
    Magic { found: u64, expected: u64 },
    #[error("the port says it has {found} lines; a power of two up to {LINES_MAX} is possible")]
    Lines { found: u64 },
    #[error("the port belongs to queue pair {found:#x}, not {expected:#x}")]
    Qpn { found: u64, expected: u32 },
    #[error(transparent)]
    Access(#[from] AccessError),
}

impl PeerPort {
    /// Opens the port of the peer's queue pair `qpn`, and the reader of its requests.
    pub(crate) fn open(segment: &Segment, qpn: u32) -> Result<(PeerPort, LineReader), NotAPort> {
        let found = segment.read_word(fixed(0))?.load();
        if found != MAGIC {
            return Err(NotAPort::Magic {
                found,
                expected: MAGIC,
            });
        }
        let found = segment.read_word(fixed(1))?.load();
        let lines = usize::try_from(found)
            .ok()
            .filter(|lines| lines.is_power_of_two() && *lines <= LINES_MAX)
            .ok_or(NotAPort::Lines { found })?;
        let found = segment.read_word(fixed(2))?.load();
        if found != u64::from(qpn) {
            return Err(NotAPort::Qpn {
                found,
                expected: qpn,
            });
        }
        let port = PeerPort {
            run: segment.read_word(fixed(3))?,
            consumed: segment.read_word(answers(0))?,
            verdict: segment.read_word(answers(1))?,
            rnr_naks: segment.read_word(answers(2))?,
            may_sleep: segment.read_word(sleep(0))?,
            sleep: segment.read_word(sleep(1))?,
        };
        Ok((port, LineReader::new(segment.clone(), RING_OFFSET, lines)?))
    }

    pub(crate) fn run(&self) -> Option<Run> {
        Run::from_word(self.run.load_acquire())
    }

    /// Lines of ours that the peer has consumed, unjudged.
    #[inline(always)]
    pub(crate) fn consumed(&self) -> u64 {
        self.consumed.load_acquire()
    }

    /// If there is one, a later [`PeerPort::consumed`] is final.
    #[inline(always)]
    pub(crate) fn verdict(&self) -> Option<Verdict> {
        Verdict::from_word(self.verdict.load_acquire())
    }

    pub(crate) fn rnr_naks(&self) -> u64 {
        self.rnr_naks.load()
    }

    #[inline(always)]
    pub(crate) fn may_sleep(&self) -> bool {
        self.may_sleep.load() != 0
    }

    pub(crate) fn sleep(&self) -> PeerSleep {
        PeerSleep(self.sleep.load())
    }
}

#[cfg(test)]
mod tests {
    use pollux_ring::{Pages, Segment};

    use super::*;

    #[test]
    fn peer_reads_what_the_owner_publishes() {
        let mut port = Port::create(0x123, 10).unwrap();
        let (peer, mut reader) = PeerPort::open(port.segment(), 0x123).unwrap();
        assert_eq!(
            (peer.run(), peer.verdict(), peer.may_sleep()),
            (None, None, true)
        );
        let run = Run {
            psn: 0xabcdef,
            rnr_retry: 7,
        };
        port.publish_run(run);
        port.publish_consumed(9);
        port.publish_may_sleep(Sleep::Never);
        port.publish_asleep(4, Wants::Acks);
        assert_eq!(
            (peer.run(), peer.consumed(), peer.may_sleep()),
            (Some(run), 9, false)
        );
        let sleep = peer.sleep();
        assert_eq!(
            (sleep.asleep(), sleep.wants_acks(), sleep.count()),
            (true, true, 4)
        );
        port.publish_awake(4);
        assert!(!peer.sleep().asleep());
        port.write_line(&[5; 56]);
        assert_eq!(reader.peek(), Some([0x0505_0505_0505_0505; 7]));
        reader.advance(1);
        assert_eq!(reader.peek(), None);
    }

    #[test]
    fn first_verdict_stands_and_every_refusal_comes_back() {
        for status in REFUSALS {
            let port = Port::create(1, 1).unwrap();
            let (peer, _) = PeerPort::open(port.segment(), 1).unwrap();
            assert!(port.publish_verdict(Verdict::Refused(status)));
            assert!(!port.publish_verdict(Verdict::Closed));
            assert_eq!(peer.verdict(), Some(Verdict::Refused(status)));
        }
        assert_eq!(
            Verdict::from_word(u64::MAX),
            Some(Verdict::Refused(WcStatus::General))
        );
    }

    #[test]
    fn scribbled_fixed_words_are_refused() {
        let segment = Segment::create("test", 65536, Pages::Off).unwrap();
        assert!(matches!(
            PeerPort::open(&segment, 1),
            Err(NotAPort::Magic { .. })
        ));
        segment.word(fixed(0)).unwrap().store(MAGIC);
        for lines in [0, 3, 2048, 1 << 63, u64::MAX] {
            segment.word(fixed(1)).unwrap().store(lines);
            assert!(matches!(
                PeerPort::open(&segment, 1),
                Err(NotAPort::Lines { .. })
            ));
        }
        segment.word(fixed(1)).unwrap().store(1024);
        let small = PeerPort::open(&segment, 0);
        assert!(
            matches!(small, Err(NotAPort::Access(_))),
            "the ring does not fit"
        );
        segment.word(fixed(1)).unwrap().store(256);
        assert!(matches!(
            PeerPort::open(&segment, 1),
            Err(NotAPort::Qpn { .. })
        ));
    }
}
