//! A poll group: the queue pairs of one worker, and the pass over them.

#[cfg(test)]
mod hostile;
#[cfg(feature = "testing")]
mod testing;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pollux_ring::LineReader;
use pollux_ring::hint::fence_before_sleep_check;

use super::barrier::{self, Fence};
use super::line_format::Verb;
use super::port::Wants;
use super::qp::{Core, SoftQp, Told};
use super::qp_send::{PeerRing, Work};
use super::qp_target::Arrivals;
use super::shared::{MrEntry, Shared};
use crate::table::View;
use crate::{
    AdoptError, AdoptRefusal, Armed, Completion, FlushError, GroupId, Payload, PollGroup,
    PostError, QpCaps, QpIndex, QpState, QpStats, RemoteSpan, Sge, Signal, Sleep, WcStatus, WrId,
};

/// Queue pairs of one group: as many as there are indices.
const GROUP_QPS_MAX: usize = u16::MAX as usize;

/// Where completions go.
pub(super) struct Sink<'a> {
    into: &'a mut [Completion],
    filled: usize,
}

impl Sink<'_> {
    #[inline(always)]
    pub(super) fn is_full(&self) -> bool {
        self.filled == self.into.len()
    }

    /// Whoever pushes has checked that there is room.
    #[inline(always)]
    pub(super) fn push(&mut self, completion: Completion) {
        debug_assert!(!self.is_full());
        if let Some(place) = self.into.get_mut(self.filled) {
            *place = completion;
            self.filled += 1;
        }
    }
}

/// Empty passes after which a queue pair counts as idle: some 100 us of polling.
const WARM_PASSES: u16 = 1 << 14;
/// Lines behind the next one that are looked at while a message may come any moment. A WRITE of up to 96 B
/// and the SEND that announces it are three lines; if all of them are in our cache when they are written, they
/// come back together, where one after the other each would take a transfer of its own.
const LINES_AHEAD: usize = 2;

/// What a pass looks at for each queue pair; everything else is touched only if there is something to do.
///
/// Aligned so that it never shares a pair of cache lines with what another thread's group writes.
#[derive(Debug)]
#[repr(align(128))]
struct Poll {
    /// The peer's ring, once connected.
    reader: Option<LineReader>,
    /// The queue pair has something to do that no line announces.
    attention: bool,
    /// [`WARM_PASSES`] less the passes since a request came, down to 0.
    warm: u16,
}

impl Poll {
    const EMPTY: Poll = Poll {
        reader: None,
        attention: false,
        warm: 0,
    };

    /// Whether the queue pair has something to do.
    #[inline(always)]
    fn is_due(&mut self) -> bool {
        let Some(reader) = &self.reader else {
            return self.attention;
        };
        if reader.peek().is_some() {
            return true;
        }
        if self.warm > 0 {
            self.warm -= 1;
            for ahead in 1..=LINES_AHEAD {
                reader.peek_at(ahead);
            }
        }
        self.attention
    }

    #[inline(always)]
    fn has_line(&self) -> bool {
        self.reader
            .as_ref()
            .is_some_and(|reader| reader.peek().is_some())
    }

    /// How requests have been coming.
    #[inline(always)]
    fn arrivals(&self) -> Arrivals {
        if self.warm == WARM_PASSES {
            Arrivals::Streaming
        } else {
            Arrivals::Single
        }
    }
}

/// A poll group of a soft device.
#[derive(Debug)]
pub struct SoftGroup {
    shared: Arc<Shared>,
    id: GroupId,
    mrs: View<MrEntry>,
    epoch_seen: u64,
    /// By index; side by side, so that a pass over quiet queue pairs stays in a few lines.
    polls: Vec<Poll>,
    cores: Vec<Option<Box<Core>>>,
    /// Where the next pass starts.
    start: usize,
    /// What peers were told.
    sleep: Sleep,
    fence: Fence,
    armed: Arc<AtomicBool>,
    sleep_count: u64,
}

impl SoftGroup {
    pub(super) fn new(shared: &Arc<Shared>, id: GroupId, armed: Arc<AtomicBool>) -> SoftGroup {
        let fence = shared.fence;
        SoftGroup {
            id,
            // Filled by the first call: a group that nobody uses yet holds nothing up.
            epoch_seen: u64::MAX,
            mrs: shared.mrs.view(),
            shared: Arc::clone(shared),
            polls: Vec::new(),
            cores: Vec::new(),
            start: 0,
            sleep: match fence {
                Fence::IfPeerMaySleep => Sleep::Never,
                Fence::Always => Sleep::May,
            },
            fence,
            armed,
            sleep_count: 0,
        }
    }

    /// Takes the slow-path changes in, if there are any.
    #[inline(always)]
    fn catch_up(&mut self) {
        if self.shared.epoch() != self.epoch_seen {
            self.catch_up_now();
        }
    }

    #[cold]
    fn catch_up_now(&mut self) {
        // Read before looking: what comes later makes for another round.
        self.epoch_seen = self.shared.epoch();
        self.mrs.refresh();
        for (poll, core) in self.polls.iter_mut().zip(&mut self.cores) {
            if let Some(core) = core {
                core.catch_up();
                take_reader(poll, core);
                poll.attention = core.needs_attention();
            }
        }
    }

    /// Moves a queue pair into the error state, as an adapter does whose port fails: its oldest request that
    /// was not executed reports `status`, or a receive is flushed if there is none. How the error
    /// paths of callers are tried; unknown indices are ignored.
    pub fn fail(&mut self, qp: QpIndex, status: WcStatus) {
        let at = usize::from(qp.0);
        if let (Some(poll), Some(Some(core))) = (self.polls.get_mut(at), self.cores.get_mut(at)) {
            core.fail(Some(status), Told::No);
            poll.attention = core.needs_attention();
        }
    }

    #[inline(always)]
    fn core(&self, qp: QpIndex) -> Option<&Core> {
        self.cores.get(usize::from(qp.0))?.as_deref()
    }

    /// The queue pair and the registrations, up to date.
    #[inline(always)]
    fn for_post(&mut self, qp: QpIndex) -> Result<(&mut Core, &View<MrEntry>), PostError> {
        self.catch_up();
        let core = self
            .cores
            .get_mut(usize::from(qp.0))
            .and_then(Option::as_deref_mut);
        Ok((core.ok_or(PostError::NoSuchQp(qp))?, &self.mrs))
    }

    #[inline]
    fn turn(&mut self, at: usize, now: u64, into: &mut Sink<'_>) {
        let (Some(poll), Some(Some(core))) = (self.polls.get_mut(at), self.cores.get_mut(at))
        else {
            return;
        };
        let consumed = core.consumed;
        let arrivals = poll.arrivals();
        let peer_ring = match &mut poll.reader {
            Some(reader) => core.turn_target(reader, &self.mrs, now, arrivals, into),
            None => PeerRing::Quiet,
        };
        if core.consumed != consumed {
            // Until a pass finds nothing.
            poll.warm = WARM_PASSES;
        }
        core.turn_send(peer_ring, into);
        poll.attention = core.needs_attention();
    }

    fn publish_sleep(&mut self, sleep: Sleep) {
        self.sleep = sleep;
        self.cores
            .iter()
            .flatten()
            .for_each(|core| core.port.publish_may_sleep(sleep));
    }

    /// Whether a pass would find something, seen after the announcement of sleep.
    fn finds_something(&self) -> bool {
        let of = |(poll, core): (&Poll, &Option<Box<Core>>)| {
            let Some(core) = core else { return false };
            poll.has_line() && core.open || core.would_move()
        };
        self.shared.epoch() != self.epoch_seen || self.polls.iter().zip(&self.cores).any(of)
    }
}

/// Once a queue pair is connected its group reads the peer's ring.
fn take_reader(poll: &mut Poll, core: &mut Core) {
    if let Some(reader) = core.link.as_mut().and_then(|link| link.reader.take()) {
        poll.reader = Some(reader);
    }
}

impl PollGroup for SoftGroup {
    type Qp = SoftQp;

    fn id(&self) -> GroupId {
        self.id
    }

    fn adopt(&mut self, qp: SoftQp) -> Result<QpIndex, AdoptError<SoftQp>> {
        let created_for = qp.core.group;
        if created_for != self.id {
            let reason = AdoptRefusal::WrongGroup {
                created_for,
                this: self.id,
            };
            return Err(AdoptError { qp, reason });
        }
        let free = self
            .cores
            .iter()
            .position(Option::is_none)
            .unwrap_or(self.cores.len());
        if free == GROUP_QPS_MAX {
            return Err(AdoptError {
                qp,
                reason: AdoptRefusal::Full {
                    limit: GROUP_QPS_MAX,
                },
            });
        }
        if free == self.cores.len() {
            self.cores.push(None);
            self.polls.push(Poll::EMPTY);
        }
        let mut core = qp.core;
        let index = QpIndex(free as u16);
        core.index = index;
        core.port.publish_may_sleep(self.sleep);
        core.catch_up();
        take_reader(&mut self.polls[free], &mut core);
        self.polls[free].attention = core.needs_attention();
        self.cores[free] = Some(core);
        Ok(index)
    }

    fn release(&mut self, qp: QpIndex) -> Option<SoftQp> {
        let at = usize::from(qp.0);
        let mut core = self.cores.get_mut(at)?.take()?;
        let poll = std::mem::replace(&mut self.polls[at], Poll::EMPTY);
        if let Some(link) = &mut core.link {
            link.reader = poll.reader;
            link.exports.rest();
        }
        core.port.publish_may_sleep(Sleep::May);
        core.port.publish_awake(self.sleep_count);
        Some(SoftQp { core })
    }

    fn caps(&self, qp: QpIndex) -> QpCaps {
        self.core(qp).map_or(QpCaps::NONE, |core| core.caps)
    }

    fn state(&self, qp: QpIndex) -> QpState {
        self.core(qp).map_or(QpState::Reset, Core::visible_state)
    }

    #[inline]
    fn post_write(
        &mut self,
        qp: QpIndex,
        wr: WrId,
        payload: Payload<'_>,
        to: RemoteSpan,
        signal: Signal,
    ) -> Result<(), PostError> {
        let (core, mrs) = self.for_post(qp)?;
        let verb = Verb::Write {
            addr: to.addr,
            rkey: to.rkey.0,
        };
        core.post(mrs, Work { wr, verb, signal }, payload)
    }

    #[inline]
    fn post_write_imm(
        &mut self,
        qp: QpIndex,
        wr: WrId,
        payload: Payload<'_>,
        to: RemoteSpan,
        imm: u32,
        signal: Signal,
    ) -> Result<(), PostError> {
        let (core, mrs) = self.for_post(qp)?;
        let verb = Verb::WriteImm {
            addr: to.addr,
            rkey: to.rkey.0,
            imm,
        };
        core.post(mrs, Work { wr, verb, signal }, payload)
    }

    #[inline]
    fn post_send(
        &mut self,
        qp: QpIndex,
        wr: WrId,
        payload: Payload<'_>,
        signal: Signal,
    ) -> Result<(), PostError> {
        let (core, mrs) = self.for_post(qp)?;
        let verb = Verb::Send;
        core.post(mrs, Work { wr, verb, signal }, payload)
    }

    #[inline]
    fn post_recv(&mut self, qp: QpIndex, wr: WrId, into: Sge) -> Result<(), PostError> {
        let (core, mrs) = self.for_post(qp)?;
        core.post_recv(mrs, wr, into)
    }

    #[inline]
    fn flush(&mut self, qp: QpIndex) -> Result<(), FlushError> {
        let at = usize::from(qp.0);
        let (Some(poll), Some(Some(core))) = (self.polls.get_mut(at), self.cores.get_mut(at))
        else {
            return Err(FlushError::NoSuchQp(qp));
        };
        core.flush();
        poll.attention = core.needs_attention();
        Ok(())
    }

    #[inline]
    fn reap(&mut self, now: u64, into: &mut [Completion]) -> usize {
        self.catch_up();
        let mut into = Sink { into, filled: 0 };
        let qps = self.polls.len();
        let mut at = self.start;
        for _ in 0..qps {
            if at >= qps {
                at = 0;
            }
            if self.polls[at].is_due() {
                self.turn(at, now, &mut into);
                if into.is_full() {
                    // The next pass begins with those that had no turn.
                    self.start = at + 1;
                    break;
                }
            }
            at += 1;
        }
        into.filled
    }

    fn arm(&mut self, sleep: Sleep) -> Armed {
        self.disarm();
        match sleep {
            Sleep::Never => {
                if self.sleep == Sleep::May && self.fence == Fence::IfPeerMaySleep {
                    self.publish_sleep(Sleep::Never);
                }
                return Armed::Pending;
            }
            Sleep::May if self.sleep == Sleep::Never => {
                self.publish_sleep(Sleep::May);
                if barrier::everywhere().is_err() {
                    // Not to be had after all: peers keep the word for good, and it takes effect
                    // long before the caller comes here again.
                    self.fence = Fence::Always;
                    return Armed::Pending;
                }
            }
            Sleep::May => {}
        }
        self.sleep_count += 1;
        self.armed.store(true, Ordering::SeqCst);
        for core in self.cores.iter().flatten() {
            core.port.publish_asleep(self.sleep_count, core.wants());
        }
        fence_before_sleep_check();
        if self.finds_something() {
            self.disarm();
            return Armed::Pending;
        }
        Armed::Idle
    }

    fn disarm(&mut self) {
        if self.armed.swap(false, Ordering::SeqCst) {
            let count = self.sleep_count;
            self.cores
                .iter()
                .flatten()
                .for_each(|core| core.port.publish_awake(count));
        }
    }

    fn stats(&self, qp: QpIndex) -> QpStats {
        self.core(qp).map_or_else(QpStats::default, Core::stats)
    }
}

impl Drop for SoftGroup {
    fn drop(&mut self) {
        self.shared.remove_group(self.id);
    }
}

impl Core {
    /// What a sleeper has to be woken for.
    fn wants(&self) -> Wants {
        let unsent = self.send.pushed < self.send.flushed;
        if unsent || self.send.signalled_flushed > 0 {
            Wants::Acks
        } else {
            Wants::RequestsOnly
        }
    }

    /// Whether a turn would do something although no line has come.
    fn would_move(&self) -> bool {
        if self.failure.is_some() || self.peer_closed || self.rnr.is_some() {
            return self.needs_attention();
        }
        let acked = self.send.acked_lines;
        let executed = self
            .send
            .records
            .get(self.send.examined)
            .is_some_and(|r| r.line_end <= acked);
        let answered = self
            .link
            .as_ref()
            .is_some_and(|link| link.port.verdict().is_some() || link.port.consumed() != acked);
        match self.wants() {
            Wants::Acks => executed || answered,
            Wants::RequestsOnly => false,
        }
    }

    fn stats(&self) -> QpStats {
        let rnr_naks_received = self.link.as_ref().map_or(0, |link| link.port.rnr_naks());
        QpStats {
            rnr_naks_received,
            ..self.stats
        }
    }
}
