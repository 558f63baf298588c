//! The command line of `pollux`: asks a running appliance through its control socket and prints
//! what comes back, as text or as JSON.

mod commands;
mod demo;
mod output;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, CommandFactory, Parser, Subcommand};

pub use self::demo::DemoOptions;
pub use self::output::{emit, usage};
use crate::config::{LogLevel, PollMode};
use crate::doctor::PeerAddress;
use crate::exit::Fatal;
use crate::host::Host;
use crate::rpc::{InlineSetting, InlineUse, LATENCY_BYTES_MAX};
use crate::words::UnknownWord;

/// The command line of `pollux`.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "pollux",
    version,
    about = "Operates a running Pollux appliance (polluxd).",
    after_help = "Exit status: 0 done, 1 the appliance refused or failed, 64 wrong command line, \
                  69 no appliance runs or it does not answer, 71 operating system error, 75 not \
                  now, 78 wrong configuration.",
    subcommand_required = true,
    arg_required_else_help = true
)]
pub struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// Options of every subcommand.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Global options")]
struct Global {
    /// Control socket of the appliance; without it, the one that --name gives.
    #[arg(long, global = true, value_name = "PATH", conflicts_with = "name")]
    socket: Option<PathBuf>,
    /// Name of the appliance (appliance.name).
    #[arg(long, global = true, value_name = "NAME", default_value = "pollux")]
    name: String,
    /// Print JSON instead of text.
    #[arg(long, global = true)]
    json: bool,
    /// Tell on standard error what is asked of whom.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    verbose: u8,
}

#[derive(Clone, Debug, Subcommand)]
enum Command {
    /// Show what the appliance has and does.
    #[command(subcommand)]
    Show(Show),
    /// Show all counters.
    Stats(Stats),
    /// Change how the appliance works, until it ends.
    #[command(subcommand)]
    Set(Set),
    /// Measure round trips from a worker to an echo service ([[service]] kind = "echo").
    Latency(Latency),
    /// End the appliance in order.
    Stop(Stop),
    /// Start two appliances, connect them, stream verified bytes, measure latency, clean up.
    Demo(DemoOptions),
    /// Look for mistakes in a configuration and for what this host lacks; needs no appliance.
    Check(Check),
    /// Examine this host, and tell whether an appliance would start on it; needs no appliance.
    Doctor(Doctor),
    /// Call a method of the control socket; rpc.discover lists them.
    Rpc(Rpc),
    /// Print shell completions.
    Completions(Completions),
    /// Write man pages.
    Man(Man),
    /// Be the appliance, as polluxd is.
    #[command(hide = true)]
    Daemon(Daemon),
}

#[derive(Clone, Copy, Debug, Subcommand)]
enum Show {
    /// Name, version, process id, time since the start.
    Appliance,
    /// RDMA devices with what they granted.
    Devices,
    /// Links (queue pairs) with their counters.
    Links,
    /// Link groups.
    Groups,
    /// Connections.
    Conns,
    /// Workers, and how much of their polling is useful.
    Workers,
    /// Memory, hugepages and limits.
    Memory,
    /// The configuration in force.
    Config {
        /// Print a configuration file that does the same.
        #[arg(long, conflicts_with = "json")]
        toml: bool,
    },
    /// Connections that stayed on TCP, with the reason.
    Fallbacks,
}

#[derive(Clone, Debug, Args)]
struct Stats {
    /// Show changes and rates every so many seconds.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    watch: Option<f64>,
    /// With --watch: end after so many samples.
    #[arg(long, value_name = "NUMBER", requires = "watch")]
    count: Option<u64>,
    /// Set the counters back instead.
    #[arg(long, conflicts_with_all = ["watch", "count"])]
    clear: bool,
}

#[derive(Clone, Copy, Debug, Subcommand)]
enum Set {
    /// Change how workers wait for work.
    Poll {
        /// The new mode.
        #[arg(value_parser = word::<PollMode>(PollMode::WORDS))]
        mode: PollMode,
        /// Only this worker.
        #[arg(long, value_name = "NUMBER")]
        worker: Option<u32>,
    },
    /// Change how much the appliance tells in its log.
    Log {
        /// The new level.
        #[arg(value_parser = word::<LogLevel>(LogLevel::WORDS))]
        level: LogLevel,
    },
    /// Change what is sent inline: on (whatever fits), messages (CDC and LLC only), off, or at most
    /// a number of bytes.
    Inline {
        /// The cap.
        #[arg(value_name = "on|messages|off|BYTES")]
        inline: InlineSetting,
    },
}

#[derive(Clone, Debug, Args)]
struct Latency {
    /// ADDRESS:PORT of the echo service.
    #[arg(value_name = "ADDRESS:PORT")]
    connect: std::net::SocketAddr,
    /// Message sizes, with commas between them [default: 1,16,64,256,1K,4K].
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = size)]
    sizes: Vec<u32>,
    /// How long each size runs [default: 1].
    #[arg(long, value_name = "SECONDS", value_parser = seconds, conflicts_with = "iterations")]
    seconds: Option<f64>,
    /// How many round trips each size runs.
    #[arg(long, value_name = "NUMBER")]
    iterations: Option<u64>,
    /// What the connection sends inline.
    #[arg(long, default_value = "on", value_parser = word::<InlineUse>(InlineUse::WORDS))]
    inline: InlineUse,
}

#[derive(Clone, Debug, Args)]
struct Stop {
    /// Wait until the process is gone, at most so many seconds.
    #[arg(
        long,
        value_name = "SECONDS",
        num_args = 0..=1,
        default_missing_value = "30",
        value_parser = seconds
    )]
    wait: Option<f64>,
}

#[derive(Clone, Debug, Args)]
struct Check {
    /// The configuration.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

/// Prints a pre-flight report: libraries, adapters, ports, GIDs with the one that would be chosen and why,
/// hugepages, locked memory, cores, sockets. Starts no worker, opens no queue pair, takes no lock, changes
/// nothing. Without a configuration it tells what the host has; with one, what that would come to.
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "Exit status: 0 all that is needed is there, warnings or not; otherwise what \
                  polluxd would end with for the first failure of its start: 69 a library, a \
                  module, an adapter or its port is missing, 71 operating system error or not \
                  enough hugepages, 75 another instance, core owner or program is in the way, 78 \
                  wrong configuration, or one that asks for what this host does not have. 64 wrong \
                  command line."
)]
struct Doctor {
    /// Judge what this configuration needs.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Examine the way to this host too: ADDRESS or ADDRESS:PORT. Nothing is sent to it.
    #[arg(long, value_name = "ADDRESS")]
    peer: Option<PeerAddress>,
}

#[derive(Clone, Debug, Args)]
struct Rpc {
    /// Name of the method.
    method: String,
    /// Its parameters as JSON, an object or a list.
    params: Option<String>,
}

/// The demonstration has no other program than the one that runs.
#[derive(Clone, Debug, Args)]
struct Daemon {
    /// Configuration.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// End when the process with this id, the parent, ends.
    #[arg(long, value_name = "PID")]
    end_with_parent: Option<std::num::NonZeroI32>,
}

#[derive(Clone, Copy, Debug, Args)]
struct Completions {
    /// The shell.
    shell: clap_complete::Shell,
}

#[derive(Clone, Debug, Args)]
struct Man {
    /// The folder to write to; must exist.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
}

/// Runs `pollux` from its command line to its exit code.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => return usage(&error).into(),
    };
    if let Command::Daemon(daemon) = &cli.command {
        return commands::be_the_appliance(daemon);
    }
    match commands::run(&cli.global, &cli.command, &Host::current()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fatal) => fatal.report("pollux"),
    }
}

impl Global {
    /// The control socket to ask.
    fn socket(&self, host: &Host) -> Result<PathBuf, Fatal> {
        if let Some(socket) = &self.socket {
            return Ok(socket.clone());
        }
        let mut config = crate::config::Config::default();
        config.appliance.name = self.name.clone();
        config
            .validate("command line")
            .map_err(|errors| Fatal::new(crate::exit::ExitStatus::Usage, errors.summary()))?;
        Ok(config.paths(host)?.control_socket)
    }
}

/// The commands of `pollux`, for completions and man pages.
fn command() -> clap::Command {
    Cli::command()
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.01..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err("legal: 0.01 to 86400 seconds".to_string()),
    }
}

fn size(text: &str) -> Result<u32, String> {
    let bytes = crate::config::parse_size(text).map_err(|error| error.to_string())?;
    match u32::try_from(bytes) {
        Ok(number) if (1..=LATENCY_BYTES_MAX).contains(&bytes) => Ok(number),
        _ => Err(format!(
            "legal: 1 to {} bytes",
            crate::config::format_size(LATENCY_BYTES_MAX)
        )),
    }
}

/// Reads one of the words of an enum, and names them all in help and completions.
fn word<T>(words: &'static [&'static str]) -> impl TypedValueParser<Value = T>
where
    T: std::str::FromStr<Err = UnknownWord> + Clone + Send + Sync + 'static,
{
    PossibleValuesParser::new(words).try_map(|word| word.parse::<T>())
}

#[cfg(test)]
mod tests;
