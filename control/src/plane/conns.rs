//! Connections: opened and ended.

use super::state::{ConnKey, Forgotten, GroupKey, Wanted};
use super::{Event, Plane, Stream};
use pollux_proto::planted::{Bug, is_planted};
use pollux_provider::Device;
use pollux_wire::field::AlertToken;
use pollux_worker::{App, ConnId, ConnOutcome, OpenConn, PeerDone};

impl<D: Device, A: App, S: Stream, U: Copy> Plane<D, A, S, U> {
    /// The worker has opened a connection: whoever waits for it may use it.
    pub(super) fn conn_opened(&mut self, worker: usize, conn: ConnId) {
        let key = ConnKey {
            worker,
            conn: conn.0,
        };
        let Some(record) = self.conns.get(&key) else {
            return;
        };
        let Wanted {
            local, peer, user, ..
        } = record.wanted;
        tracing::debug!(
            conn = conn.0, worker, %local, %peer,
            "connection runs over SMC-R"
        );
        let slot = record.place.slot;
        if is_planted(Bug::ClearedAfterReuse) && slot.generation > 1 {
            let (rmbe, bytes) = (&record.buffers.rmbe, record.buffers.rmbe_bytes);
            let _ = rmbe.region.copy_in(rmbe.offset, &vec![0; bytes as usize]);
        }
        let conn = key;
        self.events.push_back(Event::Opened { conn, user, slot });
    }

    /// A connection has ended, or a reservation was given up.
    pub(super) fn conn_closed(
        &mut self,
        worker: usize,
        conn: ConnId,
        (outcome, peer_done): (ConnOutcome, PeerDone),
        open: Option<Box<OpenConn>>,
    ) {
        drop(open);
        let now = self.now;
        let key = ConnKey {
            worker,
            conn: conn.0,
        };
        self.workers[worker].port.conns.put(conn.0);
        if let Some(Forgotten { group, place, rkey }) = self.forgotten.remove(&key) {
            // Its handshake broke off after the peer had heard of the buffer.
            let group = GroupKey { worker, group };
            return self.release_buffer(group, (place, rkey), PeerDone::No);
        }
        let Some(record) = self.conns.remove(&key) else {
            return;
        };
        if let Some(token) = AlertToken::new(record.token) {
            self.workers[worker].groups.leave(now, record.group, token);
        }
        self.events.push_back(Event::Closed {
            conn: key,
            user: record.wanted.user,
            outcome,
            peer_done,
        });
        let group = GroupKey {
            worker,
            group: record.group,
        };
        self.release_buffer(group, (record.place, record.buffers.rkey), peer_done);
    }
}
