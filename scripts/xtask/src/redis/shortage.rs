//! How often the receives of the links between two appliances ran out, or would have.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// What was counted on all links of both appliances.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Shortage {
    /// "Receiver not ready" answers given.
    pub(super) rnr_naks: u64,
    /// Times a link had something to send and no credit.
    pub(super) waits: u64,
    /// Nanoseconds spent so.
    pub(super) waited_ns: u64,
}

impl Shortage {
    /// What has come since `before`. Links that ended meanwhile took their counts with them.
    pub(super) fn since(self, before: Shortage) -> Shortage {
        Shortage {
            rnr_naks: self.rnr_naks.saturating_sub(before.rnr_naks),
            waits: self.waits.saturating_sub(before.waits),
            waited_ns: self.waited_ns.saturating_sub(before.waited_ns),
        }
    }

    pub(super) fn add(&mut self, other: Shortage) {
        self.rnr_naks += other.rnr_naks;
        self.waits += other.waits;
        self.waited_ns += other.waited_ns;
    }
}

/// The parts of a link's view that are read here.
#[derive(Deserialize)]
struct Link {
    counters: Counters,
    credits: Option<Credits>,
}

#[derive(Deserialize)]
struct Counters {
    rnr_naks_sent: u64,
}

#[derive(Deserialize)]
struct Credits {
    waits: u64,
    waited_ns: u64,
}

/// Two appliances that can be asked.
pub(super) struct Appliances {
    pub(super) pollux: PathBuf,
    pub(super) sockets: [PathBuf; 2],
}

impl Appliances {
    /// What was counted so far.
    pub(super) fn shortage(&self) -> Result<Shortage> {
        let mut sum = Shortage::default();
        for socket in &self.sockets {
            let output = Command::new(&self.pollux)
                .arg("--socket")
                .arg(socket)
                .args(["--json", "show", "links"])
                .stdin(Stdio::null())
                .output()
                .with_context(|| format!("cannot start {}", self.pollux.display()))?;
            let text = String::from_utf8_lossy(&output.stdout);
            let said = String::from_utf8_lossy(&output.stderr);
            ensure!(
                output.status.success(),
                "pollux show links ended with {}: {said}",
                output.status
            );
            sum.add(read(&text)?);
        }
        Ok(sum)
    }
}

fn read(text: &str) -> Result<Shortage> {
    let links: Vec<Link> =
        serde_json::from_str(text).with_context(|| format!("no links in: {text}"))?;
    let mut sum = Shortage::default();
    for Link { counters, credits } in links {
        sum.add(Shortage {
            rnr_naks: counters.rnr_naks_sent,
            waits: credits.as_ref().map_or(0, |credits| credits.waits),
            waited_ns: credits.map_or(0, |credits| credits.waited_ns),
        });
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_with_credits_and_without_are_added_up() {
        let text = r#"[
            {"link": 0, "counters": {"rnr_naks_sent": 3, "doorbells": 9}, "credits": null},
            {"link": 1, "counters": {"rnr_naks_sent": 0}, "credits": {"waits": 2, "waited_ns": 50}}
        ]"#;
        let expected = Shortage {
            rnr_naks: 3,
            waits: 2,
            waited_ns: 50,
        };
        assert_eq!(read(text).unwrap(), expected);
        assert!(read("{}").unwrap_err().to_string().contains("no links"));
    }

    #[test]
    fn what_was_there_before_is_not_counted() {
        let before = Shortage {
            rnr_naks: 5,
            waits: 1,
            waited_ns: 10,
        };
        let mut later = before;
        later.add(Shortage {
            rnr_naks: 2,
            ..Shortage::default()
        });
        let added = later.since(before);
        assert_eq!((added.rnr_naks, added.waits, added.waited_ns), (2, 0, 0));
    }
}
