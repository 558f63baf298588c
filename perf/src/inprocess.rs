//! The ping-pong inside the workers: each end embeds the appliance, nothing is between the worker
//! and its message but the data plane.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, anyhow, bail};
use pollux_control::bounce::CoreList;
use pollux_control::config::{PollChoice, PollMode};
use pollux_control::rpc::{Client, InlineSetting, InlineUse, LatencyRequest};
use pollux_control::view::{self, LatencyTable};
use pollux_control::{bounce, cores, measure};

use crate::embedded::{Embedded, EmbeddedSpec, Part, echo_client};
use crate::lat::Limit;
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
    let mut echo = Embedded::start(&EmbeddedSpec {
        part: Part::Echo(address),
        core: core_or_last(core)?,
        poll: poll_choice(meeting.poll),
        folder: meeting.folder.clone(),
        lock_dir: meeting.lock_dir.clone(),
    })?;
    let core = echo.core()?.context("the appliance has no worker")?;
    {
        let mut out = io::stdout().lock();
        writeln!(out, "listening on {address}, core {core}")?;
        out.flush()?;
    }
    Ok(echo.wait()?)
}

/// Measures against the echo at `address`.
///
/// # Errors
///
/// Anything that keeps a size from being measured.
pub fn connect(
    address: &str,
    cores: (Option<u32>, Option<u32>),
    meeting: &Meeting,
    plan: &Plan,
) -> Result<()> {
    let address = resolve(address)?;
    let mut here = Embedded::start(&EmbeddedSpec {
        part: Part::Meter(address),
        core: core_or_last(cores.0)?,
        poll: poll_choice(meeting.poll),
        folder: meeting.folder.clone(),
        lock_dir: meeting.lock_dir.clone(),
    })?;
    let this_core = here.core()?.context("the appliance has no worker")?;
    let mut there = echo_client(&meeting.folder, address);
    let told = match &mut there {
        Some(client) => measure::worker_cores(client)
            .ok()
            .and_then(|cores| cores.first().copied()),
        None => None,
    };
    let mut run = Run {
        address,
        poll: meeting.poll,
        this_core,
        other_core: told.or(cores.1),
        here: &mut here.client,
        there: there.as_mut(),
        plan,
    };
    let measured = run.all();
    let stopped = here.stop();
    measured?;
    Ok(stopped?)
}

/// A measurement under way.
struct Run<'a> {
    address: SocketAddr,
    poll: PollMode,
    this_core: u32,
    other_core: Option<u32>,
    here: &'a mut Client,
    /// The other end's control socket, when it can be reached.
    there: Option<&'a mut Client>,
    plan: &'a Plan,
}

impl Run<'_> {
    fn all(&mut self) -> Result<()> {
        let mut reports = Vec::new();
        for (index, inline) in self.plan.inline.iter().enumerate() {
            if index > 0 && self.plan.format == Format::Text {
                writeln!(io::stdout().lock())?;
            }
            reports.push(self.one(*inline)?);
        }
        if self.plan.format == Format::Json {
            table::write_json(&mut io::stdout().lock(), &reports)?;
        }
        Ok(())
    }

    /// One table.
    fn one(&mut self, inline: InlineSetting) -> Result<Report> {
        let bounce_before = self.bounce()?;
        measure::set_inline(self.here, inline)?;
        if let Some(there) = &mut self.there {
            measure::set_inline(there, inline)?;
        }
        let mut head: Option<Setting> = None;
        let mut rows = Vec::with_capacity(self.plan.sizes.len());
        for bytes in &self.plan.sizes {
            let table = measure::run(self.here, &self.request(*bytes, inline))?;
            let row = *table
                .rows
                .first()
                .with_context(|| format!("no sample was taken of {bytes}-byte messages"))?;
            let is_first = head.is_none();
            let setting = head.get_or_insert_with(|| self.setting(&table, bounce_before.clone()));
            if self.plan.format == Format::Text {
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
        let report = Report::new(setting, self.bounce()?, rows);
        if self.plan.format == Format::Text {
            table::write_foot(&mut io::stdout().lock(), &report)?;
        }
        Ok(report)
    }

    fn request(&self, bytes: u32, inline: InlineSetting) -> LatencyRequest {
        let (seconds, iterations) = match self.plan.limit {
            Limit::Time(time) => (Some(time.as_secs_f64()), None),
            Limit::Iterations(iterations) => (None, Some(iterations)),
        };
        LatencyRequest {
            connect: self.address,
            sizes: vec![bytes],
            seconds,
            iterations,
            inline: match inline {
                InlineSetting::Use(inline) => inline,
                InlineSetting::Bytes(0) => InlineUse::Off,
                InlineSetting::Bytes(_) => InlineUse::On,
            },
        }
    }

    fn setting(&self, table: &LatencyTable, bounce_before: BounceOrReason) -> Setting {
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

    /// The bounce between the workers' cores. Workers that poll without a pause would have to
    /// share their cores with it, so they sleep meanwhile.
    fn bounce(&mut self) -> Result<BounceOrReason> {
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
        measure::set_poll(self.here, mode)?;
        if let Some(there) = &mut self.there {
            measure::set_poll(there, mode)?;
        }
        Ok(())
    }
}

/// Measures between two processes of its own: this one and a copy of it that listens.
///
/// # Errors
///
/// As [`connect`]; or the copy did not start.
pub fn with_own_echo(cores: Option<[u32; 2]>, meeting: &Meeting, plan: &Plan) -> Result<()> {
    let folder = OwnFolder::new()?;
    let mut meeting = Meeting {
        folder: folder.0.clone(),
        ..meeting.clone()
    };
    let [this, other] = match cores {
        Some(cores) => cores,
        None => two_cores()?,
    };
    let mut lock_dir = meeting.lock_dir.clone();
    if this == other {
        // Both ends take turns, so neither may have the core for itself.
        eprintln!(
            "pollux-perf: both ends share core {this}: each has its own folder of core locks, and \
             polling is adaptive"
        );
        meeting.poll = PollMode::Adaptive;
        meeting.lock_dir = Some(folder.0.join("locks-this"));
        lock_dir = Some(folder.0.join("locks-other"));
    }
    let echo = OwnEcho::start(&folder.0, other, meeting.poll, lock_dir.as_deref())?;
    connect(&echo.address, (Some(this), Some(other)), &meeting, plan)?;
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

/// A temporary folder of this user, removed at the end.
struct OwnFolder(PathBuf);

impl OwnFolder {
    fn new() -> Result<OwnFolder> {
        use std::os::unix::fs::DirBuilderExt;
        let name = format!("pollux-perf-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .with_context(|| format!("cannot make the folder {}", path.display()))?;
        Ok(OwnFolder(path))
    }
}

impl Drop for OwnFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The process that answers; ended with the value.
struct OwnEcho {
    child: Child,
    address: String,
    folder: PathBuf,
}

impl OwnEcho {
    fn start(folder: &Path, core: u32, poll: PollMode, lock_dir: Option<&Path>) -> Result<OwnEcho> {
        let here = SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).to_string();
        let mut command = Command::new("/proc/self/exe");
        command
            .args(["lat", "--listen", &here, "--poll", poll.as_str()])
            .args(["--core", &core.to_string(), "--fabric-dir"])
            .arg(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        if let Some(dir) = lock_dir {
            command.arg("--lock-dir").arg(dir);
        }
        let mut child = command.spawn().context("cannot start the other end")?;
        let mut line = String::new();
        if let Some(out) = child.stdout.take() {
            BufReader::new(out)
                .read_line(&mut line)
                .context("cannot read from the other end")?;
        }
        let address = line
            .strip_prefix("listening on ")
            .and_then(|rest| rest.split(',').next())
            .map(str::to_owned);
        let mut echo = OwnEcho {
            child,
            address: String::new(),
            folder: folder.to_owned(),
        };
        match address {
            Some(address) => echo.address = address,
            None => {
                let status = echo.child.wait().context("cannot wait for the other end")?;
                bail!("the other end did not start ({status}); its reason stands above");
            }
        }
        Ok(echo)
    }

    /// Ends it in order.
    fn stop(mut self) -> Result<()> {
        let address = resolve(&self.address)?;
        match echo_client(&self.folder, address) {
            Some(mut client) => {
                let none = serde_json::json!({});
                let limit = pollux_control::rpc::CALL_TIMEOUT;
                // It may be gone before its answer is read; its status is what counts.
                let _ = client.call(pollux_control::rpc::Method::Stop, none, limit);
            }
            None => bail!("the other end is gone"),
        }
        let status = self.child.wait().context("cannot wait for the other end")?;
        if status.success() {
            Ok(())
        } else {
            bail!("the other end ended with {status}")
        }
    }
}

impl Drop for OwnEcho {
    fn drop(&mut self) {
        // Harmless after an orderly end: the process has been waited for then.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn resolve(address: &str) -> Result<SocketAddr> {
    crate::tcp::resolve(address)?
        .first()
        .copied()
        .with_context(|| format!("`{address}` has no address"))
}
