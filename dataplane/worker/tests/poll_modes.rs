//! What a worker tells its poll group about the way it waits.

use std::sync::{Arc, Mutex};

use pollux_provider::soft::{DeviceOptions, Fabric};
use pollux_provider::{Armed, Device, Layer, Layered, PollGroup, PollGroupSpec, Sleep};
use pollux_ring::{Wake, WakeSet, spsc};
use pollux_worker::{Builtin, Command, PollMode, Progress, Tsc, WaitSpec, Worker, WorkerLimits};

/// Notes what a poll group is told of sleep.
struct Notes(Arc<Mutex<Vec<Sleep>>>);

impl<G: PollGroup> Layer<G> for Notes {
    fn arm(&mut self, group: &mut G, sleep: Sleep) -> Armed {
        self.0.lock().expect("unpoisoned").push(sleep);
        group.arm(sleep)
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
    let group = device.create_poll_group(&spec).expect("group");
    let group = Layered::new(group, Notes(Arc::clone(&told)));
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
