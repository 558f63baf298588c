//! The command line of `pollux-perf incast`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use pollux_perf::incast::{BYTES_MAX, CONNS_MAX, IncastPlan, Pauses};
use pollux_perf::lat::Limit;
use pollux_perf::table::Format;

use super::{parse_cores, parse_time};

/// Rounds for each number of connections: each order of the modes once.
const ROUNDS: u32 = 6;

/// Time of one batch.
const BATCH_TIME: Duration = Duration::from_millis(500);

#[derive(Args)]
#[command(
    after_help = "What credits are worth with 1, 50 and 200 connections:\n  \
    pollux-perf incast --conns 1,50,200 --recv-depth 16\n\
    A receiver that pauses, for ten million requests in each mode:\n  \
    pollux-perf incast --conns 200 --requests 10000000 --rounds 1 --pause-max 20"
)]
pub(crate) struct IncastArguments {
    /// Numbers of connections over the one link
    #[arg(
        long,
        value_name = "N,N,...",
        value_delimiter = ',',
        default_value = "1,50,200",
        value_parser = clap::value_parser!(u16).range(1..=i64::from(CONNS_MAX))
    )]
    conns: Vec<u16>,
    /// Receives that each side has posted
    #[arg(
        long,
        value_name = "R",
        default_value_t = 16,
        value_parser = clap::value_parser!(u8).range(8..=64)
    )]
    recv_depth: u8,
    /// Bytes of each request and of its answer
    #[arg(
        long,
        value_name = "BYTES",
        default_value_t = 10,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(BYTES_MAX))
    )]
    size: u32,
    /// Seconds of each batch [default: 0.5]
    #[arg(long, value_name = "S", value_parser = parse_time)]
    seconds: Option<Duration>,
    /// Requests of each batch, instead of a time
    #[arg(
        long,
        value_name = "N",
        conflicts_with = "seconds",
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    requests: Option<u64>,
    /// Rounds for each number of connections, each with a batch in each mode
    #[arg(
        long,
        value_name = "N",
        default_value_t = ROUNDS,
        value_parser = clap::value_parser!(u32).range(1..=1000)
    )]
    rounds: u32,
    /// Longest pause of the receiver, in milliseconds; each is at random up to it [default: none]
    #[arg(
        long,
        value_name = "MS",
        value_parser = clap::value_parser!(u32).range(1..=1000)
    )]
    pause_max: Option<u32>,
    /// Mean time between two pauses, in milliseconds [default: 100]
    #[arg(
        long,
        value_name = "MS",
        requires = "pause_max",
        value_parser = clap::value_parser!(u32).range(1..=60_000)
    )]
    pause_every: Option<u32>,
    /// Nanoseconds of work of the receiver before each answer
    #[arg(
        long,
        value_name = "NS",
        default_value_t = 0,
        value_parser = clap::value_parser!(u64).range(..=1_000_000_000)
    )]
    work: u64,
    /// The cores of the asking and of the answering side, such as 0,1 [default: two of the allowed
    /// ones]
    #[arg(long, value_name = "A,B", value_parser = parse_cores)]
    cores: Option<[u32; 2]>,
    /// RNR timer code of both sides: how long a sender waits for a receiver that was not ready
    #[arg(
        long,
        value_name = "CODE",
        default_value_t = 5,
        value_parser = clap::value_parser!(u8).range(0..=31)
    )]
    rnr_timer: u8,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
    /// Folder for incast.json; without it no file is written
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

impl IncastArguments {
    pub(crate) fn plan(&self) -> IncastPlan {
        let every = self.pause_every.unwrap_or(100);
        let millis = |ms: u32| Duration::from_millis(ms.into());
        IncastPlan {
            conns: self.conns.clone(),
            recv_depth: self.recv_depth,
            bytes: self.size,
            limit: match self.requests {
                Some(requests) => Limit::Iterations(requests),
                None => Limit::Time(self.seconds.unwrap_or(BATCH_TIME)),
            },
            rounds: self.rounds,
            pauses: self.pause_max.map(|max| Pauses {
                max: millis(max),
                every: millis(every),
            }),
            work: Duration::from_nanos(self.work),
            cores: self.cores,
            rnr_timer: self.rnr_timer,
            format: if self.json {
                Format::Json
            } else {
                Format::Text
            },
            folder: self.out.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: IncastArguments,
    }

    fn plan(line: &str) -> Result<IncastPlan, clap::Error> {
        let words = ["incast"].into_iter().chain(line.split_whitespace());
        Line::try_parse_from(words).map(|line| line.arguments.plan())
    }

    #[test]
    fn without_options_three_numbers_of_connections_are_measured_as_redis_asks() {
        let plan = plan("").unwrap();
        assert_eq!(plan.conns, [1, 50, 200]);
        assert_eq!((plan.recv_depth, plan.bytes, plan.rnr_timer), (16, 10, 5));
        assert_eq!(plan.limit, Limit::Time(BATCH_TIME));
        assert_eq!((plan.rounds, plan.pauses), (6, None));
        assert!(plan.work.is_zero() && plan.folder.is_none());
    }

    #[test]
    fn everything_can_be_told() {
        let plan = plan(
            "--conns 1,1000 --recv-depth 64 --size 1024 --requests 10000000 --rounds 1 \
             --pause-max 20 --pause-every 50 --work 300 --cores 1,0 --rnr-timer 12 --json --out x",
        )
        .unwrap();
        assert_eq!(plan.conns, [1, 1000]);
        assert_eq!(plan.limit, Limit::Iterations(10_000_000));
        let pauses = plan.pauses.unwrap();
        assert_eq!(pauses.max, Duration::from_millis(20));
        assert_eq!(pauses.every, Duration::from_millis(50));
        assert_eq!(plan.work, Duration::from_nanos(300));
        assert_eq!((plan.cores, plan.rnr_timer), (Some([1, 0]), 12));
        assert_eq!(plan.format, Format::Json);
        assert_eq!(plan.folder, Some(PathBuf::from("x")));
    }

    #[test]
    fn pauses_without_a_distance_come_every_tenth_of_a_second() {
        let pauses = plan("--pause-max 20").unwrap().pauses.unwrap();
        assert_eq!(pauses.every, Duration::from_millis(100));
    }

    #[test]
    fn what_cannot_be_measured_is_refused() {
        for line in [
            "--conns 0",
            "--conns 1001",
            "--conns 1,,2",
            "--recv-depth 7",
            "--recv-depth 65",
            "--size 0",
            "--size 1025",
            "--requests 0",
            "--requests 5 --seconds 1",
            "--seconds 0",
            "--rounds 0",
            "--pause-max 0",
            "--pause-every 5",
            "--rnr-timer 32",
            "--cores 1",
            "--work -1",
        ] {
            assert!(plan(line).is_err(), "{line}");
        }
    }
}
