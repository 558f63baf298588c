//! What a worker tells its poll group about the way it waits.

use std::sync::{Arc, Mutex};

use pollux_provider::soft::{DeviceOptions, Fabric, SoftGroup, SoftQp};
use pollux_provider::{
    AdoptError, Armed, Completion, Device, FlushError, GroupId, Payload, PollGroup, PollGroupSpec,
    PostError, QpCaps, QpIndex, QpState, QpStats, RemoteSpan, Sge, Signal, Sleep, WrId,
};
use pollux_ring::{Wake, WakeSet, spsc};
use pollux_worker::{Builtin, Command, PollMode, Progress, Tsc, WaitSpec, Worker, WorkerLimits};

/// A poll group that notes what it is told of sleep.
struct Watched {
    group: SoftGroup,
    told: Arc<Mutex<Vec<Sleep>>>,
}

impl PollGroup for Watched {
    type Qp = SoftQp;

    fn id(&self) -> GroupId {
        self.group.id()
    }

    fn adopt(&mut self, qp: SoftQp) -> Result<QpIndex, AdoptError<SoftQp>> {
        self.group.adopt(qp)
    }

    fn release(&mut self, qp: QpIndex) -> Option<SoftQp> {
        self.group.release(qp)
    }

    fn caps(&self, qp: QpIndex) -> QpCaps {
        self.group.caps(qp)
    }

    fn state(&self, qp: QpIndex) -> QpState {
        self.group.state(qp)
    }

    fn post_write(
        &mut self,
        qp: QpIndex,
        wr: WrId,
        payload: Payload<'_>,
        to: RemoteSpan,
        signal: Signal,
    ) -> Result<(), PostError> {
        self.group.post_write(qp, wr, payload, to, signal)
    }

    fn post_write_imm(
        &mut self,
        qp: QpIndex,
        wr: WrId,
        payload: Payload<'_>,
        to: RemoteSpan,
        imm: u32,
        signal: Signal,
    ) -> Result<(), PostError> {
        self.group.post_write_imm(qp, wr, payload, to, imm, signal)
    }

    fn post_send(
        &mut self,
        qp: QpIndex,
        wr: WrId,
        payload: Payload<'_>,
        signal: Signal,
    ) -> Result<(), PostError> {
        self.group.post_send(qp, wr, payload, signal)
    }

    fn post_recv(&mut self, qp: QpIndex, wr: WrId, into: Sge) -> Result<(), PostError> {
        self.group.post_recv(qp, wr, into)
    }

    fn flush(&mut self, qp: QpIndex) -> Result<(), FlushError> {
        self.group.flush(qp)
    }

    fn reap(&mut self, now: u64, into: &mut [Completion]) -> usize {
        self.group.reap(now, into)
    }

    fn arm(&mut self, sleep: Sleep) -> Armed {
        self.told.lock().expect("unpoisoned").push(sleep);
        self.group.arm(sleep)
    }

    fn disarm(&mut self) {
        self.group.disarm();
    }

    fn stats(&self, qp: QpIndex) -> QpStats {
        self.group.stats(qp)
    }
}

/// Peers pay a fence for each doorbell as long as they believe that a worker may sleep, so one that
/// turns busy has to say so.
#[test]
fn a_worker_that_turns_busy_tells_its_peers_that_it_never_sleeps() {
    let device = Fabric::new()
        .open(DeviceOptions::new([7; 16]))
        .expect("device");
    let wake = Wake::new().expect("wake");
    let spec = PollGroupSpec {
        cq_entries: 64,
        wake,
    };
    let told = Arc::new(Mutex::new(Vec::new()));
    let group = Watched {
        group: device.create_poll_group(&spec).expect("group"),
        told: Arc::clone(&told),
    };
    let (mut orders, worker_orders) = spsc::channel(8);
    let (worker_news, _news) = spsc::channel(8);
    let limits = WorkerLimits {
        conns: 1,
        links: 1,
        sessions: 1,
    };
    let mailbox = (worker_orders, worker_news, Wake::new().expect("wake"));
    let waiting = (WaitSpec::default(), WakeSet::new().expect("a set"));
    let clock = Tsc::new();
    let mut worker = Worker::new(group, Builtin::default(), clock, limits, mailbox, waiting);
    let mut tell = |mode: PollMode| {
        let order = Command::SetPollMode(mode);
        assert!(orders.push(order).is_ok());
        assert_eq!(worker.pass(), Progress::Busy);
        std::mem::take(&mut *told.lock().expect("unpoisoned"))
    };
    assert_eq!(tell(PollMode::Busy), [Sleep::Never]);
    assert_eq!(tell(PollMode::Adaptive), []);
    assert_eq!(tell(PollMode::Interrupt), []);
    assert_eq!(tell(PollMode::Busy), [Sleep::Never]);
}
