//! Connections: opened, ended, and the slots they use.

use super::Appliance;
use super::handshake::Origin;
use super::memory::{BufferPool, ConnBuffers};
use super::state::{ConnKey, ConnUser, GroupKey, Place, SlotPool};
use pollux_attach::layout::{Layout, Shape};
use pollux_attach::message::Reply;
use pollux_attach::slots::SlotTable;
use pollux_provider::Device;
use pollux_ring::Segment;
use pollux_wire::clc::Diagnosis;
use pollux_wire::field::AlertToken;
use pollux_worker::{ConnId, ConnOutcome, OpenConn, PeerDone};

/// Connections of a worker's own application at a time.
const APP_SLOTS: u16 = 64;

impl<D> Appliance<D>
where
    D: Device,
    D::Qp: 'static,
    D::Group: 'static,
{
    /// Takes a free slot with its buffers for a connection of `origin`.
    pub(crate) fn take_slot(
        &mut self,
        worker: usize,
        origin: Origin,
    ) -> Result<(Place, ConnBuffers), Diagnosis> {
        if let Origin::Echo | Origin::Latency(_) = origin {
            self.make_app_pool(worker)?;
        }
        let pool = match origin {
            Origin::Program { session, .. } => self
                .sessions
                .get_mut(&session)
                .map(|session| &mut session.pool),
            Origin::Echo | Origin::Latency(_) => self.workers[worker].app.as_mut(),
        };
        let pool = pool.ok_or(Diagnosis::INTERR)?;
        let slot = pool.table.take().ok_or(Diagnosis::MEM)?;
        let place = match origin {
            Origin::Program { session, .. } => Place::Session { session, slot },
            Origin::Echo | Origin::Latency(_) => Place::App { worker, slot },
        };
        match pool.buffers.buffers(&self.device, slot.slot) {
            Ok(Some(buffers)) => Ok((place, buffers)),
            Ok(None) => Err(Diagnosis::INTERR),
            Err(error) => {
                tracing::error!(%error, "no buffers for a connection");
                pool.table.put_back(slot);
                Err(Diagnosis::MEM)
            }
        }
    }

    /// The buffers of a worker's own application, made when first needed.
    fn make_app_pool(&mut self, worker: usize) -> Result<(), Diagnosis> {
        if self.workers[worker].app.is_some() {
            return Ok(());
        }
        let (sndbuf, rmb) = (
            self.config.attach.sndbuf_bytes,
            self.config.attach.rmb_bytes,
        );
        let pages = self.pages();
        let failed = |error: &dyn std::fmt::Display| {
            tracing::error!(%error, "no buffers for connections inside the worker");
            Diagnosis::MEM
        };
        let shape = Shape::new(APP_SLOTS, sndbuf, rmb).map_err(|error| failed(&error))?;
        let layout = Layout::of(shape);
        let segment =
            Segment::create("pollux-app", layout.bytes(), pages).map_err(|error| failed(&error))?;
        let buffers =
            BufferPool::create(&self.device, segment, layout).map_err(|error| failed(&error))?;
        self.workers[worker].app = Some(SlotPool {
            table: SlotTable::new(APP_SLOTS),
            buffers,
        });
        Ok(())
    }

    /// Gives back a slot of which nobody has heard.
    pub(crate) fn put_back_slot(&mut self, place: Place) {
        match place {
            Place::Session { session, slot } => {
                if let Some(session) = self.sessions.get_mut(&session) {
                    session.pool.table.put_back(slot);
                }
            }
            Place::App { worker, slot } => {
                if let Some(app) = self.workers[worker].app.as_mut() {
                    app.table.put_back(slot);
                }
            }
        }
    }

    /// The worker and the peer are done with a slot.
    pub(crate) fn worker_is_done(&mut self, place: Place) {
        match place {
            Place::Session { session, slot } => {
                let Some(state) = self.sessions.get_mut(&session) else {
                    return;
                };
                state.pool.table.worker_done(slot.slot);
                let reply = Reply::Released {
                    slot: slot.slot,
                    generation: slot.generation,
                };
                self.send_reply(session, &reply, &[]);
            }
            Place::App { worker, slot } => {
                if let Some(app) = self.workers[worker].app.as_mut() {
                    app.table.put_back(slot);
                }
            }
        }
    }

    /// The worker has opened a connection: whoever waits for it may use it.
    pub(crate) fn conn_opened(&mut self, worker: usize, conn: ConnId) {
        let key = ConnKey {
            worker,
            conn: conn.0,
        };
        let Some(record) = self.conns.get(&key) else {
            return;
        };
        tracing::debug!(
            conn = conn.0, worker, local = %record.local, peer = %record.peer,
            "connection runs over SMC-R"
        );
        match (record.user, record.place) {
            (ConnUser::Program { request }, Place::Session { session, slot }) => {
                let reply = Reply::Accelerated {
                    request,
                    slot: slot.slot,
                    generation: slot.generation,
                };
                self.send_reply(session, &reply, &[]);
            }
            (ConnUser::Latency(run), _) => self.latency_connected(run, key),
            (ConnUser::Echo | ConnUser::Program { .. }, _) => {}
        }
    }

    /// A connection has ended, or a reservation was given up.
    pub(crate) fn conn_closed(
        &mut self,
        worker: usize,
        conn: ConnId,
        (outcome, peer_done): (ConnOutcome, PeerDone),
        open: Option<Box<OpenConn>>,
    ) {
        drop(open);
        let now = self.now();
        let key = ConnKey {
            worker,
            conn: conn.0,
        };
        self.workers[worker].port.conns.put(conn.0);
        if let Some((group, place)) = self.forgotten.remove(&key) {
            // Its handshake broke off after the peer had heard of the buffer.
            match self.workers[worker].links.get_mut(&group) {
                Some(link) => link.quarantine.push(place),
                None => self.worker_is_done(place),
            }
            return;
        }
        let Some(record) = self.conns.remove(&key) else {
            return;
        };
        if let Some(token) = AlertToken::new(record.token) {
            self.workers[worker].groups.leave(now, record.group, token);
        }
        match outcome {
            ConnOutcome::Closed => self.figures.closed += 1,
            ConnOutcome::Reset => self.figures.reset += 1,
        }
        if let ConnUser::Latency(run) = record.user {
            self.latency_ended(run);
        }
        let group = GroupKey {
            worker,
            group: record.group,
        };
        self.release_buffer(group, (record.place, record.buffers.rkey), peer_done);
    }
}
