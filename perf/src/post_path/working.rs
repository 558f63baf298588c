//! The worker's part: a whole pass in which an application writes and the bytes leave.

use anyhow::{Result, ensure};
use pollux_control::rpc::InlineUse;
use pollux_proto::event::EventSet;
use pollux_provider::soft::SoftGroup;
use pollux_worker::{
    App, Clock, Command, ConnId, ConnOutcome, FlowControl, InlineRule, Io, Progress, Worker,
};

use super::{CAPS, MESSAGE_BYTES};
use crate::pair::{self, End, PairSpec, RNR_TIMER, rest};

/// Bytes of each ring: a whole number of messages, so that none is cut in two at its end.
pub(super) const RING_BYTES: u32 = 16 << 10;
/// The connection that sends.
const SENDING: ConnId = ConnId(0);

/// Writes a message when ordered, and takes in whatever comes.
struct Writer {
    /// Bytes received, and whether all were as sent.
    received: u64,
    is_intact: bool,
}

impl App for Writer {
    /// The byte of which the message consists.
    type Order = u8;
    type Report = ();

    fn order<I: Io>(&mut self, order: u8, io: &mut I) -> Option<()> {
        let written = io.write(SENDING, &[order; MESSAGE_BYTES]);
        // Word only of a failure: a report would wake control, which is not on a message's way.
        (written != MESSAGE_BYTES).then_some(())
    }

    fn opened<I: Io>(&mut self, _: ConnId, _: u64, _: &mut I) {}

    fn ready<I: Io>(&mut self, conn: ConnId, _: u64, _: EventSet, io: &mut I) -> Option<()> {
        let mut into = [0; MESSAGE_BYTES];
        while let count @ 1.. = io.read(conn, &mut into) {
            let number = self.received / MESSAGE_BYTES as u64;
            self.is_intact &= into[..count].iter().all(|byte| *byte == number as u8);
            self.received += count as u64;
        }
        None
    }

    fn closed(&mut self, _: ConnId, _: u64, _: ConnOutcome) -> Option<()> {
        None
    }
}

/// No time passes, so that nothing depends on it.
#[derive(Clone, Copy)]
pub(super) struct Still;

impl Clock for Still {
    fn now(&self) -> u64 {
        1
    }
}

type TheWorker = Worker<SoftGroup, Writer, Still>;
/// What is counted: the worker takes the order, its application writes, the bytes leave.
#[inline(never)]
fn counted_pass(worker: &mut TheWorker) -> Progress {
    worker.pass()
}

/// Sends `messages` messages on one of `idle + 1` connections.
pub(super) fn run(mode: InlineUse, messages: u64, idle: u16) -> Result<()> {
    let mut nodes = pair::connected(&spec(idle + 1), [end(), end()])?;
    for node in &mut nodes {
        node.send(Command::SetInline(rule(mode)))?;
    }
    rest(&mut nodes)?;
    for number in 0..messages {
        nodes[0].send(Command::App(number as u8))?;
        let progress = counted_pass(&mut nodes[0].worker);
        ensure!(progress == Progress::Busy, "an order was not taken");
        rest(&mut nodes)?;
    }
    let app = nodes[1].worker.app();
    let expected = messages * MESSAGE_BYTES as u64;
    ensure!(
        app.received == expected && app.is_intact,
        "{} bytes arrived instead of {expected}, or not as they were sent",
        app.received
    );
    Ok(())
}

pub(super) fn rule(mode: InlineUse) -> InlineRule {
    match mode {
        InlineUse::On => InlineRule::ALL,
        InlineUse::Messages => InlineRule {
            writes: 0,
            ..InlineRule::ALL
        },
        InlineUse::Off => InlineRule::OFF,
    }
}

fn spec(conns: u16) -> PairSpec {
    PairSpec {
        conns,
        ring_bytes: RING_BYTES,
        caps: CAPS,
        rnr_timer: RNR_TIMER,
        flow: FlowControl::UnderWay(u32::MAX),
    }
}

fn end() -> End<SoftGroup, Writer, Still> {
    End {
        app: Writer {
            received: 0,
            is_intact: true,
        },
        clock: Still,
        group: Box::new(|group| group),
    }
}
