//! An appliance inside the measuring process: the same code as `polluxd`, with one worker.
//!
//! It runs on a thread of its own and is asked over its control socket, as an operator would.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pollux_control::config::{
    Config, InlineThreshold, LogLevel, PathChoice, Peer, Personality, PollChoice, Service,
    ServiceKind,
};
use pollux_control::cores::{CoreChoice, CoreSet};
use pollux_control::exit::Fatal;
use pollux_control::host::Host;
use pollux_control::rpc::{CALL_TIMEOUT, Client, Method};
use pollux_control::{appliance, measure, start};
use serde_json::json;
use thiserror::Error;

/// How long an appliance may take until it answers.
const START_WAIT: Duration = Duration::from_secs(10);
/// How often one that does not answer yet is asked again.
const START_RETRY: Duration = Duration::from_millis(5);

/// What the appliance does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Sends back what comes to this address.
    Echo(SocketAddr),
    /// Measures against the echo at this address.
    Meter(SocketAddr),
}

/// How to start it.
#[derive(Clone, Debug)]
pub struct EmbeddedSpec {
    /// What it does.
    pub part: Part,
    /// The worker's core.
    pub core: u32,
    /// How the worker waits.
    pub poll: PollChoice,
    /// Folder in which both ends meet; the sockets of each lie in it as well.
    pub folder: PathBuf,
    /// Folder of the core locks; `None` is that of all appliances of the host.
    pub lock_dir: Option<PathBuf>,
    /// Which adapter its soft device plays.
    pub personality: Personality,
    /// Longest WRITE that goes inline, for which the adapter is asked as well; `None`: what the
    /// driver knows.
    pub threshold: Option<u32>,
}

/// Why it does not run.
#[derive(Debug, Error)]
pub enum EmbeddedError {
    /// It refused to start, or failed.
    #[error("{0}")]
    Appliance(Fatal),
    /// It does not answer.
    #[error("the appliance in this process is not ready after {} s", START_WAIT.as_secs())]
    Silent,
    /// Its thread could not be started.
    #[error("cannot start a thread for the appliance: {0}")]
    Thread(std::io::Error),
    /// Its thread stopped early.
    #[error("the appliance's thread stopped before its time; this is a defect of the program")]
    Lost,
}

impl From<Fatal> for EmbeddedError {
    fn from(fatal: Fatal) -> EmbeddedError {
        EmbeddedError::Appliance(fatal)
    }
}

/// An appliance that runs.
pub struct Embedded {
    client: Client,
    running: Running,
}

/// An appliance that runs, without its control socket.
pub struct Running(JoinHandle<Result<(), Fatal>>);

impl Running {
    /// Ends it in order, over its control socket.
    ///
    /// # Errors
    ///
    /// It failed.
    pub fn stop(self, mut client: Client) -> Result<(), EmbeddedError> {
        // It may be gone before its answer is read; how it ended says the thread.
        let _ = client.call(Method::Stop, json!({}), CALL_TIMEOUT);
        joined(self.0)
    }
}

/// The runtime folder of the echo at `address`, by which a meter on the same host finds it.
fn echo_folder(folder: &Path, address: SocketAddr) -> PathBuf {
    folder.join(format!("echo-{}", address.port()))
}

/// The control socket of the echo at `address`, if it is on this host and meets in `folder`.
#[must_use]
pub fn echo_client(folder: &Path, address: SocketAddr) -> Option<Client> {
    let socket = echo_folder(folder, address).join("control.sock");
    Client::connect(&socket, CALL_TIMEOUT).ok()
}

impl Embedded {
    /// Starts it and waits until it answers. SIGTERM and SIGINT end it from then on.
    ///
    /// # Errors
    ///
    /// [`EmbeddedError`].
    pub fn start(spec: &EmbeddedSpec) -> Result<Embedded, EmbeddedError> {
        let config = config(spec);
        let host = Host::current();
        let socket = config.paths(&host).map_err(Fatal::from)?.control_socket;
        let thread = std::thread::Builder::new()
            .name("appliance".to_owned())
            .spawn(move || {
                let prepared = start::prepare(config, String::new(), &host)?;
                appliance::serve(prepared)
            })
            .map_err(EmbeddedError::Thread)?;
        let deadline = Instant::now() + START_WAIT;
        loop {
            // One that failed is asked no more, so that its own reason is told.
            if thread.is_finished() {
                joined(thread)?;
                return Err(EmbeddedError::Lost);
            }
            let connected = Client::connect(&socket, CALL_TIMEOUT).and_then(|mut client| {
                client.call(Method::Version, json!({}), CALL_TIMEOUT)?;
                Ok(client)
            });
            match connected {
                Ok(client) if client.pid() == Some(std::process::id()) => {
                    let running = Running(thread);
                    return Ok(Embedded { client, running });
                }
                // Somebody else has the place; the start fails with that reason.
                Ok(_) | Err(_) if Instant::now() < deadline => std::thread::sleep(START_RETRY),
                Ok(_) | Err(_) => return Err(EmbeddedError::Silent),
            }
        }
    }

    /// Waits until a signal ends it.
    ///
    /// # Errors
    ///
    /// It failed.
    pub fn wait(self) -> Result<(), EmbeddedError> {
        joined(self.running.0)
    }

    /// Its control socket, and the rest.
    #[must_use]
    pub fn split(self) -> (Client, Running) {
        (self.client, self.running)
    }

    /// The worker's core.
    ///
    /// # Errors
    ///
    /// The appliance does not answer.
    pub fn core(&mut self) -> Result<Option<u32>, EmbeddedError> {
        Ok(measure::worker_cores(&mut self.client)?.first().copied())
    }
}

fn joined(thread: JoinHandle<Result<(), Fatal>>) -> Result<(), EmbeddedError> {
    thread
        .join()
        .map_err(|_| EmbeddedError::Lost)?
        .map_err(EmbeddedError::Appliance)
}

fn config(spec: &EmbeddedSpec) -> Config {
    let mut config = Config::default();
    let runtime_dir = match spec.part {
        Part::Echo(address) => echo_folder(&spec.folder, address),
        Part::Meter(_) => spec.folder.join(format!("meter-{}", std::process::id())),
    };
    config.appliance.name = "pollux-perf".to_owned();
    config.appliance.runtime_dir = PathChoice::At(runtime_dir);
    config.appliance.log = LogLevel::Warn;
    config.device.fabric_dir = PathChoice::At(spec.folder.clone());
    config.device.personality = spec.personality;
    if let Some(bytes) = spec.threshold {
        config.device.inline_bytes = config.device.inline_bytes.max(bytes);
        config.device.inline_threshold = InlineThreshold::Bytes(bytes);
    }
    config.workers.cores = CoreChoice::Listed(CoreSet::of([spec.core]));
    config.workers.poll = spec.poll;
    if let Some(dir) = &spec.lock_dir {
        config.workers.lock_dir = PathChoice::At(dir.clone());
    }
    match spec.part {
        Part::Echo(listen) => config.services.push(Service {
            kind: ServiceKind::Echo,
            listen,
        }),
        Part::Meter(address) => {
            let pattern = address.to_string().parse();
            config.peers.extend(pattern.map(|address| Peer { address }));
        }
    }
    config
}
