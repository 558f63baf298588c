//! `pollux doctor`: what this host has, and whether an appliance would start on it.
//!
//! It starts no worker, opens no queue pair, takes no lock, and changes nothing. What keeps an appliance
//! from starting is found by the functions that the start itself asks (`start/rehearsal.rs`), so a
//! failure here has the words and the exit status of `polluxd`. Everything else, as the GID table with the
//! reason for each entry, is read and told beside it.
//!
//! ```text
//!     Machine (files below a root, limits, adapters)  +  Subject (a configuration, or none)
//!         -> one list of checks in groups: name, verdict, what was found, what to do
//!         -> the first step at which a start would end, with its status
//! ```

mod adapters;
mod cores;
mod fabric;
mod kernel;
mod machine;
mod memory;
mod peer;
mod report;
mod sockets;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::str::FromStr;

pub use self::machine::{Limit, Machine};
pub use self::report::{Check, Group, Report, Verdict};
use crate::config::{Config, ConfigErrors, Driver};
use crate::exit::Fatal;
use crate::start::rehearsal::{Rehearsal, Step};

/// An address to which connections will be made: an IP address, or one with a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerAddress {
    /// The host.
    pub ip: IpAddr,
    /// The port, if one was given.
    pub port: Option<u16>,
}

impl FromStr for PeerAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<PeerAddress, String> {
        if let Ok(ip) = text.parse() {
            return Ok(PeerAddress { ip, port: None });
        }
        match text.parse::<SocketAddr>() {
            Ok(address) => Ok(PeerAddress {
                ip: address.ip(),
                port: Some(address.port()),
            }),
            Err(_) => Err("legal: an IP address, or ADDRESS:PORT".to_string()),
        }
    }
}

/// What is examined.
#[derive(Debug)]
pub enum Subject {
    /// The host as it is.
    Host,
    /// The host for a configuration.
    Config {
        /// The file.
        file: String,
        /// What it says.
        config: Box<Config>,
    },
    /// The host, and a configuration that cannot be read.
    Wrong {
        /// The file.
        file: String,
        /// What is wrong with it.
        errors: ConfigErrors,
    },
}

impl Subject {
    /// The host for the configuration in a file; for none, the host alone.
    #[must_use]
    pub fn read(file: Option<&Path>) -> Subject {
        let Some(path) = file else {
            return Subject::Host;
        };
        let file = path.display().to_string();
        match Config::from_file(path) {
            Ok(config) => Subject::Config {
                file,
                config: Box::new(config),
            },
            Err(errors) => Subject::Wrong { file, errors },
        }
    }
}

/// Which driver the subject needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    Verbs,
    Soft,
    /// No configuration says.
    Either,
}

/// What the checks look at.
struct Examination<'a> {
    machine: &'a Machine,
    /// The configuration, or the default one where none counts.
    config: Config,
    need: Need,
    /// Only with a configuration.
    rehearsal: Option<Rehearsal>,
    peer: Option<PeerAddress>,
}

impl Examination<'_> {
    /// How a step of the start would go; `None` without a configuration, or behind a step that fails.
    fn step(&self, step: Step) -> Option<Result<(), &Fatal>> {
        self.rehearsal.as_ref()?.outcome(step)
    }

    /// The verdict on something that only the verbs driver lacks.
    fn lack(&self) -> Verdict {
        match self.need {
            Need::Verbs | Need::Either => Verdict::Warning,
            Need::Soft => Verdict::NotApplicable,
        }
    }
}

/// Looks at everything.
#[must_use]
pub fn examine(machine: &Machine, subject: Subject, peer: Option<PeerAddress>) -> Report {
    let mut checks = Vec::new();
    let mut wrong = None;
    let (file, config) = match subject {
        Subject::Host => (None, None),
        Subject::Config { file, config } => {
            checks.push(Check::ok(
                Group::Configuration,
                "file",
                format!("{file}: no mistakes"),
            ));
            (Some(file), Some(*config))
        }
        Subject::Wrong { file, errors } => {
            let fatal = Fatal::config(errors.summary());
            for error in errors.iter() {
                let cure = "polluxd --default-config prints every key with what is legal";
                let text = error.to_string();
                checks.push(Check::failed(Group::Configuration, "file", text, cure));
            }
            wrong = Some(fatal);
            (Some(file), None)
        }
    };
    let rehearsal = config
        .as_ref()
        .map(|config| Rehearsal::of(config, &machine.scene()));
    let need = match &config {
        None => Need::Either,
        Some(config) => match config.device.driver {
            Driver::Soft => Need::Soft,
            Driver::Verbs => Need::Verbs,
        },
    };
    let examination = Examination {
        machine,
        config: config.unwrap_or_default(),
        need,
        rehearsal,
        peer,
    };
    for group in [
        kernel::checks,
        adapters::checks,
        memory::checks,
        cores::checks,
        fabric::checks,
        sockets::checks,
        peer::checks,
    ] {
        checks.extend(group(&examination));
    }
    let end = wrong.or_else(|| match &examination.rehearsal {
        Some(rehearsal) => rehearsal.end().cloned(),
        None => machine.allowed.clone().err().map(Fatal::from),
    });
    let end = end.or_else(|| fabric::end(machine));
    Report { file, checks, end }
}
