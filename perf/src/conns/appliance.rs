//! The two appliances and the program behind them, as processes of their own.

use std::cell::RefCell;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use pollux_control::measure;
use pollux_control::rpc::{CALL_TIMEOUT, Client, Method};
use pollux_control::view::GroupView;
use serde::Serialize;
use serde_json::json;

use super::{SESSION_CONNS, SLOTS};
use crate::own::OwnFolder;

/// How long a process may take until it answers.
const START_WAIT: Duration = Duration::from_secs(20);
/// How long closed connections may take until they are gone.
const SETTLE_WAIT: Duration = Duration::from_secs(60);
/// How often one is asked again.
const RETRY: Duration = Duration::from_millis(5);
/// Connections that a link carries.
const CONNS_PER_LINK: u32 = 255;

/// Names of the appliances: where the echo program is, and where this one is.
const NAMES: [&str; 2] = ["server", "client"];

/// What a process uses of the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Resources {
    /// Whose they are.
    pub name: &'static str,
    /// Resident memory in bytes, shared memory included.
    pub resident_bytes: u64,
    /// Resident memory of its own in bytes, without what it shares with programs and peers.
    pub own_bytes: u64,
    /// Open descriptors.
    pub descriptors: usize,
}

/// What runs besides this process; ended with the value.
pub(super) struct Appliances {
    processes: [Child; 2],
    /// Kept open, so that the appliances have the same descriptors whenever they are counted.
    clients: RefCell<[Client; 2]>,
    echo: Child,
    /// Where the echo listens, one address for each of its sessions.
    pub(super) addresses: Vec<SocketAddr>,
    folder: OwnFolder,
}

/// A process that ends with the value, unless it was taken out.
struct Guard(Option<Child>);

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Guard {
    fn release(mut self) -> Result<Child> {
        self.0.take().context("a process is released once")
    }
}

impl Appliances {
    /// Starts all three, with room for `conns` connections.
    pub(super) fn start(conns: u32) -> Result<Appliances> {
        let folder = OwnFolder::new()?;
        let mut processes = Vec::new();
        for name in NAMES {
            let file = folder.path().join(format!("{name}.toml"));
            std::fs::write(&file, config(&folder, name, conns))
                .with_context(|| format!("cannot write {}", file.display()))?;
            let mut command = own_program();
            command.arg("appliance").arg(&file).stdout(Stdio::null());
            let child = command.spawn().context("cannot start an appliance")?;
            let mut guard = Guard(Some(child));
            until_it_answers(&folder, name, &mut guard)?;
            processes.push(guard);
        }
        let sessions = sessions_for(conns);
        let mut command = own_program();
        command
            .arg("conns-echo")
            .arg(socket(&folder, NAMES[0], "attach"))
            .arg(sessions.to_string())
            .stdout(Stdio::piped());
        let mut child = command.spawn().context("cannot start the echo program")?;
        let out = child.stdout.take().context("its output is piped")?;
        let echo = Guard(Some(child));
        let addresses = addresses(out, sessions)?;
        let [server, client] = <[Guard; 2]>::try_from(processes)
            .ok()
            .context("there are two appliances")?;
        Ok(Appliances {
            clients: RefCell::new([connect(&folder, NAMES[0])?, connect(&folder, NAMES[1])?]),
            processes: [server.release()?, client.release()?],
            echo: echo.release()?,
            addresses,
            folder,
        })
    }

    /// The attach socket of this side's appliance.
    pub(super) fn attach_socket(&self) -> PathBuf {
        socket(&self.folder, NAMES[1], "attach")
    }

    /// What both appliances use now.
    pub(super) fn resources(&self) -> Result<Vec<Resources>> {
        let both = NAMES.into_iter().zip(&self.processes);
        both.map(|(name, child)| resources(name, child.id()))
            .collect()
    }

    /// How many link groups this side's appliance has.
    pub(super) fn groups(&self) -> Result<usize> {
        Ok(groups(&mut self.clients.borrow_mut()[1])?.len())
    }

    /// Waits until both have only `left` connections: a closed one lives until its peer is done.
    pub(super) fn settle(&self, left: u32) -> Result<()> {
        let deadline = Instant::now() + SETTLE_WAIT;
        for (name, client) in NAMES.into_iter().zip(&mut *self.clients.borrow_mut()) {
            loop {
                let conns: u32 = groups(client)?.iter().map(|group| group.conns).sum();
                if conns <= left {
                    break;
                }
                ensure!(
                    Instant::now() < deadline,
                    "{} closed connections are left at the {name}",
                    conns - left
                );
                std::thread::sleep(RETRY);
            }
        }
        Ok(())
    }

    /// Ends all in order.
    pub(super) fn stop(mut self) -> Result<()> {
        // It has nothing to end in order: its connections are closed.
        self.echo.kill().context("cannot end the echo program")?;
        let ends = self.processes.iter_mut().zip(self.clients.get_mut());
        for (name, (process, client)) in NAMES.into_iter().zip(ends) {
            // It may be gone before its answer is read; its status is what counts.
            let _ = client.call(Method::Stop, json!({}), CALL_TIMEOUT);
            let status = process.wait()?;
            ensure!(status.success(), "the {name} ended with {status}");
        }
        Ok(())
    }
}

impl Drop for Appliances {
    fn drop(&mut self) {
        for child in self.processes.iter_mut().chain([&mut self.echo]) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Sessions that hold `conns` connections.
pub(super) fn sessions_for(conns: u32) -> u32 {
    conns.div_ceil(u32::from(SESSION_CONNS))
}

fn own_program() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.stdin(Stdio::null());
    command
}

fn socket(folder: &OwnFolder, name: &str, which: &str) -> PathBuf {
    folder.path().join(name).join(format!("{which}.sock"))
}

fn groups(client: &mut Client) -> Result<Vec<GroupView>> {
    let groups = client.call(Method::GroupList, json!({}), CALL_TIMEOUT)?;
    Ok(measure::typed(Method::GroupList, groups)?)
}

fn connect(folder: &OwnFolder, name: &str) -> Result<Client> {
    let socket = socket(folder, name, "control");
    Client::connect(&socket, CALL_TIMEOUT).with_context(|| format!("the {name} is gone"))
}

/// Small rings, so that memory for many is there; ordinary pages, of which unused ones cost nothing.
fn config(folder: &OwnFolder, name: &str, conns: u32) -> String {
    let at = folder.path().display();
    // The last connections may still be closing when the next ones are opened.
    let room = (conns + 1024).min(u32::from(u16::MAX));
    let links = room.div_ceil(CONNS_PER_LINK) + 8;
    format!(
        "[appliance]\nname = \"{name}\"\nruntime_dir = \"{at}/{name}\"\nlog = \"warn\"\n\
         [attach]\nslots = {SLOTS}\nsndbuf = \"16K\"\nrmb = \"16K\"\n\
         [device]\nfabric_dir = \"{at}/fabric\"\n\
         [workers]\nlock_dir = \"{at}\"\npoll = \"adaptive\"\nconns_max = {room}\n\
         links_max = {links}\n\
         [memory]\nhugepages = \"off\"\n\
         [[peer]]\naddress = \"127.0.0.0/8\"\n"
    )
}

fn until_it_answers(folder: &OwnFolder, name: &str, guard: &mut Guard) -> Result<()> {
    let deadline = Instant::now() + START_WAIT;
    loop {
        if let Some(child) = &mut guard.0
            && let Some(status) = child.try_wait()?
        {
            bail!("the {name} ended with {status}; its reason stands above");
        }
        if connect(folder, name).is_ok() {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "the {name} does not answer");
        std::thread::sleep(RETRY);
    }
}

/// The lines that the echo program begins with.
fn addresses(out: ChildStdout, count: u32) -> Result<Vec<SocketAddr>> {
    let mut lines = BufReader::new(out).lines();
    (0..count)
        .map(|_| {
            let line = lines.next().context("the echo program did not start")??;
            let address = line.parse();
            address.with_context(|| format!("the echo program says {line:?}"))
        })
        .collect()
}

fn resources(name: &'static str, pid: u32) -> Result<Resources> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))
        .with_context(|| format!("the {name} is gone"))?;
    let bytes = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        let kib = kib.with_context(|| format!("/proc/{pid}/status has no {key}"));
        kib.map(|kib| kib << 10)
    };
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .with_context(|| format!("the descriptors of the {name} cannot be counted"))?
        .count();
    Ok(Resources {
        name,
        resident_bytes: bytes("VmRSS:")?,
        own_bytes: bytes("RssAnon:")?,
        descriptors,
    })
}
