//! The ping-pong inside the workers: each end embeds the appliance, nothing is between the worker
//! and its message but the data plane.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;

use anyhow::{Context, Result, anyhow, bail};
use pollux_control::bounce::CoreList;
use pollux_control::config::{Personality, PollChoice, PollMode};
use pollux_control::rpc::{Client, InlineSetting, InlineUse, LatencyRequest};
use pollux_control::view::{self, LatencyTable};
use pollux_control::{bounce, cores, measure};

use crate::embedded::{Embedded, EmbeddedSpec, Part, echo_client};
use crate::lat::Limit;
use crate::own::{OwnEcho, OwnFolder};
use crate::table::{self, BounceOrReason, Build, Cores, Format, Mode, Report, Setting, Transport};

/// Where the ends of a run meet, and how they run.
#[derive(Clone, Debug)]
pub struct Meeting {
    /// Folder in which the soft devices of both ends meet.
    pub folder: PathBuf,
    /// Folder of the core locks; `None` is that of all appliances of the host.
    pub lock_dir: Option<PathBuf>,
    /// How the workers wait.
    pub poll: PollMode,
    /// Which adapter the soft devices play.
    pub personality: Personality,
    /// Longest WRITE that goes inline where "on" is asked for; `None`: what the driver knows.
    pub threshold: Option<u32>,
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Message sizes.
    pub sizes: Vec<u32>,
    /// How long each.
    pub limit: Limit,
    /// One table for each of these.
    pub inline: Vec<InlineSetting>,
    /// How to print.
    pub format: Format,
}

/// The core for the worker of this end: the one asked for, or the last that is allowed.
///
/// # Errors
///
/// The system does not say what is allowed.
pub fn core_or_last(asked: Option<u32>) -> Result<u32> {
    if let Some(core) = asked {
        return Ok(core);
    }
    let allowed = cores::allowed().map_err(|error| anyhow!("{error}"))?;
    let last = allowed.iter().next_back();
    last.context("this process may run on no core")
}

fn poll_choice(mode: PollMode) -> PollChoice {
    match mode {
        PollMode::Busy => PollChoice::Busy,
        PollMode::Adaptive => PollChoice::Adaptive,
        PollMode::Interrupt => PollChoice::Interrupt,
    }
}

fn spec(part: Part, core: Option<u32>, meeting: &Meeting) -> Result<EmbeddedSpec> {
    Ok(EmbeddedSpec {
        part,
        core: core_or_last(core)?,
        poll: poll_choice(meeting.poll),
        folder: meeting.folder.clone(),
        lock_dir: meeting.lock_dir.clone(),
        personality: meeting.personality,
        threshold: meeting.threshold,
    })
}

/// Is the other end: an echo at `address`, until a signal or an operator ends it. With port 0 it
/// takes any free one.
///
/// # Errors
///
/// The appliance cannot start, or failed.
pub fn listen(address: &str, core: Option<u32>, meeting: &Meeting) -> Result<()> {
    let mut address = resolve(address)?;
    if address.port() == 0 {
        let free = TcpListener::bind(address).and_then(|listener| listener.local_addr());
        address = free.with_context(|| format!("cannot listen on {address}"))?;
    }
    let mut echo = Embedded::start(&spec(Part::Echo(address), core, meeting)?)?;
    let core = echo.core()?.context("the appliance has no worker")?;
    {
        let mut out = io::stdout().lock();
        writeln!(out, "listening on {address}, core {core}")?;
        out.flush()?;
    }
    Ok(echo.wait()?)
}

/// Both ends of a measurement, as far as they can be asked.
pub struct Ends {
    /// Where the other end listens.
    pub address: SocketAddr,
    /// How the workers wait.
    pub poll: PollMode,
    /// The core of this end's worker.
    pub this_core: u32,
    /// The core of the other end's worker, if it was told.
    pub other_core: Option<u32>,
    /// This end's control socket.
    pub here: Client,
    /// The other end's control socket, when it can be reached.
    pub there: Option<Client>,
}

/// Starts this end against the echo at `address`, does `work` with both, and ends this one.
///
/// # Errors
///
/// The appliance cannot start or failed, or what `work` says.
pub fn connect(
    address: &str,
    cores: (Option<u32>, Option<u32>),
    meeting: &Meeting,
    work: impl FnOnce(&mut Ends) -> Result<()>,
) -> Result<()> {
    let address = resolve(address)?;
    let mut here = Embedded::start(&spec(Part::Meter(address), cores.0, meeting)?)?;
    let this_core = here.core()?.context("the appliance has no worker")?;
    let mut there = echo_client(&meeting.folder, address);
    let told = match &mut there {
        Some(client) => measure::worker_cores(client)
            .ok()
            .and_then(|cores| cores.first().copied()),
        None => None,
    };
    let (client, running) = here.split();
    let mut ends = Ends {
        address,
        poll: meeting.poll,
        this_core,
        other_core: told.or(cores.1),
        here: client,
        there,
    };
    let measured = work(&mut ends);
    let stopped = running.stop(ends.here);
    measured?;
    Ok(stopped?)
}

impl Ends {
    /// The bounce between the workers' cores. Workers that poll without a pause would have to
    /// share their cores with it, so they sleep meanwhile.
    ///
    /// # Errors
    ///
    /// An appliance does not answer. That the bounce cannot be measured is none.
    pub fn bounce(&mut self) -> Result<BounceOrReason> {
        let reason = |reason: String| Ok(BounceOrReason::NotMeasured { reason });
        let Some(other) = self.other_core else {
            return reason("the core of the other end is not known (--cores THIS,OTHER)".into());
        };
        self.set_poll(PollMode::Adaptive)?;
        let bounce = measure::bounce([self.this_core, other]);
        self.set_poll(self.poll)?;
        match bounce {
            Ok(bounce) => Ok(BounceOrReason::Measured(bounce)),
            Err(text) => reason(text),
        }
    }

    fn set_poll(&mut self, mode: PollMode) -> Result<()> {
        measure::set_poll(&mut self.here, mode)?;
        if let Some(there) = &mut self.there {
            measure::set_poll(there, mode)?;
        }
        Ok(())
    }

    /// Measures one message size over a connection of its own.
    ///
    /// # Errors
    ///
    /// The appliance refused or failed.
    pub fn measure(&mut self, bytes: u32, limit: Limit, inline: InlineUse) -> Result<LatencyTable> {
        let (seconds, iterations) = match limit {
            Limit::Time(time) => (Some(time.as_secs_f64()), None),
            Limit::Iterations(iterations) => (None, Some(iterations)),
        };
        let request = LatencyRequest {
            connect: self.address,
            sizes: vec![bytes],
            seconds,
            iterations,
            inline,
        };
        Ok(measure::run(&mut self.here, &request)?)
    }

    /// What a run that gave `table` was made on and with.
    #[must_use]
    pub fn setting(&self, table: &LatencyTable, bounce_before: BounceOrReason) -> Setting {
        Setting {
            this_core: Cores::Pinned(self.this_core as usize),
            other_core: self.other_core.map(|core| core as usize),
            mode: match self.poll {
                PollMode::Busy => Mode::Busy,
                PollMode::Adaptive => Mode::Adaptive,
                PollMode::Interrupt => Mode::Interrupt,
            },
            transport: match table.transport {
                view::Transport::SmcR => Transport::SmcR,
                view::Transport::Tcp => Transport::Fallback {
                    reason: table.fallback.clone(),
                },
            },
            inline_bytes: Some(table.inline_message_bytes),
            build: Build::current(),
            bounce_before,
        }
    }
}

/// Measures the tables of `plan` and prints them.
///
/// # Errors
///
/// Anything that keeps a size from being measured.
pub fn tables(ends: &mut Ends, plan: &Plan) -> Result<()> {
    let mut reports = Vec::new();
    for (index, inline) in plan.inline.iter().enumerate() {
        if index > 0 && plan.format == Format::Text {
            writeln!(io::stdout().lock())?;
        }
        reports.push(table(ends, plan, *inline)?);
    }
    if plan.format == Format::Json {
        table::write_json(&mut io::stdout().lock(), &reports)?;
    }
    Ok(())
}

/// One table.
fn table(ends: &mut Ends, plan: &Plan, inline: InlineSetting) -> Result<Report> {
    let bounce_before = ends.bounce()?;
    measure::set_inline(&mut ends.here, inline)?;
    if let Some(there) = &mut ends.there {
        measure::set_inline(there, inline)?;
    }
    let inline = match inline {
        InlineSetting::Use(inline) => inline,
        InlineSetting::Bytes(0) => InlineUse::Off,
        InlineSetting::Bytes(_) => InlineUse::On,
    };
    let mut head: Option<Setting> = None;
    let mut rows = Vec::with_capacity(plan.sizes.len());
    for bytes in &plan.sizes {
        let table = ends.measure(*bytes, plan.limit, inline)?;
        let row = *table
            .rows
            .first()
            .with_context(|| format!("no sample was taken of {bytes}-byte messages"))?;
        let is_first = head.is_none();
        let setting = head.get_or_insert_with(|| ends.setting(&table, bounce_before.clone()));
        if plan.format == Format::Text {
            let mut out = io::stdout().lock();
            if is_first {
                table::write_head(&mut out, setting)?;
            }
            writeln!(out, "{}", row.line())?;
            out.flush()?;
        }
        rows.push(row);
    }
    let setting = head.context("no message size was asked for")?;
    let report = Report::new(setting, ends.bounce()?, rows);
    if plan.format == Format::Text {
        table::write_foot(&mut io::stdout().lock(), &report)?;
    }
    Ok(report)
}

/// Measures between two processes of its own: this one and a copy of it that listens.
///
/// # Errors
///
/// As [`connect`]; or the copy did not start.
pub fn with_own_echo(
    cores: Option<[u32; 2]>,
    meeting: &Meeting,
    work: impl FnOnce(&mut Ends) -> Result<()>,
) -> Result<()> {
    let folder = OwnFolder::new()?;
    let mut meeting = Meeting {
        folder: folder.path().to_owned(),
        ..meeting.clone()
    };
    let [this, other] = match cores {
        Some(cores) => cores,
        None => two_cores()?,
    };
    let mut other_meeting = meeting.clone();
    if this == other {
        // Both ends take turns, so neither may have the core for itself.
        eprintln!(
            "pollux-perf: both ends share core {this}: each has its own folder of core locks, and \
             polling is adaptive"
        );
        (meeting.poll, other_meeting.poll) = (PollMode::Adaptive, PollMode::Adaptive);
        meeting.lock_dir = Some(folder.path().join("locks-this"));
        other_meeting.lock_dir = Some(folder.path().join("locks-other"));
    }
    let echo = OwnEcho::start(other, &other_meeting)?;
    connect(echo.address(), (Some(this), Some(other)), &meeting, work)?;
    echo.stop()
}

/// Two of the allowed cores, of two physical ones if there are; twice the only one else.
fn two_cores() -> Result<[u32; 2]> {
    let allowed = cores::allowed().map_err(|error| anyhow!("{error}"))?;
    let list: Vec<u32> = allowed.iter().collect();
    match list.as_slice() {
        [] => bail!("this process may run on no core"),
        [core] => Ok([*core; 2]),
        [first, second, ..] => {
            let cores = CoreList(list.iter().map(|core| *core as usize).collect());
            let chosen = bounce::choose(cores).map(|pair| pair.map(u32::try_from));
            Ok(match chosen {
                Ok([Ok(first), Ok(second)]) => [first, second],
                _ => [*first, *second],
            })
        }
    }
}

pub(crate) fn resolve(address: &str) -> Result<SocketAddr> {
    crate::tcp::resolve(address)?
        .first()
        .copied()
        .with_context(|| format!("`{address}` has no address"))
}
