//! Links and link groups: queue pairs made, connected, moved into a worker and back; LLC.

use super::memory::{ConnBuffers, LinkMemory};
use super::port::News;
use super::state::{ConnKey, GroupKey, KnownTo, LinkPhase, LinkState, Place};
use super::{Event, HandshakeId, Plane, Stream};
use crate::probe::{ProbeError, Shape, Wish};
use crate::view::{Found, InlineView};
use pollux_proto::clc::{Agreed, LocalEndpoint};
use pollux_proto::credit::{Credits, RECEIVES_MIN};
use pollux_proto::group::{Group, GroupId, PeerKey};
use pollux_proto::link::{LinkEnd, RToken, Role};
use pollux_proto::llc::{Engine, EngineParams, LinkFailure, Output, RkeyFailure, RkeyTag};
use pollux_proto::time::Instant;
use pollux_provider::{Device, DeviceEvent, Qp, QpCaps, QpKind, RtrAttr, RtsAttr, WcStatus};
use pollux_wire::clc::{Attachment, Diagnosis};
use pollux_wire::field::{AlertToken, BufferSizeCode, Psn, Qpn, Rkey, RmbeIndex};
use pollux_wire::llc::{DeleteReason, Ending};
use pollux_worker::{
    App, Command, ConnId, ConnOutcome, FlowControl, Link, LinkId, PeerDone, Report,
};

/// "Receiver not ready" delay asked of the peer: 0.06 ms, as Linux sets it.
const MIN_RNR_TIMER: u8 = 5;
/// Retries after "receiver not ready": for ever, as against a Linux peer nothing else is right.
const RNR_RETRY: u8 = 7;
/// Receives of a link of a Linux peer, and the least that any peer is known to have: where no credits
/// were agreed on no more work is under way at a time.
const LINUX_RECEIVES: u32 = 48;
/// Tags of DELETE RKEY requests have this bit, those of CONFIRM RKEY are handshakes.
const DELETE_TAG: u64 = 1 << 63;

/// Receives that the peer is told of, so that it may count on them.
fn announced_receives(caps: QpCaps) -> u8 {
    u8::try_from(caps.recv_wr).unwrap_or(u8::MAX)
}

/// How a link keeps from sending more than the peer has receives for.
fn flow_control(peer_receives: Option<u8>, own_receives: u8) -> Result<FlowControl, Diagnosis> {
    let Some(peer_receives) = peer_receives else {
        return Ok(FlowControl::UnderWay(LINUX_RECEIVES));
    };
    let credits = Credits::new(peer_receives, own_receives).ok_or_else(|| {
        tracing::warn!(
            peer_receives,
            own_receives,
            "too few receives for credits, which need {RECEIVES_MIN} on either side"
        );
        Diagnosis::CREDITSERR
    })?;
    Ok(FlowControl::Credits(credits))
}

/// Whether work failed because the queue pairs do not belong together any more, and not because the
/// peer is silent or refuses it.
fn is_ended_by_peer(status: WcStatus) -> bool {
    match status {
        WcStatus::General | WcStatus::WrFlush => true,
        WcStatus::Success
        | WcStatus::LocalLength
        | WcStatus::LocalProtection
        | WcStatus::RemoteAccess
        | WcStatus::RemoteInvalidRequest
        | WcStatus::RemoteOperation
        | WcStatus::RetryExceeded
        | WcStatus::RnrRetryExceeded => false,
    }
}

impl<D: Device> LinkState<D> {
    /// Our endpoint for a connection on this link; `None` for buffers of a size that CLC cannot
    /// name.
    pub(super) fn endpoint(&self, buffers: &ConnBuffers, token: u32) -> Option<LocalEndpoint> {
        Some(LocalEndpoint {
            qpn: Qpn::from_low_bits(self.qpn),
            psn: Psn::from_low_bits(self.psn),
            rtoken: RToken {
                rkey: Rkey(buffers.rkey.0),
                address: buffers.addr,
            },
            rmbe_index: RmbeIndex::new(1)?,
            alert_token: AlertToken::new(token)?,
            rmbe_size: BufferSizeCode::from_bytes(buffers.rmbe_bytes)?,
            receives: announced_receives(self.caps),
            attachment: Attachment::Direct,
        })
    }
}

impl<D: Device, A: App, S: Stream, U: Copy> Plane<D, A, S, U> {
    /// Creates a queue pair as those of links will be, for the first worker, and drops it: so a
    /// device that cannot is found at the start, and the links to come need one creation each.
    ///
    /// # Errors
    /// [`ProbeError`]: the device refuses even a queue pair without inline data.
    ///
    /// # Panics
    /// No worker was added.
    pub fn try_device(&mut self) -> Result<(), ProbeError> {
        self.create_qp(0).map(drop)
    }

    /// Creates a queue pair for a worker, with as much inline data as the device grants.
    fn create_qp(&mut self, worker: usize) -> Result<(D::Qp, InlineView), ProbeError> {
        let port = &self.workers[worker].port;
        let config = &self.config;
        let wish = Wish {
            shape: Shape {
                kind: QpKind::Rc,
                send_wr: config.send_wr,
                recv_wr: config.recv_wr,
                send_sge: 2,
                recv_sge: 1,
                cq_entries: port.cq_entries,
            },
            inline_bytes: config.inline_bytes,
            mode: config.inline_probe,
        };
        let (qp, outcome) = self.probe.create(&self.device, port.group, &wish)?;
        let inline = InlineView::from(&outcome);
        if outcome.found != Found::Remembered {
            self.inline_found = inline.clone();
        }
        Ok((qp, inline))
    }

    /// Makes the group and the queue pair of a first contact.
    pub(super) fn make_link(
        &mut self,
        worker: usize,
        role: Role,
        key: PeerKey,
        (peer_qpn, max_conns): (Option<Qpn>, u8),
        first: HandshakeId,
    ) -> Result<GroupId, Diagnosis> {
        let (qp, inline) = self.create_qp(worker).map_err(|error| {
            tracing::error!(%error, "cannot create a queue pair");
            Diagnosis::MEM
        })?;
        let caps = qp.caps();
        let pages = self.config.pages;
        let memory = LinkMemory::create(&self.device, caps, pages).map_err(|error| {
            tracing::error!(%error, "cannot make a link");
            Diagnosis::MEM
        })?;
        let psn = (self.random)() & 0xff_ffff;
        let state = &mut self.workers[worker];
        let (index, _) = state.port.links.take().ok_or_else(|| {
            tracing::warn!("all links of the worker are in use; raise workers.links_max");
            Diagnosis::MEM
        })?;
        let group = match state.groups.create(role, key, peer_qpn, max_conns) {
            Ok(group) => group,
            Err(error) => {
                tracing::warn!(%error, "cannot make a link group");
                state.port.links.put(index);
                return Err(Diagnosis::MEM);
            }
        };
        let link = LinkState {
            link: LinkId(index),
            phase: LinkPhase::Made,
            qpn: qp.qpn(),
            qp: Some(qp),
            psn,
            caps,
            inline,
            memory,
            engine: None,
            credits_due: None,
            peer: None,
            agreed: None,
            first: Some(first),
            waiting: Vec::new(),
            quarantine: Vec::new(),
        };
        state.links.insert(group, link);
        Ok(group)
    }

    /// Connects the queue pair of a first contact and moves it into the worker.
    pub(super) fn connect_link(&mut self, key: GroupKey, agreed: &Agreed) -> Result<(), Diagnosis> {
        let state = &mut self.workers[key.worker];
        let link = state
            .links
            .get_mut(&key.group)
            .ok_or(Diagnosis::NOACTLINK)?;
        let flow = flow_control(agreed.peer_receives, announced_receives(link.caps))?;
        let mut qp = link.qp.take().ok_or(Diagnosis::INTERR)?;
        let peer = agreed.peer;
        let rtr = RtrAttr {
            path_mtu: peer.mtu.bytes(),
            peer_qpn: peer.qpn.get(),
            rq_psn: peer.psn.get(),
            min_rnr_timer: MIN_RNR_TIMER,
            peer_gid: peer.gid.0,
            peer_mac: peer.mac.0,
            hop_limit: 1,
        };
        let rts = RtsAttr {
            sq_psn: link.psn,
            timeout: self.config.patience.ack_timeout,
            retry_count: self.config.patience.retries,
            rnr_retry: RNR_RETRY,
        };
        let connected = self
            .device
            .to_init(&mut qp)
            .and_then(|()| self.device.to_rtr(&mut qp, &rtr))
            .and_then(|()| self.device.to_rts(&mut qp, &rts));
        if let Err(error) = connected {
            tracing::warn!(%error, "cannot connect a queue pair");
            link.qp = Some(qp);
            return Err(Diagnosis::ERR_RDYLNK);
        }
        link.peer = Some(peer);
        link.agreed = Some(*agreed);
        link.phase = LinkPhase::Adopting;
        let (receive, send) = (link.memory.receive.clone(), link.memory.send.clone());
        let bookkeeping = Box::new(Link::new(link.link, link.caps, (receive, send), flow));
        state.port.send(Command::AdoptLink {
            qp,
            link: bookkeeping,
        });
        Ok(())
    }

    /// The worker polls the link: LLC can begin.
    fn link_adopted(&mut self, worker: usize, link: LinkId) {
        let now = self.now;
        let state = &mut self.workers[worker];
        let Some(group) = state.group_of_link(link) else {
            return;
        };
        let Some(record) = state.links.get_mut(&group) else {
            return;
        };
        let Some(first) = record.first else { return };
        let Some(agreed) = self
            .handshakes
            .get(&first)
            .and_then(|handshake| handshake.reserved.as_ref())
            .and_then(|reserved| reserved.agreed)
        else {
            // The handshake ended meanwhile and took the group with it.
            return;
        };
        let Some(role) = state.groups.get(group).map(|group| group.role()) else {
            return;
        };
        let local = LinkEnd {
            mac: state.local.mac,
            gid: state.local.gid,
            qpn: Qpn::from_low_bits(record.qpn),
        };
        record.phase = LinkPhase::Running;
        let params = EngineParams {
            test_period: Some(self.config.patience.test_link),
            ..EngineParams::new(role, &agreed, local)
        };
        record.engine = Some(Engine::new(params, now));
        self.link_is_adopted(first);
        self.pump_link(GroupKey { worker, group });
    }

    /// Carries out what LLC orders on a link.
    pub(super) fn pump_link(&mut self, key: GroupKey) {
        loop {
            let now = self.now;
            let state = &mut self.workers[key.worker];
            let Some(link) = state.links.get_mut(&key.group) else {
                return;
            };
            let (id, first) = (link.link, link.first);
            let Some(output) = link
                .engine
                .as_mut()
                .and_then(|engine| engine.poll_output(now))
            else {
                return;
            };
            match output {
                Output::Send(message) => {
                    let message = message.iter().copied().collect();
                    state.port.send(Command::SendLlc { link: id, message });
                }
                Output::LinkConfirmed => {
                    if let Some(peer) = link.peer {
                        state.groups.activate(now, key.group, peer.qpn);
                    }
                    let due = link.credits_due.take();
                    if let Some(first) = first {
                        self.link_is_confirmed(first);
                    }
                    if let Some(credits) = due {
                        self.credits_due(key, credits);
                    }
                }
                Output::RkeyConfirmed { tag } if tag.0 & DELETE_TAG == 0 => {
                    self.rkey_is_answered(HandshakeId(tag.0), Ok(()));
                }
                Output::RkeyFailed { tag, why } if tag.0 & DELETE_TAG == 0 => {
                    tracing::warn!(%why, "the peer did not take a receive buffer");
                    self.rkey_is_answered(HandshakeId(tag.0), Err(Diagnosis::ERR_REGBUF));
                }
                // One that the peer refuses to forget is not known to it.
                Output::RkeyDeleted { tag }
                | Output::RkeyFailed {
                    tag,
                    why: RkeyFailure::Refused,
                } => self.buffer_is_forgotten(key, tag),
                Output::PeerDeletedRkey(rtoken) => self.peer_withdrew(key, rtoken),
                Output::RkeyConfirmed { .. }
                | Output::RkeyFailed { .. }
                | Output::PeerRkey(_)
                | Output::PeerCredits(_) => {}
                Output::GroupDeleted { reason, by } => {
                    tracing::info!(group = %key.group, ?reason, ?by, "link group ended");
                    self.drop_group(key, Diagnosis::NOACTLINK);
                }
                Output::Failed(failure) => {
                    // What the worker or the device had to say of it was told before.
                    match failure {
                        LinkFailure::Down => tracing::debug!(group = %key.group, "link down"),
                        LinkFailure::NotConfirmed
                        | LinkFailure::WantsEyeCatcher
                        | LinkFailure::Silent => {
                            tracing::warn!(group = %key.group, %failure, "link failed");
                        }
                    }
                    self.drop_group(key, failure.diagnosis());
                }
            }
        }
    }

    /// Receives of a link have been posted anew and nothing has told the peer: an announcement does,
    /// as soon as the link is confirmed.
    fn credits_due(&mut self, key: GroupKey, credits: u8) {
        let link = self.workers[key.worker].links.get_mut(&key.group);
        let Some(link) = link else { return };
        let announced = link
            .engine
            .as_mut()
            .is_some_and(|engine| engine.announce_credits(credits).is_ok());
        if announced {
            self.pump_link(key);
        } else {
            link.credits_due = Some(credits);
        }
    }

    /// Ends a group that we give up: the peer is told if there is still a link to tell it on.
    pub(super) fn end_group(&mut self, key: GroupKey) {
        let state = &mut self.workers[key.worker];
        let engine = state
            .links
            .get_mut(&key.group)
            .and_then(|link| link.engine.as_mut());
        match engine {
            Some(engine) => {
                engine.delete_group(DeleteReason::PROGRAM, Ending::Orderly);
                self.pump_link(key);
            }
            None => self.drop_group(key, Diagnosis::NOACTLINK),
        }
    }

    /// Takes a group out of use: nobody joins any more, its connections are reset by the worker,
    /// its queue pair comes back.
    pub(super) fn drop_group(&mut self, key: GroupKey, diagnosis: Diagnosis) {
        let state = &mut self.workers[key.worker];
        state.groups.retire(key.group);
        let Some(link) = state.links.get_mut(&key.group) else {
            return;
        };
        link.engine = None;
        let (id, phase, first) = (link.link, link.phase, link.first.take());
        let waiting = std::mem::take(&mut link.waiting);
        match phase {
            LinkPhase::Made => self.forget_link(key),
            LinkPhase::Adopting | LinkPhase::Running => {
                link.phase = LinkPhase::Releasing;
                state.port.send(Command::ReleaseLink(id));
            }
            LinkPhase::Releasing => {}
        }
        if let Some(first) = first {
            self.link_has_failed(first, phase, diagnosis);
        }
        self.refuse_rkeys_of(key);
        for id in waiting {
            self.choose_again(id);
        }
    }

    /// Handshakes that waited for the peer to take a buffer on a link that is gone.
    fn refuse_rkeys_of(&mut self, key: GroupKey) {
        let orphans: Vec<HandshakeId> = self
            .handshakes
            .iter()
            .filter(|(_, handshake)| {
                handshake.reserved.as_ref().is_some_and(|reserved| {
                    reserved.group == key.group
                        && reserved.conn.worker == key.worker
                        && reserved.agreed.is_none()
                })
            })
            .map(|(id, _)| *id)
            .collect();
        for id in orphans {
            self.rkey_is_answered(id, Err(Diagnosis::NOACTLINK));
        }
    }

    /// Lets those go on that waited for the first contact of their peer to end.
    pub(super) fn release_waiting(&mut self, key: GroupKey) {
        let waiting = match self.workers[key.worker].links.get_mut(&key.group) {
            Some(link) => std::mem::take(&mut link.waiting),
            None => return,
        };
        for id in waiting {
            self.choose_again(id);
        }
    }

    /// Nothing of a link is left in the worker: its memory and its queue pair go.
    fn forget_link(&mut self, key: GroupKey) {
        let state = &mut self.workers[key.worker];
        state.groups.remove(key.group);
        let Some(link) = state.links.remove(&key.group) else {
            return;
        };
        state.port.links.put(link.link.0);
        if let Some(kept) = self.kept.as_mut() {
            kept.memory.push(link.memory);
        }
        for (_, place) in link.quarantine {
            self.worker_is_done(place);
        }
    }

    /// Takes what a worker has to say.
    pub(super) fn handle_report(&mut self, worker: usize, report: News<D, A>) {
        match report {
            Report::LinkAdopted(link) => self.link_adopted(worker, link),
            Report::ConnOpened(conn) => self.conn_opened(worker, conn),
            Report::LinkFailed { link, status } => self.link_failed(worker, link, status),
            Report::LinkReleased { link, qp, .. } => {
                match self.kept.as_mut() {
                    None => drop(qp),
                    Some(kept) => kept.qps.extend(qp),
                }
                self.link_released(worker, link);
            }
            Report::Llc { link, message } => {
                let now = self.now;
                let state = &mut self.workers[worker];
                let Some(group) = state.group_of_link(link) else {
                    return;
                };
                let engine = state
                    .links
                    .get_mut(&group)
                    .and_then(|link| link.engine.as_mut());
                if let Some(engine) = engine {
                    engine.handle_message(now, &message);
                    self.pump_link(GroupKey { worker, group });
                }
            }
            Report::CreditsDue { link, credits } => {
                if let Some(group) = self.workers[worker].group_of_link(link) {
                    self.credits_due(GroupKey { worker, group }, credits);
                }
            }
            Report::ConnClosed {
                conn,
                outcome,
                peer_done,
                open,
            } => {
                self.conn_closed(worker, conn, (outcome, peer_done), open);
            }
            Report::SessionFault { session, violation } => {
                self.events.push_back(Event::SessionFault {
                    worker,
                    session,
                    violation,
                });
            }
            Report::SessionDetached { session, served } => {
                drop(served);
                self.workers[worker].port.sessions.put(session.0);
                self.events
                    .push_back(Event::SessionDetached { worker, session });
            }
            Report::App(report) => self.events.push_back(Event::App { worker, report }),
            Report::Snapshot(snapshot) => {
                self.events.push_back(Event::Snapshot { worker, snapshot });
            }
            Report::Stopped => self.worker_stopped(worker),
        }
    }

    /// A link is back from its worker.
    fn link_released(&mut self, worker: usize, link: LinkId) {
        let state = &mut self.workers[worker];
        let Some(group) = state.group_of_link(link) else {
            return;
        };
        let key = GroupKey { worker, group };
        if let Some(link) = state.links.get_mut(&group)
            && link.phase != LinkPhase::Releasing
        {
            tracing::error!(%group, "the worker cannot take the queue pair of a link");
            // As if it had never been moved.
            link.phase = LinkPhase::Made;
            return self.drop_group(key, Diagnosis::ERR_RDYLNK);
        }
        self.forget_link(key);
    }

    /// A worker has said its last word. It has given back all that it had; what it never took went
    /// with its ring.
    fn worker_stopped(&mut self, worker: usize) {
        self.workers_running = self.workers_running.saturating_sub(1);
        self.workers[worker].port.close();
        let groups: Vec<GroupKey> = self.group_keys().filter(|k| k.worker == worker).collect();
        for key in groups {
            self.drop_group(key, Diagnosis::NOACTLINK);
            self.forget_link(key);
        }
        let reserved = self.handshakes.values_mut();
        let reserved = reserved.filter_map(|handshake| handshake.reserved.as_mut());
        for reserved in reserved.filter(|reserved| reserved.conn.worker == worker) {
            reserved.known = KnownTo::Nobody;
        }
        let conns = self.conns.keys().chain(self.forgotten.keys());
        let conns: Vec<ConnKey> = conns.filter(|key| key.worker == worker).copied().collect();
        for conn in conns {
            let end = (ConnOutcome::Reset, PeerDone::No);
            self.conn_closed(worker, ConnId(conn.conn), end, None);
        }
        self.events.push_back(Event::WorkerStopped { worker });
    }

    /// Takes the device's news; links to a peer that is gone are given up at once.
    pub fn handle_device_events(&mut self, now: Instant) {
        self.now = now;
        for event in self.device.take_events() {
            match event {
                DeviceEvent::PeerGone { gid } => self.peer_is_gone(gid),
                DeviceEvent::PeerRefused { what } => {
                    tracing::warn!(what, "a peer broke the rules of the fabric");
                }
                DeviceEvent::Adapter { what } => {
                    tracing::warn!(what, "news of the adapter");
                }
                DeviceEvent::PeerJoined { .. } | DeviceEvent::QpError { .. } => {
                    tracing::debug!(?event, "device");
                }
            }
        }
    }

    fn peer_is_gone(&mut self, gid: [u8; 16]) {
        let keys: Vec<(GroupKey, LinkId)> = self
            .workers
            .iter()
            .enumerate()
            .flat_map(|(worker, state)| {
                state
                    .links
                    .iter()
                    .map(move |(group, link)| (worker, *group, link))
            })
            .filter(|(_, _, link)| link.peer.is_some_and(|peer| peer.gid.0 == gid))
            .map(|(worker, group, link)| (GroupKey { worker, group }, link.link))
            .collect();
        for (key, link) in keys {
            self.link_failed(key.worker, link, WcStatus::RetryExceeded);
        }
    }

    fn link_failed(&mut self, worker: usize, link: LinkId, status: WcStatus) {
        let state = &mut self.workers[worker];
        let Some(group) = state.group_of_link(link) else {
            return;
        };
        let key = GroupKey { worker, group };
        let conns = state.groups.get(group).map_or(0, Group::conns);
        let phase = state.links.get(&group).map(|link| link.phase);
        match phase {
            // The peer was told, or has told us, that it is over; what it leaves behind fails.
            None | Some(LinkPhase::Releasing) => {
                tracing::debug!(%group, ?status, "a queue pair of a link that has ended failed");
            }
            // Nobody loses anything: the next connection makes a new link.
            Some(LinkPhase::Running) if conns == 0 => {
                tracing::info!(%group, ?status, "the peer of an idle link is gone");
            }
            // The peer has put its queue pair out of use: its last message may have found ours in error
            // already.
            Some(LinkPhase::Running) if is_ended_by_peer(status) => {
                tracing::info!(%group, ?status, conns, "the peer has ended the link");
            }
            Some(LinkPhase::Made | LinkPhase::Adopting | LinkPhase::Running) => {
                tracing::warn!(%group, ?status, conns, "a queue pair failed");
            }
        }
        let engine = state
            .links
            .get_mut(&group)
            .and_then(|link| link.engine.as_mut());
        match engine {
            Some(engine) => {
                engine.handle_link_down();
                self.pump_link(key);
            }
            None => self.drop_group(key, Diagnosis::ERR_RDYLNK),
        }
    }

    /// Tells the peer that a buffer is not used any more. Its slot is free at once if the peer has
    /// said that it writes no more; else when it has answered, since whatever it wrote has arrived
    /// before the answer, or when the link is gone.
    pub(super) fn release_buffer(
        &mut self,
        key: GroupKey,
        (place, rkey): (Place, pollux_provider::Rkey),
        peer_done: PeerDone,
    ) {
        let tag = RkeyTag(self.next_id() | DELETE_TAG);
        let link = self.workers[key.worker].links.get_mut(&key.group);
        let Some(link) = link else {
            return self.worker_is_done(place);
        };
        let engine = link.engine.as_mut();
        let asked = engine.map(|engine| engine.delete_rkey(tag, Rkey(rkey.0)));
        match peer_done {
            PeerDone::Yes => self.worker_is_done(place),
            PeerDone::No => link.quarantine.push((tag, place)),
        }
        if let Some(Ok(())) = asked {
            self.pump_link(key);
        }
    }

    /// The peer does not know a buffer of ours any more.
    fn buffer_is_forgotten(&mut self, key: GroupKey, tag: RkeyTag) {
        let Some(link) = self.workers[key.worker].links.get_mut(&key.group) else {
            return;
        };
        let found = link.quarantine.iter().position(|(asked, _)| *asked == tag);
        if let Some(index) = found {
            let (_, place) = link.quarantine.swap_remove(index);
            self.worker_is_done(place);
        }
    }

    /// The peer uses a buffer of its own no more. Whoever still writes into it has missed the end of
    /// the connection, if there ever was one at the other side: the worker resets it.
    fn peer_withdrew(&mut self, key: GroupKey, rtoken: RToken) {
        let conns = self.conns.iter().filter(|(conn, record)| {
            conn.worker == key.worker
                && record.group == key.group
                && record.peer_rkey.0 == rtoken.rkey.0
        });
        let conns: Vec<ConnId> = conns.map(|(conn, _)| ConnId(conn.conn)).collect();
        for conn in conns {
            let order = Command::PeerWithdrew(conn);
            self.workers[key.worker].port.send(order);
        }
    }
}
