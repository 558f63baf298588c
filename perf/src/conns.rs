//! Many connections between two appliances: what idle ones cost those that are active, and what
//! opening and closing leaves behind.
//!
//! Four processes: two appliances, a program that sends everything back, and this one, which opens
//! the connections and measures. The programs are attached to the appliances, so a connection is a
//! whole one: TCP, handshake, a slot in shared memory at either end.

mod appliance;
mod client;
mod echo;
mod report;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pollux_control::hist::Samples;

use self::appliance::{Appliances, Resources};
use self::client::{Client, Conn, Fill};
pub use self::echo::serve as serve_echo;
pub use self::report::{Batch, Cycle, Open, Report, Round};
use crate::table::Format;

/// Slots of a session: as many as there can be.
const SLOTS: u16 = 4096;
/// Connections of a session: fewer, since a closed one keeps its slot until both ends are done.
const SESSION_CONNS: u16 = 3584;
/// Connections that one program can open at most: its sessions at their largest.
pub const CONNS_MAX: u32 = 16_384;

/// What to measure.
#[derive(Clone, Debug)]
pub struct ConnsPlan {
    /// Connections open at once, 1 to [`CONNS_MAX`]; those that are active among them.
    pub open: u32,
    /// Connections on which requests are made, one at a time on each.
    pub active: u32,
    /// Bytes of a request and of its answer, 1 to 4096.
    pub size: usize,
    /// Length of a batch.
    pub batch: Duration,
    /// Rounds, each with a batch without idle connections and one with them.
    pub rounds: u32,
    /// Connections opened, used once and closed one after the other.
    pub cycle: u32,
    /// Connections opened at once.
    pub burst: u32,
    /// How to print.
    pub format: Format,
}

/// Measures, and prints the report.
///
/// # Errors
///
/// An appliance or the other program does not start or ends early, a connection fails or falls back
/// to TCP, or an answer is not what was sent.
pub fn run(plan: &ConnsPlan) -> Result<()> {
    ensure!(
        plan.active <= plan.open,
        "{} active connections are more than {} open ones",
        plan.active,
        plan.open
    );
    let most = plan.open.max(plan.burst).max(1);
    let appliances = Appliances::start(most)?;
    let mut client = Client::start(&appliances, most)?;
    // The first connection makes the link and the first pages; it is no part of what is compared.
    client.cycle(64)?;
    appliances.settle(0)?;
    let idle = appliances.resources()?;
    let open = (plan.rounds > 0)
        .then(|| measure_open(plan, &appliances, &mut client))
        .transpose()?;
    let cycle = (plan.cycle > 0)
        .then(|| measure_cycle(plan.cycle, &appliances, &mut client))
        .transpose()
        .context("connections one after the other")?;
    let burst = (plan.burst > 0)
        .then(|| measure_burst(plan.burst, &appliances, &mut client))
        .transpose()
        .context("connections at once")?;
    let report = Report {
        size: plan.size,
        idle,
        open,
        cycle,
        burst,
        end: appliances.resources()?,
        groups: appliances.groups()?,
    };
    drop(client);
    appliances.stop()?;
    report.print(plan.format)
}

fn measure_open(plan: &ConnsPlan, appliances: &Appliances, client: &mut Client) -> Result<Open> {
    let mut rounds = Vec::new();
    let mut all_open = Vec::new();
    for _ in 0..plan.rounds {
        let mut active = client.open(Fill::FromFirst, plan.active)?;
        // Half of the batches without come before and half after, so that what changes slowly on
        // the machine falls on both alike.
        let half = (plan.size, plan.batch / 2);
        let (mut alone, mut beside) = (Samples::new(), Samples::new());
        let before = client.exchange(&mut active, half, &mut alone)?;
        let idle = client.open(Fill::FromLast, plan.open - plan.active)?;
        all_open = appliances.resources()?;
        let with = client.exchange(&mut active, (plan.size, plan.batch), &mut beside)?;
        close(idle, appliances, plan.active)?;
        let after = client.exchange(&mut active, half, &mut alone)?;
        close(active, appliances, 0)?;
        rounds.push(Round {
            without: Batch::of(&alone, before + after),
            with: Batch::of(&beside, with),
        });
    }
    Ok(Open {
        open: plan.open,
        active: plan.active,
        rounds,
        resources: all_open,
    })
}

/// Closes connections and waits until both appliances have only `left`.
fn close(conns: Vec<Conn>, appliances: &Appliances, left: u32) -> Result<()> {
    drop(conns);
    appliances.settle(left)
}

fn measure_cycle(count: u32, appliances: &Appliances, client: &mut Client) -> Result<Cycle> {
    let before = appliances.resources()?;
    let took = client.cycle(count)?;
    appliances.settle(0)?;
    Ok(Cycle::new(count, took, before, appliances.resources()?))
}

fn measure_burst(count: u32, appliances: &Appliances, client: &mut Client) -> Result<Cycle> {
    let before: Vec<Resources> = appliances.resources()?;
    let started = std::time::Instant::now();
    let mut conns = client.open_at_once(count)?;
    let took = started.elapsed();
    client.ask_each(&mut conns)?;
    close(conns, appliances, 0)?;
    Ok(Cycle::new(count, took, before, appliances.resources()?))
}
