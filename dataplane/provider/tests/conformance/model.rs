//! Random work against a model of a reliable connection.
//!
//! The model knows queues and slots exactly: which post must be refused, which completions must come and in
//! which order, what each receive must hold, and which bytes must be in memory when it comes.

use std::collections::VecDeque;

use pollux_provider::{
    Completion, PollGroup, PostError, Signal, WcOpcode, WcStatus, WrId, rnr_timer_ns,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::bed::{Bed, End, Placement, SLOT, Wish, World};

on_every_bed!(any_work_ends_as_the_model_says);

/// Bytes that by-reference work reads; never changed.
const SOURCE: usize = 200_000;
/// Bytes that inline work is copied from; overwritten after each post.
const SCRATCH: usize = 199_000;

#[derive(Debug, Clone, Copy)]
enum Op {
    Write {
        len: usize,
        how: Placement,
        signal: Signal,
    },
    WriteImm {
        len: usize,
        how: Placement,
        signal: Signal,
    },
    Send {
        len: usize,
        how: Placement,
        signal: Signal,
    },
    Recv,
    Flush,
    Reap {
        room: usize,
    },
    Wait,
}

fn ops() -> impl Strategy<Value = Vec<(bool, Op)>> {
    let work = || {
        let how = prop_oneof![Just(Placement::Inline), Just(Placement::ByReference)];
        let signal = prop_oneof![Just(Signal::Signaled), Just(Signal::Unsignaled)];
        (0..257usize, how, signal)
    };
    let op = prop_oneof![
        8 => work().prop_map(|(len, how, signal)| Op::Write { len, how, signal }),
        1 => work().prop_map(|(len, how, signal)| Op::WriteImm { len, how, signal }),
        8 => work().prop_map(|(len, how, signal)| Op::Send { len: len.min(SLOT), how, signal }),
        8 => Just(Op::Recv),
        6 => Just(Op::Flush),
        8 => (0..9usize).prop_map(|room| Op::Reap { room }),
        2 => Just(Op::Wait),
    ];
    prop::collection::vec((any::<bool>(), op), 1..150)
}

/// A piece of work in one direction.
#[derive(Debug, Clone)]
struct Posted {
    wr: u64,
    signal: Signal,
    len: u32,
    /// What a receive of the peer gets: bytes of a SEND, or an immediate.
    message: Option<Result<Vec<u8>, u32>>,
    /// What is in the peer's memory afterwards.
    written: Option<(usize, Vec<u8>)>,
}

/// One direction.
#[derive(Default)]
struct Lane {
    /// Posted and not covered by a reaped completion.
    slots: VecDeque<Posted>,
    /// Not yet received at the peer, with everything written before.
    under_way: VecDeque<Posted>,
    posted: u64,
    next_place: usize,
}

/// The receives of one end, by slot.
#[derive(Default)]
struct Receives {
    posted: VecDeque<u64>,
    next: u64,
}

struct Model<B: Bed> {
    world: World<B>,
    lanes: [Lane; 2],
    receives: [Receives; 2],
}

impl<B: Bed> Model<B> {
    fn end(&mut self, side: usize) -> &mut End<B::Device> {
        if side == 0 {
            &mut self.world.a
        } else {
            &mut self.world.b
        }
    }

    fn source(&mut self, side: usize, len: usize, how: Placement) -> (Vec<u8>, usize) {
        let posted = self.lanes[side].posted as usize;
        let end = self.end(side);
        match how {
            Placement::ByReference => {
                let offset = SOURCE + posted * 7 % 1000;
                (end.bytes(offset, len), offset)
            }
            Placement::Inline => {
                let bytes: Vec<u8> = (0..len).map(|at| (posted * 11 + at) as u8).collect();
                end.fill(SCRATCH, &bytes);
                (bytes, SCRATCH)
            }
        }
    }

    fn expect_room(&self, side: usize, posted: Result<(), PostError>) -> bool {
        let full = self.lanes[side].slots.len() == 16;
        assert_eq!(
            posted,
            if full {
                Err(PostError::SendQueueFull)
            } else {
                Ok(())
            }
        );
        !full
    }

    fn record(&mut self, side: usize, posted: Posted) {
        let lane = &mut self.lanes[side];
        lane.slots.push_back(posted.clone());
        lane.under_way.push_back(posted);
        lane.posted += 1;
        // The source of inline work is free at once.
        self.end(side).fill(SCRATCH, &[0xdd; 300]);
    }

    fn step(&mut self, side: usize, op: Op) {
        match op {
            Op::Write { len, how, signal } => self.post_write(side, len, how, signal, None),
            Op::WriteImm { len, how, signal } => {
                let imm = self.lanes[side].posted as u32 ^ 0x5a5a;
                self.post_write(side, len, how, signal, Some(imm));
            }
            Op::Send { len, how, signal } => self.post_send(side, len, how, signal),
            Op::Recv => self.post_recv(side),
            Op::Flush => self.end(side).flush(),
            Op::Reap { room } => self.reap(side, room),
            Op::Wait => self.world.now += rnr_timer_ns(1).expect("code 1"),
        }
    }

    fn post_write(
        &mut self,
        side: usize,
        len: usize,
        how: Placement,
        signal: Signal,
        imm: Option<u32>,
    ) {
        let wr = self.lanes[side].posted;
        let (bytes, offset) = self.source(side, len, how);
        let place = self.lanes[side].next_place;
        let to = self.end(1 - side).place(place);
        let end = self.end(side);
        let from = [end.piece(offset, len)];
        let result = match imm {
            Some(imm) => end.try_write_imm(wr, &from, (to, imm), how, signal),
            None => end.try_write(wr, &from, to, how, signal),
        };
        if self.expect_room(side, result) {
            self.lanes[side].next_place += len;
            let (message, written) = (imm.map(Err), Some((place, bytes)));
            let len = len as u32;
            self.record(
                side,
                Posted {
                    wr,
                    signal,
                    len,
                    message,
                    written,
                },
            );
        }
    }

    fn post_send(&mut self, side: usize, len: usize, how: Placement, signal: Signal) {
        let wr = self.lanes[side].posted;
        let (bytes, offset) = self.source(side, len, how);
        let end = self.end(side);
        let from = [end.piece(offset, len)];
        let result = end.try_send(wr, &from, how, signal);
        if self.expect_room(side, result) {
            let (len, message) = (len as u32, Some(Ok(bytes)));
            self.record(
                side,
                Posted {
                    wr,
                    signal,
                    len,
                    message,
                    written: None,
                },
            );
        }
    }

    fn post_recv(&mut self, side: usize) {
        let slot = self.receives[side].next % 16;
        let end = self.end(side);
        let into = end.private_piece(slot as usize * SLOT, SLOT);
        let result = end.group.post_recv(end.qp, WrId(slot), into);
        if self.receives[side].posted.len() == 16 {
            assert_eq!(result, Err(PostError::RecvQueueFull));
        } else {
            assert_eq!(result, Ok(()));
            self.receives[side].posted.push_back(slot);
            self.receives[side].next += 1;
        }
    }

    fn reap(&mut self, side: usize, room: usize) {
        let mut into = [Completion::EMPTY; 8];
        let now = self.world.now;
        let count = self.end(side).group.reap(now, &mut into[..room]);
        for done in &into[..count] {
            assert_eq!(done.status, WcStatus::Success);
            if done.opcode.is_receive() {
                self.check_recv(side, done);
            } else {
                self.check_send(side, done);
            }
        }
    }

    /// The next signalled work, and it covers all before it.
    fn check_send(&mut self, side: usize, done: &Completion) {
        let slots = &mut self.lanes[side].slots;
        loop {
            let posted = slots.pop_front().expect("a completion without work");
            if posted.signal == Signal::Signaled {
                assert_eq!((done.wr_id.0, done.byte_len), (posted.wr, posted.len));
                return;
            }
        }
    }

    /// The next message of the other side, in the oldest receive, with everything written before it.
    fn check_recv(&mut self, side: usize, done: &Completion) {
        let slot = self.receives[side]
            .posted
            .pop_front()
            .expect("a receive that was not posted");
        assert_eq!(done.wr_id.0, slot);
        loop {
            let posted = self.lanes[1 - side]
                .under_way
                .pop_front()
                .expect("a message that was not sent");
            let end = self.end(side);
            if let Some((place, bytes)) = &posted.written {
                assert!(
                    end.bytes(*place, bytes.len()) == *bytes,
                    "write {}",
                    posted.wr
                );
            }
            assert!(posted.message.is_none() || done.byte_len == posted.len);
            match posted.message {
                None => {}
                Some(Ok(bytes)) => {
                    assert_eq!((done.opcode, done.imm), (WcOpcode::Recv, None));
                    assert!(
                        end.received(slot, bytes.len()) == bytes,
                        "send {}",
                        posted.wr
                    );
                    return;
                }
                Some(Err(imm)) => {
                    assert_eq!((done.opcode, done.imm), (WcOpcode::RecvWithImm, Some(imm)));
                    return;
                }
            }
        }
    }

    /// Whether the WRITEs to this side are in memory that nothing announces any more.
    fn is_written(&mut self, side: usize) -> bool {
        let rest = self.lanes[1 - side].under_way.clone();
        let mut written = rest.into_iter().filter_map(|posted| posted.written);
        written.all(|(place, bytes)| self.end(side).bytes(place, bytes.len()) == bytes)
    }

    /// Lets everything end, and looks at what is left.
    fn finish(&mut self) {
        for round in 0..2_000_000u64 {
            for side in 0..2 {
                self.end(side).flush();
                while self.receives[side].posted.len() < 16 {
                    self.post_recv(side);
                }
                self.reap(side, 8);
            }
            self.world.now += rnr_timer_ns(1).expect("code 1");
            let waits = |lane: &Lane| {
                lane.under_way.iter().any(|posted| posted.message.is_some())
                    || lane
                        .slots
                        .iter()
                        .any(|posted| posted.signal == Signal::Signaled)
            };
            let silent = (0..2).all(|side| self.is_written(side));
            if !self.lanes.iter().any(waits) && silent && round > 50 {
                break;
            }
            if round > 100 {
                std::thread::yield_now();
            }
        }
        for side in 0..2 {
            let rest = std::mem::take(&mut self.lanes[1 - side].under_way);
            assert!(
                rest.iter().all(|posted| posted.message.is_none()),
                "{rest:?}"
            );
            for (place, bytes) in rest.iter().filter_map(|posted| posted.written.as_ref()) {
                assert!(self.end(side).bytes(*place, bytes.len()) == *bytes);
            }
            assert!(
                self.lanes[side]
                    .slots
                    .iter()
                    .all(|posted| posted.signal == Signal::Unsignaled)
            );
        }
    }
}

fn any_work_ends_as_the_model_says<B: Bed>() {
    let cases = 60;
    let mut runner = TestRunner::new(Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    });
    let outcome = runner.run(&ops(), |ops| {
        let world = World::<B>::connected(Wish::default());
        let mut model = Model {
            world,
            lanes: Default::default(),
            receives: Default::default(),
        };
        for side in 0..2 {
            let source: Vec<u8> = (0..2000u32).map(|at| ((at * 17) >> 2) as u8).collect();
            model.end(side).fill(SOURCE, &source);
        }
        for (side, op) in ops {
            model.step(usize::from(side), op);
        }
        model.finish();
        Ok(())
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
}
