//! `pollux-perf`: latency measurements from the command line.
//!
//! Exit status: 0 when everything asked for was measured, 1 on any failure, usage included.

mod conns_command;
mod incast_command;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, Parser, Subcommand, ValueEnum};
use pollux_attach::client::Session;
use pollux_control::bounce::{self, BounceSpec, allowed_cores, pin_to};
use pollux_control::config::{LogLevel, Personality, PollMode};
use pollux_control::host::Host;
use pollux_control::log;
use pollux_control::rpc::{InlineSetting, InlineUse, LATENCY_SECONDS};
use pollux_control::view::LatencyRow;
use pollux_control::{appliance, start};
use pollux_perf::attached::{self, AttachedChannel};
use pollux_perf::compare::{self, ComparePlan, CountInstructions, ITERATIONS_MIN, THRESHOLD};
use pollux_perf::conns;
use pollux_perf::incast;
use pollux_perf::inprocess::{self, Ends, Meeting, Plan};
use pollux_perf::instructions::{self, CountsOrReason};
use pollux_perf::lat::{Channel, Limit, echo, ping};
use pollux_perf::loop_spec::{LoopSpec, SIZES_MAX, parse_size, sizes_of};
use pollux_perf::post_path::{self, IDLE_MAX, Level, Workload};
use pollux_perf::table::{
    self, BounceOrReason, Build, Cores, Format, Mode, Report, Setting, Transport,
};
use pollux_perf::tcp::{self, TcpChannel, TcpWait};
use pollux_provider::soft::UnknownPersonality;
use quanta::Clock;

/// Longest time for one message size, in seconds: a day.
const SECONDS_MAX: f64 = 86_400.0;

/// Time of one batch of a comparison: with the usual sizes and rounds, half a minute in all.
const BATCH_TIME: Duration = Duration::from_millis(50);

/// Sizes of a comparison.
const COMPARED_SIZES: &str = "msg_size:1:2K:*2";

#[derive(Parser)]
#[command(
    name = "pollux-perf",
    version,
    about = "Latency measurements of the data plane"
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// How long a cache line takes from one core to another: the limit of everything else
    Bounce(BounceArguments),
    /// How long messages take from one end of a stream to the other
    Lat(Box<LatArguments>),
    /// What credits are worth where many connections share a link to a receiver with few receives
    Incast(incast_command::IncastArguments),
    /// Many connections: what idle ones cost the others, what opening and closing leaves behind
    Conns(conns_command::ConnsArguments),
    /// How many instructions a message of 64 bytes takes on its way out; needs valgrind
    Instructions(InstructionsArguments),
    /// The workload that `instructions` counts
    #[command(hide = true)]
    PostPath(PostPathArguments),
    /// An appliance, as `polluxd --config FILE` is one; for `conns`
    #[command(hide = true)]
    Appliance {
        /// Its configuration
        file: PathBuf,
    },
    /// The program at the other end of `conns`
    #[command(hide = true)]
    ConnsEcho {
        /// Attach socket of its appliance
        socket: PathBuf,
        /// How many sessions it opens, each with a listener
        sessions: u32,
    },
}

#[derive(Args)]
struct InstructionsArguments {
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct PostPathArguments {
    /// provider or worker
    level: Level,
    /// on, messages or off
    #[arg(value_parser = parse_inline_use)]
    mode: InlineUse,
    /// How many messages
    messages: u64,
    /// How many idle connections besides
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u16).range(..=i64::from(IDLE_MAX)))]
    idle: u16,
}

#[derive(Args)]
struct BounceArguments {
    /// The two cores, such as 0,1 [default: two of the allowed ones]
    #[arg(long, value_name = "A,B", value_parser = parse_cores)]
    cores: Option<[u32; 2]>,
    /// How many different lines to measure
    #[arg(long, default_value_t = BounceSpec::default().lines)]
    lines: usize,
    /// How many batches of each line count; their median is the line's figure
    #[arg(long, default_value_t = BounceSpec::default().batches)]
    batches: usize,
    /// How many round trips a batch has
    #[arg(long, default_value_t = BounceSpec::default().round_trips)]
    round_trips: u64,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
#[command(
    after_help = "Both ends by themselves, on two of the allowed cores:\n  \
    pollux-perf lat --loop msg_size:1:2K:*2 -t 2\n\
    What sending inline is worth, in one run:\n  \
    pollux-perf lat --compare inline --out DIR\n\
    The two ends, each on a core of its own:\n  \
    taskset -c 1 pollux-perf lat --listen 127.0.0.1:7000\n  \
    taskset -c 0 pollux-perf lat 127.0.0.1:7000 --loop msg_size:1:2K:*2 -t 2\n\
    Through an appliance that runs, and over plain TCP, to compare with:\n  \
    pollux-perf lat --attach SOCKET --listen 127.0.0.1:7000\n  \
    pollux-perf lat --tcp --listen 127.0.0.1:7000"
)]
struct LatArguments {
    /// Measure against the end that listens at HOST:PORT; without it and --listen, against a
    /// second process of its own
    #[arg(value_name = "HOST:PORT")]
    connect: Option<String>,
    /// Be the other end: listen at HOST:PORT and send everything back, until stopped
    #[arg(
        long,
        value_name = "HOST:PORT",
        conflicts_with_all = [
            "connect", "loops", "msg_size", "time", "iterations", "cores", "json", "inline", "rounds",
            "out", "without_instructions"
        ]
    )]
    listen: Option<String>,
    /// Go through the appliance with this attach socket, as a program does
    #[arg(long, value_name = "SOCKET", conflicts_with_all = ["tcp", "inline", "fabric_dir"])]
    attach: Option<PathBuf>,
    /// Go over the system's TCP, to which a stream falls back
    #[arg(long, conflicts_with_all = ["inline", "fabric_dir"])]
    tcp: bool,
    /// How this end waits, busy, adaptive (not with --tcp) or interrupt; start both ends with the
    /// same
    #[arg(long, value_name = "MODE", default_value = "busy", value_parser = parse_poll)]
    poll: PollMode,
    /// Send inline: on, off, both (a table each), or at most so many bytes [default: on]
    #[arg(long, value_name = "on|off|both|BYTES", value_parser = parse_inline)]
    inline: Option<InlineChoice>,
    /// Compare by reference, messages inline and all inline, interleaved in one run: prints a table
    /// and writes inline.json and inline.svg
    #[arg(long, value_name = "WHAT")]
    compare: Option<Compared>,
    /// Rounds of a comparison for each message size, each with a batch in each mode [default: 12]
    #[arg(
        long,
        requires = "compare",
        value_parser = clap::value_parser!(u32).range(1..=1000)
    )]
    rounds: Option<u32>,
    /// Folder for what a comparison writes [default: the current one]
    #[arg(long, value_name = "DIR", requires = "compare")]
    out: Option<PathBuf>,
    /// Longest WRITE that goes inline where all is inline, as far as the adapters grant it; they
    /// are asked for as much. Start both ends with the same [default: what was measured for the
    /// driver]
    #[arg(
        long,
        value_name = "BYTES",
        value_parser = clap::value_parser!(u32).range(THRESHOLD)
    )]
    threshold: Option<u32>,
    /// Count no instructions at the end of a comparison
    #[arg(long, requires = "compare")]
    without_instructions: bool,
    /// Which adapter the soft device plays, which decides how much goes inline; start both ends
    /// with the same
    #[arg(
        long,
        value_name = "NAME",
        conflicts_with_all = ["tcp", "attach"],
        value_parser = parse_personality
    )]
    personality: Option<Personality>,
    /// Folder in which both ends meet, when they are on one host [default: one for each user]
    #[arg(long, value_name = "DIR")]
    fabric_dir: Option<PathBuf>,
    /// Folder of the core locks; without it, that of all appliances
    #[arg(long, value_name = "DIR", hide = true)]
    lock_dir: Option<PathBuf>,
    /// Message sizes as msg_size:FIRST:LAST:STEP with STEP *FACTOR or +BYTES; may be repeated
    #[arg(long = "loop", value_name = "SPEC")]
    loops: Vec<LoopSpec>,
    /// One message size, such as 64 or 2K [default: 1; to compare, 1 to 2K doubling]
    #[arg(short, long, value_name = "BYTES", value_parser = parse_size, conflicts_with = "loops")]
    msg_size: Option<u32>,
    /// Seconds for each message size, or for each batch of a comparison [default: 2, or 0.05]
    #[arg(short, long, value_name = "SECONDS", value_parser = parse_time)]
    time: Option<Duration>,
    /// Samples for each message size, or for each batch of a comparison, instead of a time
    #[arg(
        short = 'n',
        long,
        value_name = "COUNT",
        conflicts_with = "time",
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    iterations: Option<u64>,
    /// This end's core [default: the last that is allowed]
    #[arg(long, value_name = "CORE", conflicts_with = "cores")]
    core: Option<u32>,
    /// The cores of this end and of the other one, such as 0,1: pins this end, and says between
    /// which cores to measure the bounce
    #[arg(long, value_name = "THIS,OTHER", value_parser = parse_cores)]
    cores: Option<[u32; 2]>,
    /// Print one JSON object at the end instead of text
    #[arg(long)]
    json: bool,
}

/// What `--compare` compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Compared {
    /// By reference, messages inline, all inline.
    Inline,
}

/// What `--inline` asks for: a table for each.
#[derive(Clone, Debug, PartialEq, Eq)]
struct InlineChoice(Vec<InlineSetting>);

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            let is_help = !error.use_stderr();
            let printed = error.print();
            return if is_help && printed.is_ok() {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            };
        }
    };
    let result = match &arguments.command {
        Command::Bounce(arguments) => run_bounce(arguments),
        Command::Lat(arguments) => run_lat(arguments),
        Command::Incast(arguments) => incast::run(&arguments.plan()),
        Command::Instructions(arguments) => run_instructions(arguments),
        Command::PostPath(arguments) => post_path::run(&Workload {
            level: arguments.level,
            mode: arguments.mode,
            messages: arguments.messages,
            idle: arguments.idle,
        }),
        Command::Conns(arguments) => conns::run(&arguments.plan()),
        Command::Appliance { file } => {
            let arguments = [
                "polluxd".into(),
                "--config".into(),
                file.clone().into_os_string(),
            ];
            return start::main(arguments, appliance::serve);
        }
        Command::ConnsEcho { socket, sessions } => conns::serve_echo(socket, *sessions),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pollux-perf: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run_bounce(arguments: &BounceArguments) -> Result<()> {
    let spec = BounceSpec {
        cores: arguments.cores.map(|pair| pair.map(|core| core as usize)),
        lines: arguments.lines,
        batches: arguments.batches,
        round_trips: arguments.round_trips,
    };
    let bounce = bounce::measure(&spec)?;
    let mut out = io::stdout().lock();
    if arguments.json {
        serde_json::to_writer_pretty(&mut out, &bounce)?;
        writeln!(out)?;
        return Ok(());
    }
    if Build::current() == Build::Debug {
        writeln!(out, "# build debug: not optimised, nothing to compare with")?;
    }
    writeln!(out, "{bounce}")?;
    writeln!(
        out,
        "one way (half of round trip); median, and range, of {} lines of {} batches of {} round \
         trips",
        bounce.lines, bounce.batches, bounce.round_trips
    )?;
    Ok(())
}

fn run_instructions(arguments: &InstructionsArguments) -> Result<()> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let counts = instructions::counts(&program)?;
    let mut out = io::stdout().lock();
    if arguments.json {
        serde_json::to_writer_pretty(&mut out, &counts)?;
        writeln!(out)?;
        return Ok(());
    }
    Ok(instructions::write(
        &mut out,
        "",
        &CountsOrReason::Counted(counts),
    )?)
}

fn run_lat(arguments: &LatArguments) -> Result<()> {
    check_combination(arguments)?;
    // What the appliance in this process or the library has to say of importance.
    log::init(LogLevel::Warn);
    let core = arguments.cores.map(|[this, _]| this as usize);
    let core = core.or(arguments.core.map(|core| core as usize));
    if let (Some(core), true) = (core, arguments.tcp || arguments.attach.is_some()) {
        pin_to(core)?;
    }
    match (&arguments.attach, arguments.tcp) {
        (Some(socket), _) => match &arguments.listen {
            Some(address) => serve_attached(socket, address, arguments.poll),
            None => lat_attached(arguments, socket),
        },
        (None, true) => {
            let wait = tcp_wait(arguments.poll)?;
            match &arguments.listen {
                Some(address) => serve_tcp(address, wait),
                None => lat_tcp(arguments, wait),
            }
        }
        (None, false) => lat_in_process(arguments),
    }
}

/// Both ends embed the appliance.
fn lat_in_process(arguments: &LatArguments) -> Result<()> {
    let folder = arguments.fabric_dir.as_ref().map_or_else(
        || Ok(Host::current().base_dir().join("perf")),
        std::path::absolute,
    )?;
    let meeting = Meeting {
        folder,
        lock_dir: arguments.lock_dir.clone(),
        poll: arguments.poll,
        personality: arguments.personality.unwrap_or(Personality::Generic),
        threshold: arguments.threshold,
    };
    if let Some(address) = &arguments.listen {
        return inprocess::listen(address, arguments.core, &meeting);
    }
    if let Some(time) = arguments.time
        && !LATENCY_SECONDS.contains(&time.as_secs_f64())
    {
        bail!(
            "-t {} is not possible from worker to worker: {} to {} seconds",
            time.as_secs_f64(),
            LATENCY_SECONDS.start(),
            LATENCY_SECONDS.end()
        );
    }
    match arguments.compare {
        Some(Compared::Inline) => {
            let plan = compare_plan(arguments)?;
            with_ends(arguments, &meeting, |ends| compare::run(ends, &plan))
        }
        None => {
            let inline = arguments.inline.clone();
            let plan = Plan {
                sizes: sizes(arguments)?,
                limit: limit(arguments),
                inline: inline.map_or_else(
                    || vec![InlineSetting::Use(InlineUse::On)],
                    |InlineChoice(list)| list,
                ),
                format: format(arguments),
            };
            with_ends(arguments, &meeting, |ends| inprocess::tables(ends, &plan))
        }
    }
}

/// Does `work` with this end and the other one, which is started if no address was given.
fn with_ends(
    arguments: &LatArguments,
    meeting: &Meeting,
    work: impl FnOnce(&mut Ends) -> Result<()>,
) -> Result<()> {
    match &arguments.connect {
        Some(address) => {
            let this = arguments.cores.map(|[this, _]| this).or(arguments.core);
            let other = arguments.cores.map(|[_, other]| other);
            inprocess::connect(address, (this, other), meeting, work)
        }
        None => inprocess::with_own_echo(arguments.cores, meeting, work),
    }
}

/// What contradicts itself for a reason that deserves more words than the parser has.
fn check_combination(arguments: &LatArguments) -> Result<()> {
    if arguments.compare.is_none() {
        if arguments.threshold.is_some() && arguments.listen.is_none() {
            bail!(
                "--threshold says up to which size --compare inline sends WRITEs inline; without \
                 a comparison use --inline BYTES"
            );
        }
        return Ok(());
    }
    let only = "--compare inline measures between two workers over SMC-R";
    if arguments.listen.is_some() {
        bail!("{only}; the end that listens is told what to do by the other: leave --compare out");
    }
    if arguments.tcp {
        bail!("{only}; over --tcp nothing is ever sent inline");
    }
    if arguments.attach.is_some() {
        bail!("{only}; with --attach the setting of that appliance decides what goes inline");
    }
    if arguments.inline.is_some() {
        bail!("{only} with every setting in turn: leave --inline out");
    }
    match arguments.iterations {
        Some(iterations) if iterations < ITERATIONS_MIN => {
            bail!("-n {iterations} is too few for the median of a batch: {ITERATIONS_MIN} or more")
        }
        Some(_) | None => Ok(()),
    }
}

fn compare_plan(arguments: &LatArguments) -> Result<ComparePlan> {
    let mut sizes = if arguments.loops.is_empty() && arguments.msg_size.is_none() {
        sizes_of(&[COMPARED_SIZES.parse()?])
    } else {
        sizes(arguments)?
    };
    sizes.sort_unstable();
    Ok(ComparePlan {
        sizes,
        limit: match limit_given(arguments) {
            Some(limit) => limit,
            None => Limit::Time(BATCH_TIME),
        },
        rounds: arguments.rounds.unwrap_or(compare::ROUNDS),
        threshold: arguments.threshold,
        folder: arguments.out.clone().unwrap_or_else(|| PathBuf::from(".")),
        format: format(arguments),
        instructions: if arguments.without_instructions {
            CountInstructions::Never
        } else {
            CountInstructions::IfPossible
        },
    })
}

/// The other end over TCP: serves one connection after the other.
fn serve_tcp(address: &str, wait: TcpWait) -> Result<()> {
    let listener = tcp::listen(address)?;
    tell_listening(listener.local_addr())?;
    loop {
        let (stream, peer) = listener.accept().context("cannot accept a connection")?;
        if let Err(error) = tcp::echo(stream, wait) {
            eprintln!("pollux-perf: connection from {peer}: {error}");
        }
    }
}

/// The other end through an appliance: serves one connection after the other.
fn serve_attached(socket: &Path, address: &str, mode: PollMode) -> Result<()> {
    let session = attached::open(socket, mode)?;
    let listener = attached::listen(&session, address)?;
    tell_listening(listener.local_addr())?;
    loop {
        let (stream, peer) = listener.accept().context("cannot accept a connection")?;
        let mut channel = AttachedChannel::new(&session, stream, mode)?;
        if let Err(error) = echo(&mut channel) {
            eprintln!("pollux-perf: connection from {peer}: {error}");
        }
    }
}

fn tell_listening(address: io::Result<std::net::SocketAddr>) -> Result<()> {
    let here = address.context("cannot ask for the address listened on")?;
    let mut out = io::stdout().lock();
    writeln!(out, "listening on {here}, core {}", cores_of_this_thread()?)?;
    Ok(out.flush()?)
}

fn lat_tcp(arguments: &LatArguments, wait: TcpWait) -> Result<()> {
    let address = address(arguments)?;
    let bounce_before = BounceOrReason::between(arguments.cores);
    let channel = TcpChannel::connect(address, wait)?;
    lat_over(arguments, channel, (Transport::Tcp, None), bounce_before)
}

fn lat_attached(arguments: &LatArguments, socket: &Path) -> Result<()> {
    let address = address(arguments)?;
    let bounce_before = BounceOrReason::between(arguments.cores);
    let session: Session = attached::open(socket, arguments.poll)?;
    let channel = AttachedChannel::connect(&session, address, arguments.poll)?;
    let transport = channel.transport();
    let inline = match transport {
        Transport::SmcR => attached::inline_bytes(socket),
        Transport::Fallback { .. } | Transport::Tcp => None,
    };
    lat_over(arguments, channel, (transport, inline), bounce_before)
}

/// Measures over a stream of this thread and prints the table.
fn lat_over(
    arguments: &LatArguments,
    mut channel: impl Channel,
    (transport, inline_bytes): (Transport, Option<u32>),
    bounce_before: BounceOrReason,
) -> Result<()> {
    let sizes = sizes(arguments)?;
    let setting = Setting {
        this_core: cores_of_this_thread()?,
        other_core: arguments.cores.map(|[_, other]| other as usize),
        mode: match arguments.poll {
            PollMode::Busy => Mode::Busy,
            PollMode::Adaptive => Mode::Adaptive,
            PollMode::Interrupt => Mode::Interrupt,
        },
        transport,
        inline_bytes,
        build: Build::current(),
        bounce_before,
    };
    let mut out = io::stdout().lock();
    if format(arguments) == Format::Text {
        table::write_head(&mut out, &setting)?;
    }
    let clock = Clock::new();
    let mut rows = Vec::with_capacity(sizes.len());
    for bytes in sizes {
        let samples = ping(&mut channel, &clock, bytes, limit(arguments))?;
        let row = LatencyRow {
            bytes,
            summary: samples.summary(),
        };
        if format(arguments) == Format::Text {
            writeln!(out, "{}", row.line())?;
            out.flush()?;
        }
        rows.push(row);
    }
    // The other end polls as long as the connection lives, on the core that the bounce needs.
    drop(channel);
    let report = Report::new(setting, BounceOrReason::between(arguments.cores), rows);
    match format(arguments) {
        Format::Json => table::write_json(&mut out, &[report])?,
        Format::Text => table::write_foot(&mut out, &report)?,
    }
    Ok(())
}

fn address(arguments: &LatArguments) -> Result<&str> {
    let address = arguments.connect.as_deref();
    address.context("an address is missing: give HOST:PORT, or --listen HOST:PORT")
}

fn limit(arguments: &LatArguments) -> Limit {
    limit_given(arguments).unwrap_or(Limit::Time(Duration::from_secs(2)))
}

fn limit_given(arguments: &LatArguments) -> Option<Limit> {
    let iterations = arguments.iterations.map(Limit::Iterations);
    iterations.or(arguments.time.map(Limit::Time))
}

fn format(arguments: &LatArguments) -> Format {
    if arguments.json {
        Format::Json
    } else {
        Format::Text
    }
}

fn tcp_wait(mode: PollMode) -> Result<TcpWait> {
    match mode {
        PollMode::Busy => Ok(TcpWait::Busy),
        PollMode::Interrupt => Ok(TcpWait::Interrupt),
        PollMode::Adaptive => Err(anyhow!(
            "--poll adaptive does not exist over TCP: use busy or interrupt"
        )),
    }
}

fn sizes(arguments: &LatArguments) -> Result<Vec<u32>> {
    if arguments.loops.is_empty() {
        return Ok(vec![arguments.msg_size.unwrap_or(1)]);
    }
    let sizes = sizes_of(&arguments.loops);
    if sizes.len() > SIZES_MAX {
        bail!(
            "the loops have {} sizes, {SIZES_MAX} are allowed: use larger steps",
            sizes.len()
        );
    }
    Ok(sizes)
}

fn cores_of_this_thread() -> Result<Cores> {
    let cores = allowed_cores()?;
    Ok(match cores.0.as_slice() {
        [core] => Cores::Pinned(*core),
        _ => Cores::Free(cores),
    })
}

/// Two numbers with a comma between them.
fn parse_cores(text: &str) -> Result<[u32; 2], String> {
    let form = || format!("`{text}` is not two cores: write two numbers, such as 0,1");
    let (first, second) = text.split_once(',').ok_or_else(form)?;
    let core = |text: &str| text.trim().parse::<u32>().map_err(|_| form());
    Ok([core(first)?, core(second)?])
}

fn parse_poll(text: &str) -> Result<PollMode, String> {
    text.parse()
        .map_err(|_| format!("`{text}` is no way to wait: busy, adaptive or interrupt"))
}

fn parse_personality(text: &str) -> Result<Personality, String> {
    let parsed: Result<Personality, UnknownPersonality> = text.parse();
    parsed.map_err(|error| error.to_string())
}

fn parse_inline_use(text: &str) -> Result<InlineUse, String> {
    let legal = InlineUse::WORDS.join(", ");
    text.parse()
        .map_err(|_| format!("`{text}` is none of {legal}"))
}

fn parse_inline(text: &str) -> Result<InlineChoice, String> {
    Ok(InlineChoice(match text {
        "both" => vec![
            InlineSetting::Use(InlineUse::Off),
            InlineSetting::Use(InlineUse::On),
        ],
        other => vec![other.parse()?],
    }))
}

/// Seconds, with a fraction if need be.
fn parse_time(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text
        .parse()
        .map_err(|_| format!("`{text}` is no number of seconds, such as 2 or 0.5"))?;
    if seconds > 0.0 && seconds <= SECONDS_MAX {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err(format!(
            "{text} is out of range: more than 0 and at most {SECONDS_MAX} seconds"
        ))
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn lat(line: &str) -> Result<LatArguments, clap::Error> {
        let words = ["pollux-perf", "lat"]
            .into_iter()
            .chain(line.split_whitespace());
        Arguments::try_parse_from(words).map(|arguments| match arguments.command {
            Command::Lat(arguments) => *arguments,
            Command::Bounce(_)
            | Command::Incast(_)
            | Command::Conns(_)
            | Command::Instructions(_)
            | Command::PostPath(_)
            | Command::Appliance { .. }
            | Command::ConnsEcho { .. } => panic!("the line says lat"),
        })
    }

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn the_documented_commands_are_taken() {
        assert!(lat("--listen 127.0.0.1:7000").is_ok());
        let arguments = lat("127.0.0.1:7000 --cores 0,1 --loop msg_size:1:2K:*2 -t 2").unwrap();
        assert_eq!(sizes(&arguments).unwrap().len(), 12);
        assert_eq!(arguments.time, Some(Duration::from_secs(2)));
        assert_eq!(arguments.cores, Some([0, 1]));
    }

    #[test]
    fn inline_can_be_had_both_ways() {
        let inline = |line| lat(line).unwrap().inline.unwrap().0;
        let [off, on] = [InlineUse::Off, InlineUse::On].map(InlineSetting::Use);
        assert_eq!(inline("--inline both"), [off, on]);
        assert_eq!(inline("a:1 --inline 48"), [InlineSetting::Bytes(48)]);
    }

    #[test]
    fn a_comparison_has_its_own_sizes_and_times_unless_told_otherwise() {
        let plan = |line| {
            let arguments = lat(line).unwrap();
            check_combination(&arguments).unwrap();
            compare_plan(&arguments).unwrap()
        };
        let usual = plan("--compare inline");
        assert_eq!((usual.sizes.len(), usual.rounds), (12, 12));
        assert_eq!(usual.limit, Limit::Time(Duration::from_millis(50)));
        assert_eq!(usual.instructions, CountInstructions::IfPossible);
        let told = plan(
            "a:1 --compare inline -n 20 --rounds 3 --loop msg_size:8:8:*2 \
                         --loop msg_size:4:4:*2 --threshold 988 --without-instructions",
        );
        assert_eq!((told.sizes, told.rounds), (vec![4, 8], 3));
        assert_eq!(told.limit, Limit::Iterations(20));
        assert_eq!(told.threshold, Some(988));
        assert_eq!(told.instructions, CountInstructions::Never);
    }

    #[test]
    fn a_comparison_of_nothing_is_refused_with_the_reason() {
        for (line, reason) in [
            ("a:1 --compare inline --tcp", "nothing is ever sent inline"),
            (
                "a:1 --compare inline --attach x",
                "setting of that appliance",
            ),
            ("--compare inline --listen a:1", "leave --compare out"),
            ("--compare inline --inline on", "leave --inline out"),
            ("--compare inline -n 19", "20 or more"),
            ("a:1 --threshold 64", "--inline BYTES"),
        ] {
            let error = check_combination(&lat(line).unwrap())
                .unwrap_err()
                .to_string();
            assert!(error.contains(reason), "{line}: {error}");
        }
    }

    #[test]
    fn without_a_size_one_byte_is_measured() {
        assert_eq!(sizes(&lat("a:1").unwrap()).unwrap(), [1]);
        assert_eq!(sizes(&lat("a:1 -m 2K").unwrap()).unwrap(), [2048]);
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        for line in [
            "a:1 --listen b:2",
            "a:1 --tcp --attach x",
            "a:1 --tcp --inline off",
            "a:1 --core 1 --cores 0,1",
            "--listen a:1 -t 2",
            "--listen a:1 --json",
            "a:1 -t 2 -n 5",
            "a:1 -m 4 --loop msg_size:1:2:*2",
            "a:1 --rounds 5",
            "a:1 --out x",
            "a:1 --without-instructions",
            "a:1 --tcp --personality mlx5",
        ] {
            assert!(lat(line).is_err(), "{line}");
        }
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        for line in [
            "a:1 -t 0",
            "a:1 -t -1",
            "a:1 -t nan",
            "a:1 -t inf",
            "a:1 -t 86401",
            "a:1 -n 0",
            "a:1 -m 0",
            "a:1 -m 2M",
            "a:1 --cores 1",
            "a:1 --cores 1,x",
            "a:1 --loop msg_size:1:2K:*1",
            "a:1 --inline maybe",
            "a:1 --poll sometimes",
            "--compare outline",
            "--compare inline --rounds 0",
            "--compare inline --threshold 0",
            "--compare inline --threshold 1025",
            "--personality gives-",
        ] {
            assert!(lat(line).is_err(), "{line}");
        }
        assert_eq!(
            lat("a:1 -t 0.5").unwrap().time,
            Some(Duration::from_millis(500))
        );
    }
}
