//! One batch: both workers on their threads, and what was counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use pollux_control::bounce::pin_to;
use pollux_proto::credit::Credits;
use pollux_provider::QpCaps;
use pollux_wire::llc::{AnnounceCredits, Direction, Form, LLC_BYTES};
use pollux_worker::{
    Command, CreditFigures, FlowControl, LinkFigures, LlcBytes, Progress, Report, Snapshot, Tsc,
};

use super::adapter::{Adapter, AdapterGroup, Paused, Schedule};
use super::apps::{Client, Server, Side, Start, Word};
use super::report::{Batch, RnrNaks};
use super::{IncastPlan, Mode, UNDER_WAY_LINUX};
use crate::pair::{self, End, PairSpec};

/// Bytes of each ring: some requests of the longest kind, so that a thousand connections need little.
const RING_BYTES: u32 = 4096;
/// Send slots of each queue pair.
const SEND_SLOTS: u32 = 256;
/// Bytes that go inline, as the generic adapter grants them.
const INLINE_BYTES: u32 = 256;
/// After so long without an answer a batch is given up.
const STALLED_AFTER: Duration = Duration::from_secs(30);
/// Idle passes between two looks at whether it is stalled.
const PASSES_PER_LOOK: u64 = 1 << 14;
/// Passes until a snapshot must have come.
const SNAPSHOT_PASSES: u32 = 10_000;

type Node = pair::Node<AdapterGroup, Side, Tsc>;

/// What a thread does when there is nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WhenIdle {
    /// It polls on: the core is its own.
    Spin,
    /// It lets the other thread have the core that both share.
    Yield,
}

pub(super) fn idle(when_idle: WhenIdle) {
    match when_idle {
        WhenIdle::Spin => std::hint::spin_loop(),
        WhenIdle::Yield => thread::yield_now(),
    }
}

/// Where both threads run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Placement {
    /// The cores of the asking and of the answering thread; `None`: wherever the system puts them.
    pub(super) cores: Option<[usize; 2]>,
}

impl Placement {
    fn when_idle(self) -> WhenIdle {
        match self.cores {
            Some([client, server]) if client != server => WhenIdle::Spin,
            Some(_) | None => WhenIdle::Yield,
        }
    }
}

/// Runs one batch.
pub(super) fn batch(
    plan: &IncastPlan,
    placement: Placement,
    (conns, round, mode): (u16, u32, Mode),
) -> Result<Batch> {
    let paused = Arc::new(Paused::default());
    let schedule = plan.pauses.map(|pauses| {
        // The same in every mode of a round, so that these differ in nothing else.
        let seed = u64::from(conns) << 32 | u64::from(round);
        Schedule::new(pauses, seed, Arc::clone(&paused))
    });
    let when_idle = placement.when_idle();
    let clock = Tsc::new();
    let end = |app, schedule| End {
        app,
        clock: clock.clone(),
        group: {
            let clock = clock.clone();
            Box::new(move |driver| Adapter::over(driver, clock, schedule, when_idle))
        },
    };
    let client = Client::new(conns, plan.bytes, plan.limit);
    let client = end(Side::Client(Box::new(client)), None);
    let server = Side::Server(Server::new(plan.bytes, plan.work));
    let mut nodes = pair::connected(&spec(plan, conns, mode)?, [client, end(server, schedule)])?;
    nodes[0].send(Command::App(Start))?;
    let (stop, cores) = (AtomicBool::new(false), placement.cores);
    let [client, server] = &mut nodes;
    thread::scope(|scope| {
        let stop = &stop;
        let places = [0, 1].map(|side| (cores.map(|cores| cores[side]), when_idle));
        let start = |name: &str| thread::Builder::new().name(name.to_owned());
        let asking = start("asking").spawn_scoped(scope, move || {
            drive(client, places[0], stop).context("the asking side")
        });
        let answering = start("answering").spawn_scoped(scope, move || {
            drive(server, places[1], stop).context("the answering side")
        });
        if asking.is_err() || answering.is_err() {
            stop.store(true, Ordering::Relaxed);
        }
        for thread in [asking, answering] {
            let thread = thread.context("cannot start a thread")?;
            let ended = thread.join();
            ended.map_err(|_| anyhow!("a worker's thread stopped before its time"))??;
        }
        anyhow::Ok(())
    })?;
    figures(&mut nodes, (round, mode), &paused)
}

fn spec(plan: &IncastPlan, conns: u16, mode: Mode) -> Result<PairSpec> {
    let flow = match mode {
        Mode::Off => FlowControl::UnderWay(u32::MAX),
        Mode::Bounded => FlowControl::UnderWay(UNDER_WAY_LINUX),
        Mode::On => FlowControl::Credits(
            Credits::new(plan.recv_depth, plan.recv_depth).context("too few receives")?,
        ),
    };
    Ok(PairSpec {
        conns,
        ring_bytes: RING_BYTES,
        caps: QpCaps {
            send_wr: SEND_SLOTS,
            recv_wr: plan.recv_depth.into(),
            send_sge: 2,
            recv_sge: 1,
            inline_bytes: INLINE_BYTES,
        },
        rnr_timer: plan.rnr_timer,
        flow,
    })
}

/// Sets the flag however a thread ends, so that the other one ends too.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Lets a worker run until every request is answered; does control's part between its passes.
fn drive(
    node: &mut Node,
    (core, when_idle): (Option<usize>, WhenIdle),
    stop: &AtomicBool,
) -> Result<()> {
    let _stop_at_end = StopAtEnd(stop);
    if let Some(core) = core {
        pin_to(core)?;
    }
    let mut stall = Stall::new();
    let mut idle_passes = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        let progress = node.worker.pass();
        while let Some(news) = node.news.pop() {
            match news {
                Report::CreditsDue { link, credits } => node.send(Command::SendLlc {
                    link,
                    message: announcement(credits)?,
                })?,
                Report::App(Word::Done) => return Ok(()),
                Report::App(word) => return Err(anyhow!("{}", bad(word))),
                news => bail!("a worker reports {news:?}"),
            }
        }
        if progress == Progress::Idle {
            idle_passes += 1;
            if idle_passes.is_multiple_of(PASSES_PER_LOOK) {
                stall.look(node)?;
            }
            idle(when_idle);
        }
    }
    Ok(())
}

fn bad(word: Word) -> String {
    match word {
        Word::Done => "all is well".to_owned(),
        Word::Wrong { conn, number, at } => format!(
            "the answer to request {number} of connection {conn} has a wrong byte, the one with \
             number {at}; this is a defect of the data plane"
        ),
        Word::Reset { conn } => format!("connection {conn} was reset"),
    }
}

/// Whether answers still come.
struct Stall {
    answers: u64,
    since: Instant,
}

impl Stall {
    fn new() -> Stall {
        Stall {
            answers: 0,
            since: Instant::now(),
        }
    }

    fn look(&mut self, node: &Node) -> Result<()> {
        let Side::Client(client) = node.worker.app() else {
            return Ok(());
        };
        if client.answers() > self.answers {
            *self = Stall {
                answers: client.answers(),
                since: Instant::now(),
            };
        } else if self.since.elapsed() > STALLED_AFTER {
            bail!(
                "no answer has come for {} s, after {} of them",
                STALLED_AFTER.as_secs(),
                self.answers
            );
        }
        Ok(())
    }
}

/// An ANNOUNCE CREDITS; the worker fills in how many there are by then.
fn announcement(credits: u8) -> Result<LlcBytes> {
    let direction = Direction::Response;
    let mut bytes = [0; LLC_BYTES];
    AnnounceCredits { direction, credits }.emit(Form::V1, &mut bytes)?;
    Ok(bytes.into_iter().collect())
}

/// What the link of one side has counted. The threads have ended; this one polls.
fn link(nodes: &mut [Node; 2], side: usize) -> Result<LinkFigures> {
    let snapshot = Box::new(Snapshot::with_room(0, 1, 0));
    nodes[side].send(Command::Snapshot(snapshot))?;
    for _ in 0..SNAPSHOT_PASSES {
        let _ = nodes[side].worker.pass();
        while let Some(news) = nodes[side].news.pop() {
            match news {
                Report::Snapshot(mut snapshot) => {
                    return snapshot.links.pop().context("the worker has no link");
                }
                Report::CreditsDue { .. } => {}
                news => bail!("a worker reports {news:?}"),
            }
        }
    }
    bail!("no figures came in {SNAPSHOT_PASSES} passes")
}

fn figures(nodes: &mut [Node; 2], (round, mode): (u32, Mode), paused: &Paused) -> Result<Batch> {
    let links = [link(nodes, 0)?, link(nodes, 1)?];
    let credits = |of: fn(&CreditFigures) -> u64| -> u64 {
        let each = links.iter().filter_map(|link| link.credits.as_ref());
        each.map(of).sum()
    };
    let Side::Client(client) = nodes[0].worker.app() else {
        bail!("the first side does not ask");
    };
    let summary = client.samples().summary();
    let elapsed = client.elapsed().as_secs_f64();
    let requests = summary.iterations;
    if requests == 0 || elapsed <= 0.0 {
        bail!("no request was answered in the time of a batch: give it more (--seconds)");
    }
    // A sum-up is one way, and these are round trips.
    let round_trip = |one_way: Option<f64>| one_way.map(|us| 2.0 * us);
    Ok(Batch {
        round,
        mode,
        requests,
        requests_per_s: requests as f64 / elapsed,
        p50_us: round_trip(summary.p50),
        p99_us: round_trip(summary.p99),
        rnr_naks: RnrNaks {
            by_server: links[1].stats.rnr_naks_sent,
            by_client: links[0].stats.rnr_naks_sent,
        },
        credit_waits: credits(|figures| figures.waits),
        credit_waited_us: credits(|figures| figures.waited_ns) as f64 / 1000.0,
        announcements: credits(|figures| figures.announcements_sent),
        returned_by_announcement: credits(|figures| figures.returned_by_announcement),
        returned_by_cdc: credits(|figures| figures.returned_by_cdc),
        pauses: paused.count.load(Ordering::Relaxed),
        paused_us: paused.ns.load(Ordering::Relaxed) as f64 / 1000.0,
    })
}
