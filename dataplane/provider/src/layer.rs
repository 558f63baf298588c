//! Something between a worker and its driver: watches, delays, alters or counts what passes.
//!
//! A [`Layered`] group keeps the contract of [`PollGroup`] by passing every call to the group inside;
//! the [`Layer`] is asked first and does something else where it wants to. It is the one place in
//! which the whole contract is passed through by hand.

use crate::{
    AdoptError, Armed, Completion, FlushError, GroupId, Payload, PollGroup, PostError, QpCaps,
    QpIndex, QpState, QpStats, RemoteSpan, Sge, Signal, Sleep, WrId,
};

/// What a [`Layered`] group does with the calls it gets. Every method is the one of [`PollGroup`] with the
/// same name and by itself only passes the call to `group`.
#[allow(
    clippy::missing_errors_doc,
    reason = "the errors are those of the contract's method of the same name"
)]
pub trait Layer<G: PollGroup> {
    /// Before [`PollGroup::adopt`].
    fn adopt(&mut self, group: &mut G, qp: G::Qp) -> Result<QpIndex, AdoptError<G::Qp>> {
        group.adopt(qp)
    }

    /// Before [`PollGroup::release`].
    fn release(&mut self, group: &mut G, qp: QpIndex) -> Option<G::Qp> {
        group.release(qp)
    }

    /// Before [`PollGroup::post_write`].
    #[inline]
    fn post_write(
        &mut self,
        group: &mut G,
        qp: QpIndex,
        wr: WrId,
        payload: Payload<'_>,
        to: RemoteSpan,
        signal: Signal,
    ) -> Result<(), PostError> {
        group.post_write(qp, wr, payload, to, signal)
    }

    /// Before [`PollGroup::post_write_imm`].
    #[allow(
        clippy::too_many_arguments,
        reason = "those of the contract's method, and the group"
    )]
    #[inline]
    fn post_write_imm(
        &mut self,
        group: &mut G,
        qp: QpIndex,
        wr: WrId,
        payload: Payload<'_>,
        to: RemoteSpan,
        imm: u32,
        signal: Signal,
    ) -> Result<(), PostError> {
        group.post_write_imm(qp, wr, payload, to, imm, signal)
    }

    /// Before [`PollGroup::post_send`].
    #[inline]
    fn post_send(
        &mut self,
        group: &mut G,
        qp: QpIndex,
        wr: WrId,
        payload: Payload<'_>,
        signal: Signal,
    ) -> Result<(), PostError> {
        group.post_send(qp, wr, payload, signal)
    }

    /// Before [`PollGroup::post_recv`].
    #[inline]
    fn post_recv(
        &mut self,
        group: &mut G,
        qp: QpIndex,
        wr: WrId,
        into: Sge,
    ) -> Result<(), PostError> {
        group.post_recv(qp, wr, into)
    }

    /// Before [`PollGroup::flush`].
    #[inline]
    fn flush(&mut self, group: &mut G, qp: QpIndex) -> Result<(), FlushError> {
        group.flush(qp)
    }

    /// Before [`PollGroup::reap`].
    #[inline]
    fn reap(&mut self, group: &mut G, now: u64, into: &mut [Completion]) -> usize {
        group.reap(now, into)
    }

    /// Before [`PollGroup::arm`].
    fn arm(&mut self, group: &mut G, sleep: Sleep) -> Armed {
        group.arm(sleep)
    }

    /// Before [`PollGroup::disarm`].
    fn disarm(&mut self, group: &mut G) {
        group.disarm();
    }
}

/// A poll group with a layer over it.
#[derive(Debug)]
pub struct Layered<G, L> {
    group: G,
    layer: L,
}

impl<G: PollGroup, L: Layer<G>> Layered<G, L> {
    /// Puts `layer` over `group`.
    pub fn new(group: G, layer: L) -> Layered<G, L> {
        Layered { group, layer }
    }
}

impl<G: PollGroup, L: Layer<G>> PollGroup for Layered<G, L> {
    type Qp = G::Qp;

    fn id(&self) -> GroupId {
        self.group.id()
    }

    fn adopt(&mut self, qp: G::Qp) -> Result<QpIndex, AdoptError<G::Qp>> {
        self.layer.adopt(&mut self.group, qp)
    }

    fn release(&mut self, qp: QpIndex) -> Option<G::Qp> {
        self.layer.release(&mut self.group, qp)
    }

    fn caps(&self, qp: QpIndex) -> QpCaps {
        self.group.caps(qp)
    }

    fn state(&self, qp: QpIndex) -> QpState {
        self.group.state(qp)
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
        self.layer
            .post_write(&mut self.group, qp, wr, payload, to, signal)
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
        self.layer
            .post_write_imm(&mut self.group, qp, wr, payload, to, imm, signal)
    }

    #[inline]
    fn post_send(
        &mut self,
        qp: QpIndex,
        wr: WrId,
        payload: Payload<'_>,
        signal: Signal,
    ) -> Result<(), PostError> {
        self.layer
            .post_send(&mut self.group, qp, wr, payload, signal)
    }

    #[inline]
    fn post_recv(&mut self, qp: QpIndex, wr: WrId, into: Sge) -> Result<(), PostError> {
        self.layer.post_recv(&mut self.group, qp, wr, into)
    }

    #[inline]
    fn flush(&mut self, qp: QpIndex) -> Result<(), FlushError> {
        self.layer.flush(&mut self.group, qp)
    }

    #[inline]
    fn reap(&mut self, now: u64, into: &mut [Completion]) -> usize {
        self.layer.reap(&mut self.group, now, into)
    }

    fn arm(&mut self, sleep: Sleep) -> Armed {
        self.layer.arm(&mut self.group, sleep)
    }

    fn disarm(&mut self) {
        self.layer.disarm(&mut self.group);
    }

    fn stats(&self, qp: QpIndex) -> QpStats {
        self.group.stats(qp)
    }
}
