//! `pollux-sim <seed>` tells the story of one world; `pollux-sim` without a seed runs a swarm.

use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use pollux_proto::planted::{Bug, Ground, plant};
use pollux_sim::book::Detail;
use pollux_sim::swarm::{self, Failure, Plan, Summary};
use pollux_sim::{Options, Outcome};

/// Worlds under a seed: whole stacks, faults, checkers.
#[derive(Parser)]
#[command(name = "pollux-sim", version)]
struct Arguments {
    /// Run this one world and tell its story
    seed: Option<u64>,
    /// Worlds of a swarm [default: 1000]
    #[arg(long, conflicts_with = "seed")]
    worlds: Option<u64>,
    /// Seed of the swarm's first world; the others follow
    #[arg(long, default_value_t = 0, conflicts_with = "seed")]
    from: u64,
    /// Threads (default: as many as there are cores)
    #[arg(long, conflicts_with = "seed")]
    threads: Option<usize>,
    /// Begin no new world after this many minutes
    #[arg(long, conflicts_with = "seed")]
    minutes: Option<u64>,
    /// Stop after this many failures
    #[arg(long, default_value_t = 10, conflicts_with = "seed")]
    failures: usize,
    /// Plant each known fault in turn and look for it in as many worlds (default 2,000); needs a
    /// build with the feature `planted`
    #[arg(long, conflicts_with = "seed")]
    mutations: bool,
    /// Plant this fault in the world of a seed, or in a swarm
    #[arg(long, value_parser = bug, conflicts_with = "mutations")]
    plant: Option<Bug>,
    /// Last lines of the story that are shown; 0 for all
    #[arg(long, default_value_t = 60, requires = "seed")]
    lines: usize,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if (arguments.mutations || arguments.plant.is_some())
        && plant(arguments.plant) == Ground::Barren
    {
        eprintln!(
            "pollux-sim: this build cannot have faults planted: build it with --features planted"
        );
        return ExitCode::FAILURE;
    }
    let told = match arguments.seed {
        Some(seed) => tell(seed, arguments.lines),
        None if arguments.mutations => run_mutations(&arguments),
        None => run_swarm(&arguments),
    };
    match told {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("pollux-sim: cannot write: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A fault by its name.
fn bug(name: &str) -> Result<Bug, String> {
    let known = || Bug::ALL.map(Bug::name).join(", ");
    let mut bugs = Bug::ALL.into_iter();
    bugs.find(|bug| bug.name() == name)
        .ok_or_else(|| format!("no fault is named `{name}`; there are {}", known()))
}

/// Tells the story of one world; whether all was well.
fn tell(seed: u64, lines: usize) -> std::io::Result<bool> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", Options::draw(seed))?;
    let outcome = swarm::run_seed(seed, Detail::All);
    let Outcome {
        digest,
        figures,
        violation,
        story,
    } = outcome;
    let skipped = match lines {
        0 => 0,
        lines => story.len().saturating_sub(lines),
    };
    if skipped > 0 {
        writeln!(out, "... {skipped} lines before (--lines 0 shows all)")?;
    }
    for line in &story[skipped..] {
        writeln!(out, "{line}")?;
    }
    writeln!(
        out,
        "{} steps, {} sleeps, {} connections, {} delivered whole, {} B read, {} posts, {} times not ready, \
         credits counted {} times, digest {digest:#018x}",
        figures.steps,
        figures.sleeps,
        figures.conns,
        figures.delivered,
        figures.bytes,
        figures.posts,
        figures.rnrs,
        figures.credit_checks
    )?;
    for (fault, count) in &figures.faults {
        writeln!(out, "  {count:>8} {fault}")?;
    }
    match &violation {
        None => writeln!(out, "all is well")?,
        Some(violation) => writeln!(
            out,
            "WRONG at step {}, {} us: {}",
            violation.step,
            violation.now / 1000,
            violation.what
        )?,
    }
    Ok(violation.is_none())
}

/// Looks for every fault that can be planted; whether all were found.
fn run_mutations(arguments: &Arguments) -> std::io::Result<bool> {
    let plan = plan(arguments, 2000);
    std::panic::set_hook(Box::new(|_| {}));
    let mut out = std::io::stdout().lock();
    let mut all_found = true;
    for bug in Bug::ALL {
        let begun = Instant::now();
        let mutation = swarm::look_for(bug, &plan);
        let time = begun.elapsed().as_secs_f64();
        match mutation.found {
            Some(Failure { seed, violation }) => writeln!(
                out,
                "{}: found in world {} ({time:.1} s), seed {seed}, step {}: {}",
                bug.name(),
                mutation.worlds,
                violation.step,
                violation.what
            )?,
            None => {
                all_found = false;
                writeln!(
                    out,
                    "{}: NOT FOUND in {} worlds ({time:.1} s)",
                    bug.name(),
                    mutation.worlds
                )?;
            }
        }
    }
    Ok(all_found)
}

fn plan(arguments: &Arguments, worlds: u64) -> Plan {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Plan {
        from: arguments.from,
        worlds: arguments.worlds.unwrap_or(worlds),
        threads: arguments.threads.unwrap_or(cores),
        time: arguments
            .minutes
            .map(|minutes| Duration::from_secs(60 * minutes)),
        failures_max: arguments.failures,
        bug: arguments.plant,
    }
}

fn run_swarm(arguments: &Arguments) -> std::io::Result<bool> {
    let plan = plan(arguments, 1000);
    // A panic is told with its seed, and once.
    std::panic::set_hook(Box::new(|_| {}));
    let begun = Instant::now();
    let summary = swarm::run(&plan);
    report(&summary, begun.elapsed())
}

/// Prints a summary; whether all was well.
fn report(summary: &Summary, time: Duration) -> std::io::Result<bool> {
    let mut out = std::io::stdout().lock();
    let figures = &summary.figures;
    writeln!(
        out,
        "{} worlds ({} of them twice), {} steps, {} sleeps, {} connections ({} delivered whole), \
         {} B read, {} posts, {} times not ready, credits counted {} times, {:.1} s",
        figures.worlds,
        summary.repeated,
        figures.steps,
        figures.sleeps,
        figures.conns,
        figures.delivered,
        figures.bytes,
        figures.posts,
        figures.rnrs,
        figures.credit_checks,
        time.as_secs_f64()
    )?;
    for (fault, count) in &figures.faults {
        writeln!(out, "  {count:>10} {fault}")?;
    }
    writeln!(out, "digest {:#018x}", summary.digest)?;
    for failure in &summary.failures {
        writeln!(
            out,
            "FAILED seed {}: step {}, {} us: {}\n  to see it: cargo run -q --profile sim -p \
             pollux-sim -- {}",
            failure.seed,
            failure.violation.step,
            failure.violation.now / 1000,
            failure.violation.what,
            failure.seed
        )?;
    }
    Ok(summary.failures.is_empty())
}
