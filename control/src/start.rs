//! The start of `polluxd`, in this order: command line, configuration, log, cores, core locks,
//! runtime folder, sockets. What comes after, the appliance itself, gets a [`Prepared`].
//!
//! Every failure is one line with a documented exit status, and leaves nothing behind: what was
//! already taken is given back in reverse order.

pub(crate) mod rehearsal;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use pollux_ring::{HugepageInfo, hugepages_free};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::cli;
use crate::config::{
    Config, ConfigErrors, CoreUse, Hugepages, PathChoice, PathError, Paths, PollMode, format_size,
};
use crate::core_lock::{CoreLock, CoreLockError};
use crate::cores::{self, AllowedError, Candidates, CorePlan, NotAllowed};
use crate::exit::{ExitStatus, Fatal};
use crate::host::{Host, Root};
use crate::log::{self, Log};
use crate::reactor::Signals;
use crate::runtime_dir::{RuntimeDir, RuntimeDirError};
use crate::unix_socket::{self, BoundSocket, SocketError, SocketKind};
use crate::view::{CheckView, PlannedWorker, View};

/// The command line of `polluxd`.
#[derive(Clone, Debug, Default, Parser)]
#[command(
    name = "polluxd",
    version,
    about = "The Pollux appliance: moves TCP programs' bytes over SMC-R, polled in user space.",
    after_help = "Exit status: 0 ended in order, 64 wrong command line, 69 something needed is \
                  missing, 71 operating system error, 75 another instance or core owner is in the \
                  way, 78 wrong configuration."
)]
pub struct Options {
    /// Configuration; without it every key has its default.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Look for mistakes in the configuration and for what this host lacks; start nothing.
    #[arg(long)]
    pub check: bool,
    /// Print the documented default configuration and end.
    #[arg(long)]
    pub default_config: bool,
    /// Use this name instead of appliance.name.
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Use this folder instead of appliance.runtime_dir.
    #[arg(long, value_name = "DIR")]
    pub runtime_dir: Option<PathBuf>,
    /// Log more; twice for even more.
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,
}

/// The command of [`Options`], for man pages.
#[must_use]
pub fn command() -> clap::Command {
    Options::command()
}

/// What is ready when the appliance begins. Given back in the order of the fields: nobody can
/// connect any more before the cores are free for others.
#[derive(Debug)]
pub struct Prepared {
    /// SIGTERM and SIGINT, to be watched by the control thread.
    pub signals: Signals,
    /// The control socket, listening.
    pub control: BoundSocket,
    /// The socket of attached programs, listening.
    pub attach: BoundSocket,
    /// The folder of both.
    pub runtime_dir: RuntimeDir,
    /// One lock for each worker, in the order of the workers.
    pub locks: Vec<CoreLock>,
    /// Which cores do what. The calling thread already runs on [`CorePlan::others`], and so will
    /// every thread that it starts; a worker pins itself.
    pub cores: CorePlan,
    /// How each worker waits at first, in the order of the workers.
    pub poll: Vec<PollMode>,
    /// The configuration.
    pub config: Config,
    /// The file that it came from; empty for the built-in default.
    pub config_file: String,
    /// The paths in force.
    pub paths: Paths,
    /// Where the log goes.
    pub log: Log,
}

/// Runs `polluxd` from its command line to its exit code. `serve` is the appliance; it returns
/// when it has ended in order.
pub fn main(
    args: impl IntoIterator<Item = OsString>,
    serve: impl FnOnce(Prepared) -> Result<(), Fatal>,
) -> ExitCode {
    let options = match Options::try_parse_from(args) {
        Ok(options) => options,
        Err(error) => return cli::usage(&error).into(),
    };
    start(&options, serve)
}

/// From now on a panic of any thread ends the process at once, after its message. An appliance with a
/// worker missing would hold its programs and peers for ever; so they are reset, and a service manager
/// starts the next one.
pub fn end_with_any_panic() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tell(panic);
        std::process::abort();
    }));
}

/// Runs `polluxd` with options that are read already, to its exit code.
pub fn start(options: &Options, serve: impl FnOnce(Prepared) -> Result<(), Fatal>) -> ExitCode {
    end_with_any_panic();
    match run(options, serve) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fatal) => fatal.report("polluxd"),
    }
}

fn run(options: &Options, serve: impl FnOnce(Prepared) -> Result<(), Fatal>) -> Result<(), Fatal> {
    if options.default_config {
        return cli::emit(&Config::documented_default());
    }
    let host = Host::current();
    if options.check {
        let (config, file) = load(options).map_err(|errors| Fatal::config(errors.to_string()))?;
        return cli::emit(&check(&config, &file, &host)?.text());
    }
    let (mut config, file) = load(options).map_err(|errors| Fatal::config(errors.summary()))?;
    config.appliance.log = log::level(config.appliance.log, options.verbose);
    let log = log::init(config.appliance.log);
    serve(Prepared {
        log,
        ..prepare(config, file, &host)?
    })
}

/// The configuration that the options name, with what they override; and the name of its file.
///
/// # Errors
/// Everything that is wrong with it.
pub fn load(options: &Options) -> Result<(Config, String), ConfigErrors> {
    let (mut config, file) = match &options.config {
        Some(path) => (Config::from_file(path)?, path.display().to_string()),
        None => (Config::default(), String::new()),
    };
    if options.name.is_none() && options.runtime_dir.is_none() {
        return Ok((config, file));
    }
    if let Some(name) = &options.name {
        config.appliance.name = name.clone();
    }
    if let Some(dir) = &options.runtime_dir {
        // A relative path on the command line is seen from here, unlike one in a file.
        let dir = std::path::absolute(dir).unwrap_or_else(|_| dir.clone());
        config.appliance.runtime_dir = PathChoice::At(dir);
    }
    config.validate("command line")?;
    Ok((config, file))
}

/// Takes everything that an appliance needs before it can run.
///
/// # Errors
/// The first thing that is missing or taken, with its exit status.
pub fn prepare(config: Config, config_file: String, host: &Host) -> Result<Prepared, Fatal> {
    let paths = config.paths(host)?;
    tracing::info!(
        "polluxd {:?} version {}",
        config.appliance.name,
        env!("CARGO_PKG_VERSION")
    );
    // Before the cores: of two starts with one name the second should hear about the first, not
    // about a core.
    unix_socket::probe(&paths.control_socket, SocketKind::Stream, "control.socket")?;
    let root = Root::system();
    let allowed = cores::allowed()?;
    let candidates = config.workers.cores.candidates(&allowed)?;
    check_hugepages(&config, hugepages_free())?;
    raise_descriptors();
    let signals = Signals::install()
        .map_err(|error| Fatal::os(format!("cannot handle SIGTERM and SIGINT: {error}")))?;
    make_shared(&paths.lock_dir, "workers.lock_dir")?;
    let locks = take_cores(&candidates, |core| {
        CoreLock::acquire(&paths.lock_dir, core, &config.appliance.name)
    })?;
    let cores = CorePlan {
        allowed,
        workers: locks.iter().map(CoreLock::core).collect(),
    };
    let poll = poll_modes(&config, &cores, &root);
    cores::run_this_thread_on(&cores.others()).map_err(|error| {
        Fatal::os(format!(
            "cannot run the control thread on cores {}: {error}",
            cores.others()
        ))
    })?;
    let runtime_dir = RuntimeDir::open(&paths.runtime_dir, "appliance.runtime_dir")?;
    make_shared(&paths.fabric_dir, "device.fabric_dir")?;
    let control =
        unix_socket::listen_on(&paths.control_socket, SocketKind::Stream, "control.socket")?;
    let attach =
        unix_socket::listen_on(&paths.attach_socket, SocketKind::SeqPacket, "attach.socket")?;
    let prepared = Prepared {
        signals,
        control,
        attach,
        runtime_dir,
        locks,
        cores,
        poll,
        config,
        config_file,
        paths,
        log: Log::default(),
    };
    prepared.tell();
    Ok(prepared)
}

/// What [`prepare`] would do on this host, without taking anything: the configuration against
/// the allowed cores and the hugepage pool. Locks and sockets are not looked at, so a running
/// appliance does not disturb.
///
/// # Errors
/// The first thing that is missing, with its exit status.
pub fn check(config: &Config, file: &str, host: &Host) -> Result<CheckView, Fatal> {
    let paths = config.paths(host)?;
    let root = Root::system();
    let allowed = cores::allowed()?;
    let Candidates { mut cores, wanted } = config.workers.cores.candidates(&allowed)?;
    check_hugepages(config, hugepages_free())?;
    cores.truncate(wanted);
    let plan = CorePlan {
        allowed,
        workers: cores,
    };
    let workers = plan
        .workers
        .iter()
        .zip(poll_modes(config, &plan, &root))
        .enumerate();
    let text = |path: &Path| path.display().to_string();
    Ok(CheckView {
        file: file.to_string(),
        workers: workers
            .map(|(worker, (core, poll))| PlannedWorker {
                worker,
                core: *core,
                poll,
            })
            .collect(),
        other_cores: plan.others().to_string(),
        runtime_dir: text(&paths.runtime_dir),
        control_socket: text(&paths.control_socket),
        attach_socket: text(&paths.attach_socket),
        fabric_dir: text(&paths.fabric_dir),
        lock_dir: text(&paths.lock_dir),
        session_bytes: session_bytes(config),
        warnings: plan.warnings(&root),
    })
}

impl Prepared {
    /// Says in the log what was taken.
    fn tell(&self) {
        let source = match self.config_file.as_str() {
            "" => "the built-in default",
            file => file,
        };
        tracing::info!("configuration: {source}");
        for (worker, (core, poll)) in self.cores.workers.iter().zip(&self.poll).enumerate() {
            match poll {
                PollMode::Busy => tracing::info!(
                    "worker {worker}: core {core}, busy: it polls without end, so this core will \
                     show 100 % use"
                ),
                PollMode::Adaptive | PollMode::Interrupt => {
                    tracing::info!("worker {worker}: core {core}, {poll}");
                }
            }
        }
        tracing::info!("control thread: cores {}", self.cores.others());
        for warning in self.cores.warnings(&Root::system()) {
            tracing::warn!("{warning}");
        }
        tracing::info!("control socket: {}", self.control.path.path().display());
        tracing::info!("attach socket: {}", self.attach.path.path().display());
    }
}

/// Takes as many file descriptors as the system lets this process have: each connection that is being
/// agreed on, each program and each forwarded connection needs some, and the customary 1024 are few.
fn raise_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return;
    }
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        let now = limit.current.unwrap_or_default();
        tracing::warn!("the limit of {now} file descriptors stays: {error}");
    }
}

/// Makes a folder that several appliances share, unless it is there. It stays.
fn make_shared(path: &Path, key: &'static str) -> Result<(), Fatal> {
    if !path.is_dir() {
        RuntimeDir::open(path, key)?.keep();
    }
    Ok(())
}

/// Takes as many of the candidates as are wanted, with `take`. With spare candidates, one that somebody
/// else owns is passed over.
fn take_cores<L>(
    candidates: &Candidates,
    mut take: impl FnMut(u32) -> Result<L, CoreLockError>,
) -> Result<Vec<L>, Fatal> {
    let spare = candidates.cores.len() > candidates.wanted;
    let mut locks: Vec<L> = Vec::new();
    let mut owned: Vec<String> = Vec::new();
    for &core in &candidates.cores {
        if locks.len() == candidates.wanted {
            break;
        }
        match take(core) {
            Ok(lock) => locks.push(lock),
            Err(CoreLockError::Owned { core, holder }) if spare => {
                owned.push(format!("core {core} by {holder}"));
            }
            Err(error) => return Err(error.into()),
        }
    }
    if locks.len() < candidates.wanted {
        return Err(Fatal::temporary(format!(
            "every allowed core is already owned: {}; stop one of them, or allow this process \
             other cores",
            owned.join(", ")
        )));
    }
    Ok(locks)
}

fn poll_modes(config: &Config, plan: &CorePlan, root: &Root) -> Vec<PollMode> {
    let of = |worker| {
        let core = if plan.is_dedicated(worker, root) {
            CoreUse::Dedicated
        } else {
            CoreUse::Shared
        };
        config.workers.poll.mode(core)
    };
    (0..plan.workers.len()).map(of).collect()
}

/// Bytes of the rings of one session.
pub(crate) fn session_bytes(config: &Config) -> u64 {
    let slot = u64::from(config.attach.sndbuf_bytes) + u64::from(config.attach.rmb_bytes);
    u64::from(config.attach.slots) * slot
}

/// Hugepages of the rings of one session.
pub(crate) fn session_hugepages(config: &Config, pool: HugepageInfo) -> u64 {
    session_bytes(config).div_ceil(pool.page_bytes as u64)
}

/// Refuses to start where hugepages are required and the pool is too small for one session.
fn check_hugepages(config: &Config, pool: HugepageInfo) -> Result<(), Fatal> {
    let needed = session_hugepages(config, pool);
    if config.memory.hugepages != Hugepages::Required || pool.free as u64 >= needed {
        return Ok(());
    }
    let page = pool.page_bytes as u64;
    Err(Fatal::os(format!(
        "memory.hugepages is \"required\", but one session needs {needed} hugepages of {} and {} \
         of {} are free; reserve more (echo {needed} > /proc/sys/vm/nr_hugepages), or set it to \
         \"auto\"",
        format_size(page),
        pool.free,
        pool.total
    )))
}

impl From<PathError> for Fatal {
    fn from(error: PathError) -> Fatal {
        Fatal::config(error.to_string())
    }
}

impl From<AllowedError> for Fatal {
    fn from(error: AllowedError) -> Fatal {
        Fatal::os(error.to_string())
    }
}

impl From<NotAllowed> for Fatal {
    fn from(error: NotAllowed) -> Fatal {
        Fatal::config(error.to_string())
    }
}

impl From<CoreLockError> for Fatal {
    fn from(error: CoreLockError) -> Fatal {
        let status = match error {
            CoreLockError::Owned { .. } => ExitStatus::TempFail,
            CoreLockError::OpenFolder { .. } | CoreLockError::Foreign { .. } => ExitStatus::Config,
            CoreLockError::Io { .. } => ExitStatus::Os,
        };
        Fatal::new(status, error.to_string())
    }
}

impl From<RuntimeDirError> for Fatal {
    fn from(error: RuntimeDirError) -> Fatal {
        let status = match error {
            RuntimeDirError::Unsafe { .. } => ExitStatus::Config,
            RuntimeDirError::Io { .. } => ExitStatus::Os,
        };
        Fatal::new(status, error.to_string())
    }
}

/// What the refusal of a socket's path comes down to.
pub(crate) fn socket_status(error: &SocketError) -> ExitStatus {
    match error {
        SocketError::InUse { .. } | SocketError::Busy { .. } => ExitStatus::TempFail,
        SocketError::NotASocket { .. } => ExitStatus::Config,
        SocketError::Io { .. } => ExitStatus::Os,
    }
}

impl From<SocketError> for Fatal {
    fn from(error: SocketError) -> Fatal {
        Fatal::new(socket_status(&error), error.to_string())
    }
}

#[cfg(test)]
mod tests;
