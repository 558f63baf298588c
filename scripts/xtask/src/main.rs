//! What the maintainers run, as one program: `cargo xtask ci` does exactly what the continuous
//! integration does, and the other commands are single parts of it.
//!
//! Exit status: 0 when everything asked for held, 1 otherwise (clap itself uses 2 for a usage
//! error). Every failure says what to run to see it again.

mod fuzz;
mod licences;
mod metadata;
mod process;
mod programs;
mod redis;
mod steps;
mod tally;
mod tidy;
mod vm;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{CommandFactory, Parser, Subcommand};

/// The command line of `cargo xtask`.
#[derive(Parser)]
#[command(name = "cargo xtask", about = "What the maintainers run", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Every check and every test, as the continuous integration runs them
    Ci {
        /// Only these steps, in the order of the list (see --list)
        steps: Vec<String>,
        /// Print the steps and stop
        #[arg(long)]
        list: bool,
    },
    /// The tests only: packages, build, end-to-end tests, documentation tests, tests
    Test,
    /// As root: install the packages that tests need; otherwise say what is missing
    Setup,
    /// Figures of redis-benchmark through two appliances with credits and without, through two
    /// proxies, and directly
    Redis {
        /// Requests of each run
        #[arg(long, default_value_t = 100_000)]
        requests: u32,
        /// Rounds; the median counts
        #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
        rounds: u32,
        /// Receives posted on each link
        #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(8..=2048))]
        recv_depth: u32,
    },
    /// Random bytes both ways at once through two appliances, far more than in the tests
    Soak {
        /// MiB each way
        #[arg(long, default_value_t = 1024)]
        mib: u32,
    },
    /// Kills appliances, programs and the target of a gateway under checked traffic, more often than
    /// in the tests
    Kills {
        /// How many are killed
        #[arg(long, default_value_t = 200)]
        rounds: u32,
        /// Which ones, and when
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// A program that scribbles over its shared memory beside a stream of another, for longer than
    /// in the tests; prints what the stream's latency has to do with it
    Scribble {
        /// Seconds
        #[arg(long, default_value_t = 60)]
        seconds: u32,
    },
    /// Simulated worlds: those of one seed, or a swarm (arguments as of pollux-sim)
    Sim {
        /// Arguments of pollux-sim, for instance a seed, or --worlds 1000000
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Lets libFuzzer look for inputs that a parser or a state machine does not stand
    Fuzz(FuzzArguments),
    /// Scenarios in virtual machines with a kernel that has RDMA and SMC
    Vm(VmArguments),
    /// The house rules that a program can check
    Tidy,
    /// The licence of every dependency, against the list of allowed ones
    Licences,
}

/// What `cargo xtask fuzz` takes.
#[derive(clap::Args)]
struct FuzzArguments {
    /// Targets; all without a name
    targets: Vec<String>,
    /// Executions of each target
    #[arg(long, conflicts_with = "minutes")]
    runs: Option<u64>,
    /// Time for each target, 1 without this and --runs
    #[arg(long)]
    minutes: Option<u32>,
    /// Targets that run at a time
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// Where the choices start, to make a run that can be repeated
    #[arg(long)]
    seed: Option<u32>,
    /// Only run these inputs once, on the one target named
    #[arg(long, num_args = 1.., requires = "targets", conflicts_with_all = ["runs", "minutes"])]
    replay: Vec<PathBuf>,
    /// Only make the corpus in the repository anew, from it and from what runs have found
    #[arg(long, conflicts_with_all = ["runs", "minutes", "replay"])]
    minimise: bool,
}

impl FuzzArguments {
    fn plan(&self) -> fuzz::Plan {
        let minutes = self.minutes.unwrap_or(1);
        fuzz::Plan {
            targets: self.targets.clone(),
            limit: match self.runs {
                Some(runs) => fuzz::Limit::Runs(runs),
                None => fuzz::Limit::Time(Duration::from_secs(60) * minutes),
            },
            jobs: self.jobs,
            seed: self.seed,
            build: fuzz::Build::Fast,
        }
    }
}

/// What `cargo xtask vm` takes.
#[derive(clap::Args)]
struct VmArguments {
    /// Scenarios, or beginnings of their names before a `-`; all without a name
    scenarios: Vec<String>,
    /// Print the scenarios and stop
    #[arg(long)]
    list: bool,
    /// Keep the logs and files of scenarios that held as well
    #[arg(long)]
    keep: bool,
    /// Seconds that each scenario may take once its hosts are up, instead of its own limit
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    timeout: Option<u32>,
    /// Build with this profile of cargo, as release, instead of the scenarios' own
    #[arg(long)]
    profile: Option<String>,
    /// Fail also if temporary files of anybody have come meanwhile; processes, and files in the
    /// repository, that are left always count as a failure
    #[arg(long)]
    temporary: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: &Command) -> Result<()> {
    let root = workspace_root()?;
    match command {
        Command::Ci { list: true, .. } => {
            steps::print_list();
            Ok(())
        }
        Command::Ci { steps, .. } if steps.is_empty() => steps::run(&root, &steps::all()),
        Command::Ci { steps, .. } => steps::run(&root, &steps::named(steps)?),
        Command::Test => steps::run(&root, &steps::tests()),
        Command::Setup => programs::setup().map(|_| ()),
        Command::Redis {
            requests,
            rounds,
            recv_depth,
        } => {
            let plan = redis::Plan {
                requests: *requests,
                rounds: *rounds,
                recv_depth: *recv_depth,
            };
            redis::measure(&root, plan)
        }
        Command::Soak { mib } => at_length(
            &root,
            "random_bytes_both_ways_at_once",
            &[("POLLUX_STREAM_MIB", mib.to_string())],
        ),
        Command::Scribble { seconds } => at_length(
            &root,
            "a_program_that_scribbles_over_its_memory_harms_no_stream_of_another",
            &[("POLLUX_SCRIBBLE_SECONDS", seconds.to_string())],
        ),
        Command::Kills { rounds, seed } => at_length(
            &root,
            "whatever_is_killed_under_traffic_the_others_go_on_and_nothing_is_left",
            &[
                ("POLLUX_KILL_ROUNDS", rounds.to_string()),
                ("POLLUX_SEED", seed.to_string()),
            ],
        ),
        Command::Sim { arguments } => {
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            steps::swarm(&root, &arguments)
        }
        Command::Fuzz(arguments) => fuzz_command(&root, arguments),
        Command::Vm(arguments) => vm_command(&root, arguments),
        Command::Tidy => tidy::check(&root, &command_names()),
        Command::Licences => licences::check(&root),
    }
}

fn fuzz_command(root: &Path, arguments: &FuzzArguments) -> Result<()> {
    if arguments.minimise {
        return fuzz::minimise(root, &arguments.targets);
    }
    match (&arguments.replay[..], &arguments.targets[..]) {
        ([], _) => fuzz::run(root, &arguments.plan()).map(|_| ()),
        (inputs, [target]) => fuzz::replay(root, target, inputs),
        (_, targets) => anyhow::bail!(
            "--replay takes one target, not {}: an input belongs to one",
            targets.len()
        ),
    }
}

fn vm_command(root: &Path, arguments: &VmArguments) -> Result<()> {
    if arguments.list {
        return vm::print_list(root);
    }
    let plan = vm::Plan {
        scenarios: arguments.scenarios.clone(),
        limit: arguments
            .timeout
            .map(|seconds| Duration::from_secs(seconds.into())),
        logs: if arguments.keep {
            vm::Logs::Keep
        } else {
            vm::Logs::Remove
        },
        profile: arguments.profile.clone(),
        temporary: if arguments.temporary {
            vm::Temporary::Compare
        } else {
            vm::Temporary::Ignore
        },
    };
    let count = vm::run(root, &plan)?;
    println!("{} passed, {} failed", count.passed, count.failed);
    anyhow::ensure!(count.failed == 0, "{} scenarios failed", count.failed);
    Ok(())
}

/// End-to-end tests built for release, longer than in the continuous integration.
fn at_length(root: &Path, test: &str, how_long: &[(&str, String)]) -> Result<()> {
    let arguments = [
        "test",
        "--release",
        "--locked",
        "-p",
        "pollux-control",
        "--test",
        "end_to_end",
        test,
        "--",
        "--nocapture",
    ];
    let status = std::process::Command::new(process::cargo())
        .current_dir(root)
        .args(arguments)
        .envs(how_long.iter().map(|(key, value)| (key, value)))
        .status()
        .context("cannot start cargo")?;
    anyhow::ensure!(status.success(), "{test} failed: {status}");
    Ok(())
}

/// The names that may follow `cargo xtask`, for the check of what README.md promises.
fn command_names() -> Vec<String> {
    Arguments::command()
        .get_subcommands()
        .map(|command| command.get_name().to_owned())
        .collect()
}

/// The folder of the workspace's Cargo.toml: two levels above this package.
fn workspace_root() -> Result<PathBuf> {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = package
        .ancestors()
        .nth(2)
        .context("this package has moved out of scripts/")?;
    root.canonicalize().with_context(|| {
        format!(
            "{} is gone: run `cargo clean -p xtask` and try again",
            root.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn the_root_holds_the_workspace_manifest() {
        let manifest = workspace_root().unwrap().join("Cargo.toml");
        assert!(
            std::fs::read_to_string(manifest)
                .unwrap()
                .contains("[workspace]")
        );
    }
}
