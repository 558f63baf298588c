//! The hunt for a lost wake-up: both halves arm, look, sleep and wake each other, and no time-out
//! helps either of them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use pollux_attach::layout::{Layout, Shape};
use pollux_attach::shared::{
    Inline, ProgramSide, SlotNews, Submission, SubmissionOp, Submitter, WakeNeeded, WorkerSide,
};
use pollux_ring::{Wake, WakeReceiver, WakeSender, WakeSet, wake_channel};

use crate::support::Random;

/// Bytes that go back and forth, one for each message.
const ROUNDS: u64 = 100_000;

struct Worker {
    side: WorkerSide,
    wake: WakeSender,
    set: WakeSet,
    random: Random,
    sleeps: u64,
    arms: u64,
}

impl Worker {
    fn run(mut self) -> (u64, u64) {
        let mut produced = 0;
        let mut polls_left = 0;
        while produced < ROUNDS {
            let mut any = false;
            while let Some(submission) = self.side.poll() {
                let submission = submission.expect("honest");
                produced = submission.prepared_total;
                any = true;
            }
            if any {
                let news = SlotNews {
                    produced,
                    reclaimed: produced,
                    ..SlotNews::default()
                };
                self.side.publish(0, &news);
                if self.side.flush_events().is_needed() {
                    self.wake.signal().expect("wake");
                }
                polls_left = self.random.below(60);
            } else if polls_left > 0 {
                polls_left -= 1;
                hesitate(&mut self.random);
            } else {
                self.sleep();
                polls_left = self.random.below(60);
            }
        }
        (self.sleeps, self.arms)
    }

    fn sleep(&mut self) {
        self.side.arm();
        self.arms += 1;
        if !self.side.has_submission() {
            self.sleeps += 1;
            self.set.wait(None, |_| {}).expect("sleep");
        }
        self.side.disarm();
    }
}

struct Program {
    side: ProgramSide,
    worker_wake: Wake,
    wake: WakeReceiver,
    random: Random,
    sleeps: u64,
    arms: u64,
}

impl Program {
    fn run(mut self) -> (u64, u64) {
        let (mut prepared, mut produced) = (0, 0);
        while produced < ROUNDS {
            // One to three messages, then wait for the answer to all of them.
            for _ in 0..=self.random.below(3) {
                if prepared < ROUNDS {
                    prepared += 1;
                    self.push(prepared);
                    hesitate(&mut self.random);
                }
            }
            let mut polls_left = self.random.below(60);
            while produced < prepared {
                match self.side.events.take() {
                    Some(event) => {
                        assert!(event.news.produced > produced);
                        produced = event.news.produced;
                    }
                    None if polls_left > 0 => {
                        polls_left -= 1;
                        hesitate(&mut self.random);
                    }
                    None => self.sleep(),
                }
            }
        }
        (self.sleeps, self.arms)
    }

    fn push(&mut self, prepared_total: u64) {
        if push(&mut self.side.submitter, prepared_total).is_needed() {
            self.worker_wake.signal().expect("wake");
        }
    }

    fn sleep(&mut self) {
        self.side.events.arm();
        self.arms += 1;
        if !self.side.events.has_event() {
            self.sleeps += 1;
            assert!(self.wake.wait(None).expect("sleep"));
        }
        self.side.events.disarm();
        self.wake.drain().expect("drain");
    }
}

fn push(submitter: &mut Submitter, prepared_total: u64) -> WakeNeeded {
    let submission = Submission {
        op: SubmissionOp::Kick,
        slot: 0,
        generation: 1,
        prepared_total,
        consumed_total: 0,
    };
    submitter.push(&submission, Inline::NONE).expect("room");
    submitter.must_wake()
}

/// A short random delay, so that the two sides meet at every step of each other.
fn hesitate(random: &mut Random) {
    match random.below(16) {
        0 => thread::yield_now(),
        1..6 => (0..random.below(40)).for_each(|_| std::hint::spin_loop()),
        _ => {}
    }
}

#[test]
fn no_wake_up_is_lost_between_arming_and_pushing() {
    let layout = Layout::of(Shape::new(1, 1 << 20, 4096).expect("shape"));
    let segment = layout.create_segment("session").expect("segment");
    let mut side = WorkerSide::new(segment.clone(), layout).expect("worker side");
    assert!(side.open_slot(0, 1));
    let (sender, receiver) = wake_channel().expect("pipe");
    let worker_wake = Wake::new().expect("eventfd");
    let set = WakeSet::new().expect("epoll");
    set.add(&worker_wake, 0).expect("add");
    let random = Random::new(4);
    let worker = Worker {
        side,
        wake: sender,
        set,
        random,
        sleeps: 0,
        arms: 0,
    };
    let worker = thread::spawn(move || worker.run());
    let side = ProgramSide::open(&segment).expect("program side");
    let random = Random::new(5);
    let program = Program {
        side,
        worker_wake,
        wake: receiver,
        random,
        sleeps: 0,
        arms: 0,
    };
    let (sleeps, arms) = program.run();
    let (worker_sleeps, worker_arms) = worker.join().expect("worker");
    // The hunt is one only if both sides often armed, and found work in the last moment.
    assert!(arms > 1000 && worker_arms > 1000, "{arms} {worker_arms}");
    assert!(sleeps > 0 && worker_sleeps > 0, "{sleeps} {worker_sleeps}");
}

/// Meetings of the two sides in [`sleeper_sees_the_news_or_the_waker_sees_the_sleeper`].
const MEETINGS: u64 = 50_000;

/// A place where two threads wait for each other, so that they go on within nanoseconds.
#[derive(Default)]
struct Meeting {
    arrived: [AtomicU64; 2],
}

impl Meeting {
    /// Arrives as `who` for the `count`th time.
    fn meet(&self, who: usize, count: u64) {
        self.arrived[who].store(count, Ordering::Release);
        let mut polls = 0u32;
        while self.arrived[1 - who].load(Ordering::Acquire) < count {
            polls += 1;
            if polls.is_multiple_of(200) {
                thread::yield_now();
            }
            std::hint::spin_loop();
        }
    }
}

#[test]
fn sleeper_sees_the_news_or_the_waker_sees_the_sleeper() {
    let layout = Layout::of(Shape::new(1, 1 << 20, 4096).expect("shape"));
    let segment = layout.create_segment("session").expect("segment");
    let mut worker = WorkerSide::new(segment.clone(), layout).expect("worker side");
    assert!(worker.open_slot(0, 1));
    let ProgramSide {
        mut submitter,
        mut events,
        ..
    } = ProgramSide::open(&segment).expect("program side");
    let meeting = Meeting::default();
    // What the worker saw or did in a round.
    let worker_noticed = AtomicBool::new(false);
    let mut lost = 0;
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random::new(1);
            for round in 0..MEETINGS {
                meeting.meet(0, 2 * round + 1);
                (0..random.below(20)).for_each(|_| std::hint::spin_loop());
                let noticed = if round % 2 == 0 {
                    worker.arm();
                    worker.has_submission()
                } else {
                    worker.publish(
                        0,
                        &SlotNews {
                            reclaimed: round,
                            ..SlotNews::default()
                        },
                    );
                    worker.flush_events().is_needed()
                };
                worker_noticed.store(noticed, Ordering::Relaxed);
                meeting.meet(0, 2 * round + 2);
                worker.disarm();
                while worker.poll().is_some() {}
            }
        });
        let mut random = Random::new(2);
        for round in 0..MEETINGS {
            meeting.meet(1, 2 * round + 1);
            (0..random.below(20)).for_each(|_| std::hint::spin_loop());
            let noticed = if round % 2 == 0 {
                push(&mut submitter, round).is_needed()
            } else {
                events.arm();
                events.has_event()
            };
            meeting.meet(1, 2 * round + 2);
            let worker_noticed = worker_noticed.load(Ordering::Relaxed);
            // Counted, because a panic here would leave the other thread waiting.
            lost += u64::from(!noticed && !worker_noticed);
            events.disarm();
            while events.take().is_some() {}
        }
    });
    assert_eq!(lost, 0, "wake-ups were lost in {MEETINGS} meetings");
}
