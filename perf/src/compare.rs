//! By reference, messages inline, all inline: side by side, interleaved, in one run.
//!
//! Tables measured one after the other are spoilt by whatever moves the machine between them. Here
//! each size is measured in rounds, each round has one short batch in each mode, and the order of
//! the modes changes from round to round.

pub mod plot;
pub mod report;
pub mod statistics;

use std::fs::{self, File};
use std::io::{self, Write};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use pollux_control::measure;
use pollux_control::rpc::{CALL_TIMEOUT, Client, InlineSetting, InlineUse, Method};
use pollux_control::view::{self, LatencyTable, LinkView};
use pollux_wire::cdc::CDC_BYTES;
use serde_json::json;

use crate::inprocess::Ends;
use crate::instructions::{self, CountsOrReason};
use crate::lat::Limit;
use crate::modes::{MODES, label};
use crate::table::{self, BounceOrReason, Format, Setting};
use report::{Batch, Comparison, Granted, Head, Row};

/// Rounds for each size: twice each order of the modes.
pub const ROUNDS: u32 = 12;

/// Longest inline WRITE that can be asked for: with 0, all inline would be inline messages; an
/// adapter cannot be asked for more than the greatest.
pub const THRESHOLD: RangeInclusive<i64> = 1..=1024;

/// Fewest samples of a batch: with fewer, its median would be too near its slowest.
pub const ITERATIONS_MIN: u64 = 20;

/// Whether instructions are counted after the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountInstructions {
    /// They are, if valgrind is there.
    IfPossible,
    /// They are not.
    Never,
}

/// What to compare.
#[derive(Clone, Debug)]
pub struct ComparePlan {
    /// Message sizes, each once; in ascending order.
    pub sizes: Vec<u32>,
    /// How long each batch.
    pub limit: Limit,
    /// Rounds for each size; 1 or more.
    pub rounds: u32,
    /// Longest inline WRITE of the mode in which all is inline; `None`: as long as fits.
    pub threshold: Option<u32>,
    /// Folder for `inline.json` and `inline.svg`; made if it is not there.
    pub folder: PathBuf,
    /// How to print.
    pub format: Format,
    /// Whether to count instructions as well.
    pub instructions: CountInstructions,
}

/// Compares, prints, and writes both files.
///
/// # Errors
///
/// The folder cannot be written to, the modes cannot be set at both ends, or anything that keeps a
/// batch from being measured.
pub fn run(ends: &mut Ends, plan: &ComparePlan) -> Result<()> {
    prepare(&plan.folder)?;
    let mut bounce = ends.bounce()?;
    measure::set_inline(&mut ends.here, InlineSetting::Use(InlineUse::On))?;
    let first = *plan
        .sizes
        .first()
        .context("no message size was asked for")?;
    let head = head(ends, plan, first, bounce.clone())?;
    if plan.format == Format::Text {
        report::write_head(&mut io::stdout().lock(), &head)?;
    }
    let mut rows = Vec::with_capacity(plan.sizes.len());
    for bytes in &plan.sizes {
        let batches = batches(ends, plan, *bytes)?;
        let bounce_after = ends.bounce()?;
        let each_way_ns = table::each_way_ns(&bounce, &bounce_after);
        bounce = bounce_after;
        let row = Row::of(*bytes, batches, each_way_ns)
            .with_context(|| format!("no sample was taken of {bytes}-byte messages"))?;
        if plan.format == Format::Text {
            let mut out = io::stdout().lock();
            report::write_row(&mut out, &row)?;
            out.flush()?;
        }
        rows.push(row);
    }
    let comparison = Comparison::new(head, bounce, rows, counts(plan.instructions));
    let mut out = io::stdout().lock();
    match plan.format {
        Format::Text => report::write_foot(&mut out, &comparison)?,
        Format::Json => write_json(&mut out, &comparison)?,
    }
    write_files(&plan.folder, &comparison)
}

fn counts(wish: CountInstructions) -> CountsOrReason {
    match wish {
        CountInstructions::IfPossible => instructions::of_this_program(),
        CountInstructions::Never => CountsOrReason::NotCounted {
            reason: "not asked for (--without-instructions)".to_owned(),
        },
    }
}

/// All batches of one size.
fn batches(ends: &mut Ends, plan: &ComparePlan, bytes: u32) -> Result<Vec<Batch>> {
    let mut batches = Vec::with_capacity(plan.rounds as usize * MODES.len());
    for round in 0..plan.rounds {
        for mode in statistics::order(MODES, round as usize) {
            let table = batch(ends, plan.limit, mode, bytes)?;
            let summary = table.rows.first().map(|row| row.summary);
            let median = summary.and_then(|summary| Some((summary.p50?, summary.iterations)));
            let (p50_us, samples) = median.with_context(|| {
                format!(
                    "a batch of {bytes}-byte messages had fewer than {ITERATIONS_MIN} samples, \
                     too few for a median: give it more time (-t) or a number of samples (-n)"
                )
            })?;
            batches.push(Batch {
                round,
                mode,
                p50_us,
                samples,
            });
        }
    }
    Ok(batches)
}

/// One batch: sets the mode at both ends and measures.
fn batch(ends: &mut Ends, limit: Limit, mode: InlineUse, bytes: u32) -> Result<LatencyTable> {
    measure::set_inline(there(ends)?, InlineSetting::Use(mode))?;
    let table = ends
        .measure(bytes, limit, mode)
        .with_context(|| format!("{bytes}-byte messages, {}", label(mode)))?;
    check_mode(&table, mode)?;
    Ok(table)
}

fn there(ends: &mut Ends) -> Result<&mut Client> {
    let address = ends.address;
    ends.there.as_mut().with_context(|| {
        format!(
            "cannot reach the control socket of the end at {address}, so its mode cannot be set and \
             only half of each round trip would be compared: start it on this host with \
             `pollux-perf lat --listen {address}` and the same --fabric-dir, or leave the address \
             out"
        )
    })
}

/// Whether the batch ran as it should have: else nothing would be compared.
fn check_mode(table: &LatencyTable, mode: InlineUse) -> Result<()> {
    if table.transport != view::Transport::SmcR {
        bail!(
            "the connection fell back to TCP ({}), where nothing is inline: see to it that both \
             ends meet in the same --fabric-dir",
            table.fallback
        );
    }
    let (messages, writes) = (table.inline_message_bytes, table.inline_write_bytes);
    let cdc_bytes = CDC_BYTES as u32;
    let is_right = match mode {
        InlineUse::Off => (messages, writes) == (0, 0),
        InlineUse::Messages => messages >= cdc_bytes && writes == 0,
        InlineUse::On => messages >= cdc_bytes && writes > 0,
    };
    if is_right {
        return Ok(());
    }
    bail!(
        "the adapter sent messages up to {messages} bytes and WRITEs up to {writes} bytes inline, \
         which is not `{}`: it has to take {cdc_bytes} bytes inline (--personality at both ends)",
        label(mode)
    )
}

/// What the run is made on; told by a first batch, which makes the link.
fn head(
    ends: &mut Ends,
    plan: &ComparePlan,
    bytes: u32,
    bounce_before: BounceOrReason,
) -> Result<Head> {
    let limit = Limit::Iterations(ITERATIONS_MIN);
    let table = batch(ends, limit, InlineUse::On, bytes)?;
    let here = link(&mut ends.here)?;
    let there = link(there(ends)?)?;
    for bytes in [here.inline.granted_bytes, there.inline.granted_bytes] {
        if bytes < CDC_BYTES as u32 {
            bail!(
                "an adapter takes {bytes} bytes inline, a CDC message has {CDC_BYTES}, so there \
                 is nothing to compare: choose another --personality at both ends"
            );
        }
    }
    let (threshold, other) = (table.inline_write_bytes, there.inline_write_bytes);
    if threshold != other {
        bail!(
            "WRITEs go inline up to {threshold} bytes here and up to {other} at the other end: start \
             both with the same --threshold and --personality"
        );
    }
    let setting = Setting {
        inline_bytes: Some(here.inline.granted_bytes),
        ..ends.setting(&table, bounce_before)
    };
    Ok(Head {
        setting,
        granted: Granted {
            this_end: here.inline.granted_bytes,
            other_end: there.inline.granted_bytes,
        },
        threshold_asked: plan.threshold,
        threshold,
        rounds: plan.rounds,
        limit: plan.limit,
    })
}

/// The only link of an end; of several, the one that takes most inline.
fn link(client: &mut Client) -> Result<LinkView> {
    let links = client.call(Method::LinkList, json!({}), CALL_TIMEOUT)?;
    let links: Vec<LinkView> = measure::typed(Method::LinkList, links)?;
    let most = links
        .into_iter()
        .max_by_key(|link| link.inline.granted_bytes);
    most.context("an end has no link although a connection was measured")
}

/// Makes the folder and sees that it can be written to, before a run of half a minute.
pub(crate) fn prepare(folder: &Path) -> Result<()> {
    let cannot = || {
        format!(
            "cannot write to the folder {}: choose another one (--out DIR)",
            folder.display()
        )
    };
    fs::create_dir_all(folder).with_context(cannot)?;
    let probe = folder.join(format!(".inline-{}", std::process::id()));
    File::create_new(&probe).with_context(cannot)?;
    fs::remove_file(&probe).with_context(cannot)
}

fn write_json(out: &mut impl Write, comparison: &Comparison) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, comparison)?;
    writeln!(out)
}

fn write_files(folder: &Path, comparison: &Comparison) -> Result<()> {
    let mut json = Vec::new();
    write_json(&mut json, comparison)?;
    let svg = plot::svg(comparison).context("cannot draw the plot")?;
    for (name, bytes) in [
        ("inline.json", json.as_slice()),
        ("inline.svg", svg.as_bytes()),
    ] {
        let path = folder.join(name);
        fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}
