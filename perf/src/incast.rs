//! Many connections over one link to a receiver with few receives: what credits are worth.
//!
//! Every message uses up a receive of the peer. Where none is left the adapter answers "receiver not
//! ready" (RNR NAK), and everything behind waits for its timer. Each number of connections is
//! measured in rounds; each round has one batch in each mode, in changing order, and modes are compared
//! within rounds only.

mod adapter;
mod apps;
mod drive;
pub mod report;

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use pollux_control::bounce::{allowed_cores, choose};
use serde::Serialize;

pub use adapter::Pauses;

use crate::compare;
use crate::compare::statistics::order;
use crate::lat::Limit;
use crate::table::{BounceOrReason, Format};
use drive::Placement;
use report::{Head, Incast, Row};

/// Most connections over the link.
pub const CONNS_MAX: u16 = 1000;
/// Longest request, in bytes.
pub const BYTES_MAX: u32 = 1024;
/// Work requests under way towards a peer with which no credits are agreed on: the receives that
/// every Linux peer posts.
pub const UNDER_WAY_LINUX: u32 = 48;

/// What keeps the sides from sending more than the other has receives for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Nothing.
    Off,
    /// At most [`UNDER_WAY_LINUX`] work requests are under way.
    Bounded,
    /// Credits.
    On,
}

impl Mode {
    /// All, in the order of every table.
    pub const ALL: [Mode; 3] = [Mode::Off, Mode::Bounded, Mode::On];

    /// What it is called where people read.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Mode::Off => "off",
            Mode::Bounded => "bounded",
            Mode::On => "credits",
        }
    }
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct IncastPlan {
    /// Numbers of connections, each 1 to [`CONNS_MAX`].
    pub conns: Vec<u16>,
    /// Receives of each side; 2 or more.
    pub recv_depth: u8,
    /// Bytes of each request and of its answer, 1 to [`BYTES_MAX`].
    pub bytes: u32,
    /// How long each batch, or how many requests.
    pub limit: Limit,
    /// Rounds for each number of connections; 1 or more.
    pub rounds: u32,
    /// How the receiver pauses, if it does.
    pub pauses: Option<Pauses>,
    /// What the receiver does before each answer.
    pub work: Duration,
    /// The cores of the asking and of the answering side; `None`: two of the allowed ones.
    pub cores: Option<[u32; 2]>,
    /// RNR timer code of both sides, 0 to 31.
    pub rnr_timer: u8,
    /// How to print.
    pub format: Format,
    /// Folder for `incast.json`; made if it is not there.
    pub folder: Option<PathBuf>,
}

/// Measures, prints, and writes the file if a folder was given.
///
/// # Errors
///
/// A batch could not be measured, an answer was wrong, the receiver was not ready although there were
/// credits, or the folder cannot be written to.
pub fn run(plan: &IncastPlan) -> Result<()> {
    if let Some(folder) = &plan.folder {
        compare::prepare(folder)?;
    }
    let placement = placement(plan.cores)?;
    let cores = placement.cores.map(|pair| pair.map(|core| core as u32));
    let head = Head::new(plan, placement.cores, BounceOrReason::between(cores));
    let mut out = io::stdout().lock();
    if plan.format == Format::Text {
        report::write_head(&mut out, &head)?;
    }
    let mut rows = Vec::with_capacity(plan.conns.len());
    for conns in &plan.conns {
        let row = row(plan, placement, *conns)?;
        if plan.format == Format::Text {
            report::write_row(&mut out, &row)?;
            out.flush()?;
        }
        rows.push(row);
    }
    let incast = Incast::new(head, BounceOrReason::between(cores), rows);
    match plan.format {
        Format::Text => report::write_foot(&mut out, &incast)?,
        Format::Json => write_json(&mut out, &incast)?,
    }
    if let Some(folder) = &plan.folder {
        let mut json = Vec::new();
        write_json(&mut json, &incast)?;
        let path = folder.join("incast.json");
        fs::write(&path, json).with_context(|| format!("cannot write {}", path.display()))?;
    }
    match incast.verdict.rnr_naks_with_credits {
        0 => Ok(()),
        naks => bail!(
            "the receiver was not ready {naks} times although there were credits; this is a defect \
             of the data plane"
        ),
    }
}

fn row(plan: &IncastPlan, placement: Placement, conns: u16) -> Result<Row> {
    let mut batches = Vec::with_capacity(plan.rounds as usize * Mode::ALL.len());
    for round in 0..plan.rounds {
        for mode in order(Mode::ALL, round as usize) {
            let batch = drive::batch(plan, placement, (conns, round, mode));
            let label = mode.label();
            batches.push(batch.with_context(|| format!("{conns} connections, {label}"))?);
        }
    }
    Row::of(conns, batches).context("no round was asked for")
}

/// Two cores, or one for both threads where there is no second one.
fn placement(cores: Option<[u32; 2]>) -> Result<Placement> {
    let cores = match cores {
        Some(cores) => Some(cores.map(|core| core as usize)),
        None => choose(allowed_cores()?).ok(),
    };
    Ok(Placement { cores })
}

fn write_json(out: &mut impl Write, incast: &Incast) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, incast)?;
    writeln!(out)
}

/// Seeded numbers (xorshift64).
struct Numbers(u64);

impl Numbers {
    fn new(seed: u64) -> Numbers {
        let mut numbers = Numbers((seed ^ 0x9e37_79b9_7f4a_7c15).max(1));
        // Seeds that differ in a bit begin alike.
        for _ in 0..8 {
            numbers.below(1);
        }
        numbers
    }

    /// At random from 0 to below `limit`; 0 for a limit of 0.
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.checked_rem(limit).unwrap_or(0)
    }
}
