//! Both workers' part of a request and its answer, with credits and without: what flow control costs.

use anyhow::{Context, Result, ensure};
use pollux_control::rpc::InlineUse;
use pollux_proto::credit::Credits;
use pollux_proto::event::EventSet;
use pollux_provider::soft::SoftGroup;
use pollux_worker::{App, Command, ConnId, ConnOutcome, FlowControl, Io};

use super::working::{RING_BYTES, Still, rule};
use super::{CAPS, MESSAGE_BYTES};
use crate::pair::{self, End, Node, PairSpec, RNR_TIMER, rest};

/// Passes of both workers within which an answer must be there.
const PASSES_MAX: u32 = 64;
/// The connection that asks.
const ASKING: ConnId = ConnId(0);

/// What an end does with the bytes that come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Asks when ordered, and takes the answer.
    Asks,
    /// Sends every byte back.
    Answers,
}

struct Talker {
    part: Part,
    /// Bytes of answers received, and whether all were as asked.
    received: u64,
    is_intact: bool,
}

impl App for Talker {
    /// The byte of which the request consists.
    type Order = u8;
    type Report = ();

    fn order<I: Io>(&mut self, order: u8, io: &mut I) -> Option<()> {
        let written = io.write(ASKING, &[order; MESSAGE_BYTES]);
        (written != MESSAGE_BYTES).then_some(())
    }

    fn opened<I: Io>(&mut self, _: ConnId, _: u64, _: &mut I) {}

    fn ready<I: Io>(&mut self, conn: ConnId, _: u64, _: EventSet, io: &mut I) -> Option<()> {
        let mut bytes = [0; MESSAGE_BYTES];
        while let count @ 1.. = io.read(conn, &mut bytes) {
            match self.part {
                Part::Answers if io.write(conn, &bytes[..count]) != count => return Some(()),
                Part::Answers => {}
                Part::Asks => {
                    let number = self.received / MESSAGE_BYTES as u64;
                    self.is_intact &= bytes[..count].iter().all(|byte| *byte == number as u8);
                    self.received += count as u64;
                }
            }
        }
        None
    }

    fn closed(&mut self, _: ConnId, _: u64, _: ConnOutcome) -> Option<()> {
        None
    }
}

type TheNode = Node<SoftGroup, Talker, Still>;

/// What is counted: both workers in turn until the answer is there. How many passes that takes is the
/// same each time, since nothing else runs.
#[inline(never)]
fn counted_exchange(nodes: &mut [TheNode; 2], expected: u64) -> bool {
    for _ in 0..PASSES_MAX {
        let [asking, answering] = &mut *nodes;
        let _ = asking.worker.pass();
        if asking.worker.app().received == expected {
            return true;
        }
        let _ = answering.worker.pass();
    }
    false
}

/// Exchanges `messages` messages on one of `idle + 1` connections.
pub(super) fn run(mode: InlineUse, flow: Flow, messages: u64, idle: u16) -> Result<()> {
    let spec = PairSpec {
        conns: idle + 1,
        ring_bytes: RING_BYTES,
        caps: CAPS,
        rnr_timer: RNR_TIMER,
        flow: flow.control()?,
    };
    let mut nodes = pair::connected(&spec, [end(Part::Asks), end(Part::Answers)])?;
    for node in &mut nodes {
        node.send(Command::SetInline(rule(mode)))?;
    }
    rest(&mut nodes)?;
    for number in 0..messages {
        nodes[0].send(Command::App(number as u8))?;
        let expected = (number + 1) * MESSAGE_BYTES as u64;
        ensure!(
            counted_exchange(&mut nodes, expected),
            "{} bytes of answers arrived instead of {expected}",
            nodes[0].worker.app().received
        );
        rest(&mut nodes)?;
    }
    ensure!(
        nodes[0].worker.app().is_intact,
        "the answers are not what was asked"
    );
    Ok(())
}

/// What keeps the ends from sending too much.
#[derive(Clone, Copy)]
pub(super) enum Flow {
    Without,
    Credits,
}

impl Flow {
    fn control(self) -> Result<FlowControl> {
        Ok(match self {
            Flow::Without => FlowControl::UnderWay(u32::MAX),
            Flow::Credits => {
                let receives = u8::try_from(CAPS.recv_wr)?;
                let credits = Credits::new(receives, receives);
                FlowControl::Credits(credits.context("too few receives for credits")?)
            }
        })
    }
}

fn end(part: Part) -> End<SoftGroup, Talker, Still> {
    End {
        app: Talker {
            part,
            received: 0,
            is_intact: true,
        },
        clock: Still,
        group: Box::new(|group| group),
    }
}
