//! A poll group: one completion queue and the queue pairs that report to it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rdma_core_sys::{ibv_wc, zeroed};

use super::ffi::Cq;
use super::name::Name;
use super::post::{Verb, Work};
use super::qp::{Core, Outcome, VerbsQp};
use super::shared::{MrEntry, Shared};
use crate::table::View;
use crate::{
    AdoptError, AdoptRefusal, Armed, Completion, FlushError, GroupId, Payload, PollGroup,
    PostError, QpCaps, QpIndex, QpState, QpStats, RemoteSpan, Sge, Signal, Sleep, WrId,
};

/// Completions taken from the adapter at a time.
const BATCH: usize = 32;
/// Times that one reap asks the adapter, whatever it says: completions may be for nobody.
const POLLS_PER_REAP: usize = 8;

/// What is at an index.
#[derive(Debug)]
enum Place {
    /// Nobody yet, or nobody that is waited for.
    Empty,
    /// A queue pair that was released. Its completions are kept until it comes back.
    Away { life: u16, kept: Vec<ibv_wc> },
    /// A queue pair.
    Here(Box<Core>),
}

/// Completions that were taken from the adapter and not looked at yet.
#[derive(Debug)]
struct Batch {
    taken: Box<[ibv_wc]>,
    next: usize,
    end: usize,
    /// Older ones, of queue pairs that came back.
    kept: VecDeque<ibv_wc>,
}

impl Batch {
    fn is_empty(&self) -> bool {
        self.next == self.end && self.kept.is_empty()
    }

    /// The oldest.
    #[inline(always)]
    fn pop(&mut self) -> Option<ibv_wc> {
        if let Some(wc) = self.kept.pop_front() {
            return Some(wc);
        }
        let wc = *self.taken[..self.end].get(self.next)?;
        self.next += 1;
        Some(wc)
    }

    /// Asks the adapter for at most so many. Only when it is empty.
    #[inline(always)]
    fn refill(&mut self, cq: &Cq, most: usize) -> usize {
        let most = most.min(self.taken.len());
        // A queue that cannot be read is dead; its events say so.
        self.end = cq.poll(&mut self.taken[..most]).unwrap_or(0);
        self.next = 0;
        self.end
    }
}

/// A poll group of the verbs driver.
#[derive(Debug)]
pub struct VerbsGroup {
    id: GroupId,
    mrs: View<MrEntry>,
    places: Vec<Place>,
    /// Indices of queue pairs that fail: they have completions that do not come from the adapter.
    failing: Vec<u16>,
    batch: Batch,
    armed: Arc<AtomicBool>,
    cq: Arc<Cq>,
    shared: Arc<Shared>,
}

impl VerbsGroup {
    pub(super) fn new(
        shared: &Arc<Shared>,
        id: GroupId,
        cq: Arc<Cq>,
        armed: Arc<AtomicBool>,
    ) -> VerbsGroup {
        VerbsGroup {
            id,
            mrs: shared.mrs.view(),
            places: Vec::new(),
            failing: Vec::new(),
            batch: Batch {
                taken: vec![zeroed(); BATCH].into_boxed_slice(),
                next: 0,
                end: 0,
                kept: VecDeque::new(),
            },
            armed,
            cq,
            shared: Arc::clone(shared),
        }
    }

    #[inline(always)]
    fn core(&self, qp: QpIndex) -> Option<&Core> {
        match self.places.get(usize::from(qp.0))? {
            Place::Here(core) => Some(core),
            Place::Empty | Place::Away { .. } => None,
        }
    }

    #[inline(always)]
    fn core_mut(&mut self, qp: QpIndex) -> Option<&mut Core> {
        match self.places.get_mut(usize::from(qp.0))? {
            Place::Here(core) => Some(core),
            Place::Empty | Place::Away { .. } => None,
        }
    }

    /// Does something with a queue pair, and notices if that fails it.
    #[inline(always)]
    fn with<T>(
        &mut self,
        qp: QpIndex,
        act: impl FnOnce(&mut Core, &View<MrEntry>) -> T,
    ) -> Option<T> {
        let Some(Place::Here(core)) = self.places.get_mut(usize::from(qp.0)) else {
            return None;
        };
        let failed_before = core.is_failing();
        let result = act(core, &self.mrs);
        if core.is_failing() && !failed_before {
            self.failing.push(qp.0);
        }
        Some(result)
    }

    #[inline(always)]
    fn post(&mut self, qp: QpIndex, work: Work, payload: Payload<'_>) -> Result<(), PostError> {
        self.mrs.refresh();
        self.with(qp, |core, mrs| core.post(mrs, work, payload))
            .unwrap_or(Err(PostError::NoSuchQp(qp)))
    }

    /// Takes a completion of the adapter to its queue pair.
    #[inline]
    fn take(&mut self, wc: &ibv_wc) -> Outcome {
        let Some(name) = Name::from_bits(wc.wr_id) else {
            return Outcome::Nothing;
        };
        match self.places.get_mut(usize::from(name.place)) {
            Some(Place::Here(core)) if core.seat.life == name.life => {
                let taken = self.with(QpIndex(name.place), |core, _| core.take(name, wc));
                taken.unwrap_or(Outcome::Nothing)
            }
            Some(Place::Away { life, kept }) if *life == name.life => {
                // Room for everything that can be under way was made when it went.
                if kept.len() < kept.capacity() {
                    kept.push(*wc);
                }
                Outcome::Nothing
            }
            // For a queue pair that was destroyed.
            Some(Place::Here(_) | Place::Away { .. } | Place::Empty) | None => Outcome::Nothing,
        }
    }

    /// Completions of failing queue pairs that do not come from the adapter.
    #[cold]
    fn reap_failing(&mut self, into: &mut [Completion], mut filled: usize) -> usize {
        for at in 0..self.failing.len() {
            let qp = QpIndex(self.failing[at]);
            while filled < into.len() {
                let Some(done) = self.core_mut(qp).and_then(Core::next_flushed) else {
                    break;
                };
                into[filled] = done;
                filled += 1;
            }
        }
        filled
    }

    fn has_work(&self) -> bool {
        let flushed = |index: &u16| self.core(QpIndex(*index)).is_some_and(Core::has_flushed);
        !self.batch.is_empty() || self.failing.iter().any(flushed)
    }
}

impl PollGroup for VerbsGroup {
    type Qp = VerbsQp;

    fn id(&self) -> GroupId {
        self.id
    }

    fn adopt(&mut self, qp: VerbsQp) -> Result<QpIndex, AdoptError<VerbsQp>> {
        let seat = &qp.core.seat;
        let created_for = seat.group;
        if created_for != self.id || !Arc::ptr_eq(&seat.shared, &self.shared) {
            let reason = AdoptRefusal::WrongGroup {
                created_for,
                this: self.id,
            };
            return Err(AdoptError { qp, reason });
        }
        let (index, at, life) = (qp.core.index(), usize::from(seat.place), seat.life);
        while self.places.len() <= at {
            self.places.push(Place::Empty);
        }
        if qp.core.is_failing() {
            self.failing.push(index.0);
        }
        // Each queue pair fails once before it is released: no push to this list ever allocates.
        self.failing.reserve(self.places.len() - self.failing.len());
        let before = std::mem::replace(&mut self.places[at], Place::Here(qp.core));
        match before {
            Place::Away { life: of, kept } if of == life => self.batch.kept.extend(kept),
            Place::Away { .. } | Place::Empty | Place::Here(_) => {}
        }
        Ok(index)
    }

    fn release(&mut self, qp: QpIndex) -> Option<VerbsQp> {
        let core = self.core(qp)?;
        let life = core.seat.life;
        let most = core.caps.send_wr + core.caps.recv_wr + 1;
        let kept = Vec::with_capacity(most as usize);
        let place = self.places.get_mut(usize::from(qp.0))?;
        let Place::Here(core) = std::mem::replace(place, Place::Away { life, kept }) else {
            return None;
        };
        self.failing.retain(|index| *index != qp.0);
        Some(VerbsQp { core })
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
        let verb = Verb::Write(to);
        self.post(qp, Work { wr, verb, signal }, payload)
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
        let verb = Verb::WriteImm(to, imm);
        self.post(qp, Work { wr, verb, signal }, payload)
    }

    #[inline]
    fn post_send(
        &mut self,
        qp: QpIndex,
        wr: WrId,
        payload: Payload<'_>,
        signal: Signal,
    ) -> Result<(), PostError> {
        let verb = Verb::Send;
        self.post(qp, Work { wr, verb, signal }, payload)
    }

    #[inline]
    fn post_recv(&mut self, qp: QpIndex, wr: WrId, into: Sge) -> Result<(), PostError> {
        self.mrs.refresh();
        self.with(qp, |core, mrs| core.post_recv(mrs, wr, into))
            .unwrap_or(Err(PostError::NoSuchQp(qp)))
    }

    #[inline]
    fn flush(&mut self, qp: QpIndex) -> Result<(), FlushError> {
        self.with(qp, |core, _| core.flush())
            .ok_or(FlushError::NoSuchQp(qp))
    }

    #[inline]
    fn reap(&mut self, _now: u64, into: &mut [Completion]) -> usize {
        self.mrs.refresh();
        let mut filled = 0;
        let mut polls = 0;
        while filled < into.len() {
            let Some(wc) = self.batch.pop() else {
                polls += 1;
                if polls > POLLS_PER_REAP || self.batch.refill(&self.cq, into.len() - filled) == 0 {
                    break;
                }
                continue;
            };
            match self.take(&wc) {
                Outcome::Completion(done) => {
                    into[filled] = done;
                    filled += 1;
                }
                Outcome::Nothing => {}
            }
        }
        if !self.failing.is_empty() {
            filled = self.reap_failing(into, filled);
        }
        filled
    }

    fn arm(&mut self, sleep: Sleep) -> Armed {
        self.disarm();
        match sleep {
            Sleep::Never => return Armed::Pending,
            Sleep::May if self.has_work() => return Armed::Pending,
            Sleep::May => {}
        }
        self.armed.store(true, Ordering::SeqCst);
        // What came before the queue was asked to tell is not told: looked for after.
        let asked = self.cq.notify();
        if asked.is_err() || self.batch.refill(&self.cq, BATCH) > 0 {
            self.disarm();
            return Armed::Pending;
        }
        Armed::Idle
    }

    fn disarm(&mut self) {
        self.armed.store(false, Ordering::SeqCst);
    }

    fn stats(&self, qp: QpIndex) -> QpStats {
        self.core(qp)
            .map_or_else(QpStats::default, |core| core.stats)
    }
}

impl Drop for VerbsGroup {
    fn drop(&mut self) {
        // Its queue pairs first: the queue goes with the last of them.
        self.places.clear();
        self.shared.remove_group(self.id);
    }
}
