//! What a demonstration has of the system: a folder and two appliances. Given back in every case.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use serde_json::json;

use crate::config::Config;
use crate::exit::{ExitStatus, Fatal};
use crate::reactor::Signals;
use crate::rpc::{CALL_TIMEOUT, Client, Method};

/// How long an appliance may take until it answers.
const START_WAIT: Duration = Duration::from_secs(10);
/// How often one that does not answer yet is asked again.
const START_RETRY: Duration = Duration::from_millis(5);
/// How long an appliance may take to end in order.
const STOP_WAIT: Duration = Duration::from_secs(5);

/// Whether the appliances outlive the demonstration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Afterwards {
    /// They end with it.
    End,
    /// They stay.
    Keep,
}

/// The folder and the appliances. A signal ends them from another thread, hence the lock.
#[derive(Clone)]
pub(super) struct Stage {
    dir: PathBuf,
    afterwards: Afterwards,
    players: Arc<Mutex<Vec<Player>>>,
}

/// One appliance.
struct Player {
    name: String,
    process: Child,
}

impl Stage {
    /// Makes the folder, for this user only, and takes care of SIGINT and SIGTERM.
    pub(super) fn new(afterwards: Afterwards) -> Result<Stage, Fatal> {
        let dir = make_folder(&std::env::temp_dir())?;
        let stage = Stage {
            dir,
            afterwards,
            players: Arc::default(),
        };
        if let Err(error) = stage.watch_signals() {
            stage.clear()?;
            return Err(Fatal::os(format!(
                "demo: cannot handle SIGTERM and SIGINT: {error}"
            )));
        }
        Ok(stage)
    }

    /// The folder.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Whether it is cleared at the end.
    pub(super) fn afterwards(&self) -> Afterwards {
        self.afterwards
    }

    fn players(&self) -> MutexGuard<'_, Vec<Player>> {
        self.players.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watch_signals(&self) -> io::Result<()> {
        let signals = Signals::install()?;
        let stage = self.clone();
        std::thread::Builder::new()
            .name("demo-signals".to_owned())
            .spawn(move || {
                while poll(&mut [PollFd::new(&signals, PollFlags::IN)], None).is_err() {}
                // Held until the end, so that no appliance is started meanwhile.
                let mut players = stage.players();
                let _ = end_all(&mut players);
                let _ = fs::remove_dir_all(&stage.dir);
                let fatal = Fatal::new(ExitStatus::Failure, "demo: interrupted");
                let _ = fatal.report("pollux");
                std::process::exit(i32::from(ExitStatus::Failure.code()));
            })?;
        Ok(())
    }

    /// Starts the appliance `config` describes, by the program that runs now, and waits until it
    /// answers on its control socket.
    pub(super) fn start(&self, config: &Config, socket: &Path) -> Result<Client, Fatal> {
        let name = config.appliance.name.clone();
        let file = self.dir.join(format!("{name}.toml"));
        let log = self.log(&name);
        let written = fs::write(&file, config.to_toml()).and_then(|()| File::create(&log));
        let log_file = written.map_err(|error| {
            Fatal::os(format!(
                "demo: cannot write to {}: {error}",
                self.dir.display()
            ))
        })?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0("polluxd").arg("daemon");
        if self.afterwards == Afterwards::End {
            let parent = rustix::process::getpid().as_raw_nonzero();
            command.arg("--end-with-parent").arg(parent.to_string());
        }
        command
            .arg("--config")
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log_file)
            // A Ctrl-C is for the demonstration, which ends the appliances in order.
            .process_group(0);
        {
            let mut players = self.players();
            let process = command.spawn().map_err(|error| {
                Fatal::os(format!("demo: cannot start appliance {name}: {error}"))
            })?;
            let name = name.clone();
            players.push(Player { name, process });
        }
        self.await_answer(&name, socket)
    }

    fn log(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.log"))
    }

    fn await_answer(&self, name: &str, socket: &Path) -> Result<Client, Fatal> {
        let deadline = Instant::now() + START_WAIT;
        loop {
            let failure = match Client::connect(socket, CALL_TIMEOUT) {
                Ok(mut client) => match client.call(Method::Version, json!({}), CALL_TIMEOUT) {
                    Ok(_) => return Ok(client),
                    Err(error) => error,
                },
                Err(error) => error,
            };
            if let Some(status) = self.ended(name) {
                return Err(self.failed_start(name, status));
            }
            if Instant::now() >= deadline {
                return Err(Fatal::unavailable(format!(
                    "demo: appliance {name} is not ready after {} s: {failure}",
                    START_WAIT.as_secs()
                )));
            }
            std::thread::sleep(START_RETRY);
        }
    }

    /// The exit code of an appliance that runs no more.
    fn ended(&self, name: &str) -> Option<Option<i32>> {
        let mut players = self.players();
        let player = players.iter_mut().find(|player| player.name == name)?;
        match player.process.try_wait() {
            Ok(Some(status)) => Some(status.code()),
            Ok(None) | Err(_) => None,
        }
    }

    /// Why an appliance did not start: the last line that it wrote, and its status.
    fn failed_start(&self, name: &str, code: Option<i32>) -> Fatal {
        let log = fs::read_to_string(self.log(name)).unwrap_or_default();
        let line = log.lines().last().unwrap_or("it left no message");
        let line = line.strip_prefix("polluxd: ").unwrap_or(line);
        let known = [
            ExitStatus::Unavailable,
            ExitStatus::Os,
            ExitStatus::TempFail,
            ExitStatus::Config,
        ];
        let status = known
            .into_iter()
            .find(|status| code == Some(i32::from(status.code())))
            .unwrap_or(ExitStatus::Failure);
        Fatal::new(
            status,
            format!("demo: appliance {name} did not start: {line}"),
        )
    }

    /// Ends the appliances in order and removes the folder, or leaves both, as was asked.
    pub(super) fn clear(&self) -> Result<(), Fatal> {
        if self.afterwards == Afterwards::Keep {
            return Ok(());
        }
        let ended = end_all(&mut self.players());
        fs::remove_dir_all(&self.dir).map_err(|error| {
            Fatal::os(format!(
                "demo: cannot remove {}: {error}",
                self.dir.display()
            ))
        })?;
        ended
    }

    /// As [`Stage::clear`], after a failure: nothing is kept and the failure is what counts.
    pub(super) fn clear_anyway(&self) {
        let _ = end_all(&mut self.players());
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// A new folder in `base` with mode 0700.
fn make_folder(base: &Path) -> Result<PathBuf, Fatal> {
    let pid = rustix::process::getpid().as_raw_nonzero();
    let mut number = 0;
    loop {
        // Somebody else's folder with this name is of no use, whoever left it there.
        let dir = base.join(format!("pollux-demo-{pid}-{number}"));
        match DirBuilder::new().mode(0o700).create(&dir) {
            Ok(()) => return Ok(dir),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && number < 1000 => {
                number += 1;
            }
            Err(error) => {
                return Err(Fatal::os(format!(
                    "demo: cannot make the folder {}: {error}; TMPDIR names another place",
                    dir.display()
                )));
            }
        }
    }
}

/// Asks all to end, then waits for each.
fn end_all(players: &mut Vec<Player>) -> Result<(), Fatal> {
    let mut result = Ok(());
    for player in players.iter_mut() {
        // One that was waited for already has no process any more whom the number could mean.
        if matches!(player.process.try_wait(), Ok(None)) {
            let _ = kill_process(Pid::from_child(&player.process), Signal::TERM);
        }
    }
    for mut player in players.drain(..) {
        if let Err(error) = end(&mut player) {
            result = Err(error);
        }
    }
    result
}

fn end(player: &mut Player) -> Result<(), Fatal> {
    let name = &player.name;
    let limit = Timespec::try_from(STOP_WAIT).ok();
    if matches!(player.process.try_wait(), Ok(None)) {
        let pid = Pid::from_child(&player.process);
        let is_over = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(process) => {
                poll(&mut [PollFd::new(&process, PollFlags::IN)], limit.as_ref()) == Ok(1)
            }
            Err(_) => false,
        };
        if !is_over {
            let _ = player.process.kill();
            let _ = player.process.wait();
            return Err(Fatal::new(
                ExitStatus::Failure,
                format!(
                    "demo: appliance {name} did not end within {} s and was killed",
                    STOP_WAIT.as_secs()
                ),
            ));
        }
    }
    match player.process.wait() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Fatal::new(
            ExitStatus::Failure,
            format!("demo: appliance {name} ended with {status}"),
        )),
        Err(error) => Err(Fatal::os(format!(
            "demo: cannot wait for appliance {name}: {error}"
        ))),
    }
}
