//! The subcommands of `pollux`.

use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, getppid, pidfd_open, set_parent_process_death_signal,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::output::{Reader, emit, emit_part};
use super::{
    Check, Command, Completions, Daemon, Doctor, Global, Latency, Man, Rpc, Set, Show, Stats, Stop,
};
use crate::config::Config;
use crate::demo;
use crate::doctor::{self, Machine, Subject};
use crate::exit::{ExitStatus, Fatal};
use crate::host::Host;
use crate::measure::{self, typed};
use crate::rpc::{
    CALL_TIMEOUT, Client, ClientError, LatencyRequest, Method, PollRequest, RpcError,
};
use crate::start;
use crate::view::{
    ConfigView, ConnView, DeviceView, FallbackView, GroupView, LatencyTable, LinkView, MemoryView,
    StatsView, VersionView, View, WorkerView,
};

/// Runs a subcommand.
pub(super) fn run(global: &Global, command: &Command, host: &Host) -> Result<(), Fatal> {
    match command {
        Command::Check(check) => return check_config(global, check, host),
        Command::Doctor(doctor) => return examine(global, doctor),
        Command::Completions(completions) => return print_completions(*completions),
        Command::Man(man) => return write_man_pages(man),
        Command::Demo(_) if global.json => {
            let text = "the demonstration has no JSON; pollux latency --json has";
            return Err(Fatal::new(ExitStatus::Usage, text));
        }
        Command::Demo(options) => return demo::run(options, host),
        _ => {}
    }
    let mut asker = Asker::connect(global, host)?;
    match command {
        Command::Show(show) => asker.show(*show),
        Command::Stats(stats) => asker.stats(stats),
        Command::Set(set) => asker.set(*set),
        Command::Latency(latency) => asker.latency(latency),
        Command::Stop(stop) => asker.stop(stop),
        Command::Rpc(rpc) => asker.rpc(rpc),
        Command::Check(_)
        | Command::Doctor(_)
        | Command::Completions(_)
        | Command::Man(_)
        | Command::Demo(_)
        | Command::Daemon(_) => Ok(()),
    }
}

/// Runs the appliance in this process, to its exit code.
pub(super) fn be_the_appliance(daemon: &Daemon) -> ExitCode {
    if let Some(parent) = daemon.end_with_parent {
        let asked = set_parent_process_death_signal(Some(Signal::TERM));
        // It may have ended before the signal was asked for.
        let lives = getppid().is_some_and(|pid| pid.as_raw_nonzero() == parent);
        if asked.is_err() || !lives {
            let text = format!("the process that started this one, {parent}, has ended");
            return Fatal::unavailable(text).report("polluxd");
        }
    }
    let options = start::Options {
        config: Some(daemon.config.clone()),
        ..start::Options::default()
    };
    start::start(&options, crate::appliance::serve)
}

/// A connection to an appliance, and how to print what it says.
struct Asker<'a> {
    client: Client,
    global: &'a Global,
}

impl Asker<'_> {
    fn connect<'a>(global: &'a Global, host: &Host) -> Result<Asker<'a>, Fatal> {
        let path = global.socket(host)?;
        let client = Client::connect(&path, CALL_TIMEOUT)?;
        let asker = Asker { client, global };
        let pid = asker
            .client
            .pid()
            .map_or("?".to_string(), |pid| pid.to_string());
        asker.tell(&format!("connected to pid {pid} at {}", path.display()));
        Ok(asker)
    }

    /// Tells on standard error, with `-v`.
    fn tell(&self, what: &str) {
        if self.global.verbose > 0 {
            use std::io::Write;
            let _ = writeln!(io::stderr().lock(), "pollux: {what}");
        }
    }

    fn call(&mut self, method: Method, params: Value, limit: Duration) -> Result<Value, Fatal> {
        self.tell(&format!("{method} {params}"));
        match self.client.call(method, params, limit) {
            Ok(result) => Ok(result),
            Err(error) => {
                if let ClientError::Rpc(RpcError { code, data, .. }) = &error {
                    self.tell(&format!("error {code}, data {data:?}"));
                }
                Err(error.into())
            }
        }
    }

    /// Asks, and prints the answer as JSON, or as the text of its view.
    fn print<T>(&mut self, method: Method, params: Value, limit: Duration) -> Result<(), Fatal>
    where
        T: DeserializeOwned + View,
    {
        let result = self.call(method, params, limit)?;
        if self.global.json {
            return emit_json(&result);
        }
        emit(&typed::<T>(method, result)?.text())
    }

    fn show(&mut self, show: Show) -> Result<(), Fatal> {
        let (none, limit) = (json!({}), CALL_TIMEOUT);
        match show {
            Show::Appliance => self.print::<VersionView>(Method::Version, none, limit),
            Show::Devices => self.print::<Vec<DeviceView>>(Method::DeviceList, none, limit),
            Show::Links => self.print::<Vec<LinkView>>(Method::LinkList, none, limit),
            Show::Groups => self.print::<Vec<GroupView>>(Method::GroupList, none, limit),
            Show::Conns => self.print::<Vec<ConnView>>(Method::ConnList, none, limit),
            Show::Workers => self.print::<Vec<WorkerView>>(Method::WorkerList, none, limit),
            Show::Memory => self.print::<MemoryView>(Method::MemoryShow, none, limit),
            Show::Fallbacks => self.print::<Vec<FallbackView>>(Method::FallbackList, none, limit),
            Show::Config { toml: false } => {
                self.print::<ConfigView>(Method::ConfigShow, none, limit)
            }
            Show::Config { toml: true } => {
                let result = self.call(Method::ConfigShow, none, limit)?;
                emit(&typed::<ConfigView>(Method::ConfigShow, result)?.toml)
            }
        }
    }

    fn stats(&mut self, stats: &Stats) -> Result<(), Fatal> {
        if stats.clear {
            let result = self.call(Method::StatsClear, json!({}), CALL_TIMEOUT)?;
            return if self.global.json {
                emit_json(&result)
            } else {
                emit("cleared\n")
            };
        }
        let Some(seconds) = stats.watch else {
            return self.print::<StatsView>(Method::StatsShow, json!({}), CALL_TIMEOUT);
        };
        let mut before: Option<StatsView> = None;
        for sample in 0.. {
            if stats.count.is_some_and(|count| sample >= count) {
                break;
            }
            if sample > 0 {
                std::thread::sleep(Duration::from_secs_f64(seconds));
            }
            let result = self.call(Method::StatsShow, json!({}), CALL_TIMEOUT)?;
            let text = if self.global.json {
                result.to_string()
            } else {
                let now: StatsView = typed(Method::StatsShow, result)?;
                let text = match &before {
                    Some(before) => now.text_since(before),
                    None => now.text(),
                };
                before = Some(now);
                text
            };
            if emit_part(&format!("{text}\n"))? == Reader::Gone {
                break;
            }
        }
        Ok(())
    }

    fn set(&mut self, set: Set) -> Result<(), Fatal> {
        let (method, params, text) = match set {
            Set::Poll { mode, worker } => {
                let text = match worker {
                    Some(worker) => format!("poll: {mode} on worker {worker}\n"),
                    None => format!("poll: {mode}\n"),
                };
                (
                    Method::SetPoll,
                    params(&PollRequest { mode, worker })?,
                    text,
                )
            }
            Set::Log { level } => (
                Method::SetLog,
                json!({ "level": level }),
                format!("log: {level}\n"),
            ),
            Set::Inline { inline } => (
                Method::SetInline,
                json!({ "inline": inline }),
                format!("inline: {inline}\n"),
            ),
        };
        let result = self.call(method, params, CALL_TIMEOUT)?;
        if self.global.json {
            emit_json(&result)
        } else {
            emit(&text)
        }
    }

    fn latency(&mut self, latency: &Latency) -> Result<(), Fatal> {
        let mut request = json!({
            "connect": latency.connect,
            "inline": latency.inline,
            "seconds": latency.seconds,
            "iterations": latency.iterations,
        });
        if !latency.sizes.is_empty() {
            request["sizes"] = json!(latency.sizes);
        }
        // The defaults of the method, to know how long it runs.
        let asked: LatencyRequest = typed(Method::LatencyRun, request.clone())?;
        let limit = measure::limit(&asked);
        self.print::<LatencyTable>(Method::LatencyRun, request, limit)
    }

    fn stop(&mut self, stop: &Stop) -> Result<(), Fatal> {
        let pid = self.client.pid();
        let name = pid.map_or("polluxd".to_string(), |pid| format!("polluxd (pid {pid})"));
        // Opened before the end is asked for: afterwards the number may be somebody else's.
        let process = pid
            .and_then(|pid| i32::try_from(pid).ok().and_then(Pid::from_raw))
            .map(|pid| pidfd_open(pid, PidfdFlags::empty()));
        match self.client.call(Method::Stop, json!({}), CALL_TIMEOUT) {
            // It may be gone before its answer is read.
            Ok(_) | Err(ClientError::Closed { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        let Some(seconds) = stop.wait else {
            return self.stopped(&name, "is stopping");
        };
        let process = match process {
            Some(Ok(process)) => process,
            Some(Err(error)) => {
                return Err(Fatal::os(format!("cannot wait for {name}: {error}")));
            }
            None => {
                return Err(Fatal::os(
                    "cannot wait: the kernel does not tell who answers",
                ));
            }
        };
        let limit = Timespec::try_from(Duration::from_secs_f64(seconds)).unwrap_or(Timespec {
            tv_sec: 30,
            tv_nsec: 0,
        });
        match poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&limit)) {
            Ok(0) => Err(Fatal::temporary(format!(
                "{name} still runs after {seconds} s"
            ))),
            Ok(_) => self.stopped(&name, "has stopped"),
            Err(error) => Err(Fatal::os(format!("cannot wait for {name}: {error}"))),
        }
    }

    fn stopped(&self, name: &str, what: &str) -> Result<(), Fatal> {
        match self.global.json {
            true => emit_json(&json!({ "stopped": what == "has stopped" })),
            false => emit(&format!("{name} {what}\n")),
        }
    }

    fn rpc(&mut self, rpc: &Rpc) -> Result<(), Fatal> {
        let usage = |what: String| Fatal::new(ExitStatus::Usage, what);
        let method: Method = rpc
            .method
            .parse()
            .map_err(|error: crate::words::UnknownWord| {
                usage(format!("unknown method: {error}"))
            })?;
        let params = match &rpc.params {
            None => json!({}),
            Some(text) => serde_json::from_str(text)
                .map_err(|error| usage(format!("PARAMS is no JSON ({text}): {error}")))?,
        };
        let result = self.call(method, params, measure::LONGEST)?;
        emit_json(&result)
    }
}

fn params(request: &impl Serialize) -> Result<Value, Fatal> {
    serde_json::to_value(request)
        .map_err(|error| Fatal::os(format!("cannot write the request as JSON: {error}")))
}

fn emit_json(value: &Value) -> Result<(), Fatal> {
    emit(&format!("{value:#}\n"))
}

fn check_config(global: &Global, check: &Check, host: &Host) -> Result<(), Fatal> {
    let config = match Config::from_file(&check.config) {
        Ok(config) => config,
        Err(errors) => {
            if global.json {
                let findings: Vec<String> = errors.iter().map(ToString::to_string).collect();
                emit_json(&json!({ "findings": findings }))?;
            } else {
                use std::io::Write;
                let _ = writeln!(io::stderr().lock(), "{errors}");
            }
            let count = errors.iter().count();
            let what = if count == 1 {
                "1 mistake".to_string()
            } else {
                format!("{count} mistakes")
            };
            return Err(Fatal::config(format!("{}: {what}", check.config.display())));
        }
    };
    let view = start::check(&config, &check.config.display().to_string(), host)?;
    match global.json {
        true => emit_json(&params(&view)?),
        false => emit(&view.text()),
    }
}

/// Prints the report, and ends as the start of an appliance would.
fn examine(global: &Global, doctor: &Doctor) -> Result<(), Fatal> {
    let subject = Subject::read(doctor.config.as_deref());
    let report = doctor::examine(&Machine::current(), subject, doctor.peer);
    match global.json {
        true => emit_json(&report.json())?,
        false => emit(&report.text())?,
    }
    report.end.map_or(Ok(()), Err)
}

fn print_completions(completions: Completions) -> Result<(), Fatal> {
    let mut text = Vec::new();
    clap_complete::generate(
        completions.shell,
        &mut super::command(),
        "pollux",
        &mut text,
    );
    emit(&String::from_utf8_lossy(&text))
}

fn write_man_pages(man: &Man) -> Result<(), Fatal> {
    let failed = |path: &Path, error: io::Error| {
        Fatal::os(format!(
            "cannot write man pages to {}: {error}",
            path.display()
        ))
    };
    for command in [super::command(), start::command()] {
        clap_mangen::generate_to(command, &man.dir).map_err(|error| failed(&man.dir, error))?;
    }
    Ok(())
}

impl From<ClientError> for Fatal {
    fn from(error: ClientError) -> Fatal {
        let status = match &error {
            ClientError::NoSocket { .. }
            | ClientError::Stale { .. }
            | ClientError::NotASocket { .. }
            | ClientError::NotAllowed { .. }
            | ClientError::TimedOut { .. }
            | ClientError::Closed { .. }
            | ClientError::NoAnswer { .. } => ExitStatus::Unavailable,
            ClientError::Io { .. } => ExitStatus::Os,
            ClientError::Rpc(error) => match error.code {
                RpcError::BUSY => ExitStatus::TempFail,
                RpcError::INVALID_PARAMS => ExitStatus::Usage,
                _ => ExitStatus::Failure,
            },
        };
        Fatal::new(status, error.to_string())
    }
}
