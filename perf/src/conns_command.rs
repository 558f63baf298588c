//! The command line of `pollux-perf conns`.

use std::time::Duration;

use clap::Args;
use pollux_perf::conns::{CONNS_MAX, ConnsPlan};
use pollux_perf::table::Format;

use super::parse_time;

/// Time of one batch.
const BATCH_TIME: Duration = Duration::from_secs(1);

#[derive(Args)]
#[command(
    after_help = "What idle connections cost, and what opening and closing leaves behind:\n  \
    pollux-perf conns --open 10000 --active 100 --cycle 20000 --burst 500"
)]
pub(crate) struct ConnsArguments {
    /// Connections open at once, the active ones among them
    #[arg(
        long,
        value_name = "N",
        default_value_t = 10_000,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(CONNS_MAX))
    )]
    open: u32,
    /// Connections on which requests are made, one at a time on each
    #[arg(
        long,
        value_name = "N",
        default_value_t = 100,
        value_parser = clap::value_parser!(u32).range(1..=3584)
    )]
    active: u32,
    /// Bytes of each request and of its answer
    #[arg(
        long,
        value_name = "BYTES",
        default_value_t = 64,
        value_parser = clap::value_parser!(u32).range(1..=4096)
    )]
    size: u32,
    /// Seconds of each batch [default: 1]
    #[arg(long, value_name = "S", value_parser = parse_time)]
    seconds: Option<Duration>,
    /// Rounds, each with a batch without idle connections and one with them; 0 leaves them out
    #[arg(
        long,
        value_name = "N",
        default_value_t = 5,
        value_parser = clap::value_parser!(u32).range(..=1000)
    )]
    rounds: u32,
    /// Connections opened, used and closed one after the other
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        value_parser = clap::value_parser!(u32).range(..=10_000_000)
    )]
    cycle: u32,
    /// Connections opened at once
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        value_parser = clap::value_parser!(u32).range(..=3584)
    )]
    burst: u32,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

impl ConnsArguments {
    /// What was asked for.
    pub(crate) fn plan(&self) -> ConnsPlan {
        ConnsPlan {
            open: self.open,
            active: self.active,
            size: self.size as usize,
            batch: self.seconds.unwrap_or(BATCH_TIME),
            rounds: self.rounds,
            cycle: self.cycle,
            burst: self.burst,
            format: if self.json {
                Format::Json
            } else {
                Format::Text
            },
        }
    }
}
