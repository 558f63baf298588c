//! What a demonstration prints.

use std::path::Path;

use super::Places;
use super::transfer::Transfer;
use crate::bounce::Bounce;
use crate::view::{GroupView, LatencyRow, LatencyTable, MemoryView};

/// What has been started.
pub(super) fn opening(places: Places) -> String {
    let built = if cfg!(debug_assertions) {
        "built without --release: the times below say nothing\n"
    } else {
        ""
    };
    let workers = match places {
        Places::Two([a, b]) => format!("a's worker on core {a}, b's on core {b}"),
        Places::One(core) => format!(
            "both workers in turn on core {core}, the only one allowed (so each has its own \
             folder of core locks, and they sleep between messages)"
        ),
    };
    format!("{built}two appliances run: {workers}; a connects to b over 127.0.0.1\n")
}

/// What the handshake came to.
pub(super) fn accelerated(groups: &[GroupView]) -> String {
    match groups.first() {
        Some(group) => format!(
            "handshake done: SMC-R version {}, UEID {:?}; the connection is accelerated at both \
             ends\n",
            group.version, group.ueid
        ),
        None => "handshake done; the connection is accelerated at both ends\n".to_string(),
    }
}

/// What went over the streams.
pub(super) fn transfer(transfer: &Transfer) -> String {
    let seconds = transfer.elapsed.as_secs_f64();
    let mib = transfer.there.bytes as f64 / f64::from(1 << 20);
    format!(
        "{mib:.0} MiB of random bytes each way at once, in writes of 1 B to 256 KiB: {seconds:.2} \
         s, {:.0} MiB/s each way\n\
         digests equal at both ends: a to b {:016x}, b to a {:016x}\n",
        mib / seconds,
        transfer.there.digest,
        transfer.back.digest,
    )
}

/// The two tables side by side, against the bounce of the same run.
pub(super) struct Ratios<'a> {
    /// With inline off.
    pub(super) off: &'a LatencyTable,
    /// With inline on.
    pub(super) on: &'a LatencyTable,
    /// The bounce before.
    pub(super) before: &'a Result<Bounce, String>,
    /// The bounce after.
    pub(super) after: &'a Result<Bounce, String>,
}

impl Ratios<'_> {
    /// A table of medians and ratios, with its legend.
    pub(super) fn text(&self) -> String {
        let bounce = |bounce: &Result<Bounce, String>| match bounce {
            Ok(bounce) => bounce.to_string(),
            Err(reason) => format!("n/a: {reason}"),
        };
        let mut text = format!(
            "\n# a cache line between the two cores, one way: {}\n# after the run: {}\n\
             {:>8}{:>12}{:>12}{:>10}{:>12}\n",
            bounce(self.before),
            bounce(self.after),
            "#bytes",
            "p50 off",
            "p50 on",
            "off/on",
            "on/bounce",
        );
        let cell = |value: Option<f64>, digits: usize| match value {
            Some(value) => format!("{value:.digits$}"),
            None => "n/a".to_string(),
        };
        for (off, on) in self.off.rows.iter().zip(&self.on.rows) {
            let p50 = |row: &LatencyRow| row.summary.p50;
            let gain = p50(off).zip(p50(on)).map(|(off, on)| off / on);
            text.push_str(&format!(
                "{:>8}{:>12}{:>12}{:>10}{:>12}\n",
                on.bytes,
                cell(p50(off), 3),
                cell(p50(on), 3),
                cell(gain, 2),
                cell(over_bounce(on, self.before), 2),
            ));
        }
        text
    }
}

/// The median as a multiple of the bounce with one line each way.
fn over_bounce(row: &LatencyRow, bounce: &Result<Bounce, String>) -> Option<f64> {
    let bounce = bounce.as_ref().ok()?;
    Some(row.summary.p50? * 1000.0 / bounce.two_lines.median_ns)
}

/// Which cores and which memory were used.
pub(super) fn resources(places: Places, memory: &MemoryView) -> String {
    let cores = match places {
        Places::Two([a, b]) => format!("{a} and {b}, polled without a pause while measuring"),
        Places::One(core) => format!("{core} for both, adaptive polling"),
    };
    let is_huge = |pages: &str| pages != "4K";
    let huge: u64 = bytes(memory, is_huge);
    let ordinary: u64 = bytes(memory, |pages| !is_huge(pages));
    let pages = match (huge, ordinary) {
        (0, _) => "ordinary pages of 4 KiB (no hugepages are reserved or free)".to_string(),
        (_, 0) => "hugepages".to_string(),
        (huge, ordinary) => format!(
            "hugepages for {} KiB, ordinary pages for {} KiB",
            huge >> 10,
            ordinary >> 10
        ),
    };
    format!("\ncores used: {cores}\nmemory used: {pages}\n")
}

fn bytes(memory: &MemoryView, counts: impl Fn(&str) -> bool) -> u64 {
    let pools = memory.pools.iter();
    pools
        .filter(|pool| counts(&pool.pages))
        .map(|pool| pool.bytes)
        .sum()
}

/// How to look at what was kept.
pub(super) fn kept(dir: &Path) -> String {
    let dir = dir.display();
    format!(
        "\nboth appliances keep running:\n  \
         pollux --socket {dir}/a/control.sock show links\n  \
         pollux --socket {dir}/b/control.sock show workers\n\
         end them and remove their folder:\n  \
         pollux --socket {dir}/a/control.sock stop --wait\n  \
         pollux --socket {dir}/b/control.sock stop --wait\n  \
         rm -r {dir}\n"
    )
}
