//! A report: checks in groups, and the end that a start would come to.

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::exit::Fatal;
use crate::view::View;
use crate::words::words;

words! {
    /// What a check comes to.
    pub enum Verdict {
        /// As it should be.
        Ok = "ok",
        /// An appliance starts, but not all will be well.
        Warning = "warning",
        /// An appliance does not start.
        Failure = "failure",
        /// Nothing that counts here.
        NotApplicable = "n/a",
    }
}

words! {
    /// What a check is about.
    pub enum Group {
        /// The file.
        Configuration = "configuration",
        /// Kernel, user, clock.
        Kernel = "kernel and privileges",
        /// libibverbs.
        Libraries = "libraries",
        /// Adapters.
        Devices = "devices",
        /// Their ports.
        Ports = "ports",
        /// The addresses of ports.
        Gids = "GIDs",
        /// Hugepages and limits.
        Memory = "memory",
        /// Processor cores.
        Cores = "cores",
        /// What the soft driver needs.
        Fabric = "software fabric",
        /// What lies in the file system, and TCP ports.
        Sockets = "folders, sockets and ports",
        /// The way to a peer.
        Peer = "peer",
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What it is about.
    pub group: Group,
    /// What was looked at.
    pub name: String,
    /// What it comes to.
    pub verdict: Verdict,
    /// What was found.
    pub found: String,
    /// What to do; empty where nothing has to be done.
    #[serde(rename = "do", skip_serializing_if = "String::is_empty")]
    pub cure: String,
    /// What was found, for programs.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub values: Map<String, Value>,
}

impl Check {
    /// As it should be.
    pub(super) fn ok(group: Group, name: impl Into<String>, found: impl Into<String>) -> Check {
        Check::of(group, name, Verdict::Ok, found)
    }

    /// With any verdict, and nothing to do.
    pub(super) fn of(
        group: Group,
        name: impl Into<String>,
        verdict: Verdict,
        found: impl Into<String>,
    ) -> Check {
        Check {
            group,
            name: name.into(),
            verdict,
            found: found.into(),
            cure: String::new(),
            values: Map::new(),
        }
    }

    /// Not all will be well.
    pub(super) fn warning(
        group: Group,
        name: impl Into<String>,
        found: impl Into<String>,
        cure: impl Into<String>,
    ) -> Check {
        Check::of(group, name, Verdict::Warning, found).cure(cure)
    }

    /// An appliance does not start.
    pub(super) fn failed(
        group: Group,
        name: impl Into<String>,
        found: impl Into<String>,
        cure: impl Into<String>,
    ) -> Check {
        Check::of(group, name, Verdict::Failure, found).cure(cure)
    }

    /// What to do.
    pub(super) fn cure(mut self, cure: impl Into<String>) -> Check {
        self.cure = cure.into();
        self
    }

    /// A value for programs.
    pub(super) fn value(mut self, name: &str, value: impl Into<Value>) -> Check {
        self.values.insert(name.to_string(), value.into());
        self
    }
}

/// Everything that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The configuration that it is about; `None` for the host alone.
    pub file: Option<String>,
    /// The checks, group by group.
    pub checks: Vec<Check>,
    /// What an appliance would end with at its start; `None` if it would start.
    pub end: Option<Fatal>,
}

impl Report {
    /// The report for programs.
    #[must_use]
    pub fn json(&self) -> Value {
        let status = self.end.as_ref().map_or(0, |end| end.status().code());
        let message = self.end.as_ref().map_or("", Fatal::message);
        json!({
            "config": self.file,
            "status": status,
            "message": message,
            "checks": self.checks,
        })
    }

    fn count(&self, verdict: Verdict) -> String {
        let count = self
            .checks
            .iter()
            .filter(|check| check.verdict == verdict)
            .count();
        match count {
            1 => format!("1 {verdict}"),
            count => format!("{count} {verdict}s"),
        }
    }
}

impl View for Report {
    fn text(&self) -> String {
        let mut text = match &self.file {
            Some(file) => format!("pre-flight report for {file}\n"),
            None => "pre-flight report for this host, without a configuration\n".to_string(),
        };
        for group in Group::ALL {
            let mut checks = self
                .checks
                .iter()
                .filter(|check| check.group == *group)
                .peekable();
            if checks.peek().is_some() {
                text.push_str(&format!("\n{group}\n"));
            }
            for Check {
                name,
                verdict,
                found,
                cure,
                ..
            } in checks
            {
                text.push_str(&format!("  {verdict:<7}  {name}: {found}\n"));
                if !cure.is_empty() {
                    text.push_str(&format!("           do: {cure}\n"));
                }
            }
        }
        let warnings = self.count(Verdict::Warning);
        text.push_str(&match (&self.end, &self.file) {
            (Some(end), _) => format!(
                "\nresult: {}, {warnings}; polluxd would end with status {}: {}\n",
                self.count(Verdict::Failure),
                end.status().code(),
                end.message()
            ),
            (None, Some(_)) => format!("\nresult: polluxd would start, {warnings}\n"),
            (None, None) => format!("\nresult: an appliance can run on this host, {warnings}\n"),
        });
        text
    }
}
