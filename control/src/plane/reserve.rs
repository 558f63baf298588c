//! What a handshake needs: a link group, a place in the worker's table, a token, and buffers.

use super::memory::ConnBuffers;
use super::state::{ConnKey, Forgotten, GroupKey, KnownTo, LinkPhase, Place, Reserved, Wanted};
use super::{HandshakeId, Plane, Stream};
use pollux_proto::clc::{self, Agreed};
use pollux_proto::group::{GroupId, PeerKey};
use pollux_proto::link::Role;
use pollux_proto::llc::RkeyTag;
use pollux_provider::Device;
use pollux_wire::clc::{Contact, Diagnosis, Sync};
use pollux_wire::field::Qpn;
use pollux_worker::{App, Command, ConnId};

impl<D: Device, A: App, S: Stream, U: Copy> Plane<D, A, S, U> {
    /// A server decides which group a client joins.
    pub(super) fn choose_server(
        &mut self,
        id: HandshakeId,
        key: PeerKey,
        candidate: clc::Candidate,
    ) {
        if self.is_refused(id) {
            return self.decline(id, Diagnosis::MEM);
        }
        let Some(worker) = self
            .handshakes
            .get(&id)
            .map(|handshake| handshake.wanted.worker)
        else {
            return;
        };
        let state = &mut self.workers[worker];
        let forming = state
            .links
            .iter_mut()
            .find(|(group, link)| {
                link.first.is_some()
                    && state
                        .groups
                        .get(**group)
                        .is_some_and(|group| group.role() == Role::Server && *group.key() == key)
            })
            .map(|(_, link)| link);
        if let Some(link) = forming {
            // The client is about to have a link: with it this connection needs none of its own.
            link.waiting.push(id);
            return;
        }
        let reserved = match state.groups.find_as_server(&key) {
            Some(group) => self.reserve(id, group),
            None => self.reserve_first(id, Role::Server, key, (None, candidate.max_conns)),
        };
        match reserved {
            Ok(Contact::Subsequent) => {}
            Ok(Contact::First) => self.accept(id, Contact::First),
            Err(diagnosis) => self.decline(id, diagnosis),
        }
    }

    /// Goes on with a handshake that waited for another one's link.
    pub(super) fn choose_again(&mut self, id: HandshakeId) {
        let Some(handshake) = self.handshakes.get(&id) else {
            return;
        };
        if let Some(candidate) = handshake.candidate {
            self.choose_server(id, PeerKey::of_candidate(&candidate), candidate);
            self.pump_handshake(id);
        }
    }

    /// A client has an Accept: joins the group it names, or makes one.
    pub(super) fn prepare_client(&mut self, id: HandshakeId, agreed: Agreed) {
        let Some(handshake) = self.handshakes.get(&id) else {
            return;
        };
        let worker = handshake.wanted.worker;
        let key = PeerKey::of_server(agreed.terms.version, &agreed.peer);
        let done = match agreed.terms.contact {
            Contact::First => {
                let made = (Some(agreed.peer.qpn), agreed.terms.max_conns);
                self.reserve_first(id, Role::Client, key, made)
                    .map(|_| self.connect_first(id, agreed))
            }
            Contact::Subsequent => self.workers[worker]
                .groups
                .find_as_client(&key, agreed.peer.qpn)
                .ok_or(Diagnosis::SYNCERR)
                .and_then(|group| self.reserve(id, group))
                .map(|_| ()),
        };
        if let Err(diagnosis) = done {
            self.decline(id, diagnosis);
        }
    }

    /// First contact: makes a group with its link for the handshake, and gets what its connection
    /// needs.
    fn reserve_first(
        &mut self,
        id: HandshakeId,
        role: Role,
        key: PeerKey,
        made: (Option<Qpn>, u8),
    ) -> Result<Contact, Diagnosis> {
        let worker = self.handshakes.get(&id).ok_or(Diagnosis::INTERR)?;
        let worker = worker.wanted.worker;
        let group = self.make_link(worker, role, key, made, id)?;
        let reserved = self.reserve(id, group);
        if let Err(diagnosis) = reserved {
            // Nobody else has heard of it, and later connections of this peer would wait for it.
            self.drop_group(GroupKey { worker, group }, diagnosis);
        }
        reserved
    }

    /// Gets a place, a token and buffers for the connection of a handshake in a group. On a link
    /// that works, the peer is told of the buffer first; the handshake goes on with its answer.
    fn reserve(&mut self, id: HandshakeId, group: GroupId) -> Result<Contact, Diagnosis> {
        let Some(handshake) = self.handshakes.get(&id) else {
            return Err(Diagnosis::INTERR);
        };
        let Wanted { worker, pool, .. } = handshake.wanted;
        let (place, buffers) = self.take_slot(pool, GroupKey { worker, group })?;
        let reserved = self.reserve_in(worker, group, (place, buffers));
        let reserved = match reserved {
            Ok(reserved) => reserved,
            Err(diagnosis) => {
                self.put_back_slot(place);
                return Err(diagnosis);
            }
        };
        let link = self.workers[worker].links.get_mut(&group);
        let running = link
            .as_ref()
            .is_some_and(|link| link.phase == LinkPhase::Running);
        let rtoken = reserved.own.rtoken;
        if let Some(handshake) = self.handshakes.get_mut(&id) {
            handshake.reserved = Some(reserved);
        }
        if !running {
            return Ok(Contact::First);
        }
        self.reserve_at_worker(id);
        let tag = RkeyTag(id.0);
        let engine = self.workers[worker]
            .links
            .get_mut(&group)
            .and_then(|link| link.engine.as_mut());
        match engine.map(|engine| engine.confirm_rkey(tag, rtoken)) {
            Some(Ok(())) => {
                self.pump_link(GroupKey { worker, group });
                Ok(Contact::Subsequent)
            }
            Some(Err(_)) | None => Err(Diagnosis::ERR_REGBUF),
        }
    }

    /// The worker keeps early messages for the token from now on.
    fn reserve_at_worker(&mut self, id: HandshakeId) {
        let handshake = self.handshakes.get_mut(&id);
        let Some(reserved) = handshake.and_then(|handshake| handshake.reserved.as_mut()) else {
            return;
        };
        let (key, token) = (reserved.conn, reserved.token);
        let state = &mut self.workers[key.worker];
        if let Some(link) = state.links.get(&reserved.group) {
            let (conn, link) = (ConnId(key.conn), link.link);
            reserved.known = KnownTo::Worker;
            state.port.send(Command::ReserveConn { conn, link, token });
        }
    }

    /// First contact: both sides know each other's queue pair. The link is connected and moved
    /// into the worker; the handshake goes on when the worker has it.
    pub(super) fn connect_first(&mut self, id: HandshakeId, agreed: Agreed) {
        let Some(handshake) = self.handshakes.get_mut(&id) else {
            return;
        };
        let worker = handshake.wanted.worker;
        let Some(reserved) = handshake.reserved.as_mut() else {
            return;
        };
        reserved.agreed = Some(agreed);
        let group = reserved.group;
        match self.connect_link(GroupKey { worker, group }, &agreed) {
            Ok(()) => self.reserve_at_worker(id),
            Err(diagnosis) => self.decline(id, diagnosis),
        }
    }

    /// Takes back what a handshake that did not lead to a connection had got.
    pub(super) fn give_up_reservation(
        &mut self,
        id: HandshakeId,
        reserved: Option<Reserved>,
        sync: Sync,
    ) {
        let Some(Reserved {
            conn: key,
            group,
            token,
            place,
            buffers,
            known,
            ..
        }) = reserved
        else {
            return;
        };
        let now = self.now;
        let state = &mut self.workers[key.worker];
        if let Some(token) = pollux_wire::field::AlertToken::new(token) {
            state.groups.leave(now, group, token);
        }
        let first = state
            .links
            .get(&group)
            .is_some_and(|link| link.first == Some(id));
        match known {
            KnownTo::Worker => {
                // The worker answers with ConnClosed, which frees the place.
                let rkey = buffers.rkey;
                self.forgotten.insert(key, Forgotten { group, place, rkey });
                state.port.send(Command::AbortConn(ConnId(key.conn)));
            }
            KnownTo::Nobody => {
                state.port.conns.put(key.conn);
                self.put_back_slot(place);
            }
        }
        let group = GroupKey {
            worker: key.worker,
            group,
        };
        if first || sync == Sync::OutOfSync {
            self.end_group(group);
        }
    }

    /// A free place in a worker's table of connections, joined to a group.
    fn reserve_in(
        &mut self,
        worker: usize,
        group: GroupId,
        (place, buffers): (Place, ConnBuffers),
    ) -> Result<Reserved, Diagnosis> {
        let state = &mut self.workers[worker];
        let link = state.links.get(&group).ok_or(Diagnosis::NOACTLINK)?;
        let (conn, generation) = state.port.conns.take().ok_or(Diagnosis::MEM)?;
        let token = pollux_worker::alert_token(ConnId(conn), generation);
        let own = link.endpoint(&buffers, token);
        let joined = own.map(|own| (own, state.groups.join(group, own.alert_token)));
        match joined {
            Some((own, Ok(()))) => Ok(Reserved {
                conn: ConnKey { worker, conn },
                group,
                token,
                place,
                buffers,
                own,
                agreed: None,
                known: KnownTo::Nobody,
            }),
            Some((_, Err(error))) => {
                tracing::debug!(%error, "a connection cannot join its group");
                state.port.conns.put(conn);
                Err(Diagnosis::NOACTLINK)
            }
            None => {
                state.port.conns.put(conn);
                Err(Diagnosis::INTERR)
            }
        }
    }
}
