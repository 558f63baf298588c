//! `pollux-perf`: latency measurements from the command line.
//!
//! Exit status: 0 when everything asked for was measured, 1 on any failure, usage included.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand, ValueEnum};
use pollux_control::bounce::{self, BounceSpec, allowed_cores, pin_to};
use pollux_control::view::LatencyRow;
use pollux_perf::lat::{Limit, ping};
use pollux_perf::loop_spec::{LoopSpec, SIZES_MAX, parse_size, sizes_of};
use pollux_perf::table::{self, BounceOrReason, Build, Cores, Mode, Report, Setting, Transport};
use pollux_perf::tcp::{self, TcpChannel, TcpWait};
use quanta::Clock;

/// Longest time for one message size, in seconds: a day.
const SECONDS_MAX: f64 = 86_400.0;

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
    Lat(LatArguments),
}

#[derive(Args)]
struct BounceArguments {
    /// The two cores, such as 0,1 [default: two of the allowed ones]
    #[arg(long, value_name = "A,B", value_parser = parse_cores)]
    cores: Option<[usize; 2]>,
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
#[command(after_help = "The two ends, each on a core of its own:\n  \
    taskset -c 1 pollux-perf lat --listen 127.0.0.1:7000\n  \
    taskset -c 0 pollux-perf lat 127.0.0.1:7000 --cores 0,1 --loop msg_size:1:2K:*2 -t 2")]
struct LatArguments {
    /// Measure against the end that listens at HOST:PORT
    #[arg(value_name = "HOST:PORT", required_unless_present = "listen")]
    connect: Option<String>,
    /// Be the other end: listen at HOST:PORT and send everything back, until stopped
    #[arg(
        long,
        value_name = "HOST:PORT",
        conflicts_with_all = ["connect", "loops", "msg_size", "time", "iterations", "cores", "json"]
    )]
    listen: Option<String>,
    /// What carries the bytes
    #[arg(long, value_enum, default_value_t = Carrier::Tcp)]
    transport: Carrier,
    /// How this end waits; start both ends with the same
    #[arg(long, value_enum, default_value_t = Poll::Busy)]
    poll: Poll,
    /// Message sizes as msg_size:FIRST:LAST:STEP with STEP *FACTOR or +BYTES; may be repeated
    #[arg(long = "loop", value_name = "SPEC")]
    loops: Vec<LoopSpec>,
    /// One message size, such as 64 or 2K [default: 1]
    #[arg(short, long, value_name = "BYTES", value_parser = parse_size, conflicts_with = "loops")]
    msg_size: Option<u32>,
    /// Seconds for each message size [default: 2]
    #[arg(short, long, value_name = "SECONDS", value_parser = parse_time)]
    time: Option<Duration>,
    /// Samples for each message size instead of a time
    #[arg(
        short = 'n',
        long,
        value_name = "COUNT",
        conflicts_with = "time",
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    iterations: Option<u64>,
    /// The cores of this end and of the other one, such as 0,1: pins this end, and says between
    /// which cores to measure the bounce
    #[arg(long, value_name = "THIS,OTHER", value_parser = parse_cores)]
    cores: Option<[usize; 2]>,
    /// Print one JSON object at the end instead of text
    #[arg(long)]
    json: bool,
}

/// What carries the bytes of a run.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Carrier {
    /// The system's TCP, which a stream falls back to
    Tcp,
}

/// How an end waits for its message.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Poll {
    /// Poll without a pause
    Busy,
    /// Sleep until the system wakes it
    Interrupt,
}

impl From<Poll> for TcpWait {
    fn from(poll: Poll) -> TcpWait {
        match poll {
            Poll::Busy => TcpWait::Busy,
            Poll::Interrupt => TcpWait::Interrupt,
        }
    }
}

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
        Command::Lat(LatArguments {
            listen: Some(address),
            poll,
            ..
        }) => serve(address, *poll),
        Command::Lat(arguments) => run_lat(arguments),
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
        cores: arguments.cores,
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

/// The other end: serves one connection after the other.
fn serve(address: &str, poll: Poll) -> Result<()> {
    let listener = tcp::listen(address)?;
    let here = listener
        .local_addr()
        .context("cannot ask for the address listened on")?;
    {
        let mut out = io::stdout().lock();
        writeln!(out, "listening on {here}, core {}", cores_of_this_thread()?)?;
        out.flush()?;
    }
    loop {
        let (stream, peer) = listener.accept().context("cannot accept a connection")?;
        if let Err(error) = tcp::echo(stream, poll.into()) {
            eprintln!("pollux-perf: connection from {peer}: {error}");
        }
    }
}

fn run_lat(arguments: &LatArguments) -> Result<()> {
    let address = arguments
        .connect
        .as_deref()
        .context("an address to connect to is missing")?;
    let sizes = sizes(arguments)?;
    let limit = match arguments.iterations {
        Some(iterations) => Limit::Iterations(iterations),
        None => Limit::Time(arguments.time.unwrap_or(Duration::from_secs(2))),
    };
    let bounce_before = bounce_of(arguments.cores);
    if let Some([this, _]) = arguments.cores {
        pin_to(this)?;
    }
    let mut channel = match arguments.transport {
        Carrier::Tcp => TcpChannel::connect(address, arguments.poll.into())?,
    };
    let setting = Setting {
        this_core: cores_of_this_thread()?,
        other_core: arguments.cores.map(|[_, other]| other),
        mode: Mode::from(TcpWait::from(arguments.poll)),
        transport: Transport::Tcp,
        inline_bytes: None,
        build: Build::current(),
        bounce_before,
    };
    let mut out = io::stdout().lock();
    if !arguments.json {
        table::write_head(&mut out, &setting)?;
    }
    let clock = Clock::new();
    let mut rows = Vec::with_capacity(sizes.len());
    for bytes in sizes {
        let samples = ping(&mut channel, &clock, bytes, limit)?;
        let row = LatencyRow {
            bytes,
            summary: samples.summary(),
        };
        if !arguments.json {
            writeln!(out, "{}", row.line())?;
            out.flush()?;
        }
        rows.push(row);
    }
    // The other end polls as long as the connection lives, on the core that the bounce needs.
    drop(channel);
    let bounce_after = bounce_of(arguments.cores);
    if arguments.json {
        Report::new(setting, bounce_after, rows).write_json(&mut out)?;
    } else {
        table::write_foot(&mut out, &bounce_after)?;
    }
    Ok(())
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

/// The bounce between the two ends' cores. That it cannot be measured does not end a run: the
/// reason stands where the figure would.
fn bounce_of(cores: Option<[usize; 2]>) -> BounceOrReason {
    match bounce::measure(&BounceSpec {
        cores,
        ..BounceSpec::default()
    }) {
        Ok(bounce) => BounceOrReason::Measured(bounce),
        Err(error) => BounceOrReason::NotMeasured {
            reason: error.to_string(),
        },
    }
}

fn cores_of_this_thread() -> Result<Cores> {
    let cores = allowed_cores()?;
    Ok(match cores.0.as_slice() {
        [core] => Cores::Pinned(*core),
        _ => Cores::Free(cores),
    })
}

/// Two numbers with a comma between them.
fn parse_cores(text: &str) -> Result<[usize; 2], String> {
    let form = || format!("`{text}` is not two cores: write two numbers, such as 0,1");
    let (first, second) = text.split_once(',').ok_or_else(form)?;
    let core = |text: &str| text.trim().parse::<usize>().map_err(|_| form());
    Ok([core(first)?, core(second)?])
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
            Command::Lat(arguments) => arguments,
            Command::Bounce(_) => panic!("the line says lat"),
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
    fn without_a_size_one_byte_is_measured() {
        assert_eq!(sizes(&lat("a:1").unwrap()).unwrap(), [1]);
        assert_eq!(sizes(&lat("a:1 -m 2K").unwrap()).unwrap(), [2048]);
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        for line in [
            "",
            "a:1 --listen b:2",
            "--listen a:1 -t 2",
            "--listen a:1 --json",
            "a:1 -t 2 -n 5",
            "a:1 -m 4 --loop msg_size:1:2:*2",
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
        ] {
            assert!(lat(line).is_err(), "{line}");
        }
        assert_eq!(
            lat("a:1 -t 0.5").unwrap().time,
            Some(Duration::from_millis(500))
        );
    }
}
